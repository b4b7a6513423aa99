// A zlib stream to bytes: for browsers without DecompressionStream (RFC 1950 and 1951). `size` is the inflated length.
function inflate(input, size) {
  const out = new Uint8Array(size);
  let at = 2, buffer = 0, held = 0, end = 0;

  const bits = (count) => {
    while (held < count) {
      if (at >= input.length) throw new Error("the page is damaged: its data end early");
      buffer |= input[at++] << held;
      held += 8;
    }
    const value = buffer & ((1 << count) - 1);
    buffer >>>= count;
    held -= count;
    return value;
  };

  // A canonical Huffman code: how many codes of each length, and the symbols in order of their codes.
  const code = (lengths) => {
    const count = new Uint16Array(16), first = new Uint16Array(16), symbols = new Uint16Array(lengths.length);
    for (const length of lengths) count[length]++;
    count[0] = 0;
    for (let i = 1; i < 16; i++) first[i] = first[i - 1] + count[i - 1];
    lengths.forEach((length, symbol) => { if (length) symbols[first[length]++] = symbol; });
    return { count, symbols };
  };

  const symbol = ({ count, symbols }) => {
    let value = 0, first = 0, index = 0;
    for (let length = 1; length < 16; length++) {
      value |= bits(1);
      const codes = count[length];
      if (value - first < codes) return symbols[index + value - first];
      index += codes;
      first = (first + codes) << 1;
      value <<= 1;
    }
    throw new Error("the page is damaged: its data hold an unknown code");
  };

  const lengthBase = [3, 4, 5, 6, 7, 8, 9, 10, 11, 13, 15, 17, 19, 23, 27, 31, 35, 43, 51, 59, 67, 83, 99, 115, 131, 163,
    195, 227, 258];
  const lengthBits = [0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 0];
  const farBase = [1, 2, 3, 4, 5, 7, 9, 13, 17, 25, 33, 49, 65, 97, 129, 193, 257, 385, 513, 769, 1025, 1537, 2049, 3073,
    4097, 6145, 8193, 12289, 16385, 24577];
  const farBits = [0, 0, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7, 8, 8, 9, 9, 10, 10, 11, 11, 12, 12, 13, 13];
  const order = [16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15];

  const fixed = () => {
    const lengths = new Array(288);
    lengths.fill(8, 0, 144).fill(9, 144, 256).fill(7, 256, 280).fill(8, 280);
    return [code(lengths), code(new Array(30).fill(5))];
  };

  const dynamic = () => {
    const literals = bits(5) + 257, distances = bits(5) + 1, given = bits(4) + 4;
    const short = new Array(19).fill(0);
    for (let i = 0; i < given; i++) short[order[i]] = bits(3);
    const meta = code(short), lengths = [];
    while (lengths.length < literals + distances) {
      const next = symbol(meta);
      if (next < 16) lengths.push(next);
      else {
        const value = next === 16 ? lengths[lengths.length - 1] : 0;
        const times = next === 16 ? 3 + bits(2) : next === 17 ? 3 + bits(3) : 11 + bits(7);
        for (let i = 0; i < times; i++) lengths.push(value);
      }
    }
    return [code(lengths.slice(0, literals)), code(lengths.slice(literals))];
  };

  const block = (literal, distance) => {
    for (let next = symbol(literal); next !== 256; next = symbol(literal)) {
      if (next < 256) {
        out[end++] = next;
        continue;
      }
      const length = lengthBase[next - 257] + bits(lengthBits[next - 257]);
      const far = symbol(distance);
      let from = end - farBase[far] - bits(farBits[far]);
      for (let i = 0; i < length; i++) out[end++] = out[from++];
    }
  };

  for (let last = 0; !last;) {
    last = bits(1);
    const kind = bits(2);
    if (kind === 0) {
      buffer = held = 0;
      const length = input[at] | (input[at + 1] << 8);
      at += 4;
      out.set(input.subarray(at, at + length), end);
      at += length;
      end += length;
    } else block(...(kind === 1 ? fixed() : dynamic()));
  }
  return out;
}
