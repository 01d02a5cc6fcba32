"use strict";
// The page of the services: it asks the paths of /v1 alone, and draws what they answer.
const $ = (id) => document.getElementById(id);
const state = { about: null, token: "", first: null, second: null, chosen: -1, page: 0,
  comparing: false };
const PER_PAGE = 24;

function say(text, isWrong = false) {
  $("status").textContent = text;
  $("status").classList.toggle("wrong", isWrong);
}

async function ask(path, options = {}) {
  const headers = { ...(options.headers || {}) };
  if (state.token) headers.authorization = `Bearer ${state.token}`;
  const reply = await fetch(path, { ...options, headers });
  if (reply.status === 401) $("bearer").hidden = false;
  if (!reply.ok) {
    let said = { error: `status ${reply.status}` };
    try { said = await reply.json(); } catch (_) { /* no JSON: the status says it */ }
    throw new Error(said.error);
  }
  return reply;
}

async function trying(what, task) {
  say(`${what} …`);
  try { await task(); } catch (error) { say(`${what}: ${error.message}`, true); }
}

// --- numbers of the rows ---------------------------------------------------------------------

function bytesOf(text) {
  const plain = atob(text);
  const bytes = new Uint8Array(plain.length);
  for (let i = 0; i < plain.length; i++) bytes[i] = plain.charCodeAt(i);
  return bytes;
}

function half(bits) {
  const sign = bits & 0x8000 ? -1 : 1, exponent = (bits >> 10) & 31, rest = bits & 1023;
  if (exponent === 0) return sign * rest * 2 ** -24;
  return sign * (1 + rest / 1024) * 2 ** (exponent - 15);
}

function numbers(text, dtype) {
  const bytes = bytesOf(text);
  if (dtype === "float32") return new Float32Array(bytes.buffer);
  const bits = new Uint16Array(bytes.buffer);
  if (dtype === "uint16") return bits;
  if (dtype === "float16") return Float32Array.from(bits, half);
  const wide = new Uint32Array(bits.length); // bfloat16: the upper half of a float32
  for (let i = 0; i < bits.length; i++) wide[i] = bits[i] << 16;
  return new Float32Array(wide.buffer);
}

function short(id) { return id.length > 24 ? `${id.slice(0, 12)}…` : id; }

function named(list, number, kind) {
  return number < 0 ? `no ${kind}` : (list && list[number]) || `${kind} ${number}`;
}

function readRow(row, arrays) {
  const read = (name) => (row[name] && arrays[name] ? numbers(row[name], arrays[name].dtype) : null);
  return { row, features: read("features"), probs: read("class_probs"),
    ids: read("class_prob_ids"), width: arrays.features ? arrays.features.dim : 0,
    classes: arrays.class_probs ? arrays.class_probs.dim : 0,
    first: arrays.class_probs && arrays.class_probs.background === "none" ? 0 : 1 };
}

function labels(regions, at) {
  const { row } = regions, about = state.about;
  const score = row.class_scores ? row.class_scores[at] : null;
  return { name: row.class_ids ? named(about.classes, row.class_ids[at], "class") : `region ${at}`,
    score, attribute: row.attribute_ids
      ? `${named(about.attributes, row.attribute_ids[at], "attribute")}`
        + ` (${row.attribute_scores[at].toFixed(2)})` : "" };
}

function distribution(regions, at) {
  const { probs, ids, classes, first } = regions; // first: the column of class 0
  if (!probs) return [];
  const own = probs.subarray(at * classes, (at + 1) * classes);
  const column = (k) => (ids ? ids[at * classes + k] : k);
  const order = [...own.keys()].sort((a, b) => own[b] - own[a]).slice(0, 10);
  return order.map((k) => ({ value: own[k],
    name: column(k) < first ? "background"
      : named(state.about.classes, column(k) - first, "class") }));
}

function alike(one, at, other) {
  const vector = (regions, n) =>
    regions.features.subarray(n * regions.width, (n + 1) * regions.width);
  const length = (v) => Math.sqrt(v.reduce((sum, x) => sum + x * x, 0)) || 1;
  const ours = vector(one, at);
  return other.row.boxes.map((_, n) => {
    const theirs = vector(other, n);
    let sum = 0;
    for (let i = 0; i < ours.length; i++) sum += ours[i] * theirs[i];
    return sum / length(ours) / length(theirs);
  });
}

// --- drawing -----------------------------------------------------------------------------------

function threshold() { return Number($("threshold").value); }

function visible(regions) {
  const scores = regions.row.class_scores;
  const all = regions.row.boxes.map((_, at) => at);
  const kept = scores ? all.filter((at) => scores[at] >= threshold()) : all;
  return scores ? kept.sort((a, b) => scores[b] - scores[a]) : kept;
}

function place(element, box, row) {
  element.style.left = `${(100 * box[0]) / row.width}%`;
  element.style.top = `${(100 * box[1]) / row.height}%`;
  element.style.width = `${(100 * (box[2] - box[0])) / row.width}%`;
  element.style.height = `${(100 * (box[3] - box[1])) / row.height}%`;
}

function area([left, top, right, bottom]) { return (right - left) * (bottom - top); }

function called(regions, at) { return `region ${at}: ${labels(regions, at).name}`; }

function drawBoxes(figure, shown, onPick) {
  const canvas = figure.querySelector(".canvas");
  canvas.querySelectorAll("button").forEach((button) => button.remove());
  const { boxes } = shown.regions.row;
  const bySize = [...shown.list].sort((a, b) => area(boxes[b]) - area(boxes[a]));
  for (const at of shown.list) {
    const { name, score, attribute } = labels(shown.regions, at);
    const button = document.createElement("button");
    button.type = "button";
    button.dataset.at = at;
    const extra = shown.extra ? `, ${shown.what || "alike"} ${shown.extra[at].toFixed(3)}` : "";
    button.setAttribute("aria-label",
      `${called(shown.regions, at)}${score === null ? "" : ` ${score.toFixed(2)}`}`
      + `${attribute && `, ${attribute}`}${extra}`);
    if (shown.hot && shown.hot.has(at)) {
      button.classList.add("on");
      const tag = document.createElement("span");
      tag.textContent = `${at} ${name}${shown.extra ? ` ${shown.extra[at].toFixed(2)}` : ""}`;
      button.append(tag);
    }
    place(button, boxes[at], shown.regions.row);
    // A small one is reached inside a large one; what is only shown has its marks on top.
    const isMarked = !onPick && shown.hot && shown.hot.has(at);
    button.style.zIndex = bySize.indexOf(at) + (isMarked ? bySize.length : 0);
    if (onPick) {
      button.addEventListener("mouseenter", () => onPick(at));
      button.addEventListener("focus", () => onPick(at));
      button.addEventListener("click", () => onPick(at));
    }
    canvas.append(button);
  }
}

function draw() {
  const regions = state.first;
  if (!regions) return;
  const list = visible(regions);
  $("threshold-value").textContent = threshold().toFixed(2);
  $("shown").textContent = `${list.length} of ${regions.row.boxes.length} regions`;
  drawBoxes($("first"), { regions, list }, pick);
  $("rows").replaceChildren(...list.map((at) => {
    const { name, score, attribute } = labels(regions, at);
    const line = document.createElement("tr");
    line.dataset.at = at;
    for (const text of [at, name, score === null ? "" : score.toFixed(3), attribute]) {
      const cell = document.createElement("td");
      cell.textContent = text;
      line.append(cell);
    }
    line.addEventListener("mouseenter", () => pick(at));
    return line;
  }));
  if (state.second) drawSecond();
}

function drawSecond() {
  const { first, second, chosen } = state;
  const list = visible(second);
  const extra = chosen < 0 ? null : alike(first, chosen, second);
  const hot = new Set(extra ? [...list].sort((a, b) => extra[b] - extra[a]).slice(0, 3) : []);
  drawBoxes($("second"), { regions: second, list, extra, hot }, null);
  $("second").querySelector("figcaption").textContent = extra
    ? `Most alike: ${[...hot].map((at) => `${called(second, at)} (${extra[at].toFixed(3)})`).join("; ")}`
    : "Choose a region of the first image.";
}

function pick(at) {
  state.chosen = at;
  const { name, score, attribute } = labels(state.first, at);
  for (const element of document.querySelectorAll("#first button, #rows tr")) {
    element.classList.toggle("on", Number(element.dataset.at) === at);
  }
  $("region-name").textContent =
    `Region ${at}: ${name}${score === null ? "" : `, score ${score.toFixed(3)}`}`
    + `${attribute && `; ${attribute}`}`;
  const listed = distribution(state.first, at);
  $("distribution").replaceChildren(...listed.flatMap(({ name: word, value }) => {
    const term = document.createElement("dt"), told = document.createElement("dd");
    const meter = document.createElement("meter");
    term.textContent = word;
    meter.value = value;
    meter.setAttribute("aria-label", word);
    told.append(meter, value.toFixed(3));
    return [term, told];
  }));
  if (!listed.length) {
    const none = document.createElement("dt");
    none.textContent = "No distribution is stored; --class-probs topk:10 keeps one.";
    $("distribution").append(none);
  }
  if (state.second) drawSecond();
}

function show(figure, regions, url, caption) {
  const image = figure.querySelector("img");
  figure.querySelectorAll("button").forEach((button) => button.remove()); // of the one before
  image.src = url;
  image.alt = caption;
  // A tall image has to fit into the window.
  if (regions) figure.style.maxWidth = `min(40rem, ${(75 * regions.row.width) / regions.row.height}vh)`;
  figure.querySelector("figcaption").textContent = caption;
  figure.hidden = false;
  $("result").hidden = false;
}

// --- images ------------------------------------------------------------------------------------

async function regionsOf(blob) {
  const reply = await ask("/v1/regions", { method: "POST", body: blob,
    headers: { "content-type": blob.type || "image/jpeg", accept: "application/json" } });
  const said = await reply.json();
  return readRow(said.regions[0], said.arrays);
}

async function open(blob, name) {
  const regions = await regionsOf(blob);
  Object.assign(state, { first: regions, second: null, chosen: -1, blob });
  $("second").hidden = true;
  show($("first"), regions, URL.createObjectURL(blob),
    `${name}, ${regions.row.width} × ${regions.row.height}`);
  draw();
  say(`${regions.row.boxes.length} regions of ${name}.`);
}

async function openSecond(blob, name) {
  state.second = await regionsOf(blob);
  show($("second"), state.second, URL.createObjectURL(blob), name);
  drawSecond();
  say(`${state.second.row.boxes.length} regions of ${name}.`);
}

function sample(seed) { // a drawn scene: no image of others has to come along
  const canvas = document.createElement("canvas");
  canvas.width = 320; canvas.height = 240;
  const pen = canvas.getContext("2d");
  const sky = pen.createLinearGradient(0, 0, 0, 240);
  sky.addColorStop(0, seed ? "#f4a261" : "#74c0fc"); sky.addColorStop(1, "#fff3bf");
  pen.fillStyle = sky; pen.fillRect(0, 0, 320, 240);
  pen.fillStyle = "#2b8a3e"; pen.fillRect(0, 170, 320, 70);
  pen.fillStyle = "#c92a2a"; pen.fillRect(60 + 90 * seed, 100, 90, 80);
  pen.fillStyle = "#5c3d2e"; pen.beginPath();
  pen.moveTo(50 + 90 * seed, 100); pen.lineTo(105 + 90 * seed, 55);
  pen.lineTo(160 + 90 * seed, 100); pen.fill();
  pen.fillStyle = "#ffd43b"; pen.beginPath(); pen.arc(265 - 200 * seed, 50, 26, 0, 7); pen.fill();
  pen.fillStyle = "#1864ab"; pen.beginPath(); pen.arc(230 - 150 * seed, 195, 20, 0, 7); pen.fill();
  return new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
}

async function download() {
  const reply = await ask("/v1/regions", { method: "POST", body: state.blob,
    headers: { "content-type": state.blob.type || "image/jpeg",
      accept: "application/vnd.apache.parquet" } });
  const link = document.createElement("a");
  link.href = URL.createObjectURL(await reply.blob());
  link.download = "regions.parquet";
  link.click();
  say("Saved regions.parquet.");
}

// --- a table's images --------------------------------------------------------------------------

async function turn(page) {
  const reply = await ask(`/v1/rows?page=${page}&per_page=${PER_PAGE}`);
  const said = await reply.json();
  state.page = page;
  const last = Math.max(1, Math.ceil(said.total / PER_PAGE));
  $("page").max = last;
  $("page").value = page + 1;
  $("pages").textContent = `of ${last}, ${said.total} images`;
  $("previous").disabled = page === 0;
  $("next").disabled = page + 1 >= last;
  $("images").replaceChildren(...said.rows.map((row) => {
    const item = document.createElement("li"), button = document.createElement("button");
    button.type = "button";
    if (row.has_picture) {
      const image = document.createElement("img");
      image.loading = "lazy"; image.alt = ""; image.src = `/v1/rows/${row.number}/picture`;
      button.append(image);
    }
    const id = document.createElement("span");
    id.textContent = short(row.image_id);
    button.title = row.image_id;
    button.append(id, `${row.num_boxes} regions`);
    button.addEventListener("click", () => trying("Opening", () => openRow(row, button)));
    item.append(button);
    return item;
  }));
  say(`Page ${page + 1} of ${last}.`);
}

async function openRow(row, button) {
  const said = await (await ask(`/v1/rows/${row.number}`)).json();
  const regions = readRow(said.regions[0], said.arrays);
  const url = row.has_picture ? `/v1/rows/${row.number}/picture` : blank(regions.row);
  const caption = `${short(row.image_id)}, ${regions.row.width} × ${regions.row.height}`;
  const isSecond = state.comparing && state.first !== null;
  if (isSecond) {
    state.second = regions;
    show($("second"), regions, url, caption);
    compare(false);
    drawSecond();
  } else {
    Object.assign(state, { first: regions, second: null, chosen: -1 });
    $("second").hidden = true;
    show($("first"), regions, url, caption);
    draw();
    document.querySelectorAll("#images button").forEach((one) =>
      one.setAttribute("aria-current", one === button));
  }
  $("result").scrollIntoView({ block: "nearest" });
  say(`${regions.row.boxes.length} regions of ${short(row.image_id)}.`);
}

function compare(isOn) { // whether the next image of the table is the second one
  state.comparing = isOn;
  $("compare").setAttribute("aria-pressed", isOn);
  if (isOn) {
    say("Choose the second image from the table.");
    $("pager").scrollIntoView({ block: "nearest" });
  }
}

function blank(row) {
  return `data:image/svg+xml,${encodeURIComponent(
    `<svg xmlns="http://www.w3.org/2000/svg" width="${row.width}" height="${row.height}"/>`)}`;
}

// --- a model's answers -------------------------------------------------------------------------

function words(extra) {
  const form = new FormData();
  for (const [name, value] of Object.entries(extra)) form.append(name, value);
  if (state.blob) form.append("pictures", state.blob, "picture");
  return form;
}

const TASKS = { score: ["Scoring", score], search: ["Searching", search],
  answer: ["Answering", answer], classify: ["Classifying", classify],
  entail: ["Checking", entail] };

function wish(name) { // what the last one said goes first: an error must not stand above it
  const [what, task] = TASKS[name];
  $("said").textContent = "";
  $("answers").replaceChildren();
  trying(what, task);
}

function require(isThere, what) { if (!isThere) throw new Error(what); }

async function score() {
  const text = $("text").value.trim();
  require(text && state.blob, "choose an image and type a text");
  const said = await (await ask("/v1/score",
    { method: "POST", body: words({ texts: text }) })).json();
  const value = said.scores[0][0];
  $("said").textContent = value === null ? "The image or the text cannot be read."
    : `Score: ${value.toFixed(4)}`;
  if (state.about.methods.includes("attend") && value !== null) await attend(text);
  say("Scored.");
}

async function attend(text) { // what the score loses without each region
  const said = await (await ask("/v1/attend", { method: "POST", body: words({ text }) })).json();
  const regions = readRow(said.regions[0], said.arrays), losses = said.losses;
  const list = losses.map((_, at) => at).sort((a, b) => losses[b] - losses[a]);
  const hot = new Set(list.slice(0, 3).filter((at) => losses[at] > 0));
  drawBoxes($("first"), { regions, list, extra: losses, hot, what: "the score loses" }, null);
  const told = [...hot].map((at) => `${called(regions, at)} (${losses[at].toFixed(3)})`).join("; ");
  $("first").querySelector("figcaption").textContent = hot.size
    ? `The score rests most on ${told}: so much it loses without ${hot.size > 1 ? "each" : "it"}.`
    : "The score rests on no single region: it loses nothing without any one of them.";
}

async function search() { // for the text, else for the image
  const text = $("text").value.trim();
  require(text || state.blob, "type a text, or choose an image");
  const form = new FormData();
  if (text) form.append("text", text);
  else form.append("pictures", state.blob, "picture");
  const said = await (await ask("/v1/search", { method: "POST", body: form })).json();
  $("answers").replaceChildren(...said.answers.map((row) => {
    const item = document.createElement("li");
    item.textContent = `${row.score.toFixed(4)} ${row.text || row.image_id || row.pair_id}`;
    if (state.about.has_pictures && row.image_id) showImage(row.image_id, item);
    return item;
  }));
  $("answers").classList.toggle("with-images", Boolean(state.about.has_pictures));
  const count = said.answers.length;
  $("said").textContent = `${count} ${count === 1 ? "answer" : "answers, the nearest first"}, for `
    + (text ? "the text" : "the image");
  say("Searched.");
}

async function showImage(id, item) { // by ask: an img of its own would not bear the token
  const image = document.createElement("img");
  image.alt = "";
  item.prepend(image);
  try {
    const reply = await ask(`/v1/picture?image_id=${encodeURIComponent(id)}`);
    image.onload = () => URL.revokeObjectURL(image.src);
    image.src = URL.createObjectURL(await reply.blob());
  } catch (error) { image.replaceWith(`(${error.message}) `); }
}

async function answer() {
  const question = $("text").value.trim();
  require(question && state.blob, "choose an image and type a question");
  const said = await (await ask("/v1/answer",
    { method: "POST", body: words({ question }) })).json();
  $("said").textContent = `Answer: ${said.answer}`;
  say("Answered.");
}

async function classify() { // the text may be missing
  require(state.blob, "choose an image");
  const text = $("text").value.trim();
  showClasses(await (await ask("/v1/classify",
    { method: "POST", body: words(text ? { text } : {}) })).json());
}

async function entail() {
  const statement = $("text").value.trim();
  require(statement && state.blob, "choose an image and type a statement");
  showClasses(await (await ask("/v1/entail",
    { method: "POST", body: words({ statement }) })).json());
}

function showClasses(said) { // the likeliest ten
  $("said").textContent = said.labels.length ? `Class: ${said.labels.join(", ")}` : "No class.";
  const list = Object.entries(said.probabilities).slice(0, 10);
  $("answers").replaceChildren(...list.map(([name, share]) => {
    const item = document.createElement("li");
    item.textContent = `${share.toFixed(3)} ${name}`;
    return item;
  }));
  $("answers").classList.remove("with-images");
  say("Classified.");
}

async function openImage(blob, name) {
  if (state.about.methods && !state.about.methods.includes("regions")) {
    state.blob = blob;
    $("result").hidden = false;
    $("compare-bar").hidden = true;
    for (const part of document.querySelectorAll("#result .bar, #result table, aside")) {
      part.hidden = true;
    }
    show($("first"), null, URL.createObjectURL(blob), name);
    say(`${name} is ready.`);
  } else await open(blob, name);
}

// --- beginning ---------------------------------------------------------------------------------

async function begin() {
  const about = await (await ask("/v1/about")).json();
  state.about = about;
  $("bearer").hidden = true;
  $("title").textContent = about.title || "vlmill";
  document.title = $("title").textContent;
  if (about.random) {
    $("notice").textContent = "Random weights: boxes and names mean nothing.";
    $("notice").hidden = false;
  }
  if (about.service === "table") {
    $("pager").hidden = false;
    $("compare").hidden = false;
    $("compare-bar").hidden = true;
    $("download").hidden = true;
    await turn(0);
    return;
  }
  $("choose").hidden = false;
  if (about.service === "model") {
    const names = Object.keys(TASKS).filter((name) => about.methods.includes(name));
    $("model").hidden = !names.length;
    for (const name of Object.keys(TASKS)) $(name).hidden = !names.includes(name);
    state.firstTask = names[0];
  }
  say("Ready.");
}

function connect() {
  const picked = (input, task) => input.addEventListener("change", () => {
    const [file] = input.files;
    if (file) trying("Looking", () => task(file, file.name));
  });
  picked($("file"), openImage);
  picked($("other"), openSecond);
  $("sample").addEventListener("click", () =>
    trying("Looking", async () => openImage(await sample(0), "the sample")));
  $("other-sample").addEventListener("click", () =>
    trying("Looking", async () => openSecond(await sample(1), "the second sample")));
  $("threshold").addEventListener("input", draw);
  $("download").addEventListener("click", () => trying("Downloading", download));
  $("previous").addEventListener("click", () => trying("Turning", () => turn(state.page - 1)));
  $("next").addEventListener("click", () => trying("Turning", () => turn(state.page + 1)));
  $("page").addEventListener("change", () =>
    trying("Turning", () => turn(Math.min(Math.max(1, $("page").value | 0), $("page").max) - 1)));
  $("compare").addEventListener("click", () => compare(!state.comparing));
  $("words").addEventListener("submit", (event) => {
    event.preventDefault();
    wish(state.firstTask); // the Enter key, too
  });
  for (const name of Object.keys(TASKS)) $(name).addEventListener("click", () => wish(name));
  $("bearer").addEventListener("submit", (event) => {
    event.preventDefault();
    state.token = $("token").value.trim();
    trying("Loading", begin);
  });
  // Anywhere: beside the zone a browser would leave the page for the image.
  for (const name of ["dragover", "dragleave", "drop"]) {
    document.addEventListener(name, (event) => {
      event.preventDefault();
      $("drop").classList.toggle("over", name === "dragover");
      const file = name === "drop" && event.dataTransfer.files[0];
      if (file && !$("choose").hidden) trying("Looking", () => openImage(file, file.name));
    });
  }
}

connect();
trying("Loading", begin);
