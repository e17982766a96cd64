// Vectors as pictures: a strip a vector, and the cosines of several as a table.

import { figure, h } from "./dom.js";

/** One column a number: one hue for those below zero, one for those above. */
export function strip(vector) {
  const canvas = h("canvas", { class: "strip", width: vector.length, height: 1, role: "img", "aria-label": `${vector.length} numbers` });
  const context = canvas.getContext("2d");
  const style = getComputedStyle(document.documentElement);
  const [adds, takes] = [style.getPropertyValue("--adds"), style.getPropertyValue("--takes")];
  const most = Math.max(...vector.map(Math.abs)) || 1;
  vector.forEach((number, place) => {
    context.globalAlpha = Math.abs(number) / most;
    context.fillStyle = number < 0 ? takes : adds;
    context.fillRect(place, 0, 1, 1);
  });
  return canvas;
}

/** The cosine of each with each. */
export function cosines(texts, vectors) {
  const length = (vector) => Math.hypot(...vector) || 1;
  const cosine = (one, other) => one.reduce((sum, number, place) => sum + number * other[place], 0) / length(one) / length(other);
  const short = (text) => (text.length > 24 ? `${text.slice(0, 23)}…` : text);
  const head = h("tr", {}, h("td"), texts.map((text, place) => h("th", { scope: "col", title: text }, String(place + 1))));
  const rows = texts.map((text, row) =>
    h(
      "tr",
      {},
      h("th", { scope: "row", title: text }, `${row + 1}  ${short(text)}`),
      vectors.map((other) => {
        const found = cosine(vectors[row], other);
        return h("td", { class: "heat", vars: { share: Math.max(found, 0) } }, figure(Math.round(found * 100) / 100));
      }),
    ),
  );
  return h("div", { class: "wide" }, h("table", { class: "cosines" }, h("caption", {}, "Cosines"), h("thead", {}, head), h("tbody", {}, rows)));
}
