// Draws the regions of an image as boxes: buttons in the colour of their class, with its name.
import { element } from "./api.js";
import { colourOf, describe } from "./rows.js";

const LABEL_HEIGHT = 18, LABEL_CHARACTER = 6.6; // pixels, about
const CORNERS = ["", "right", "low", "low right"];

const area = ([left, top, right, bottom]) => (right - left) * (bottom - top);

export function spoken(regions, at) {
  const { name, score, attribute } = describe(regions, at);
  return `region ${at}: ${name}${score === null ? "" : ` ${score.toFixed(2)}`}`
    + `${attribute && `, ${attribute}`}`;
}

function position(button, box, row) {
  button.style.left = `${(100 * box[0]) / row.width}%`;
  button.style.top = `${(100 * box[1]) / row.height}%`;
  button.style.width = `${(100 * (box[2] - box[0])) / row.width}%`;
  button.style.height = `${(100 * (box[3] - box[1])) / row.height}%`;
}

// Draws the regions of `view.list`, the most important first. `view.marked` are emphasised,
// `view.words` gives more text for a label, and `onSelect` is called with the region that is
// pointed at or reached.
export function drawBoxes(figure, view, onSelect) {
  const canvas = figure.querySelector(".canvas");
  clearBoxes(figure);
  const { row } = view.regions, marked = view.marked || new Set();
  const bySize = [...view.list].sort((a, b) => area(row.boxes[b]) - area(row.boxes[a]));
  const buttons = view.list.map((at, order) => {
    const { name, classId } = describe(view.regions, at);
    const words = view.words ? view.words(at) : "";
    const button = element("button", { type: "button", tabIndex: order === 0 ? 0 : -1 },
      element("span", { textContent: `${name}${words && ` ${words}`}` }));
    button.dataset.at = at;
    button.setAttribute("aria-label", `${spoken(view.regions, at)}${words && `, ${words}`}`);
    button.classList.toggle("on", marked.has(at));
    button.style.setProperty("--colour", colourOf(classId));
    button.style.zIndex = bySize.indexOf(at) + (marked.has(at) ? bySize.length : 0);
    position(button, row.boxes[at], row);
    if (onSelect) for (const kind of ["mouseenter", "focus", "click"]) {
      button.addEventListener(kind, () => onSelect(at));
    }
    return button;
  });
  canvas.classList.toggle("quiet", marked.size > 0);
  canvas.onkeydown = (event) => moveFocus(event, buttons);
  canvas.append(...buttons);
  placeLabels(canvas, buttons, row);
}

export function clearBoxes(figure) {
  figure.querySelectorAll(".canvas button").forEach((button) => button.remove());
}

// One Tab stop for all boxes; the arrow keys move between them, in the order of the table.
function moveFocus(event, buttons) {
  const at = buttons.indexOf(document.activeElement);
  const next = { ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1,
    Home: 0, End: buttons.length - 1 }[event.key];
  if (at < 0 || next === undefined) return;
  event.preventDefault();
  const target = buttons[(next + buttons.length) % buttons.length];
  buttons.forEach((button) => { button.tabIndex = button === target ? 0 : -1; });
  target.focus();
}

// Moves a label to a free corner of its box; without one it appears when its box is pointed at.
function placeLabels(canvas, buttons, row) {
  const scale = (canvas.clientWidth || row.width) / row.width, taken = [];
  const fits = (place) => place[0] >= -2 && place[1] >= -2 && place[2] <= scale * row.width + 2
    && place[3] <= scale * row.height + 2
    && !taken.some((other) => overlap(place, other));
  for (const button of buttons) {
    const label = button.firstChild;
    const [left, top, right, bottom] = row.boxes[button.dataset.at].map((x) => x * scale);
    const width = 12 + LABEL_CHARACTER * label.textContent.length;
    const free = CORNERS.find((corner) => {
      const x = corner.includes("right") ? right - width : left;
      const y = corner.includes("low") ? bottom - LABEL_HEIGHT : top;
      const place = [x, y, x + width, y + LABEL_HEIGHT];
      if (!fits(place)) return false;
      taken.push(place);
      return true;
    });
    const isAtEdge = left + width > scale * row.width;
    label.className = free ?? (isAtEdge ? "crowded right" : "crowded");
  }
}

function overlap(one, other) {
  return one[0] < other[2] && other[0] < one[2] && one[1] < other[3] && other[1] < one[3];
}
