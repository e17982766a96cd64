// What an answer rests on: tokens coloured by what each adds, and the weights of attention.

import { showAttention } from "./attention.js";
import { attributed } from "./attributions.js";
import { by, h, signed } from "./dom.js";
import { ask } from "./request.js";
import { waiting } from "./waiting.js";

let current = null; // what is being computed, to be ended by whatever comes next

/** Ends what the panel waits for. */
export const cancelExplanation = () => current?.abort();

/** Empties the panel, and ends what it waits for. */
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
    for (const each of [tokens, attention]) each.setAttribute("aria-pressed", String(each === button));
    current?.abort();
    const mine = (current = new AbortController());
    const wait = waiting(output, () => mine.abort());
    try {
      await show(mine.signal);
    } catch (error) {
      if (error.name !== "AbortError") output.replaceChildren(h("p", { class: "problem", role: "alert" }, error.message));
      else if (current === mine) output.replaceChildren(h("p", { class: "hint" }, "Cancelled."));
    } finally {
      wait.end();
    }
  }

  const asked = () => ({ model: about.model.name, input: about.input, as_vectors: Boolean(about.vectors) });

  async function attributions(signal) {
    const target = choice ? JSON.parse(select.value) : (about.target ?? null);
    const { data } = await ask("/page/attributions", { ...asked(), target }, signal);
    output.replaceChildren(attributed(data));
    const [most] = [...data.tokens].sort((one, other) => Math.abs(other.score) - Math.abs(one.score));
    by("status").textContent = `${data.target} rests most on ${most.text}, ${signed(most.score)}.`;
  }

  async function weights(signal) {
    const fetched = async (layer, head, pictures) => {
      const { data } = await ask("/page/attention", { ...asked(), layer, head, pictures }, signal);
      const weights = new Uint16Array(decoded(data.weights).buffer);
      return { ...data, weights, pictures: data.pictures ? decoded(data.pictures) : null };
    };
    await showAttention(output, fetched);
    by("status").textContent = "The weights of attention are shown.";
  }

  if (open) {
    choose(tokens, attributions);
    tokens.focus();
  }
}

function decoded(base64) {
  return Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
}
