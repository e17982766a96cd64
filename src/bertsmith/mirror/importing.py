"""What a team already has → calls: logs of requests and answers, batch files, traces.

    JSON lines        {"request": …, "response": …}, with "time", "subject", "site" where they are known
    batch files       OpenAI's input and output, Anthropic's requests and results, joined by custom_id
    OpenTelemetry     spans of GenAI calls as JSON: OTLP's, and those of the SDK's console exporter

An imported call is named by its content: importing a file again, or one whose calls were recorded, adds none.
What can't be mirrored is counted once too. What an application logged while a student answered has answers
of the student's, which teach nothing.
"""

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import orjson

from bertsmith.errors import InputError
from bertsmith.mirror.call import (
    IMPORTED,
    OWN_ID_PREFIX,
    STUDENT_ANSWER,
    UNDATED,
    Call,
    Completion,
    CompletionRequest,
    Json,
    NotMirrored,
)
from bertsmith.mirror.call_files import (
    LocatedObject,
    holds_spans,
    parse_time,
    read_json_objects,
    read_span_calls,
)
from bertsmith.mirror.exchange import make_call, read_completion, read_request
from bertsmith.mirror.formats.reading import names_in
from bertsmith.mirror.formats.registry import FORMATS, format_of, guessed
from bertsmith.mirror.formats.wire_format import WireFormat
from bertsmith.mirror.identity import require_name
from bertsmith.mirror.redaction import Redactor
from bertsmith.mirror.store import Store
from bertsmith.progress import Progress

_BATCH = 500  # calls written together
_FARTHEST = 4_102_444_800  # seconds since 1970, the year 2100: a time beyond it is in milliseconds
_WANTED = "Expected a file of JSON lines, a batch file, or spans."
_EXPECTED = "expected an object with request and response, a line of a batch file, or a span of OpenTelemetry"


@dataclass
class ImportCounts:
    """`added` calls are new; `known` ones were there; `passed` could not be mirrored, by (protocol, reason);
    `unanswered` are requests of a batch without an answer.
    """

    added: int = 0
    known: int = 0
    unanswered: int = 0
    passed: Counter[tuple[str, str]] = field(default_factory=Counter)


class CallImport:
    """Calls on their way into a store. Of a batch both files are named, in any order."""

    def __init__(
        self, paths: Sequence[Path], redactor: Redactor, formats: tuple[WireFormat, ...] = FORMATS
    ) -> None:
        """Reads up to the first call, before there need be a store. Raises InputError for a file that is
        missing, empty or no JSON, and for what stands before that call.
        """
        for path in paths:
            if not path.is_file():
                raise InputError(f"{path} is not there. {_WANTED}")
            if next(iter(read_json_objects(path)), None) is None:
                raise InputError(f"{path} is empty. {_WANTED}")
        self._redactor, self._formats, self._requests = redactor, formats, _requests(paths)
        self.found = ImportCounts(unanswered=len(self._requests))
        self._answered = set[str]()
        self._waiting = list[Call]()
        self._passed: dict[str, tuple[str, str]] = {}  # by content
        self._objects = (placed for path in paths for placed in read_json_objects(path))
        while not self._waiting and not self._passed and (first := next(self._objects, None)) is not None:
            self._read(first)

    def into(self, store: Store, progress: Progress | None = None) -> ImportCounts:
        """Raises InputError naming file and line. What was read before is stored: the next import goes on."""
        try:
            for placed in self._objects:
                self._read(placed)
                if len(self._waiting) + len(self._passed) >= _BATCH:
                    self._write(store, progress)
        finally:
            self._write(store, progress)
        return self.found

    def _read(self, placed: LocatedObject) -> None:
        kind, passed = _kind(placed.value), list[str]()
        if kind == "unknown":
            keys = ", ".join(list(placed.value)[:6]) or "of none"
            raise InputError(f"{placed}: {_EXPECTED}; found the keys {keys}.")
        readers: dict[str, Callable[[LocatedObject], Iterator[Call | NotMirrored]]] = {
            "pair": self._of_pair,
            "batch answer": self._of_answer,
            "spans": self._of_spans,
        }
        try:
            for each in readers[kind](placed) if kind in readers else ():
                if isinstance(each, NotMirrored):
                    passed.append(each.reason)
                else:
                    self._waiting.append(each)
        except NotMirrored as found:
            passed.append(found.reason)
        if passed:
            content = hashlib.sha256(orjson.dumps(placed.value, option=orjson.OPT_SORT_KEYS)).hexdigest()
            protocol = "batch" if kind.startswith("batch") else kind
            if kind == "pair" and (form := self._format_of_pair(placed.value)[1]) is not None:
                protocol = form.NAME
            self.found.passed.update((protocol, reason) for reason in passed)
            self._passed |= {f"{content} {n}": (protocol, reason) for n, reason in enumerate(passed)}

    def _write(self, store: Store, progress: Progress | None) -> None:
        """What waits."""
        added = store.add(self._waiting, imports=self._passed)
        found = self.found
        found.added, found.known = found.added + added, found.known + len(self._waiting) - added
        found.unanswered = len(self._requests) - len(self._answered)
        self._waiting.clear()
        self._passed.clear()
        if progress is not None:
            progress(found.added + found.known + found.passed.total(), None, "calls")

    def _of_pair(self, placed: LocatedObject) -> Iterator[Call]:
        value = placed.value
        body, answer = value["request"], value["response"]
        if not isinstance(body, dict) or not isinstance(answer, dict):
            raise InputError(f"{placed}: expected the request and the response as JSON objects.")
        path, form = self._format_of_pair(value)
        if form is None:
            raise InputError(
                f"{placed}: the request is of no format that is known. Say it by its path: "
                '"endpoint": "/v1/chat/completions".'
            )
        if site := str(value.get("site") or ""):
            require_name(site, f"{placed}: the site")
        yield self._made(
            read_request(form, body, path),
            lambda request: read_completion(form, request, answer),
            _created(answer) if value.get("time") is None else _time(value["time"], placed),
            site,
            tuple(names_in(value.get("subject"))),
        )

    def _of_answer(self, placed: LocatedObject) -> Iterator[Call]:
        value, name = placed.value, str(placed.value["custom_id"])
        if name not in self._requests:
            raise InputError(
                f"{placed}: no request has the custom_id {name[:80]!r}. Name the batch's file of requests "
                "too."
            )
        self._answered.add(name)
        line = self._requests[name].read()
        result, response = value.get("result"), value.get("response")
        if isinstance(result, dict):  # Anthropic's
            body, path, is_right = result.get("message"), "/v1/messages", result.get("type") == "succeeded"
        else:
            response = response if isinstance(response, dict) else {}
            body, path = response.get("body"), str(line.get("url", ""))
            is_right = response.get("status_code") == 200
        form = format_of("POST", path, self._formats)
        if form is None:
            raise NotMirrored("other-path")
        request = read_request(form, line.get("body", line.get("params")), path)
        if not is_right or not isinstance(body, dict):
            raise NotMirrored("upstream-error")
        yield self._made(request, lambda request: read_completion(form, request, body), _created(body))

    def _of_spans(self, placed: LocatedObject) -> Iterator[Call | NotMirrored]:
        """One object may hold many."""
        for span in read_span_calls(placed.value):
            if isinstance(span, NotMirrored):
                yield span
                continue
            if _is_students(span.request, span.completion):
                yield NotMirrored(STUDENT_ANSWER)
                continue
            source, began = _origin(span.began)
            yield make_call(
                span.request,
                span.completion,
                self._redactor,
                source=source,
                began=began,
                seconds=span.seconds,
            )

    def _made(
        self,
        request: CompletionRequest,
        answer: Callable[[CompletionRequest], Completion],
        began: float | None,
        site: str = "",
        subjects: tuple[str, ...] = (),
    ) -> Call:
        source, began = _origin(began)
        completion = answer(request)
        if _is_students(request, completion):
            raise NotMirrored(STUDENT_ANSWER)
        return make_call(
            request, completion, self._redactor, source=source, began=began, named=site, subjects=subjects
        )

    def _format_of_pair(self, value: Mapping[str, Json]) -> tuple[str, WireFormat | None]:
        """And its path, where the log has it."""
        path = str(value.get("endpoint") or value.get("url") or value.get("path") or "")
        form = format_of("POST", path, self._formats)
        return path, form or guessed(value["request"], value["response"], self._formats)


def _requests(paths: Sequence[Path]) -> dict[str, LocatedObject]:
    """Where the batch files have each request; a file of answers is read once, as other files are, for what
    stands before a fault in it is to be stored. Raises InputError for two of one custom_id.
    """
    found: dict[str, LocatedObject] = {}
    for path in paths:
        for placed in read_json_objects(path):
            if _kind(placed.value) != "batch request":
                break
            name = str(placed.value["custom_id"])
            if name in found:
                raise InputError(f"{placed}: the custom_id {name[:80]!r} stands in {found[name]} already.")
            found[name] = placed.without_value()
    return found


def _kind(value: Mapping[str, Json]) -> str:
    if "custom_id" in value:
        return "batch request" if "body" in value or "params" in value else "batch answer"
    if "request" in value and "response" in value:
        return "pair"
    return "spans" if holds_spans(value) else "unknown"


def _is_students(request: CompletionRequest, completion: Completion) -> bool:
    """A student of a mirror gave it: its id says so, and in the protocols without one, which ask typed
    questions, that it has read and written no tokens.
    """
    is_uncounted = request.way == "questions" and completion.input_tokens == completion.output_tokens == 0
    return OWN_ID_PREFIX in completion.response_id or is_uncounted


def _origin(began: float | None) -> tuple[str, float]:
    """A call's source and time. Without a time it counts as of now, and is marked: it can't be told from the
    latest traffic.
    """
    return (UNDATED, time.time()) if began is None else (IMPORTED, began)


def _time(given: Json, placed: LocatedObject) -> float:
    """Seconds since 1970, or as ISO 8601, in UTC where it names no zone."""
    found: float | None = None
    with suppress(ValueError, OverflowError):
        is_number = isinstance(given, int | float) and not isinstance(given, bool)
        found = float(given) if is_number else parse_time(str(given))
    if found is None or not 0 <= found < _FARTHEST:
        raise InputError(
            f"{placed}: expected time in ISO 8601 or in seconds since 1970, found {str(given)[:40]!r}."
        )
    return found


def _created(body: Mapping[str, Json]) -> float | None:
    """As the answer says, if it does: some servers write 0."""
    for name in ("created", "created_at"):
        found = body.get(name)
        if isinstance(found, int | float) and not isinstance(found, bool) and 0 < found < _FARTHEST:
            return float(found)
    return None
