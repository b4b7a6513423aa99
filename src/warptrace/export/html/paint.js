// Slices to pixels. A row of slices is painted once into a line of pixels, which is then copied to all lines of the row:
// the cost depends on the pixels shown, not on the number of slices.

class Painter {
  constructor(model) {
    this.model = model;
    this.edges = [];
  }

  // Pixels of the palette: by name, or by role and name.
  setPalette(mode, dark) {
    const { names, roles, waits } = this.model;
    this.byRole = mode === "role" && roles.length > 0;
    this.colours = [];
    const waiting = new Set(waits);
    for (let role = 0; role < (this.byRole ? roles.length + 1 : 1); role++) {
      names.forEach((_, name) => this.colours.push(this.byRole
        ? roleColour(role, name, waiting.has(name), dark) : nameColour(name, waiting.has(name), dark)));
    }
    this.pixels = Uint32Array.from(this.colours, pixel);
    this.host = (this.model.facts.host?.names ?? []).map((_, name) => nameColour(name, false, dark));
    this.hostPixels = Uint32Array.from(this.host, pixel);
    this.edge = this.pixels.map((p) => mix(p, dark ? 0xff000000 : 0xffffffff, 0.55));
  }

  // Where the colours of a warp's names begin in the palette.
  base(w) { return this.byRole ? (this.model.warps.role?.[w] ?? this.model.roles.length) * this.model.names.length : 0; }

  // The colour of a name wherever it runs (legend, charts).
  nameCss(name) { return css(this.colours[name] ?? [128, 128, 128]); }

  setView(t0, t1, width) {
    this.t0 = t0;
    this.t1 = t1;
    this.k = width / (t1 - t0);
    this.width = width;
  }

  // Paints the ranges first .. last - 1 (sorted, not overlapping) into `line`, and which range each pixel shows into
  // `owner` (-1: several). `fade`: how much of the background shines through. `pick`: a list in which first and last are
  // positions, instead of the ranges themselves.
  slices(line, first, last, base, { fade = 0, background = 0, owner = null, pick = null } = {}) {
    const { t0, t1, k, width, pixels, edge } = this, { end, busy } = this.model, { start_ns: start, name, ns } = this.model.ranges;
    const at = pick ? (i) => pick[i] : (i) => i;
    let i = first, high = last;
    while (i < high) { // the first that ends after t0
      const middle = (i + high) >> 1;
      if (end[at(middle)] < t0) i = middle + 1;
      else high = middle;
    }
    while (i < last) {
      const s = at(i), from = start[s];
      if (from >= t1) break;
      const x0 = Math.max(0, Math.floor((from - t0) * k)), x1 = Math.min(width, Math.floor((end[s] - t0) * k));
      if (x1 > x0) {
        const colour = base + name[s];
        line.fill(fade ? mix(pixels[colour], background, fade) : pixels[colour], x0, x1);
        if (x1 - x0 > 3) line[x1 - 1] = fade ? mix(edge[colour], background, fade) : edge[colour];
        if (owner) owner.fill(s, x0, x1);
        i++;
        continue;
      }
      if (x0 >= width) break;
      // All that begin within this pixel become one: the name of the longest of a few, as strong as the pixel is busy.
      const limit = t0 + (x0 + 1) / k;
      let next = i + 1, longest = s;
      if (pick) while (next < last && start[pick[next]] < limit) next++;
      else next = gallop(start, limit, i + 1, last);
      const step = Math.max(1, (next - i) >> 3);
      for (let j = i + step; j < next; j += step) if (ns[at(j)] > ns[longest]) longest = at(j);
      const share = pick ? 1 : Math.min(1, (busy[next] - busy[i]) * k);
      const colour = pixels[base + name[longest]];
      line[x0] = mix(line[x0], fade ? mix(colour, background, fade) : colour, Math.max(0.45, share));
      if (owner) owner[x0] = -1;
      i = next;
    }
  }

  // A stretch of time in one colour; at least one pixel.
  span(line, from, to, colour) {
    const x0 = Math.floor((from - this.t0) * this.k), x1 = Math.max(x0 + 1, Math.floor((to - this.t0) * this.k));
    if (x1 > 0 && x0 < this.width) line.fill(colour, Math.max(0, x0), Math.min(this.width, x1));
    return [x0, x1];
  }
}
