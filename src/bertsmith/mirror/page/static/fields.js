// What is asked and answered: the messages with what varies marked, and the values of each field.

import { h } from "./dom.js";
import { bars, hint, many, section, table, whole, day } from "./parts.js";

export function fieldsSection(state, version) {
  const details = state.details[version.version];
  const paths = Object.entries(version.fields);
  if (!paths.length) return null;
  return section(
    "fields",
    "Fields of the answers",
    details ? hint(`Of the latest ${many(Math.max(...Object.values(details.values).map((each) => each.calls), 0), "answer")}.`) : null,
    h("div", { class: "fields" }, paths.map(([path, types]) => field(path, types, details?.values[path]))),
  );
}

function field(path, types, seen) {
  const title = h("h3", {}, h("code", {}, path), " ", h("span", { class: "hint" }, types.join(" or ")));
  if (!seen) return h("div", { class: "seen" }, title);
  if (seen.range) return h("div", { class: "seen" }, title, h("p", {}, `${many(seen.different, "number")} from ${seen.range[0]} to ${seen.range[1]}`));
  if (seen.is_text) return h("div", { class: "seen" }, title, hint(`${many(seen.different, "different text")}, not shown`));
  const total = seen.values.reduce((sum, [, count]) => sum + count, 0);
  const rest = seen.different - seen.values.length;
  return h("div", { class: "seen" }, title, bars(seen.values.map(([value, count]) => [value, count]), Math.max(seen.calls, total)), rest > 0 ? hint(`${whole(rest)} rarer values`) : null);
}

export function templateSection(state, version) {
  const template = state.details[version.version]?.template;
  const name = "What the LLM is asked";
  if (!template) return section("template", name, h("p", { class: "empty" }, "It takes 20 different calls to tell the input from the prompt around it."));
  let number = 0;
  const several = template.flatMap((each) => each.parts).reduce((sum, part) => sum + part.length - 1, 0) > 1;
  const gap = () => h("mark", {}, several ? `text ${(number += 1)}` : "text");
  return section(
    "template",
    name,
    hint("The marked part varies: it is the input that the student, your small model, reads. Look whether that is right before you train."),
    h("div", { class: "template" }, template.flatMap((message) => message.parts.map((pieces) => h("p", { class: "prose" }, h("span", { class: "role" }, message.role), pieces.flatMap((piece, place) => (place ? [gap(), piece] : [piece])))))),
  );
}

export function versionsSection(state, site, chosen, choose) {
  const versions = state.versions.filter((each) => each.site === site);
  if (versions.length < 2) return null;
  const most = [...versions].sort((one, other) => other.calls - one.calls).slice(0, 40);
  const rows = versions.filter((each) => most.includes(each)).map((each) => [
    h("button", { type: "button", id: `version-${each.version}`, class: "small", "aria-pressed": String(each === chosen), onclick: () => choose(each.version) }, each.version),
    each.stage.mode, each.model, each.calls, day(each.began), day(each.ended),
  ]);
  return section(
    "versions",
    `Versions (${whole(versions.length)})`,
    hint("A place in your application has all calls to the LLM with the same prompt. A changed prompt, schema or model begins a new version of it, which is learned from apart. If only words of the prompt changed: bertsmith mirror merge."),
    table(["version", "mode", "model", "calls", "first", "last"], rows, "Versions of this place in your application"),
    versions.length > most.length ? hint(`${whole(versions.length - most.length)} more with fewer calls. Where each call opens a version, its text stands in the system prompt.`) : null,
  );
}
