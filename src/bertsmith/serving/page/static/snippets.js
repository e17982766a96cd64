// The same request by curl and by Python, to be copied.

import { h } from "./dom.js";

const shellQuoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

export function curl(url, body, keyed) {
  const lines = [`curl ${shellQuoted(url)}`, "-H 'Content-Type: application/json'"];
  if (keyed) lines.push('-H "Authorization: Bearer $BERTSMITH_KEY"');
  lines.push(`-d ${shellQuoted(JSON.stringify(body))}`);
  return lines.join(" \\\n  ");
}

export function python(url, body, keyed) {
  const headers = ['"Content-Type": "application/json"'];
  if (keyed) headers.push('"Authorization": "Bearer " + os.environ["BERTSMITH_KEY"]');
  return [
    "import json",
    ...(keyed ? ["import os"] : []),
    "from urllib.request import Request, urlopen",
    "",
    `url = ${JSON.stringify(url)}`,
    `body = ${literal(body, "")}`,
    `headers = {${headers.join(", ")}}`,
    "with urlopen(Request(url, json.dumps(body).encode(), headers)) as answer:",
    '    print(json.load(answer)["results"])',
  ].join("\n");
}

/** JSON as Python writes it. A string of JSON is one of Python, but for halves of a surrogate pair. */
function literal(value, indent) {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value !== "object") return JSON.stringify(value);
  const inner = `${indent}    `;
  const parts = Array.isArray(value)
    ? value.map((each) => literal(each, inner))
    : Object.entries(value).map(([name, each]) => `${JSON.stringify(name)}: ${literal(each, inner)}`);
  const [open, close] = Array.isArray(value) ? "[]" : "{}";
  if (!parts.length) return open + close;
  return `${open}\n${parts.map((part) => `${inner}${part},\n`).join("")}${indent}${close}`;
}

/** Both, each with a button that copies it. */
export function snippets(url, body, keyed) {
  return [
    ["curl", curl(url, body, keyed)],
    ["Python", python(url, body, keyed)],
  ].map(([name, code]) => {
    const written = h("pre", { tabindex: 0, "aria-label": name }, h("code", {}, code));
    const button = h("button", { type: "button", class: "small", "aria-label": `Copy ${name}` }, "Copy");
    button.addEventListener("click", async () => {
      button.textContent = (await copied(code, written)) ? "Copied" : "Selected: press Ctrl C";
      setTimeout(() => (button.textContent = "Copy"), 2000);
    });
    return h("div", { class: "snippet" }, h("div", { class: "row" }, h("h3", { class: "quiet-title" }, name), button), written);
  });
}

/** A page that came without TLS from another machine has no clipboard: then the code is selected. */
async function copied(code, written) {
  try {
    await navigator.clipboard.writeText(code);
    return true;
  } catch {
    getSelection().selectAllChildren(written);
    return false;
  }
}
