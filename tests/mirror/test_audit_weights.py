"""Whatever becomes of mode, share and audits: what the LLM was asked is weighed by the probability that held
when the call was answered.
"""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from made_student import stage_of, template_of
from running_mirror import running_mirror, wait_until
from scipy.stats import binomtest
from scripted_upstream import Upstream
from sqlalchemy import update
from test_call_store import call_of
from test_stages import ask, begin

from bertsmith.mirror.answering.ledger import Ledger
from bertsmith.mirror.answering.open_students import OpenStudents, StudentThread, VersionStudents
from bertsmith.mirror.answering.service import MirrorService
from bertsmith.mirror.answering.stage_store import VersionFacts
from bertsmith.mirror.answering.stages import Stage, empty_evidence, set_mode
from bertsmith.mirror.call import Call, CallOutcome, CallRouting, ChatMessage, CompletionRequest
from bertsmith.mirror.exchange import make_call
from bertsmith.mirror.fields import AnswerShape, Field
from bertsmith.mirror.learning.learned_calls import LearnedCall, read_calls, sample_like_traffic
from bertsmith.mirror.redaction import Redactor
from bertsmith.mirror.settings import read_settings
from bertsmith.mirror.store import Store, VersionCount
from bertsmith.mirror.tables import CALLS

SHAPE = AnswerShape(fields=(Field(keys=("x",), kind="enum", values=("a", "b")),), order=(("x",),))
SURE, DIFFERS_SURE, DIFFERS_UNSURE = 0.7, 0.02, 0.3
DIFFERS = SURE * DIFFERS_SURE + (1 - SURE) * DIFFERS_UNSURE  # of all calls
CALL = call_of(1)


class Says:
    """A student that says "a" of every text, and is sure of all, or of those that begin with "sure"."""

    def __init__(self, *, of_all: bool) -> None:
        self.of_all = of_all
        self.file = SimpleNamespace(shape=SHAPE, templates={CALL.version: template_of(CALL)})

    def input_of(self, asked: CompletionRequest, version: str) -> str | None:
        return asked.messages[-1].parts[0]

    def answer(self, texts: Sequence[str]) -> Any:
        return [
            SimpleNamespace(
                values={"$.x": "a"}, answer={"x": "a"}, confidence=0.9, probabilities={},
                is_sure=self.of_all or text.startswith("sure"), reason="low-confidence",
            )
            for text in texts
        ]  # fmt: skip


class Time(NamedTuple):
    """How it was for `calls` calls; without room for audits the LLM is asked about all."""

    mode: str
    share: float
    audit_share: float
    calls: int = 1500
    has_room: bool = True


TIMES = (
    Time("record", 0.0, 0.05),
    Time("canary", 0.1, 0.05),
    Time("live", 1.0, 0.05),
    Time("live", 1.0, 0.05, 2500, has_room=False),
    Time("canary", 0.5, 0.2),
    Time("live", 1.0, 0.2),
)


def asked_of(text: str, prompt: str = "Classify.") -> CompletionRequest:
    return CompletionRequest(
        CALL.request.protocol, "m", (ChatMessage("system", (prompt,)),
        ChatMessage("user", (text, "more"))), "x",
        CALL.request.schema, "json-schema", {"temperature": 0},
    )  # fmt: skip


class Traffic:
    """`seen`: what the LLM was asked, by when it was."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.open = SimpleNamespace(open_students=OpenStudents())
        settings = read_settings(None, {"upstream": "http://localhost", "seed": seed}, {})
        self.service = MirrorService(settings, self.open, Redactor((), {}))  # type: ignore[arg-type]
        self.service.keys.note({}, 200)
        self.seen: list[tuple[Time, CallOutcome]] = []

    async def pass_by(self, time: Time, students: VersionStudents) -> None:
        facts = VersionFacts(CALL.site, "m", CALL.request.schema, 0.0)
        self.open.open_students = OpenStudents(
            {CALL.version: students}, {CALL.site: [facts]} if students.stage.student_answers else {}
        )
        self.service.settings = self.service.settings.model_copy(update={"audit_share": time.audit_share})
        for number in range(time.calls):
            is_sure = self.draw.random() < SURE
            differs = self.draw.random() < (DIFFERS_SURE if is_sure else DIFFERS_UNSURE)
            asked = asked_of(f"{'sure' if is_sure else 'unsure'} {number}")
            routing = await self.service.routing(asked, CALL.site, {}, can_audit=time.has_room)
            if routing is None or routing.audit or not routing.is_ours:
                said = {"x": "b" if differs else "a"}
                self.seen.append((time, CallOutcome(CALL.version, asked, routing, said)))


@pytest.fixture(scope="module")
def traffic() -> Traffic:
    found = Traffic(3)

    async def run() -> None:
        student = StudentThread("x", lambda: Says(of_all=False))
        for time in TIMES:
            stage = Stage(CALL.version, CALL.site, time.mode, time.share, "x")
            await found.pass_by(time, VersionStudents(stage, student))
        student.close()

    asyncio.run(run())
    return found


def learned(number: int, outcome: CallOutcome) -> LearnedCall:
    routing = outcome.routing
    source = "audit" if routing is not None and routing.audit else "relay"
    text = outcome.request.messages[-1].parts[0] if outcome.request is not None else ""
    weight = None if routing is None else routing.weight
    return LearnedCall(
        f"id{number}", float(number), source, text, {"$.x": outcome.teacher_answer["x"]}, {}, weight
    )


def test_calls_that_prove_are_like_the_traffic_in_each_mode_and_over_all_changes(traffic: Traffic) -> None:
    calls = [learned(number, outcome) for number, (_, outcome) in enumerate(traffic.seen)]
    kept = sample_like_traffic(calls, 0)
    when = {call.id: time for call, (time, _) in zip(calls, traffic.seen, strict=True)}
    for time in (*TIMES, None):
        some = [call for call in kept if time is None or when[call.id] == time]
        sure = sum(call.text.startswith("sure") for call in some)
        differ = sum(call.values["$.x"] == "b" for call in some)
        assert binomtest(sure, len(some), SURE).pvalue > 0.001, (time, sure / len(some))
        assert binomtest(differ, len(some), DIFFERS).pvalue > 0.001, (time, differ / len(some))
    counts = {time: sum(when[call.id] == time for call in kept) for time in TIMES}
    kept_of = [counts[time] / time.calls for time in TIMES]
    assert kept_of == pytest.approx([1.0, 0.905, 0.05, 1.0, 0.6, 0.2], abs=0.05)


def test_calls_of_versions_that_are_merged_later_prove_as_often_as_they_come(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """One was live while the other was recorded, and took its place in the end; alone, each keeps what it
    always did.
    """
    traffic, store = Traffic(5), Store(str(tmp_path / "calls.sqlite"))
    student = StudentThread("x", lambda: Says(of_all=False))
    request.addfinalizer(student.close)
    live = VersionStudents(Stage(CALL.version, CALL.site, "live", 1.0, "x"), student)
    facts = VersionFacts(CALL.site, "m", CALL.request.schema, 0.0)
    traffic.open.open_students = OpenStudents({CALL.version: live}, {CALL.site: [facts]})
    prompts = ["Classify.", "Sort."]

    async def calls() -> list[Call]:
        recorded = []
        for number in range(2800):
            kind = "sure" if traffic.draw.random() < SURE else "unsure"
            asked = asked_of(f"{kind} {number}", prompts[number % 2 if number < 2300 else 1])
            routing = await traffic.service.routing(asked, CALL.site, {}, can_audit=number >= 500)
            assert routing is not None
            if routing.audit or not routing.is_ours:
                call = make_call(
                    asked, CALL.completion, Redactor((), {}), source="audit" if routing.audit else "relay",
                    began=number, call_id=f"id{number}", weight=routing.weight,
                    site_weight=routing.site_weight,
                )  # fmt: skip
                recorded.append(replace(call, site=CALL.site))
        return recorded

    store.add(asyncio.run(calls()))
    versions = store.versions()
    templates = {of.version: template_of(next(store.calls(of.version))) for of in versions}

    def kept(*of: VersionCount) -> list[LearnedCall]:
        understood = SimpleNamespace(versions=of, templates=templates, shape=SHAPE)
        return sample_like_traffic(read_calls(store, understood).calls, 0)  # type: ignore[arg-type]

    merged = kept(*versions)
    assert {each.version for each in merged} == {of.version for of in versions}
    later = [call.began for call in merged if call.began >= 2300]
    alone = later[-300:]
    assert alone == [*range(2500, 2800)]  # the live one's calls have ended
    assert len(later) < 450
    merged = merged[: -len(later)]
    early = [call for call in merged if call.began < 500]
    for some in (early, merged[len(early) :]):
        assert binomtest(sum(call.began % 2 == 0 for call in some), len(some)).pvalue > 0.001
        assert binomtest(sum(call.text.startswith("sure") for call in some), len(some), SURE).pvalue > 0.001
    assert len(merged) == pytest.approx(500 + 0.05 * 1800, rel=0.2)
    single = {version.version: len(kept(version)) for version in versions}
    assert sorted(single.values()) == pytest.approx([250 + 0.05 * 900, 1650], rel=0.2)
    with store.engine.begin() as connection:
        connection.execute(update(CALLS).values(site_weight=None))  # as an earlier layout has them
    assert {0, *alone} <= {call.began for call in kept(*versions)} <= {0, *later}
    assert {version.version: len(kept(version)) for version in versions} == single
    store.close()


def test_audits_of_the_student_and_of_a_candidate_find_the_known_share(traffic: Traffic) -> None:
    """Of the student over its sure calls, of a candidate, who is sure of all, over all of them."""
    ledger, found = Ledger(), {"x": empty_evidence(0.05, 0.05), "y": empty_evidence(0.05, 0.05)}
    weights: dict[str, list[float]] = {"x": [], "y": []}
    student, candidate = (
        StudentThread("x", lambda: Says(of_all=False)),
        StudentThread("y", lambda: Says(of_all=True)),
    )
    for time in TIMES:
        stage = Stage(CALL.version, CALL.site, time.mode, time.share, "x", candidate="y")
        for when, outcome in traffic.seen:
            if when == time:
                ledger.outcome(outcome)
        folded = ledger.fold(OpenStudents({CALL.version: VersionStudents(stage, student, candidate)}))
        for name, batch in folded.batches.items():
            found[name] = found[name].after(batch.comparisons, ())
            weights[name] += [each.least / each.probability for each in batch.comparisons]
    student.close()
    candidate.close()
    for name, truth in (("x", DIFFERS_SURE), ("y", DIFFERS)):
        audits = found[name].audits
        low, high = audits.interval()
        assert low <= truth <= high, (name, low, high)
        effective = sum(weights[name]) ** 2 / sum(each**2 for each in weights[name])
        error = (truth * (1 - truth) / effective) ** 0.5
        assert audits.rate() == pytest.approx(truth, abs=3.5 * error), name


def test_the_weight_is_what_held_when_the_call_was_answered() -> None:
    live = Stage("v", "s", "live", 1.0, "x").sent_to_llm(0.05)
    canary = Stage("v", "s", "canary", 0.2, "x").sent_to_llm(0.05)
    assert CallRouting("v", "x", is_sure=True, probability=live, least=live).weight == 1
    assert CallRouting("v", "x", least=live).weight == 0.05
    assert CallRouting("v", "x", least=canary).weight == pytest.approx(0.81)


def test_a_recorded_call_keeps_its_weight_whatever_the_mode_becomes(
    upstream: Upstream, tmp_path: Path
) -> None:
    with running_mirror(tmp_path, upstream.url, audit_share=0.25, seed=1) as mirror:
        student = begin(mirror, tmp_path, "canary", 0.2)
        ask(mirror, "who knows")  # the student doesn't
        stage = stage_of(mirror.stages, student.version)
        live = set_mode(stage, "live", 0.0)
        assert mirror.stages.change(stage, live, "hand", "a test")
        wait_until(
            lambda: mirror.app.reconciler.open_students.by_version[student.version].stage.mode == "live"
        )
        ask(mirror, "who knows it")
        assert [each.weight for each in mirror.calls()] == [None, pytest.approx(0.85), 0.25]
        assert [each.site_weight for each in mirror.calls()] == [None, pytest.approx(0.85), 0.25]
