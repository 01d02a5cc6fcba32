// The tasks of a model: a tab for each that the checkpoint has, with one text field for all.
import { $, attempt, bar, element, post, service } from "./api.js";
import { photo, requireImage } from "./photo.js";
import { highest, showFirst } from "./regions.js";
import { describe, readRow } from "./rows.js";
import { describeScale, hideResults, searchAddress, searchImage, searchItems, searchText,
  startSearch } from "./search.js";

const MOST_CLASSES = 10;
const TASKS = {
  search: { tab: "Search", button: "Search", label: "Search for a text",
    hint: "Press Enter to search. An image that you choose is searched for immediately.",
    doing: "Searching", run: searchText },
  similar: { tab: "Similar", button: "Search",
    label: "Id of an item, or several with commas between",
    hint: "Of several items, the one at the end was seen last: what is near it comes first.",
    doing: "Searching", run: searchItems },
  score: { tab: "Match", button: "Score", label: "A text to compare with the image",
    hint: "The model scores how well the text and the image match.", doing: "Scoring", run: score },
  answer: { tab: "Ask", button: "Ask", label: "A question about the image", hint: "",
    doing: "Answering", run: answer },
  classify: { tab: "Classify", button: "Classify", label: "A text that belongs to the image",
    hint: "Leave the text empty if the classes describe the image alone.",
    doing: "Classifying", run: classify },
  entail: { tab: "Check", button: "Check", label: "A statement about the image",
    hint: "The model predicts whether the image supports the statement.",
    doing: "Checking", run: entail },
};
let task = "";

function requireText(text, what) {
  if (!text.trim()) throw new Error(`type ${what}`);
  return text.trim();
}

function showAnswer(title, words, scale = "") {
  $("said-title").textContent = title;
  $("answer").textContent = words;
  $("answer-scale").textContent = scale;
  $("classes").hidden = true;
  $("said").hidden = false;
}

async function score(entered) {
  const image = requireImage(), text = requireText(entered, "a text");
  const [[value]] = (await post("/v1/score", { texts: text }, image)).scores;
  if (value === null) throw new Error("the image or the text cannot be read");
  showAnswer("Score", value.toFixed(4), describeScale((service.about.scales || {}).score));
  if (service.about.methods.includes("attend")) await showEffects(image, text);
  return { spoken: `The score is ${value.toFixed(4)}.` };
}

async function showEffects(image, text) { // how the score changes without each region
  const { regions: [row], arrays, losses } = await post("/v1/attend", { text }, image);
  const regions = readRow(row, arrays), marked = [...highest(losses, losses.keys())];
  showFirst(regions, photo.url, photo.name, losses);
  const names = marked.map((at) => `${describe(regions, at).name} (${losses[at].toFixed(2)})`);
  $("answer-scale").textContent += names.length
    ? ` The score depends most on ${names.join(", ")}: it is that much lower without the region.`
    : " The score depends on no single region: it does not fall without any one of them.";
}

async function answer(entered) {
  const image = requireImage(), question = requireText(entered, "a question");
  const reply = await post("/v1/answer", { question }, image);
  showAnswer("Answer", reply.answer);
  return { spoken: `The answer is ${reply.answer}.` };
}

async function classify(entered) { // the text may be missing
  const image = requireImage(), text = entered.trim();
  return showClasses(await post("/v1/classify", text ? { text } : {}, image));
}

async function entail(entered) {
  const image = requireImage(), statement = requireText(entered, "a statement");
  return showClasses(await post("/v1/entail", { statement }, image));
}

function showClasses({ labels, probabilities }) {
  const words = labels.join(", ") || "no class";
  const listed = Object.entries(probabilities);
  const rest = listed.length > MOST_CLASSES
    ? ` The likeliest ${MOST_CLASSES} of ${listed.length} are shown.` : "";
  showAnswer("Class", words, `Probabilities are from 0 to 1.${rest}`);
  $("classes").tBodies[0].replaceChildren(...listed.slice(0, MOST_CLASSES).map(([name, share]) =>
    element("tr", {}, element("td", { textContent: name }),
      element("td", { className: "number", textContent: share.toFixed(3) }),
      element("td", {}, bar(share)))));
  $("classes").hidden = false;
  return { spoken: `The class is ${words}.` };
}

// --- tabs ----------------------------------------------------------------------------------------

function hideAnswers() { // an error must not stand next to an earlier answer
  hideResults();
  $("said").hidden = true;
  $("result").hidden = true;
}

function selectTask(name) {
  task = name;
  hideAnswers();
  const { button, label, hint } = TASKS[name];
  for (const tab of $("tabs").children) {
    const isOn = tab.dataset.task === name;
    tab.setAttribute("aria-selected", isOn);
    tab.tabIndex = isOn ? 0 : -1;
    if (isOn) $("panel").setAttribute("aria-labelledby", tab.id);
  }
  $("text-label").textContent = label;
  $("hint").textContent = hint;
  $("go").textContent = button;
  $("by-image").hidden = name !== "search";
  $("choose").hidden = name === "similar";
  $("filter-bar").hidden = name !== "search" && name !== "similar";
}

function runTask() {
  hideAnswers();
  const { doing, run } = TASKS[task];
  return attempt(doing, () => run($("text").value));
}

function moveTab(event) {
  const tabs = [...$("tabs").children], at = tabs.indexOf(document.activeElement);
  const next = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: tabs.length - 1 }[event.key];
  if (at < 0 || next === undefined) return;
  event.preventDefault();
  const tab = tabs[(next + tabs.length) % tabs.length];
  tab.focus();
  selectTask(tab.dataset.task);
}

export function startTasks() {
  const names = Object.keys(TASKS).filter((name) => service.about.methods.includes(name));
  if (!names.length) return;
  $("tabs").hidden = names.length === 1;
  $("tabs").replaceChildren(...names.map((name) => {
    const tab = element("button",
      { type: "button", id: `tab-${name}`, textContent: TASKS[name].tab });
    tab.dataset.task = name;
    tab.setAttribute("role", "tab");
    tab.setAttribute("aria-controls", "panel");
    tab.addEventListener("click", () => selectTask(name));
    return tab;
  }));
  $("model").hidden = false;
  startSearch();
  selectTask(names[0]);
  $("text").focus();
}

export function photoChanged() { // returns whether it searches for the image
  const isSearched = task === "search" && photo.blob !== null;
  if (isSearched) byImage();
  return isSearched;
}

function byImage() {
  hideAnswers();
  attempt("Searching", searchImage);
}

export async function openAddress() { // a search that the address names
  const { text, items } = searchAddress(), { methods } = service.about;
  const name = items.length ? "similar" : "search";
  if (!(text || items.length) || !methods || !methods.includes(name)) {
    hideAnswers(); // of a search that the Back button has left
    return "";
  }
  selectTask(name);
  $("text").value = text || items.join(", ");
  return TASKS[name].run($("text").value);
}

export function connectTasks() {
  $("query").addEventListener("submit", (event) => { event.preventDefault(); runTask(); });
  $("tabs").addEventListener("keydown", moveTab);
  $("by-image").addEventListener("click", byImage);
  window.addEventListener("popstate", () => attempt("Searching", openAddress));
}
