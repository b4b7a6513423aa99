// Text of the page: facts of what is selected, tables, cards. Everything from the trace goes in as text, never as HTML.

function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

// What is known of a thing of the timeline: {title, colour, facts: [[label, text]]}.
function describe(model, what, low, painter) {
  const { range, marker, warp, cta, sm, launch } = what;
  if (range !== undefined) return describeRange(model, range, low, painter);
  if (marker !== undefined) return describeMarker(model, marker, low, painter);
  if (warp !== undefined) return { title: `Warp ${model.warps.warp[warp]} of ${model.ctaName(model.ctaOf[warp])}`, facts: warpFacts(model, warp, low) };
  if (what.host !== undefined) return describeHost(model, what.host, low, painter);
  if (what.track !== undefined) {
    const slices = model.hostLines[what.track].reduce((sum, line) => sum + line.last - line.first, 0);
    return { title: model.hostTracks[what.track].name, facts: [["ranges, marks and calls", grouped(slices)]] };
  }
  if (cta !== undefined) return { title: model.ctaName(cta), facts: ctaFacts(model, cta, low) };
  if (sm !== undefined) {
    const one = model.sms[sm], busy = one.ctas.reduce((sum, c) => sum + model.ctaEnd[c] - model.ctaStart[c], 0);
    return { title: `SM ${one.sm}`, facts: [["CTAs", grouped(one.ctas.length)], ["at once", one.slots], ["sum of their lives", exactly(busy)]] };
  }
  const one = model.launches[launch];
  return { title: `Launch ${launch + 1}`, facts: [["kernel", one.kernel], ["duration", exactly(one.end_ns - one.start_ns)]] };
}

function placeFacts(model, w) {
  const role = model.roleName(w);
  return [
    ["warp", `${model.warps.warp[w]}${role ? ` (${role})` : ""} of ${model.ctaName(model.ctaOf[w])}`],
    ["SM", model.warps.sm[w]],
  ];
}

function describeRange(model, i, low, painter) {
  const { ranges } = model, w = ranges.warp[i], first = model.payload(ranges.start_type, ranges.start_bits, i).text;
  const last = model.payload(ranges.end_type, ranges.end_bits, i).text, token = ranges.kind[i] === 1;
  const facts = [["duration", `${exactly(ranges.ns[i])}, ${grouped(ranges.cycles[i])} cycles`]];
  if (first !== "") facts.push(["payload", first]);
  if (last !== "" && token && last !== first) facts.push(["payload at its end", last]);
  facts.push(["start", exactly(ranges.start_ns[i] - low)], ...placeFacts(model, w));
  for (const [label, feeds] of [["fed by", false], ["feeds", true]]) {
    const others = model.partners(i, feeds);
    if (!others.length) continue;
    const cycles = feeds ? model.latency(i, others[0]) : model.latency(others[0], i);
    facts.push([label, `${model.names[ranges.name[others[0]]]}${others.length > 1 ? ` and ${others.length - 1} more` : ""}, ${grouped(cycles)} cycles from start to end`]);
  }
  if (ranges.lane[i]) facts.push(["led by lane", ranges.lane[i]]);
  const from = model.site(ranges.start_site[i]), to = model.site(ranges.end_site[i]);
  if (from) facts.push(["called at", from]);
  if (token && to) facts.push(["ended at", to]);
  return { title: model.names[ranges.name[i]], colour: css(painter.colours[painter.base(w) + ranges.name[i]]), facts };
}

function describeMarker(model, i, low, painter) {
  const { markers } = model, w = markers.warp[i], payload = model.markerPayload(i).text, facts = [];
  if (payload !== "") facts.push(["payload", payload]);
  facts.push(["time", exactly(markers.ns[i] - low)], ["in the warp's life", `${grouped(markers.cycle[i])} cycles`], ...placeFacts(model, w));
  if (markers.lane[i]) facts.push(["led by lane", markers.lane[i]]);
  if (model.site(markers.site[i])) facts.push(["called at", model.site(markers.site[i])]);
  return { title: `${model.names[markers.name[i]]} (marker)`, colour: css(painter.colours[painter.base(w) + markers.name[i]]), facts };
}

function describeHost(model, i, low, painter) {
  const { host } = model, track = model.hostTracks[host.track[i]], launch = model.launches[host.launch[i]], facts = [];
  if (host.ns[i] >= 0) facts.push(["duration", `${exactly(host.ns[i])}${host.ended[i] ? "" : ", then the recording ended"}`]);
  facts.push([host.ns[i] >= 0 ? "start" : "time", exactly(host.start_ns[i] - low)], ["thread", track.name]);
  if (launch) facts.push(["launch", `${host.launch[i] + 1}, which began ${exactly(launch.start_ns - host.start_ns[i])} later`]);
  if (model.hostWithin(i)) facts.push(["within", model.hostWithin(i)]);
  facts.push(["good to", exactly(host.doubt[i])]);
  return { title: model.hostName(i), colour: css(painter.host[host.name[i]]), facts };
}

function warpFacts(model, w, low) {
  const { warps } = model, cycles = warps.cycles[w] >= 0 ? `, ${grouped(warps.cycles[w])} cycles` : "";
  const facts = [["life", exactly(warps.ns[w]) + cycles], ["start", exactly(warps.start_ns[w] - low)], ["events", grouped(warps.events[w])]];
  if (warps.lost[w]) facts.push(["lost events", grouped(warps.lost[w])]);
  if (!warps.closed[w]) facts.push(["end", "not seen: its life is drawn to its last event"]);
  const role = model.roleName(w);
  if (role) facts.push(["role", role]);
  facts.push(["SM", warps.sm[w]]);
  return facts;
}

function ctaFacts(model, c, low) {
  const facts = [
    ["life", exactly(model.ctaEnd[c] - model.ctaStart[c])], ["start", exactly(model.ctaStart[c] - low)],
    ["SM", model.ctaSm[c]], ["warps", model.ctaFirst[c + 1] - model.ctaFirst[c]],
    ["in its place on the SM", `number ${model.ctaTurn[c] + 1}`],
  ];
  if (!model.ctaShown(c)) facts.push(["events", "not in the sample that this page holds"]);
  return facts;
}

function fillFacts(node, { title, colour, facts }) {
  const head = make("div", { class: "what" }, title);
  if (colour) head.prepend(Object.assign(make("span", { class: "swatch" }), { style: `background:${colour}` }));
  const list = make("dl");
  for (const [label, text] of facts) list.append(make("div", {}, make("dt", {}, label), make("dd", {}, String(text))));
  node.replaceChildren(head, list);
}

// Text in which names stand between backquotes.
function withNames(text) {
  return text.split("`").map((part, i) => (i % 2 ? make("code", {}, part) : part));
}

// A table that sorts by a click on a head. columns: {title, text(row), value?(row), number?, note?}. `onrow` opens a row.
function table(caption, columns, rows, { onrow = null, most = 200, sortBy = -1, descending = true } = {}) {
  const body = make("tbody"), heads = make("tr");
  let shown = most, by = sortBy, down = descending;
  const fill = () => {
    const order = [...rows];
    const key = (row) => (columns[by].value ? columns[by].value(row) : columns[by].text(row));
    if (by >= 0) order.sort((a, b) => (key(a) < key(b) ? -1 : key(a) > key(b) ? 1 : 0) * (down ? -1 : 1));
    body.replaceChildren(...order.slice(0, shown).map((row) => {
      const line = make("tr", { class: onrow ? "opens" : null });
      columns.forEach((one, at) => {
        const text = one.node ? one.node(row) : String(one.text(row));
        const cell = make(at === 0 ? "th" : "td", { class: one.number ? "number" : null, scope: at === 0 ? "row" : null });
        cell.append(onrow && at === 0 ? make("button", { class: "link", onclick: () => onrow(row) }, text) : text);
        line.append(cell);
      });
      return line;
    }));
    heads.querySelectorAll("th").forEach((th, at) => {
      if (at === by) th.setAttribute("aria-sort", down ? "descending" : "ascending");
      else th.removeAttribute("aria-sort");
    });
  };
  columns.forEach((one, at) => heads.append(make("th", { scope: "col", class: one.number ? "number" : null, title: one.note },
    make("button", { onclick: () => {
      down = by === at ? !down : Boolean(one.number);
      by = at;
      fill();
    } }, one.title))));
  fill();
  const whole = make("div", { class: "table" }, make("table", {}, make("caption", {}, caption), make("thead", {}, heads), body));
  if (rows.length > most) {
    const more = make("button", { class: "more", onclick: () => {
      shown = rows.length;
      fill();
      more.remove();
    } }, `show all ${grouped(rows.length)}`);
    whole.append(more);
  }
  return whole;
}
