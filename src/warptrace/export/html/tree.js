// What belongs to what: warps to CTAs to SMs to launches, ranges to the rows of their warps.

class Model {
  constructor(columns) {
    this.columns = columns;
    this.facts = columns.facts;
    const take = (prefix) => Object.fromEntries(Object.entries(columns)
      .filter(([name]) => name.startsWith(`${prefix}.`)).map(([name, data]) => [name.slice(prefix.length + 1), data]));
    this.warps = take("warps");
    this.ranges = take("ranges");
    this.markers = take("markers");
    this.histogram = take("histogram");
    this.names = this.facts.strings;
    this.flows = take("flows");
    this.host = take("host");
    this.launches = this.facts.launches;
    this.roles = this.facts.roles ?? [];
    this.waits = this.facts.waits ?? [];
    this.#rows();
    this.#ctas();
    this.#sms();
    this.#host();
  }

  // hostLines[t]: the rows of track t of the host, each {first, last} of its slices, in order of time. callOf: the slice
  // that called a launch.
  #host() {
    const { track, row, start_ns: start, ns, launch } = this.host;
    this.hostTracks = this.facts.host?.tracks ?? [];
    this.hostLines = this.hostTracks.map(() => []);
    this.hostEnd = new Float64Array(track.length);
    this.callOf = new Map();
    for (let i = 0; i < track.length; i++) {
      this.hostEnd[i] = start[i] + Math.max(0, ns[i]);
      if (launch[i] >= 0) this.callOf.set(launch[i], i);
      const line = this.hostLines[track[i]][row[i]] ??= { first: i, last: i };
      line.last = i + 1;
    }
    this.hostLines = this.hostLines.map((lines) => Array.from(lines, (line) => line ?? { first: 0, last: 0 }));
  }

  hostName(i) { return this.facts.host.names[this.host.name[i]]; }

  // The ranges of its thread around a launch call, outermost first, as one text.
  hostWithin(i) { return this.facts.host.names[this.host.within[i]]; }

  // rowFirst[warpRow[w] + r] .. rowFirst[warpRow[w] + r + 1]: the ranges of row r of warp w, in order of time.
  #rows() {
    const { warp, row, start_ns: start, ns } = this.ranges, count = this.warps.warp.length, n = warp.length;
    this.warpRow = new Int32Array(count + 1);
    for (let i = 0; i < n; i++) this.warpRow[warp[i] + 1] = Math.max(this.warpRow[warp[i] + 1], row[i] + 1);
    for (let w = 0; w < count; w++) this.warpRow[w + 1] += this.warpRow[w];
    this.rowFirst = new Int32Array(this.warpRow[count] + 1);
    for (let i = 0; i < n; i++) this.rowFirst[this.warpRow[warp[i]] + row[i] + 1]++;
    for (let k = 0; k < this.warpRow[count]; k++) this.rowFirst[k + 1] += this.rowFirst[k];
    this.end = new Float64Array(n);
    this.busy = new Float64Array(n + 1); // nanoseconds in ranges before each
    for (let i = 0; i < n; i++) {
      this.end[i] = start[i] + ns[i];
      this.busy[i + 1] = this.busy[i] + ns[i];
    }
    this.#stacking();
    this.markerFirst = new Int32Array(count + 1);
    for (const w of this.markers.warp) this.markerFirst[w + 1]++;
    for (let w = 0; w < count; w++) this.markerFirst[w + 1] += this.markerFirst[w];
  }

  // The order in which rows of a warp are painted where they share a line: rows of stack ranges by their nesting, and
  // rows of token ranges among them by length, so that short ones are seen.
  #stacking() {
    this.painted = Int32Array.from({ length: this.rowFirst.length - 1 }, (_, k) => k);
    const { kind } = this.ranges, { rowFirst: first, busy } = this;
    const isToken = (k) => first[k] < first[k + 1] && kind[first[k]] === 1;
    const mean = (k) => (busy[first[k + 1]] - busy[first[k]]) / Math.max(1, first[k + 1] - first[k]);
    for (let w = 0; w + 1 < this.warpRow.length; w++) {
      const rows = this.painted.subarray(this.warpRow[w], this.warpRow[w + 1]);
      if (!rows.some(isToken)) continue;
      const stacks = [...rows].filter((k) => !isToken(k)), tokens = [...rows].filter(isToken).sort((a, b) => mean(b) - mean(a));
      let least = Infinity, at = 0;
      for (const stack of stacks) {
        least = Math.min(least, mean(stack));
        while (tokens.length && mean(tokens[0]) >= least) rows[at++] = tokens.shift();
        rows[at++] = stack;
      }
      rows.set(tokens, at);
    }
  }

  #ctas() {
    const { launch, cta_x: x, cta_y: y, cta_z: z, start_ns: start, ns, sm } = this.warps, first = [];
    for (let w = 0; w < launch.length; w++) {
      const same = w && launch[w] === launch[w - 1] && x[w] === x[w - 1] && y[w] === y[w - 1] && z[w] === z[w - 1];
      if (!same) first.push(w);
    }
    const count = first.length;
    this.ctaFirst = new Int32Array(count + 1);
    for (let c = 0; c < count; c++) this.ctaFirst[c] = first[c];
    this.ctaFirst[count] = launch.length;
    this.ctaStart = new Float64Array(count).fill(Infinity);
    this.ctaEnd = new Float64Array(count).fill(-Infinity);
    this.ctaSm = new Int32Array(count);
    this.ctaOf = new Int32Array(launch.length);
    for (let c = 0; c < count; c++) {
      this.ctaSm[c] = sm[first[c]];
      for (let w = this.ctaFirst[c]; w < this.ctaFirst[c + 1]; w++) {
        this.ctaOf[w] = c;
        this.ctaStart[c] = Math.min(this.ctaStart[c], start[w]);
        this.ctaEnd[c] = Math.max(this.ctaEnd[c], start[w] + ns[w]);
      }
    }
  }

  // sms: {launch, sm, ctas, slots}; the CTAs of an SM in order of start; those that live together in different slots.
  #sms() {
    const count = this.ctaSm.length, byKey = new Map();
    this.ctaSlot = new Int32Array(count);
    this.ctaTurn = new Int32Array(count); // how many were in its slot before
    this.smOf = new Int32Array(count);
    this.smsOfLaunch = this.launches.map(() => []);
    for (let c = 0; c < count; c++) {
      const launch = this.warps.launch[this.ctaFirst[c]], key = `${launch} ${this.ctaSm[c]}`;
      if (!byKey.has(key)) byKey.set(key, { launch, sm: this.ctaSm[c], ctas: [] });
      byKey.get(key).ctas.push(c);
    }
    this.sms = [...byKey.values()].sort((a, b) => a.launch - b.launch || a.sm - b.sm);
    this.sms.forEach((one, index) => {
      one.ctas.sort((a, b) => this.ctaStart[a] - this.ctaStart[b] || a - b);
      const ends = [], turns = [];
      for (const c of one.ctas) {
        let slot = ends.findIndex((end) => end <= this.ctaStart[c]);
        if (slot < 0) slot = ends.length;
        ends[slot] = this.ctaEnd[c];
        this.ctaSlot[c] = slot;
        this.ctaTurn[c] = turns[slot] = (turns[slot] ?? -1) + 1;
        this.smOf[c] = index;
      }
      one.slots = ends.length;
      this.smsOfLaunch[one.launch].push(index);
    });
  }

  ctaName(c) {
    const w = this.ctaFirst[c], { cta_x: x, cta_y: y, cta_z: z } = this.warps;
    return `CTA (${x[w]}, ${y[w]}, ${z[w]})`;
  }

  ctaShown(c) { return this.warps.shown[this.ctaFirst[c]] === 1; }

  rowsOf(w) { return this.warpRow[w + 1] - this.warpRow[w]; }

  // The roles that run in the given launches, each with the names of its ranges: [{role, text, names}].
  rolesOf(launches) {
    const shown = new Set(launches), { name, warp } = this.ranges, { launch, role } = this.warps, count = this.names.length;
    const seen = new Uint8Array((this.roles.length + 1) * count);
    for (let i = 0; i < name.length; i++) if (shown.has(launch[warp[i]])) seen[role[warp[i]] * count + name[i]] = 1;
    return this.roles.map((text, index) => ({ role: index, text, names: this.names.flatMap((_, n) => (seen[index * count + n] ? [n] : [])) }))
      .filter((one) => one.names.length);
  }

  // The ranges that feed a range (`feeds` false) or that it feeds.
  partners(range, feeds) {
    const [mine, other] = feeds ? [this.flows.source, this.flows.target] : [this.flows.target, this.flows.source], out = [];
    for (let i = 0; i < mine.length; i++) if (mine[i] === range) out.push(other[i]);
    return out;
  }

  // Cycles from the start of a source to the end of a target: they are of one CTA, so of one SM.
  latency(source, target) {
    const { start_cycle: start, cycles, warp } = this.ranges, { clock } = this.warps;
    return clock[warp[target]] + start[target] + cycles[target] - clock[warp[source]] - start[source];
  }

  // Where a launch ran, if the trace has several processes or devices.
  whereOf(index) {
    const place = (one) => `pid ${this.facts.processes[one.process].pid}, GPU ${one.device}`;
    this.places ??= new Set(this.launches.map(place)).size;
    return this.places > 1 ? place(this.launches[index]) : "";
  }

  roleName(w) { return this.roles[this.warps.role?.[w]] ?? ""; }

  payload(type, bits, i) {
    return payloadValue(this.facts.payload_types[type[i]], bits.low[i], bits.high[i]);
  }

  rangePayload(i) { return this.payload(this.ranges.start_type, this.ranges.start_bits, i); }

  markerPayload(i) { return this.payload(this.markers.type, this.markers.bits, i); }

  site(index) {
    const site = this.facts.sites[index];
    return site ? `${site[1]}:${site[2]}` : "";
  }
}

// First index in [low, high) whose value in the sorted array is not below `value`.
function lowerBound(array, value, low, high) {
  while (low < high) {
    const middle = (low + high) >> 1;
    if (array[middle] < value) low = middle + 1;
    else high = middle;
  }
  return low;
}

// The same, but cheap where the answer is near `low`.
function gallop(array, value, low, high) {
  let step = 1, at = low;
  while (at < high && array[at] < value) {
    low = at + 1;
    at += step;
    step *= 2;
  }
  return lowerBound(array, value, low, Math.min(at, high));
}

const HEIGHT = { launch: 22, sm: 20, slot: 7, strip: 4, head: 18, warp: 16, life: 5, marks: 9, lane: 16, gap: 5 };
const KIND = { launch: 0, sm: 1, cta: 2, warp: 3, host: 4 };

// The rows of the timeline: which are there, how high, and where. Heights are CSS pixels.
class Layout {
  constructor(model) {
    this.model = model;
    this.smOpen = new Uint8Array(model.sms.length);
    this.ctaOpen = new Uint8Array(model.ctaSm.length);
    this.warpOpen = new Uint8Array(model.warps.warp.length).fill(1);
    this.launchOpen = new Uint8Array(model.launches.length).fill(1);
    this.launches = [];
    this.update();
  }

  // Levels: -1 launches, 0 SMs, 1 CTAs as strips of their warps, 2 a row a warp, 3 every row of a warp.
  open(level) {
    for (const launch of this.launches) this.launchOpen[launch] = level >= 0 ? 1 : 0;
    for (const launch of this.launches) for (const s of this.model.smsOfLaunch[launch]) {
      this.smOpen[s] = level > 0 ? 1 : 0;
      for (const c of this.model.sms[s].ctas) {
        this.ctaOpen[c] = level > 1 ? 1 : 0;
        this.warpOpen.fill(level > 2 ? 1 : 0, this.model.ctaFirst[c], this.model.ctaFirst[c + 1]);
      }
    }
    this.update();
  }

  // The finest level at which the launches take no more than about `height` pixels.
  show(launches, height) {
    this.launches = launches;
    if (launches.length > 1) { // the time between launches leaves nothing to see within them
      this.open(1);
      this.launchOpen.fill(0);
      this.update();
      return -1;
    }
    for (const level of [3, 2, 1]) {
      this.open(level);
      if (this.height <= height) return level;
    }
    this.open(0);
    return 0;
  }

  warpHeight(w) {
    if (!this.warpOpen[w]) return HEIGHT.warp;
    const marks = this.model.markerFirst[w + 1] > this.model.markerFirst[w] ? HEIGHT.marks : 0;
    return Math.max(HEIGHT.warp, HEIGHT.life + marks + HEIGHT.lane * this.model.rowsOf(w) + 2);
  }

  update() {
    const { model } = this, kind = [], ref = [], y = [];
    let at = 0;
    const add = (what, which, height) => {
      kind.push(what);
      ref.push(which);
      y.push(at);
      at += height;
    };
    model.hostLines.forEach((lines, track) => add(KIND.host, track, Math.max(1, lines.length) * HEIGHT.lane + HEIGHT.gap));
    for (const launch of this.launches) {
      if (this.launches.length > 1) add(KIND.launch, launch, HEIGHT.launch);
      if (this.launches.length > 1 && !this.launchOpen[launch]) continue;
      for (const s of model.smsOfLaunch[launch]) {
        const one = model.sms[s];
        add(KIND.sm, s, Math.max(HEIGHT.sm, one.slots * HEIGHT.slot + 6));
        if (!this.smOpen[s]) continue;
        for (const c of one.ctas) {
          const warps = model.ctaFirst[c + 1] - model.ctaFirst[c];
          if (!this.ctaOpen[c]) {
            add(KIND.cta, c, Math.max(HEIGHT.head, warps * HEIGHT.strip + HEIGHT.gap));
            continue;
          }
          add(KIND.cta, c, HEIGHT.head);
          for (let w = model.ctaFirst[c]; w < model.ctaFirst[c + 1]; w++) add(KIND.warp, w, this.warpHeight(w));
        }
      }
    }
    y.push(at);
    this.kind = Uint8Array.from(kind);
    this.ref = Int32Array.from(ref);
    this.y = Float64Array.from(y);
    this.count = kind.length;
    this.height = at;
  }

  at(y) { // the row there, or -1
    if (y < 0 || y >= this.height) return -1;
    return lowerBound(this.y, y + 1e-6, 0, this.y.length) - 1;
  }

  find(kind, ref) {
    for (let r = 0; r < this.count; r++) if (this.kind[r] === kind && this.ref[r] === ref) return r;
    return -1;
  }

  toggle(row) {
    const which = this.ref[row];
    if (this.kind[row] === KIND.launch) this.launchOpen[which] ^= 1;
    else if (this.kind[row] === KIND.sm) this.smOpen[which] ^= 1;
    else if (this.kind[row] === KIND.cta) this.ctaOpen[which] ^= 1;
    else if (this.kind[row] === KIND.warp) this.warpOpen[which] ^= 1;
    this.update();
  }

  // Makes the row of a warp visible and returns it.
  reveal(w) {
    const c = this.model.ctaOf[w];
    this.launchOpen[this.model.warps.launch[w]] = 1;
    this.smOpen[this.model.smOf[c]] = 1;
    this.ctaOpen[c] = 1;
    this.warpOpen[w] = 1;
    this.update();
    return this.find(KIND.warp, w);
  }
}
