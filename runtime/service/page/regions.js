// The regions of one image, their table, and their comparison with those of a second image.
import { $, attempt, bar, count, element, request, requestJson } from "./api.js";
import { clearBoxes, drawBoxes } from "./boxes.js";
import { drawSample, onFile, photo } from "./photo.js";
import { colourOf, describe, distribution, readRow, similarities } from "./rows.js";

const MARKED = 3, THRESHOLD = 0.2;
export const view = { first: null, second: null, chosen: -1, losses: null };

async function fetchRegions(blob) {
  const reply = await requestJson("/v1/regions", { method: "POST", body: blob,
    headers: { "content-type": blob.type || "image/jpeg", accept: "application/json" } });
  return readRow(reply.regions[0], reply.arrays);
}

export async function openPhoto() {
  const regions = await fetchRegions(photo.blob);
  showFirst(regions, photo.url, photo.name);
  return `${count(regions.row.boxes.length, "region")} of ${photo.name}.`;
}

async function openSecond(blob, name) {
  const regions = await fetchRegions(blob);
  showSecond(regions, URL.createObjectURL(blob), name);
  return `${count(regions.row.boxes.length, "region")} of ${name}.`;
}

// `losses`: the decrease of a score without each region.
export function showFirst(regions, url, name, losses = null) {
  Object.assign(view, { first: regions, second: null, chosen: -1, losses });
  $("second").hidden = true;
  $("result-title").textContent = losses ? "Regions that the score depends on" : "Regions";
  $("effect-head").hidden = !losses;
  $("compare-bar").hidden = Boolean(losses) || $("pager").hidden === false;
  $("download").hidden = Boolean(losses) || $("pager").hidden === false;
  chooseThreshold(regions);
  const size = `${regions.row.width} × ${regions.row.height} pixels`;
  showImage($("first"), regions, url, `${name}, ${size}`);
  clearSelection();
  draw();
}

export function showSecond(regions, url, name) {
  view.second = regions;
  showImage($("second"), regions, url, name);
  drawSecond();
}

// 0.2, unless an untrained or cautious detector has no region above it.
function chooseThreshold({ row }) {
  const isAny = !row.class_scores || row.class_scores.some((score) => score >= THRESHOLD);
  $("threshold").value = isAny ? THRESHOLD : 0;
  $("tools").classList.toggle("lowered", !isAny);
}

function showImage(figure, { row }, url, caption) {
  const image = figure.querySelector("img");
  clearBoxes(figure);
  image.src = url;
  image.alt = caption;
  // A tall image has to fit into the window.
  figure.style.maxWidth = `min(640px, ${(75 * row.width) / row.height}vh)`;
  figure.querySelector("figcaption").textContent = caption;
  figure.hidden = false;
  $("result").hidden = false;
}

const threshold = () => Number($("threshold").value);

function visible(regions, kept = new Set()) {
  const scores = regions.row.class_scores, all = regions.row.boxes.map((_, at) => at);
  if (!scores) return all;
  const list = all.filter((at) => scores[at] >= threshold() || kept.has(at));
  return list.sort((a, b) => scores[b] - scores[a]);
}

export function highest(values, list) { // the few highest above 0
  return new Set([...list].sort((a, b) => values[b] - values[a]).slice(0, MARKED)
    .filter((at) => values[at] > 0));
}

function draw() {
  const { first, losses } = view;
  if (!first) return;
  const marked = importantRegions();
  const list = visible(first, marked);
  if (losses) list.sort((a, b) => losses[b] - losses[a]);
  $("threshold-value").textContent = threshold().toFixed(2);
  $("shown").textContent = `${list.length} of ${count(first.row.boxes.length, "region")}`
    + ($("tools").classList.contains("lowered") ? `; none has a score of ${THRESHOLD}` : "");
  drawBoxes($("first"), { regions: first, list, marked,
    words: losses && ((at) => (marked.has(at) ? (-losses[at]).toFixed(2) : "")) }, select);
  drawLegend(list);
  $("rows").replaceChildren(...list.map(drawLine));
  emphasise(marked);
  if (view.second) drawSecond();
}

function emphasise(marked) { // the marked regions, and the selected one
  for (const shown of document.querySelectorAll("#first button, #rows tr")) {
    const at = Number(shown.dataset.at);
    shown.classList.toggle("on", at === view.chosen || (marked.has(at) && shown.matches("button")));
  }
}

const importantRegions = () => (view.losses ? highest(view.losses, view.losses.keys()) : new Set());

function drawLegend(list) {
  const numbers = new Map();
  for (const at of list) {
    const { name, classId } = describe(view.first, at);
    const entry = numbers.get(classId) || { name, number: 0 };
    numbers.set(classId, { name, number: entry.number + 1 });
  }
  $("legend").hidden = !view.first.row.class_ids;
  $("legend").replaceChildren(...[...numbers].map(([classId, { name, number }]) => {
    const item = element("li", { textContent: number > 1 ? `${name} × ${number}` : name });
    item.style.setProperty("--colour", colourOf(classId));
    return item;
  }));
}

function drawLine(at) {
  const { name, classId, score, attribute } = describe(view.first, at);
  const label = element("td", { className: "swatch", textContent: name });
  label.style.setProperty("--colour", colourOf(classId));
  const number = (value) => element("td", { className: "number",
    textContent: value === null ? "" : value.toFixed(3) });
  const cells = [element("td", { textContent: at }), label, number(score),
    element("td", { textContent: attribute })];
  if (view.losses) cells.push(number(-view.losses[at]));
  const line = element("tr", {}, ...cells);
  line.dataset.at = at;
  line.addEventListener("mouseenter", () => select(at));
  return line;
}

function drawSecond() {
  const { first, second, chosen } = view, list = visible(second);
  const values = chosen < 0 ? null : similarities(first, chosen, second);
  const marked = values ? highest(values, list) : new Set();
  drawBoxes($("second"), { regions: second, list, marked,
    words: values && ((at) => values[at].toFixed(2)) }, null);
  const names = [...marked].map((at) => `${describe(second, at).name} (${values[at].toFixed(2)})`);
  $("second").querySelector("figcaption").textContent = values
    ? `Most similar, by the cosine of the features: ${names.join(", ") || "none"}`
    : "Select a region of the first image to see similar ones here.";
}

function clearSelection() {
  $("region-name").textContent = "No region is selected";
  $("region-hint").hidden = false;
  $("distribution").replaceChildren();
}

function select(at) {
  view.chosen = at;
  const { name, score, attribute } = describe(view.first, at);
  emphasise(importantRegions());
  $("region-hint").hidden = true;
  $("region-name").textContent = `Region ${at}: ${name}`
    + `${score === null ? "" : `, ${score.toFixed(2)}`}${attribute && `; ${attribute}`}`;
  const listed = distribution(view.first, at);
  $("distribution").replaceChildren(...listed.flatMap((entry) => [
    element("dt", { textContent: entry.name }),
    element("dd", {}, bar(entry.value), entry.value.toFixed(3))]));
  if (!listed.length) {
    $("region-hint").textContent =
      "The table has no class distribution; --class-probs topk:10 keeps one.";
    $("region-hint").hidden = false;
  }
  if (view.second) drawSecond();
}

async function download() {
  const { blob } = photo;
  const reply = await request("/v1/regions", { method: "POST", body: blob,
    headers: { "content-type": blob.type || "image/jpeg",
      accept: "application/vnd.apache.parquet" } });
  const link = element("a", { href: URL.createObjectURL(await reply.blob()),
    download: "regions.parquet" });
  link.click();
  return "Saved regions.parquet.";
}

export function connectRegions() {
  onFile($("other"), (file, name) =>
    attempt("Reading the second image", () => openSecond(file, name)));
  $("other-sample").addEventListener("click", () => attempt("Reading the second sample",
    async () => openSecond(await drawSample(1), "the second sample")));
  $("threshold").addEventListener("input", () => {
    $("tools").classList.remove("lowered");
    draw();
  });
  $("download").addEventListener("click", () => attempt("Downloading", download));
  let timer = 0;
  window.addEventListener("resize", () => { clearTimeout(timer); timer = setTimeout(draw, 150); });
}
