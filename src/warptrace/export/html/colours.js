// Colours of names and roles, for both themes, as canvas pixels (little-endian RGBA) and as CSS.

function oklch(lightness, chroma, hue) {
  const a = chroma * Math.cos(hue * Math.PI / 180), b = chroma * Math.sin(hue * Math.PI / 180);
  const l = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3;
  const linear = [
    4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
    -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
    -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s,
  ];
  return linear.map((v) => {
    const c = Math.min(1, Math.max(0, v));
    return Math.round(255 * (c <= 0.0031308 ? 12.92 * c : 1.055 * c ** (1 / 2.4) - 0.055));
  });
}

const pixel = ([r, g, b]) => ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
const css = ([r, g, b]) => `rgb(${r} ${g} ${b})`;

function mix(under, over, part) { // of two pixels
  const q = 1 - part;
  const r = (under & 255) * q + (over & 255) * part;
  const g = ((under >> 8) & 255) * q + ((over >> 8) & 255) * part;
  const b = ((under >> 16) & 255) * q + ((over >> 16) & 255) * part;
  return ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
}

// Hues that stay apart next to each other, for most colour vision too: neighbours differ in lightness as well.
const HUES = [255, 60, 150, 310, 20, 195, 100, 280, 345, 130, 225, 40];

function hueOf(index) {
  return HUES[index % HUES.length] + 11 * Math.floor(index / HUES.length);
}

// The colour of name `index`: names that wait are pale, so that work stands out.
function nameColour(index, waits, dark) {
  const light = dark ? [0.66, 0.76][index % 2] : [0.7, 0.62][index % 2];
  if (waits) return oklch(dark ? 0.44 : 0.87, 0.035, hueOf(index));
  return oklch(light, 0.125, hueOf(index));
}

// The colour of a name within a role: the role's hue, a shade for each of its names.
function roleColour(role, shade, waits, dark) {
  const hue = hueOf(role);
  if (waits) return oklch(dark ? 0.42 : 0.88, 0.04, hue);
  const shades = dark ? [0.68, 0.78, 0.6, 0.73] : [0.68, 0.58, 0.76, 0.63];
  return oklch(shades[shade % 4], 0.13, hue + 8 * (shade % 3) - 8);
}

// Black or white, whichever contrasts more.
function textOn(colour) {
  const [r, g, b] = colour.map((v) => (v <= 10 ? v / 3294.6 : ((v / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.179 ? "#000000" : "#ffffff";
}
