// The page: chooses a model, makes its form, sends the request, and shows the answer with its time and tokens.

import { by, count, h } from "./dom.js";
import { cancelExplanation, closeExplanation, offerExplanation } from "./explain.js";
import { OPERATIONS, makeBody, explanationInput, listFields, longTextChoices } from "./forms.js";
import { ask, keep, key, modelPath, RequestError, SERVICE } from "./request.js";
import { renderAnswer } from "./results.js";
import { snippets } from "./snippets.js";
import { waiting } from "./waiting.js";

const MOST_NAMED = 12; // labels of a model

const page = { models: [], model: null, operation: null, sending: null, again: null };

// -- typed texts are stored for this tab -------------------------------------------------------------------------

const storageKey = (id) => `bertsmith.text.${page.model.name}.${page.operation}.${id}`;
const recall = (id) => sessionStorage.getItem(storageKey(id));

function remember(id, value) {
  try {
    sessionStorage.setItem(storageKey(id), value);
  } catch {
    // the text is larger than the browser stores: it stays in its field alone
  }
}

// -- the form --------------------------------------------------------------------------------------------------

async function start() {
  try {
    const { data } = await ask("page/models");
    page.models = data.models;
  } catch (error) {
    return showProblem(error, start);
  }
  by("problem").replaceChildren();
  by("ask").hidden = by("openapi").hidden = false;
  by("model").replaceChildren(...page.models.map(({ name, task }) => h("option", { value: name }, `${name} · ${task}`)));
  const [name, operation] = location.hash.slice(1).split("/").map(decodeURIComponent);
  chooseModel(page.models.find((model) => model.name === name) ?? page.models[0], operation);
}

function chooseModel(model, operation) {
  if (!model) return;
  page.model = model;
  by("model").value = model.name;
  document.title = `${model.name} · Bertsmith`;
  const description = [model.task, `version ${model.version}`, `reads ${model.max_length} tokens at a time`, model.precision];
  by("about").replaceChildren(description.join(" · "));
  const labels = model.task === "tagging" ? entityTypes(model.labels) : model.labels;
  const more = labels.length > MOST_NAMED ? ` and ${labels.length - MOST_NAMED} more` : "";
  if (labels.length) by("about").append(h("br"), `${model.task === "tagging" ? "Finds" : "Labels"}: ${labels.slice(0, MOST_NAMED).join(", ")}${more}`);
  const group = by("operations");
  group.hidden = model.operations.length < 2;
  group.replaceChildren(
    h("legend", {}, "For"),
    ...model.operations.map((name) => h("label", { class: "choice" }, h("input", { type: "radio", name: "operation", value: name, onchange: () => chooseOperation(name) }), h("span", {}, OPERATIONS[name]))),
  );
  chooseOperation(model.operations.includes(operation) ? operation : model.operations[0]);
}

/** The entity types of tags: B-PER and I-PER are both PER. */
const entityTypes = (tags) => [...new Set(tags.filter((tag) => tag !== "O").map((tag) => tag.replace(/^[BIESLU]-/, "")))];

function chooseOperation(operation) {
  cancel();
  page.operation = operation;
  for (const input of by("operations").querySelectorAll("input")) input.checked = input.value === operation;
  history.replaceState(null, "", `#${encodeURIComponent(page.model.name)}/${operation}`);
  by("fields").replaceChildren(...listFields(page.model, operation).map(makeField));
  const choices = longTextChoices(page.model, operation);
  by("long").replaceChildren(
    ...(choices.length ? [h("label", { for: "long-text" }, "Long texts"), h("select", { id: "long-text" }, choices.map(([value, label]) => h("option", { value }, label)))] : []),
  );
  clearAnswer();
}

function makeField({ id, label, kind, example, hint, choices }) {
  const name = `field-${id}`;
  const value = recall(id) ?? example;
  const attributes = { id: name, "data-id": id, spellcheck: "false", autocomplete: "off", "aria-describedby": hint ? `${name}-hint` : null, oninput: (event) => remember(id, event.target.value) };
  let input;
  if (kind === "choice") input = h("select", attributes, choices.map((choice) => h("option", { value: choice }, choice)));
  else if (kind === "line") input = h("input", { type: "text", ...attributes });
  else input = h("textarea", { rows: kind === "lines" ? 6 : 4, ...attributes });
  input.value = value;
  return h("div", { class: "field" }, h("label", { for: name }, label), input, hint ? h("p", { id: `${name}-hint`, class: "hint" }, hint) : null);
}

const values = () => Object.fromEntries([...by("fields").querySelectorAll("[data-id]")].map((input) => [input.dataset.id, input.value]));

function setValue(id, value) {
  by(`field-${id}`).value = value;
  remember(id, value);
}

// -- request ----------------------------------------------------------------------------------------------------

async function send() {
  cancel();
  const { model, operation } = page;
  const request = { model, operation, values: values() };
  request.body = makeBody(model, operation, request.values, by("long-text")?.value);
  const controller = (page.sending = new AbortController());
  closeExplanation();
  by("problem").replaceChildren();
  by("status").textContent = "";
  by("answer").setAttribute("aria-busy", "true");
  const wait = waiting(by("waiting"), cancel);
  by("waiting").hidden = false;
  try {
    const answer = await ask(modelPath(model.name), request.body, controller.signal);
    if (page.sending === controller) showAnswer(request, answer);
  } catch (error) {
    if (page.sending !== controller) return;
    if (error.name === "AbortError") by("status").textContent = "Cancelled.";
    else showProblem(error, send);
  } finally {
    wait.end();
    if (page.sending === controller) finish();
  }
}

function finish() {
  page.sending = null;
  by("waiting").hidden = true;
  by("answer").removeAttribute("aria-busy");
}

function cancel() {
  if (!page.sending) return;
  page.sending.abort();
  finish();
  by("status").textContent = "Cancelled.";
}

/** Removes the last answer, which belongs to another form. */
function clearAnswer() {
  closeExplanation();
  by("problem").replaceChildren();
  by("status").textContent = "";
  by("answer").replaceChildren(h("p", { class: "empty" }, "Ask, and the answer stands here."));
  by("facts").hidden = by("same").hidden = true;
}

/** Shows an error's message, and the field for the key if the service needs one. */
function showProblem(error, retry) {
  if (!(error instanceof RequestError)) console.error(error);
  if (error.status === 401) {
    page.again = retry;
    by("unlock").hidden = false;
    by("key").focus();
  }
  by("problem").replaceChildren(h("p", { class: "problem" }, error.message));
}

function showAnswer(request, answer) {
  const { data } = answer;
  const actions = {
    why: (about) => offerExplanation({ model: request.model, title: "Why", ...about }, true),
    swap: (text) => swapSource(text),
    fill: (mask, token) => fillMask(mask, token),
  };
  const { element, summary } = renderAnswer(request, data, actions);
  by("answer").replaceChildren(element);
  by("status").textContent = summary;
  showFacts(answer);
  const url = new URL(modelPath(request.model.name), SERVICE).href;
  by("same").replaceChildren(h("h2", { class: "quiet-title" }, "The same elsewhere"), ...snippets(url, request.body, Boolean(key())));
  by("same").hidden = false;
  const input = explanationInput(request.model, request.operation, request.values);
  if (input !== null) offerExplanation({ model: request.model, input, targets: explanationTargets(request, data.results) }, false);
}

/** The targets, as [value, label], that can be explained besides the model's answer. */
function explanationTargets({ model, operation }, result) {
  if (operation === "fill_mask") return (result[0] ?? []).map(({ token }) => [token, token]);
  if (result.tags) return result.words.map((word, index) => [index, `${word} (${result.tags[index]})`]).filter(([index]) => result.tags[index] !== "O");
  const sorted = Object.entries(result.probabilities ?? {}).sort((first, second) => second[1] - first[1]);
  return sorted.map(([label]) => [label, label]);
}

function showFacts({ data, headers, ms }) {
  const readHeader = (name) => Number(headers.get(name) ?? 0);
  const times = [["tokenizing", readHeader("x-tokenization-time")], ["queue", readHeader("x-queue-time")], ["computing", readHeader("x-inference-time")]];
  const rest = Math.max(ms - times.reduce((sum, [, milliseconds]) => sum + milliseconds, 0), 0);
  const shownTime = (milliseconds) => `${milliseconds < 10 ? milliseconds.toFixed(1) : Math.round(milliseconds)} ms`;
  const parts = [...times, ["transit", rest]];
  const tokens = [data.input_tokens].flat();
  const cut = [data.truncated].flat().filter(Boolean).length;
  const bar = h("div", { class: "times", "aria-hidden": "true" }, parts.map(([name, milliseconds], index) => h("span", { class: `time-${index}`, title: name, vars: { share: milliseconds / Math.max(ms, 0.001) } })));
  const list = h(
    "dl",
    {},
    [["total", shownTime(ms)], ...parts.map(([name, milliseconds]) => [name, shownTime(milliseconds)]), ["tokens", tokens.reduce((sum, length) => sum + length, 0).toLocaleString("en")], ["truncated", cut ? (tokens.length > 1 ? count(cut, "text") : "yes") : "no"]].map(([name, value], index) =>
      h("div", { class: cut && name === "truncated" ? "notable" : "" }, h("dt", { class: index > 0 && index < 5 ? `time-${index - 1}` : "" }, name), h("dd", { class: "digits" }, value)),
    ),
  );
  by("facts").replaceChildren(bar, list);
  by("facts").hidden = false;
}

/** Asks with a neighbour: it becomes the source, and the source takes its line among the texts. */
function swapSource(text) {
  const { source, texts } = values();
  setValue("source", text);
  setValue("texts", texts.split("\n").map((line) => (line.trim() === text ? source : line)).join("\n"));
  send();
}

/** Replaces the mask of this index by a token, and sends the text again while it has masks. */
function fillMask(index, token) {
  const { mask } = page.model;
  const parts = values().text.split(mask);
  const before = token.startsWith("##") ? parts[index].trimEnd() : parts[index];
  const text = [...parts.slice(0, index), before + token.replace(/^##/, "") + (parts[index + 1] ?? ""), ...parts.slice(index + 2)].join(mask);
  setValue("text", text);
  by("field-text").focus();
  if (text.includes(mask)) send();
  else by("status").textContent = `The text is now: ${text}`;
}

// -- listening -------------------------------------------------------------------------------------------------

by("model").addEventListener("change", (event) => chooseModel(page.models.find(({ name }) => name === event.target.value)));
by("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
by("ask").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.target.tagName !== "TEXTAREA" || !(event.ctrlKey || event.metaKey)) return;
  event.preventDefault();
  send();
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  cancel();
  cancelExplanation();
});
by("openapi").addEventListener("click", async (event) => {
  if (!key()) return;
  event.preventDefault(); // a link sends no key
  try {
    const { data } = await ask("openapi.json");
    location.assign(URL.createObjectURL(new Blob([JSON.stringify(data, null, 2)], { type: "application/json" })));
  } catch (error) {
    showProblem(error, start);
  }
});
by("unlock").addEventListener("submit", (event) => {
  event.preventDefault();
  keep(by("key").value.trim());
  by("key").value = "";
  by("unlock").hidden = true;
  by("problem").replaceChildren();
  (page.again ?? start)();
});
addEventListener("hashchange", start);
start();
