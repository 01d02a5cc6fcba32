// The image that the user has chosen: by a file, drop, paste, the camera, or a drawn sample.
import { $, attempt, report } from "./api.js";

export const photo = { blob: null, name: "", url: "" };
let onChoice = () => {};

export function choose(blob, name) {
  clear();
  Object.assign(photo, { blob, name, url: URL.createObjectURL(blob) });
  $("preview").src = photo.url;
  $("chosen-name").textContent = name;
  $("chosen").hidden = false;
  onChoice();
}

function clear() {
  if (photo.url) URL.revokeObjectURL(photo.url);
  Object.assign(photo, { blob: null, name: "", url: "" });
  $("chosen").hidden = true;
}

export function requireImage() {
  if (!photo.blob) throw new Error("choose an image first");
  return photo.blob;
}

function chooseFile(file, name) {
  if (!file) return;
  if (file.type && !file.type.startsWith("image/")) {
    report(`${file.name || name} is not an image.`, "wrong");
  } else choose(file, file.name || name);
}

export function onFile(input, task) { // also when the same file is chosen again
  input.addEventListener("change", () => {
    const [file] = input.files;
    if (file) task(file, file.name);
    input.value = "";
  });
}

export function connectPhoto(changed, isOpen) { // isOpen: whether the page takes images now
  onChoice = changed;
  onFile($("file"), chooseFile);
  onFile($("capture"), chooseFile);
  $("sample").addEventListener("click", async () => choose(await drawSample(0), "the sample"));
  $("remove").addEventListener("click", () => { clear(); $("file").focus(); onChoice(); });
  $("camera").addEventListener("click", () => attempt("Opening the camera", openCamera));
  $("take").addEventListener("click", takePhoto);
  $("close-camera").addEventListener("click", () => $("camera-dialog").close());
  $("camera-dialog").addEventListener("close", stopCamera);
  // The whole document: outside a zone the browser would leave the page for the image.
  for (const kind of ["dragover", "dragleave", "drop"]) {
    document.addEventListener(kind, (event) => {
      event.preventDefault();
      $("choose").classList.toggle("over", kind === "dragover");
      if (kind === "drop" && isOpen()) chooseFile(event.dataTransfer.files[0], "the dropped image");
    });
  }
  document.addEventListener("paste", (event) => {
    const file = [...event.clipboardData.files].find((one) => one.type.startsWith("image/"));
    if (!file || !isOpen()) return;
    event.preventDefault();
    choose(file, "the pasted image");
  });
}

async function openCamera() {
  if (!navigator.mediaDevices) { // not over plain HTTP: a phone's own camera still works
    $("capture").click();
    return "Ready.";
  }
  const wanted = { video: { facingMode: "environment" } };
  const stream = await navigator.mediaDevices.getUserMedia(wanted);
  $("video").srcObject = stream;
  $("camera-dialog").showModal();
  return "The camera is on.";
}

function stopCamera() {
  const stream = $("video").srcObject;
  if (stream) stream.getTracks().forEach((track) => track.stop());
  $("video").srcObject = null;
}

function takePhoto() {
  const video = $("video"), canvas = document.createElement("canvas");
  if (!video.videoWidth) return; // no frame yet
  canvas.width = video.videoWidth;
  canvas.height = video.videoHeight;
  canvas.getContext("2d").drawImage(video, 0, 0);
  $("camera-dialog").close();
  canvas.toBlob((blob) => choose(blob, "the photo"), "image/jpeg", 0.95);
}

export function drawSample(seed) { // a drawn scene: no image has to come with the page
  const canvas = document.createElement("canvas");
  canvas.width = 320;
  canvas.height = 240;
  const pen = canvas.getContext("2d");
  const sky = pen.createLinearGradient(0, 0, 0, 240);
  sky.addColorStop(0, seed ? "#f4a261" : "#74c0fc");
  sky.addColorStop(1, "#fff3bf");
  const fill = (colour) => { pen.fillStyle = colour; };
  const circle = (x, y, radius) => {
    pen.beginPath(); pen.arc(x, y, radius, 0, 7); pen.fill();
  };
  fill(sky); pen.fillRect(0, 0, 320, 240);
  fill("#2b8a3e"); pen.fillRect(0, 170, 320, 70);
  const left = 60 + 90 * seed;
  fill("#c92a2a"); pen.fillRect(left, 100, 90, 80);
  fill("#5c3d2e");
  pen.beginPath();
  pen.moveTo(left - 10, 100); pen.lineTo(left + 45, 55); pen.lineTo(left + 100, 100);
  pen.fill();
  fill("#ffd43b"); circle(265 - 200 * seed, 50, 26);
  fill("#1864ab"); circle(230 - 150 * seed, 195, 20);
  return new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
}
