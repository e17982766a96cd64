// The same request as a curl command and as a Python program, to be copied.

import { h } from "./dom.js";

const quoteForShell = (text) => `'${text.replaceAll("'", "'\\''")}'`;

export function curl(url, body, needsKey) {
  const lines = [`curl ${quoteForShell(url)}`, "-H 'Content-Type: application/json'"];
  if (needsKey) lines.push('-H "Authorization: Bearer $BERTSMITH_KEY"');
  lines.push(`-d ${quoteForShell(JSON.stringify(body))}`);
  return lines.join(" \\\n  ");
}

export function python(url, body, needsKey) {
  const headers = ['"Content-Type": "application/json"'];
  if (needsKey) headers.push('"Authorization": "Bearer " + os.environ["BERTSMITH_KEY"]');
  return [
    "import json",
    ...(needsKey ? ["import os"] : []),
    "from urllib.request import Request, urlopen",
    "",
    `url = ${JSON.stringify(url)}`,
    `body = ${pythonLiteral(body, "")}`,
    `headers = {${headers.join(", ")}}`,
    "with urlopen(Request(url, json.dumps(body).encode(), headers)) as answer:",
    '    print(json.load(answer)["results"])',
  ].join("\n");
}

/** A JSON value as a Python literal. JSON's strings are Python's, except for halves of surrogate pairs. */
function pythonLiteral(value, indent) {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value !== "object") return JSON.stringify(value);
  const inner = `${indent}    `;
  const parts = Array.isArray(value)
    ? value.map((item) => pythonLiteral(item, inner))
    : Object.entries(value).map(([name, item]) => `${JSON.stringify(name)}: ${pythonLiteral(item, inner)}`);
  const [open, close] = Array.isArray(value) ? "[]" : "{}";
  if (!parts.length) return open + close;
  return `${open}\n${parts.map((part) => `${inner}${part},\n`).join("")}${indent}${close}`;
}

/** The elements of both snippets, each with a button that copies it. */
export function snippets(url, body, needsKey) {
  return [
    ["curl", curl(url, body, needsKey)],
    ["Python", python(url, body, needsKey)],
  ].map(([name, code]) => {
    const block = h("pre", { tabindex: 0, "aria-label": name }, h("code", {}, code));
    const button = h("button", { type: "button", class: "small", "aria-label": `Copy ${name}` }, "Copy");
    button.addEventListener("click", async () => {
      button.textContent = (await copyCode(code, block)) ? "Copied" : "Selected: press Ctrl C";
      setTimeout(() => (button.textContent = "Copy"), 2000);
    });
    return h("div", { class: "snippet" }, h("div", { class: "row" }, h("h3", { class: "quiet-title" }, name), button), block);
  });
}

/** Copies the code; selects it if there is no clipboard, as on a page without TLS from another machine. */
async function copyCode(code, block) {
  try {
    await navigator.clipboard.writeText(code);
    return true;
  } catch {
    getSelection().selectAllChildren(block);
    return false;
  }
}
