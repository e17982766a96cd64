// The page: a model, a form for it, its answer, and what the answer took.

import { by, count, h } from "./dom.js";
import { cancelExplanation, closeExplanation, offerExplanation } from "./explain.js";
import { OPERATIONS, bodyOf, explainedOf, fieldsOf, longTextsOf } from "./forms.js";
import { ask, keep, key, Refused } from "./request.js";
import { shown } from "./results.js";
import { snippets } from "./snippets.js";
import { waiting } from "./waiting.js";

const MOST_NAMED = 12; // labels of a model

const page = { models: [], model: null, operation: null, sending: null, again: null };

// -- what was typed is kept, for this tab ----------------------------------------------------------------------

const place = (id) => `bertsmith.text.${page.model.name}.${page.operation}.${id}`;
const recalled = (id) => sessionStorage.getItem(place(id));

function remember(id, value) {
  try {
    sessionStorage.setItem(place(id), value);
  } catch {
    // a text larger than the browser keeps: it stays in its field
  }
}

// -- the form --------------------------------------------------------------------------------------------------

async function begin() {
  try {
    const { data } = await ask("/page/models");
    page.models = data.models;
  } catch (error) {
    return problem(error, begin);
  }
  by("problem").replaceChildren();
  by("ask").hidden = by("openapi").hidden = false;
  by("model").replaceChildren(...page.models.map(({ name, task }) => h("option", { value: name }, `${name} · ${task}`)));
  const [name, operation] = decodeURIComponent(location.hash.slice(1)).split("/");
  choose(page.models.find((model) => model.name === name) ?? page.models[0], operation);
}

function choose(model, operation) {
  if (!model) return;
  page.model = model;
  by("model").value = model.name;
  document.title = `${model.name} · Bertsmith`;
  const facts = [model.task, `version ${model.version}`, `reads ${model.max_length} tokens at a time`, model.precision];
  by("about").replaceChildren(facts.join(" · "));
  const labels = model.task === "tagging" ? kindsOf(model.labels) : model.labels;
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

/** B-PER and I-PER are one kind. */
const kindsOf = (tags) => [...new Set(tags.filter((tag) => tag !== "O").map((tag) => tag.replace(/^[BIESLU]-/, "")))];

function chooseOperation(operation) {
  cancel();
  page.operation = operation;
  for (const input of by("operations").querySelectorAll("input")) input.checked = input.value === operation;
  history.replaceState(null, "", `#${encodeURIComponent(page.model.name)}/${operation}`);
  by("fields").replaceChildren(...fieldsOf(page.model, operation).map(field));
  const choices = longTextsOf(page.model, operation);
  by("long").replaceChildren(
    ...(choices.length ? [h("label", { for: "long-text" }, "Long texts"), h("select", { id: "long-text" }, choices.map(([value, label]) => h("option", { value }, label)))] : []),
  );
  forget();
}

function field({ id, label, kind, example, hint, choices }) {
  const name = `field-${id}`;
  const value = recalled(id) ?? example;
  const given = { id: name, "data-id": id, spellcheck: "false", autocomplete: "off", "aria-describedby": hint ? `${name}-hint` : null, oninput: (event) => remember(id, event.target.value) };
  let input;
  if (kind === "choice") input = h("select", given, choices.map((each) => h("option", { value: each }, each)));
  else if (kind === "line") input = h("input", { type: "text", ...given });
  else input = h("textarea", { rows: kind === "lines" ? 6 : 4, ...given });
  input.value = value;
  return h("div", { class: "field" }, h("label", { for: name }, label), input, hint ? h("p", { id: `${name}-hint`, class: "hint" }, hint) : null);
}

const values = () => Object.fromEntries([...by("fields").querySelectorAll("[data-id]")].map((input) => [input.dataset.id, input.value]));

function put(id, value) {
  by(`field-${id}`).value = value;
  remember(id, value);
}

// -- asking ----------------------------------------------------------------------------------------------------

async function send() {
  cancel();
  const { model, operation } = page;
  const asked = { model, operation, values: values() };
  asked.body = bodyOf(model, operation, asked.values, by("long-text")?.value);
  const mine = (page.sending = new AbortController());
  closeExplanation();
  by("problem").replaceChildren();
  by("status").textContent = "";
  by("answer").setAttribute("aria-busy", "true");
  const wait = waiting(by("waiting"), cancel);
  by("waiting").hidden = false;
  try {
    const answer = await ask(`/v1/${encodeURIComponent(model.name)}`, asked.body, mine.signal);
    if (page.sending === mine) show(asked, answer);
  } catch (error) {
    if (page.sending !== mine) return;
    if (error.name === "AbortError") by("status").textContent = "Cancelled.";
    else problem(error, send);
  } finally {
    wait.end();
    if (page.sending === mine) done();
  }
}

function done() {
  page.sending = null;
  by("waiting").hidden = true;
  by("answer").removeAttribute("aria-busy");
}

function cancel() {
  if (!page.sending) return;
  page.sending.abort();
  done();
  by("status").textContent = "Cancelled.";
}

/** What was answered before belongs to another form. */
function forget() {
  closeExplanation();
  by("problem").replaceChildren();
  by("status").textContent = "";
  by("answer").replaceChildren(h("p", { class: "empty" }, "Ask, and the answer stands here."));
  by("facts").hidden = by("same").hidden = true;
}

/** The sentence that the service gave; a field for the key where it wants one. */
function problem(error, again) {
  if (!(error instanceof Refused)) console.error(error);
  if (error.status === 401) {
    page.again = again;
    by("unlock").hidden = false;
    by("key").focus();
  }
  by("problem").replaceChildren(h("p", { class: "problem" }, error.message));
}

function show(asked, answer) {
  const { data } = answer;
  const act = {
    why: (about) => offerExplanation({ model: asked.model, title: "Why", ...about }, true),
    swap: (text) => swap(text),
    fill: (mask, token) => fill(mask, token),
  };
  const { element, summary } = shown(asked, data, act);
  by("answer").replaceChildren(element);
  by("status").textContent = summary;
  facts(answer);
  const url = `${location.origin}/v1/${encodeURIComponent(asked.model.name)}`;
  by("same").replaceChildren(h("h2", { class: "quiet-title" }, "The same elsewhere"), ...snippets(url, asked.body, Boolean(key())));
  by("same").hidden = false;
  const input = explainedOf(asked.model, asked.operation, asked.values);
  if (input !== null) offerExplanation({ model: asked.model, input, targets: targetsOf(asked, data.results) }, false);
}

/** What there is to explain beside what the model answers. */
function targetsOf({ model, operation }, result) {
  if (operation === "fill_mask") return (result[0] ?? []).map(({ token }) => [token, token]);
  if (result.tags) return result.words.map((word, number) => [number, `${word} (${result.tags[number]})`]).filter(([number]) => result.tags[number] !== "O");
  const sorted = Object.entries(result.probabilities ?? {}).sort((one, other) => other[1] - one[1]);
  return sorted.map(([label]) => [label, label]);
}

function facts({ data, headers, ms }) {
  const number = (name) => Number(headers.get(name) ?? 0);
  const times = [["tokenizing", number("x-tokenization-time")], ["queue", number("x-queue-time")], ["computing", number("x-inference-time")]];
  const rest = Math.max(ms - times.reduce((sum, [, each]) => sum + each, 0), 0);
  const shownTime = (each) => `${each < 10 ? each.toFixed(1) : Math.round(each)} ms`;
  const parts = [...times, ["transit", rest]];
  const tokens = [data.input_tokens].flat();
  const cut = [data.truncated].flat().filter(Boolean).length;
  const bar = h("div", { class: "times", "aria-hidden": "true" }, parts.map(([name, each], place) => h("span", { class: `time-${place}`, title: name, vars: { share: each / Math.max(ms, 0.001) } })));
  const list = h(
    "dl",
    {},
    [["total", shownTime(ms)], ...parts.map(([name, each]) => [name, shownTime(each)]), ["tokens", tokens.reduce((sum, each) => sum + each, 0).toLocaleString("en")], ["truncated", cut ? (tokens.length > 1 ? count(cut, "text") : "yes") : "no"]].map(([name, value], place) =>
      h("div", { class: cut && name === "truncated" ? "notable" : "" }, h("dt", { class: place > 0 && place < 5 ? `time-${place - 1}` : "" }, name), h("dd", { class: "digits" }, value)),
    ),
  );
  by("facts").replaceChildren(bar, list);
  by("facts").hidden = false;
}

/** The neighbour becomes what is asked with, and that a line among the others. */
function swap(text) {
  const { source, texts } = values();
  put("source", text);
  put("texts", texts.split("\n").map((each) => (each.trim() === text ? source : each)).join("\n"));
  send();
}

/** Puts a word in place of the mask of this number. */
function fill(number, token) {
  const { mask } = page.model;
  const parts = values().text.split(mask);
  const before = token.startsWith("##") ? parts[number].trimEnd() : parts[number];
  const text = [...parts.slice(0, number), before + token.replace(/^##/, "") + (parts[number + 1] ?? ""), ...parts.slice(number + 2)].join(mask);
  put("text", text);
  by("field-text").focus();
  if (text.includes(mask)) send();
  else by("status").textContent = `The text is now: ${text}`;
}

// -- listening -------------------------------------------------------------------------------------------------

by("model").addEventListener("change", (event) => choose(page.models.find(({ name }) => name === event.target.value)));
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
    const { data } = await ask("/openapi.json");
    location.assign(URL.createObjectURL(new Blob([JSON.stringify(data, null, 2)], { type: "application/json" })));
  } catch (error) {
    problem(error, begin);
  }
});
by("unlock").addEventListener("submit", (event) => {
  event.preventDefault();
  keep(by("key").value.trim());
  by("key").value = "";
  by("unlock").hidden = true;
  by("problem").replaceChildren();
  (page.again ?? begin)();
});
addEventListener("hashchange", begin);
begin();
