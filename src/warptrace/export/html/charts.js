// Distributions of the ranges of each name, and where and when the CTAs ran.

const PER_DOUBLING = 32; // as in histogram.py
const BARS = 44;

function svg(tag, attributes, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

// Lower and upper edge of a bin, in cycles: whole numbers from `low` up to below `high` are in it.
const binLow = (bin) => (bin < 0 ? 0 : 2 ** (bin / PER_DOUBLING));

function short(number) {
  return number >= 1e6 ? `${+(number / 1e6).toPrecision(3)} M` : number >= 1e4 ? `${+(number / 1e3).toPrecision(3)} k` : String(Math.round(number));
}

// The bins of each name over the given launches: Map name -> Map bin -> count.
function binsOf(model, launches) {
  const { launch, name, bin, count } = model.histogram, shown = new Set(launches), out = new Map();
  for (let i = 0; i < name.length; i++) {
    if (launch[i] >= 0 && !shown.has(launch[i])) continue;
    if (!out.has(name[i])) out.set(name[i], new Map());
    const bins = out.get(name[i]);
    bins.set(bin[i], (bins.get(bin[i]) ?? 0) + count[i]);
  }
  return out;
}

// How many bins become one bar: few enough bars, and none narrower than a cycle.
function binsABar(first, last) {
  const cycle = PER_DOUBLING * Math.log2(1 + 1 / Math.max(1, binLow(first)));
  return [1, 2, 4, 8, 16, 32].find((n) => n >= cycle && (last - first) / n <= BARS) ?? Math.ceil((last - first) / BARS);
}

function histogram(name, fine, colour) {
  const found = [...fine.keys()], group = binsABar(Math.min(...found), Math.max(...found)), bins = new Map();
  for (const [bin, count] of fine) {
    const bar = bin < 0 ? -1 : Math.floor(bin / group);
    bins.set(bar, (bins.get(bar) ?? 0) + count);
  }
  const numbers = [...bins.keys()], first = Math.min(...numbers), last = Math.max(...numbers), edge = (bar) => (bar < 0 ? 0 : binLow(bar * group));
  const spare = Math.max(1, Math.ceil((12 - (last - first)) / 2));
  const low = Math.max(-1, first - spare), high = last + spare, width = 330, height = 110, floor = 92, step = width / (high - low + 1);
  const most = Math.max(...bins.values()), total = [...bins.values()].reduce((a, b) => a + b, 0);
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img",
    "aria-label": `${name}: ${total} ranges, from about ${Math.round(edge(first))} to ${Math.round(edge(last + 1))} cycles` });
  for (const [bin, count] of bins) {
    const size = Math.max(1.5, count / most * (floor - 6)), from = Math.ceil(edge(bin)), to = Math.max(from, Math.ceil(edge(bin + 1)) - 1);
    const bar = svg("rect", { class: "bar-of", x: (bin - low) * step, y: floor - size, width: Math.max(1, step - (step > 4 ? 1 : 0)), height: size, fill: colour });
    bar.append(svg("title", {}, `${grouped(count)} of ${grouped(total)}: ${bin < 0 ? 0 : from === to ? from : `${grouped(from)} to ${grouped(to)}`} cycles`));
    picture.append(bar);
  }
  picture.append(svg("line", { x1: 0, x2: width, y1: floor, y2: floor }));
  const labels = [], doubling = PER_DOUBLING / group, every = Math.max(1, Math.ceil((high - low) / doubling / 6)) * doubling;
  for (let at = Math.max(0, Math.ceil(low / every) * every); at <= high; at += every) labels.push([at, short(2 ** (at / doubling))]);
  for (const at of [first, last + 1]) if (!labels.some(([other]) => Math.abs(other - at) * step < 56)) labels.push([at, short(edge(at))]);
  for (const [at, text] of labels) {
    const x = (at - low) * step;
    picture.append(svg("line", { x1: x, x2: x, y1: floor, y2: floor + 4 }), svg("text", { x: Math.min(x + 2, width - 30), y: height - 4 }, text));
  }
  return picture;
}

// SMs from top to bottom, time from left to right, a block a CTA: shade by how many ran in its place before.
class Waves {
  constructor(model, canvas, tip, opened) {
    Object.assign(this, { model, canvas, tip });
    new ResizeObserver(() => this.draw()).observe(canvas.parentElement);
    canvas.addEventListener("pointermove", (event) => {
      const c = this.hit(event);
      tip.hidden = c < 0;
      if (c < 0) return;
      fillFacts(tip, describe(model, { cta: c }, this.low));
      tip.style.left = `${Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 4)}px`;
      tip.style.top = `${Math.min(event.clientY + 14, innerHeight - tip.offsetHeight - 4)}px`;
    });
    canvas.addEventListener("pointerleave", () => { tip.hidden = true; });
    canvas.addEventListener("click", (event) => {
      const c = this.hit(event);
      if (c >= 0) opened(c);
    });
  }

  setLaunches(launches) {
    const { model } = this;
    this.sms = launches.flatMap((launch) => model.smsOfLaunch[launch]);
    this.low = Math.min(...launches.map((l) => model.launches[l].start_ns));
    this.high = Math.max(this.low + 1, ...launches.map((l) => model.launches[l].end_ns));
    const slots = this.sms.reduce((sum, s) => sum + model.sms[s].slots, 0);
    this.slot = Math.max(2, Math.min(16, Math.floor(620 / Math.max(1, slots))));
    this.tops = [];
    let y = 4;
    for (const s of this.sms) {
      this.tops.push(y);
      y += model.sms[s].slots * this.slot + (this.slot > 3 ? 2 : 1);
    }
    this.tops.push(y);
    this.tall = Math.min(y, 16000) + 24;
    this.draw();
  }

  draw() {
    const { canvas, model } = this, width = canvas.parentElement?.clientWidth - 36, ratio = devicePixelRatio || 1;
    if (!this.sms || !(width > 0)) return;
    canvas.style.height = `${this.tall}px`;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(this.tall * ratio);
    this.wide = width;
    const context = canvas.getContext("2d"), style = getComputedStyle(document.documentElement);
    const colour = (name) => css(style.getPropertyValue(`--c-${name}`).trim().split(/\s+/).map(Number));
    const dark = style.getPropertyValue("--dark").trim() === "1";
    context.scale(ratio, ratio);
    context.font = FONT;
    context.textBaseline = "middle";
    this.k = (width - 64) / (this.high - this.low);
    let labelled = -100;
    this.sms.forEach((s, at) => {
      const one = model.sms[s], top = this.tops[at];
      if (top - labelled >= 13) {
        context.fillStyle = colour("soft");
        context.fillText(`SM ${one.sm}`, 4, top + Math.min(8, this.slot / 2 + 1), 54);
        labelled = top;
      }
      for (const c of one.ctas) {
        const x = 64 + (model.ctaStart[c] - this.low) * this.k, long = (model.ctaEnd[c] - model.ctaStart[c]) * this.k;
        context.fillStyle = css(oklch(dark ? [0.5, 0.66][model.ctaTurn[c] % 2] : [0.68, 0.8][model.ctaTurn[c] % 2], 0.1, 250 - 38 * model.ctaTurn[c]));
        context.fillRect(x, top + model.ctaSlot[c] * this.slot, Math.max(1, long - 0.5), Math.max(1, this.slot - (this.slot > 3 ? 1 : 0)));
      }
    });
    const ticks = ticksOf(0, this.high - this.low, Math.max(2, width / 120));
    context.fillStyle = colour("soft");
    for (const tick of ticks.at) {
      context.fillRect(64 + tick * this.k, this.tall - 20, 1, 5);
      context.fillText(duration(tick, ticks.step), 68 + tick * this.k, this.tall - 9);
    }
  }

  hit(event) {
    const { model } = this, at = lowerBound(this.tops, event.offsetY + 1e-6, 0, this.tops.length) - 1;
    if (at < 0 || at >= this.sms.length) return -1;
    const one = model.sms[this.sms[at]], slot = Math.floor((event.offsetY - this.tops[at]) / this.slot);
    const ns = this.low + (event.offsetX - 64) / this.k;
    return one.ctas.find((c) => model.ctaSlot[c] === slot && model.ctaStart[c] <= ns && ns <= model.ctaEnd[c]) ?? -1;
  }
}
