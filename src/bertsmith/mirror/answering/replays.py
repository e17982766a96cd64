"""Replays: recorded inputs that are asked again, two beside each passing call, within a budget.

    planned in the store → prepared → a call passes → claimed → LLM asked → recorded as a call

The mirror has no key of its own on disk, so an input waits until a call of the version that it is to be asked
under has been answered by the LLM, and is asked with the headers and the parameters of that call
(`bertsmith.mirror.answering.audits`). Each is asked once: it is claimed in the store before, so that several
mirrors on one store share the work, and what a killed mirror had claimed stays without an answer. Read
`ReplayStore.plan` first, which takes any stored calls.

After a change of the prompt or the model the inputs come from the version before (`draw_former_inputs`).
First two for each recorded answer: they teach what the LLM says now where it said that
(`bertsmith.mirror.learning.teacher_change`). The answers to the others are evidence like those to clients'
calls, as long as what is asked hasn't changed with the LLM. So they are drawn by chance from the latest
calls, a person's calls of ten minutes together, as in the proof in shadow. No student of the new version
learns from a former call with one of these inputs.

**A change that no name tells.** While a student answers, one recorded input for every thirty calls is asked
again under the same version: one whose recorded answer is what the student said lately where the LLM
contradicted it most surely. Of an input that gets another answer the LLM is asked once more. If it repeats
that one, forty inputs drawn like the calls are asked, twenty more after the first of these that gets another
answer twice, and forty more after each further one.

As long as it is the same LLM, the answers to an input that was drawn without looking at them are
exchangeable: that the two new ones agree, and the recorded one alone is another, has a probability of at most
1/2, however often the LLM contradicts itself. Bets on it multiply a capital by 1.8 or 0.2, which begins anew
wherever it falls below 1: a false alarm, at 1,000, comes on average once in at least 1,000 inputs with
another answer (e-detectors: Shin, Ramdas and Rinaldo, arXiv 2203.03532). Nothing is bet on an input that was
chosen for its recorded answer: of the rare answers of a careless LLM many are its errors, which it doesn't
repeat.
"""

import itertools
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import orjson
from sqlalchemy import and_, case, func, inspect, or_, select, update
from sqlalchemy.dialects import postgresql, sqlite

from bertsmith.errors import BertsmithError
from bertsmith.metrics.guarantees.bounds import clopper_pearson
from bertsmith.metrics.scores import Interval
from bertsmith.mirror.answering.shadow_proof import UNIT_SECONDS
from bertsmith.mirror.answering.stage_store import StageStore
from bertsmith.mirror.answering.stages import RECORD
from bertsmith.mirror.call import AGAIN, OWN_SOURCES, REPLAYED, SYSTEM_ROLES, UNDATED, Call, Json
from bertsmith.mirror.database import READING, is_sqlite
from bertsmith.mirror.fields import AnswerShape, Values, canonical_json, format_value
from bertsmith.mirror.identity import hash_fraction, replayed_call_id
from bertsmith.mirror.redaction import holds_placeholder
from bertsmith.mirror.store import Store
from bertsmith.mirror.student_file import read_student_file
from bertsmith.mirror.tables import CALLS, REPLAYS, TRAININGS
from bertsmith.mirror.template import PromptTemplate, find_template
from bertsmith.reporting.formatting import format_percent

PREPARED = 64  # questions of a version that are read before a call passes
ANSWERED = "answered"  # the outcome of a question whose answer is recorded
_DELETED = "deleted"  # … whose recorded call is gone
_LEARNED = "learned"  # … whose recorded call a student of the version has learned from
_NEW_CALLS = 25  # of a version, before inputs of the one before are asked under it
_UNLIKE = 0.02  # of the recorded inputs, the most that can't be asked
_DRAWN_FROM = 8  # latest calls for each that is drawn
_FEWEST = 50  # inputs that are worth it
_OF_EACH_ANSWER, _MOST_CHOSEN = 2, 0.4  # inputs with the same recorded answer, and such inputs of all
_NAMED_KINDS = ("enum", "boolean", "ordinal")  # of fields whose values the schema names
_SHOWN = 5  # changes in a sentence
_LATER = 1_000_000  # places further back, where the LLM had no time
CALLS_BETWEEN = 30  # calls of a version that a student answers, for each input that is asked again
_TOGETHER = 40  # inputs that are asked again after one whose answer has changed
_AFTER_ONE = 20  # … as long as no second one has
_APART = 100  # inputs between two chosen ones that have others drawn
_BET = 0.8  # of the capital, on the LLM's repeating its new answer
_ALARM = 1000.0
_LATEST = 500  # calls and repeated answers that are looked at
_NEWEST = 4000  # calls


class ReplayQuestion(NamedTuple):
    """The input of a stored `call`, to be asked under `version`. The answer becomes the call `id`, of this
    `source`.
    """

    id: str
    version: str
    source: str
    call: Call


class ReplayCount(NamedTuple):
    """Of one version: inputs that are to be asked again in all, those asked, and those answered."""

    planned: int
    asked: int
    answered: int

    @property
    def is_open(self) -> bool:
        """Whether some are still to be asked."""
        return self.asked < self.planned


class ReplayStore:
    """The table of replays in a store, which is created with the first plan."""

    def __init__(self, store: Store) -> None:
        self.store, self.engine = store, store.engine
        self._has_table = False

    @property
    def has_table(self) -> bool:
        """Whether anything was ever planned."""
        if not self._has_table:
            with self.engine.connect().execution_options(**READING) as connection:
                self._has_table = inspect(connection).has_table(REPLAYS.name)
        return self._has_table

    def plan(
        self,
        version: str,
        calls: Iterable[Call],
        source: str = REPLAYED,
        *,
        chosen: Sequence[Call] = (),
        is_first: bool = False,
        is_next: bool = False,
        is_drawn: bool = True,
        occasion: int = 0,
    ) -> int:
        """Plans to ask the inputs of stored `calls` once more under `version`, in this order and after those
        planned before; returns how many are new. An input is asked only beside a passing call of that
        version, with its system prompt, model and parameters. The answers are stored as calls of this
        `source`: REPLAYED ones count like the traffic, so their inputs must be drawn like it; AGAIN ones tell
        how often the LLM contradicts itself.

        Before these calls come the `chosen` ones, which become AGAIN ones. With `is_first` nothing is planned
        where something was before, or a training of the version has begun. With `is_next` they are asked
        before all others. `is_drawn`: the `calls` weren't chosen for their answers. An input of the version
        itself is asked once for each `occasion`, such as a change of the LLM.
        """
        insert, calls = (sqlite if is_sqlite(self.engine) else postgresql).insert(REPLAYS), list(calls)
        with self.engine.begin() as connection:
            self.store.lock(connection)
            REPLAYS.create(connection, checkfirst=True)
            count, last = connection.execute(
                select(func.count(), func.coalesce(func.max(REPLAYS.c.place % _LATER), -1)).where(
                    REPLAYS.c.version == version
                )
            ).one()
            trained = select(TRAININGS.c.version).where(TRAININGS.c.version == version)
            if is_first and (count or connection.execute(trained).first() is not None):
                return 0

            def name(call: Call, own_source: str) -> str:
                # Of an input that was asked already to tell a change, perhaps for its answer, another one:
                # left out, it would be missing among those that prove a student.
                is_same = call.version == version and (occasion or own_source == REPLAYED)
                return replayed_call_id(call.id, f"{version} {own_source} {occasion}" if is_same else version)

            sources = [AGAIN] * len(chosen) + [source] * len(calls)
            rows = [
                {
                    "id": name(call, own_source),
                    "version": version,
                    "source": own_source,
                    "recorded": call.id,
                    "place": last + number if not is_next else -1,
                    "asked": 0.0,
                    "is_drawn": int(is_drawn and number > len(chosen)),
                }
                for number, (call, own_source) in enumerate(zip([*chosen, *calls], sources, strict=True), 1)
            ]
            if not rows:
                return 0
            inserting = insert.on_conflict_do_nothing().returning(REPLAYS.c.id)
            return len(connection.execute(inserting, rows).all())

    def prepare(self, version: str, *, is_answered: bool) -> list[ReplayQuestion]:
        """The next questions of a version, with the recorded calls. Where a student answers its calls
        (`is_answered`), the replays that were to prove one are left out. What has an answer already, or is of
        a call that was deleted, is settled.
        """
        is_open = and_(REPLAYS.c.version == version, REPLAYS.c.asked == 0, REPLAYS.c.outcome.is_(None))
        query = select(REPLAYS).where(is_open).order_by(REPLAYS.c.place).limit(PREPARED)
        if is_answered:
            query = query.where(REPLAYS.c.source != REPLAYED)
        with self.engine.connect().execution_options(**READING) as connection:
            rows = list(connection.execute(query))
        known = self.store.calls_named([name for row in rows for name in (row.id, row.recorded)])
        questions = list[ReplayQuestion]()
        for row in rows:
            if row.id in known or row.recorded not in known:
                self.settle(row.id, ANSWERED if row.id in known else _DELETED)
                continue
            questions.append(ReplayQuestion(row.id, version, row.source, known[row.recorded]))
        return questions

    def claim(self, question: str) -> bool:
        """Whether the caller may ask it: nobody else has, and its recorded call is still stored."""
        is_open = and_(REPLAYS.c.id == question, REPLAYS.c.asked == 0, REPLAYS.c.outcome.is_(None))
        is_stored = REPLAYS.c.recorded.in_(select(CALLS.c.id))
        claiming = update(REPLAYS).where(is_open, is_stored).values(asked=time.time())
        with self.engine.begin() as connection:
            return connection.execute(claiming).rowcount == 1

    def settle(self, question: str, outcome: str) -> None:
        """Stores what came of a question."""
        self._set(question, {"outcome": outcome})

    def postpone(self, question: str, cause: str) -> None:
        """Gives a claimed question back, to be asked after all others, since the LLM gave no answer. The
        second time it is settled with the `cause`.
        """
        is_second = REPLAYS.c.place >= _LATER
        asked = case((is_second, REPLAYS.c.asked), else_=0.0)
        outcome = case((is_second, cause), else_=None)
        place = (REPLAYS.c.place + 1) % _LATER + _LATER  # one that was to be the next has -1
        self._set(question, {"asked": asked, "outcome": outcome, "place": place})

    def _set(self, question: str, row: dict[str, Any]) -> None:
        with self.engine.begin() as connection:
            connection.execute(update(REPLAYS).where(REPLAYS.c.id == question).values(**row))

    def leave_out(self, versions: Iterable[str], learned: Iterable[str]) -> None:
        """Settles what isn't asked yet under one of the `versions` of the `learned` calls (ids): a student
        that is proven by it mustn't know it.
        """
        if not self.has_table:
            return
        is_open = and_(REPLAYS.c.asked == 0, REPLAYS.c.outcome.is_(None), REPLAYS.c.source == REPLAYED)
        query = select(REPLAYS.c.id, REPLAYS.c.recorded).where(
            is_open, REPLAYS.c.version.in_(sorted(versions))
        )
        with self.engine.connect().execution_options(**READING) as connection:
            rows = list(connection.execute(query))
        known = set(learned)
        for row in rows:
            if row.recorded in known:
                self.settle(row.id, _LEARNED)

    def counts(self) -> dict[str, ReplayCount]:
        """How many questions there are of each version that has any."""
        if not self.has_table:
            return {}
        query = select(
            REPLAYS.c.version,
            func.count(),
            func.count().filter(or_(REPLAYS.c.asked > 0, REPLAYS.c.outcome.is_not(None))),
            func.count().filter(REPLAYS.c.outcome == ANSWERED),
        ).group_by(REPLAYS.c.version)
        with self.engine.connect().execution_options(**READING) as connection:
            return {version: ReplayCount(*counts) for version, *counts in connection.execute(query)}

    def paid_counts(self) -> dict[str, int]:
        """How many questions the LLM was asked of each version, whatever came of them."""
        if not self.has_table:
            return {}
        asked = select(REPLAYS.c.version, func.count()).where(REPLAYS.c.asked > 0).group_by(REPLAYS.c.version)
        with self.engine.connect().execution_options(**READING) as connection:
            return {row[0]: row[1] for row in connection.execute(asked)}

    def recorded(self, versions: Iterable[str]) -> dict[str, str]:
        """The ids of the recorded calls whose inputs are, or are to be, asked again under one of the
        `versions`, by the id of the call with the answer.
        """
        if not self.has_table:
            return {}
        own = and_(REPLAYS.c.version.in_(sorted(versions)), REPLAYS.c.source == REPLAYED)
        query = select(REPLAYS.c.id, REPLAYS.c.recorded).where(own)
        with self.engine.connect().execution_options(**READING) as connection:
            return {row.id: row.recorded for row in connection.execute(query)}

    def pairs(self, version: str, since: float = 0.0) -> list[tuple[Call, Call]]:
        """The recorded calls that were asked again under `version` after `since`, each with the new answer,
        in the order of these.
        """
        recorded = self.recorded([version])
        later = [call for call in self.store.calls_named(recorded).values() if call.began >= since]
        answers = sorted(later, key=lambda call: (call.began, call.id))
        former = self.store.calls_named(recorded[call.id] for call in answers)
        return [(former[recorded[call.id]], call) for call in answers if recorded[call.id] in former]

    def draw(self, version: str, count: int, before: float, answer: Json = None) -> list[Call]:
        """Up to `count` calls of a version, recorded earlier than `before` (seconds since 1970), whose inputs
        were not asked again: those with this `answer`, or any, drawn like the calls; of the latest 4,000.
        """
        asked = [REPLAYS.c.version == version] if self.has_table else []
        query = select(CALLS.c.id).where(
            CALLS.c.version == version,
            CALLS.c.began < before,
            CALLS.c.source.not_in([*OWN_SOURCES, UNDATED]),
            *[CALLS.c.id.not_in(select(REPLAYS.c.recorded).where(condition)) for condition in asked],
            *([] if answer is None else [CALLS.c.answer == orjson.dumps(answer).decode()]),
        )
        with self.engine.connect().execution_options(**READING) as connection:
            newest = query.order_by(CALLS.c.began.desc()).limit(_NEWEST)
            names = connection.execute(newest).scalars().all()
        drawn = list[Call]()
        # By a hash, for the ids of imported calls may be in the order of time.
        for name in sorted(names, key=lambda name: hash_fraction(name, 0)):
            call = self.store.calls_named([name]).get(name)
            if len(drawn) == count:
                break
            if call is None or holds_placeholder([message.parts for message in call.request.inputs]):
                continue
            is_drawn = call.weight is None or hash_fraction(name, 1) < call.weight
            if answer is not None or is_drawn:
                drawn.append(call)
        return drawn

    def repeated_answers(self, version: str, since: float) -> "list[RepeatedAnswer]":
        """The recorded calls whose inputs the LLM was asked again after `since`, to tell whether it has
        changed, in the order in which they were asked; the latest 500.
        """
        if not self.has_table:
            return []
        again = and_(REPLAYS.c.version == version, REPLAYS.c.source == AGAIN, REPLAYS.c.asked > since)
        query = select(REPLAYS).where(again).order_by(REPLAYS.c.asked.desc())
        with self.engine.connect().execution_options(**READING) as connection:
            rows = list(connection.execute(query.limit(_LATEST)))
        second = {row.recorded: row.id for row in rows}
        known = self.store.calls_named([name for row in rows for name in (row.id, row.recorded)])
        return [
            RepeatedAnswer(
                known[row.recorded], known[row.id], known.get(second.get(row.id, "")), bool(row.is_drawn)
            )
            for row in reversed(rows)
            if row.id in known and row.recorded in known and known[row.recorded].source != AGAIN
        ]


class RepeatedAnswer(NamedTuple):
    """A `recorded` call, the LLM's `first` new answer to its input, and, where that is another one, the
    `second`, once it has come. `is_drawn`: the call wasn't chosen for its answer.
    """

    recorded: Call
    first: Call
    second: Call | None
    is_drawn: bool = True


class ChangeEvidence(NamedTuple):
    """What repeated answers say about whether the LLM has changed. `pairs` are the recorded and the new
    calls since the first changed answer, drawn like the calls; `differing` of them have another answer. The
    LLM is to be asked once more about the `doubtful` new calls, and `wanted` recorded inputs.
    """

    capital: float
    pairs: list[tuple[Call, Call]]
    differing: int
    doubtful: list[Call]
    wanted: int

    @property
    def has_changed(self) -> bool:
        """Whether the LLM answers otherwise than before."""
        return self.capital >= _ALARM

    @property
    def interval(self) -> Interval:
        """Of the share of answers that have changed, with 95 % confidence. The last pair is one that changed,
        so the number of pairs is what is random (inverse sampling).
        """
        most = max(len(self.pairs) - 1, 1), max(self.differing - 1, 0)
        low = clopper_pearson(self.differing, max(len(self.pairs), 1), 0.05).low
        return Interval(low, clopper_pearson(most[1], most[0], 0.05).high)

    def describe(self) -> str:
        """How many answers differ, in words."""
        low, high = (format_percent(end) for end in self.interval)
        return (
            f"of {len(self.pairs):,} recorded inputs that were asked again {self.differing:,} got another "
            f"answer, {low} to {high} with 95 % confidence"
        )


def weigh_changes(answers: Sequence[RepeatedAnswer], differs: Callable[[Call, Call], bool]) -> ChangeEvidence:
    """Bets on each drawn input whose first new answer `differs` from the recorded one, in their order. One
    that was chosen for its answer has forty drawn, if its answer has changed.
    """
    capital, pairs, differing, drawn, chosen = 1.0, list[tuple[Call, Call]](), 0, _TOGETHER, _APART
    doubtful = list[Call]()
    for answer in answers:
        is_other = differs(answer.recorded, answer.first)
        chosen += 1
        drawn += answer.is_drawn
        if capital > 1 and answer.is_drawn:
            pairs.append((answer.recorded, answer.first))
            differing += is_other
        if not is_other:
            continue
        if answer.second is None:
            doubtful.append(answer.first)
            continue
        is_repeated = not differs(answer.first, answer.second)
        if not answer.is_drawn:
            if is_repeated and chosen >= _APART:
                drawn, chosen = 0, 0
            continue
        capital *= 1 + _BET if is_repeated else 1 - _BET
        drawn = 0 if is_repeated else drawn
        if capital >= _ALARM:
            break
        if capital <= 1:
            capital, pairs, differing = 1.0, [], 0
    # A single changed answer may be an error in the recorded one.
    together = _AFTER_ONE if 1 < capital < 2 else _TOGETHER
    return ChangeEvidence(capital, pairs, differing, doubtful, max(together - drawn, 0))


class AnswerDifference(NamedTuple):
    """Two answers to each of several `inputs`, of which `differing` have another one; `agreement` is the
    interval with 95 % confidence. `fields` has the number of differing answers by path; `changes` has (path,
    former value, new value, how often), the most frequent first.
    """

    inputs: int
    differing: int
    agreement: Interval
    fields: dict[str, int]
    changes: list[tuple[str, str, str, int]]

    def as_sentence(self, shape: AnswerShape) -> str:
        """How many answers differ, and from which value to which, where the schema names the values."""
        low, high = (format_percent(1 - end) for end in reversed(self.agreement))
        named = {field.path for field in shape.fields if field.kind in _NAMED_KINDS}
        shown = [
            f"{path} {former} → {new} ({count:,})"
            for path, former, new, count in self.changes
            if path in named
        ][:_SHOWN]
        most = f"; most often {', '.join(shown)}" if shown else ""
        return (
            f"Of {self.inputs:,} recorded inputs that were asked again {self.differing:,} got another answer "
            f"than before: {low} to {high}, with 95 % confidence{most}."
        )


def compare_answers(
    pairs: Sequence[tuple[Call, Call]], shape: AnswerShape, delta: float = 0.05
) -> AnswerDifference:
    """Compares the former and the new answer of each pair."""
    changes, fields = Counter[tuple[str, str, str]](), Counter[str]()
    differing = 0
    for call, other in pairs:
        former, new = shape.read(call.completion.value), shape.read(other.completion.value)
        paths = sorted(shape.differing_paths(former, new))
        differing += bool(paths)
        fields.update(paths)
        changes.update((path, _show(former, path), _show(new, path)) for path in paths)
    agreeing = clopper_pearson(len(pairs) - differing, len(pairs), delta)
    ranked = sorted(changes.items(), key=lambda item: (-item[1], item[0]))
    return AnswerDifference(
        len(pairs), differing, agreeing, dict(fields), [(*change, count) for change, count in ranked]
    )


def _show(values: Values, path: str) -> str:
    return format_value(values[path]) if path in values else "nothing"


def describe_replays(stages: StageStore) -> dict[str, str]:
    """By version, how many inputs are asked again, and how many answers differ, in sentences."""
    replays, told = ReplayStore(stages.store), dict[str, str]()
    counts = replays.counts()
    students, by_version = (stages.students(), stages.changed_stages()) if counts else ({}, {})
    changes, paid = (stages.llm_changes(), replays.paid_counts()) if counts else ({}, {})
    for version, count in counts.items():
        asked = f"{paid.get(version, 0):,} of {count.planned:,} recorded inputs were asked again"
        told[version] = f"{asked}, each at the price of a call."
        pairs = replays.pairs(version, changes.get(version, 0.0))
        for name in (pairs[0][0].version, version) if pairs else ():
            stage = by_version.get(name)
            student = students.get(stage.student or stage.candidate) if stage is not None else None
            try:
                shape = read_student_file(Path(student.folder)).shape if student is not None else None
            except BertsmithError:
                continue
            if shape is not None:
                told[version] += " " + compare_answers(pairs, shape).as_sentence(shape)
                break
    return told


class ReplayInputs(NamedTuple):
    """Calls whose inputs are to be asked again: `chosen` ones for their answers, and then `drawn` ones."""

    chosen: list[Call]
    drawn: list[Call]


def draw_former_inputs(stages: StageStore, count: int) -> dict[str, ReplayInputs]:
    """Of each version that has taken the place of one with a student, up to `count` calls of that one whose
    inputs may be asked again under it, in the order in which they are to be asked.

    None as long as the new version has fewer than 25 calls, where other versions of the place are in use
    beside it, where the traffic had drifted, and where more than one in fifty of the recorded inputs doesn't
    fit the new one's messages or holds a placeholder: the others wouldn't be like the traffic.
    """
    by_version = stages.stages()
    newest: dict[str, tuple[float, str]] = {}
    for version, facts in stages.versions(by_version).items():
        newest[facts.site] = max(newest.get(facts.site, (0.0, "")), (facts.began, version))
    with_student = {stage.site for stage in by_version.values() if stage.student}
    planned, trainings, merged = ReplayStore(stages.store).counts(), stages.trainings(), stages.merged()
    inputs: dict[str, ReplayInputs] = {}
    for site, (_, version) in newest.items():
        stage = by_version[version]
        is_known = version in planned or version in trainings or version in merged
        if site in with_student and not (is_known or stage.student or stage.candidate):
            inputs[version] = _draw_for_version(stages, version, count)
    return {version: own for version, own in inputs.items() if own.drawn}


def _draw_for_version(stages: StageStore, version: str, count: int) -> ReplayInputs:
    store, by_version, nothing = stages.store, stages.stages(), ReplayInputs([], [])
    if not (new := _latest_calls(store, version)):
        return nothing
    site, since, former, former_ended = by_version[version].site, new[-1].began, "", 0.0
    for other, stage in by_version.items():
        last = store.latest(other, 1) if stage.site == site and other != version else []
        if last and last[0].began >= since:
            return nothing
        if last and stage.student and stage.mode != RECORD and last[0].began > former_ended:
            former, former_ended = other, last[0].began
    evidence = stages.evidence().get(by_version[former].student) if former else None
    if not former or (evidence is not None and (evidence.has_drifted or evidence.decision == "demote")):
        return nothing
    return draw_inputs(stages, former, version, count)


def _latest_calls(store: Store, version: str) -> list[Call]:
    """The latest 25 calls that clients made; none where there are fewer."""
    calls = [call for call in store.latest(version, _LATEST) if call.source not in OWN_SOURCES]
    return calls[:_NEW_CALLS] if len(calls) >= _NEW_CALLS else []


def draw_inputs(stages: StageStore, former: str, version: str, count: int) -> ReplayInputs:
    """Up to `count` calls of the `former` version (which may be the same): some drawn by chance like the
    traffic, a person's of ten minutes together, and two more for each answer that was recorded several times.
    None where their inputs, or the latest ones of `version`, differ in form, nor of merged versions: one's
    inputs aren't like the traffic of all.
    """
    store = stages.store
    if not {former, version}.isdisjoint(stages.merged()):
        return ReplayInputs([], [])
    new = _latest_calls(store, version)
    latest = [
        call
        for call in store.latest(former, _DRAWN_FROM * count)
        if call.source not in (*OWN_SOURCES, UNDATED)
    ]
    recorded = [call for call in latest if call.weight is None or hash_fraction(call.id, 2) < call.weight]
    templates = _input_template(new), _input_template(recorded)
    fitting = [call for call in recorded if _fits(call, templates)]
    is_alike = all(_fits(call, templates) for call in new)
    if not new or not is_alike or len(fitting) < max(_FEWEST, (1 - _UNLIKE) * len(recorded)):
        return ReplayInputs([], [])

    def order(call: Call) -> tuple[float, float, str]:
        persons = " ".join(call.request.subjects)
        unit = f"{persons} {call.began // UNIT_SECONDS}" if persons else call.id
        return hash_fraction(f"{version} {unit}", 0), call.began, call.id

    # Drawn before any is chosen for its answer: else rare answers would be missing among them.
    drawn = sorted(fitting, key=order)[:count]
    of_answer: dict[bytes, list[Call]] = {}
    for call in sorted(latest, key=lambda call: hash_fraction(call.id, 3)):
        of_answer.setdefault(canonical_json(call.completion.value), []).append(call)
    left, chosen = {call.id for call in latest}.difference(call.id for call in drawn), list[Call]()
    for calls in sorted(of_answer.values(), key=len, reverse=True):
        if len(calls) > 1:
            usable = (call for call in calls if call.id in left and _fits(call, templates))
            chosen += itertools.islice(usable, _OF_EACH_ANSWER)
    chosen = chosen[: round(_MOST_CHOSEN * count)]
    return ReplayInputs(chosen, drawn[: count - len(chosen)])


def _input_template(calls: Sequence[Call]) -> PromptTemplate | None:
    """The template of the messages beside the system prompt."""
    template = find_template([call.request.messages for call in calls])
    if template is None:
        return None
    inputs = (message for message in template.messages if message.role not in SYSTEM_ROLES)
    return PromptTemplate(messages=tuple(inputs))


def _fits(call: Call, templates: Iterable[PromptTemplate | None]) -> bool:
    """Whether a call's input fits all of the templates and is as the client sent it."""
    inputs = call.request.inputs
    fits = all(template is not None and template.input_of_messages(inputs) for template in templates)
    return fits and not holds_placeholder([message.parts for message in inputs])


class ReplayQueue:
    """The prepared questions by version. The reconciler's thread fills it, others take from it."""

    def __init__(self) -> None:
        self.sites: frozenset[str] = frozenset()
        self._questions: dict[str, deque[ReplayQuestion]] = {}
        self._site_of = dict[str, str]()  # by version

    def fill(self, replays: ReplayStore, answered: Collection[str]) -> None:
        """Reads the next questions of the versions that have few waiting; one that was taken meanwhile can't
        be claimed twice. A student answers the calls of the `answered` versions.
        """
        questions: dict[str, deque[ReplayQuestion]] = {}
        for version, count in replays.counts().items():
            waiting = self._questions.get(version, deque())
            is_answered = version in answered
            if is_answered or len(waiting) < PREPARED / 2:
                waiting = deque(replays.prepare(version, is_answered=is_answered) if count.is_open else ())
                if waiting:
                    self._site_of[version] = waiting[0].call.site
            if waiting:
                questions[version] = waiting
        self._questions = questions
        self.sites = frozenset(self._site_of[version] for version in questions)

    def take(self, version: str) -> ReplayQuestion | None:
        """The next question of a version; None where there is none."""
        try:
            return self._questions[version].popleft()
        except (KeyError, IndexError):
            return None
