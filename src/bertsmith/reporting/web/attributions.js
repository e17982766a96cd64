// Tokens coloured by what each adds to an answer, or takes from it.

import { figure, h, percent, roving, signed } from "./dom.js";

/** `data`: target, value, baseline_value, steps, error, and tokens with text, joined, special and score. */
export function attributed(data) {
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
