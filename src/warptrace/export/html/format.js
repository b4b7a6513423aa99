// Numbers and payloads as a person reads them.

function grouped(number) {
  return Math.round(number).toString().replace(/\B(?=(\d{3})+$)/g, "\u202f");
}

// Nanoseconds with the unit that fits. `step`: how fine the text must tell two times apart.
function duration(ns, step = 0) {
  const size = Math.abs(ns);
  const [unit, scale] = size >= 1e9 ? ["s", 1e9] : size >= 1e6 ? ["ms", 1e6] : size >= 1e3 ? ["µs", 1e3] : ["ns", 1];
  if (scale === 1) return `${step && step < 1 ? ns.toFixed(1) : Math.round(ns)} ns`;
  const digits = step ? Math.max(0, Math.ceil(Math.log10(scale / step))) : Math.max(0, 2 - Math.floor(Math.log10(size / scale)));
  return `${(ns / scale).toFixed(Math.min(9, digits))} ${unit}`;
}

// To the nanosecond, whatever the size: 12 345 ns are "12.345 µs".
const exactly = (ns) => duration(ns, 1);

const triple = (dims) => dims.join(" × ");
const percent = (part) => `${(100 * part).toFixed(part < 0.0995 ? 1 : 0)} %`;

function shortest(number, round) {
  for (let digits = 1; digits < 17; digits++) {
    const text = number.toPrecision(digits);
    if (round(Number(text)) === number) return String(Number(text));
  }
  return String(number);
}

const bitView = new DataView(new ArrayBuffer(8));

function halfToNumber(bits) {
  const sign = bits & 0x8000 ? -1 : 1, exponent = (bits >> 10) & 31, fraction = bits & 1023;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -14 * (fraction / 1024));
}

function toHalf(number) { // the nearest float16, as a number; ties do not occur for the few digits tried
  const size = Math.abs(number);
  if (!Number.isFinite(number) || size === 0) return number;
  const step = 2 ** (Math.max(Math.floor(Math.log2(size)), -14) - 10);
  return Math.round(number / step) * step;
}

function toBfloat(number) {
  const size = Math.abs(number);
  if (!Number.isFinite(number) || size === 0) return number;
  const step = 2 ** (Math.max(Math.floor(Math.log2(size)), -126) - 7);
  return Math.round(number / step) * step;
}

// A payload's value: {text, number}. `type` is [kind, bits] of the page's table of payload types.
function payloadValue(type, low, high) {
  const [kind, bits] = type ?? ["uint", 64];
  if (kind === "none") return { text: "", number: NaN };
  if (kind === "bool") return { text: low ? "true" : "false", number: low ? 1 : 0 };
  if (kind === "float") {
    let number, round = Number;
    if (bits === 64) {
      bitView.setUint32(0, high);
      bitView.setUint32(4, low);
      number = bitView.getFloat64(0);
    } else if (bits === 32) {
      bitView.setUint32(0, low);
      number = bitView.getFloat32(0);
      round = Math.fround;
    } else if (kind === "float" && type[2] === "bfloat") {
      bitView.setUint32(0, (low << 16) >>> 0);
      number = bitView.getFloat32(0);
      round = toBfloat;
    } else {
      number = halfToNumber(low & 0xffff);
      round = toHalf;
    }
    const text = bits === 64 || !Number.isFinite(number) || number === 0
      ? (Object.is(number, -0) ? "-0" : String(number)) : shortest(number, round);
    return { text, number };
  }
  const whole = (BigInt(high) << 32n) | BigInt(low);
  const value = kind === "int" ? BigInt.asIntN(bits, whole) : BigInt.asUintN(bits, whole);
  return { text: String(value), number: Number(value) };
}
