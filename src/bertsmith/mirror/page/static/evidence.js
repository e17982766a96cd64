// What is known of a student at work: agreement over time, who answered what, money and time, drift.

import { band, chart, dots, level, line, moment, moments, ticks } from "./charts.js";
import { h } from "./dom.js";
import { allBut, bars, duration, hint, many, more, section, share, table, time, whole } from "./parts.js";

const REASONS = {
  "low-confidence": "not sure enough",
  canary: "not in the canary's share",
  shadow: "shadow",
  "new-prompt": "another prompt",
  "new-model": "another model",
  "new-schema": "another schema",
  "new-template": "other messages",
  "new-key": "a caller not yet known",
  redacted: "would quote what is hidden",
  "student-busy": "student busy",
  "student-slow": "student too slow",
  "student-failed": "student failed",
  "audits-behind": "audits behind",
};

const accountOf = (state, version) => state.answering.find((each) => each.stage.version === version.version);

/** How often the student and the LLM agree, as it came. */
export function agreementSection(state, version, width) {
  const account = accountOf(state, version);
  const student = account?.stage.student || account?.stage.candidate || lastStudent(state, version);
  if (!student) return null;
  const name = "Agreement over time";
  const found = state.agreement[student];
  const known = state.students[student];
  if (!known?.compared) return section("agreement", name, h("p", { class: "empty" }, "Nothing is compared yet. In shadow every sure answer is compared with the LLM's; afterwards those that are audited."));
  const within = `${share(1 - known.high)} and ${share(1 - known.low)}`;
  const said = `${share(1 - known.rate)} of ${many(known.compared, "compared answer")} agree; of all, with ${allBut(known.delta)} confidence, between ${within}.`;
  const changes = state.changes.filter((each) => each.version === version.version && each.student === student);
  return section(
    "agreement",
    name,
    h("p", { class: "verdict" }, h("strong", {}, share(1 - known.rate)), " of the compared answers agree"),
    hint(`${many(known.compared, "answer")} of student ${student} compared. With ${allBut(known.delta)} confidence, at whatever moment you look, between ${within} of all its answers agree. At least ${allBut(known.epsilon)} was promised.`),
    found ? drawn(found, known.epsilon, said, width, changes) : hint("The course is drawn from ten comparisons on."),
    found && hint("The line and its band are all comparisons so far. Dots are parts of them by themselves, with their own 95 % intervals: what went wrong lately shows there first. Upright lines are changes of the mode."),
    found && more("agreement-table", "As a table", table(["when", "compared", "agree so far", `with ${allBut(known.delta)} confidence`, "of the latest part"], found.blocks.map((each) => row(each, found)), "Agreement over time")),
  );
}

function lastStudent(state, version) {
  const changes = state.changes.filter((each) => each.version === version.version && state.agreement[each.student]);
  return changes.at(-1)?.student ?? "";
}

function row(block, found) {
  const point = found.course.find((each) => each.compared === block.compared);
  return [time(block.at), block.compared, share(1 - point.rate), `${share(1 - point.high)} to ${share(1 - point.low)}`, `${share(1 - block.rate)} of ${whole(block.calls)}`];
}

function drawn({ course, blocks }, epsilon, label, width, changes) {
  const from = course[0].at;
  const to = Math.max(course.at(-1).at, from + 1);
  const settled = course.slice(Math.floor(course.length / 4));
  const lowest = Math.min(1 - epsilon, ...settled.map((each) => 1 - each.high), ...blocks.map((each) => 1 - each.rate));
  const bottom = Math.max(0, Math.floor((lowest - 0.02) * 20) / 20);
  const across = moments(from, to, width < 420 ? 3 : 5);
  return chart({
    label,
    width,
    x: { from, to, at: across.at, write: across.write },
    y: { from: bottom, to: 1, at: ticks(bottom, 1, 4), write: share },
    layers: [
      band(course.map((each) => [each.at, 1 - each.high, 1 - each.low])),
      level(1 - epsilon, `promised: ${allBut(epsilon)}`),
      ...changes.filter((each) => each.changed >= from && each.changed <= to).map((each) => moment(each.changed, `${each.mode_before} → ${each.mode}, ${time(each.changed)}`)),
      line(course.map((each) => [each.at, 1 - each.rate])),
      dots(blocks.map((each) => [each.at, 1 - each.rate, 1 - each.high, 1 - each.low])),
    ],
  });
}

/** The student, the LLM, and audits. */
export function answeredSection(state, version) {
  const account = accountOf(state, version);
  if (!account) return null;
  const relayed = Object.entries(account.relayed).sort((one, other) => other[1] - one[1]);
  const asked = relayed.reduce((sum, [, count]) => sum + count, 0);
  const total = account.answered + asked;
  const name = "Who answered what";
  if (!total) return section("answered", name, h("p", { class: "empty" }, account.stage.mode === "shadow" ? "In shadow the LLM answers every call. From canary on it stands here who answered which share." : "No call has come since a student may answer."), refused(account));
  const audited = Object.values(account.audits).reduce((sum, count) => sum + count, 0);
  const rows = [["the student", account.answered - audited, "ours"], ["the student, and audited by the LLM", audited, "ours audit"], ...relayed.map(([reason, count]) => [`the LLM: ${REASONS[reason] ?? reason}`, count, ""])];
  const outcomes = Object.entries(account.audits).map(([outcome, count]) => `${whole(count)} ${outcome}`);
  return section(
    "answered",
    name,
    h("p", { class: "verdict" }, h("strong", {}, share(account.answered / total)), ` of ${many(total, "call")} answered by the student`),
    bars(rows.filter(([, count]) => count > 0), total),
    outcomes.length ? hint(`Audits: ${outcomes.join(", ")}.`) : null,
    refused(account),
    drift(account),
  );
}

/** Calls without an answer of the LLM's: what it refused, and audits that tell nothing. */
function refused(account) {
  const said = (of) => Object.entries(of).map(([reason, count]) => `${whole(count)} ${reason}`).join(", ");
  const parts = [];
  if (Object.keys(account.refused).length) parts.push(`The LLM refused: ${said(account.refused)}. Where the student was sure, it differs.`);
  if (Object.keys(account.void).length) parts.push(`Void audits, which tell nothing: ${said(account.void)}.`);
  return parts.length ? hint(parts.join(" ")) : null;
}

function drift(account) {
  if (!account.stage.student) return null;
  return account.has_drifted
    ? h("p", { class: "problem" }, "Drift: today's calls differ from those that the student was first compared on. That doesn't say its answers got worse: audits do. Train on newer calls.")
    : hint("No drift: today's calls are like those that the student was first compared on, as far as its confidence tells.");
}

/** Calls, time and money. */
export function savedSection(state, version) {
  const account = accountOf(state, version);
  if (!account || !(account.answered || account.replays)) return null;
  const { money } = account;
  const facts = [["calls avoided", whole(account.calls_avoided)]];
  if (account.own_seconds !== null) facts.push(["an answer takes", duration(account.own_seconds)]);
  if (account.llm_seconds !== null) facts.push(["the LLM’s took", duration(account.llm_seconds)], ["waiting saved", duration(account.seconds_saved)]);
  if (account.replays) facts.push(["recorded inputs asked again", whole(account.replays)]);
  if (money) {
    facts.push(["saved", money.saved.toFixed(2)], ["audits cost", money.audits.toFixed(2)]);
    if (account.replays) facts.push(["asking again cost", money.replays.toFixed(2)]);
    if (money.errors) facts.push(["differing answers cost", range(money.errors)], ["left over", range(money.net)]);
  }
  return section(
    "saved",
    "Saved and paid",
    h("dl", { class: "facts" }, facts.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", { class: "digits" }, value)))),
    money ? hint("In the currency of [prices]; what differing answers cost goes by the interval above.") : hint("For money, put [prices] into the mirror's TOML file: a call's, or a million tokens', and an error's."),
  );
}

const range = ([low, high]) => `${low.toFixed(2)} to ${high.toFixed(2)}`;
