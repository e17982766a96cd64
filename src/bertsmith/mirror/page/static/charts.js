// Lines, bands and dots as SVG, in the width that there is.

const SPACE = "http://www.w3.org/2000/svg";
const HEIGHT = 230;
const [LEFT, RIGHT, TOP, BOTTOM] = [52, 14, 10, 34];

/** An SVG element. */
export function s(tag, given = {}, ...children) {
  const element = document.createElementNS(SPACE, tag);
  for (const [name, value] of Object.entries(given)) if (value !== undefined) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** Round numbers from `low` to `high`, about `count` of them. */
export function ticks(low, high, count = 4) {
  const span = high - low || 1;
  const raw = span / count;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = power * [1, 2, 2.5, 5, 10].find((each) => each * power >= raw * 0.999);
  const found = [];
  for (let at = Math.ceil(low / step - 1e-9) * step; at <= high + step * 1e-6; at += step) found.push(Number(at.toPrecision(12)));
  return found;
}

/** Moments from `low` to `high` (seconds since 1970) that divide it evenly, and how to write them. */
export function moments(low, high, count) {
  const span = high - low;
  const short = span < 86400 ? { hour: "2-digit", minute: "2-digit", ...(span < 600 ? { second: "2-digit" } : {}) } : { month: "short", day: "numeric" };
  const write = new Intl.DateTimeFormat("en-GB", short);
  const at = Array.from({ length: count }, (_, number) => low + (span * number) / (count - 1));
  const written = (value) => write.format(value * 1000);
  return { at: at.filter((value, number) => number === 0 || written(value) !== written(at[number - 1])), write: written };
}

/** A chart. `x` and `y`: {from, to, at, write, title, log}; `layers` are made by the functions below. */
export function chart({ label, width, x, y, layers }) {
  const wide = Math.max(width, 260);
  const along = x.log ? Math.log : (value) => value;
  const [first, last] = [along(x.from), along(x.to)];
  const right = (value) => LEFT + ((along(value) - first) / (last - first || 1)) * (wide - LEFT - RIGHT);
  const down = (value) => TOP + ((y.to - Math.min(Math.max(value, y.from), y.to)) / (y.to - y.from || 1)) * (HEIGHT - TOP - BOTTOM);
  const place = (value) => Number(value.toFixed(1));
  const scale = { x: (value) => place(right(value)), y: (value) => place(down(value)) };
  const grid = y.at.map((value) =>
    s("g", {}, s("line", { x1: LEFT, x2: wide - RIGHT, y1: scale.y(value), y2: scale.y(value), class: "grid" }), text(y.write(value), LEFT - 7, scale.y(value) + 4, "end")),
  );
  const below = x.at.map((value, number) =>
    text(x.write(value), scale.x(value), HEIGHT - BOTTOM + 17, number === x.at.length - 1 && scale.x(value) > wide - RIGHT - 20 ? "end" : number === 0 && scale.x(value) < LEFT + 20 ? "start" : "middle"),
  );
  const title = x.title ? [text(x.title, (LEFT + wide - RIGHT) / 2, HEIGHT - 3, "middle")] : [];
  const drawn = layers.flatMap((layer) => layer(scale, { from: LEFT, to: wide - RIGHT }));
  return s("svg", { viewBox: `0 0 ${wide} ${HEIGHT}`, width: wide, height: HEIGHT, role: "img", "aria-label": label, class: "chart" }, ...grid, ...below, ...title, ...drawn);
}

const text = (content, x, y, anchor) => s("text", { x, y, "text-anchor": anchor }, content);
const path = (points) => points.map(([x, y], number) => `${number ? "L" : "M"}${x} ${y}`).join("");

/** [[x, y], …] joined. */
export const line = (points, kind = "line") => (scale) => [s("path", { d: path(points.map(([x, y]) => [scale.x(x), scale.y(y)])), class: kind })];

/** [[x, low, high], …] filled between. */
export const band = (points) => (scale) => {
  const above = points.map(([x, , high]) => [scale.x(x), scale.y(high)]);
  const under = points.map(([x, low]) => [scale.x(x), scale.y(low)]).reverse();
  return [s("path", { d: `${path([...above, ...under])}Z`, class: "band" })];
};

/** [[x, y, low, high], …] as dots with whiskers. */
export const dots = (points, kind = "dot-mark") => (scale) =>
  points.flatMap(([x, y, low, high]) => [
    ...(low === undefined ? [] : [s("line", { x1: scale.x(x), x2: scale.x(x), y1: scale.y(low), y2: scale.y(high), class: "whisker" })]),
    s("circle", { cx: scale.x(x), cy: scale.y(y), r: 3, class: kind }),
  ]);

/** A level across the chart. */
export const level = (value, name) => (scale, { from, to }) => [
  s("line", { x1: from, x2: to, y1: scale.y(value), y2: scale.y(value), class: "level" }),
  s("text", { x: from + 4, y: scale.y(value) + 14, class: "level-name" }, name),
];

/** A moment up and down the chart. */
export const moment = (value, name) => (scale) => [s("line", { x1: scale.x(value), x2: scale.x(value), y1: TOP, y2: HEIGHT - BOTTOM, class: "moment" }, s("title", {}, name))];
