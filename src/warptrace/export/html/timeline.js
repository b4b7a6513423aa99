// The timeline: a canvas for the rows in view, within an element that scrolls; a canvas above it for time.

const GUTTER = 214; // CSS pixels of the labels
const LEAST_NS = 4;
const FONT = "11px system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif";

class Timeline {
  // `parts`: elements axis, rows (canvases), scroll, space, tip. `told`: called with (what, value) on changes.
  constructor(model, parts, told) {
    this.model = model;
    this.parts = parts;
    this.told = told;
    this.layout = new Layout(model);
    this.painter = new Painter(model);
    this.mode = model.rolesOf(model.launches.keys()).length > 1 ? "role" : "name";
    this.selected = null; // {range}, {marker}, {host}, {warp}, {cta}, ...
    this.matches = null;
    this.measure = null; // {a, b}: {ns, cycle, sm}
    this.held = new Set();
    this.frameMs = 0;
    this.#listen();
  }

  // ------------------------------------------------------------------------------------------------------ what is shown
  setLaunches(launches) {
    this.low = Math.min(...launches.map((l) => this.model.launches[l].start_ns));
    this.high = Math.max(...launches.map((l) => this.model.launches[l].end_ns));
    if (!(this.high > this.low)) this.high = this.low + 1;
    this.farLow = this.low; // how far the view may move: with all launches also to what the host did before and after
    this.farHigh = this.high;
    if (launches.length === this.model.launches.length) for (let i = 0; i < this.model.hostEnd.length; i++) {
      this.farLow = Math.min(this.farLow, this.model.host.start_ns[i]);
      this.farHigh = Math.max(this.farHigh, this.model.hostEnd[i]);
    }
    this.level = this.layout.show(launches, 2600);
    this.selected = this.measure = null;
    this.parts.tip.hidden = true;
    this.fit();
    this.parts.scroll.scrollTop = 0;
    this.resize();
    if (this.text) this.search(this.text);
    this.told("select", null);
    this.told("measure", null);
    this.told("level", this.level);
  }

  setLevel(level) {
    this.layout.open(level);
    this.level = level;
    this.#grown();
  }

  setMode(mode) {
    this.mode = mode;
    this.restyle();
  }

  restyle() {
    const style = getComputedStyle(document.documentElement);
    const dark = style.getPropertyValue("--dark").trim() === "1";
    const rgb = (name) => style.getPropertyValue(name).trim().split(/\s+/).map(Number);
    this.style = Object.fromEntries(["bg", "band", "head", "grid", "life", "ink", "soft", "line", "accent", "gutter", "block", "block2"]
      .map((name) => [name, { pixel: pixel(rgb(`--c-${name}`)), css: css(rgb(`--c-${name}`)) }]));
    this.painter.setPalette(this.mode, dark);
    this.textColours = this.painter.colours.map(textOn);
    this.schedule();
  }

  // --------------------------------------------------------------------------------------------------------------- view
  fit() { this.view(this.low, this.high, 0.02); }

  view(t0, t1, margin = 0) {
    const room = (t1 - t0) * margin, whole = this.farHigh - this.farLow;
    const span = Math.min(Math.max(t1 - t0 + 2 * room, LEAST_NS), whole * 1.1 + LEAST_NS);
    const middle = Math.min(Math.max((t0 + t1) / 2, this.farLow - 0.04 * whole + span * 0.1), this.farHigh + 0.04 * whole - span * 0.1);
    this.t0 = middle - span / 2;
    this.t1 = middle + span / 2;
    this.schedule();
  }

  zoom(factor, at = (this.t0 + this.t1) / 2) {
    this.view(at - (at - this.t0) * factor, at + (this.t1 - at) * factor);
  }

  pan(part) {
    const step = (this.t1 - this.t0) * part;
    this.view(this.t0 + step, this.t1 + step);
  }

  timeAt(x) { return this.t0 + (x - GUTTER) / (this.width - GUTTER) * (this.t1 - this.t0); }

  xOf(ns) { return GUTTER + (ns - this.t0) / (this.t1 - this.t0) * (this.width - GUTTER); }

  resize() {
    const { scroll, rows, axis, space } = this.parts;
    this.width = scroll.clientWidth;
    this.height = scroll.clientHeight;
    if (!this.width || !this.height) return;
    const ratio = this.ratio = window.devicePixelRatio || 1;
    for (const [canvas, height] of [[rows, this.height], [axis, axis.clientHeight]]) {
      canvas.width = Math.round(this.width * ratio);
      canvas.height = Math.round(height * ratio);
      canvas.style.width = `${this.width}px`;
      canvas.style.height = `${height}px`;
    }
    this.image = new ImageData(rows.width, rows.height);
    this.pixels = new Uint32Array(this.image.data.buffer);
    this.gutter = Math.round(GUTTER * ratio);
    this.line = new Uint32Array(Math.max(1, rows.width - this.gutter));
    this.owner = new Int32Array(this.line.length);
    space.style.height = `${this.layout.height + 24}px`;
    this.schedule();
  }

  #grown() {
    this.parts.space.style.height = `${this.layout.height + 24}px`;
    this.schedule();
  }

  // ------------------------------------------------------------------------------------------------------------ drawing
  schedule() {
    if (this.wanted) return;
    this.wanted = true;
    requestAnimationFrame((now) => {
      this.wanted = false;
      this.#keep(now);
      this.draw();
    });
  }

  draw() {
    if (!this.width || !this.style || !this.image || !this.layout.launches.length) return;
    const begun = performance.now();
    this.painter.setView(this.t0, this.t1, this.line.length);
    this.ticks = ticksOf(this.t0 - this.low, this.t1 - this.low, Math.max(2, (this.width - GUTTER) / 110));
    this.pixels.fill(this.style.bg.pixel);
    this.labels = [];
    this.notes = [];
    const top = this.top = this.parts.scroll.scrollTop, { layout } = this;
    const first = Math.max(0, layout.at(top)), kinds = [this.#launch, this.#sm, this.#cta, this.#warp, this.#host];
    for (let r = first; r < layout.count && layout.y[r] < top + this.height; r++) kinds[layout.kind[r]].call(this, r);
    const context = this.parts.rows.getContext("2d");
    context.putImageData(this.image, 0, 0);
    context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    this.#writeLabels(context);
    this.#gutter(context, first);
    this.#selection(context);
    this.#measured(context, this.height);
    context.setTransform(1, 0, 0, 1, 0, 0);
    this.#axis();
    this.frameMs = performance.now() - begun;
    this.told("view", null);
  }

  // A line of the background colour with the grid of time in it.
  #fresh(colour) {
    this.line.fill(colour);
    const { k, t0 } = this.painter, grid = mix(colour, this.style.grid.pixel, 0.5);
    for (const tick of this.ticks.at) {
      const x = Math.floor((tick + this.low - t0) * k);
      if (x >= 0 && x < this.line.length) this.line[x] = grid;
    }
    return this.line;
  }

  // Copies the line to the pixels of CSS lines y .. y + height of the whole layout.
  #put(y, height) {
    const { width, height: limit } = this.parts.rows, from = Math.round((y - this.top) * this.ratio);
    const to = Math.min(limit, Math.round((y + height - this.top) * this.ratio));
    for (let line = Math.max(0, from); line < to; line++) this.pixels.set(this.line, line * width + this.gutter);
  }

  #label(x0, x1, y, height, text, colour) {
    if (this.labels.length < 1500) this.labels.push([x0 / this.ratio + GUTTER, x1 / this.ratio + GUTTER, y - this.top, height, text, colour]);
  }

  #launch(r) {
    this.#fresh(this.style.head.pixel);
    const launch = this.model.launches[this.layout.ref[r]];
    const [x0, x1] = this.painter.span(this.line, launch.start_ns, launch.end_ns, this.style.block.pixel);
    this.#put(this.layout.y[r] + 2, HEIGHT.launch - 4);
    this.#label(Math.max(0, x0), x1, this.layout.y[r] + 2, HEIGHT.launch - 4, launch.kernel, this.style.ink.css);
  }

  // A track of the host: its slices as deep as they nest, its moments as strokes.
  #host(r) {
    const { model, layout, painter, style } = this, { start_ns: start, ns, name } = model.host, { k, t0, hostPixels } = painter;
    const stroke = Math.max(2, Math.round(2 * this.ratio));
    model.hostLines[layout.ref[r]].forEach(({ first, last }, row) => {
      const y = layout.y[r] + 2 + row * HEIGHT.lane;
      this.#fresh(style.bg.pixel);
      for (let i = lowerBound(model.hostEnd, this.t0, first, last); i < last && start[i] <= this.t1;) {
        const moment = ns[i] < 0, x0 = Math.floor((start[i] - t0) * k), x1 = moment ? x0 + stroke : Math.max(x0 + 1, Math.floor((model.hostEnd[i] - t0) * k));
        this.line.fill(moment ? style.accent.pixel : hostPixels[name[i]], Math.max(0, x0), Math.min(this.line.length, Math.max(0, x1)));
        if (!moment && x1 - x0 > 3 && x1 <= this.line.length) this.line[x1 - 1] = mix(hostPixels[name[i]], style.bg.pixel, 0.55);
        const next = gallop(start, t0 + (x0 + 1) / k, i + 1, last);
        if (!moment && x1 - x0 > 30 * this.ratio) this.#label(Math.max(0, x0), Math.min(x1, this.line.length), y, HEIGHT.lane - 1, model.hostName(i), textOn(painter.host[name[i]]));
        else if (moment) {
          const room = Math.min(this.line.length, next < last ? (start[next] - t0) * k : Infinity);
          if (room - x1 > 40 * this.ratio) this.#label(x1, room, y, HEIGHT.lane - 1, model.hostName(i), style.soft.css);
        }
        i = next;
      }
      this.#put(y, HEIGHT.lane - 1);
    });
  }

  #sm(r) {
    const { model, layout, painter, style } = this, one = model.sms[layout.ref[r]], y = layout.y[r];
    const height = layout.y[r + 1] - y, slot = (height - 6) / one.slots;
    this.#fresh(style.band.pixel);
    this.#put(y, height - 1);
    for (let s = 0; s < one.slots; s++) {
      this.#fresh(style.band.pixel);
      let last = -1;
      for (const c of one.ctas) {
        if (model.ctaSlot[c] !== s || model.ctaEnd[c] < this.t0 || model.ctaStart[c] > this.t1) continue;
        const colour = style[model.ctaTurn[c] % 2 ? "block2" : "block"].pixel; // paler where its events are not there
        const [x0, x1] = painter.span(this.line, model.ctaStart[c], model.ctaEnd[c], model.ctaShown(c) ? colour : mix(colour, style.band.pixel, 0.65));
        if (x0 > last + 1 && x0 >= 0 && x0 < this.line.length && x1 - x0 > 3) this.line[x0] = style.band.pixel;
        last = x1;
        if (slot >= 10 && x1 - x0 > 60 * this.ratio) this.#label(Math.max(0, x0), x1, y + 3 + s * slot, slot - 1, model.ctaName(c), style.ink.css);
      }
      this.#put(y + 3 + s * slot, Math.max(1, slot - 1));
    }
  }

  #cta(r) {
    const { model, layout, painter, style } = this, c = layout.ref[r], y = layout.y[r];
    if (layout.ctaOpen[c]) {
      this.#fresh(style.bg.pixel);
      painter.span(this.line, model.ctaStart[c], model.ctaEnd[c], style.life.pixel);
      this.#put(y + 8, 3);
      return;
    }
    const first = model.ctaFirst[c], warps = model.ctaFirst[c + 1] - first;
    for (let w = first; w < first + warps; w++) {
      this.#fresh(style.bg.pixel);
      this.#overlaid(w);
      this.#put(y + 2 + (w - first) * HEIGHT.strip, HEIGHT.strip - 1);
    }
    if (!model.ctaShown(c)) this.#outside(c, y, layout.y[r + 1] - y);
  }

  #outside(c, y, height) {
    const x0 = Math.max(0, (this.model.ctaStart[c] - this.t0) * this.painter.k);
    this.#label(x0, x0 + 150 * this.ratio, y, height, "not in the sample", this.style.soft.css);
  }

  // All rows of a warp in one line: what is nested stands over what holds it.
  #overlaid(w, owner = null) {
    const { model, painter, style } = this, { start_ns: start, ns } = model.warps, base = painter.base(w);
    const how = { fade: this.matches ? 0.8 : 0, background: style.life.pixel, owner };
    painter.span(this.line, start[w], start[w] + ns[w], style.life.pixel);
    for (let at = model.warpRow[w]; at < model.warpRow[w + 1]; at++) {
      const row = model.painted[at];
      painter.slices(this.line, model.rowFirst[row], model.rowFirst[row + 1], base, how);
    }
    if (this.matches) this.#found(model.rowFirst[model.warpRow[w]], model.rowFirst[model.warpRow[w + 1]], base);
  }

  #found(first, last, base) {
    const list = this.matches;
    this.painter.slices(this.line, lowerBound(list, first, 0, list.length), lowerBound(list, last, 0, list.length), base, { pick: list });
  }

  #warp(r) {
    const { model, layout, painter, style } = this, w = layout.ref[r], base = painter.base(w);
    const { start_ns: start, ns } = model.warps;
    let y = layout.y[r];
    if (!layout.warpOpen[w]) {
      this.#fresh(style.bg.pixel);
      this.#overlaid(w, this.owner.fill(-1));
      this.#put(y + 1, HEIGHT.warp - 2);
      this.#sliceLabels(y + 1, HEIGHT.warp - 2, base);
      return;
    }
    this.#fresh(style.bg.pixel);
    painter.span(this.line, start[w], start[w] + ns[w], style.grid.pixel);
    this.#put(y + 2, 1);
    y += HEIGHT.life;
    if (model.markerFirst[w + 1] > model.markerFirst[w]) {
      this.#marks(w, y);
      y += HEIGHT.marks;
    }
    const how = { fade: this.matches ? 0.8 : 0, background: style.life.pixel, owner: this.owner };
    for (let row = model.warpRow[w]; row < model.warpRow[w + 1]; row++, y += HEIGHT.lane) {
      if (y + HEIGHT.lane < this.top || y > this.top + this.height) continue;
      this.#fresh(style.bg.pixel);
      painter.span(this.line, start[w], start[w] + ns[w], style.life.pixel);
      const first = model.rowFirst[row], last = model.rowFirst[row + 1];
      this.owner.fill(-1);
      painter.slices(this.line, first, last, base, how);
      if (this.matches) this.#found(first, last, base);
      this.#put(y, HEIGHT.lane - 1);
      this.#sliceLabels(y, HEIGHT.lane - 1, base);
    }
  }

  #marks(w, y) {
    const { model, painter, style } = this, { ns, name } = model.markers, base = painter.base(w);
    this.#fresh(style.bg.pixel);
    const last = model.markerFirst[w + 1], size = Math.max(2, Math.round(2 * this.ratio));
    let i = lowerBound(ns, this.t0, model.markerFirst[w], last);
    while (i < last && ns[i] <= this.t1) {
      const x = Math.floor((ns[i] - this.t0) * painter.k);
      this.line.fill(painter.pixels[base + name[i]], Math.max(0, x - 1), Math.min(this.line.length, x - 1 + size));
      i = gallop(ns, this.t0 + (x + 1) / painter.k, i + 1, last);
    }
    this.#put(y, HEIGHT.marks - 2);
  }

  // Names on the stretches of the line that show one range and have room for some letters.
  #sliceLabels(y, height, base) {
    const { owner, model } = this, least = 30 * this.ratio;
    for (let x0 = 0, x1; x0 < owner.length; x0 = x1) {
      const i = owner[x0];
      for (x1 = x0 + 1; x1 < owner.length && owner[x1] === i;) x1++;
      if (i < 0 || x1 - x0 < least) continue;
      const name = model.names[model.ranges.name[i]], dim = this.matches && !this.isMatch(i);
      const payload = (x1 - x0) / this.ratio > 7 * name.length + 20 ? model.rangePayload(i).text : "";
      this.#label(x0, x1, y, height, payload ? `${name}  ${payload}` : name, dim ? this.style.soft.css : this.textColours[base + model.ranges.name[i]]);
    }
  }

  #writeLabels(context) {
    context.font = FONT;
    context.textBaseline = "middle";
    for (const [x0, x1, y, height, text, colour] of this.labels) {
      const room = x1 - x0 - 6, most = Math.floor(room / 5.6);
      if (most < 2) continue;
      context.fillStyle = colour;
      context.fillText(text.length <= most ? text : `${text.slice(0, most - 1)}…`, x0 + 4, y + height / 2 + 0.5, room);
    }
  }

  #gutter(context, first) {
    const { layout, model, style } = this;
    context.fillStyle = style.gutter.css;
    context.fillRect(0, 0, GUTTER, this.height);
    context.font = FONT;
    for (let r = first; r < layout.count && layout.y[r] < this.top + this.height; r++) {
      const y = layout.y[r] - this.top, height = layout.y[r + 1] - layout.y[r], kind = layout.kind[r], which = layout.ref[r];
      if (kind <= KIND.sm) {
        context.fillStyle = style.head.css;
        context.fillRect(0, y, GUTTER, height - 1);
      }
      if (r === this.row && document.activeElement === this.parts.scroll) {
        context.strokeStyle = style.accent.css;
        context.strokeRect(1.5, y + 0.5, GUTTER - 4, height - 2);
      }
      const [text, more, open] = this.rowText(r);
      const indent = kind === KIND.host ? 0 : 8 + 13 * Math.max(0, kind - (layout.launches.length > 1 ? 0 : 1));
      const line = y + (kind === KIND.warp ? Math.min(height / 2, 13) : Math.min(height, HEIGHT.sm) / 2);
      if (open !== null) this.#triangle(context, indent, line, open);
      context.fillStyle = style.ink.css;
      const used = this.#write(context, text, indent + 12, line, GUTTER - indent - 18);
      if (!more || GUTTER - indent - 26 - used < 30) continue;
      context.fillStyle = style.soft.css;
      this.#write(context, more, indent + 18 + used, line, GUTTER - indent - 24 - used);
    }
    context.fillStyle = style.line.css;
    context.fillRect(GUTTER - 1, 0, 1, this.height);
  }

  // Text cut to the room there is; returns how wide it became.
  #write(context, text, x, y, room) {
    const most = Math.floor(room / 5.7), cut = text.length > most && context.measureText(text).width > room;
    const shown = cut ? `${text.slice(0, Math.max(1, most - 1))}…` : text;
    context.fillText(shown, x, y, room);
    return Math.min(room, context.measureText(shown).width);
  }

  #triangle(context, x, y, open) {
    context.fillStyle = this.style.soft.css;
    context.beginPath();
    if (open) for (const [dx, dy] of [[0, -2], [8, -2], [4, 3]]) context.lineTo(x + dx, y + dy);
    else for (const [dx, dy] of [[2, -4], [7, 0], [2, 4]]) context.lineTo(x + dx, y + dy);
    context.fill();
  }

  // The label of a row: text, what follows it in a softer colour, and whether it is open (null: it cannot be).
  rowText(r) {
    const { layout, model } = this, kind = layout.kind[r], which = layout.ref[r];
    if (kind === KIND.host) return [model.hostTracks[which].name, "host", null];
    if (kind === KIND.launch) return [`Launch ${which + 1}`, model.whereOf(which) || model.launches[which].kernel, layout.launchOpen[which] === 1];
    if (kind === KIND.sm) {
      const one = model.sms[which];
      return [`SM ${one.sm}`, `${one.ctas.length} CTA${one.ctas.length > 1 ? "s" : ""}`, layout.smOpen[which] === 1];
    }
    if (kind === KIND.cta) {
      const warps = model.ctaFirst[which + 1] - model.ctaFirst[which];
      return [model.ctaName(which), `${warps} warp${warps > 1 ? "s" : ""}`, layout.ctaOpen[which] === 1];
    }
    const lost = model.warps.lost[which] ? `lost ${model.warps.lost[which]}` : "";
    return [`Warp ${model.warps.warp[which]}`, [model.roleName(which), lost].filter(Boolean).join(", "), layout.warpOpen[which] === 1];
  }

  #selection(context) {
    const place = this.selected && this.placeOf(this.selected);
    if (!place) return;
    const { x0, x1, y, height } = place;
    context.save();
    context.beginPath();
    context.rect(GUTTER, 0, this.width - GUTTER, this.height);
    context.clip();
    context.strokeStyle = this.style.ink.css;
    context.lineWidth = 2;
    context.strokeRect(x0 - 1, y - this.top, Math.max(3, x1 - x0 + 2), height);
    this.#arrows(context, this.selected.range);
    if (this.selected.host !== undefined) this.#toLaunch(context, this.selected.host);
    context.restore();
  }

  // From a call of the host to the start of its launch, where that has a row.
  #toLaunch(context, call) {
    const { model, layout } = this, launch = model.host.launch[call], a = this.placeOf({ host: call });
    if (!layout.launches.includes(launch)) return;
    const sms = model.smsOfLaunch[launch], row = layout.find(KIND.launch, launch), r = row < 0 && sms.length ? layout.find(KIND.sm, sms[0]) : row;
    if (r < 0) return;
    const x = this.xOf(model.launches[launch].start_ns), ya = a.y + a.height - this.top, yb = layout.y[r] + 6 - this.top;
    context.strokeStyle = context.fillStyle = this.style.accent.css;
    context.lineWidth = 1.5;
    context.beginPath();
    context.moveTo(a.x0, ya);
    context.bezierCurveTo(a.x0, (ya + yb) / 2, x - 14, yb, x, yb);
    context.stroke();
    context.beginPath();
    for (const [dx, dy] of [[0, 0], [-7, -4], [-7, 4]]) context.lineTo(x + dx, yb + dy);
    context.fill();
  }

  // From the start of what feeds the selected range to its end, and from its start to the end of what it feeds.
  #arrows(context, range) {
    if (range === undefined) return;
    const { model } = this, feeds = model.partners(range, true).map((other) => [range, other]);
    const pairs = [...model.partners(range, false).map((other) => [other, range]), ...feeds];
    context.strokeStyle = context.fillStyle = this.style.accent.css;
    context.lineWidth = 1.5;
    for (const [source, target] of pairs.slice(0, 16)) {
      const a = this.placeOf({ range: source }), b = this.placeOf({ range: target });
      if (!a || !b) continue;
      const ya = a.y + a.height / 2 - this.top, yb = b.y + b.height / 2 - this.top, bend = Math.max(14, Math.abs(b.x1 - a.x0) / 3);
      context.beginPath();
      context.moveTo(a.x0, ya);
      context.bezierCurveTo(a.x0 + bend, ya, b.x1 - bend, yb, b.x1, yb);
      context.stroke();
      context.beginPath();
      for (const [dx, dy] of [[0, 0], [-7, -4], [-7, 4]]) context.lineTo(b.x1 + dx, yb + dy);
      context.fill();
    }
  }

  // Where a range, a marker or a slice of the host stands, in CSS pixels of the layout; null where its row is not there.
  placeOf({ range, marker, host }) {
    const { model, layout } = this;
    if (host !== undefined) {
      const r = layout.find(KIND.host, model.host.track[host]), y = layout.y[r] + 2 + model.host.row[host] * HEIGHT.lane;
      return { r, x0: this.xOf(model.host.start_ns[host]), x1: this.xOf(model.hostEnd[host]), y, height: HEIGHT.lane - 1 };
    }
    const w = range !== undefined ? model.ranges.warp[range] : marker !== undefined ? model.markers.warp[marker] : -1;
    if (w < 0) return null;
    const start = range !== undefined ? model.ranges.start_ns[range] : model.markers.ns[marker];
    const end = range !== undefined ? model.end[range] : start, x0 = this.xOf(start), x1 = this.xOf(end);
    const r = layout.find(KIND.warp, w);
    if (r < 0) {
      const c = model.ctaOf[w], strip = layout.find(KIND.cta, c);
      if (strip < 0) return null;
      return { r: strip, x0, x1, y: layout.y[strip] + 1 + (w - model.ctaFirst[c]) * HEIGHT.strip, height: HEIGHT.strip + 1 };
    }
    let y = layout.y[r];
    if (!layout.warpOpen[w]) return { r, x0, x1, y: y + 1, height: HEIGHT.warp - 2 };
    y += HEIGHT.life;
    if (marker !== undefined) return { r, x0: x0 - 1, x1: x1 + 1, y: y - 1, height: HEIGHT.marks };
    if (model.markerFirst[w + 1] > model.markerFirst[w]) y += HEIGHT.marks;
    return { r, x0, x1, y: y + model.ranges.row[range] * HEIGHT.lane, height: HEIGHT.lane - 1 };
  }

  #measured(context, height) {
    if (!this.measure) return;
    const { a, b } = this.measure, x0 = this.xOf(a.ns), x1 = this.xOf((b ?? a).ns);
    context.save();
    context.beginPath();
    context.rect(GUTTER, 0, this.width - GUTTER, height);
    context.clip();
    context.fillStyle = this.style.accent.css;
    context.globalAlpha = 0.13;
    context.fillRect(Math.min(x0, x1), 0, Math.abs(x1 - x0), height);
    context.globalAlpha = 1;
    for (const x of [x0, x1]) context.fillRect(Math.round(x) - 0.5, 0, 1, height);
    context.restore();
  }

  #axis() {
    const canvas = this.parts.axis, context = canvas.getContext("2d"), { style, model } = this, height = canvas.clientHeight;
    const overview = height - 22;
    context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    context.fillStyle = style.gutter.css;
    context.fillRect(0, 0, this.width, height);
    this.#overview(context, overview);
    context.font = FONT;
    context.textBaseline = "middle";
    context.fillStyle = style.soft.css;
    context.fillText("warps at work", 8, overview / 2, GUTTER - 16);
    context.fillText(this.layout.launches.length > 1 ? "time in the trace" : "time in the launch", 8, overview + 11, GUTTER - 16);
    for (const tick of this.ticks.at) {
      const x = this.xOf(tick + this.low);
      if (x < GUTTER) continue;
      context.fillStyle = style.grid.css;
      context.fillRect(x, overview + 3, 1, 19);
      context.fillStyle = style.soft.css;
      context.fillText(duration(tick, this.ticks.step), x + 4, overview + 11);
    }
    context.fillStyle = style.line.css;
    context.fillRect(0, height - 1, this.width, 1);
    context.fillRect(GUTTER - 1, 0, 1, height);
    if (this.measure?.b) {
      const { a, b } = this.measure, x = (this.xOf(a.ns) + this.xOf(b.ns)) / 2, text = this.measureText();
      const wide = context.measureText(text).width + 12, left = Math.min(Math.max(x - wide / 2, GUTTER), this.width - wide);
      context.fillStyle = style.accent.css;
      context.fillRect(left, overview + 2, wide, 18);
      context.fillStyle = style.bg.css;
      context.fillText(text, left + 6, overview + 11);
    }
  }

  // How many warps live, over the whole time, with the view marked in it.
  #overview(context, height) {
    const width = Math.round(this.width - GUTTER), { model, style } = this, whole = this.high - this.low;
    const key = `${width} ${this.layout.launches.join()}`;
    if (this.alive?.key !== key) {
      const steps = new Float64Array(width + 2), shown = new Set(this.layout.launches);
      const { launch, start_ns: start, ns } = model.warps;
      for (let w = 0; w < launch.length; w++) {
        if (!shown.has(launch[w])) continue;
        const a = (start[w] - this.low) / whole * width, b = (start[w] + ns[w] - this.low) / whole * width;
        steps[Math.max(0, Math.floor(a))]++;
        steps[Math.min(width + 1, Math.max(Math.floor(a) + 1, Math.ceil(b)))]--;
      }
      for (let x = 1; x < width; x++) steps[x] += steps[x - 1];
      this.alive = { key, steps, most: steps.reduce((a, b) => Math.max(a, b), 1) };
    }
    context.fillStyle = style.block.css;
    for (let x = 0; x < width; x++) {
      const size = this.alive.steps[x] / this.alive.most * (height - 5);
      context.fillRect(GUTTER + x, height - size, 1, size);
    }
    const inside = (ns) => GUTTER + Math.min(1, Math.max(0, (ns - this.low) / whole)) * width;
    const x0 = inside(this.t0), x1 = inside(this.t1);
    context.fillStyle = style.gutter.css;
    context.globalAlpha = 0.72;
    context.fillRect(GUTTER, 0, x0 - GUTTER, height);
    context.fillRect(x1, 0, this.width - x1, height);
    context.globalAlpha = 1;
    context.strokeStyle = style.accent.css;
    context.lineWidth = 1;
    context.strokeRect(Math.round(x0) + 0.5, 0.5, Math.max(2, Math.round(x1 - x0) - 1), height - 1);
  }

  // -------------------------------------------------------------------------------------------------------------- search
  // Ranges whose name holds `text`, in any case; "name=5" also asks for the payload.
  search(text) {
    this.text = text;
    this.matches = null;
    this.found = null;
    if (text.trim()) {
      const { model } = this, [wanted, value] = splitQuery(text), shown = new Set(this.layout.launches), list = [];
      const names = new Set(model.names.flatMap((name, i) => (name.toLowerCase().includes(wanted) ? [i] : [])));
      const { name, warp, ns, cycles } = model.ranges, hit = Uint8Array.from(model.names, (_, i) => (names.has(i) ? 1 : 0));
      const inLaunch = Uint8Array.from(model.warps.launch, (l) => (shown.has(l) ? 1 : 0));
      let total = 0, totalCycles = 0;
      for (let i = 0; i < name.length; i++) {
        if (!hit[name[i]] || !inLaunch[warp[i]]) continue;
        if (value !== null && !samePayload(model.rangePayload(i), value)) continue;
        list.push(i);
        total += ns[i];
        totalCycles += cycles[i];
      }
      this.matches = Int32Array.from(list);
      this.found = { count: list.length, total, totalCycles };
    }
    this.told("search", this.found);
    this.schedule();
  }

  isMatch(i) {
    const at = lowerBound(this.matches, i, 0, this.matches.length);
    return this.matches[at] === i;
  }

  // Selects the next match in order of time (direction 1) or the one before (-1).
  step(direction) {
    if (!this.matches?.length) return;
    const { start_ns: start } = this.model.ranges, now = this.selected?.range;
    const before = (a, b) => start[a] - start[b] || a - b;
    let best = -1, edge = this.matches[0];
    for (const i of this.matches) {
      if (before(i, edge) * direction < 0) edge = i;
      if (now === undefined ? (start[i] - this.t0) * direction < 0 : before(i, now) * direction <= 0) continue;
      if (best < 0 || before(i, best) * direction < 0) best = i;
    }
    this.goTo({ range: best < 0 ? edge : best });
  }

  // ----------------------------------------------------------------------------------------------------------- selection
  select(what) {
    this.selected = what;
    this.told("select", what);
    this.schedule();
  }

  // Selects, and moves the view so that it is seen; the zoom stays unless it would be a mere line or wider than the view.
  goTo(what) {
    const { model } = this;
    if (what.host === undefined) {
      this.layout.reveal(what.range !== undefined ? model.ranges.warp[what.range] : model.markers.warp[what.marker]);
      this.#grown();
    }
    this.select(what);
    const [start, end] = this.timesOf(what), span = this.t1 - this.t0;
    const long = Math.max(end - start, 1);
    if (long > span || long < span / 300) this.view((start + end) / 2 - 12 * long, (start + end) / 2 + 12 * long);
    else if (start < this.t0 || end > this.t1) this.view((start + end - span) / 2, (start + end + span) / 2);
    this.#scrollTo(this.placeOf(what));
  }

  goToCta(c) {
    const { model, layout } = this;
    layout.launchOpen[model.warps.launch[model.ctaFirst[c]]] = 1;
    layout.smOpen[model.smOf[c]] = 1;
    layout.ctaOpen[c] = 1;
    layout.update();
    this.#grown();
    this.view(model.ctaStart[c], model.ctaEnd[c], 0.05);
    this.row = layout.find(KIND.cta, c);
    this.parts.scroll.scrollTop = layout.y[this.row] - 40;
    this.select({ cta: c });
  }

  #scrollTo(place) {
    if (!place) return;
    this.row = place.r;
    const { scroll } = this.parts, low = scroll.scrollTop, high = low + this.height;
    if (place.y < low + 10 || place.y + place.height > high - 10) scroll.scrollTop = Math.max(0, place.y - this.height / 3);
  }

  // What stands at a point of the rows' canvas (CSS pixels): {range}, {marker}, {warp}, {cta}, {sm}, {launch} or null.
  hit(x, y) {
    const { layout, model } = this, r = layout.at(y + this.parts.scroll.scrollTop);
    if (r < 0) return null;
    const kind = layout.kind[r], which = layout.ref[r];
    if (x < GUTTER) return { row: r };
    let inside = y + this.parts.scroll.scrollTop - layout.y[r];
    const ns = this.timeAt(x), near = 2.5 * (this.t1 - this.t0) / (this.width - GUTTER);
    if (kind === KIND.host) return this.#inHost(model.hostLines[which][Math.floor((inside - 2) / HEIGHT.lane)], ns, near);
    if (kind === KIND.launch) return { launch: which };
    if (kind === KIND.sm) {
      const one = model.sms[which], slot = Math.floor((inside - 3) / ((layout.y[r + 1] - layout.y[r] - 6) / one.slots));
      const c = one.ctas.find((c) => model.ctaSlot[c] === slot && model.ctaStart[c] <= ns && ns <= model.ctaEnd[c]);
      return c === undefined ? null : { cta: c };
    }
    if (kind === KIND.cta) {
      if (layout.ctaOpen[which]) return { cta: which };
      const w = model.ctaFirst[which] + Math.floor((inside - 2) / HEIGHT.strip);
      if (w < model.ctaFirst[which] || w >= model.ctaFirst[which + 1]) return { cta: which };
      return this.#inWarp(w, ns, near);
    }
    if (!layout.warpOpen[which]) return this.#inWarp(which, ns, near);
    inside -= HEIGHT.life;
    if (model.markerFirst[which + 1] > model.markerFirst[which]) {
      if (inside < HEIGHT.marks) return this.#marker(which, ns, near * 2) ?? this.#life(which, ns);
      inside -= HEIGHT.marks;
    }
    const row = Math.floor(inside / HEIGHT.lane);
    if (row < 0 || row >= model.rowsOf(which)) return this.#life(which, ns);
    const range = this.#inRow(model.warpRow[which] + row, ns, near);
    return range < 0 ? this.#life(which, ns) : { range };
  }

  // The slice of a line of the host at a time, or the moment near it.
  #inHost(line, ns, near) {
    if (!line) return null;
    const { model } = this, { start_ns: start } = model.host, i = lowerBound(model.hostEnd, ns, line.first, line.last);
    if (i < line.last && start[i] <= ns) return { host: i };
    const off = (j) => (j < line.first || j >= line.last ? Infinity : Math.max(start[j] - ns, ns - model.hostEnd[j]));
    const best = off(i) <= off(i - 1) ? i : i - 1;
    return off(best) <= near * 2 ? { host: best } : null;
  }

  #life(w, ns) {
    const { start_ns: start, ns: long } = this.model.warps;
    return ns >= start[w] && ns <= start[w] + long[w] ? { warp: w } : null;
  }

  // The innermost range of a warp at a time.
  #inWarp(w, ns, near) {
    for (let at = this.model.warpRow[w + 1] - 1; at >= this.model.warpRow[w]; at--) {
      const range = this.#inRow(this.model.painted[at], ns, near);
      if (range >= 0) return { range };
    }
    return this.#life(w, ns);
  }

  #inRow(row, ns, near) {
    const { model } = this, first = model.rowFirst[row], last = model.rowFirst[row + 1];
    const { start_ns: start } = model.ranges, i = lowerBound(model.end, ns, first, last);
    if (i < last && start[i] <= ns) return i;
    const off = (j) => (j < first || j >= last ? Infinity : Math.max(start[j] - ns, ns - model.end[j]));
    const best = off(i) <= off(i - 1) ? i : i - 1;
    return off(best) <= near ? best : -1;
  }

  #marker(w, ns, near) {
    const { ns: at } = this.model.markers, first = this.model.markerFirst[w], last = this.model.markerFirst[w + 1];
    const i = lowerBound(at, ns, first, last);
    const off = (j) => (j < first || j >= last ? Infinity : Math.abs(at[j] - ns));
    const best = off(i) <= off(i - 1) ? i : i - 1;
    return off(best) <= near ? { marker: best } : null;
  }

  // Left and right: the neighbour in the same row.
  neighbour(direction) {
    const { model } = this, { range, marker, host } = this.selected ?? {};
    if (host !== undefined) {
      const line = model.hostLines[model.host.track[host]][model.host.row[host]], next = host + direction;
      if (next >= line.first && next < line.last) this.goTo({ host: next });
      return;
    }
    if (marker !== undefined) {
      const next = marker + direction, w = model.markers.warp[marker];
      if (next >= model.markerFirst[w] && next < model.markerFirst[w + 1]) this.goTo({ marker: next });
      return;
    }
    if (range !== undefined) {
      const next = range + direction, same = model.ranges;
      if (next >= 0 && next < same.warp.length && same.warp[next] === same.warp[range] && same.row[next] === same.row[range]) this.goTo({ range: next });
      return;
    }
    const w = this.#warpNear(this.row ?? 0);
    if (w < 0) return;
    const first = model.rowFirst[model.warpRow[w]];
    this.goTo({ range: Math.min(lowerBound(model.ranges.start_ns, this.t0, first, model.rowFirst[model.warpRow[w] + 1]), model.rowFirst[model.warpRow[w] + 1] - 1) });
  }

  #warpNear(row) { // the first warp with ranges that a row holds
    const { layout, model } = this, kind = layout.kind[row], which = layout.ref[row];
    const ctas = kind === KIND.cta ? [which] : kind === KIND.sm ? model.sms[which].ctas
      : kind === KIND.launch ? model.smsOfLaunch[which].flatMap((s) => model.sms[s].ctas) : [];
    if (kind === KIND.warp) return model.rowsOf(which) ? which : -1;
    for (const c of ctas) for (let w = model.ctaFirst[c]; w < model.ctaFirst[c + 1]; w++) if (model.rowsOf(w)) return w;
    return -1;
  }

  // Up and down: within the rows of a warp first, then to the next row of the tree.
  vertical(direction) {
    const { model, layout } = this, range = this.selected?.range;
    if (range !== undefined) {
      const w = model.ranges.warp[range], row = model.ranges.row[range] + direction;
      if (row >= 0 && row < model.rowsOf(w)) {
        const k = model.warpRow[w] + row, middle = (model.ranges.start_ns[range] + model.end[range]) / 2;
        const i = Math.min(lowerBound(model.end, middle, model.rowFirst[k], model.rowFirst[k + 1]), model.rowFirst[k + 1] - 1);
        if (i >= model.rowFirst[k]) return this.goTo({ range: i });
      }
    }
    this.row = Math.min(Math.max((this.row ?? -1) + direction, 0), layout.count - 1);
    this.#scrollTo({ r: this.row, y: layout.y[this.row], height: layout.y[this.row + 1] - layout.y[this.row] });
    const kind = layout.kind[this.row], which = layout.ref[this.row];
    this.select(kind === KIND.host ? { track: which } : kind === KIND.cta ? { cta: which } : kind === KIND.warp ? { warp: which } : kind === KIND.sm ? { sm: which } : { launch: which });
  }

  toggle(row) {
    if (row === undefined || row < 0 || row >= this.layout.count) return;
    this.layout.toggle(row);
    this.#grown();
  }

  // ----------------------------------------------------------------------------------------------------------- measuring
  // A point of time: the nearest edge of a slice within 7 pixels, with its cycle, or the time itself.
  #point(x, y) {
    const what = this.hit(x, y), ns = this.timeAt(x), near = 7 * (this.t1 - this.t0) / (this.width - GUTTER);
    if (what?.marker !== undefined) return this.#edge(what, 0);
    if (what?.range !== undefined || what?.host !== undefined) {
      const [start, end] = this.timesOf(what);
      if (Math.min(Math.abs(start - ns), Math.abs(end - ns)) <= near) return this.#edge(what, Math.abs(start - ns) <= Math.abs(end - ns) ? 0 : 1);
    }
    return { ns };
  }

  // When a range, a marker or a slice of the host begins and ends.
  timesOf({ range, marker, host }) {
    const { model } = this;
    if (range !== undefined) return [model.ranges.start_ns[range], model.end[range]];
    if (marker !== undefined) return [model.markers.ns[marker], model.markers.ns[marker]];
    return [model.host.start_ns[host], model.hostEnd[host]];
  }

  #edge({ range, marker, host }, atEnd) {
    const { model } = this, { clock: zero, sm, launch } = model.warps;
    if (host !== undefined) return { ns: this.timesOf({ host })[atEnd] };
    if (marker !== undefined) {
      const w = model.markers.warp[marker];
      return { ns: model.markers.ns[marker], cycle: zero[w] + model.markers.cycle[marker], sm: sm[w], launch: launch[w] };
    }
    const w = model.ranges.warp[range], { start_cycle: cycle, cycles } = model.ranges;
    return {
      ns: atEnd ? model.end[range] : model.ranges.start_ns[range],
      cycle: zero[w] + cycle[range] + (atEnd ? cycles[range] : 0), sm: sm[w], launch: launch[w],
    };
  }

  // The M key: first from the start of the selected slice, then to the end of the selected one, then none.
  mark() {
    const { range, marker, host } = this.selected ?? {};
    if (this.measure?.b || [range, marker, host].every((one) => one === undefined)) this.measure = null;
    else if (!this.measure) this.measure = { a: this.#edge({ range, marker, host }, 0) };
    else this.measure = { a: this.measure.a, b: this.#edge({ range, marker, host }, 1) };
    this.told("measure", this.measure);
    this.schedule();
  }

  measureText() {
    const { a, b } = this.measure;
    if (!b) return "from here: select another slice and press M";
    const cycles = a.cycle !== undefined && b.cycle !== undefined && a.sm === b.sm && a.launch === b.launch
      ? `, ${grouped(Math.abs(b.cycle - a.cycle))} cycles` : "";
    return exactly(Math.abs(b.ns - a.ns)) + cycles;
  }

  // -------------------------------------------------------------------------------------------------------------- input
  #listen() {
    const { scroll, axis, tip } = this.parts;
    new ResizeObserver(() => this.resize()).observe(scroll);
    scroll.addEventListener("scroll", () => {
      tip.hidden = true;
      this.schedule();
    });
    scroll.addEventListener("wheel", (event) => this.#wheel(event), { passive: false });
    axis.addEventListener("wheel", (event) => {
      event.preventDefault();
      this.zoom(event.deltaY < 0 ? 0.8 : 1.25, this.timeAt(event.offsetX));
    }, { passive: false });
    scroll.addEventListener("pointerdown", (event) => this.#down(event));
    scroll.addEventListener("pointermove", (event) => this.#hover(event));
    scroll.addEventListener("pointerleave", () => { tip.hidden = true; });
    scroll.addEventListener("dblclick", (event) => {
      const what = this.hit(...this.#at(event)), { model } = this;
      if (what?.range !== undefined || what?.host !== undefined) this.view(...this.timesOf(what), 0.3);
      else if (what?.cta !== undefined) this.view(model.ctaStart[what.cta], model.ctaEnd[what.cta], 0.05);
      else if (what?.launch !== undefined) {
        this.layout.launchOpen[what.launch] = 1;
        this.layout.update();
        this.#grown();
        this.view(model.launches[what.launch].start_ns, model.launches[what.launch].end_ns, 0.02);
      }
    });
    axis.addEventListener("pointerdown", (event) => this.#axisDown(event));
    scroll.addEventListener("keydown", (event) => this.key(event));
    addEventListener("keyup", (event) => this.held.delete(event.key.toLowerCase()));
    addEventListener("blur", () => this.held.clear());
    scroll.addEventListener("focus", () => this.schedule());
    scroll.addEventListener("blur", () => this.schedule());
  }

  #at(event) {
    const box = this.parts.rows.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  }

  #wheel(event) {
    if (event.ctrlKey || event.metaKey) {
      event.preventDefault();
      this.zoom(Math.exp(Math.max(-60, Math.min(60, event.deltaY)) * 0.005), this.timeAt(Math.max(GUTTER, this.#at(event)[0])));
    } else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      event.preventDefault();
      this.pan((event.shiftKey ? event.deltaY || event.deltaX : event.deltaX) / 1200);
    }
  }

  #down(event) {
    if (event.button !== 0) return;
    const { scroll, tip } = this.parts, [x, y] = this.#at(event);
    if (x > scroll.clientWidth) return; // the scroll bar
    const from = { x: event.clientX, y: event.clientY, t0: this.t0, t1: this.t1, top: scroll.scrollTop };
    const measuring = event.shiftKey && x >= GUTTER, start = measuring ? this.#point(x, y) : null;
    let moved = false;
    scroll.setPointerCapture(event.pointerId);
    const move = (next) => {
      if (!moved && Math.hypot(next.clientX - from.x, next.clientY - from.y) < 4) return;
      moved = true;
      tip.hidden = true;
      if (measuring) {
        this.measure = { a: start, b: this.#point(...this.#at(next)) };
        this.told("measure", this.measure);
        this.schedule();
        return;
      }
      const step = (from.x - next.clientX) / (this.width - GUTTER) * (from.t1 - from.t0);
      this.view(from.t0 + step, from.t1 + step);
      scroll.scrollTop = from.top + from.y - next.clientY;
    };
    const up = () => {
      scroll.removeEventListener("pointermove", move);
      if (moved) return;
      const what = this.hit(x, y);
      if (what?.row !== undefined) this.toggle(this.row = what.row);
      else {
        if (what) this.row = this.layout.at(y + scroll.scrollTop);
        this.select(what);
      }
      if (!measuring && this.measure?.b) {
        this.measure = null;
        this.told("measure", null);
      }
    };
    scroll.addEventListener("pointermove", move);
    scroll.addEventListener("pointerup", up, { once: true });
    scroll.addEventListener("pointercancel", () => scroll.removeEventListener("pointermove", move), { once: true });
  }

  // Dragging over the scale of time zooms to what was dragged over; in the overview it moves the view.
  #axisDown(event) {
    const { axis } = this.parts, box = axis.getBoundingClientRect(), inOverview = event.offsetY < axis.clientHeight - 22;
    if (event.offsetX < GUTTER) return;
    axis.setPointerCapture(event.pointerId);
    const from = this.timeAt(event.offsetX);
    const whole = (x) => this.low + (x - GUTTER) / (this.width - GUTTER) * (this.high - this.low);
    const centre = (x) => {
      const half = (this.t1 - this.t0) / 2;
      this.view(whole(x) - half, whole(x) + half);
    };
    if (inOverview) centre(event.offsetX);
    const move = (next) => {
      const x = next.clientX - box.left;
      if (inOverview) return centre(x);
      this.measure = { a: { ns: from }, b: { ns: this.timeAt(Math.max(GUTTER, x)) } };
      this.schedule();
    };
    axis.addEventListener("pointermove", move);
    axis.addEventListener("pointerup", () => {
      axis.removeEventListener("pointermove", move);
      if (inOverview || !this.measure?.b) return;
      const { a, b } = this.measure;
      this.measure = null;
      if (Math.abs(this.xOf(a.ns) - this.xOf(b.ns)) > 4) this.view(Math.min(a.ns, b.ns), Math.max(a.ns, b.ns));
    }, { once: true });
  }

  #hover(event) {
    const { tip, scroll } = this.parts;
    if (event.buttons) return;
    const [x, y] = this.#at(event), what = x < GUTTER ? null : this.hit(x, y);
    scroll.style.cursor = x < GUTTER ? "pointer" : [what?.range, what?.marker, what?.host].some((one) => one !== undefined) ? "default" : "grab";
    tip.hidden = !what;
    if (!what) return;
    fillFacts(tip, describe(this.model, what, this.low, this.painter));
    const box = tip.getBoundingClientRect(), gap = 14;
    tip.style.left = `${event.clientX + gap + box.width > innerWidth ? Math.max(4, event.clientX - gap - box.width) : event.clientX + gap}px`;
    tip.style.top = `${event.clientY + gap + box.height > innerHeight ? Math.max(4, event.clientY - gap - box.height) : event.clientY + gap}px`;
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    this.parts.tip.hidden = true;
    const key = event.key.length === 1 ? event.key.toLowerCase() : event.key, { range, host } = this.selected ?? {};
    const zoomed = (otherwise) => () => (range !== undefined || host !== undefined ? this.view(...this.timesOf(this.selected), 0.3) : otherwise());
    const actions = {
      ArrowLeft: () => this.neighbour(-1),
      ArrowRight: () => this.neighbour(1),
      ArrowUp: () => this.vertical(-1),
      ArrowDown: () => this.vertical(1),
      " ": () => this.toggle(this.row),
      Enter: zoomed(() => this.toggle(this.row)),
      f: zoomed(() => this.fit()),
      0: () => this.fit(),
      Home: () => this.fit(),
      m: () => this.mark(),
      g: () => {
        if (host !== undefined && this.model.host.launch[host] >= 0) this.told("open", this.model.host.launch[host]);
        const next = range === undefined ? [] : [...this.model.partners(range, true), ...this.model.partners(range, false)];
        if (next.length) this.goTo({ range: next[0] });
      },
      n: () => this.step(event.shiftKey ? -1 : 1),
      "+": () => this.zoom(0.7),
      "=": () => this.zoom(0.7),
      "-": () => this.zoom(1 / 0.7),
      Escape: () => {
        this.measure = null;
        this.told("measure", null);
        this.select(null);
      },
    };
    if ("wasd".includes(key)) {
      if (!this.held.has(key)) {
        this.#move(key, 0.06);
        this.held.add(key);
        this.last = performance.now();
      }
    } else if (actions[key]) actions[key]();
    else return;
    event.preventDefault();
  }

  #move(key, seconds) {
    if (key === "w" || key === "s") {
      const pointer = (this.t0 + this.t1) / 2;
      this.zoom(Math.exp((key === "w" ? -3 : 3) * seconds), pointer);
    } else this.pan((key === "a" ? -1.1 : 1.1) * seconds);
  }

  // Held keys go on from frame to frame.
  #keep(now) {
    if (!this.held.size) return;
    const seconds = Math.min(0.05, Math.max(0, (now - this.last) / 1000));
    this.last = now;
    for (const key of this.held) this.#move(key, seconds);
    this.schedule();
  }
}

// Round times between `from` and `to`, about `wanted` of them.
function ticksOf(from, to, wanted) {
  const raw = (to - from) / wanted, size = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((n) => n * size).find((n) => n >= raw) ?? raw, at = [];
  for (let t = Math.ceil(from / step) * step; t <= to; t += step) at.push(Math.abs(t) < step / 1e6 ? 0 : t);
  return { step, at };
}

function splitQuery(text) {
  const match = /^(.*?)\s*=\s*(\S+)\s*$/.exec(text);
  return match ? [match[1].trim().toLowerCase(), match[2]] : [text.trim().toLowerCase(), null];
}

function samePayload(payload, wanted) {
  return payload.text !== "" && (payload.text === wanted || payload.number === Number(wanted));
}
