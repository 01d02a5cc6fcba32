// Requests to the service, messages to the user, and elements of the page.

export const service = { about: null, token: "" };
const MOST_TRIES = 4, LONGEST_PAUSE = 10; // seconds
let current = new AbortController();

export const $ = (id) => document.getElementById(id);

// Text comes from images' captions and models: it becomes text nodes only, never markup.
export function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

// `state`: "" (shown), "busy", "wrong", or "spoken": for screen readers, where the page shows it.
export function report(text, state = "") {
  $("status").textContent = text;
  $("status").className = state;
}

const pause = (seconds, signal) => new Promise((resolve, reject) => {
  const timer = setTimeout(resolve, 1000 * seconds);
  signal.addEventListener("abort", () => { clearTimeout(timer); reject(signal.reason); });
});

// Sends a request. A busy service is asked again after the time that it states.
export async function request(path, options = {}) {
  const headers = { ...(options.headers || {}) };
  if (service.token) headers.authorization = `Bearer ${service.token}`;
  const { signal } = current;
  for (let tries = 1; ; tries++) {
    const response = await fetch(path, { ...options, headers, signal });
    if (response.ok) return response;
    if (response.status === 401) $("bearer").hidden = false;
    const seconds = Number(response.headers.get("retry-after"));
    const isBusy = response.status === 429 || response.status === 503;
    if (isBusy && seconds && seconds <= LONGEST_PAUSE && tries < MOST_TRIES) {
      report(`The service is busy. The page tries again in ${seconds} s.`, "busy");
      await pause(seconds, signal);
      continue;
    }
    let message = `status ${response.status}`;
    try { message = (await response.json()).error; } catch (_) { /* the status is the message */ }
    throw new Error(message);
  }
}

export async function requestJson(path, options) { return (await request(path, options)).json(); }

export function post(path, fields, image) {
  const body = new FormData();
  for (const [name, value] of Object.entries(fields)) { // a list: the field repeated
    for (const one of [value].flat()) body.append(name, one);
  }
  if (image) body.append("pictures", image, "image");
  return requestJson(path, { method: "POST", body });
}

// Runs a task, which returns its message, or { spoken } for one that the page shows anyway. A
// later task ends the requests of an earlier one, whose results are dropped.
export async function attempt(label, task) {
  current.abort();
  const own = current = new AbortController();
  report(`${label} …`, "busy");
  try {
    const message = await task();
    if (own === current) report(message.spoken || message, message.spoken ? "spoken" : "");
  } catch (error) {
    if (own === current) report(`${label} failed: ${error.message}`, "wrong");
  }
}

// Shows an image that needs the token, which an img element would not send.
export async function loadImage(image, path) {
  const blob = await (await request(path)).blob();
  image.onload = () => URL.revokeObjectURL(image.src);
  image.src = URL.createObjectURL(blob);
}

export function bar(share) { // share: 0 to 1
  const fill = element("span");
  fill.style.width = `${100 * Math.min(1, Math.max(0, share))}%`;
  const rail = element("span", { className: "rail" }, fill);
  rail.setAttribute("aria-hidden", "true"); // the number next to it says the same
  return rail;
}

export function count(number, one, many = `${one}s`) {
  return `${number} ${number === 1 ? one : many}`;
}
