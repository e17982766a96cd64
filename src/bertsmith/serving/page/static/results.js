// Renders the answer of each operation: an element to look at, and one sentence for screen readers.

import { count, figure, h, marked, percent } from "./dom.js";
import { cosines, strip } from "./vectors.js";

const FEW = 8; // bars before the rest is folded away
const COLOURS = 8;

/** Returns {element, summary}. `request`: model, operation, values, body; `actions` of the rows: why(…), fill(…), swap(…). */
export function renderAnswer(request, data, actions) {
  return { predict: renderPrediction, rerank: renderRanking, similarity: renderNeighbours, embed: renderVectors, fill_mask: renderMasks, search: renderHits }[
    request.operation
  ](request, data.results, actions);
}

function renderPrediction(request, result) {
  if ("tags" in result) return renderTags(request, result);
  if ("answer" in result) return renderSpan(request, result);
  if ("labels" in result) return renderLabels(result);
  if ("label" in result) return renderLabel(result);
  return renderNumber(request, result);
}

// -- classes and labels ---------------------------------------------------------------------------------------

function renderLabel(result) {
  const probabilities = result.probabilities ?? { [result.label]: result.confidence };
  const verdict = h("p", { class: "verdict" }, h("strong", {}, result.label), ` ${percent(result.confidence)} sure`);
  if (result.abstain) verdict.append(" ", h("span", { class: "flag" }, "would abstain"));
  const sentence = `${result.label}, ${percent(result.confidence)} sure${result.abstain ? ", would abstain" : ""}.`;
  const note = result.abstain ? h("p", { class: "hint" }, "So unsure that, by the rule it was trained with, it would leave this text to someone else.") : null;
  return { element: h("div", {}, verdict, note, bars(probabilities, new Set([result.label]))), summary: sentence };
}

function renderLabels(result) {
  const predicted = new Set(result.labels);
  const names = result.labels.length ? result.labels.join(", ") : "no label";
  const verdict = h("p", { class: "verdict" }, h("strong", {}, names));
  return { element: h("div", {}, verdict, bars(result.probabilities, predicted)), summary: `${names}.` };
}

function bars(probabilities, predicted) {
  const sorted = Object.entries(probabilities).sort((one, other) => other[1] - one[1]);
  const row = ([label, probability]) =>
    h(
      "li",
      { class: predicted.has(label) ? "given" : "" },
      h("span", { class: "name" }, predicted.has(label) ? h("span", { class: "tick", "aria-label": "given" }, "✓ ") : null, label),
      h("span", { class: "bar", "aria-hidden": "true" }, h("span", { vars: { share: probability } })),
      h("span", { class: "value" }, percent(probability)),
    );
  const first = h("ol", { class: "bars" }, sorted.slice(0, FEW).map(row));
  if (sorted.length <= FEW) return first;
  return h("div", {}, first, h("details", {}, h("summary", {}, `${sorted.length - FEW} more`), h("ol", { class: "bars" }, sorted.slice(FEW).map(row))));
}

// -- a number -------------------------------------------------------------------------------------------------

const earlierValues = new Map(); // by model: the numbers it gave on this page, a scale for models without bounds

function renderNumber(request, result) {
  const { model } = request;
  const name = "similarity" in result ? "cosine" : "score";
  const value = result.similarity ?? result.score;
  const scores = earlierValues.get(model.name) ?? [];
  earlierValues.set(model.name, [...scores, value]);
  const [low, high] = model.scale ?? [Math.min(...scores, value), Math.max(...scores, value)];
  const parts = [
    h("p", { class: "verdict" }, h("strong", { class: "number" }, figure(value)), ` ${name}`),
  ];
  if (high > low) parts.push(scale(value, low, high));
  if (!model.scale) parts.push(h("p", { class: "hint" }, high > low ? "The scale is that of the numbers given on this page: the model’s folder names no bounds." : "Its folder names no bounds: ask about a second text, and the two make a scale."));
  else if (model.task === "regression") parts.push(h("p", { class: "hint" }, "The scale is that of the training scores."));
  if ("similarity" in result && "score" in result) parts.push(h("p", {}, `As a score in the range of the training labels: ${figure(result.score)}`));
  return { element: h("div", {}, parts), summary: `${name} ${figure(value)}.` };
}

function scale(value, low, high) {
  const position = Math.min(Math.max((value - low) / (high - low), 0), 1);
  return h(
    "div",
    { class: "scale", role: "img", "aria-label": `${figure(value)} on a scale from ${figure(low)} to ${figure(high)}` },
    h("div", { class: "track" }, h("span", { class: "dot", vars: { at: position } })),
    h("div", { class: "ends" }, h("span", {}, figure(low)), h("span", {}, figure(high))),
  );
}

// -- tags and answers -----------------------------------------------------------------------------------------

function renderTags(request, result) {
  const text = request.values.text;
  const offsets = findOffsets(result.words, text);
  let spans = result.entities.map((entity) => [entity.start, entity.end, entity.label]);
  if (!spans.length) spans = result.tags.map((tag, word) => [...offsets[word], tag]).filter((span) => span[2] !== "O");
  const labels = [...new Set(spans.map((span) => span[2]))].sort();
  const confidenceOf = (start, end) => Math.min(...offsets.map((offset, word) => (offset[0] >= start && offset[1] <= end ? result.confidence[word] : 1)));
  const marks = spans.map(([start, end, label]) => [
    start,
    end,
    (piece) => h("mark", { class: `span colour-${labels.indexOf(label) % COLOURS}`, title: `${label}, ${percent(confidenceOf(start, end))} sure` }, piece, h("small", {}, label)),
  ]);
  const legend = h(
    "ul",
    { class: "legend", "aria-label": "Colours" },
    labels.map((label, index) => h("li", {}, h("span", { class: `swatch colour-${index % COLOURS}`, "aria-hidden": "true" }), `${label} `, h("span", { class: "hint" }, String(spans.filter((span) => span[2] === label).length)))),
  );
  const summary = spans.length ? `${count(spans.length, "span")}: ${spans.map(([start, end, label]) => `${Array.from(text).slice(start, end).join("")}, ${label}`).join("; ")}.` : "No span found.";
  if (!spans.length) return { element: h("div", {}, h("p", { class: "verdict" }, "No span found"), h("p", { class: "prose" }, text)), summary };
  return { element: h("div", {}, legend, h("p", { class: "prose tagged" }, marked(text, marks))), summary };
}

/** The [start, end] of each word in the text, in code points. */
function findOffsets(words, text) {
  let position = 0;
  let before = 0; // UTF-16 units
  return words.map((word) => {
    const index = text.indexOf(word, before);
    if (index < 0) return [position, position];
    position += Array.from(text.slice(before, index)).length;
    const start = position;
    position += Array.from(word).length;
    before = index + word.length;
    return [start, position];
  });
}

function renderSpan(request, result) {
  const passage = request.values.context;
  if (!result.answer) {
    const verdict = h("p", { class: "verdict" }, h("strong", {}, "No answer"), " in this passage");
    return { element: h("div", {}, verdict, h("p", { class: "prose" }, passage)), summary: "No answer in this passage." };
  }
  const mark = [result.start, result.end, (piece) => h("mark", { class: "found" }, piece)];
  const verdict = h("p", { class: "verdict" }, h("strong", {}, result.answer), ` ${percent(result.confidence)} sure`);
  return {
    element: h("div", {}, verdict, h("p", { class: "prose" }, marked(passage, [mark]))),
    summary: `${result.answer}, ${percent(result.confidence)} sure.`,
  };
}

// -- rankings -------------------------------------------------------------------------------------------------

function ranking(texts, scores, asPercent, more) {
  const order = texts.map((text, index) => [scores[index], text, index]).sort((one, other) => other[0] - one[0]);
  const low = asPercent ? 0 : Math.min(0, ...scores);
  const high = asPercent ? 1 : Math.max(...scores);
  return h(
    "ol",
    { class: "ranks" },
    order.map(([score, text]) =>
      h(
        "li",
        {},
        h("p", { class: "text" }, text),
        h("div", { class: "line" }, h("span", { class: "bar", "aria-hidden": "true" }, h("span", { vars: { share: high > low ? Math.max(score - low, 0) / (high - low) : 0 } })), h("span", { class: "value" }, figure(score)), more(text)),
      ),
    ),
  );
}

const button = (label, object, action) => h("button", { type: "button", class: "small", "aria-label": `${label} ${object}`, onclick: action }, label);

function renderRanking(request, results, actions) {
  const { model, body, values } = request;
  const why = (text) => button("Why?", text, () => actions.why({ input: [values.query, text], target: model.relevant }));
  const within = results.every((score) => score >= 0 && score <= 1);
  const best = body.inputs[results.indexOf(Math.max(...results))];
  return { element: ranking(body.inputs, results, within, why), summary: `First of ${count(results.length, "document")}: ${best}` };
}

function renderNeighbours(request, results, actions) {
  const { body, values } = request;
  const more = (text) => [
    button("Why?", text, () => actions.why({ input: [values.source, text], vectors: true })),
    button("Ask with this", text, () => actions.swap(text)),
  ];
  const best = body.inputs[results.indexOf(Math.max(...results))];
  return { element: ranking(body.inputs, results, true, more), summary: `Nearest of ${count(results.length, "text")}: ${best}` };
}

function renderHits(request, results, actions) {
  if (!results.length) return { element: h("p", { class: "verdict" }, "Nothing found"), summary: "Nothing found." };
  const { query } = request.values;
  const list = results.map((hit) =>
    h(
      "li",
      {},
      h("p", { class: "place" }, h("strong", {}, hit.title || hit.document_id), h("span", { class: "hint" }, ` ${hit.line === null ? hit.document_id : `${hit.source}:${hit.line}`}`)),
      h("p", { class: "prose" }, marked(hit.text, hit.matches.map(([start, end]) => [start, end, (piece) => h("mark", { class: "match" }, piece)]))),
      h("div", { class: "line" }, h("span", { class: "value" }, figure(hit.score)), button("Why?", hit.document_id, () => actions.why({ input: [query, hit.text] }))),
    ),
  );
  return { element: h("ol", { class: "hits" }, list), summary: `${count(results.length, "passage")}, the first in ${results[0].title || results[0].document_id}.` };
}

// -- masks and vectors ----------------------------------------------------------------------------------------

const stripMarker = (token) => token.replace(/^(Ġ|▁)/, "");

function renderMasks(request, results, actions) {
  const lists = results.map((candidates, index) =>
    h(
      "li",
      {},
      h("h3", { class: "quiet-title" }, results.length > 1 ? `Mask ${index + 1}` : "In its place"),
      h(
        "ol",
        { class: "bars" },
        candidates.map(({ token, probability }) =>
          h(
            "li",
            {},
            h("span", { class: "name" }, h("button", { type: "button", class: "word", title: "Put it there", onclick: () => actions.fill(index, stripMarker(token)) }, stripMarker(token))),
            h("span", { class: "bar", "aria-hidden": "true" }, h("span", { vars: { share: probability } })),
            h("span", { class: "value" }, percent(probability)),
          ),
        ),
      ),
    ),
  );
  const summary = results.map((candidates) => candidates.slice(0, 3).map(({ token }) => stripMarker(token)).join(", ")).join("; ");
  return { element: h("div", {}, h("p", { class: "hint" }, "Choose a word to put it into the text."), h("ul", { class: "masks" }, lists)), summary: `Likeliest: ${summary}.` };
}

function renderVectors(request, results) {
  const texts = request.body.inputs;
  const list = results.map((vector, index) =>
    h("li", {}, h("p", { class: "text" }, texts[index]), strip(vector), h("p", { class: "hint digits" }, `${vector.slice(0, 4).map(figure).join("  ")}  …`)),
  );
  const element = h("div", {}, h("p", { class: "verdict" }, h("strong", { class: "number" }, String(results[0].length)), " numbers a text"), h("ul", { class: "vectors" }, list));
  if (results.length > 1 && results.length <= 12) element.append(cosines(texts, results));
  return { element, summary: `${count(results.length, "vector")} of ${results[0].length} numbers.` };
}
