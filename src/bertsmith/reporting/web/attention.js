// Attention weights: a small picture for each head of each layer, and one of them large.

import { h, roving } from "./dom.js";

const MOST_LABELS = 28; // tokens: more have no room beside the picture

/**
 * `fetched(layer, head, pictures)` gives tokens, how many layers and heads, and of one of these the weights as
 * Uint16Array, 65535 for 1; with `pictures` a small square of bytes for each head, and its side. A layer of null is
 * the last.
 */
export async function showAttention(output, fetched) {
  const first = await fetched(null, 0, true);
  const large = h("div", { class: "large" });
  const size = first.side * first.side;
  let wanted = 0; // which click's answer is shown: an earlier one's may come later
  const buttons = [];
  for (let layer = 0; layer < first.layers; layer += 1) {
    for (let head = 0; head < first.heads; head += 1) {
      const place = layer * first.heads + head;
      const canvas = painted(Array.from(first.pictures.subarray(place * size, (place + 1) * size), (byte) => byte / 255), first.side);
      const label = `Layer ${layer + 1}, head ${head + 1}`;
      buttons.push(h("button", { type: "button", class: "head", title: label, "aria-label": label, "aria-pressed": "false", onclick: () => enlarge(layer, head) }, canvas));
    }
  }
  roving(buttons, first.heads);
  const rows = Array.from({ length: first.layers }, (_, layer) =>
    h("div", { class: "layer" }, h("span", { class: "hint digits", "aria-hidden": "true" }, String(layer + 1)), buttons.slice(layer * first.heads, (layer + 1) * first.heads)),
  );
  output.replaceChildren(
    h("p", { class: "hint" }, `${first.layers} layers, from the first down, of ${first.heads} heads each. Each row of a picture is a token, and shows at which others it looks.`),
    h("div", { class: "wide" }, h("div", { class: "heads", role: "group", "aria-label": "Heads by layer" }, rows)),
    large,
  );
  choose(first);

  function choose(data) {
    buttons.forEach((button, place) => button.setAttribute("aria-pressed", String(place === data.layer * first.heads + data.head)));
    large.replaceChildren(enlarged(data));
  }

  async function enlarge(layer, head) {
    const mine = (wanted += 1);
    try {
      const data = await fetched(layer, head, false);
      if (mine === wanted) choose(data);
    } catch (error) {
      if (mine === wanted && error.name !== "AbortError") large.replaceChildren(h("p", { class: "problem", role: "alert" }, error.message));
    }
  }
}

function enlarged(data) {
  const side = data.tokens.length;
  const weights = Array.from(data.weights, (number) => number / 65535);
  const names = data.tokens.map(({ text, joined }) => (joined ? `·${text}` : text));
  const caption = h("p", { class: "caption digits", "aria-live": "polite" });
  const cursor = h("span", { class: "cursor", "aria-hidden": "true" });
  const picture = painted(weights, side);
  const map = h("div", { class: "map", tabindex: 0, role: "application", "aria-label": `Layer ${data.layer + 1}, head ${data.head + 1}. Arrow keys move between the tokens.` }, picture, cursor);
  const text = h("p", { class: "tokens quiet", "aria-hidden": "true" });
  const items = data.tokens.map(({ text: shown, joined, special }) => h("span", { class: `token seen ${joined ? "joined" : ""} ${special ? "special" : ""}` }, shown));
  text.append(...items.flatMap((item, place) => [data.tokens[place].joined ? "" : " ", item]));
  let at = [Math.min(1, side - 1), Math.min(1, side - 1)];

  function move(row, column) {
    at = [Math.min(Math.max(row, 0), side - 1), Math.min(Math.max(column, 0), side - 1)];
    const weight = weights[at[0] * side + at[1]];
    caption.textContent = `“${names[at[0]]}” looks at “${names[at[1]]}”: ${weight.toFixed(3)}`;
    cursor.style.setProperty("--row", at[0]);
    cursor.style.setProperty("--column", at[1]);
    cursor.style.setProperty("--side", side);
    items.forEach((item, place) => {
      item.style.setProperty("--strength", Math.sqrt(weights[at[0] * side + place]));
      item.classList.toggle("from", place === at[0]);
    });
  }

  map.addEventListener("keydown", (event) => {
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (!step) return;
    event.preventDefault();
    move(at[0] + step[0], at[1] + step[1]);
  });
  const follow = (event) => {
    const box = picture.getBoundingClientRect();
    move(Math.floor(((event.clientY - box.top) / box.height) * side), Math.floor(((event.clientX - box.left) / box.width) * side));
  };
  map.addEventListener("pointermove", follow);
  map.addEventListener("pointerdown", follow);
  move(...at);

  const title = h("h3", { class: "quiet-title" }, `Layer ${data.layer + 1}, head ${data.head + 1}`);
  if (side > MOST_LABELS) return h("div", {}, title, map, caption, text);
  const left = h("div", { class: "labels", "aria-hidden": "true" }, names.map((name) => h("span", {}, name)));
  const above = h("div", { class: "labels above", "aria-hidden": "true" }, names.map((name) => h("span", {}, name)));
  for (const each of [left, above]) each.style.setProperty("--side", side);
  return h("div", {}, title, h("div", { class: "labelled" }, h("span"), above, left, map), caption, text);
}

/** Weights as ink on paper; their square roots, so that small ones are seen too. */
function painted(weights, side) {
  const canvas = h("canvas", { width: side, height: side, "aria-hidden": "true" });
  const context = canvas.getContext("2d");
  const pixels = context.createImageData(side, side);
  const [red, green, blue] = ink(context);
  weights.forEach((weight, place) => pixels.data.set([red, green, blue, Math.round(255 * Math.sqrt(weight))], 4 * place));
  context.putImageData(pixels, 0, 0);
  return canvas;
}

function ink(context) {
  context.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--adds").trim();
  context.fillRect(0, 0, 1, 1);
  const found = context.getImageData(0, 0, 1, 1).data;
  context.clearRect(0, 0, 1, 1);
  return found;
}
