// The page of a look: sections of what was found, from the data that stands in the page.

import { showAttention } from "./attention.js";
import { attributed } from "./attributions.js";
import { by, h, roving } from "./dom.js";

const data = JSON.parse(by("data").textContent);

function section(title, ...children) {
  const made = h("section", { "aria-label": title }, h("h2", { class: "quiet-title" }, title), ...children);
  by("sections").append(made);
  return made;
}

async function inflated(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).arrayBuffer();
}

async function attentionSection() {
  const output = h("div", { class: "explained" });
  section("Where attention looks", output);
  const { tokens, layers, heads, side } = data.attention;
  const weights = new Uint16Array(await inflated(data.attention.weights));
  const pictures = new Uint8Array(await inflated(data.attention.pictures));
  const size = tokens.length * tokens.length;
  const found = (layer, head) => {
    const place = layer * heads + head;
    return { tokens, layers, heads, side, pictures, layer, head, weights: weights.subarray(place * size, (place + 1) * size) };
  };
  await showAttention(output, async (layer, head) => found(layer ?? layers - 1, head));
}

function neighboursSection() {
  const { word, before, after, layers } = data.neighbours;
  const list = h("ol", { class: "near", "aria-live": "polite" });
  const line = (near, kind) =>
    h(
      "li",
      { class: kind },
      h("span", { class: "before" }, h("bdi", {}, near.before)),
      h("span", { class: `hit ${near.word.toLowerCase() === word.toLowerCase() ? "same" : ""}` }, near.word),
      h("span", { class: "after" }, near.after),
      h("span", { class: "cosine" }, near.cosine === undefined ? "" : near.cosine.toFixed(3)),
    );
  const name = (number) => (number === 0 ? "Embeddings" : `${number}`);
  const buttons = layers.map((_, number) =>
    h("button", { type: "button", "aria-pressed": "false", "aria-label": number === 0 ? "Embeddings" : `Layer ${number}`, onclick: () => choose(number) }, name(number)),
  );
  roving(buttons, 1, (number) => choose(number));
  section(
    `“${word}” through the layers`,
    h("p", { class: "hint" }, "The words of the other texts that are nearest to it, by the cosine of what a layer makes of them. The embeddings know its spelling and its place, each layer more of what stands around it."),
    h("div", { class: "layers", role: "group", "aria-label": "Layers" }, buttons),
    list,
  );

  function choose(number) {
    buttons.forEach((button, place) => button.setAttribute("aria-pressed", String(place === number)));
    list.replaceChildren(line({ word, before, after }, "asked"), ...layers[number].map((near) => line(near, "")));
  }
  choose(layers.length - 1);
}

if (data.attributions) section("What it rests on", attributed(data.attributions));
if (data.neighbours) neighboursSection();
await attentionSection();
document.body.dataset.ready = "yes";
