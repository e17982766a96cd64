// What several parts of the page are made of: sections, tables, bars, times, commands.

import { h } from "./dom.js";

/** A section with a title, in a card. `id` keeps the reader's place when it is made anew. */
export function section(id, title, ...children) {
  const heading = `${id}-title`;
  return h("section", { id: `part-${id}`, class: "part", "aria-labelledby": heading }, h("h2", { id: heading }, title), ...children);
}

/** A table that scrolls by itself on a narrow screen. */
export function table(columns, rows, name) {
  const cell = (value, number) => h(number ? "td" : "th", number ? { class: typeof value === "number" ? "value" : undefined } : { scope: "row" }, typeof value === "number" ? value.toLocaleString("en") : value);
  return h(
    "div",
    { class: "wide", tabindex: "0", role: "region", "aria-label": name },
    h("table", {}, h("thead", {}, h("tr", {}, columns.map((each) => h("th", { scope: "col" }, each)))), h("tbody", {}, rows.map((row) => h("tr", {}, row.map(cell))))),
  );
}

/** A list of shares as bars: [name, count, class]. */
export function bars(rows, of) {
  return h(
    "ul",
    { class: "bars" },
    rows.map(([name, count, kind]) =>
      h("li", { class: kind }, h("span", { class: "name" }, name), h("span", { class: "bar", "aria-hidden": "true" }, h("span", { vars: { share: of ? count / of : 0 } })), h("span", { class: "value" }, share(of ? count / of : 0), h("span", { class: "unseen" }, `, ${count.toLocaleString("en")}`))),
    ),
  );
}

/** A command to be run in a terminal. */
export const command = (text) => h("pre", { tabindex: "0", "aria-label": "Command" }, h("code", {}, text));

/** `open` stays as the reader left it. */
export const more = (id, title, ...children) => h("details", { "data-id": id }, h("summary", {}, title), ...children);

const MOMENT = new Intl.DateTimeFormat("en-GB", { year: "numeric", month: "short", day: "numeric", hour: "2-digit", minute: "2-digit" });
const DAY = new Intl.DateTimeFormat("en-GB", { year: "numeric", month: "short", day: "numeric" });
export const time = (seconds) => MOMENT.format(seconds * 1000);
export const day = (seconds) => DAY.format(seconds * 1000);

export const hint = (...children) => h("p", { class: "hint" }, ...children);
export const whole = (number) => number.toLocaleString("en");
export const many = (number, word) => `${whole(number)} ${word}${number === 1 ? "" : "s"}`;

/** "1.2 %", "99.98 %": with as many digits as tell it from 0 and 100 %. */
export function share(value) {
  let digits = 1;
  while (value > 0 && value < 1 && digits < 12 && [0, 100].includes(Number((100 * value).toFixed(digits)))) digits += 1;
  return `${(100 * value).toFixed(digits).replace(/\.0$/, "")} %`;
}

/** What was proven, never less risk: 0.0125 is at most 1.25 %, all but it 98.75 %. */
export const atMost = (risk) => `${roundedUp(risk)} %`;
export const allBut = (risk) => `${Number((100 - roundedUp(risk)).toFixed(12))} %`;

function roundedUp(risk) {
  const power = 10 ** Math.max(0, 1 - Math.floor(Math.log10(risk)));
  return Math.ceil(Number((100 * risk * power).toFixed(6))) / power;
}

/** Seconds in words: 3.1 ms, 0.4 s, 2.5 hours. */
export function duration(seconds) {
  if (seconds < 1) return `${Number((seconds * 1000).toPrecision(2))} ms`;
  if (seconds < 90) return `${Number(seconds.toPrecision(2))} s`;
  if (seconds < 5400) return `${(seconds / 60).toFixed(1)} minutes`;
  return `${(seconds / 3600).toFixed(1)} hours`;
}
