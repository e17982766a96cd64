// Who answers: record, shadow, canary, live; what comes next, and buttons that change it.

import { by, h } from "./dom.js";
import { atMost, command, hint, many, more, section, share, table, time, whole } from "./parts.js";

const MODES = ["record", "shadow", "canary", "live"];
const MEANING = {
  record: "The LLM answers every call, and its answers are recorded.",
  shadow: "The LLM answers every call. The student, your small model, answers beside it, unheard, and is compared with it.",
  canary: "The student, your small model, answers a share of the calls that it is sure of. The LLM answers all others.",
  live: "The student, your small model, answers every call that it is sure of. The LLM answers the others.",
};
const QUESTIONS = {
  promote: (stage, next) => [`Promote to ${next}?`, MEANING[next], `Promote to ${next}`],
  demote: (stage, next) => [`Demote to ${next}?`, MEANING[next], `Demote to ${next}`],
  "roll-back": (stage) => ["Go back to the former student?", `Student ${stage.former} takes the place of ${stage.student}, in the same mode (${stage.mode}).`, "Go back"],
  approve: (stage) => ["Let the candidate take the place?", `Student ${stage.candidate} takes the place of ${stage.student || "none"} at once, in the same mode (${stage.mode}), without more comparisons.`, "Let it"],
};

/** The section. `move(name)` changes the stage. */
export function stageSection(state, version, move) {
  const { stage } = version;
  const other = state.running.merged[version.version];
  if (other) return mergedSection(version, other);
  const at = MODES.indexOf(stage.mode);
  const steps = MODES.map((mode, number) =>
    h("li", { class: number < at ? "past" : number === at ? "present" : "", "aria-current": number === at ? "step" : undefined }, h("span", {}, mode), stage.mode === mode && mode === "canary" ? h("small", {}, share(stage.share)) : null),
  );
  return section(
    "stage",
    "Who answers",
    h("ol", { class: "steps" }, steps),
    h("p", {}, MEANING[stage.mode]),
    takenBack(state, version),
    h("div", { class: "next" }, next(state, version)),
    buttons(state, version, at, move),
    history(state, version),
  );
}

function mergedSection(version, other) {
  const address = `#${encodeURIComponent(version.site)}/${other}`;
  return section("stage", "Who answers", h("p", {}, "This version was merged with ", h("a", { id: "merged", href: address }, other), ", whose student reads its calls too. Its mode is that version’s."));
}

function buttons(state, version, at, move) {
  const { stage } = version;
  const student = stage.student || stage.candidate;
  const isDisproven = state.students[student]?.decision === "demote";
  const wanted = [];
  if (student && at < 3 && !isDisproven) wanted.push(["promote", `Promote to ${MODES[at + 1]}`, "main"]);
  if (at > 0) wanted.push(["demote", `Demote to ${MODES[at - 1]}`]);
  if (stage.candidate && stage.student) wanted.push(["approve", "Approve the candidate"]);
  if (stage.former) wanted.push(["roll-back", "Roll back to the former student"]);
  if (!wanted.length) return null;
  if (!state.may_act) return hint("Your key may look, and not change modes.");
  return h(
    "div",
    { class: "row moves" },
    wanted.map(([name, title, kind]) =>
      h("button", { type: "button", id: `move-${name}`, class: kind, onclick: () => confirmed(QUESTIONS[name](stage, MODES[at + (name === "promote" ? 1 : -1)]), () => move(name)) }, title),
    ),
  );
}

function confirmed([title, what, yes], then) {
  const dialog = by("sure");
  by("sure-title").textContent = title;
  by("sure-what").textContent = what;
  by("sure-yes").textContent = yes;
  dialog.returnValue = "";
  dialog.onclose = () => dialog.returnValue === "yes" && then();
  dialog.showModal();
}

/** What the evidence did, where it is the last that happened. */
function takenBack(state, version) {
  const last = changesOf(state, version)[0];
  const fell = last && last.by === "evidence" && MODES.indexOf(last.mode) < MODES.indexOf(last.mode_before);
  if (!fell) return null;
  return h("p", { class: "problem" }, `Demoted from ${last.mode_before} to ${last.mode} on ${time(last.changed)}: ${last.why}. ${version.stage.student ? "The former student is compared anew." : "The LLM answers all calls."}`);
}

/** In a sentence or two what has to happen now. */
function next(state, version) {
  const training = state.trainings[version.version];
  const learned = state.learned[version.version];
  const asked = state.replays[version.version];
  return [asked ? h("p", {}, asked) : null, nextStep(state, version, training, learned)].flat();
}

function nextStep(state, version, training, learned) {
  const { stage } = version;
  const { rules } = state;
  if (training?.is_under_way) return h("p", {}, `A student is being trained on ${many(training.calls, "call")}, since ${time(training.began)}.`);
  if (!stage.student && !stage.candidate) return noStudent(state, version, training, learned);
  const student = state.students[stage.student];
  const wanted = { shadow: rules.shadow_calls, canary: rules.canary_calls }[stage.mode];
  const known = student && !isGrowing(student) ? `${whole(student.in_stage)}${wanted ? ` of ${whole(wanted)}` : ""} ${(wanted ?? student.in_stage) === 1 ? "answer" : "answers"} compared since it is in ${stage.mode}.` : "";
  const parts = [];
  if (stage.student) parts.push(h("p", {}, `Student `, h("code", {}, stage.student), `. ${known}`));
  if (student?.decision === "demote") parts.push(h("p", {}, "The evidence is against it: train another."));
  else if (stage.is_held && rules.auto) parts.push(h("p", {}, "It was demoted by hand, and doesn’t rise by itself until a hand promotes it."));
  else if (isGrowing(student)) parts.push(grown(student.proof), h("p", {}, rules.auto ? "It may answer, and rises, the moment its proof stands." : "Once its proof stands a hand may promote it: the mirror wasn't started with --auto."));
  else if (wanted && student) parts.push(h("p", {}, rules.auto ? `At ${whole(wanted)}, with at most ${atMost(student.epsilon)} that differ, it rises to ${MODES[MODES.indexOf(stage.mode) + 1]} by itself.` : `${whole(wanted)} are enough to decide by. The mirror wasn't started with --auto, so a hand has to promote it.`));
  if (stage.candidate) {
    const of = state.students[stage.candidate];
    parts.push(h("p", {}, "Candidate ", h("code", {}, stage.candidate), `: ${many(of?.compared ?? 0, "answer")} compared${stage.student ? ", beside the present one" : ""}.`));
    if (of?.coverage != null && student?.coverage != null) parts.push(h("p", {}, `Of the calls since it came it may answer ${share(of.coverage)}, the present one ${share(student.coverage)}.`));
    if (isGrowing(of)) parts.push(grown(of.proof));
  }
  return parts;
}

/** Whether the student's proof goes on, with each call that the LLM answers too. */
const isGrowing = (student) => student?.proof != null && student.proof.threshold === null;

const grown = (proof) => h("p", { class: "proof" }, `${proof.text[0].toUpperCase()}${proof.text.slice(1)}.`);

function noStudent(state, version, training, learned) {
  const { rules } = state;
  const store = state.store === "mirror.sqlite" ? "" : ` --store ${state.store}`;
  const train = `bertsmith mirror train --site ${version.site} --version ${version.version}${store}`;
  const missing = rules.train_after - version.to_train;
  const parts = [];
  if (learned && !learned.coverage) parts.push(h("p", {}, `The last training proved nothing${learned.why_not ? `: ${learned.why_not}` : ""}.`), learned.curve ? h("p", {}, learned.curve.forecast) : null);
  else if (training?.outcome && training.calls) parts.push(h("p", {}, `The last training ended: ${training.outcome}.`));
  const forecast = state.forecasts[version.version];
  if (forecast?.text && !learned) parts.push(h("p", { class: "forecast" }, forecast.text));
  if (rules.auto) {
    if (missing > 0) parts.push(progress(version.to_train, rules.train_after), h("p", {}, `A student is trained by itself at ${whole(rules.train_after)} calls: ${whole(missing)} to go.`));
    else if (!training) parts.push(h("p", {}, "A student is about to be trained."));
    return parts;
  }
  if (learned && state.students[learned.student]?.decision === "demote") {
    parts.push(h("p", {}, "The evidence is against the last student. Train another; it learns from the calls since then too:"), command(train));
    return parts;
  }
  if (learned?.coverage) {
    parts.push(h("p", {}, `A student is trained and proven (${share(learned.coverage)} of the calls). Let it be compared:`), command(`bertsmith mirror promote ${version.version} --student students/${version.site}${store}`));
    return parts;
  }
  if (missing > 0) parts.push(progress(version.to_train, rules.train_after), h("p", {}, `Go on recording: some ${whole(rules.train_after)} calls are worth a first training. Then:`));
  else parts.push(h("p", {}, "There are enough calls to train on:"));
  parts.push(command(train));
  return parts;
}

const progress = (done, of) => h("progress", { max: of, value: done, "aria-label": `${whole(done)} of ${whole(of)} calls` });

const changesOf = (state, version) => state.changes.filter((each) => each.version === version.version).reverse();

function history(state, version) {
  const changes = changesOf(state, version);
  if (!changes.length) return null;
  const rows = changes.map((each) => [time(each.changed), each.mode_before === each.mode ? each.mode : `${each.mode_before} → ${each.mode}`, each.by, each.why, each.student || "–"]);
  return more("history", `History (${whole(changes.length)})`, table(["when", "mode", "by", "why", "student"], rows, "History of modes"));
}
