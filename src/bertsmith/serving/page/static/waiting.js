// A place that waits: nothing for a moment, then how long it has been, and a way to give up.

import { h } from "./dom.js";

const PATIENCE = 150; // milliseconds: what is quicker needs no progress

/** Shows progress in `place` until `end` is called. */
export function waiting(place, cancel, what = "Computing") {
  const began = performance.now();
  const waited = h("span", { class: "hint digits" }, `${what} …`);
  const shown = h("div", { class: "waits" }, h("div", { class: "progress", "aria-hidden": "true" }, h("div")), h("div", { class: "row" }, waited, h("button", { type: "button", class: "small", onclick: cancel }, "Cancel")));
  const first = setTimeout(() => place.replaceChildren(shown), PATIENCE);
  const ticking = setInterval(() => (waited.textContent = `${what} … ${((performance.now() - began) / 1000).toFixed(1)} s`), 100);
  return {
    end() {
      clearTimeout(first);
      clearInterval(ticking);
      shown.remove();
    },
  };
}
