// Asks the service what it offers, and shows that.
import { $, attempt, report, requestJson, service } from "./api.js";
import { connectPhoto, photo } from "./photo.js";
import { connectRegions, openPhoto } from "./regions.js";
import { connectSearch } from "./search.js";
import { connectTable, startTable } from "./table.js";
import { connectTasks, openAddress, photoChanged, startTasks } from "./tasks.js";

async function begin() {
  const about = service.about = await requestJson("/v1/about");
  $("bearer").hidden = true;
  $("title").textContent = document.title = about.title || "vlmill";
  $("subtitle").textContent = about.subtitle || "";
  if (about.random) {
    $("notice").textContent = "The detector has random weights: its boxes and names mean nothing.";
    $("notice").hidden = false;
  }
  if (about.service === "table") return startTable();
  $("choose").hidden = about.service === "model";
  if (about.service !== "model") return "Ready.";
  startTasks();
  return await openAddress() || "Ready.";
}

function choiceChanged() {
  if (service.about.service === "model") {
    if (!photoChanged()) report(photo.blob ? `${photo.name} is ready.` : "Ready.");
  } else if (photo.blob) attempt(`Reading ${photo.name}`, openPhoto);
  else { $("result").hidden = true; report("Ready."); }
}

connectPhoto(choiceChanged, () => !$("choose").hidden);
connectRegions();
connectSearch();
connectTable();
connectTasks();
$("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  service.token = $("token").value.trim();
  attempt("Loading", begin);
});
attempt("Loading", begin);
