// The page: its parts, what is chosen, and the keys that hold everywhere.

const byId = (id) => document.getElementById(id);
const TABS = [["summary", "Summary"], ["timeline", "Timeline"], ["distributions", "Distributions"], ["sms", "SMs and waves"]];
const THEMES = { auto: ["◐", "as the system has it"], light: ["☀", "light"], dark: ["☾", "dark"] };

class Page {
  constructor(model) {
    this.model = model;
    this.drawn = new Set();
    this.tabs();
    this.theme();
    this.header();
    this.notes();
    this.timeline = new Timeline(model, Object.fromEntries(["axis", "rows", "scroll", "space", "tip"].map((id) => [id, byId(id)])),
      (what, value) => this.told(what, value));
    this.tools();
    this.timeline.restyle();
    this.keys();
    const asked = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
    const first = model.facts.details[0]?.launch.number ?? 1; // one that has its tables
    this.choose(asked.launch === "all" ? "all" : Math.min(Math.max(Number(asked.launch ?? first) - 1 || 0, 0), model.launches.length - 1));
    this.open(TABS.some(([id]) => id === asked.part) ? asked.part : "summary");
  }

  // ------------------------------------------------------------------------------------------------------------- frame
  tabs() {
    const bar = document.querySelector("nav");
    for (const [id, text] of TABS) {
      bar.append(make("button", { role: "tab", id: `tab-${id}`, "aria-controls": id, onclick: () => this.open(id, true) }, text));
    }
    bar.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      const at = TABS.findIndex(([id]) => id === this.part), next = TABS[(at + step + TABS.length) % TABS.length][0];
      this.open(next);
      byId(`tab-${next}`).focus();
    });
  }

  open(part, focus = false) {
    this.part = part;
    for (const [id] of TABS) {
      byId(id).hidden = id !== part;
      byId(`tab-${id}`).setAttribute("aria-selected", String(id === part));
      byId(`tab-${id}`).tabIndex = id === part ? 0 : -1;
    }
    byId("tip").hidden = true;
    this.fill(part);
    if (part === "timeline") {
      this.timeline.resize();
      if (focus) byId("scroll").focus({ preventScroll: true });
    }
    this.remember();
  }

  remember() {
    const launch = this.launch === "all" ? "all" : this.launch + 1;
    try {
      history.replaceState(null, "", `#part=${this.part}&launch=${launch}`);
    } catch { /* a page from a file may not be allowed to */ }
  }

  theme() {
    const button = byId("theme");
    let mode = "auto";
    try {
      mode = localStorage.getItem("warptrace-colours") ?? "auto";
    } catch { /* no storage: as the system has it */ }
    const set = (next) => {
      mode = THEMES[next] ? next : "auto";
      if (mode === "auto") delete document.documentElement.dataset.theme;
      else document.documentElement.dataset.theme = mode;
      button.textContent = THEMES[mode][0];
      button.title = `Colours: ${THEMES[mode][1]}`;
      button.setAttribute("aria-label", button.title);
      this.restyle();
    };
    button.addEventListener("click", () => {
      const names = Object.keys(THEMES);
      set(names[(names.indexOf(mode) + 1) % names.length]);
      try {
        localStorage.setItem("warptrace-colours", mode);
      } catch { /* as before */ }
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.restyle());
    set(mode);
  }

  restyle() {
    this.timeline?.restyle();
    if (this.timeline && this.launch !== undefined) this.told("select", this.timeline.selected);
    this.waves?.draw();
    this.drawn.delete("distributions");
    this.drawn.delete("summary");
    if (this.part && this.launch !== undefined) this.fill(this.part);
  }

  header() {
    const { facts, launches } = this.model, parts = [document.title];
    for (const one of facts.processes) {
      const devices = [...new Set(one.devices.map((device) => device.name).filter(Boolean))];
      parts.push([devices.join(", "), one.argv?.join(" ")].filter(Boolean).join(" · "));
    }
    byId("about").textContent = parts.filter(Boolean).join(" · ");
    byId("about").title = byId("about").textContent;
    const select = byId("launch");
    launches.forEach((one, i) => select.append(make("option", { value: i },
      [`${i + 1}: ${clip(one.kernel, 40)}`, this.model.whereOf(i), duration(one.end_ns - one.start_ns)].filter(Boolean).join(", "))));
    if (launches.length > 1) select.append(make("option", { value: "all" }, `all ${launches.length} launches`));
    byId("launches").hidden = launches.length < 2;
    select.addEventListener("change", () => this.choose(select.value === "all" ? "all" : Number(select.value)));
    byId("earlier").addEventListener("click", () => this.next(-1));
    byId("later").addEventListener("click", () => this.next(1));
    const dialog = byId("keys");
    byId("help").addEventListener("click", () => dialog.showModal());
  }

  notes() {
    const { facts } = this.model, { sample } = facts, add = (text) => byId("notes").append(make("p", {}, text));
    if (facts.emulated) add("This trace was made by an emulator: compare shapes, not durations.");
    if (!sample.whole) {
      add(`Timeline and search hold a sample: ${grouped(sample.slices)} of ${grouped(sample.slices_of)} ranges and markers,`
        + ` in ${grouped(sample.groups)} whole ${sample.clusters ? "clusters of CTAs" : "CTAs"} of ${grouped(sample.groups_of)}.`
        + " Tables and distributions are of the whole trace.");
    }
    const lost = this.model.launches.reduce((sum, one) => sum + one.lost_events, 0), warps = this.model.launches.reduce((sum, one) => sum + one.lost_warps, 0);
    if (lost || warps) add(`Not recorded, for want of room: ${[lost && `${grouped(lost)} events`, warps && `${grouped(warps)} warps`].filter(Boolean).join(" and ")}.`);
  }

  // ------------------------------------------------------------------------------------------------------------ launch
  choose(launch) {
    this.launch = launch;
    byId("launch").value = String(launch);
    byId("earlier").disabled = launch === 0;
    byId("later").disabled = launch === this.model.launches.length - 1 || launch === "all";
    this.shown = launch === "all" ? this.model.launches.map((_, i) => i) : [launch];
    this.timeline.setLaunches(this.shown);
    this.drawn.clear();
    if (this.part) this.fill(this.part);
    if (this.part) this.remember();
  }

  next(step) {
    const at = this.launch === "all" ? (step < 0 ? this.model.launches.length - 1 : -1) : this.launch + step;
    if (at >= 0 && at < this.model.launches.length) this.choose(at);
  }

  fill(part) {
    if (this.drawn.has(part)) return;
    this.drawn.add(part);
    ({ summary: () => this.summary(), distributions: () => this.distributions(), sms: () => this.sms() })[part]?.();
  }

  details() {
    const chosen = new Set(this.shown);
    return this.model.facts.details.filter((one) => chosen.has(one.launch.number - 1));
  }

  // ----------------------------------------------------------------------------------------------------------- summary
  summary() {
    const { model } = this, { launches, facts } = model, node = byId("summary");
    const shown = this.shown.map((i) => launches[i]), sum = (key) => shown.reduce((total, one) => total + one[key], 0);
    const span = Math.max(...shown.map((one) => one.end_ns)) - Math.min(...shown.map((one) => one.start_ns));
    const cards = [
      [duration(span), shown.length > 1 ? "first entry to last exit" : "duration"], [grouped(sum("warps_recorded")), "warps recorded"],
      [grouped(sum("events")), "events"], [grouped(sum("lost_events")), "events lost"],
    ];
    if (shown.length > 1) cards.unshift([grouped(shown.length), "launches"]);
    node.replaceChildren(make("div", { class: "cards" }, ...cards.map(([number, text]) => make("div", { class: "card" }, make("b", {}, number), make("span", {}, text)))));
    if (shown.length === 1) node.append(this.launchFacts(shown[0]));
    node.append(...this.hang());
    const details = this.details();
    for (const one of details) node.append(...this.roles(one, details.length > 1));
    if (!details.length) node.append(this.likeThis(shown[0]));
    if (launches.length > 1) node.append(make("h2", {}, "Launches"), this.launchTable());
    node.append(...this.host());
    if (facts.builds.length) node.append(make("h2", {}, "What tracing changed in the code"), make("ul", {}, ...facts.builds.map((text) => make("li", {}, text))));
    if (facts.problems.length) {
      node.append(make("h2", {}, "Problems in the data"), table("What is not as it should be, with counts", [
        { title: "kind", text: (p) => p.kind }, { title: "count", number: true, value: (p) => p.count, text: (p) => grouped(p.count) },
        { title: "launch", text: (p) => (p.launch === null ? "" : p.launch + 1) }, { title: "what", text: (p) => p.text },
      ], facts.problems));
    }
  }

  launchFacts(one) {
    const list = make("p", { class: "soft" });
    const parts = [one.kernel, this.model.whereOf(one.index), `grid ${triple(one.grid)}`, `block ${triple(one.block)}`];
    if (one.cluster.some((n) => n > 1)) parts.push(`cluster ${triple(one.cluster)}`);
    if (one.stream || one.graph) parts.push(this.queueOf(one));
    if (one.warps_recorded !== one.warps_expected) parts.push(`${grouped(one.warps_recorded)} of ${grouped(one.warps_expected)} warps recorded`);
    const call = this.model.callOf.get(one.index);
    if (call !== undefined) parts.push(`called ${this.callText(call)}, ${exactly(one.start_ns - this.model.host.start_ns[call])} before it began`);
    if (one.clock_uncertainty_ns) parts.push(`times across SMs good to ${duration(one.clock_uncertainty_ns)}`);
    list.append(parts.filter(Boolean).join(" · "));
    return list;
  }

  // In which ranges of the host, and on which thread, a launch was called.
  callText(call) {
    const { model } = this, thread = model.hostTracks[model.host.track[call]].name.replace(/: launches$/, "");
    return `by ${thread}${model.hostWithin(call) ? ` in ${model.hostWithin(call)}` : ""}`;
  }

  // What the host did: its ranges by name, and how long launches waited for their start.
  host() {
    const { host } = this.model.facts, wait = (ns) => (ns === null ? "" : exactly(ns));
    if (!host) return [];
    const pids = new Set([...host.ranges, ...host.calls].map((one) => one.pid)).size > 1;
    const process = pids ? [{ title: "process", number: true, value: (one) => one.pid, text: (one) => one.pid }] : [];
    const out = [make("h2", {}, "Host")];
    if (host.slices < host.slices_of) out.push(make("p", { class: "soft" }, `The timeline holds ${grouped(host.slices)} of ${grouped(host.slices_of)} ranges and calls of the host: all calls, and the longest ranges.`));
    if (host.ranges.length) out.push(table("Ranges of the host, by name", [
      { title: "range", text: (one) => one.name }, { title: "source", text: (one) => one.source }, ...process,
      { title: "count", number: true, value: (one) => one.count, text: (one) => grouped(one.count) },
      { title: "total", number: true, value: (one) => one.total_ns, text: (one) => exactly(one.total_ns) },
      { title: "longest", number: true, value: (one) => one.longest_ns, text: (one) => exactly(one.longest_ns) },
      { title: "launches", number: true, value: (one) => one.launches, text: (one) => grouped(one.launches) },
    ], host.ranges, { most: 40 }));
    if (host.calls.length) out.push(table("Launch calls of the host, and how long until the launch began", [
      { title: "kernel", text: (one) => clip(one.kernel, 60) }, ...process,
      { title: "calls", number: true, value: (one) => one.calls, text: (one) => grouped(one.calls) },
      { title: "of known launches", number: true, value: (one) => one.paired, text: (one) => grouped(one.paired) },
      { title: "median wait", number: true, value: (one) => one.median_wait_ns ?? -1, text: (one) => wait(one.median_wait_ns) },
      { title: "longest wait", number: true, value: (one) => one.longest_wait_ns ?? -1, text: (one) => wait(one.longest_wait_ns) },
    ], host.calls));
    return out;
  }

  // Where the warps were that had not ended when the program did, or when they were last seen.
  hang() {
    const { hang } = this.model.facts, groups = (hang?.groups ?? []).filter((one) => this.shown.includes(one.launch));
    const span = (ns) => (ns === null ? "" : ns[0] === ns[1] ? duration(ns[0]) : `${duration(ns[0])} to ${duration(ns[1])}`);
    const place = (one) => (one.full ? "not known: its memory was full" : one.ranges.length ? one.ranges.join(" › ") : "in no range");
    if (!groups.length) return [];
    const out = [make("h2", {}, "Ranges open when the program ended")];
    if (hang.time_from === "last event") out.push(make("p", { class: "soft" }, "When that was is not known: times are counted to the last event of any warp, and are at least so long."));
    out.push(table("Warps that had not ended, those in the same place together; ranges outermost first", [
      ...(this.shown.length > 1 ? [{ title: "launch", value: (one) => one.launch, text: (one) => one.launch + 1 }] : []),
      { title: "role", text: (one) => one.role }, { title: "warps", number: true, value: (one) => one.warps, text: (one) => grouped(one.warps) },
      { title: "which", text: (one) => one.where }, { title: "open ranges", text: place }, { title: "source", text: (one) => one.site },
      { title: "open for", number: true, value: (one) => one.open_ns?.[1] ?? -1, text: (one) => span(one.open_ns) },
      { title: "last event", text: (one) => one.last },
      { title: "silent for", number: true, value: (one) => one.silent_ns[1], text: (one) => span(one.silent_ns) },
    ], groups));
    return out;
  }

  // The stream of a launch, or the graph that it was replayed in.
  queueOf(one) {
    return one.graph ? `${one.graph[0]} replay ${one.graph[1]}` : one.stream && `stream ${one.stream}`;
  }

  // Where another launch of the same kernel and shape has the tables.
  likeThis(one) {
    const alike = (other) => ["kernel_id", "grid", "block", "cluster"].every((key) => String(one[key]) === String(other[key]));
    const median = this.model.facts.details.map((detail) => detail.launch.number - 1).find((i) => alike(this.model.launches[i]));
    const text = "Only one launch of each kernel and shape has findings and tables, that of median duration";
    const open = median === undefined ? "." : make("button", { class: "link", onclick: () => this.choose(median) }, `launch ${median + 1}`);
    return make("p", { class: "soft" }, text, median === undefined ? "" : ": here ", open);
  }

  launchTable() {
    const { launches } = this.model, count = (key, title) => ({ title, number: true, value: (i) => launches[i][key], text: (i) => grouped(launches[i][key]) });
    return table("Every launch of the trace; a number opens it", [
      { title: "launch", value: (i) => i, text: (i) => `Launch ${i + 1}` }, { title: "kernel", text: (i) => clip(launches[i].kernel, 60) },
      ...(this.model.whereOf(0) ? [{ title: "where", text: (i) => this.model.whereOf(i) }] : []),
      ...(new Set(launches.map((one) => this.queueOf(one))).size > 1 ? [{ title: "stream", text: (i) => this.queueOf(launches[i]) }] : []),
      ...(this.model.callOf.size ? [{ title: "called", text: (i) => (this.model.callOf.has(i) ? this.callText(this.model.callOf.get(i)) : "") }] : []),
      { title: "grid", text: (i) => triple(launches[i].grid) }, { title: "block", text: (i) => triple(launches[i].block) },
      { title: "start", number: true, value: (i) => launches[i].start_ns, text: (i) => duration(launches[i].start_ns - launches[0].start_ns) },
      { title: "duration", number: true, value: (i) => launches[i].end_ns - launches[i].start_ns, text: (i) => exactly(launches[i].end_ns - launches[i].start_ns) },
      count("warps_recorded", "warps"), count("events", "events"), count("lost_events", "lost"),
    ], launches.map((_, i) => i), { onrow: (i) => this.choose(i) });
  }

  roles({ launch, roles, critical, placement, findings, flows }, several) {
    const out = [], { painter } = this.timeline, of = several ? ` in launch ${launch.number}` : "";
    if (findings.length) out.push(make("h2", {}, `Findings${of}`), make("ul", {}, ...findings.map((text) => make("li", {}, ...withNames(text)))));
    out.push(make("h2", {}, `Roles${of}`));
    const bars = make("div", { class: "role" });
    const pixelOf = (role) => css(roleColour(role.role, 0, false, getComputedStyle(document.documentElement).getPropertyValue("--dark").trim() === "1"));
    for (const role of roles) {
      const part = (cycles) => (role.life ? cycles / role.life : 0), bar = make("div", { class: "share", role: "img",
        "aria-label": `${role.name}: ${percent(part(role.work))} work, ${percent(part(role.waiting))} waiting, ${percent(part(role.gap))} in no range` });
      for (const [cycles, colour, name] of [[role.work, pixelOf(role), "work"], [role.waiting, "rgb(var(--c-wait))", "waiting"]]) {
        const piece = make("i", { title: `${name} ${percent(part(cycles))}` });
        piece.style.cssText = `width:${100 * part(cycles)}%;background:${colour}`;
        bar.append(piece);
      }
      bars.append(make("b", {}, role.name), bar, make("span", { class: "soft" },
        `${grouped(role.warps)} warps · ${percent(part(role.work))} work · ${percent(part(role.waiting))} waiting · ${percent(part(role.gap))} in no range`));
    }
    out.push(bars);
    if (critical) out.push(make("p", {}, `Last to end: warp ${critical.warp} of CTA (${critical.cta.join(", ")}) on SM ${critical.sm}, a ${critical.role},`
      + ` ${exactly(critical.late_ns)} after the median end of its role.`));
    const rows = roles.flatMap((role) => role.names.map((name) => ({ role, ...name })));
    const cycles = (key, title, note) => ({ title, note, number: true, value: (row) => row[key], text: (row) => grouped(row[key]) });
    out.push(table("Ranges by role, in SM cycles. Share: of the life of the role's warps. Self: without ranges nested in it.", [
      { title: "range", text: (row) => row.name, node: (row) => this.named(row, painter) }, { title: "role", text: (row) => row.role.name },
      cycles("count", "count"), cycles("total", "total"),
      { title: "share", number: true, value: (row) => row.share, text: (row) => percent(row.share) },
      { title: "self", number: true, value: (row) => row.self_share, text: (row) => percent(row.self_share) },
      cycles("mean", "mean"), cycles("p50", "p50"), cycles("p95", "p95"), cycles("p99", "p99"), cycles("max", "max"),
      { title: "mean ns", number: true, value: (row) => row.mean_ns, text: (row) => row.mean_ns.toFixed(row.mean_ns < 100 ? 1 : 0) },
    ], rows, { sortBy: 3 }));
    if (flows.length) out.push(this.flowTable(flows));
    const p = placement;
    out.push(make("p", { class: "soft" }, `${grouped(p.ctas)} CTAs on ${p.sms_used}${p.sm_count ? ` of ${p.sm_count}` : ""} SMs, at most ${p.resident_per_sm} at once on one:`
      + ` ${p.waves.toFixed(2)} waves. First CTAs begin within ${exactly(p.start_skew.max_ns)}; the tail takes ${exactly(p.tail_ns)}, in which ${percent(p.tail_share)} of all SM time stood idle.`));
    return out;
  }

  flowTable(flows) {
    const cycles = (key, title) => ({ title, number: true, value: (row) => row[key], text: (row) => grouped(row[key]) });
    return table("Flows, in SM cycles from the start of a source to the end of a target that it feeds. Exposed: the part in which the target was open.", [
      { title: "flow", text: (row) => `${row.source} → ${row.target}` }, cycles("pairs", "pairs"),
      { title: "mean", number: true, value: (row) => row.total / row.pairs, text: (row) => (row.pairs ? grouped(row.total / row.pairs) : "") },
      { title: "exposed", number: true, value: (row) => row.exposed, text: (row) => (row.total ? percent(row.exposed / row.total) : "") },
      cycles("p50", "p50"), cycles("p95", "p95"), cycles("p99", "p99"), cycles("max", "max"), cycles("unfed", "unfed"), cycles("unused", "unused"),
    ], flows);
  }

  named(row, painter) {
    const index = this.model.names.indexOf(row.name), base = painter.byRole ? row.role.role * this.model.names.length : 0;
    const swatch = make("span", { class: "swatch" });
    swatch.style.background = css(painter.colours[base + index] ?? [128, 128, 128]);
    return make("span", {}, swatch, make("button", { class: "link", onclick: () => this.find(row.name), title: "Show in the timeline" }, row.name), row.wait ? make("span", { class: "soft" }, " wait") : null);
  }

  // ----------------------------------------------------------------------------------------------------- distributions
  distributions() {
    const { model } = this, node = byId("distributions"), bins = binsOf(model, this.shown), whole = model.histogram.launch.some((l) => l < 0);
    const weight = ([, one]) => [...one].reduce((sum, [bin, count]) => sum + binLow(bin) * count, 0);
    const order = [...bins].sort((a, b) => weight(b) - weight(a));
    node.replaceChildren(make("h2", {}, "How long ranges took"), make("p", { class: "soft" },
      `In SM cycles, on a scale of doublings; names with the most time first.${whole ? " Over all launches of the trace together." : ""}`));
    const charts = make("div", { class: "charts" }), add = (list) => charts.append(...list.map(([name, one]) => this.chart(name, one)));
    add(order.slice(0, 60));
    node.append(charts);
    if (order.length > 60) {
      const more = make("button", { class: "more", onclick: () => {
        add(order.slice(60));
        more.remove();
      } }, `show all ${order.length} names`);
      node.append(more);
    }
    if (!order.length) node.append(make("p", {}, "No range was recorded."));
  }

  chart(index, bins) {
    const { model } = this, name = model.names[index], dark = getComputedStyle(document.documentElement).getPropertyValue("--dark").trim() === "1";
    const total = [...bins.values()].reduce((a, b) => a + b, 0), waits = model.waits.includes(index);
    const colour = waits ? "rgb(var(--c-wait))" : css(nameColour(index, false, dark));
    const rows = this.details().flatMap((one) => one.roles.flatMap((role) => role.names.filter((row) => row.name === name).map((row) => [role.name, row])));
    const facts = make("div", { class: "soft" }, `${grouped(total)} ranges${waits ? ", a wait" : ""}`);
    const box = make("figure", { class: "chart" }, make("h3", {}, name), facts, histogram(name, bins, colour));
    for (const [role, row] of rows.slice(0, 4)) box.append(make("figcaption", { class: "soft" },
      `${role}: p50 ${grouped(row.p50)} · p95 ${grouped(row.p95)} · p99 ${grouped(row.p99)} · max ${grouped(row.max)}`));
    return box;
  }

  // --------------------------------------------------------------------------------------------------------------- SMs
  sms() {
    const node = byId("sms");
    if (!this.waves) {
      node.append(make("h2", {}, "Which CTA ran on which SM, and when"), make("p", { class: "soft" }, "A block is a CTA, its colour how many ran in its place before: "
        + "a column of one colour is a wave. A click opens it in the timeline."), make("canvas", { id: "waves", role: "img" }));
      this.waves = new Waves(this.model, byId("waves"), byId("tip"), (c) => {
        this.open("timeline", true);
        this.timeline.goToCta(c);
      });
      node.append(make("div", { id: "smtable" }));
    }
    this.waves.setLaunches(this.shown);
    const details = this.details();
    byId("waves").setAttribute("aria-label", `${this.shown.reduce((sum, l) => sum + this.model.smsOfLaunch[l].length, 0)} SMs; the table below has the figures`);
    byId("smtable").replaceChildren(...details.map((one) => table(`SMs in launch ${one.launch.number}. Busy: at least one CTA there.`, [
      { title: "SM", value: (row) => row.sm, text: (row) => `SM ${row.sm}` }, { title: "CTAs", number: true, value: (row) => row.ctas, text: (row) => row.ctas },
      { title: "at once", number: true, value: (row) => row.resident, text: (row) => row.resident },
      { title: "first start", number: true, value: (row) => row.first_start_ns, text: (row) => exactly(row.first_start_ns - one.launch.start_ns) },
      { title: "last end", number: true, value: (row) => row.last_end_ns, text: (row) => exactly(row.last_end_ns - one.launch.start_ns) },
      { title: "busy", number: true, value: (row) => row.busy_ns, text: (row) => exactly(row.busy_ns) },
    ], one.placement.sms, { most: 40 })));
  }

  // ---------------------------------------------------------------------------------------------------------- timeline
  tools() {
    const { timeline } = this, search = byId("search");
    let later = 0;
    search.addEventListener("input", () => {
      clearTimeout(later);
      later = setTimeout(() => timeline.search(search.value), 120);
    });
    search.addEventListener("keydown", (event) => {
      if (event.key === "Enter") {
        clearTimeout(later);
        if (timeline.text !== search.value) timeline.search(search.value);
        timeline.step(event.shiftKey ? -1 : 1);
      } else if (event.key === "Escape") {
        search.value = "";
        timeline.search("");
        byId("scroll").focus({ preventScroll: true });
      } else return;
      event.preventDefault();
    });
    byId("before").addEventListener("click", () => timeline.step(-1));
    byId("after").addEventListener("click", () => timeline.step(1));
    byId("in").addEventListener("click", () => timeline.zoom(0.6));
    byId("out").addEventListener("click", () => timeline.zoom(1 / 0.6));
    byId("fit").addEventListener("click", () => timeline.fit());
    byId("level").addEventListener("change", () => timeline.setLevel(Number(byId("level").value)));
    byId("colour").value = timeline.mode;
    byId("colour").addEventListener("change", () => {
      timeline.setMode(byId("colour").value);
      this.told("select", timeline.selected);
      this.drawn.delete("summary");
    });
  }

  told(what, value) {
    const { timeline, model } = this;
    if (what === "open") this.choose(value);
    if (what === "level") {
      byId("level").options[0].hidden = byId("level").options[0].disabled = this.shown.length === 1;
      byId("level").value = String(value);
    }
    if (what === "search") {
      byId("found").textContent = !value ? "" : value.count
        ? `${grouped(value.count)} match${value.count > 1 ? "es" : ""}, ${duration(value.total)} in all` : "no match";
      byId("before").disabled = byId("after").disabled = !value?.count;
    }
    if ((what === "select" || what === "measure") && timeline) {
      const node = byId("details"), measured = timeline.measure ? make("div", {}, `measured: ${timeline.measureText()}`) : null;
      if (timeline.selected) fillFacts(node, describe(model, timeline.selected, timeline.low, timeline.painter));
      else node.replaceChildren(make("div", { class: "soft" }, "Click a slice, or use the arrow keys. Shift and drag measures. The key ? lists all keys."), this.legend());
      if (measured) node.append(measured);
    }
  }

  // The names of the launches shown with their colours; a click searches for one.
  legend() {
    const { model, timeline } = this, { painter } = timeline, node = make("div", { class: "legend", role: "group", "aria-label": "Names and colours" });
    const add = (role, names) => names.forEach((name) => {
      const swatch = make("span", { class: "swatch" });
      swatch.style.background = css(painter.colours[(role ?? 0) * model.names.length + name]);
      node.append(make("button", { title: "Find in the timeline", onclick: () => this.find(model.names[name], false) }, swatch, model.names[name]));
    });
    for (const { role, text, names } of model.rolesOf(this.shown)) {
      if (!painter.byRole) continue;
      node.append(make("b", {}, text));
      add(role, names);
    }
    if (!painter.byRole) add(null, [...new Set(model.rolesOf(this.shown).flatMap((one) => one.names))].sort((a, b) => a - b));
    return node;
  }

  find(name, go = true) {
    byId("search").value = name;
    this.open("timeline", true);
    this.timeline.search(name);
    if (go) this.timeline.step(1);
  }

  keys() {
    addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || byId("keys").open) return;
      const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
      if (typing) return;
      if (event.key === "?") byId("keys").showModal();
      else if (event.key === "[") this.next(-1);
      else if (event.key === "]") this.next(1);
      else if (event.key === "/") {
        this.open("timeline");
        byId("search").focus();
      } else if ("1234".includes(event.key)) this.open(TABS[Number(event.key) - 1][0], true);
      else if (this.part === "timeline" && event.target === document.body) return this.timeline.key(event);
      else return;
      event.preventDefault();
    });
  }
}

function clip(text, most) {
  return text.length <= most ? text : `${text.slice(0, Math.ceil(most * 2 / 3))}…${text.slice(text.length - Math.floor(most / 3) + 1)}`;
}

(async () => {
  const begun = performance.now();
  try {
    const columns = await decodeAll(pageElements());
    const decoded = performance.now();
    const model = new Model(columns);
    if (!model.launches.length) {
      byId("notes").append(make("p", {}, "No launch was recorded."));
      return;
    }
    const page = new Page(model);
    // For the console of the browser, and for tests: the columns, and what is shown.
    window.warptrace = { columns, model, page, timeline: page.timeline, loadMs: { decode: decoded - begun, all: performance.now() - begun } };
    document.documentElement.dataset.ready = "1";
  } catch (error) {
    byId("notes").append(make("p", {}, `This report cannot be shown: ${error.message ?? error}`));
    throw error;
  }
})();
