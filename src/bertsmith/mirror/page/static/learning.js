// What the last training found: what is proven, the learning curve, and where the student and the LLM differ.

import { chart, dots, level, line, ticks } from "./charts.js";
import { h } from "./dom.js";
import { allBut, hint, many, more, section, share, table, time, whole } from "./parts.js";

export function learningSection(state, version, width) {
  const found = state.learned[version.version];
  if (!found) return null;
  const { curve } = found;
  return section(
    "learning",
    "What it learned",
    h("p", {}, found.claim),
    curve ? h("p", { class: "verdict" }, curve.forecast) : hint("No learning curve: too few texts, or answers that quote."),
    curve ? drawn(curve, width) : null,
    found.ceiling ? h("p", {}, found.ceiling) : hint("How far can it get? bertsmith mirror relabel asks the LLM some inputs once more, and shows how often it contradicts itself."),
    hint(`${found.tier === "tf-idf" ? "Words weighed by TF-IDF" : "An encoder"}, trained on ${many(found.trained_on, "call")} on ${time(found.at)}. ${share(found.agreement)} of all its answers agree, unsure ones among them, on ${many(found.calls, "call")} kept aside.`),
    curve ? more("curve-table", "As a table", table(["texts learned from", "agree"], curve.measured.map(([rows, agrees]) => [whole(rows), share(agrees)]), "Learning curve")) : null,
  );
}

function drawn(curve, width) {
  const rows = curve.measured.map(([count]) => count);
  const [from, to] = [rows[0], curve.law.at(-1)[0]];
  const values = [...curve.measured.map(([, agrees]) => agrees), ...curve.law.map(([, agrees]) => agrees), curve.target];
  const bottom = Math.max(0, Math.floor((Math.min(...values) - 0.05) * 20) / 20);
  const error = (agrees) => 1.96 * Math.sqrt((agrees * (1 - agrees)) / curve.calls);
  const layers = [
    level(curve.target, allBut(1 - curve.target)),
    line(curve.law, "line forecast"),
    dots(curve.measured.map(([count, agrees]) => [count, agrees, agrees - error(agrees), agrees + error(agrees)])),
  ];
  if (curve.tier !== "tf-idf") layers.push(dots([[rows.at(-1), curve.reached]], "dot-mark other"));
  return chart({
    label: `Learning curve: ${curve.forecast}`,
    width,
    x: { from, to, at: [...rows.slice(width < 420 ? -1 : -3), to], write: (count) => whole(Math.round(count)), title: "texts learned from", log: true },
    y: { from: bottom, to: 1, at: ticks(bottom, 1, 4), write: share },
    layers,
  });
}

export function confusionSection(state, version) {
  const found = state.learned[version.version];
  if (!found) return null;
  const name = "Where it differs from the LLM";
  if (!found.confusions.length) return section("confusion", name, h("p", { class: "empty" }, "Nowhere, on the calls kept aside."));
  const fields = new Set(found.confusions.map((each) => each.field));
  const list = found.confusions.map((each) =>
    h(
      "li",
      {},
      h("p", { class: "pair" }, fields.size > 1 ? h("code", {}, each.field) : null, h("span", {}, h("small", {}, "LLM "), h("b", {}, each.taught)), h("span", {}, h("small", {}, "student "), h("b", {}, each.ours)), h("span", { class: "hint digits" }, `${many(each.calls, "call")}`)),
      each.text ? h("p", { class: "prose example" }, each.text) : null,
      state.has_texts && !each.text ? hint("The example's call has been deleted.") : null,
    ),
  );
  const [first, rest] = [list.slice(0, 6), list.slice(6)];
  return section(
    "confusion",
    name,
    hint(`On ${many(found.calls, "call")} kept aside, all of them; of those it isn't sure of, the LLM answers. ${state.has_texts ? "The example is the one that it was surest of, as it is stored." : "Start the mirror with --page-texts to see examples."}`),
    h("ol", { class: "confusions" }, first),
    rest.length ? more("confusions", `${whole(found.different_confusions - first.length)} more`, h("ol", { class: "confusions" }, rest)) : null,
  );
}
