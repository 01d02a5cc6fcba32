// Pages through a table of regions.
import { $, attempt, count, element, requestJson } from "./api.js";
import { showFirst, showSecond, view } from "./regions.js";
import { readRow } from "./rows.js";

const PER_PAGE = 24;
let page = 0, isComparing = false;

const short = (id) => (id.length > 24 ? `${id.slice(0, 12)}…` : id);

export async function openPage(number) {
  const { total, rows } = await requestJson(`/v1/rows?page=${number}&per_page=${PER_PAGE}`);
  page = number;
  const last = Math.max(1, Math.ceil(total / PER_PAGE));
  $("page").max = last;
  $("page").value = page + 1;
  $("pages").textContent = `of ${last}, ${count(total, "image")}`;
  $("previous").disabled = page === 0;
  $("next").disabled = page + 1 >= last;
  $("images").replaceChildren(...rows.map((row) => element("li", {}, thumbnail(row))));
  return `Page ${page + 1} of ${last}.`;
}

function thumbnail(row) {
  const button = element("button", { type: "button", title: row.image_id });
  if (row.has_picture) {
    const src = `/v1/rows/${row.number}/picture`;
    button.append(element("img", { loading: "lazy", alt: "", src }));
  }
  const id = element("span", { textContent: short(row.image_id) });
  button.append(id, count(row.num_boxes, "region"));
  button.addEventListener("click", () => attempt("Opening", () => openRow(row, button)));
  return button;
}

async function openRow(row, button) {
  const reply = await requestJson(`/v1/rows/${row.number}`);
  const regions = readRow(reply.regions[0], reply.arrays), name = short(row.image_id);
  const url = row.has_picture ? `/v1/rows/${row.number}/picture` : blank(regions.row);
  if (isComparing && view.first !== null) {
    showSecond(regions, url, name);
    compare(false);
  } else {
    showFirst(regions, url, name);
    document.querySelectorAll("#images button").forEach((one) =>
      one.setAttribute("aria-current", one === button));
  }
  $("result").scrollIntoView({ block: "nearest" });
  return `${count(regions.row.boxes.length, "region")} of ${name}.`;
}

function compare(isOn) { // whether the next image of the table is the second one
  isComparing = isOn;
  $("compare").setAttribute("aria-pressed", isOn);
}

function blank(row) { // in place of an image that the table does not have
  return `data:image/svg+xml,${encodeURIComponent(
    `<svg xmlns="http://www.w3.org/2000/svg" width="${row.width}" height="${row.height}"/>`)}`;
}

export function startTable() {
  $("pager").hidden = false;
  $("compare").hidden = false;
  return openPage(0);
}

export function connectTable() {
  const turn = (number) => attempt("Opening the page", () => openPage(number));
  $("previous").addEventListener("click", () => turn(page - 1));
  $("next").addEventListener("click", () => turn(page + 1));
  $("page").addEventListener("change", () =>
    turn(Math.min(Math.max(1, $("page").value | 0), $("page").max) - 1));
  $("compare").addEventListener("click", () => attempt("Comparing", async () => {
    compare(!isComparing);
    if (isComparing) $("pager").scrollIntoView({ block: "nearest" });
    return isComparing ? "Choose the second image from the table." : "Ready.";
  }));
}
