// A progress display: after a moment it shows the elapsed time and a button to cancel.

import { h } from "./dom.js";

const PATIENCE = 150; // milliseconds: what is quicker needs no progress

/** Shows progress in `container` until `end` is called; `cancel` is the button's action. */
export function waiting(container, cancel, what = "Computing") {
  const began = performance.now();
  const elapsed = h("span", { class: "hint digits" }, `${what} …`);
  const progress = h("div", { class: "waits" }, h("div", { class: "progress", "aria-hidden": "true" }, h("div")), h("div", { class: "row" }, elapsed, h("button", { type: "button", class: "small", onclick: cancel }, "Cancel")));
  const showing = setTimeout(() => container.replaceChildren(progress), PATIENCE);
  const ticking = setInterval(() => (elapsed.textContent = `${what} … ${((performance.now() - began) / 1000).toFixed(1)} s`), 100);
  return {
    end() {
      clearTimeout(showing);
      clearInterval(ticking);
      progress.remove();
    },
  };
}
