// The columns of the page as typed arrays. What an element holds is told in columns.py.

function fromBase64(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const binary = atob(text), out = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) out[i] = binary.charCodeAt(i);
  return out;
}

async function unpack(bytes, size) {
  if (typeof DecompressionStream === "undefined") return inflate(bytes, size);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

// A column of payloads: the two halves of each 64-bit pattern.
function decodeBits(spec, bytes) {
  const n = spec.rows, low = new Uint32Array(n), high = new Uint32Array(n);
  if (spec.width === 0) {
    const value = BigInt.asUintN(64, BigInt(spec.value ?? 0));
    return { low: low.fill(Number(value & 0xffffffffn)), high: high.fill(Number(value >> 32n)) };
  }
  for (let plane = 0; plane < 8; plane++) {
    const half = plane < 4 ? low : high, shift = 8 * (plane % 4);
    if (plane < spec.width) for (let i = 0, at = plane * n; i < n; i++) half[i] |= bytes[at + i] << shift;
    else {
      const top = (spec.width - 1) * n; // the sign goes on
      for (let i = 0; i < n; i++) if (bytes[top + i] & 128) half[i] |= 255 << shift;
    }
  }
  return { low, high };
}

// A column of numbers: Int32Array where every value fits, else Float64Array (exact up to 2^53).
function decodeNumbers(spec, bytes) {
  const n = spec.rows, width = spec.width;
  if (width === 0) {
    const value = Number(spec.value ?? 0), small = Math.abs(value) < 2 ** 31;
    return (small ? new Int32Array(n) : new Float64Array(n)).fill(value);
  }
  let out;
  if (width === 8) {
    const { low, high } = decodeBits(spec, bytes);
    out = new Float64Array(n);
    for (let i = 0; i < n; i++) out[i] = (high[i] | 0) * 4294967296 + low[i];
  } else {
    out = spec.delta ? new Float64Array(n) : new Int32Array(n);
    const a = bytes, unused = 32 - 8 * width;
    if (width === 1) for (let i = 0; i < n; i++) out[i] = (a[i] << 24) >> 24;
    else if (width === 2) for (let i = 0; i < n; i++) out[i] = ((a[i] | (a[n + i] << 8)) << unused) >> unused;
    else for (let i = 0; i < n; i++) out[i] = a[i] | (a[n + i] << 8) | (a[2 * n + i] << 16) | (a[3 * n + i] << 24);
  }
  if (spec.delta) for (let i = 1; i < n; i++) out[i] += out[i - 1];
  return out;
}

const isBits = (name) => name.endsWith("bits");

// Elements {name, spec, text} to an object of columns, `facts` among them.
async function decodeAll(elements) {
  const out = {};
  for (const { name, spec, text } of elements) {
    if (name === "facts") {
      out.facts = JSON.parse(new TextDecoder().decode(await unpack(fromBase64(text()), spec.bytes)));
      continue;
    }
    const bytes = spec.width && spec.rows ? await unpack(fromBase64(text()), spec.width * spec.rows) : null;
    if (bytes && bytes.length !== spec.width * spec.rows) throw new Error(`the page is damaged: column ${name}`);
    out[name] = !spec.rows ? decodeNumbers({ ...spec, width: 0 }, null)
      : isBits(name) ? decodeBits(spec, bytes) : decodeNumbers(spec, bytes);
  }
  return out;
}

function pageElements() {
  return [...document.querySelectorAll("script[data-column]")].map((one) => ({
    name: one.dataset.name,
    spec: JSON.parse(one.dataset.column),
    text: () => {
      const text = one.textContent;
      one.remove(); // not needed twice
      return text;
    },
  }));
}
