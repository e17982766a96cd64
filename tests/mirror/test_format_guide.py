"""The guide to a wire format is followed from outside the package: its code is written down, and a mirror and
a guard in front of a server that speaks it record, answer and block.
"""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from made_student import make_student, put_in_mode
from running_mirror import running_mirror, wait_until
from scripted_upstream import Reply, Seen, Upstream, upstream_of

from bertsmith.cli.main import main
from bertsmith.errors import InputError
from bertsmith.mirror.formats.reading import events_of
from bertsmith.mirror.formats.registry import find_formats
from bertsmith.mirror.formats.wire_format import StudentCompletion, WireFormat
from bertsmith.mirror.guard.guarded_texts import collect_answer_texts, collect_request_texts
from bertsmith.mirror.importing import CallImport
from bertsmith.mirror.redaction import Redactor
from bertsmith.mirror.store import Store

PAGE = Path(__file__).parents[2] / "docs" / "add-a-format-or-route.md"
GUIDE = PAGE.read_text("utf-8").partition("\n## A wire format\n")[2].partition("\n## A route\n")[0]
PATH = "/v1beta/models/gemini-2.5-flash:generateContent"
STREAM = "/v1beta/models/gemini-2.5-flash:streamGenerateContent?alt=sse"
SCHEMA = {"type": "object", "properties": {"intent": {"enum": ["card", "other"]}}}
WORDS = {"card": {"intent": "card"}, "hello": {"intent": "other"}}


@pytest.fixture(autouse=True)
def own_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """gemini.py in the working folder, as if written by the page's reader."""
    monkeypatch.chdir(tmp_path)
    ((name, text),) = re.findall(r"^```python (\S+)\n(.*?)^```", GUIDE, re.DOTALL | re.MULTILINE)
    (tmp_path / name).write_text(text)
    yield
    sys.modules.pop("gemini", None)


@pytest.fixture
def form() -> WireFormat:
    return find_formats(["gemini:Gemini"])[0]


def request(text: str) -> dict[str, Any]:
    return {
        "contents": [{"role": "user", "parts": [{"text": text}]}],
        "systemInstruction": {"parts": [{"text": "Which intent?"}]},
        "generationConfig": {"responseMimeType": "application/json", "responseJsonSchema": SCHEMA},
    }


def answer(intent: str, number: str = "r1") -> dict[str, Any]:
    content = {"role": "model", "parts": [{"text": json.dumps({"intent": intent})}]}
    return {
        "candidates": [{"index": 0, "content": content, "finishReason": "STOP"}],
        "usageMetadata": {"promptTokenCount": 12, "candidatesTokenCount": 5, "totalTokenCount": 17},
        "modelVersion": "gemini-2.5-flash-001",
        "responseId": number,
    }


def gemini(seen: Seen) -> Reply:
    """Streams come in pieces of five characters; the last event has no text."""
    text = seen.json()["contents"][-1]["parts"][0]["text"]
    if "boom" in text:
        return Reply([b'{"error": {"code": 400, "message": "boom", "status": "INVALID_ARGUMENT"}}'], 400)
    made = answer("card" if "card" in text else "other")
    if "stream" not in seen.target:
        return Reply([json.dumps(made).encode()])
    said = made["candidates"][0]["content"]["parts"][0]["text"]
    pieces = [
        {**made, "candidates": [{"index": 0, "content": {"parts": [{"text": said[begin : begin + 5]}]}}]}
        for begin in range(0, len(said), 5)
    ]
    pieces.append({**made, "candidates": [{"index": 0, "finishReason": "STOP"}]})
    events = [b"data: " + json.dumps(each).encode() + b"\n\n" for each in pieces]
    return Reply(events, headers={"content-type": "text/event-stream"}, is_stream=True)


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    with upstream_of(gemini) as running:
        yield running


def test_a_mirror_records_it_whole_and_streamed_and_a_student_answers_both(
    upstream: Upstream, tmp_path: Path, form: WireFormat
) -> None:
    with running_mirror(tmp_path, upstream.url, format="gemini:Gemini", audit_share=1e-9) as mirror:
        for path in (PATH, STREAM):
            theirs = mirror.ask(path, request("my card"))
            assert theirs.headers["x-bertsmith"].startswith("recorded")
        first, second = mirror.calls()
        assert first.request.protocol == "gemini" and first.request.model == "gemini-2.5-flash"
        assert [each.parts for each in first.request.messages] == [("Which intent?",), ("my card",)]
        assert first.completion.value == second.completion.value == {"intent": "card"}
        assert (first.completion.input_tokens, second.completion.output_tokens) == (12, 5)
        assert first.version == second.version
        assert mirror.ask(PATH, request("boom")).status == 400
        assert mirror.skipped() == {("gemini", "status-400"): 1}

        student = put_in_mode(
            mirror.stages, make_student(tmp_path / "student", first, WORDS, {}), first, "live"
        )
        wait_until(lambda: mirror.app.reconciler.open_students.answers)
        asked = len(upstream.seen)
        whole = mirror.ask(PATH, request("hello"))
        streamed = mirror.ask(STREAM, request("my card"))
        assert f"student={student.id}" in whole.headers["x-bertsmith"]
        assert len(upstream.seen) == asked
        assert form.read_answer(first.request, whole.json()).value == {"intent": "other"}
        joined = form.join(events_of(streamed.body))
        assert form.read_answer(first.request, joined).value == {"intent": "card"}
        array = mirror.ask(STREAM.partition("?")[0], request("my card"))
        assert "reason=array-wanted" in array.headers["x-bertsmith"]
        assert len(upstream.seen) == asked + 1


def test_a_guard_judges_what_users_and_the_model_say_and_nothing_else(form: WireFormat) -> None:
    body = request("first")
    body["contents"] += [
        {"role": "model", "parts": [{"text": "said before"}]},
        {"role": "user", "parts": [{"text": "Ignore all that."}, {"text": "And more."}]},
    ]
    content = json.dumps(body).encode()
    judged = collect_request_texts(form, content)
    assert "Ignore all that." in judged.texts and not judged.reason
    assert not {"first", "said before", "Which intent?"} & set(judged.texts)
    made = answer("a free text")
    found = collect_answer_texts(content, json.dumps(made).encode(), "", is_stream=False, form=form)
    assert set(found.texts) == {'{"intent": "a free text"}', "a free text"}
    image = {"contents": [{"parts": [{"inlineData": {"mimeType": "image/png", "data": "iVBOR" * 60}}]}]}
    assert collect_request_texts(form, json.dumps(image).encode()).reason == "input-not-text"


def test_logs_of_it_are_imported(tmp_path: Path) -> None:
    lines = [
        {"endpoint": PATH, "request": request(text), "response": answer(intent, text)}
        for text, intent in (("my card", "card"), ("hello", "other"))
    ]
    log = tmp_path / "calls.jsonl"
    log.write_text("".join(json.dumps(each) + "\n" for each in lines))
    store = Store(str(tmp_path / "calls.sqlite"))
    found = CallImport([log], Redactor((), {}), find_formats(["gemini:Gemini"])).into(store)
    assert (found.added, found.skipped.total()) == (2, 0)
    store.close()


def test_what_is_no_format_is_refused_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "half.py").write_text(
        "from bertsmith.mirror.formats.wire_format import WireFormat\n"
        "class Half(WireFormat):\n    NAME = 'half'\n    PATH = '/half'\n"
    )
    for name, said in {
        "nowhere:Format": "'nowhere:Format' can't be imported: No module named 'nowhere'",
        "gemini:Other": "can't be imported: module 'gemini' has no attribute 'Other'",
        "gemini": "can't be imported",
        "gemini:candidate": "is not a subclass of bertsmith.mirror.formats.wire_format.WireFormat",
        "half:Half": "lacks error_body, read_answer, read_request, write",
        "bertsmith.mirror.formats.anthropic:Anthropic": "is called 'anthropic', as one of ours is",
    }.items():
        with pytest.raises(InputError, match=re.escape(said)):
            find_formats([name])
    store = tmp_path / "calls.sqlite"
    given = ["--upstream", "http://127.0.0.1:9", "--store", str(store), "--port", "0"]
    assert main(["mirror", "serve", *given, "--format", "nowhere:Format"]) == 2
    assert not store.exists()
    sys.modules.pop("half", None)


def test_a_format_that_imports_the_former_names_still_reads_and_writes(tmp_path: Path) -> None:
    former = {"CompletionRequest": "Asked", "Completion": "Answered", "ChatMessage": "Message"}
    former |= {"ResponseBody": "Written", "StudentCompletion": "OwnAnswer"}
    text = (tmp_path / "gemini.py").read_text().replace("answer.request.", "answer.asked.")
    for name, old in former.items():
        text = re.sub(rf"\b{name}\b", old, text)
    (tmp_path / "former.py").write_text(text)
    own = find_formats(["former:Gemini"])[0]
    asked = own.read_request(request("my card") | {"model": "m"})
    assert own.read_answer(asked, answer("card")).value == {"intent": "card"}
    written = own.write(StudentCompletion(asked, {}, {"intent": "card"}, "x", path=PATH))
    assert json.loads(b"".join(written.chunks))["modelVersion"] == "m"
