"use strict";
// Reads values under the pointer back from the curves; without it the page shows everything but that.
const theme = location.hash.match(/theme=(light|dark)/);
if (theme) document.documentElement.dataset.theme = theme[1];

const digits = (value) => value >= 99.95 ? value.toFixed(0) : value >= 9.995 ? value.toFixed(1) : value.toFixed(2);
const clock = (seconds) => seconds < 120 ? seconds.toFixed(1) + " s"
  : Math.floor(seconds / 3600) + ":" + String(Math.floor(seconds / 60) % 60).padStart(2, "0") + ":" + String(Math.floor(seconds) % 60).padStart(2, "0");

// The place among points[from..to], ascending in x, that is nearest to x.
function nearest(points, from, to, x) {
  while (to - from > 1) {
    const middle = (from + to) >> 1;
    if (points.getItem(middle).x <= x) from = middle; else to = middle;
  }
  return from;
}
function valueAt(curve, x) {
  if (curve.classList.contains("area")) {
    const points = curve.querySelector("polygon").points, at = nearest(points, 0, points.numberOfItems / 2, x);
    return (points.getItem(points.numberOfItems - 1 - at).y - points.getItem(at).y) / 1000;
  }
  for (const line of curve.querySelectorAll("polyline")) {
    const points = line.points, last = points.numberOfItems - 1;
    if (points.getItem(0).x - 20 <= x && x <= points.getItem(last).x + 20) {
      return 1 - points.getItem(nearest(points, 0, last + 1, x)).y / 1000;
    }
  }
  return null;
}
function readable(svg) {
  const figure = svg.closest("figure"), box = document.createElement("div");
  const pointer = document.createElementNS(svg.namespaceURI, "line");
  box.className = "readout";
  pointer.setAttribute("class", "pointer");
  pointer.setAttribute("y2", "100%");
  const leave = () => { box.remove(); pointer.remove(); };
  svg.parentNode.addEventListener("pointerleave", leave);
  svg.parentNode.addEventListener("pointermove", (event) => {
    const area = svg.getBoundingClientRect(), part = (event.clientX - area.left) / area.width;
    if (part < 0 || part > 1) return leave();
    const lines = [document.createElement("b")];
    lines[0].textContent = clock(part * Number(svg.dataset.end));
    for (const curve of svg.querySelectorAll("[data-label]")) {
      const value = valueAt(curve, part * 2000);
      if (value === null) continue;
      const line = document.createElement("div"), swatch = document.createElement("i");
      swatch.className = curve.classList[0];
      line.append(swatch, curve.dataset.label + " " + digits(value * Number(svg.dataset.top)) + " " + svg.dataset.unit);
      lines.push(line);
    }
    box.replaceChildren(...lines);
    for (const end of ["x1", "x2"]) pointer.setAttribute(end, part * 100 + "%");
    if (!box.isConnected) { figure.append(box); svg.append(pointer); }
    const frame = figure.getBoundingClientRect(), x = event.clientX - frame.left;
    box.style.top = area.top - frame.top + 4 + "px";
    box.style.left = (x + box.offsetWidth + 16 < frame.width ? x + 12 : x - box.offsetWidth - 12) + "px";
  });
}
document.addEventListener("DOMContentLoaded", () => {
  for (const svg of document.querySelectorAll(".plot > svg")) {
    // The title becomes the label, so that it does not pop up over every reading.
    const title = svg.querySelector(":scope > title");
    svg.setAttribute("aria-label", title.textContent);
    title.remove();
    if (svg.dataset.unit !== undefined) readable(svg);
  }
  for (const command of navigator.clipboard ? document.querySelectorAll("pre.command") : []) {
    const button = document.createElement("button");
    button.textContent = "Copy";
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(command.textContent);
      button.textContent = "Copied";
    });
    command.after(button);
  }
});
// What is folded away on the screen is on paper.
let closed = [];
addEventListener("beforeprint", () => {
  closed = [...document.querySelectorAll("details:not([open])")];
  for (const details of closed) details.open = true;
});
addEventListener("afterprint", () => { for (const details of closed) details.open = false; });
