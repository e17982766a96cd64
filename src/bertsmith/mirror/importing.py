"""Imports the calls that a team has recorded already: logs of requests and answers, batch files, traces.

    JSON lines        {"request": …, "response": …}, with "time", "subject", "site" where they are known
    batch files       OpenAI's input and output, Anthropic's requests and results, joined by custom_id
    OpenTelemetry     spans of GenAI calls as JSON: OTLP's, and those of the SDK's console exporter
    LangSmith         runs, as its API and its exports have them
    Langfuse          observations, alone, in traces or in pages of its API

The id of an imported call is a hash of its content: importing a file again, or one whose calls were recorded,
adds nothing. Calls that can't be mirrored are counted once too. Answers by a student, which an application
may have logged, are not imported: nothing can be learned from them. Read `CallImport`.
"""

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
    read_cost,
    read_json_objects,
    read_span_calls,
)
from bertsmith.mirror.exchange import make_call, read_completion, read_request
from bertsmith.mirror.formats.reading import names_in
from bertsmith.mirror.formats.registry import FORMATS, find_format, guess_format
from bertsmith.mirror.formats.wire_format import WireFormat
from bertsmith.mirror.identity import require_name
from bertsmith.mirror.redaction import Redactor
from bertsmith.mirror.store import Store
from bertsmith.mirror.trace_files import holds_traces, iterate_spans
from bertsmith.progress import Progress

_BATCH = 500  # calls written together
_LATEST = 4_102_444_800  # seconds since 1970, the year 2100: a larger number is in milliseconds
_EXPECTED_FILE = "Expected a file of JSON lines, a batch file, or spans."
_EXPECTED_OBJECT = (
    "expected an object with request and response, a line of a batch file, a span of OpenTelemetry, a run of "
    "LangSmith, or an observation of Langfuse"
)


@dataclass
class ImportCounts:
    """What an import has done: `added` calls are new, `known` ones were in the store, `skipped` counts those
    that can't be mirrored by (protocol, reason), and `unanswered` the requests of a batch without an answer.
    `costs` has, by version, the number of calls that say what they cost, and the sum of that.
    """

    added: int = 0
    known: int = 0
    unanswered: int = 0
    skipped: Counter[tuple[str, str]] = field(default_factory=Counter)
    costs: dict[str, tuple[int, float]] = field(default_factory=dict)


class CallImport:
    """Reads calls from files and adds them to a store. A batch needs both of its files, in any order."""

    def __init__(
        self, paths: Sequence[Path], redactor: Redactor, formats: tuple[WireFormat, ...] = FORMATS
    ) -> None:
        """Reads up to the first call, so that faulty files are found before a store is created. Raises
        InputError for a file that is missing, empty or not JSON, and for a fault before that call.
        """
        for path in paths:
            if not path.is_file():
                raise InputError(f"{path} is not there. {_EXPECTED_FILE}")
            if next(iter(read_json_objects(path)), None) is None:
                raise InputError(f"{path} is empty. {_EXPECTED_FILE}")
        self._redactor, self._formats, self._requests = redactor, formats, _find_batch_requests(paths)
        self.counts = ImportCounts(unanswered=len(self._requests))
        self._answered = set[str]()
        self._waiting = list[Call]()
        self._skipped: dict[
            str, tuple[str, str]
        ] = {}  # by a hash of the content, for calls that can't be mirrored
        self._objects = (located for path in paths for located in read_json_objects(path))
        while not self._waiting and not self._skipped and (first := next(self._objects, None)) is not None:
            self._read(first)

    def into(self, store: Store, progress: Progress | None = None) -> ImportCounts:
        """Adds all calls to `store`. Raises InputError naming file and line; calls before the fault are
        stored, and importing the mended file adds the rest.
        """
        try:
            for located in self._objects:
                self._read(located)
                if len(self._waiting) + len(self._skipped) >= _BATCH:
                    self._write(store, progress)
        except BaseException as error:  # Ctrl-C, too
            self._write(store, progress)
            if not isinstance(error, InputError):
                raise
            raise InputError(
                f"{error} The {self.counts.added:,} new calls before it are stored. Import the mended file: "
                "none counts twice."
            ) from error
        self._write(store, progress)
        return self.counts

    def _read(self, located: LocatedObject) -> None:
        kind, skipped = _object_kind(located.value), list[str]()
        if kind == "unknown":
            keys = ", ".join(list(located.value)[:6]) or "of none"
            raise InputError(f"{located}: {_EXPECTED_OBJECT}; found the keys {keys}.")
        readers: dict[str, Callable[[LocatedObject], Iterator[Call | NotMirrored]]] = {
            "pair": self._read_pair,
            "batch answer": self._read_batch_answer,
            "spans": self._read_spans,
            "traces": self._read_traces,
        }
        try:
            for call in readers[kind](located) if kind in readers else ():
                if isinstance(call, NotMirrored):
                    skipped.append(call.reason)
                else:
                    self._waiting.append(call)
        except NotMirrored as error:
            skipped.append(error.reason)
        if skipped:
            content = hashlib.sha256(orjson.dumps(located.value, option=orjson.OPT_SORT_KEYS)).hexdigest()
            protocol = "batch" if kind.startswith("batch") else kind
            if kind == "pair" and (form := self._format_of_pair(located.value)[1]) is not None:
                protocol = form.NAME
            self.counts.skipped.update((protocol, reason) for reason in skipped)
            self._skipped |= {f"{content} {n}": (protocol, reason) for n, reason in enumerate(skipped)}

    def _write(self, store: Store, progress: Progress | None) -> None:
        """Writes the calls read so far, in one transaction."""
        added = store.add(self._waiting, imports=self._skipped)
        counts = self.counts
        counts.added, counts.known = counts.added + added, counts.known + len(self._waiting) - added
        counts.unanswered = len(self._requests) - len(self._answered)
        self._waiting.clear()
        self._skipped.clear()
        if progress is not None:
            progress(counts.added + counts.known + counts.skipped.total(), None, "calls")

    def _read_pair(self, located: LocatedObject) -> Iterator[Call]:
        value = located.value
        body, answer = value["request"], value["response"]
        if not isinstance(body, dict) or not isinstance(answer, dict):
            raise InputError(f"{located}: expected the request and the response as JSON objects.")
        path, form = self._format_of_pair(value)
        if form is None:
            raise InputError(
                f"{located}: the request is of no format that is known. Say it by its path: "
                '"endpoint": "/v1/chat/completions".'
            )
        if site := str(value.get("site") or ""):
            require_name(site, f"{located}: the site")
        call = self._make_call(
            read_request(form, body, path),
            lambda request: read_completion(form, request, answer),
            _answer_time(answer) if value.get("time") is None else _read_time(value["time"], located),
            site,
            tuple(names_in(value.get("subject"))),
        )
        usage = answer.get("usage")
        self._add_cost(call, value.get("cost") or (usage.get("cost") if isinstance(usage, dict) else None))
        yield call

    def _read_batch_answer(self, located: LocatedObject) -> Iterator[Call]:
        value, name = located.value, str(located.value["custom_id"])
        if name not in self._requests:
            raise InputError(
                f"{located}: no request has the custom_id {name[:80]!r}. Name the batch's file of requests "
                "too."
            )
        self._answered.add(name)
        line = self._requests[name].read()
        result, response = value.get("result"), value.get("response")
        if isinstance(result, dict):  # as Anthropic's batches have it
            body, path, is_success = result.get("message"), "/v1/messages", result.get("type") == "succeeded"
        else:
            response = response if isinstance(response, dict) else {}
            body, path = response.get("body"), str(line.get("url", ""))
            is_success = response.get("status_code") == 200
        form = find_format("POST", path, self._formats)
        if form is None:
            raise NotMirrored("other-path")
        request = read_request(form, line.get("body", line.get("params")), path)
        if not is_success or not isinstance(body, dict):
            raise NotMirrored("upstream-error")
        yield self._make_call(
            request, lambda request: read_completion(form, request, body), _answer_time(body)
        )

    def _read_spans(self, located: LocatedObject) -> Iterator[Call | NotMirrored]:
        """Yields the calls of the spans in one object, or the reasons why they can't be mirrored."""
        yield from self._read_each_span([located.value])

    def _read_traces(self, located: LocatedObject) -> Iterator[Call | NotMirrored]:
        """Yields the calls of LangSmith's runs or Langfuse's observations in one object, likewise."""
        yield from self._read_each_span(iterate_spans(located.value))

    def _read_each_span(self, values: Iterable[Mapping[str, Json]]) -> Iterator[Call | NotMirrored]:
        for span in (call for value in values for call in read_span_calls(value)):
            if isinstance(span, NotMirrored):
                yield span
                continue
            if _is_students(span.request, span.completion):
                yield NotMirrored(STUDENT_ANSWER)
                continue
            source, began = _origin(span.began)
            call = make_call(
                span.request,
                span.completion,
                self._redactor,
                source=source,
                began=began,
                seconds=span.seconds,
            )
            self._add_cost(call, span.cost)
            yield call

    def _add_cost(self, call: Call, cost: Json) -> None:
        if (money := read_cost(cost)) is not None:
            calls, total = self.counts.costs.get(call.version, (0, 0.0))
            self.counts.costs[call.version] = calls + 1, total + money

    def _make_call(
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
        """The path that the log names, empty for none, and the wire format; None if it isn't known."""
        path = str(value.get("endpoint") or value.get("url") or value.get("path") or "")
        form = find_format("POST", path, self._formats)
        return path, form or guess_format(value["request"], value["response"], self._formats)


def _find_batch_requests(paths: Sequence[Path]) -> dict[str, LocatedObject]:
    """Locates the requests in the batch files, by custom_id. Other files are left at their first object: they
    are read later, once, so that the calls before a fault are stored. Raises InputError if a custom_id comes
    twice.
    """
    requests: dict[str, LocatedObject] = {}
    for path in paths:
        for located in read_json_objects(path):
            if _object_kind(located.value) != "batch request":
                break
            name = str(located.value["custom_id"])
            if name in requests:
                raise InputError(
                    f"{located}: the custom_id {name[:80]!r} stands in {requests[name]} already."
                )
            requests[name] = located.without_value()
    return requests


def _object_kind(value: Mapping[str, Json]) -> str:
    if "custom_id" in value:
        return "batch request" if "body" in value or "params" in value else "batch answer"
    if "request" in value and "response" in value:
        return "pair"
    if holds_spans(value):
        return "spans"
    return "traces" if holds_traces(value) else "unknown"


def _is_students(request: CompletionRequest, completion: Completion) -> bool:
    """Whether a mirror's student gave the answer. Its id tells; in protocols of typed questions, whose
    answers have no id, zero input and output tokens do.
    """
    is_uncounted = request.way == "questions" and completion.input_tokens == completion.output_tokens == 0
    return OWN_ID_PREFIX in completion.response_id or is_uncounted


def _origin(began: float | None) -> tuple[str, float]:
    """A call's source and time. One without a time gets the present, and the source says so: in the store it
    stands among the latest traffic.
    """
    return (UNDATED, time.time()) if began is None else (IMPORTED, began)


def _read_time(value: Json, located: LocatedObject) -> float:
    """Reads a time in seconds since 1970 or in ISO 8601, in UTC if it names no zone. Raises InputError."""
    seconds: float | None = None
    with suppress(ValueError, OverflowError):
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        seconds = float(value) if is_number else parse_time(str(value))
    if seconds is None or not 0 <= seconds < _LATEST:
        raise InputError(
            f"{located}: expected time in ISO 8601 or in seconds since 1970, found {str(value)[:40]!r}."
        )
    return seconds


def _answer_time(body: Mapping[str, Json]) -> float | None:
    """The time in an answer, in seconds since 1970; None if it has none, for which some servers write 0."""
    for name in ("created", "created_at"):
        seconds = body.get(name)
        if isinstance(seconds, int | float) and not isinstance(seconds, bool) and 0 < seconds < _LATEST:
            return float(seconds)
    return None
