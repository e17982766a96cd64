"""A mirror's life without a hand on it: from the first call to answers of its own, and what it does when the
prompt changes and when the world does.
"""

import json
import random
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from made_student import stage_of
from running_mirror import IN_STEP, RunningMirror, running_mirror, wait_until
from scripted_upstream import Reply, Seen, upstream_of

from bertsmith.cli.main import main

INTENTS = {
    "card": ["card", "plastic", "visa", "contactless", "chip"],
    "transfer": ["transfer", "send", "wire", "remit", "payee"],
    "loan": ["loan", "mortgage", "borrow", "credit", "instalment"],
    "login": ["password", "login", "locked", "pin", "username"],
}
FILLER = [
    "please",
    "i",
    "my",
    "the",
    "want",
    "to",
    "about",
    "help",
    "with",
    "a",
    "question",
    "is",
    "there",
    "today",
]
NOISE = 0.03
SCHEMA = {
    "type": "object",
    "properties": {"intent": {"type": "string", "enum": list(INTENTS)}},
    "required": ["intent"],
    "additionalProperties": False,
}
PROMPTS = ["Which intent has the message?", "Say which intent the customer's message has."]
SETTINGS: dict[str, Any] = {
    "auto": True, "epsilon": 0.12, "train_after": 500, "shadow_calls": 50, "canary_calls": 30,
    "canary_share": 0.5, "audit_share": 0.3, "seed": 3, "train_options": ("--tiers", "tf-idf"),
}  # fmt: skip


LOTS = ["red", "green", "blue"]
WITH_LOT: dict[str, Any] = {
    **SCHEMA,
    "properties": {**SCHEMA["properties"], "lot": {"type": "string", "enum": LOTS}},  # type: ignore[dict-item]
    "required": ["intent", "lot"],
}


def fields_of(response_format: dict[str, Any]) -> list[str]:
    return list(response_format["json_schema"]["schema"]["properties"])


class World:
    """Made-up messages, and an LLM that is wrong in a share `NOISE` of them, by the seed. `has_turned`: it
    answers as if card were transfer, and the other way round.
    """

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.seed = seed
        self.has_turned = False

    def message(self) -> tuple[str, str]:
        """(intent, text)"""
        intent = self.draw.choice(list(INTENTS))
        words = self.draw.choices(FILLER, k=5) + self.draw.choices(INTENTS[intent], k=2)
        self.draw.shuffle(words)
        return intent, " ".join(words)

    def script(self, seen: Seen) -> Reply:
        asked = seen.json()
        text = asked["messages"][-1]["content"]
        intent = next(each for each in INTENTS if set(INTENTS[each]) & set(text.split()))
        if self.has_turned:
            intent = {"card": "transfer", "transfer": "card"}.get(intent, intent)
        noise = random.Random(f"{self.seed} {text}")  # whichever call is asked first
        if noise.random() < NOISE:
            intent = noise.choice(list(INTENTS))
        lot = {name: noise.choice(LOTS) for name in fields_of(asked["response_format"]) if name == "lot"}
        message = {"role": "assistant", "content": json.dumps({"intent": intent} | lot), "refusal": None}
        body = {
            "id": "c", "object": "chat.completion", "created": 1, "model": "m",
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 30, "completion_tokens": 5, "total_tokens": 35},
        }  # fmt: skip
        return Reply([json.dumps(body).encode()])


def send(mirror: RunningMirror, world: World, count: int, prompt: int = 0) -> Mapping[str, int]:
    """Calls in blocks, each followed; how often who answered, or why not."""
    said: Counter[str] = Counter()
    shape = {"type": "json_schema", "json_schema": {"name": "intent", "schema": SCHEMA}}
    for number in range(count):
        messages = [
            {"role": "system", "content": PROMPTS[prompt]},
            {"role": "user", "content": world.message()[1]},
        ]
        answer = mirror.ask(
            "/v1/chat/completions", {"model": "m", "messages": messages, "response_format": shape}
        )
        assert answer.status == 200
        header = answer.headers["x-bertsmith"]
        said[header.partition(";")[0]] += 1
        wait_until(lambda: mirror.app.relay.audits.waiting == 0)
        if "reason=" in header:
            said[header.partition("reason=")[2]] += 1
        if number % 25 == 24:
            mirror.follow()
    return said


def life(folder: Path, seed: int) -> list[Any]:
    """What can be told of it."""
    folder.mkdir()
    world, told = World(seed), list[Any]()
    with (
        upstream_of(world.script) as upstream,
        running_mirror(
            folder, upstream.url, IN_STEP, students=str(folder / "students"), **SETTINGS
        ) as mirror,
    ):
        told.append(begin(mirror, world))
        (version,) = mirror.stages.stages()
        while stage_of(mirror.stages, version).mode != "live":
            send(mirror, world, 25)
            assert len(mirror.calls()) < 1200, mirror.stages.changes()
        asked = len(upstream.seen)
        told.append((asked, dict(send(mirror, world, 100))))
        assert told[-1][1]["answered"] > 60
        assert len(upstream.seen) - asked < 70
        # A changed prompt: the LLM answers until this version has a student of its own.
        changed = send(mirror, world, 25, prompt=1)
        assert changed == {"relayed": 25, "new-prompt": 25}
        assert len(mirror.stages.stages()) == 2
        # The world turns: what was learned is wrong for half of the messages.
        world.has_turned = True
        turned = 0
        while stage_of(mirror.stages, version).student_answers:
            send(mirror, world, 25)
            turned += 25
            assert turned <= 500
        told.append(turned)
        told.append([(each.mode_before, each.mode, each.by) for each in mirror.stages.changes()])
        changes = [each for each in mirror.stages.changes() if each.version == version]
        assert [each.mode for each in changes][:5] == ["record", "shadow", "canary", "live", "record"]
        assert {each.by for each in changes} == {"evidence"}
    return told


def begin(mirror: RunningMirror, world: World) -> int:
    """Calls until a student is trained and compared."""
    while not any(each.student for each in mirror.stages.stages().values()):
        send(mirror, world, 25)
        assert len(mirror.calls()) < 1200, mirror.stages.trainings()
    return len(mirror.calls())


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_from_the_first_call_to_live_and_back_the_same_twice(tmp_path: Path) -> None:
    assert life(tmp_path / "one", seed=5) == life(tmp_path / "two", seed=5)


@pytest.mark.slow
def test_calls_become_a_student_in_shadow_without_a_hand(tmp_path: Path) -> None:
    world = World(5)
    with (
        upstream_of(world.script) as upstream,
        running_mirror(tmp_path, upstream.url, students=str(tmp_path / "students"), **SETTINGS) as mirror,
    ):
        begin(mirror, world)
        (stage,) = mirror.stages.stages().values()
        assert (stage.mode, mirror.stages.changes()[-1].by) == ("shadow", "evidence")
        assert send(mirror, world, 25) == {"recorded": 25}
        assert mirror.stages.evidence()[stage.student].audits.count > 5


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_calls_that_need_the_possible_field_alone_are_answered_and_status_says_why_not_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One place in the application asks for the intent alone or, in every other call, for a lot too, which
    nobody can foretell.
    """
    world, students = World(5), tmp_path / "students"
    said: dict[str, Counter[str]] = {"intent": Counter(), "intent, lot": Counter()}
    with (
        upstream_of(world.script) as upstream,
        running_mirror(tmp_path, upstream.url, IN_STEP, students=str(students), **SETTINGS) as mirror,
    ):
        for number in range(2000):
            schema = WITH_LOT if number % 2 else SCHEMA
            shape = {"type": "json_schema", "json_schema": {"name": "sorted", "schema": schema}}
            messages = [
                {"role": "system", "content": PROMPTS[0]},
                {"role": "user", "content": world.message()[1]},
            ]
            body = {"model": "m", "messages": messages, "response_format": shape}
            answer = mirror.ask("/v1/chat/completions", body, {"X-Bertsmith-Site": "desk"})
            assert answer.status == 200
            said[", ".join(fields_of(shape))][answer.headers["x-bertsmith"].partition(";")[0]] += 1
            if number % 25 == 24:
                mirror.follow()
            if said["intent"]["answered"] >= 100 and len(mirror.stages.trainings()) == 2:
                break
    assert said["intent"]["answered"] >= 100 and not said["intent, lot"]["answered"], said
    (report,) = (page for page in students.glob("*/report.html") if "$.lot" in page.read_text())
    for words in ("It fails at $.lot (", "Ask for $.intent in calls of their own"):
        assert words in report.read_text()
    assert main(["mirror", "status", "--store", str(tmp_path / "mirror.sqlite")]) == 0
    status = " ".join(capsys.readouterr().out.split())
    assert "the last training proved nothing: " in status and "It fails at $.lot (" in status
