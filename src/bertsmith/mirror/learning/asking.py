"""Asks an LLM many questions within a budget and stores each answer as a call as soon as it arrives.

label    the texts of a file under a prompt and a schema, without those that the store has already
again    recorded inputs once more, drawn at random, to measure how often the LLM contradicts itself
replay   recorded inputs, drawn in the same way, of another LLM or under another prompt

A request is rebuilt from a recorded call, so that the LLM is asked the same again. The key is read from the
environment and stored nowhere. Stored questions are not asked again, so that an interrupted run resumes; a
question that got no usable answer comes last in the next run. Read `label_texts` first.
"""

import json
import math
import os
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import httpx

from bertsmith.errors import InputError
from bertsmith.files import read_json
from bertsmith.mirror.call import (
    AGAIN,
    LABELLED,
    SYSTEM_ROLES,
    UNDATED,
    Call,
    Completion,
    CompletionRequest,
    Json,
    NotMirrored,
)
from bertsmith.mirror.exchange import make_call, read_completion, read_request
from bertsmith.mirror.formats.registry import DEFAULT_FORMAT, FORMATS
from bertsmith.mirror.formats.wire_format import Tokens, WireFormat
from bertsmith.mirror.identity import hash_fraction, replayed_call_id, site_id, version_id
from bertsmith.mirror.learning.learned_calls import is_drawn
from bertsmith.mirror.learning.understand import LearningRecords
from bertsmith.mirror.redaction import Redactor
from bertsmith.mirror.store import Store, VersionCount
from bertsmith.mirror.upstreams import HEADER
from bertsmith.progress import Progress

_ATTEMPTS, _LONGEST_WAIT = 6, 60.0  # seconds
_BUSY = (408, 409, 429, 500, 502, 503, 504, 529)
_TIMEOUT = 120.0  # seconds
# From a request, its completion, when it began (seconds since 1970) and the seconds that it took.
CallMaker = Callable[[CompletionRequest, Completion, float, float], Call]
GAP = "{text}"
_NAME = "labels"


class UnusableAnswer(NotMirrored):
    """An answer that can't be learned from but was paid for: `tokens` of the input and the output."""

    def __init__(self, reason: str, tokens: Tokens) -> None:
        super().__init__(reason)
        self.tokens = tokens


class Upstream:
    """A client of the LLM's API, safe for several threads. A context manager that closes its connections."""

    def __init__(
        self,
        base_url: str,
        protocol: str = DEFAULT_FORMAT.NAME,
        key_from: str | None = None,
        environment: Mapping[str, str] = os.environ,
        formats: Iterable[WireFormat] = FORMATS,
    ) -> None:
        """`base_url` is the one that an application would use; `key_from` names the environment variable with
        the key, by default the provider's usual one. Raises InputError for a protocol that can't be asked, an
        invalid address, and a named variable that isn't set.
        """
        spoken = {form.NAME: form for form in formats if form.KEY}
        if protocol not in spoken:
            raise InputError(
                f"The protocol {protocol!r} can be recorded but not asked: expected {', '.join(spoken)}."
            )
        if not base_url.startswith(("http://", "https://")):
            raise InputError(
                f"Expected the LLM's address such as https://api.openai.com/v1, found {base_url!r}."
            )
        self._form = spoken[protocol]
        if key_from is not None and key_from not in environment:
            raise InputError(f"The environment has no variable {key_from}, which was to hold the LLM's key.")
        key = environment.get(key_from or self._form.KEY, "")
        self._url = base_url.rstrip("/") + self._form.PATH
        self._client = httpx.Client(headers=dict(self._form.headers(key)), timeout=_TIMEOUT)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def parse_request(self, body: Mapping[str, Json]) -> CompletionRequest:
        """A request body of this protocol as it would be recorded. Raises InputError where it can't be
        mirrored.
        """
        try:
            return read_request(self._form, body)
        except NotMirrored as reason:
            raise InputError(f"The request can't be mirrored: {reason.reason}.") from None

    def ask(self, request: CompletionRequest) -> Completion:
        """Asks the LLM, and retries while it is busy. Raises NotMirrored for an answer that can't be learned
        from, and InputError where the LLM refuses or stays busy.
        """
        if any(message.role not in (*SYSTEM_ROLES, "user", "assistant") for message in request.messages):
            raise NotMirrored("tool-messages")
        response = self._send(self._form.write_request(request))
        try:
            body = response.json()
        except ValueError:
            raise NotMirrored("malformed-answer") from None
        try:
            return read_completion(self._form, request, body)
        except NotMirrored as refusal:
            tokens = self._form.tokens_of(body) if isinstance(body, dict) else (None, None)
            raise UnusableAnswer(refusal.reason, tokens) from None

    def _send(self, body: dict[str, Any]) -> httpx.Response:
        problem = "no answer"
        for attempt in range(_ATTEMPTS):
            wait = min(2.0**attempt / 2, _LONGEST_WAIT)
            try:
                response = self._client.post(self._url, json=body)
            except httpx.HTTPError as error:
                problem = type(error).__name__
            else:
                if HEADER.decode() in response.headers:
                    raise InputError(
                        f"{self._url} is a mirror, where a student may answer and every call counts as "
                        "traffic. Name the LLM's own address, the one that the mirror has as its --upstream."
                    )
                if response.status_code == 200:
                    return response
                problem = f"status {response.status_code}"
                if response.status_code not in _BUSY:
                    raise InputError(f"{self._url} refuses: {problem}, {_error_message(response)}.")
                wait = min(_parse_retry_after(response.headers.get("retry-after"), wait), _LONGEST_WAIT)
            if attempt + 1 < _ATTEMPTS:
                time.sleep(wait)
        raise InputError(
            f"{self._url} gave no answer in {_ATTEMPTS} attempts ({problem}). What was answered before is "
            "stored: run this again later."
        )


def _error_message(response: httpx.Response) -> str:
    """The first 200 characters of the LLM's own error message."""
    try:
        message = response.json()["error"]["message"]
    except (ValueError, KeyError, TypeError):
        message = response.text
    return " ".join(str(message).split())[:200] or "without a reason"


def _parse_retry_after(header: str | None, default: float) -> float:
    try:
        seconds = float(header or default)
    except ValueError:  # a date
        return default
    return default if math.isnan(seconds) else max(seconds, 0.0)


@dataclass(frozen=True)
class Budget:
    """Limits of calls and of money, by the prices of a million tokens; None: no limit."""

    calls: int | None = None
    money: float | None = None
    input_price: float = 0.0
    output_price: float = 0.0

    def __post_init__(self) -> None:
        for name, limit in vars(self).items():
            if limit is not None and not limit >= 0:
                raise InputError(f"A budget's {name.replace('_', ' ')} must be 0 or more, found {limit:,}.")
        if self.money is not None and self.input_price + self.output_price <= 0:
            raise InputError(
                "A budget of money needs the prices of a million tokens: --input-price and --output-price."
            )

    def price(self, tokens: Tokens) -> float:
        """The price of one call by its input and output tokens; an unknown number counts as 0."""
        read, wrote = (count or 0 for count in tokens)
        return (read * self.input_price + wrote * self.output_price) / 1e6


@dataclass
class AskingResult:
    """The result of a run: `added` calls were answered and stored, `known` were in the store before, `left`
    were beyond the budget. `skipped` counts unusable answers by reason; `money` is what the run cost.
    """

    added: int = 0
    known: int = 0
    left: int = 0
    money: float = 0.0
    skipped: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class _UpstreamResult:
    """The answer to one request, or `why` there is no usable one; `failure` where the LLM refused or was
    unreachable. `tokens` were paid for in any case.
    """

    request: CompletionRequest
    completion: Completion | None
    why: str
    began: float
    seconds: float
    tokens: Tokens = (None, None)
    failure: InputError | None = None


def ask_all(
    questions: Sequence[CompletionRequest],
    upstream: Upstream,
    store: Store,
    as_call: CallMaker,
    budget: Budget,
    at_once: int = 4,
    progress: Progress | None = None,
) -> AskingResult:
    """Asks all questions in their order, `at_once` at a time; those without a usable answer in an earlier run
    come last. Raises InputError where the LLM refuses; answers that have arrived or were under way are
    stored.
    """
    if at_once < 1:
        raise InputError(f"at_once must be 1 or more, found {at_once:,}: nothing would be asked.")
    result, records = AskingResult(), LearningRecords(store)
    unanswered = records.unanswered_questions()
    questions = sorted(questions, key=lambda question: _fingerprint(store, question) in unanswered)
    total = len(questions) if budget.calls is None else min(len(questions), budget.calls)
    waiting = deque(questions[:total])
    with ThreadPoolExecutor(at_once) as pool:
        running: set[Future[_UpstreamResult]] = set()
        try:
            while True:
                while waiting and len(running) < at_once:
                    running.add(pool.submit(_ask_upstream, upstream, waiting.popleft()))
                if not running:
                    break
                done, running = wait(running, return_when=FIRST_COMPLETED)
                _store_answers(done, records, as_call, budget, result)
                if progress is not None:
                    progress(result.added + result.skipped.total(), total, "calls")
                if budget.money is not None and result.money >= budget.money:
                    waiting.clear()
        finally:
            for future in running:
                future.cancel()
            with suppress(InputError):  # the first failure is raised already
                _store_answers(wait(running).done, records, as_call, budget, result)
    result.left = len(questions) - result.added - result.skipped.total()
    return result


def _ask_upstream(upstream: Upstream, request: CompletionRequest) -> _UpstreamResult:
    began, clock = time.time(), time.monotonic()
    try:
        completion = upstream.ask(request)
    except UnusableAnswer as refusal:
        return _UpstreamResult(request, None, refusal.reason, began, time.monotonic() - clock, refusal.tokens)
    except NotMirrored as refusal:
        return _UpstreamResult(request, None, refusal.reason, began, time.monotonic() - clock)
    except InputError as failure:
        return _UpstreamResult(request, None, "", began, time.monotonic() - clock, failure=failure)
    tokens = completion.input_tokens, completion.output_tokens
    return _UpstreamResult(request, completion, "", began, time.monotonic() - clock, tokens)


def _fingerprint(store: Store, request: CompletionRequest) -> str:
    """A keyed hash of a question, which reveals none of its texts."""
    messages = [[message.role, *message.parts] for message in request.messages]
    question = [
        request.protocol,
        request.model,
        messages,
        request.schema_name,
        request.schema,
        request.parameters,
    ]
    return store.fingerprint(json.dumps(question, sort_keys=True))


def _store_answers(
    done: Iterable["Future[_UpstreamResult]"],
    records: LearningRecords,
    as_call: CallMaker,
    budget: Budget,
    result: AskingResult,
) -> None:
    """Stores the answers as calls and remembers the unanswered questions, then raises the first failure."""
    calls, unanswered, failures = list[Call](), list[CompletionRequest](), list[BaseException]()
    for future in done:
        if future.cancelled():
            continue
        if (failure := future.exception()) is not None:
            failures.append(failure)
            continue
        answer = future.result()
        result.money += budget.price(answer.tokens)
        if answer.completion is None:
            unanswered.append(answer.request)
            if answer.failure is not None:
                failures.append(answer.failure)
            else:
                result.skipped[answer.why] += 1
            continue
        calls.append(as_call(answer.request, answer.completion, answer.began, answer.seconds))
    result.added += records.store.add(calls) if calls else 0
    records.save_unanswered(_fingerprint(records.store, question) for question in unanswered)
    if failures:
        raise failures[0]


@dataclass(frozen=True)
class LabellingPrompt:
    """The request for each text. `prompt` is the system prompt, or, with {text} in it, the user's message."""

    model: str
    prompt: str
    schema: Mapping[str, Json]

    def body(self, text: str) -> dict[str, Json]:
        """The request body for a text, in the format of OpenAI's chat completions."""
        user = {"role": "user", "content": text}
        messages = [{"role": "system", "content": self.prompt}, user]
        if GAP in self.prompt:
            messages = [{"role": "user", "content": self.prompt.replace(GAP, text)}]
        described = {"name": _NAME, "schema": self.schema, "strict": True}
        return {
            "model": self.model,
            "messages": messages,
            "response_format": {"type": "json_schema", "json_schema": described},
        }


def read_schema(path: Path) -> dict[str, Json]:
    """Reads a JSON schema from a file. Raises InputError where it isn't the schema of an object."""
    schema = read_json(path)
    if not isinstance(schema, dict) or not isinstance(schema.get("properties"), dict):
        raise InputError(f"{path}: expected a JSON schema of an object, with its properties.")
    return schema


def label_texts(
    texts: Sequence[str],
    question: LabellingPrompt,
    upstream: Upstream,
    store: Store,
    redactor: Redactor,
    budget: Budget,
    *,
    site: str = "",
    at_once: int = 4,
    progress: Progress | None = None,
) -> AskingResult:
    """Asks about the texts that the store doesn't have under this prompt, schema and model. The LLM reads
    each text as it will be stored, redacted; texts that are equal then are asked once. Raises InputError as
    `ask_all`.
    """
    redacted = (
        redactor.begin_call().redact_request(upstream.parse_request(question.body(text))) for text in texts
    )
    requests = list({_input_parts(request): request for request in redacted}.values())
    versions = {version_id(request, site_id(request, site)) for request in requests[:1]}  # all have the same
    known = {_input_parts(call.request) for version in versions for call in store.calls(version)}
    new = [request for request in requests if _input_parts(request) not in known]

    def as_call(request: CompletionRequest, completion: Completion, began: float, seconds: float) -> Call:
        return make_call(
            request, completion, redactor, source=LABELLED, began=began, named=site, seconds=seconds
        )

    result = ask_all(new, upstream, store, as_call, budget, at_once, progress)
    return replace(result, known=len(requests) - len(new))


def find_other_version(
    question: LabellingPrompt, upstream: Upstream, store: Store, redactor: Redactor, site: str
) -> tuple[str, str] | None:
    """The other version of the site with the latest traffic, and the version of these calls, which a student
    would learn from separately. None where they were merged or there is no other.
    """
    own = version_id(redactor.begin_call().redact_request(upstream.parse_request(question.body(GAP))), site)
    groups = [group for group in LearningRecords(store).groups() if group[0].site == site]
    others = [group for group in groups if own not in {version.version for version in group}]
    if not others or len(others) == len(groups):  # none of them was answered
        return None
    return max(others[-1], key=lambda version: version.recency).version, own


def choose_version(group: Sequence[VersionCount], named: str | None = None) -> VersionCount:
    """The version of a merged group whose inputs are asked again: the `named` one, else the one with the
    latest call of the traffic, or of a labelled file where there is no traffic.
    """
    latest = max(group, key=lambda version: version.recency)
    return next((version for version in group if version.version == named), latest)


def ask_again(
    store: Store,
    version: str,
    upstream: Upstream,
    count: int,
    redactor: Redactor,
    budget: Budget,
    *,
    seed: int = 0,
    at_once: int = 4,
    progress: Progress | None = None,
) -> AskingResult:
    """Asks `count` recorded inputs of a version once more, drawn by their ids from calls that are distributed
    like the traffic; inputs asked again earlier count among them. Raises InputError as `ask_all`.
    """
    drawn = draw_calls(store, version, count, seed)
    again = {_input_parts(call.request) for call in store.calls(version) if call.source == AGAIN}
    calls = {id(call.request): call for call in drawn}
    new = [call.request for call in drawn if _input_parts(call.request) not in again]

    def as_call(request: CompletionRequest, completion: Completion, began: float, seconds: float) -> Call:
        """The new call, under the site and version of the recorded one."""
        made = make_call(request, completion, redactor, source=AGAIN, began=began, seconds=seconds)
        return replace(made, site=calls[id(request)].site, version=calls[id(request)].version)

    result = ask_all(new, upstream, store, as_call, budget, at_once, progress)
    return replace(result, known=len(drawn) - len(new))


def draw_calls(store: Store, version: str, count: int, seed: int) -> list[Call]:
    """`count` recorded calls of a version with different inputs, drawn by their ids from those that are
    distributed like the traffic; fewer where there aren't as many. Raises InputError for a count below 1.
    """
    _require_count(count)
    first: dict[tuple[tuple[str, ...], ...], Call] = {}
    for call in store.calls(version):
        if call.source != AGAIN and is_drawn(call, seed):  # as in proving
            first.setdefault(_input_parts(call.request), call)
    return sorted(first.values(), key=lambda call: hash_fraction(call.id, seed))[:count]


def _require_count(count: int) -> None:
    if count < 1:
        raise InputError(f"count must be 1 or more inputs to ask again, found {count:,}.")


@dataclass(frozen=True)
class Replay:
    """The result of asking another teacher. `version` is the id of the version that the application begins
    with it. `pairs` are the drawn calls that it has answered, each with its answer, in the order in which
    they were asked. `used` are the ids of those that prove nothing: a training has used them, or they are no
    traffic.
    """

    result: AskingResult
    version: str
    pairs: list[tuple[Call, Call]]
    used: set[str]


def replay(
    store: Store,
    version: str,
    upstream: Upstream,
    count: int,
    redactor: Redactor,
    budget: Budget,
    *,
    model: str = "",
    prompt: str = "",
    seed: int = 0,
    at_once: int = 4,
    progress: Progress | None = None,
) -> Replay:
    """Puts `count` recorded calls of a version to another `model`, or under another system `prompt`: those
    that no training has used, and others where they aren't enough. Its answers are stored like those to a
    labelled file, under the version that the application will begin with it: a student of that version learns
    from them. Raises InputError as `ask_all`, and where the calls have no system prompt to replace.

    An input that came often is drawn and asked as often, so that the answers are like those to the traffic.
    No call is asked about twice. Those asked about earlier count first, whatever the seed: with more calls
    the same sequence goes on.
    """
    _require_count(count)
    used = LearningRecords(store).used_calls()
    calls = [call for call in store.calls(version) if call.source != AGAIN and is_drawn(call, 0)]
    if not calls:
        raise InputError("There are no recorded inputs to put to another LLM: bertsmith mirror status.")
    is_labelled = all(call.source in (LABELLED, UNDATED) for call in calls)
    no_traffic = (UNDATED,) if is_labelled else (LABELLED, UNDATED)  # as in split_calls
    used |= {call.id for call in calls if call.source in no_traffic}
    teacher = _with_teacher(calls[0].request, model, prompt, redactor)  # of all calls of the version
    site, new_version = calls[0].site, version_id(teacher, calls[0].site)
    if version == new_version:
        raise InputError(
            "That is the LLM and the prompt that these calls were recorded with. Name another --model or "
            "--prompt; bertsmith mirror relabel asks the same once more."
        )
    ids = {call.id: replayed_call_id(call.id, new_version) for call in calls}
    known = {call.id for call in store.calls(new_version)}
    calls.sort(key=lambda call: (call.id in used, ids[call.id] not in known, hash_fraction(call.id, seed)))
    count = max(count, sum(call.id not in used and ids[call.id] in known for call in calls))
    drawn = calls[:count]
    new = {
        ids[call.id]: replace(
            teacher, messages=(*teacher.system, *call.request.inputs), subjects=call.request.subjects
        )
        for call in drawn
        if ids[call.id] not in known
    }
    names = {id(question): name for name, question in new.items()}

    def as_call(request: CompletionRequest, completion: Completion, began: float, seconds: float) -> Call:
        made = make_call(
            request,
            completion,
            redactor,
            source=LABELLED,
            began=began,
            seconds=seconds,
            call_id=names[id(request)],
        )
        return replace(made, site=site, version=new_version)

    result = ask_all(list(new.values()), upstream, store, as_call, budget, at_once, progress)
    answers = {call.id: call for call in store.calls(new_version)}
    pairs = [(call, answers[ids[call.id]]) for call in drawn if ids[call.id] in answers]
    pairs.sort(key=lambda pair: (pair[1].began, pair[1].id))
    result = replace(result, known=len(drawn) - len(new))
    return Replay(result, new_version, pairs, used & {call.id for call in drawn})


def _with_teacher(
    request: CompletionRequest, model: str, prompt: str, redactor: Redactor
) -> CompletionRequest:
    """The request to another model, or with another system prompt, redacted, in place of its own."""
    messages = request.messages
    if prompt:
        if not request.system:
            raise InputError(
                "The instruction of these calls stands in the user's message, so it can't be replaced: put "
                "it into the system prompt, or give --model alone."
            )
        alone = replace(request, messages=(replace(request.system[0], parts=(prompt,)),))
        messages = (*redactor.begin_call().redact_request(alone).messages, *request.inputs)
    return replace(request, model=model or request.model, messages=messages)


def _input_parts(request: CompletionRequest) -> tuple[tuple[str, ...], ...]:
    return tuple(message.parts for message in request.inputs)
