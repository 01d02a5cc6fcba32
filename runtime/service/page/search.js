// Searches the index for a text, for the chosen image, or for what is similar to items.
import { $, attempt, bar, count, element, loadImage, post, service } from "./api.js";
import { photo } from "./photo.js";

const FIRST = 24, MOST = 1000;
const SCALES = {
  cosine: "Scores are cosines: 1 for the same direction, 0 for unrelated ones."
    + " Bars run from 0 to 1.",
  logit: "Scores are logits of the matching head: the higher, the better the match."
    + " They have no fixed range.",
};
let query = null; // { label, send(top), hash }

export function describeScale(name) { return SCALES[name] || ""; }

export function searchText(text) {
  const words = text.trim();
  if (!words) throw new Error("type a text, or choose an image");
  return run({ label: `“${words}”`, hash: `#q=${encodeURIComponent(words)}`,
    send: (top) => post("/v1/search", { text: words, top, where: filter() }) });
}

export function searchImage() {
  const { blob, name } = photo;
  $("text").value = ""; // the results are not those of an earlier text
  return run({ label: name, hash: "",
    send: (top) => post("/v1/search", { top, where: filter() }, blob) });
}

export function searchItems(text) { // ids separated by commas
  const items = text.split(",").map((id) => id.trim()).filter(Boolean);
  if (!items.length) throw new Error("type the id of an item");
  return runSimilar(items, `items similar to ${items.join(", ")}`);
}

function runSimilar(items, label) {
  const hash = `#${items.map((id) => `like=${encodeURIComponent(id)}`).join("&")}`;
  return run({ label, hash,
    send: (top) => post("/v1/similar", { items, top, where: filter() }) });
}

function filter() { // of one column, as the service reads it
  const value = $("value").value.trim();
  return $("filter").hidden || !value ? [] : [`${$("column").value}=${value}`];
}

async function run(asked, top = FIRST) {
  const { answers, missing = [] } = await asked.send(top);
  query = { ...asked, top };
  const hasImages = Boolean(service.about.has_pictures) && answers.some((row) => row.image_id);
  $("answers").classList.toggle("with-images", hasImages);
  $("answers").replaceChildren(...answers.map((row) => card(row, hasImages)));
  const scales = service.about.scales || {};
  $("scale").textContent = describeScale(scales.search)
    + (missing.length ? ` Not in the index: ${missing.join(", ")}.` : "");
  $("found-title").textContent = `${count(answers.length, "result")} for ${asked.label}`;
  $("found").hidden = false;
  $("more").hidden = answers.length < top || top >= MOST;
  if (location.hash !== asked.hash) history.pushState(null, "", asked.hash || location.pathname);
  return { spoken: `${count(answers.length, "result")} for ${asked.label}, the nearest first.` };
}

function card(row, hasImages) {
  const caption = row.text || row.caption || "", id = row.image_id || row.pair_id || "";
  const scores = element("div", { className: "score" },
    element("span", { textContent: row.score.toFixed(3) }));
  if ((service.about.scales || {}).search === "cosine") scores.append(bar(row.score));
  const parts = [scores];
  if (caption) parts.unshift(element("p", { textContent: caption }));
  parts.push(element("span", { className: "name", textContent: id }));
  if (service.about.methods.includes("similar")) parts.push(moreButton(row.item_id || id, caption));
  if (hasImages) parts.unshift(picture(row, caption ? "" : id));
  return element("li", { className: "card" }, ...parts);
}

function moreButton(id, caption) {
  const button = element("button", { type: "button", textContent: "More like this" });
  button.setAttribute("aria-label", `More like ${caption || id}`);
  button.addEventListener("click", async () => {
    $("text").value = "";
    await attempt("Searching", () => runSimilar([id], `items similar to ${caption || id}`));
    $("found-title").focus({ preventScroll: true });
    $("found").scrollIntoView({ block: "start" });
  });
  return button;
}

function picture(row, description) {
  const image = element("img", { alt: description });
  const none = () => element("div", { className: "without", textContent: "no image" });
  if (!row.image_id) return none();
  loadImage(image, `/v1/picture?image_id=${encodeURIComponent(row.image_id)}`)
    .catch((error) => { if (error.name !== "AbortError") image.replaceWith(none()); });
  return image;
}

export function hideResults() { $("found").hidden = true; }

// The address keeps the search, so that it can be sent to others and the Back button works.
export function searchAddress() {
  const parameters = new URLSearchParams(location.hash.slice(1));
  return { text: parameters.get("q") || "", items: parameters.getAll("like") };
}

export function startSearch() {
  const { columns = [] } = service.about.index || {};
  $("filter").hidden = !columns.length;
  $("column").replaceChildren(...columns.map((name) => element("option", { textContent: name })));
}

export function connectSearch() {
  $("more").addEventListener("click", () => attempt("Searching",
    () => run(query, Math.min(MOST, 2 * query.top))));
}
