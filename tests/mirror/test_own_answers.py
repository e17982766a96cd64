"""A student in the LLM's place: providers' own clients read its answers as they read the LLM's."""

import json
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from made_student import make_student, put_in_mode
from running_mirror import RunningMirror, mirror_process, running_mirror, wait_until
from scripted_upstream import Reply, Seen, Upstream, upstream_of
from systemone import Choice, Noul, Score
from systemone import Client as SystemOneClient
from test_mirrored_clients import (
    CALLS,
    JSON_SCHEMA,
    messages,
    openai_at,
    without_ids,
)

from bertsmith.mirror.answering.service import KnownKeys

WORDS = {word: {"intent": word} for word in ("card", "transfer", "hello")}
WORDS["hello"] = {"intent": "other"}
CHAT = "/v1/chat/completions"
TEXTS = ["my card is gone", "a transfer please", "hello"]


def go_live(mirror: RunningMirror, tmp_path: Path, words: Any = None, usual: Any = None) -> str:
    """With a student of the last recorded call's version; gives its id."""
    call = mirror.calls()[-1]
    words, usual = (WORDS, {"urgent": False}) if words is None else (words, usual)
    folder = make_student(tmp_path / "student", call, words, usual)
    student = put_in_mode(mirror.stages, folder, call, "live")
    wait_until(lambda: mirror.app.reconciler.open_students.answers)
    return student.id


@pytest.fixture
def unaudited(upstream: Upstream, tmp_path: Path) -> Any:
    with running_mirror(tmp_path, upstream.url, audit_share=1e-9) as mirror:
        yield mirror


def plain(found: Any) -> Any:
    """Without what differs between two answers that say the same: ids, times, the LLM's count of tokens, and
    the blanks in its JSON.
    """
    if isinstance(found, dict):
        return {
            key: plain(each) for key, each in found.items() if key not in _OWN and each not in (None, [], {})
        }
    if isinstance(found, list):
        return [plain(each) for each in found]
    return json.loads(found) if isinstance(found, str) and found.startswith("{") else found


# OpenAI's API ends a named tool with stop, which the scripted upstream doesn't.
_OWN = {
    "id", "finish_reason",
    "created", "created_at", "completed_at", "model", "usage", "system_fingerprint", "service_tier",
    "call_id", "item_id", "logprobs", "tool_choice", "tools", "text", "instructions", "store", "temperature",
    "top_p", "truncation", "metadata", "parallel_tool_calls", "reasoning", "snapshot", "sequence_number",
    "caller", "stop_details", "container", "moderation", "prompt_cache_options",
}  # fmt: skip


@pytest.mark.parametrize(("call", "protocol", "way"), CALLS, ids=lambda each: getattr(each, "__name__", ""))
def test_a_client_reads_a_students_answer_as_the_llms(
    upstream: Upstream,
    unaudited: RunningMirror,
    tmp_path: Path,
    call: Callable[[str, str], Any],
    protocol: str,
    way: str,
) -> None:
    call(unaudited.url, "a card")
    go_live(unaudited, tmp_path)
    asked = len(upstream.seen)
    for text in TEXTS:
        ours = call(unaudited.url, text)
        assert len(upstream.seen) == asked, "the LLM was asked"
        theirs = call(upstream.url, text)
        asked = len(upstream.seen)
        if isinstance(theirs, list):  # pieces of a stream
            assert joined(ours) == joined(theirs)
        else:
            assert plain(ours) == plain(theirs)
    assert len(unaudited.calls()) == 1


def joined(pieces: list[Any]) -> Any:
    """A stream's events, each kind once in a row, and what their texts come to."""
    kinds, text = list[str](), ""
    for each in pieces:
        delta = each.get("delta")
        kind = each.get("type", "")
        for choice in each.get("choices") or ():
            call = (choice["delta"].get("tool_calls") or [{"function": {}}])[0]["function"]
            call = choice["delta"].get("function_call") or call
            delta = choice["delta"].get("content") or call.get("arguments")
            kind = "text" if delta else ("end" if choice["finish_reason"] else "begin")
        if (not kinds or kinds[-1] != kind) and kind != "response.in_progress":
            kinds.append(kind)
        text += delta or ""
    return kinds, json.loads(text)


def test_the_headers_say_who_answered(upstream: Upstream, unaudited: RunningMirror, tmp_path: Path) -> None:
    def ask(text: str, **more: Any) -> str:
        body = {"model": "m", "messages": messages(text), "response_format": JSON_SCHEMA, **more}
        return unaudited.ask("/v1/chat/completions", body).headers["x-bertsmith"]

    recorded = ask("my card")
    site = recorded.partition("site=")[2]
    assert recorded == f"recorded; site={site}"
    student = go_live(unaudited, tmp_path)
    assert ask("my card").startswith(f"answered; site={site}; student={student}; confidence=1.0000")
    assert ask("who knows").startswith(f"relayed; site={site}; student={student}; confidence=0.")
    assert ask("who knows").endswith("; reason=low-confidence")
    assert ask("my card", model="n") == f"relayed; site={site}; reason=new-model"
    schema = {**JSON_SCHEMA["json_schema"]["schema"], "title": "another"}  # type: ignore[index]
    other = {"type": "json_schema", "json_schema": {"name": "message", "schema": schema}}
    assert ask("my card", response_format=other) == f"relayed; site={site}; reason=new-schema"
    two = [*messages("my card"), {"role": "user", "content": "and more"}]
    assert ask("my card", messages=two) == f"relayed; site={site}; student={student}; reason=new-template"
    changed = [{"role": "system", "content": "Say it."}, {"role": "user", "content": "my card"}]
    assert ask("my card", messages=changed) == f"relayed; site={site}; reason=new-prompt"
    assert ask("my card", logprobs=True).endswith("; reason=logprobs-wanted")
    assert ask("my card", store=True).endswith("; reason=store-wanted")
    upstream.script = lambda _: Reply([b"{}"], 429)
    assert ask("who knows").startswith(f"passthrough; site={site}; student={student}")
    assert ask("my card").startswith("answered")


def test_only_whom_the_llm_has_answered_is_answered(
    upstream: Upstream, unaudited: RunningMirror, tmp_path: Path
) -> None:
    body = {"model": "m", "messages": messages("my card"), "response_format": JSON_SCHEMA}

    def ask(key: str) -> str:
        headers = {"authorization": f"Bearer {key}"}
        return unaudited.ask("/v1/chat/completions", body, headers).headers["x-bertsmith"]

    ask("good")
    go_live(unaudited, tmp_path)
    assert ask("good").startswith("answered")
    script = upstream.script
    upstream.script = lambda _: Reply([b"{}"], 401)
    for _ in range(2):
        assert ask("bad").startswith("passthrough")
        assert len(upstream.seen) in (2, 3)
    upstream.script = script
    assert ask("new").endswith("reason=new-key")
    assert ask("new").startswith("answered")
    unaudited.app.relay.service.keys.seconds = -1.0  # an hour later
    unaudited.app.relay.service.keys.note({b"authorization": b"Bearer good"}, 200)
    assert ask("good").endswith("reason=new-key")


def test_an_open_path_of_the_llms_makes_no_key_known(
    upstream: Upstream, unaudited: RunningMirror, tmp_path: Path
) -> None:
    body = {"model": "m", "messages": messages("my card"), "response_format": JSON_SCHEMA}
    path, made_up = "/v1/chat/completions", {"authorization": "Bearer made-up"}
    unaudited.ask(path, body)
    go_live(unaudited, tmp_path)
    script = upstream.script
    upstream.script = lambda _: Reply([b"{}"], 200)
    assert unaudited.ask("/health", headers=made_up).status == 200
    upstream.script = script
    assert unaudited.ask(path, body, made_up).headers["x-bertsmith"].endswith("reason=new-key")


@pytest.mark.parametrize(
    "name", ["authorization", "x-api-key", "api-key", "ocp-apim-subscription-key", "x-goog-api-key", "cookie"]
)
def test_callers_are_told_apart_by_each_header_and_the_query(name: str) -> None:
    keys = KnownKeys()
    keys.note({name.encode(): b"one"}, 200, b"key=one")
    assert keys.has({name.encode(): b"one"}, b"key=one")
    assert not keys.has({name.encode(): b"two"}, b"key=one")
    assert not keys.has({name.encode(): b"one"}, b"key=two")


@pytest.mark.parametrize(("mode", "share"), [("live", 1.0), ("canary", 0.01)])
def test_a_call_that_only_the_llm_can_answer_is_no_evidence(
    upstream: Upstream, unaudited: RunningMirror, tmp_path: Path, mode: str, share: float
) -> None:
    """It is never answered by the student: a text that is asked so all the time would decide of the rest."""
    body = {"model": "m", "messages": messages("my card"), "response_format": JSON_SCHEMA}
    unaudited.ask("/v1/chat/completions", body)
    go_live(unaudited, tmp_path)
    stages = unaudited.stages
    (stage,) = [each for each in stages.stages().values() if each.student]
    assert stages.change(stage, replace(stage, mode=mode, share=share), "hand", "a test")
    wait_until(lambda: unaudited.app.reconciler.open_students.by_version[stage.version].stage.share == share)
    for _ in range(3):
        said = unaudited.ask("/v1/chat/completions", body | {"store": True}).headers["x-bertsmith"]
        assert said.endswith("reason=store-wanted")
    unaudited.follow()
    evidence = stages.evidence().get(stage.student)
    assert evidence is None or evidence.audits.count == 0


def test_system_one_is_answered_with_probabilities(
    upstream: Upstream, unaudited: RunningMirror, tmp_path: Path
) -> None:
    questions = {
        "billing": Noul("Is this about billing?"),
        "team": Choice("Which team?", {"payments": "money", "support": None}),
        "anger": Score("How angry?", ["calm", "annoyed", "furious"]),
    }

    def ask() -> Any:
        with SystemOneClient(unaudited.url, api_key="k") as client:
            return client.system_one("charged twice", questions, model="jev")

    theirs = ask()
    go_live(unaudited, tmp_path, {"twice": {"billing": True, "team": "support", "anger": 2}}, {})
    ours = ask()
    assert len(upstream.seen) == 1
    assert set(theirs.nouls) == set(ours.nouls)
    assert ours.choices["team"].choice == "support"
    assert ours.choices["team"].confidence > 0.99
    assert ours.choices["team"].probabilities.keys() == theirs.choices["team"].probabilities.keys()
    assert ours.nouls["billing"].noul > 0.99
    assert ours.scores["anger"].score == pytest.approx(2, abs=0.01)
    assert ours.scores["anger"].legend == theirs.scores["anger"].legend


def test_decisions_are_answered_with_probabilities(
    upstream: Upstream, unaudited: RunningMirror, tmp_path: Path
) -> None:
    questions: Any = [
        {"type": "predicate", "instructions": "Is it spam?"},
        {"type": "choice", "name": "kind", "choices": [{"value": True}, {"value": "true"}]},
        {"type": "score", "name": "grade", "levels": [{"label": "low"}, {"label": "high"}]},
    ]

    def ask() -> Any:
        with openai_at(unaudited.url) as client:
            return client.decisions.create(model="m", input="a text", questions=questions)

    theirs = ask()
    go_live(unaudited, tmp_path, {"text": {"question_1": True, "kind": "true", "grade": 1}}, {})
    ours = ask()
    assert len(upstream.seen) == 1
    assert [each.type for each in ours.answers] == [each.type for each in theirs.answers]
    assert ours.answers[0].probability > 0.99
    assert ours.answers[1].choice == "true"
    assert ours.answers[2].score == pytest.approx(1, abs=0.01)
    assert without_ids(ours).keys() == without_ids(theirs).keys()


@pytest.mark.slow
def test_a_second_signal_ends_a_mirror_that_has_a_student_at_once(upstream: Upstream, tmp_path: Path) -> None:
    """Whose thread would be waited for, while a call waits for an LLM that doesn't answer."""
    with running_mirror(tmp_path, upstream.url) as mirror:
        mirror.ask(CHAT, {"model": "m", "messages": messages("card"), "response_format": JSON_SCHEMA})
        call = mirror.calls()[-1]
        folder = make_student(tmp_path / "student", call, WORDS, {"urgent": False})
        put_in_mode(mirror.stages, folder, call, "live")

    gone = threading.Event()

    def never(seen: Seen) -> Reply:
        gone.wait(60)
        return Reply([b"{}"])

    with (
        upstream_of(never) as silent,
        mirror_process("--upstream", silent.url, "--store", tmp_path / "mirror.sqlite") as process,
    ):
        wait_until(lambda: process.ask("/bertsmith/status").json()["answering"])
        with ThreadPoolExecutor(1) as client:
            client.submit(process.ask, CHAT, {"model": "m", "messages": messages("what?")})
            wait_until(lambda: process.ask("/bertsmith/status").json()["under_way"])
            process.process.send_signal(signal.SIGINT)
            time.sleep(0.5)
            process.process.send_signal(signal.SIGINT)
            assert process.process.wait(10) == 1
            gone.set()


def test_a_second_signal_ends_a_mirror_at_once_that_waits_for_its_audits(
    upstream: Upstream, tmp_path: Path
) -> None:
    """When no connection is left, and the application itself is ending."""
    body = {"model": "m", "messages": messages("card"), "response_format": JSON_SCHEMA}
    with running_mirror(tmp_path, upstream.url) as mirror:
        mirror.ask(CHAT, body)
        call = mirror.calls()[-1]
        folder = make_student(tmp_path / "student", call, WORDS, {"urgent": False})
        put_in_mode(mirror.stages, folder, call, "live")
    arguments = ["--upstream", upstream.url, "--store", tmp_path / "mirror.sqlite"]
    with mirror_process(*arguments, environment={"BERTSMITH_MIRROR_AUDIT_SHARE": "1"}) as process:
        wait_until(lambda: process.ask("/bertsmith/status").json()["answering"])
        process.ask(CHAT, body)  # from now on it knows the caller
        upstream.script = lambda _: Reply([b"{}"], wait=60)
        assert process.ask(CHAT, body).headers["x-bertsmith"].startswith("answered")
        wait_until(lambda: process.ask("/bertsmith/status").json()["audits_waiting"] == 1)
        process.process.send_signal(signal.SIGINT)
        time.sleep(1)
        assert process.process.poll() is None
        process.process.send_signal(signal.SIGINT)
        assert process.process.wait(10) == 1


def test_connections_audits_and_the_store_share_the_time_to_end(
    upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connections take all of it: the LLM answers none of what is under way."""
    given = dict[str, float]()  # seconds to end in

    def watch(part: Any) -> None:
        close = part.close

        def watched(seconds: float) -> Any:
            given[type(part).__name__] = seconds
            return close(seconds)

        monkeypatch.setattr(part, "close", watched)

    body = {"model": "m", "messages": messages("card"), "response_format": JSON_SCHEMA}
    other = {"model": "m", "messages": messages("what?")}
    with ThreadPoolExecutor(1) as client:
        with running_mirror(tmp_path, upstream.url, audit_share=1.0, drain_seconds=4) as mirror:
            mirror.ask(CHAT, body)
            go_live(mirror, tmp_path)
            upstream.script = lambda _: Reply([b"{}"], wait=600)
            assert mirror.ask(CHAT, body).headers["x-bertsmith"].startswith("answered")
            client.submit(mirror.ask, CHAT, other)
            relay = mirror.app.relay
            wait_until(lambda: (relay.under_way, relay.audits.waiting) == (1, 1))
            for part in (relay, mirror.app.recorder, mirror.app.reconciler):
                watch(part)
            began = time.monotonic()
        assert time.monotonic() - began > 3
    assert given.pop("Relay") < 1
    assert given == {"Recorder": 1.0, "Reconciler": 1.0}  # what a store that works has, however late it is
