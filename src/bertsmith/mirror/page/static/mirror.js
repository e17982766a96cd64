// The mirror's page: fetches the state every few seconds, and shows the chosen version of the chosen site.

import { by, h } from "./dom.js";
import { agreementSection, answeredSection, savedSection } from "./evidence.js";
import { fieldsSection, templateSection, versionsSection } from "./fields.js";
import { confusionSection, learningSection } from "./learning.js";
import { command, duration, hint, many, section, share, table, whole } from "./parts.js";
import { ask, keep } from "./request.js";
import { stageSection } from "./stage.js";
import { waiting } from "./waiting.js";

const EVERY = 5000; // milliseconds between two looks
const WIDEST = 680; // of a chart
let state = null;
let timer = 0;
let isLooking = false;
let isWanted = false; // another look, as soon as this one is over
let refusal = ""; // of the last move, until the next one

const CLOCK = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });

async function look() {
  clearTimeout(timer);
  isWanted = isLooking;
  if (isLooking) return;
  isLooking = true;
  const stopping = new AbortController();
  by("waiting").hidden = state !== null;
  const shown = state === null ? waiting(by("waiting"), () => stopping.abort(), "Reading the store") : null;
  try {
    state = (await ask(new URL("state", document.baseURI), undefined, stopping.signal)).data;
    by("unlock").hidden = true;
    say(refusal);
    show();
  } catch (error) {
    if (error.name === "AbortError") say("Cancelled. Load the page again to look.");
    else refused(error);
  } finally {
    shown?.end();
    by("waiting").hidden = true;
    isLooking = false;
    if (isWanted) look();
    else if (!document.hidden && by("unlock").hidden) timer = setTimeout(look, EVERY);
  }
}

function refused(error) {
  if (error.status === 401) by("unlock").hidden = false;
  const old = state === null ? "" : ` What is shown is from ${CLOCK.format(state.at * 1000)}.`;
  const gone = error.status === 0 ? "The mirror can’t be reached. Is it still running?" : error.message;
  say(gone + old);
}

function say(sentence) {
  const there = by("problem").textContent;
  if (there !== sentence) by("problem").replaceChildren(...(sentence ? [h("p", { class: "problem" }, sentence)] : []));
}

async function move(version, name) {
  refusal = "";
  try {
    const { data } = await ask(new URL("stages", document.baseURI), { version: version.version, revision: version.stage.revision, move: name });
    by("said").textContent = `Version ${version.version} is in mode ${data.mode} now.`;
  } catch (error) {
    refusal = error.message;
    say(refusal);
  }
  await look();
}

/** From the address: #site/version. */
function chosen() {
  const [site, name] = decodeURIComponent(location.hash.slice(1)).split("/");
  const order = [...state.versions].sort((one, other) => rank(other) - rank(one) || (other.traffic_ended ?? 0) - (one.traffic_ended ?? 0) || other.ended - one.ended);
  return state.versions.find((each) => each.site === site && each.version === name) ?? order.find((each) => each.site === site) ?? order[0];
}

const rank = (version) => (version.stage.student || version.stage.candidate ? 2 : version.stage.revision ? 1 : 0);
const choose = (site, version) => (location.hash = `${encodeURIComponent(site)}/${version}`);

function show() {
  by("fresh").textContent = `as of ${CLOCK.format(state.at * 1000)}`;
  const { running } = state;
  const parts = [];
  if (running.store_problem) parts.push(h("p", { id: "store-problem", class: "problem" }, `Calls can’t be stored just now: ${running.store_problem} ${many(running.waiting, "call")} wait, ${whole(running.dropped)} are lost; all are relayed.`));
  const version = state.versions.length ? chosen() : null;
  by("sites").hidden = !version;
  if (!version) parts.push(nothing());
  else {
    settle(by("sites"), [siteList(version)]);
    const width = Math.min(WIDEST, by("shown").clientWidth - 2);
    const here = version.version;
    parts.push(
      heading(version),
      stageSection(state, version, (name) => move(state.versions.find((each) => each.version === here), name)),
      agreementSection(state, version, width),
      answeredSection(state, version),
      savedSection(state, version),
      learningSection(state, version, width),
      confusionSection(state, version),
      fieldsSection(state, version),
      templateSection(state, version),
      versionsSection(state, version.site, version, (each) => choose(version.site, each)),
    );
  }
  parts.push(notMirrored());
  settle(by("shown"), parts.filter(Boolean));
  document.body.dataset.ready = "yes";
}

/** Puts new parts in the place of the old ones that they differ from; what is open stays so, and the focus. */
function settle(place, parts) {
  const focus = document.activeElement?.id;
  for (const old of place.querySelectorAll("details[open]")) {
    for (const part of parts) part.querySelector?.(`details[data-id="${CSS.escape(old.dataset.id)}"]`)?.setAttribute("open", "");
  }
  const same = place.children.length === parts.length;
  if (!same) place.replaceChildren(...parts);
  else parts.forEach((part, number) => place.children[number].outerHTML !== part.outerHTML && place.children[number].replaceWith(part));
  if (focus && document.activeElement?.id !== focus) by(focus)?.focus({ preventScroll: true });
}

function siteList(version) {
  const sites = new Map();
  for (const each of state.versions) {
    const known = sites.get(each.site) ?? { calls: 0, name: each.schema_name || each.site, mode: each.stage.mode };
    sites.set(each.site, { ...known, calls: known.calls + each.calls, mode: rank(each) ? each.stage.mode : known.mode });
  }
  return h(
    "ul",
    { class: "sites" },
    [...sites].map(([site, { calls, name, mode }]) =>
      h("li", {}, h("a", { id: `site-${site}`, href: `#${encodeURIComponent(site)}`, "aria-current": site === version.site ? "true" : undefined }, h("b", {}, name), h("span", { class: "hint" }, `${site === name ? "" : `${site} · `}${many(calls, "call")} · ${mode}`))),
    ),
  );
}

function heading(version) {
  const account = state.answering.find((each) => each.stage.version === version.version);
  const facts = [["calls recorded", whole(version.calls)], ["mode", version.stage.mode]];
  if (account?.compared) facts.push(["agree", share(1 - account.differs)]);
  if (account?.answered) facts.push(["calls avoided", whole(account.calls_avoided)], ["waiting saved", duration(account.seconds_saved)]);
  if (account?.money) facts.push(["saved", account.money.saved.toFixed(2)]);
  return h(
    "header",
    { class: "heading" },
    h("h1", {}, version.schema_name || version.site),
    hint(`Place ${version.site} · version ${version.version} · ${version.model} · ${version.protocol}`),
    h("dl", { class: "facts" }, facts.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", { class: "digits" }, value)))),
  );
}

function nothing() {
  const base = location.href.split("/bertsmith/")[0];
  return h(
    "section",
    { class: "part", "aria-labelledby": "nothing-title" },
    h("h1", { id: "nothing-title" }, "Nothing is recorded yet"),
    h("p", {}, "The mirror runs and hands everything on. Change your application’s base URL, and nothing else:"),
    command(`OPENAI_BASE_URL=${base}/v1\nANTHROPIC_BASE_URL=${base}`),
    h("p", {}, "Calls whose answers have a schema then show up here within a second. There are logs already? Take them in:"),
    command(`bertsmith mirror import calls.jsonl${state.store === "mirror.sqlite" ? "" : ` --store ${state.store}`}`),
  );
}

function notMirrored() {
  if (!state.not_mirrored.length) return null;
  const rows = [...state.not_mirrored].sort((one, other) => other.calls - one.calls).map((each) => [each.reason, each.protocol, each.calls]);
  return section("passed", "Handed on, and not recorded", hint("Calls that can’t be mirrored, and why. They were answered as ever."), table(["reason", "protocol", "calls"], rows, "Calls not recorded"));
}

by("unlock").addEventListener("submit", (event) => {
  event.preventDefault();
  keep(by("key").value);
  by("key").value = "";
  by("unlock").hidden = true;
  look();
});
addEventListener("hashchange", () => {
  if (state === null) return;
  show();
  scrollTo(0, 0);
});
let resizing = 0;
addEventListener("resize", () => {
  clearTimeout(resizing);
  resizing = setTimeout(() => state && show(), 100);
});
document.addEventListener("visibilitychange", () => document.hidden || look());
look();
