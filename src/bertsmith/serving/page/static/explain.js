// What an answer rests on: tokens coloured by what each adds, and the weights of attention.

import { showAttention } from "./attention.js";
import { by, figure, h, percent, roving, signed } from "./dom.js";
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
    const fetched = (layer, head, pictures) => ask("/page/attention", { ...asked(), layer, head, pictures }, signal).then(({ data }) => data);
    await showAttention(output, fetched);
    by("status").textContent = "The weights of attention are shown.";
  }

  if (open) {
    choose(tokens, attributions);
    tokens.focus();
  }
}

function attributed(data) {
  const most = Math.max(...data.tokens.map(({ score }) => Math.abs(score))) || 1;
  const caption = h("p", { class: "caption digits", "aria-live": "polite" }, "Point at a token, or walk through them with the arrow keys.");
  const read = ({ text, score }) => `${text}  ${signed(score)}`;
  const items = data.tokens.map((token) =>
    h(
      "span",
      {
        class: `token ${token.joined ? "joined" : ""} ${token.special ? "special" : ""} ${token.score < 0 ? "takes" : "adds"}`,
        vars: { strength: Math.abs(token.score) / most },
        role: "img",
        "aria-label": read(token),
        onmouseenter: () => (caption.textContent = read(token)),
      },
      token.text,
    ),
  );
  roving(items, 1, (place) => (caption.textContent = read(data.tokens[place])));
  const difference = data.value - data.baseline_value;
  return h(
    "div",
    {},
    h(
      "p",
      {},
      h("strong", {}, data.target),
      ` is ${figure(data.value)} here, and ${figure(data.baseline_value)} with every token blanked out. The tokens make the difference of ${signed(difference)}:`,
    ),
    h("p", { class: "tokens", role: "group", "aria-label": "Tokens, by what each adds" }, apart(items, data.tokens)),
    caption,
    h(
      "p",
      { class: "hint ramp" },
      "takes away ",
      h("span", { class: "ramp-bar", "aria-hidden": "true" }),
      ` adds. Integrated gradients over ${data.steps} points; they add up to within ${percent(data.error)}.`,
    ),
  );
}

/** With blanks between words; of two texts that were read apart, the second on a line of its own. */
function apart(items, tokens) {
  const begins = (place) => place > 0 && tokens[place - 1].special && tokens[place].special && tokens[place].text === tokens[0].text;
  return items.flatMap((item, place) => [begins(place) ? h("br") : tokens[place].joined ? "" : " ", item]);
}
