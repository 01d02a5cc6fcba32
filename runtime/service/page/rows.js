// Decodes rows of the regions table: arrays are base64 of the types that the response names.
import { service } from "./api.js";

function half(bits) {
  const sign = bits & 0x8000 ? -1 : 1, exponent = (bits >> 10) & 31, fraction = bits & 1023;
  if (exponent === 0) return sign * fraction * 2 ** -24;
  return sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
}

function decode(text, dtype) {
  const plain = atob(text), bytes = new Uint8Array(plain.length);
  for (let i = 0; i < plain.length; i++) bytes[i] = plain.charCodeAt(i);
  if (dtype === "float32") return new Float32Array(bytes.buffer);
  const words = new Uint16Array(bytes.buffer);
  if (dtype === "uint16") return words;
  if (dtype === "float16") return Float32Array.from(words, half);
  const wide = new Uint32Array(words.length); // bfloat16: the upper half of a float32
  for (let i = 0; i < words.length; i++) wide[i] = words[i] << 16;
  return new Float32Array(wide.buffer);
}

export function readRow(row, arrays) {
  const read = (name) => (row[name] && arrays[name] ? decode(row[name], arrays[name].dtype) : null);
  return { row, features: read("features"), probs: read("class_probs"),
    ids: read("class_prob_ids"), width: arrays.features ? arrays.features.dim : 0,
    columns: arrays.class_probs ? arrays.class_probs.dim : 0,
    firstClass: arrays.class_probs && arrays.class_probs.background === "none" ? 0 : 1 };
}

function nameOf(names, number, kind) {
  return number < 0 ? `no ${kind}` : (names && names[number]) || `${kind} ${number}`;
}

export function describe(regions, at) {
  const { row } = regions, { classes, attributes } = service.about;
  return {
    classId: row.class_ids ? row.class_ids[at] : -1,
    name: row.class_ids ? nameOf(classes, row.class_ids[at], "class") : `region ${at}`,
    score: row.class_scores ? row.class_scores[at] : null,
    attribute: row.attribute_ids && row.attribute_ids[at] >= 0
      ? `${nameOf(attributes, row.attribute_ids[at], "attribute")}`
        + ` (${row.attribute_scores[at].toFixed(2)})` : "",
  };
}

export function distribution(regions, at) { // the ten likeliest classes
  const { probs, ids, columns, firstClass } = regions;
  if (!probs) return [];
  const own = probs.subarray(at * columns, (at + 1) * columns);
  const column = (k) => (ids ? ids[at * columns + k] : k);
  const order = [...own.keys()].sort((a, b) => own[b] - own[a]).slice(0, 10);
  return order.map((k) => ({ value: own[k],
    name: column(k) < firstClass ? "background"
      : nameOf(service.about.classes, column(k) - firstClass, "class") }));
}

export function similarities(one, at, other) { // cosines of the features
  const vector = (regions, n) =>
    regions.features.subarray(n * regions.width, (n + 1) * regions.width);
  const length = (v) => Math.sqrt(v.reduce((sum, x) => sum + x * x, 0)) || 1;
  const query = vector(one, at);
  return other.row.boxes.map((_, n) => {
    const candidate = vector(other, n);
    let sum = 0;
    for (let i = 0; i < query.length; i++) sum += query[i] * candidate[i];
    return sum / length(query) / length(candidate);
  });
}

// --- colours: each class keeps its own while the page is open ------------------------------------

const colours = new Map();

function luminance(hue, lightness) { // of hsl(hue, 65 %, lightness), relative, from 0 to 1
  const a = 0.65 * Math.min(lightness, 1 - lightness);
  const channel = (n) => {
    const k = (n + hue / 30) % 12;
    const value = lightness - a * Math.max(-1, Math.min(k - 3, 9 - k, 1));
    return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  };
  return 0.2126 * channel(0) + 0.7152 * channel(8) + 0.0722 * channel(4);
}

export function colourOf(classId) { // white text on it has a contrast of at least 4.7
  if (!colours.has(classId)) {
    const hue = (212 + 137.508 * colours.size) % 360;
    let lightness = 0.5;
    while (1.05 / (luminance(hue, lightness) + 0.05) < 4.7) lightness -= 0.01;
    colours.set(classId, `hsl(${hue.toFixed(0)} 65% ${(100 * lightness).toFixed(0)}%)`);
  }
  return colours.get(classId);
}
