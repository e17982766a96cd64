// The form of each operation: its fields with examples, and the request body made from them.

const PASSAGE =
  "The Great Fire of London began in the bakery of Thomas Farriner in Pudding Lane, shortly after midnight on " +
  "Sunday, 2 September 1666. It spread rapidly, and on Wednesday the wind fell and the garrison of the Tower " +
  "made firebreaks with gunpowder.";
const DOCUMENTS = [
  "Glacier caves are formed when water runs through or under the ice and melts it.",
  "A cave is a hollow in the ground that is large enough for a person to enter.",
  "The glacier ends in a lake, where icebergs break away in summer.",
  "Tickets to the ice cave are sold at the hut from June on.",
];
const LINES = [
  "A dog runs across the field.",
  "The puppy is chasing a ball on the grass.",
  "A violinist tunes her instrument.",
  "The court granted the motion.",
  "Someone plays the fiddle.",
];
const EXAMPLES = {
  classification: "The meeting on Thursday was moved to the larger room on the second floor.",
  "multi-label": "The city wants to build a second bridge, and residents ask what it will cost.",
  regression: "The parcel came a day later than promised, and everything was in it.",
  tagging: "Angela Merkel met the board of Siemens in Munich before she flew to the United Nations in New York.",
};
const PAIRS = {
  default: ["A man is playing a guitar on stage.", "Somebody performs a song on the guitar."],
  retrieval: ["how are glacier caves formed?", DOCUMENTS[0]],
  reranking: ["how are glacier caves formed?", DOCUMENTS[0]],
};

export const OPERATIONS = {
  predict: "Predict",
  rerank: "Rank documents",
  similarity: "Find the nearest",
  embed: "Vectors",
  fill_mask: "Fill masks",
  search: "Search",
};

const line = (id, label, example, hint) => ({ id, label, example, hint, kind: "line" });
const text = (id, label, example, hint) => ({ id, label, example, hint, kind: "text" });
const lines = (id, label, example, hint = "One a line.") => ({ id, label, example: example.join("\n"), hint, kind: "lines" });

/** The fields of an operation's form, in order. */
export function listFields(model, operation) {
  if (operation === "rerank") {
    const [query, document] = chooseExample(model, PAIRS.reranking);
    return [line("query", "Query", query), lines("documents", "Documents", [oneLine(document), ...DOCUMENTS.slice(1)])];
  }
  if (operation === "similarity") {
    return [line("source", "Text", "A small dog plays outside."), lines("texts", "Compared with", LINES)];
  }
  if (operation === "embed") return [lines("texts", "Texts", LINES.slice(0, 3))];
  if (operation === "fill_mask") {
    return [text("text", "Text", `The river ${model.mask} into the sea near the ${model.mask}.`, `Write ${model.mask} where a word is to be guessed.`)];
  }
  if (operation === "search") {
    const columnsHint = model.columns.length ? ` Also ${model.columns.join(", ")}.` : "";
    return [
      line("query", "Query", "how do I train on my own documents?"),
      { id: "mode", label: "By", kind: "choice", choices: ["hybrid", "vector", "text"], example: "hybrid" },
      line("where", "Filter", "", `In SQL, such as source LIKE '%guide%'.${columnsHint} May be empty.`),
    ];
  }
  return [...predictFields(model), ...model.beside.map((name, index) => line(columnId(index), name, "", "A column beside the text. Empty where it is unknown."))];
}

const columnId = (index) => `beside-${index}`;

/** A pair from the model's own data if the service knows one, else the fallback. */
const chooseExample = (model, fallback) => (model.example?.length === 2 ? model.example : fallback);
const oneLine = (text) => text.replace(/\s+/g, " ");

function predictFields(model) {
  if (model.task === "question-answering") {
    return [line("question", "Question", "Where did the fire begin?"), text("context", "Passage", PASSAGE)];
  }
  const [first, second] = chooseExample(model, PAIRS[model.task] ?? PAIRS.default);
  if (model.task === "retrieval" || model.task === "reranking") {
    return [line("text", "Query", first), text("pair", "Document", second)];
  }
  if (model.pairs) return [text("text", "First text", first), text("pair", "Second text", second)];
  const field = text("text", "Text", model.example?.[0] ?? EXAMPLES[model.task] ?? first);
  if (model.pairs === null) return [field, text("pair", "Second text", model.example?.[1] ?? "", "May be empty.")];
  return [field];
}

const splitLines = (text) => text.split("\n").map((line) => line.trim()).filter(Boolean);

/** The body of POST /v1/{model} for the values of the form. */
export function makeBody(model, operation, values, longText) {
  const body = { inputs: makeInputs(model, operation, values) };
  if (operation !== model.usual) body.operation = operation;
  if (longText) body.long_text = longText;
  const options = {};
  if (operation === "rerank") options.query = values.query;
  if (operation === "similarity") options.source = values.source;
  if (operation === "search") {
    if (values.mode !== "hybrid") options.mode = values.mode;
    if (values.where.trim()) options.where = values.where.trim();
  }
  if (Object.keys(options).length) body.options = options;
  return body;
}

function makeInputs(model, operation, values) {
  if (operation === "rerank") return splitLines(values.documents);
  if (operation === "similarity" || operation === "embed") return splitLines(values.texts);
  if (operation === "search") return values.query;
  if (model.task === "question-answering") return { question: values.question, context: values.context };
  const pair = values.pair || (model.beside.length && model.pairs) ? { text_pair: values.pair } : {};
  const columns = model.beside.map((name, index) => [name, values[columnId(index)].trim() || null]);
  return values.pair || columns.length ? { text: values.text, ...pair, ...Object.fromEntries(columns) } : values.text;
}

/** The choices for long texts, as [value of long_text, label]. */
export function longTextChoices(model, operation) {
  if (operation === "fill_mask") return [];
  const defaultChoice = operation === "predict" || operation === "rerank" ? (model.windows ? "windows" : "cut") : "cut";
  const choices = [["", `as usual (${defaultChoice})`], ["error", "refuse"], ["truncate", "cut"], ["windows", "read as windows"]];
  return choices.filter(([name]) => !(name === "truncate" && model.task === "tagging"));
}

/** The input to explain, as the model reads it; null if the request had several or the operation isn't explained. */
export function explanationInput(model, operation, values) {
  if (operation === "fill_mask") return values.text;
  if (operation !== "predict") return null;
  if (model.task === "question-answering") return [values.question, values.context];
  if (model.beside.length) return makeInputs(model, operation, values);
  return values.pair ? [values.text, values.pair] : values.text;
}
