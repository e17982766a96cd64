"""A proof that grows in shadow: over a whole life, from a plan to a threshold, a laxer one, drift and a new
proof; whatever comes twice or is killed; and seldom wrong, also in the store.

R runs.
"""

import json
import random
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_student import make_student, stage_of
from mirrored_calls import INTENT, at_random, calls_of, store_of
from running_mirror import IN_STEP, MirrorProcess, RunningMirror, mirror_process, running_mirror, wait_until
from scipy.stats import binomtest
from scripted_upstream import Reply, Seen, upstream_of

from bertsmith.cli.main import main
from bertsmith.errors import InputError
from bertsmith.metrics.guarantees.growing_proof import GrowingProof, student_share
from bertsmith.mirror.answering.judging import apply_move, check_guarantees
from bertsmith.mirror.answering.shadow_proof import ComparedCall, ShadowProof, choose_unit_calls
from bertsmith.mirror.answering.stage_store import StageStore
from bertsmith.mirror.answering.stages import EvidenceBatch, StudentRecord, set_mode
from bertsmith.mirror.answering.training_process import read_student
from bertsmith.mirror.learning.settings import LearnSettings
from bertsmith.mirror.learning.train import train_student
from bertsmith.mirror.page.state import StateReader, describe_progress
from bertsmith.mirror.store import Store
from bertsmith.mirror.student import MirrorStudent
from bertsmith.mirror.student_file import ProofPlan

WORDS = {"card": {"intent": "card"}, "wire": {"intent": "transfer"}, "hello": {"intent": "other"}}
PLAN = ProofPlan(
    epsilon=0.2, delta=0.05, thresholds=(0.9, 0.4, 0.3), starts=(0.8, 0.2, 0.0),
    counts=((20, 0), (15, 5), (0, 0), (0, 0)), forecast=(20, 70, None),
)  # fmt: skip
SETTINGS: dict[str, Any] = {
    "auto": True, "train_after": 10**6, "canary_share": 0.3, "canary_calls": 20, "audit_share": 0.5,
    "seed": 3,
}  # fmt: skip


class World:
    """An LLM that says what the first word it knows means, and sometimes otherwise: more often where two are
    known, so that the student is half sure, or none.
    """

    def __init__(self, seed: int = 1) -> None:
        self.draw = random.Random(seed)
        self.texts: list[str] = []  # in their order

    def differs(self, text: str) -> bool:
        known = len(WORDS.keys() & set(text.split()))
        return random.Random(text).random() < (0.1, 0.02, 0.2)[known]

    def script(self, seen: Seen) -> Reply:
        text = seen.json()["messages"][-1]["content"]
        intent = next((WORDS[word]["intent"] for word in text.split() if word in WORDS), "card")
        if self.differs(text):
            intent = {"card": "other", "transfer": "card", "other": "transfer"}[intent]
        message = {"role": "assistant", "content": json.dumps({"intent": intent}), "refusal": None}
        body = {
            "id": "c", "object": "chat.completion", "created": 1, "model": "m",
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 30, "completion_tokens": 5, "total_tokens": 35},
        }  # fmt: skip
        return Reply([json.dumps(body).encode()])

    def send(self, mirror: RunningMirror | MirrorProcess, known: str) -> str:
        """A call with these known words; who answered, with the reason."""
        known = known or self.draw.choice(["card", "card wire"])
        text = f"{known} {self.draw.randrange(10**9)}"
        shape = {"type": "json_schema", "json_schema": {"name": "intent", "schema": INTENT}}
        messages = [{"role": "system", "content": "Which?"}, {"role": "user", "content": text}]
        answer = mirror.ask(
            "/v1/chat/completions", {"model": "m", "messages": messages, "response_format": shape}
        )
        assert answer.status == 200
        self.texts.append(text)
        header = answer.headers["x-bertsmith"]
        return f"{header.partition(';')[0]} {header.partition('reason=')[2]}".strip()


def admit(mirror: RunningMirror, folder: Path, **more: Any) -> StudentRecord:
    """A student with a plan, as after a training: the candidate of the only version."""
    call = mirror.calls()[-1]
    student = read_student(make_student(folder, call, WORDS, {}, plan=PLAN, **more), call.version)
    assert student is not None
    mirror.stages.add_student(student)
    stage = stage_of(mirror.stages, call.version)
    assert mirror.stages.change(stage, replace(stage, candidate=student.id), "evidence", "trained")
    mirror.follow()
    return student


def send_until(mirror: RunningMirror, world: World, known: str, mode: str, version: str) -> int:
    """Calls in blocks of 5, each followed."""
    calls = 0
    while stage_of(mirror.stages, version).mode != mode:
        for _ in range(5):
            world.send(mirror, known)
        mirror.follow()
        calls += 5
        assert calls < 900, mirror.stages.changes()
    return calls


def test_a_life_with_a_proof_that_grows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world = World()
    with (
        upstream_of(world.script) as upstream,
        running_mirror(tmp_path, upstream.url, IN_STEP, **SETTINGS) as mirror,
    ):
        world.send(mirror, "card")
        student = admit(mirror, tmp_path / "made")
        version, stages = student.version, mirror.stages
        assert stage_of(stages, version).mode == "shadow"
        with pytest.raises(InputError, match="may not answer yet: proof 1, of 0 calls so far"):
            apply_move(stages, stage_of(stages, version), "promote", 0.1)
        begun = len(world.texts)
        for _ in range(30):
            world.send(mirror, "")
        mirror.follow()
        progress = StateReader(mirror.store, mirror.app.settings).state()["students"][student.id]["proof"]
        assert (progress["number"], progress["calls"], progress["threshold"]) == (1, 30, None)
        low, middle, _ = progress["outlook"]
        assert 0 < low <= middle < 200
        assert main(["mirror", "status", "--store", str(mirror.path)]) == 0
        told = " ".join(capsys.readouterr().out.split())
        assert "proof 1, of 30 calls so far, doesn't stand yet: with 95 % confidence at most 20 % of" in told
        assert f"Until then: about {middle:,} compared calls ({low:,} " in told
        send_until(mirror, world, "", "canary", version)
        # The same, by the class alone, on what the LLM said.
        alone = GrowingProof(PLAN.thresholds, PLAN.starts, 0.2, student_share(0.05, 1))
        needed = 0
        while alone.threshold() is None:
            text = world.texts[begun + needed]
            alone.record(0.5 if "wire" in text else 1.0, world.differs(text))
            needed += 1
        assert needed <= len(world.texts) - begun < needed + 5
        assert stages.proven_thresholds([student.id]) == {student.id: 0.9} == {student.id: alone.threshold()}
        assert stages.changes()[-1].why.endswith(f"proven on {len(world.texts) - begun} calls")
        send_until(mirror, world, "", "live", version)
        assert world.send(mirror, "card") == "answered"
        # Of two intents at once it is half sure: what a laxer threshold allows, once that is proven.
        assert world.send(mirror, "card wire") == "relayed low-confidence"
        wider = 0
        while world.send(mirror, "") != "answered" or "wire" not in world.texts[-1]:
            wider += 1
            if wider % 5 == 0:
                mirror.follow()
            assert wider < 900
        assert stages.proven_thresholds([student.id]) == {student.id: 0.3}  # the same calls as 0.4
        assert stage_of(stages, version).mode == "live"
        # Today's calls differ.
        before = len(world.texts)
        send_until(mirror, world, "unknown", "shadow", version)
        assert stages.proven_thresholds([student.id]) == {student.id: None}
        assert stages.changes()[-1].why.startswith("today's calls differ: proof 2, of 0 calls so far")
        broken = [each.what for each in check_guarantees(stages) if not each.holds]
        assert any("drift" in what for what in broken)
        assert world.send(mirror, "card") == "recorded"
        assert len(world.texts) - before < 900
        send_until(mirror, world, "card", "canary", version)
        modes = [each.mode for each in stages.changes()]
        assert modes == ["record", "shadow", "canary", "live", "shadow", "canary"]
        assert stages.evidence()[student.id].proof.number == 2  # type: ignore[union-attr]


@pytest.fixture
def store(address: str) -> Iterator[Store]:
    found = Store(address)
    yield found
    found.close()


def known(stages: StageStore, name: str = "x", version: str = "v", plan: ProofPlan = PLAN) -> StudentRecord:
    """A student with a plan, in the store."""
    student = StudentRecord(name, version, "folder", plan.epsilon, plan.delta, plan=plan)
    stages.add_student(student)
    return student


def proof_of(stages: StageStore, name: str = "x") -> ShadowProof:
    proof = stages.evidence()[name].proof
    assert proof is not None
    return proof


def test_a_batch_whose_connection_broke_counts_once(store: Store) -> None:
    stages = StageStore(store)
    student = known(stages)
    batch = EvidenceBatch(confidences=[0.9], calls=[ComparedCall(0.95, False), ComparedCall(0.5, True)])
    for _ in range(3):
        stages.fold(student, batch)
    stages.fold(student, EvidenceBatch(calls=[ComparedCall(0.95, False)]))
    assert proof_of(stages).proof.calls == 3
    assert proof_of(stages).counts.tolist() == [[2, 0], [0, 1], [0, 0], [0, 0]]
    assert stages.evidence()["x"].reference == (0.9,)


def test_the_number_of_a_proof_is_taken_once(store: Store) -> None:
    """By students of one version, added and drifting at the same time; another version counts for itself."""
    stages = StageStore(store)
    names = [f"x{number}" for number in range(6)]
    threads = [threading.Thread(target=known, args=(StageStore(store), name)) for name in names]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    known(stages, "y", "w")
    assert not stages.add_student(replace(StudentRecord("x0", "v", "moved", 0.2, 0.05), plan=PLAN))
    assert sorted(proof_of(stages, name).number for name in names) == [1, 2, 3, 4, 5, 6]
    assert [proof_of(stages, "y").number, proof_of(stages, "y").proof.delta] == [1, student_share(0.05, 1)]

    def drift(name: str) -> None:
        confidences = [0.9 + number / 1e4 for number in range(200)] + [0.1] * 300
        StageStore(store).fold(StudentRecord(name, "v", "folder", 0.2, 0.05), EvidenceBatch([], confidences))

    threads = [threading.Thread(target=drift, args=(name,)) for name in names[:3]]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    proofs = [proof_of(stages, name) for name in names]
    assert sorted(proof.number for proof in proofs[:3]) == [7, 8, 9]
    assert [proof.drifts for proof in proofs] == [1, 1, 1, 0, 0, 0]
    assert all(proof.proof.delta == student_share(0.05, proof.number) for proof in proofs)
    assert [stages.evidence()[name].has_drifted for name in names] == [True] * 3 + [False] * 3


def test_a_training_that_can_prove_nothing_yet_plans_how_to_go_on(tmp_path: Path) -> None:
    with store_of(tmp_path, calls_of(250)) as store:
        learned = train_student(store, tmp_path / "student", settings=LearnSettings(tiers=("tf-idf",)))
        plan = learned.file.plan
        assert learned.why and plan is not None and not learned.file.is_promotable
        assert (plan.epsilon, plan.delta, plan.unit_calls) == (0.05, 0.05, None)
        assert sum(plan.starts) == pytest.approx(1) and len(plan.starts) == len(plan.thresholds)
        low, middle, high = plan.forecast
        assert low and middle and low <= middle and (high is None or middle <= high)
        assert not any(each.is_sure for each in MirrorStudent.open(tmp_path / "student").answer(["visa"] * 3))
        (version,) = store.versions()
        student = read_student(tmp_path / "student", version.version)
        assert student is not None and student.plan == plan


def test_of_a_student_that_learned_nothing_nothing_is_planned(tmp_path: Path) -> None:
    with store_of(tmp_path, calls_of(250, at_random)) as store:
        learned = train_student(store, tmp_path / "student", settings=LearnSettings(tiers=("tf-idf",)))
        (version,) = store.versions()
    assert learned.why and learned.file.plan is None
    assert read_student(tmp_path / "student", version.version) is None


def person_calls(draw: random.Random, minutes: int) -> list[ComparedCall]:
    """In each minute a person comes who asks once, or five times in ten minutes, always with the same
    outcome. Of all calls a fifth differ: of those that come alone seven in ten, of the others one in ten.
    """
    calls = []
    for minute in range(minutes):
        count = draw.choice([1, 5])
        differs = draw.random() < (0.7 if count == 1 else 0.1)
        times = [60.0 * minute, *(60.0 * minute + draw.uniform(0, 599) for _ in range(count - 1))]
        calls += [ComparedCall(0.95, differs, began=time, person=f"p{minute}") for time in times]
    return sorted(calls, key=lambda call: call.began)


def single_calls(draw: random.Random, count: int) -> list[ComparedCall]:
    """Whatever the confidence, a fifth differ."""
    return [ComparedCall(draw.random(), draw.random() < 0.2) for _ in range(count)]


def false_proofs(store: Store, runs: int, plan: ProofPlan, persons: bool) -> int:
    """Of so many first students at the border of what is claimed, of how many something is ever proven."""
    stages, draw, wrong = StageStore(store), random.Random(4), 0
    for run in range(runs):
        student = known(stages, f"{plan.unit_calls} {run}", f"{plan.unit_calls} {run}", plan)
        calls = person_calls(draw, 100) if persons else single_calls(draw, 250)
        for begin in range(0, len(calls), 90):
            evidence = stages.fold(student, EvidenceBatch(calls=calls[begin : begin + 90]))
        assert evidence.proof is not None and evidence.proof.proof.delta == student_share(0.05, 1)
        wrong += evidence.proof.threshold is not None
    return wrong


@pytest.mark.slow
@pytest.mark.parametrize("persons", [False, True])
def test_what_the_store_has_proven_is_seldom_wrong(tmp_path: Path, persons: bool) -> None:
    store = Store(str(tmp_path / "calls.sqlite"))
    plan = PLAN.model_copy(update={"unit_calls": 5 if persons else None})
    wrong = false_proofs(store, 500, plan, persons)
    assert binomtest(wrong, 500, 0.05, "greater").pvalue > 0.001
    if persons:  # as if each call were somebody else's
        assert binomtest(false_proofs(store, 200, PLAN, persons), 200, 0.05, "greater").pvalue < 0.001
    store.close()


def test_an_input_that_comes_again_counts_each_time() -> None:
    """A quarter of the calls are one text, which is always wrong: more differ than may. Counted once, it
    would be one difference among very many texts.
    """
    draw = random.Random(1)
    texts = [draw.choice([0, number, number, number]) for number in range(1, 600)]
    proof, once = ShadowProof(PLAN, 1), ShadowProof(PLAN, 1)
    proof.add(ComparedCall(0.95, text == 0) for text in texts)
    once.add(ComparedCall(0.95, text == 0) for text in dict.fromkeys(texts))
    assert proof.threshold is None and once.threshold is not None


def test_calls_of_one_person_are_one_unit_in_the_order_of_their_first() -> None:
    plan = PLAN.model_copy(update={"unit_calls": 3})
    calls = [
        ComparedCall(0.95, False, began=0, person="a"),
        ComparedCall(0.95, True, began=1),
        ComparedCall(0.5, False, began=60, person="b"),
        ComparedCall(0.95, False, began=120, person="a"),
        ComparedCall(0.2, True, began=599, person="a"),
        ComparedCall(0.95, False, began=601, person="a"),
        ComparedCall(0.95, True, 0.5, 0.25, began=602, person="b"),
        ComparedCall(0.95, False, began=1300, person="c"),
    ]
    alone = GrowingProof(PLAN.thresholds, PLAN.starts, 0.2, student_share(0.05, 1), 3)
    alone.record([0.95, 0.95, 0.2], [0, 0, 1])
    alone.record(0.95, 1)
    alone.record([0.5, 0.95], [0, 1], probability=[1, 0.5], least=0.25)
    alone.record(0.95, 0)
    at_once, in_parts = ShadowProof(plan, 1), ShadowProof(plan, 1)
    at_once.add(calls)
    for call in calls:  # killed after each
        in_parts = ShadowProof.from_json(json.loads(json.dumps(in_parts.as_json())))
        in_parts.add([call])
    assert at_once.proof.as_json() == in_parts.proof.as_json() == alone.as_json()
    assert at_once.counts.tolist() == [[3, 1.5], [1, 0], [0, 0], [0, 1]]


def test_of_a_person_who_asks_very_often_each_call_counts() -> None:
    """As further units of the same size, so that a call weighs as much as one of anybody else."""
    proof = ShadowProof(PLAN.model_copy(update={"unit_calls": 3}), 1)
    alone = GrowingProof(PLAN.thresholds, PLAN.starts, 0.2, student_share(0.05, 1), 3)
    for person in range(50):
        proof.add(
            ComparedCall(0.95, number == 7, began=1e4 * person + number, person=f"p{person}")
            for number in range(8)
        )
        for differs in ([0, 0, 0], [0, 0, 0], [0, 1]):
            alone.record([0.95] * len(differs), differs)
    proof.add([ComparedCall(0.1, False, began=1e9)])
    alone.record(0.1, 0)
    assert proof.proof.as_json() == alone.as_json()
    assert proof.counts.tolist() == [[350, 50], [0, 0], [0, 0], [1, 0]]


def nightly_jobs(draw: random.Random, count: int) -> list[ComparedCall]:
    """Every second call is one of a customer's job of a hundred within ten minutes, of which half differ; of
    the others none does.
    """
    calls, minute = list[ComparedCall](), 0
    while len(calls) < count:
        minute += 1
        person, size = f"p{minute}", 100 if draw.random() < 1 / 101 else 1
        calls += [
            ComparedCall(0.95, size > 1 and draw.random() < 0.5, began=60.0 * minute + second, person=person)
            for second in range(size)
        ]
    return sorted(calls, key=lambda call: call.began)


def test_a_customers_job_weighs_as_much_as_its_calls() -> None:
    """A quarter of all answers differ, and a fifth may: counted as one person each, the jobs hardly did."""
    draw, wrong = random.Random(5), 0
    for _ in range(40):
        calls = nightly_jobs(draw, 2000)
        unit_calls = choose_unit_calls((call.person, call.began) for call in calls)
        proof = ShadowProof(PLAN.model_copy(update={"unit_calls": unit_calls}), 1)
        proof.add(calls)
        wrong += proof.threshold is not None
    assert wrong <= 4


def test_a_batch_that_came_before_drift_is_known_after_it() -> None:
    proof = ShadowProof(PLAN, 1)
    assert not proof.has_batch("a")
    assert proof.after_drift(2).has_batch("a")


def test_what_is_no_persons_name_makes_no_units() -> None:
    assert choose_unit_calls([]) is None
    assert choose_unit_calls([("", 0.0), ("", 1.0)]) is None
    assert choose_unit_calls([("app", float(n)) for n in range(9)] + [("a", 1.0)]) is None
    assert choose_unit_calls([(f"p{n}", float(n)) for n in range(9)]) == 1
    assert choose_unit_calls([(f"p{n % 9}", 60.0 * n) for n in range(18)]) == 2
    assert choose_unit_calls([(f"p{n % 3}", 60.0 * n) for n in range(180)]) == 4  # eleven minutes each
    assert choose_unit_calls([(f"p{n % 3}", 1.0 * n) for n in range(180)]) == 20


def shadow(stages: StageStore, folder: Path) -> StudentRecord:
    """A student with a plan in shadow, put there by a hand."""
    (version,) = stages.stages()
    call = stages.store.latest(version, 1)[0]
    student = read_student(make_student(folder, call, WORDS, {}, plan=PLAN), version)
    assert student is not None
    stages.add_student(student)
    stage = stage_of(stages, version)
    assert stages.change(stage, set_mode(replace(stage, student=student.id), "shadow", 0.0), "hand", "a test")
    return student


def wait_for_calls(stages: StageStore, student: StudentRecord, calls: int) -> None:
    wait_until(lambda: proof_of(stages, student.id).proof.calls >= calls)


def test_what_is_killed_counts_no_call_twice(tmp_path: Path) -> None:
    """A second count of either life: no more calls than were sent, and no more that differ."""
    world, path = World(), tmp_path / "calls.sqlite"
    with upstream_of(world.script) as upstream, closing(Store(str(path))) as opened:
        stages, lives = StageStore(opened), list[tuple[int, float, float, list[str]]]()
        for life in range(2):
            with mirror_process("--upstream", upstream.url, "--store", path) as mirror:
                if not life:
                    world.send(mirror, "card")
                    wait_until(stages.stages)
                    student = shadow(stages, tmp_path / "made")
                known, first = proof_of(stages, student.id), len(world.texts)
                while proof_of(stages, student.id).proof.calls == known.proof.calls:  # not opened yet
                    world.send(mirror, "card")
                opened_at = len(world.texts)
                for _ in range(30):
                    world.send(mirror, "")
                wait_for_calls(stages, student, known.proof.calls + len(world.texts) - opened_at)
                for _ in range(10):
                    world.send(mirror, "card wire")
                mirror.process.kill()
                mirror.process.wait()
            left = proof_of(stages, student.id)
            agreeing, differing = left.counts.sum(axis=0) - known.counts.sum(axis=0)
            lives.append((left.proof.calls - known.proof.calls, agreeing, differing, world.texts[first:]))
    for counted, agreeing, differing, texts in lives:
        assert 30 <= counted == agreeing + differing <= len(texts)
        assert differing <= sum(map(world.differs, texts))
        assert agreeing <= sum(not world.differs(text) for text in texts)


def test_two_mirrors_grow_one_proof(tmp_path: Path, server: str) -> None:
    world = World()
    settings = {**SETTINGS, "store": server}
    with (
        upstream_of(world.script) as upstream,
        running_mirror(tmp_path, upstream.url, **settings) as one,
        running_mirror(tmp_path, upstream.url, **settings) as other,
    ):
        world.send(one, "card")
        one.settle()
        student = shadow(one.stages, tmp_path / "made")
        for mirror in (one, other):
            wait_until(lambda mirror=mirror: mirror.app.reconciler.open_students.by_version)
        worlds = World(2), World(3)

        def send(mirror: RunningMirror, own: World) -> None:
            for _ in range(40):
                own.send(mirror, "")

        threads = [
            threading.Thread(target=send, args=pair) for pair in zip((one, other), worlds, strict=True)
        ]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        for mirror in (one, other):
            mirror.follow()
        # A second count: by what the LLM said of each text, as long as all are compared in shadow.
        proof = proof_of(one.stages, student.id)
        texts = [text for own in worlds for text in own.texts]
        expected = np.zeros((4, 2))
        for text in texts:
            expected[1 if "wire" in text else 0, int(world.differs(text))] += 1
        if stage_of(one.stages, student.version).mode == "shadow":
            assert proof.counts.tolist() == expected.tolist()
        else:  # what the student answered and no audit asked is missing
            assert (proof.counts <= expected).all() and proof.threshold == 0.9
        thresholds = [
            each.app.reconciler.open_students.by_version[student.version].student.student.proven_threshold  # type: ignore[union-attr]
            for each in (one, other)
        ]
        assert thresholds == [proof.threshold, proof.threshold]


def test_a_hand_promotes_to_shadow_and_not_beyond(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call = calls_of(1)[0]
    folder, path = (
        make_student(tmp_path / "made", call, {"visa": {"intent": "card"}}, {}, plan=PLAN),
        tmp_path / "c",
    )
    with closing(Store(str(path))) as store:
        store.add([call])
    command = ["mirror", "promote", call.site, "--student", str(folder), "--store", str(path)]
    assert main([*command, "--to", "canary"]) == 2
    assert "may not answer yet: its proof has not begun" in " ".join(capsys.readouterr().err.split())
    assert main(command) == 0
    assert main(["mirror", "promote", call.site, "--store", str(path)]) == 2
    assert "may not answer yet: proof 1, of 0 calls so far" in " ".join(capsys.readouterr().err.split())


def test_until_a_proof_stands_it_says_how_often_the_student_agrees_and_what_it_may_come_to_answer() -> None:
    plan = PLAN.model_copy(update={"counts": ((0, 0),) * 4})
    proof = ShadowProof(plan, 1)
    assert proof.agreement() is None
    proof.add([ComparedCall(0.95, False), ComparedCall(0.95, False), ComparedCall(-1, True)])
    text = describe_progress(proof)["text"]
    assert "So far it agrees with the LLM in 2 of 3 calls (9.43% to 99.2% with 95 % confidence)" in text
    few = proof.forecast()
    assert few.coverage < few.interval.high and few.unproven > 0
    proof.add([ComparedCall(0.95, False)] * 600 + [ComparedCall(0.1, True)] * 300)
    proof.proof = ShadowProof(plan, 1).proof  # as if it didn't stand yet
    many = proof.forecast()
    assert many.coverage == pytest.approx(602 / 903, abs=0.03) and many.interval.low > 0.6
    beside = ShadowProof(plan, 1)
    beside.add([ComparedCall(0.95, False, 1.0, 0.5)])
    assert beside.agreement() is None, "beside a student that answers, the compared calls aren't like all"
