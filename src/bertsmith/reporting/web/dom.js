// Elements and numbers: what every other file of the page writes with.

/** An element. `given`: properties; `on…` are listeners, `data` and `aria` attributes, `class` its classes. */
export function h(tag, given = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(given)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "class") element.className = value;
    else if (name === "vars") for (const [key, each] of Object.entries(value)) element.style.setProperty(`--${key}`, each);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

export const by = (id) => document.getElementById(id);

/** 0.9816 → "98.2 %". */
export const percent = (share) => `${(100 * share).toFixed(share > 0.9995 || share < 0.0005 ? 2 : 1)} %`;

/** Three figures that say something: 0.0123, 1.23, 123. */
export function figure(number) {
  if (number === 0 || !Number.isFinite(number)) return String(number);
  const size = Math.abs(number);
  if (size >= 1000) return Math.round(number).toLocaleString("en");
  return size < 0.0005 ? number.toExponential(1) : Number(number.toPrecision(3)).toString();
}

export const signed = (number) => (number < 0 ? "−" : "+") + figure(Math.abs(number));

/** "1 token", "2 tokens". */
export const count = (number, word) => `${number.toLocaleString("en")} ${word}${number === 1 ? "" : "s"}`;

/** Arrow keys move between the items, of which one alone is a tab stop; `columns` makes it a grid. */
export function roving(items, columns, chosen) {
  items.forEach((item, number) => {
    item.tabIndex = number === 0 ? 0 : -1;
    item.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns }[event.key];
      const place = event.key === "Home" ? 0 : event.key === "End" ? items.length - 1 : number + (step ?? NaN);
      if (!(place in items)) return;
      event.preventDefault();
      items[place].focus();
    });
    item.addEventListener("focus", () => {
      for (const other of items) other.tabIndex = other === item ? 0 : -1;
      chosen?.(number);
    });
  });
}

/** A text in pieces: `spans` are [start, end, make(text)] in code points, as the service counts them. */
export function marked(text, spans) {
  const letters = Array.from(text);
  const piece = (start, end) => letters.slice(start, end).join("");
  const parts = [];
  let at = 0;
  for (const [start, end, make] of [...spans].sort((one, other) => one[0] - other[0])) {
    if (start < at) continue;
    parts.push(piece(at, start), make(piece(start, end)));
    at = end;
  }
  return [...parts, piece(at)];
}
