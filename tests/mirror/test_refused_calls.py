"""A call that the LLM gives no answer with the schema counts in each mode alike, and is shown."""

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from made_student import make_student, stage_of
from running_mirror import RunningMirror, running_mirror, wait_until
from scripted_upstream import Reply, Seen, Upstream
from test_mirrored_clients import JSON_SCHEMA, messages
from test_stages import begin, compared

from bertsmith.cli.main import main
from bertsmith.mirror.answering.accounts import read_accounts
from bertsmith.mirror.answering.stage_store import StageStore
from bertsmith.mirror.answering.training_process import read_student
from bertsmith.mirror.settings import PriceSettings
from bertsmith.mirror.store import Store

ERROR = b'{"error": {"message": "No.", "code": "content_policy"}}'


@pytest.fixture
def calm(upstream: Upstream, tmp_path: Path) -> Iterator[RunningMirror]:
    with running_mirror(tmp_path, upstream.url, audit_share=1.0, seed=1) as mirror:
        yield mirror


def say(mirror: RunningMirror, text: str, key: str = "") -> int:
    body = {"model": "m", "messages": messages(text), "response_format": JSON_SCHEMA}
    headers = {"authorization": key} if key else {}
    return mirror.ask("/v1/chat/completions", body, headers).status


def answer_with(upstream: Upstream, reply: Reply) -> Any:
    """From now on; gives what it did before."""
    before, upstream.script = upstream.script, lambda _: reply
    return before


def account(mirror: RunningMirror) -> Any:
    mirror.follow()
    (found,) = read_accounts(mirror.stages, PriceSettings())
    return found


@pytest.mark.parametrize("mode", ["shadow", "canary", "live"])
def test_a_call_that_the_llm_refuses_differs_in_each_mode(
    upstream: Upstream, calm: RunningMirror, tmp_path: Path, mode: str
) -> None:
    student = begin(calm, tmp_path, mode, 1e-9)
    script = answer_with(upstream, Reply([ERROR], 400))
    assert say(calm, "a card") == (200 if mode == "live" else 400)
    assert compared(calm, student, 1).audits.rate() == 1

    def refuse(seen: Seen) -> Reply:
        return Reply([script(seen).pieces[0].replace(b'"refusal":null', b'"refusal":"No."')])

    upstream.script = refuse
    assert say(calm, "a card") == 200
    assert compared(calm, student, 2).audits.rate() == 1
    found = account(calm)
    assert (found.refused, found.void) == ({"status-400": 1, "refusal": 1}, {})
    assert calm.skipped() == {("openai-chat", "status-400"): 1, ("openai-chat", "refusal"): 1}


def test_a_status_that_says_nothing_of_the_call_is_no_difference(
    upstream: Upstream, calm: RunningMirror, tmp_path: Path
) -> None:
    """429 and 500 may be over later, 404 is the address's, 401 the caller's; and so is 403 for a caller whom
    no student would answer.
    """
    student = begin(calm, tmp_path, "shadow")
    for status in (429, 500, 404, 401):
        answer_with(upstream, Reply([ERROR], status))
        assert say(calm, "a card") == status
    answer_with(upstream, Reply([ERROR], 403))
    assert say(calm, "a card", "Bearer nobody knows") == 403
    found = account(calm)
    assert (found.refused, found.compared) == ({}, 0)
    assert calm.stages.evidence().get(student.id) is None


@pytest.mark.parametrize("status", [429, 503, 404, 401])
def test_an_audit_without_an_answer_is_void_and_says_why(
    upstream: Upstream, calm: RunningMirror, tmp_path: Path, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bertsmith.mirror.answering.audits.AUDIT_PATIENCE", 2.0)
    student = begin(calm, tmp_path, "live")
    answer_with(upstream, Reply([ERROR], status))
    assert say(calm, "a card") == 200
    wait_until(lambda: calm.app.relay.audits.waiting == 0)
    assert account(calm).void == {f"status-{status}": 1}
    assert account(calm).compared == 0
    assert calm.stages.audit_outcomes() == {(student.id, "void"): 1}
    assert say(calm, "a card") == (
        200 if status != 401 else 401
    )  # whoever isn't known any more, the LLM answers


CHUNK = b'data: {"choices": [{"index": 0, "delta": {"content": "{"}}]}\n\n'


@pytest.mark.parametrize(
    ("pieces", "more", "cause"),
    [
        ([CHUNK, b'event: error\ndata: {"error": {"message": "overloaded"}}\n\n'], {}, "upstream-error"),
        ([CHUNK], {}, "cut"),
        ([CHUNK], {"x-bertsmith": "answered; site=s; student=s"}, "student-answer"),
    ],
)
@pytest.mark.parametrize("mode", ["canary", "live"])
def test_a_stream_that_breaks_off_or_is_another_mirrors_students_is_no_difference(
    upstream: Upstream,
    calm: RunningMirror,
    tmp_path: Path,
    mode: str,
    pieces: list[bytes],
    more: dict[str, str],
    cause: str,
) -> None:
    student = begin(calm, tmp_path, mode, 1e-9)
    stream = {"content-type": "text/event-stream", **more}
    answer_with(upstream, Reply(pieces, headers=stream, is_stream=True))
    assert say(calm, "a card") == 200
    found = account(calm)
    assert (found.compared, found.refused) == (0, {})
    assert found.void == ({cause: 1} if mode == "live" else {})
    assert calm.skipped() == {("openai-chat", cause): 1}
    assert calm.stages.audit_outcomes() == ({(student.id, "void"): 1} if mode == "live" else {})


def test_a_mirror_that_stops_does_not_wait_for_an_llm_that_is_away(
    upstream: Upstream, tmp_path: Path
) -> None:
    with running_mirror(tmp_path, upstream.url, audit_share=1.0, seed=1) as mirror:
        student = begin(mirror, tmp_path, "live")
        answer_with(upstream, Reply([ERROR], 503))
        assert say(mirror, "a card") == 200
        wait_until(lambda: mirror.stages.audit_outcomes() == {(student.id, "open"): 1})
        began = time.monotonic()
    assert time.monotonic() - began < 10  # drain_seconds are 30
    stages = StageStore(Store(str(mirror.path)))
    assert stages.audit_outcomes() == {(student.id, "void"): 1}
    (found,) = read_accounts(stages, PriceSettings())
    assert found.void == {"status-503": 1}


def test_an_audit_that_the_llm_leaves_hanging_is_void_and_no_disagreement(
    upstream: Upstream, calm: RunningMirror, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bertsmith.mirror.answering.audits.AUDIT_PATIENCE", 2.0)
    student = begin(calm, tmp_path, "live")
    answer_with(upstream, Reply([b"{}"], wait=30))
    assert say(calm, "a card") == 200
    wait_until(lambda: calm.stages.audit_outcomes().get((student.id, "open"), 0) == 0 and account(calm).void)
    assert calm.stages.audit_outcomes() == {(student.id, "void"): 1}
    assert account(calm).void == {"no-connection": 1}


def test_an_audit_that_fails_by_a_fault_of_ours_is_void(
    calm: RunningMirror, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    student = begin(calm, tmp_path, "live")

    async def broken(*_: object) -> None:
        raise RuntimeError("a fault")

    monkeypatch.setattr(calm.app.relay.connections, "ask", broken)
    assert say(calm, "a card") == 200
    wait_until(lambda: account(calm).void)
    assert (account(calm).void, account(calm).compared) == ({"mirror-error": 1}, 0)
    assert calm.stages.audit_outcomes() == {(student.id, "void"): 1}


def test_a_candidate_differs_too_where_the_llm_refuses(
    upstream: Upstream, calm: RunningMirror, tmp_path: Path
) -> None:
    """Whether the call was relayed or audited."""
    student = begin(calm, tmp_path, "live")
    call = calm.calls()[-1]
    folder = make_student(
        tmp_path / "other", call, {"card": {"intent": "card"}}, {"urgent": False}, created="y"
    )
    candidate = read_student(folder, call.version)
    assert candidate is not None and calm.stages.add_student(candidate)
    stage = stage_of(calm.stages, student.version)
    assert calm.stages.change(stage, replace(stage, candidate=candidate.id), "hand", "a test")
    wait_until(lambda: calm.app.reconciler.open_students.by_version[call.version].candidate)
    answer_with(upstream, Reply([ERROR], 422))
    assert say(calm, "a card") == 200
    assert compared(calm, candidate, 1).audits.rate() == 1


def test_status_shows_what_the_llm_refused(
    upstream: Upstream, calm: RunningMirror, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    begin(calm, tmp_path, "shadow")
    answer_with(upstream, Reply([ERROR], 400))
    say(calm, "a card")
    calm.follow()
    assert main(["mirror", "status", "--store", str(calm.path)]) == 0
    said = capsys.readouterr().out
    assert "Without an answer of the LLM" in said and "status-400" in said
    assert main(["mirror", "status", "--json", "--store", str(calm.path)]) == 0
    (found,) = json.loads(capsys.readouterr().out)["answering"]
    assert found["refused"] == {"status-400": 1}
