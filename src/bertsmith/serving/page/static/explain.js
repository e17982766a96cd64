// Explains an answer: tokens coloured by what each contributes, and attention weights.

import { showAttention } from "./attention.js";
import { attributed } from "./attributions.js";
import { by, h, signed } from "./dom.js";
import { ask } from "./request.js";
import { waiting } from "./waiting.js";

let current = null; // the AbortController of the explanation that is being computed

/** Cancels the explanation that is being computed. */
export const cancelExplanation = () => current?.abort();

/** Empties the panel and cancels the explanation that is being computed. */
export function closeExplanation() {
  current?.abort();
  current = null;
  by("explanation").hidden = true;
  by("explanation").replaceChildren();
}

/**
 * A panel for one input. `about`: model, input, vectors, target (of a ranking), targets ([value, label] to choose
 * from); `open` begins at once.
 */
export function offerExplanation(about, open) {
  closeExplanation();
  const panel = by("explanation");
  const output = h("div", { class: "explained" });
  const tokens = h("button", { type: "button", "aria-pressed": "false", onclick: () => choose(tokens, attributions) }, "What it rests on");
  const attention = h("button", { type: "button", "aria-pressed": "false", onclick: () => choose(attention, weights) }, "Where attention looks");
  const select = h("select", { id: "target", onchange: () => choose(tokens, attributions) }, (about.targets ?? []).map(([value, label]) => h("option", { value: JSON.stringify(value) }, label)));
  const choice = about.targets?.length > 1 ? h("div", { class: "field inline" }, h("label", { for: "target" }, "of"), select) : null;
  panel.replaceChildren(h("h2", { class: "quiet-title" }, about.title ?? "Why"), h("div", { class: "row" }, tokens, choice, attention), output);
  panel.hidden = false;

  async function choose(button, show) {
    for (const tab of [tokens, attention]) tab.setAttribute("aria-pressed", String(tab === button));
    current?.abort();
    const controller = (current = new AbortController());
    const wait = waiting(output, () => controller.abort());
    try {
      await show(controller.signal);
    } catch (error) {
      if (error.name !== "AbortError") output.replaceChildren(h("p", { class: "problem", role: "alert" }, error.message));
      else if (current === controller) output.replaceChildren(h("p", { class: "hint" }, "Cancelled."));
    } finally {
      wait.end();
    }
  }

  const makeBody = () => ({ model: about.model.name, input: about.input, as_vectors: Boolean(about.vectors) });

  async function attributions(signal) {
    const target = choice ? JSON.parse(select.value) : (about.target ?? null);
    const { data } = await ask("page/attributions", { ...makeBody(), target }, signal);
    output.replaceChildren(attributed(data));
    const [most] = [...data.tokens].sort((one, other) => Math.abs(other.score) - Math.abs(one.score));
    by("status").textContent = `${data.target} rests most on ${most.text}, ${signed(most.score)}.`;
  }

  async function weights(signal) {
    const fetchWeights = async (layer, head, pictures) => {
      const { data } = await ask("page/attention", { ...makeBody(), layer, head, pictures }, signal);
      const weights = new Uint16Array(decodeBase64(data.weights).buffer);
      return { ...data, weights, pictures: data.pictures ? decodeBase64(data.pictures) : null };
    };
    await showAttention(output, fetchWeights);
    by("status").textContent = "The weights of attention are shown.";
  }

  if (open) {
    choose(tokens, attributions);
    tokens.focus();
  }
}

function decodeBase64(base64) {
  return Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
}
