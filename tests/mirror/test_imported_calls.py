"""What teams have already becomes the same calls, once however often it is read; faults are said by line."""

import gzip
import json
import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import llm_answers
import pytest
import zstandard
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from running_mirror import RunningMirror

from bertsmith.cli.main import main
from bertsmith.errors import InputError
from bertsmith.mirror.call_files import read_json_objects
from bertsmith.mirror.exchange import read_request
from bertsmith.mirror.formats.reading import events_of
from bertsmith.mirror.formats.registry import find_format
from bertsmith.mirror.formats.wire_format import StudentCompletion
from bertsmith.mirror.importing import CallImport, ImportCounts
from bertsmith.mirror.redaction import Redactor
from bertsmith.mirror.store import Store

NOTHING = Redactor((), {})
SHAPE = {"type": "json_schema", "json_schema": {"name": "x", "schema": llm_answers.SCHEMA}}
TOOL = {"name": "x", "input_schema": llm_answers.SCHEMA}
REQUESTS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "model": "m", "messages": [{"role": "user", "content": "my card"}], "response_format": SHAPE,
    },
    "/v1/responses": {
        "model": "m", "input": "my card",
        "text": {"format": {"type": "json_schema", "name": "x", "schema": llm_answers.SCHEMA}},
    },
    "/v1/messages": {
        "model": "c", "max_tokens": 9, "messages": [{"role": "user", "content": "my card"}], "tools": [TOOL],
        "tool_choice": {"type": "any"},
    },
    "/v1/systemone": {
        "model": "j", "state": "my card", "questions": {"q": {"type": "noul", "instructions": "?"}},
    },
    "/v1/decisions": {
        "model": "d", "input": "my card", "questions": [{"type": "predicate", "instructions": "?"}],
    },
}  # fmt: skip


class Reading:
    """As scripted_upstream.Seen."""

    def __init__(self, path: str, body: Any) -> None:
        self.target, self.method, self.body = path, "POST", body

    def json(self) -> Any:
        return self.body


def import_files(paths: Sequence[Path], store: Store, redactor: Redactor) -> ImportCounts:
    return CallImport(paths, redactor).into(store)


def answer(path: str, body: Any) -> Any:
    return json.loads(b"".join(llm_answers.script(Reading(path, body)).pieces))  # type: ignore[arg-type]


def chat(text: str) -> dict[str, Any]:
    return REQUESTS["/v1/chat/completions"] | {"messages": [{"role": "user", "content": text}]}


def pair(text: str, **more: Any) -> dict[str, Any]:
    request = chat(text)
    return {"request": request, "response": answer("/v1/chat/completions", request), **more}


def batch_of(texts: Iterable[str]) -> tuple[list[Any], list[Any]]:
    """A batch file's requests, and its answers."""
    requests, answers = [], []
    for number, text in enumerate(texts):
        both = pair(text)
        requests.append({"custom_id": str(number), "url": "/v1/chat/completions", "body": both["request"]})
        response = {"status_code": 200, "body": both["response"]}
        answers.append({"custom_id": str(number), "response": response})
    return requests, answers


def written(path: Path, *objects: Any) -> Path:
    path.write_text("".join(json.dumps(each) + "\n" for each in objects))
    return path


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "calls.sqlite"))


def calls(store: Store) -> list[Any]:
    found = [each for version in store.versions() for each in store.calls(version.version)]
    return sorted(found, key=lambda each: each.began)


@pytest.mark.parametrize("named", [False, True])
def test_pairs_of_every_format_are_read_as_the_relay_reads_them(
    tmp_path: Path, store: Store, named: bool
) -> None:
    objects = [
        {
            "request": body,
            "response": answer(path, body),
            "time": place,
            **({"endpoint": path} if named else {}),
        }
        for place, (path, body) in enumerate(REQUESTS.items())
    ]
    found = import_files([written(tmp_path / "log.jsonl", *objects)], store, NOTHING)
    assert (found.added, found.known, found.skipped) == (5, 0, {})
    protocols = ["openai-chat", "openai-responses", "anthropic", "systemone", "openai-decisions"]
    assert [each.request.protocol for each in calls(store)] == protocols
    assert [each.began for each in calls(store)] == [0, 1, 2, 3, 4]
    assert {each.request.messages[-1].parts for each in calls(store)} == {("my card",)}
    assert calls(store)[0].completion.value == {"intent": "card", "urgent": False}


def test_a_call_without_a_time_has_its_answers_or_is_undated(tmp_path: Path, store: Store) -> None:
    dated, undated, timed = pair("card 1"), pair("card 2"), pair("card 3", time=5)
    dated["response"]["created"] = 7
    undated["response"].pop("created", None)
    import_files([written(tmp_path / "log.jsonl", dated, undated, timed)], store, NOTHING)
    assert [(each.source, each.began) for each in calls(store)[:2]] == [("import", 5.0), ("import", 7.0)]
    assert calls(store)[2].source == "undated"
    # Milliseconds: it would be the latest call for ever; 0, as servers write that don't know: the first.
    strange = {created: pair(f"card {created}") for created in (1767225600000, 0)}
    for created, each in strange.items():
        each["response"]["created"] = created
    import_files([written(tmp_path / "other.jsonl", *strange.values())], store, NOTHING)
    assert [each.source for each in calls(store)].count("undated") == 3
    assert import_files([tmp_path / "log.jsonl"], store, NOTHING).known == 3


@pytest.mark.parametrize("stream", [False, True])
def test_what_a_student_answered_teaches_nothing(tmp_path: Path, store: Store, stream: bool) -> None:
    """An application logs what it gets, from the LLM and from a student in its place."""
    objects = []
    for path, body in REQUESTS.items():
        form = find_format("POST", path)
        assert form is not None
        asked = read_request(form, body | {"stream": stream}, path)
        (name,) = list(asked.schema["properties"])[:1]
        value = {"intent": "card", "urgent": False} if name == "intent" else {name: True}
        spread = {f"$.{name}": [(True, 0.9), (False, 0.1)]}
        ours = form.write(StudentCompletion(asked, body | {"stream": stream}, value, "0123456789ab", spread))
        content = b"".join(ours.chunks)
        is_stream = ours.content_type.startswith("text/event-stream")
        response = form.join(events_of(content)) if is_stream else json.loads(content)
        objects += [{"request": body, "response": each} for each in (response, answer(path, body))]
    found = import_files([written(tmp_path / "log.jsonl", *objects)], store, NOTHING)
    protocols = {each.request.protocol for each in calls(store)}
    assert (found.added, len(protocols)) == (5, 5)
    assert found.skipped == {(each, "student-answer"): 1 for each in protocols}
    objects[0]["response"]["id"], own = "chatcmpl-1", objects[0]["response"]["id"]  # as 0.3.0 named it
    old = import_files([written(tmp_path / "old.jsonl", objects[0])], store, NOTHING)
    assert (old.added, old.skipped) == (0, {("openai-chat", "student-answer"): 1})
    spans = [GEN_AI, GEN_AI | {"gen_ai.response.id": own}]
    log = [{"name": "chat m", "attributes": each, "start_time": "2026-01-01T00:00:00Z"} for each in spans]
    again = import_files([written(tmp_path / "spans.jsonl", *log)], store, NOTHING)
    assert (again.added, again.skipped) == (1, {("spans", "student-answer"): 1})


def test_importing_again_or_what_was_recorded_adds_none(tmp_path: Path, mirror: RunningMirror) -> None:
    path = "/v1/chat/completions"
    objects = []
    for text in ("card 1", "card 2"):
        response = mirror.ask(path, chat(text), {"x-bertsmith-site": "desk"}).json()
        objects.append({"request": chat(text), "response": response})
    assert len(mirror.calls()) == 2
    recorded, redactor = mirror.store.versions(), mirror.app.settings.redactor
    assert import_files([written(tmp_path / "same.jsonl", *objects)], mirror.store, redactor).known == 2
    assert mirror.store.versions() == recorded  # no site either, though a log lacks the header
    log = written(tmp_path / "log.jsonl", *objects, pair("card 3"))
    first = import_files([log], mirror.store, redactor)
    again = import_files([log], mirror.store, redactor)
    assert (first.added, first.known, again.added, again.known) == (1, 2, 0, 3)


def test_equal_calls_whose_answers_have_no_id_are_told_apart_by_their_times(
    tmp_path: Path, store: Store
) -> None:
    """Of a text that was answered nine times alike and once otherwise two calls were left: as likely."""
    body = REQUESTS["/v1/systemone"]
    same = [{"request": body, "response": answer("/v1/systemone", body), "time": n} for n in range(9)]
    other = {"request": body, "response": answer("/v1/systemone", body), "time": 5}
    other["response"]["answers"]["q"]["noul"] = 1 - other["response"]["answers"]["q"]["noul"]
    log = written(tmp_path / "log.jsonl", *same, other, *same[:2])
    assert import_files([log], store, NOTHING).added == 10
    assert [each.began for each in calls(store)] == [0, 1, 2, 3, 4, 5, 5, 6, 7, 8]
    assert import_files([log], store, NOTHING).added == 0
    recorded = Store(str(tmp_path / "recorded.sqlite"))
    recorded.add([replace(calls(store)[0], source="relay", id="recorded", began=0.5)])
    assert import_files([log], recorded, NOTHING).added == 1
    for opened in (store, recorded):
        opened.close()


def test_what_cannot_be_mirrored_is_counted_once_however_often_it_is_imported(
    tmp_path: Path, address: str
) -> None:
    store = Store(address)
    span = {"name": "chat m", "attributes": {"gen_ai.operation.name": "chat"}}
    strange = [{"request": {"model": "m", "messages": []}, "response": {"id": each}} for each in "ab"]
    log = written(tmp_path / "log.jsonl", *strange, span, {"resourceSpans": [
        {"scopeSpans": [{"spans": [{"attributes": [
            {"key": "gen_ai.operation.name", "value": {"stringValue": "chat"}}]}] * 3}]}
    ]})  # fmt: skip
    passed = {("openai-chat", "no-schema"): 2, ("spans", "no-content"): 4}
    for _ in range(2):
        assert import_files([log], store, NOTHING).skipped == store.skipped() == passed
    import_files([log, written(tmp_path / "more.jsonl", {**span, "id": 1})], store, NOTHING)
    store.close()
    again = Store(address)
    assert again.skipped() == passed | {("spans", "no-content"): 5}
    again.close()


def test_openai_batches_are_joined(tmp_path: Path, store: Store) -> None:
    path = "/v1/chat/completions"
    requests = [
        {"custom_id": f"r{n}", "method": "POST", "url": path, "body": chat(f"card {n}")} for n in range(4)
    ]
    results = [
        {"id": "b", "custom_id": f"r{n}", "error": None,
         "response": {"status_code": 200 if n else 500, "body": answer(path, chat(f"card {n}"))}}
        for n in (2, 0, 1)
    ]  # fmt: skip
    files = [written(tmp_path / "out.jsonl", *results), written(tmp_path / "in.jsonl", *requests)]
    found = import_files(files, store, NOTHING)
    assert (found.added, found.unanswered, found.skipped) == (2, 1, {("batch", "upstream-error"): 1})
    assert {each.request.messages[0].parts[0] for each in calls(store)} == {"card 1", "card 2"}
    assert {each.began for each in calls(store)} == {1_760_000_000.0}


def test_anthropic_batches_are_joined(tmp_path: Path, store: Store) -> None:
    params = REQUESTS["/v1/messages"]
    message = answer("/v1/messages", params)
    requests = [{"custom_id": "a", "params": params}, {"custom_id": "b", "params": params}]
    results = [
        {"custom_id": "a", "result": {"type": "succeeded", "message": message}},
        {"custom_id": "b", "result": {"type": "errored", "error": {}}},
    ]
    found = import_files(
        [written(tmp_path / "in.jsonl", *requests), written(tmp_path / "out.jsonl", *results)], store, NOTHING
    )
    assert (found.added, found.skipped.total()) == (1, 1)
    assert calls(store)[0].completion.value == {"intent": "card", "urgent": False}


@pytest.mark.skipif(not hasattr(time, "tzset"), reason="Windows can't change a process's time zone")
@pytest.mark.parametrize("zone", ["Asia/Tokyo", "America/New_York", "UTC"])
def test_a_time_without_a_zone_is_the_same_on_every_machine(
    zone: str, tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    span = {"name": "chat", "context": {}, "attributes": GEN_AI, "start_time": "2026-01-01T03:00:00"}
    given = [
        pair("card", time="2026-01-01T01:00:00"), pair("transfer", time="2026-01-01T03:00:00+01:00"), span
    ]  # fmt: skip
    try:
        import_files([written(tmp_path / "calls.jsonl", *given)], store, NOTHING)
    finally:
        monkeypatch.undo()
        time.tzset()
    midnight = 1767225600
    assert sorted(each.began - midnight for each in calls(store)) == [3600, 7200, 10800]


GEN_AI = {
    "gen_ai.operation.name": "chat",
    "gen_ai.request.model": "m",
    "gen_ai.response.model": "m-1",
    "gen_ai.system_instructions": json.dumps([{"type": "text", "content": "Classify."}]),
    "gen_ai.input.messages": json.dumps([
        {"role": "user", "parts": [{"type": "text", "content": "my card"}]}
    ]),
    "gen_ai.output.messages": json.dumps([
        {"role": "assistant", "finish_reason": "stop",
         "parts": [{"type": "text", "content": '{"intent": "card"}'}]}
    ]),
    "gen_ai.usage.input_tokens": 11,
}  # fmt: skip


class ToFile(SpanExporter):
    """As the SDK's console exporter writes them, several lines each."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def export(self, spans: Any) -> SpanExportResult:
        with self.path.open("a") as file:
            file.writelines(span.to_json() + "\n" for span in spans)
        return SpanExportResult.SUCCESS


def test_spans_of_the_sdk_are_read(tmp_path: Path, store: Store) -> None:
    path = tmp_path / "spans.json"
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(ToFile(path)))
    tracer = provider.get_tracer("test")
    with tracer.start_as_current_span("request"):
        for text in ("card", "transfer"):
            output = [{"role": "assistant", "finish_reason": "tool_call", "parts": [
                {"type": "tool_call", "name": "classify", "arguments": {"intent": text}}]}]  # fmt: skip
            with tracer.start_as_current_span("chat m", attributes=GEN_AI | {
                "gen_ai.output.messages": json.dumps(output)}):  # fmt: skip
                pass
    provider.shutdown()
    assert import_files([path], store, NOTHING).added == 2
    first, second = calls(store)
    assert (first.completion.value, second.completion.value) == ({"intent": "card"}, {"intent": "transfer"})
    assert (first.request.way, first.request.schema_name) == ("tool", "classify")
    assert first.request.system[0].parts == ("Classify.",)
    assert first.began > 1_700_000_000
    assert first.seconds >= 0
    assert first.completion.input_tokens == 11


def test_spans_of_otlp_are_read(tmp_path: Path, store: Store) -> None:
    def typed(value: Any) -> dict[str, Any]:
        return {"intValue": str(value)} if isinstance(value, int) else {"stringValue": value}

    def span(**changed: Any) -> dict[str, Any]:
        attributes = [{"key": key, "value": typed(value)} for key, value in (GEN_AI | changed).items()]
        return {"name": "chat m", "startTimeUnixNano": "1760000000500000000",
                "endTimeUnixNano": "1760000001000000000", "attributes": attributes}  # fmt: skip

    spans = [span(), span(**{"gen_ai.operation.name": "embeddings"}), {"name": "GET /", "attributes": []}]
    cut = json.dumps([{"role": "assistant", "finish_reason": "length", "parts": []}])
    spans += [span(**{"gen_ai.output.messages": cut}), span(**{"gen_ai.output.messages": "1"}), span()]
    del spans[-1]["attributes"][4]
    spans[0]["attributes"].append({"key": "nothing", "value": {}})
    otlp = {"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}
    found = import_files([written(tmp_path / "otlp.jsonl", otlp)], store, NOTHING)
    reasons = {reason: count for (_, reason), count in found.skipped.items()}
    assert (found.added, reasons) == (1, {"truncated": 1, "malformed-request": 1, "no-content": 1})
    assert store.skipped() == found.skipped
    (call,) = calls(store)
    assert (call.began, call.seconds) == (1760000000.5, pytest.approx(0.5))
    assert call.request.way == "json-object"


@pytest.mark.parametrize(
    "times",
    [{}, {"startTimeUnixNano": "0", "endTimeUnixNano": "1760000001000000000"},
     {"end_time": "2026-01-01T00:00:00Z"}, {"start_time": "?", "end_time": "2026-01-01T00:00:00Z"}],
)  # fmt: skip
def test_a_span_without_a_time_is_undated(times: dict[str, str], tmp_path: Path, store: Store) -> None:
    span = {"name": "chat m", "attributes": GEN_AI | {"gen_ai.usage.input_tokens": True}, **times}
    assert import_files([written(tmp_path / "spans.jsonl", span)], store, NOTHING).added == 1
    (call,) = calls(store)
    assert (call.source, call.seconds, call.completion.input_tokens) == ("undated", None, None)
    assert call.began == pytest.approx(time.time(), abs=60)


def test_a_span_whose_tool_call_was_recorded_without_arguments_is_no_answer(
    tmp_path: Path, store: Store
) -> None:
    output = [{"role": "assistant", "parts": [{"type": "tool_call", "name": "classify"}]}]
    span = {"name": "chat m", "attributes": GEN_AI | {"gen_ai.output.messages": output}}
    found = import_files([written(tmp_path / "spans.jsonl", span)], store, NOTHING)
    assert (found.added, dict(found.skipped)) == (0, {("spans", "no-content"): 1})


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"request": {}, "response": {}', "line 1: expected an object of JSON"),
        ('\n\n{"a": 1}\n', "line 3: expected an object with request and response"),
        (
            '{"a": "cut\n{"a": "b"}\n',
            "line 1: expected an object of JSON on it; invalid control character at",
        ),
        ('{\n"a": 1 2\n}\n{"a": 1}\n', "line 1: what begins here is no JSON, or has been cut"),
        ('[\n{"a": "cut\n}\n]\n', "line 1: what begins here is no JSON, or has been cut"),
        ("[1, 2]\n", "line 1: expected objects; item 1 is none"),
        ('{\n "request": 1,\n', "line 1: what begins here is no JSON, or has been cut"),
        ('{"request": 1, "response": {}}\n', "line 1: expected the request and the response as JSON objects"),
        ('{"request": {"x": 1}, "response": {}}\n', "line 1: the request is of no format that is known"),
        ('{"custom_id": "a", "response": {}}\n', "line 1: no request has the custom_id 'a'"),
        (
            '{"custom_id": "a", "body": {}}\n{"custom_id": "a", "body": {}}\n',
            "line 2: the custom_id 'a' stands in",
        ),
        (json.dumps(pair("card", time="yesterday")) + "\n", "line 1: expected time in ISO 8601"),
        (json.dumps(pair("card", time=1767225600000)) + "\n", "seconds since 1970, found '1767225600000'"),
        (json.dumps(pair("card", time="9999-12-31")) + "\n", "line 1: expected time in ISO 8601"),
        (json.dumps(pair("card", site="the tickets")) + "\n", "line 1: the site 'the tickets' is no name"),
        ('"text"\n', "line 1: expected objects"),
        ("\udcff\n", "line 1: expected an object of JSON on it; it isn't UTF-8"),
        ('{"a": ' + "9" * 5000 + "}\n", "line 1: "),
    ],
)
def test_what_is_wrong_is_said_by_file_and_line(
    tmp_path: Path, store: Store, content: str, said: str
) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(InputError, match=r"log\.jsonl, line") as refused:
        import_files([path], store, NOTHING)
    assert said in str(refused.value)


def test_what_stands_before_a_fault_is_stored_and_the_next_import_goes_on(
    tmp_path: Path, store: Store
) -> None:
    path = written(tmp_path / "log.jsonl", pair("card 1"), pair("card 2"))
    good = path.read_text()
    path.write_text(good + '{"request": cut')
    with pytest.raises(InputError, match="line 3"):
        import_files([path], store, NOTHING)
    assert store.count() == 2
    path.write_text(good + json.dumps(pair("card 3")))
    assert import_files([path], store, NOTHING).added == 1


@pytest.mark.parametrize("first", ["requests", "answers"])
def test_what_stands_before_a_cut_line_of_a_batch_is_stored_too(
    tmp_path: Path, store: Store, first: str
) -> None:
    requests, answers = batch_of(f"card {number}" for number in range(3))
    paths = {"requests": written(tmp_path / "in.jsonl", *requests)}
    paths["answers"] = written(tmp_path / "out.jsonl", *answers[:2])
    paths["answers"].write_text(paths["answers"].read_text() + '{"custom_id": "2", "resp')
    with pytest.raises(InputError, match=r"out\.jsonl, line 3"):
        import_files(sorted(paths.values(), key=lambda path: path != paths[first]), store, NOTHING)
    assert store.count() == 2


def test_an_array_and_objects_of_several_lines_are_read(tmp_path: Path, store: Store) -> None:
    objects = [pair(f"card {number}") for number in range(3)]
    paths = [tmp_path / f"{name}.json" for name in ("array", "aggregated", "spread", "folded")]
    array, aggregated, spread, folded = paths
    array.write_text(json.dumps(objects, indent=2))
    aggregated.write_text("[" + ", \n ".join(map(json.dumps, objects)) + "]")  # as PostgreSQL's json_agg
    spread.write_text("\n\n".join(json.dumps(each, indent=4) for each in objects))
    folded.write_text("\n".join(json.dumps(each).replace('"response"', '\n"response"') for each in objects))
    assert import_files([array], store, NOTHING).added == 3
    for path in (aggregated, spread, folded):
        assert import_files([path], store, NOTHING).known == 3
    for path in (spread, folded):
        lines = [each.line for each in read_json_objects(path)]
        assert lines == sorted(set(lines))
    assert all(each.read() == each.value for path in paths for each in read_json_objects(path))


@pytest.mark.parametrize(
    ("ending", "change"),
    [
        ("", lambda text: text.encode("utf-8-sig")),
        ("", lambda text: text.encode("utf-16")),
        (".gz", lambda text: gzip.compress(text.encode())),
        (".zst", lambda text: zstandard.compress(text.encode("utf-8-sig"))),
    ],
)
@pytest.mark.parametrize("form", ["lines", "spread", "array"])
def test_files_are_read_as_everywhere_else(
    tmp_path: Path, store: Store, ending: str, change: Callable[[str], bytes], form: str
) -> None:
    requests, answers = batch_of(f"card {number}, é" for number in range(3))
    paths = [tmp_path / f"requests.json{ending}", tmp_path / f"answers.json{ending}"]
    for path, objects in zip(paths, (requests, answers), strict=True):
        indent = 1 if form == "spread" else None
        lines = "\n".join(json.dumps(each, ensure_ascii=False, indent=indent) for each in objects)
        path.write_bytes(change(json.dumps(objects, ensure_ascii=False) if form == "array" else lines))
    assert import_files(paths, store, NOTHING).added == 3
    assert [each.without_value().read() for each in read_json_objects(paths[0])] == requests


def test_a_fault_in_a_packed_file_is_said_by_its_line_and_damage_as_damage(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"a": 1}\n{"a": '))
    with pytest.raises(InputError, match=r"log\.jsonl\.gz, line 2: expected an object of JSON"):
        list(read_json_objects(path))
    path.write_bytes(gzip.compress(b'{"a": 1}\n{"a": "\xe9"}'))
    with pytest.raises(InputError, match=r"log\.jsonl\.gz: expected utf-8 text, .* in line 2"):
        list(read_json_objects(path))
    path.write_bytes(b"no archive")
    with pytest.raises(InputError, match="the gzip archive is cut or damaged"):
        list(read_json_objects(path))


@pytest.mark.parametrize("indent", [None, 0, 1])
def test_files_are_read_in_linear_time(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch, indent: int | None
) -> None:
    """Bytes parsed are counted: an array was parsed for each item, or from its begin at each bracket."""
    requests, answers = batch_of(f'card {number} \\" }} ] "{{[ é' for number in range(60))
    paths = [tmp_path / "requests.json", tmp_path / "answers.json"]
    for path, objects in zip(paths, (requests, answers), strict=True):
        path.write_text(json.dumps(objects, indent=indent, ensure_ascii=False))
    parsed = [0]

    def loads(content: bytes) -> Any:
        parsed[0] += len(content)
        return json.loads(content)

    monkeypatch.setattr("bertsmith.mirror.call_files.orjson", SimpleNamespace(loads=loads))
    assert import_files(paths, store, NOTHING).added == 60
    assert parsed[0] < 5 * sum(path.stat().st_size for path in paths)
    assert all(each.read() == each.value for path in paths for each in read_json_objects(path))


def test_the_commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    log = written(
        tmp_path / "log.jsonl", pair("card, me@example.org", subject="anna"), pair("transfer"),
        {"request": {"model": "m", "messages": []}, "response": {}},
    )  # fmt: skip
    assert main(["mirror", "status"]) == 2
    assert "mirror.sqlite is not there" in capsys.readouterr().err
    assert main(["mirror", "import", str(log)]) == 0
    said = capsys.readouterr().out
    assert "new calls" in said
    assert "no-schema" in said
    assert main(["mirror", "status"]) == 0
    assert re.search(r"\$\.intent +string", capsys.readouterr().out)
    assert main(["mirror", "status", "--json"]) == 0
    status = json.loads(capsys.readouterr().out)
    assert status["calls"] == 2
    assert status["versions"][0]["calls"] == 2
    assert status["not_mirrored"] == [{"protocol": "openai-chat", "reason": "no-schema", "calls": 1}]
    assert main(["mirror", "forget", "anna"]) == 0
    assert "1 calls deleted" in capsys.readouterr().out
    assert main(["mirror", "forget", "anna"]) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "0 calls deleted. Note: No recorded call is about this subject." in said
    assert "metadata.user_id or safety_identifier, or its header X-Subject" in said
    assert b"card, " not in b"".join(each.read_bytes() for each in tmp_path.glob("mirror.sqlite*"))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["serve"], "nothing to relay to"),
        (["serve", "--upstream", "example.org"], "expected an address such as https://"),
        (["serve", "--upstream", "https://user:pass@example.org"], "without a name, a password"),
        (["serve", "--upstream", "http://127.0.0.1:x"], "expected an address"),
        (["serve", "--upstream", "http://x", "--redact", "mail"], "there is no rule 'mail'"),
        (["serve", "--upstream", "http://x", "--store", "mysql://x"], "found mysql://"),
        (["serve", "--upstream", "http://x", "--host", "256.1.1.1"], "can't be listened on"),
        (["serve", "--config", "none.toml"], "none.toml is not there"),
        (["import"], "at least one FILE"),
        (
            ["label", "a.csv", "--upstream=http://x", "--model=m", "--prompt=p", "--schema=s", "--site=a b"],
            "--site: 'a b' is no name",
        ),
        (["import", "none.jsonl"], "none.jsonl is not there"),
        (["forget", "anna"], "mirror.sqlite is not there"),
    ],
)
def test_bad_inputs_are_one_sentence(
    tmp_path: Path,
    arguments: list[str],
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["mirror", *arguments]) == 2
    shown = capsys.readouterr().err
    assert said in " ".join(shown.split())
    assert "Traceback" not in shown


@pytest.mark.parametrize("content", ["", "\n \n"])
def test_an_empty_file_is_said_and_leaves_no_store(
    content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "calls.jsonl").write_text(content)
    assert main(["mirror", "import", "calls.jsonl"]) == 2
    assert "calls.jsonl is empty" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["calls.jsonl"]


def test_a_file_without_a_call_makes_no_store(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "pairs.jsonl", {"text": "a", "label": "b"})
    written(tmp_path / "requests.jsonl", {"custom_id": "1", "body": {}})
    written(tmp_path / "answers.jsonl", {"custom_id": "2", "response": {}})
    for names in (["pairs.jsonl"], ["answers.jsonl"], ["requests.jsonl", "answers.jsonl"]):
        assert main(["mirror", "import", *names]) == 2
        assert f"{names[-1]}, line 1: " in capsys.readouterr().err
    assert not (tmp_path / "mirror.sqlite").exists()
