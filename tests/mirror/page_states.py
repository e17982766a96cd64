"""A mirror in each state that its page shows, made in the store as calls and the evidence would have."""

import random
import time
from dataclasses import replace
from pathlib import Path

from made_student import make_student, put_in_mode
from running_mirror import RunningMirror, wait_until

from bertsmith.metrics.guarantees.power_law import fit_power_law
from bertsmith.mirror.answering.stage_store import save_findings
from bertsmith.mirror.answering.stages import EvidenceBatch, StudentComparison, StudentRecord, set_mode
from bertsmith.mirror.answering.training_process import read_student
from bertsmith.mirror.call import Call, ChatMessage, Completion, CompletionRequest
from bertsmith.mirror.exchange import make_call
from bertsmith.mirror.learning.limits import CallCurve
from bertsmith.mirror.learning.report import summarise_curve
from bertsmith.mirror.redaction import Redactor

INTENTS = ("card_arrival", "lost_or_stolen_card", "transfer_failed", "exchange_rate")
WORDS = ("card", "stolen", "transfer", "rate")
ASKED = {
    "type": "object",
    "properties": {"intent": {"type": "string", "enum": list(INTENTS)}, "urgent": {"type": "boolean"}},
    "required": ["intent", "urgent"],
    "additionalProperties": False,
}
PROMPT = "You sort messages of a bank's customers."
EVIL = "<img src=x onerror=alert(1)>"


def calls_of(count: int, system: str = PROMPT, seed: int = 0) -> list[Call]:
    """Messages of customers with their intents, a minute apart, the last one just now."""
    draw, found = random.Random(seed), []
    for number in range(count):
        kind = draw.choices(range(4), (6, 3, 2, 1))[0]
        text = f"my {WORDS[kind]} {draw.randrange(10**6)}{f' {EVIL}' * (number % 2)}, please"
        asked = CompletionRequest(
            "openai-chat", "gpt-5-mini",
            (ChatMessage("system", (system,)),
             ChatMessage("user", (f"Message:\n{text}\n\nAnswer as JSON.",))),
            "intents", ASKED, "json-schema",
        )  # fmt: skip
        answered = Completion(
            {"intent": INTENTS[kind], "urgent": kind == 1}, "gpt-5-mini", "stop", f"r{seed}-{number}", 120, 12
        )
        began = time.time() - 60 * (count - number)
        found.append(make_call(asked, answered, Redactor((), {}), source="relay", began=began, seconds=0.52))
    return found


def record(mirror: RunningMirror, count: int, **more: object) -> list[Call]:
    """Calls, in the store."""
    calls = calls_of(count, **more)  # type: ignore[arg-type]
    mirror.store.add(calls, {("openai-chat", "no-schema"): 12, ("openai-chat", "several-choices"): 1})
    return calls


def serve(mirror: RunningMirror, folder: Path, call: Call, mode: str, share: float = 0.1) -> StudentRecord:
    """A student in this mode, opened."""
    words = {
        word: {"intent": intent, "urgent": word == "stolen"}
        for word, intent in zip(WORDS, INTENTS, strict=True)
    }
    student = put_in_mode(mirror.stages, make_student(folder, call, words, {}), call, mode, share)
    wait_until(lambda: call.version in mirror.app.reconciler.open_students.by_version)
    return student


def compare(
    mirror: RunningMirror, student: StudentRecord, count: int, differing: float, seed: int = 0
) -> None:
    """That many comparisons, in parts."""
    draw = random.Random(seed)
    for _ in range(count // 10):
        batch = [StudentComparison(draw.random() < differing, 1.0, 1.0) for _ in range(10)]
        mirror.stages.fold(student, EvidenceBatch(batch))


def answer(mirror: RunningMirror, call: Call, student: StudentRecord, answered: int, unsure: int) -> None:
    """Tallies of a student that answers."""
    one = call.version, student.id
    mirror.stages.tally(
        {(*one, "answered"): (answered, answered * 0.003), (*one, "low-confidence"): (unsure, 0.0)}
    )
    for number in range(answered // 20):
        mirror.stages.draw(f"a{number}", call.version, student.id, 0.05, 0.05)


def learn(mirror: RunningMirror, call: Call, student: str) -> None:
    """What a training found."""
    rows, agreements, tested = (60, 120, 240, 480), (0.71, 0.82, 0.88, 0.915), 200
    wrong = [round((1 - each) * tested) for each in agreements]
    law = fit_power_law(rows, wrong, [tested] * 4)
    curve = CallCurve(rows, agreements, tested, "tf-idf", 0.915, law, rows[-1])
    found = {
        "tier": "tf-idf", "created": "now", "coverage": 0.62, "agreement": 0.915, "of": "calibration",
        "claim": "The answers it gives differ from the LLM's in at most 5 %.",
        "why_not": None, "calls": 400, "trained_on": 480, "curve": summarise_curve(curve, 0.95),
        "ceiling": "Asked again, the LLM contradicts itself in 7 of 200 inputs.",
        "different_confusions": 8,
        "confusions": [
            {"field": "$.intent", "taught": INTENTS[number % 4], "ours": INTENTS[(number + 1) % 4],
             "calls": 12 - number, "confidence": 0.9, "call": call.id}
            for number in range(8)
        ],
    }  # fmt: skip
    save_findings(mirror.store, student, call.version, found)


def to_mode(mirror: RunningMirror, call: Call, mode: str, share: float = 0.1) -> None:
    stage = mirror.stages.stages()[call.version]
    assert mirror.stages.change(
        stage, set_mode(replace(stage), mode, share), "evidence", "2.0% of 100 differ"
    )


def candidate(mirror: RunningMirror, folder: Path, call: Call) -> StudentRecord:
    """Another student that may take the place of the present one."""
    words = {word: {"intent": intent, "urgent": False} for word, intent in zip(WORDS, INTENTS, strict=True)}
    student = read_student(make_student(folder, call, words, {}, created="later"), call.version)
    assert student is not None
    mirror.stages.add_student(student)
    stage = mirror.stages.stages()[call.version]
    assert mirror.stages.change(stage, replace(stage, candidate=student.id), "evidence", "trained")
    return student
