// Vectors as pictures: a strip for each vector, and a table of the cosines of several.

import { figure, h } from "./dom.js";

/** A canvas with a column for each number: one hue for negative numbers, one for positive. */
export function strip(vector) {
  const canvas = h("canvas", { class: "strip", width: vector.length, height: 1, role: "img", "aria-label": `${vector.length} numbers` });
  const context = canvas.getContext("2d");
  const style = getComputedStyle(document.documentElement);
  const [adds, takes] = [style.getPropertyValue("--adds"), style.getPropertyValue("--takes")];
  const largest = Math.max(...vector.map(Math.abs)) || 1;
  vector.forEach((number, index) => {
    context.globalAlpha = Math.abs(number) / largest;
    context.fillStyle = number < 0 ? takes : adds;
    context.fillRect(index, 0, 1, 1);
  });
  return canvas;
}

/** A table of the cosine similarity of each pair of vectors. */
export function cosines(texts, vectors) {
  const length = (vector) => Math.hypot(...vector) || 1;
  const cosine = (first, second) => first.reduce((sum, number, index) => sum + number * second[index], 0) / length(first) / length(second);
  const short = (text) => (text.length > 24 ? `${text.slice(0, 23)}…` : text);
  const head = h("tr", {}, h("td"), texts.map((text, index) => h("th", { scope: "col", title: text }, String(index + 1))));
  const rows = texts.map((text, row) =>
    h(
      "tr",
      {},
      h("th", { scope: "row", title: text }, `${row + 1}  ${short(text)}`),
      vectors.map((second) => {
        const value = cosine(vectors[row], second);
        return h("td", { class: "heat", vars: { share: Math.max(value, 0) } }, figure(Math.round(value * 100) / 100));
      }),
    ),
  );
  return h("div", { class: "wide" }, h("table", { class: "cosines" }, h("caption", {}, "Cosines"), h("thead", {}, head), h("tbody", {}, rows)));
}
