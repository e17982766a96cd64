"""An LLM that we ask ourselves, many questions within a budget, each answer stored as a call as soon as it is
there.

label    the rows of a file under a prompt and a schema; what is in the store already isn't asked
again    recorded inputs once more, drawn at random, to see how often the LLM contradicts itself

A request is made of what a recorded call kept, so that asking again is asking the same. The key is read from
the environment, sent, and kept nowhere. What is stored is not asked again, so that work that was ended goes
on where it was; a question that got no answer to learn from comes last the next time, behind those that were
never asked.
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
    Call,
    Completion,
    CompletionRequest,
    Json,
    NotMirrored,
)
from bertsmith.mirror.exchange import make_call, read_completion, read_request
from bertsmith.mirror.formats.registry import FORMATS, USUAL
from bertsmith.mirror.formats.wire_format import Tokens, WireFormat
from bertsmith.mirror.identity import site_of, version_of
from bertsmith.mirror.learning.learned_calls import hash_fraction, is_drawn
from bertsmith.mirror.learning.understand import CallRecords
from bertsmith.mirror.redaction import Redactor
from bertsmith.mirror.store import Store, VersionCount
from bertsmith.mirror.upstreams import HEADER
from bertsmith.progress import Progress

_ATTEMPTS, _LONGEST_WAIT = 6, 60.0  # seconds
_BUSY = (408, 409, 429, 500, 502, 503, 504, 529)
_TIMEOUT = 120.0  # seconds
CallMaker = Callable[[CompletionRequest, Completion, float, float], Call]  # asked, answered, began, seconds
GAP = "{text}"
_NAME = "labels"


class UnusableAnswer(NotMirrored):
    """One that nothing can be learned from, and that was paid for all the same."""

    def __init__(self, reason: str, tokens: Tokens) -> None:
        super().__init__(reason)
        self.tokens = tokens


class Upstream:
    """Several threads may ask it at once. A context manager, which ends its connections."""

    def __init__(
        self,
        base_url: str,
        protocol: str = USUAL.NAME,
        key_from: str | None = None,
        environment: Mapping[str, str] = os.environ,
        formats: Iterable[WireFormat] = FORMATS,
    ) -> None:
        """`base_url` is what an application has as its own; `key_from` names the variable with the key, the
        provider's usual one unless said. Raises InputError for a protocol that we don't speak, for an address
        that is none, and for a variable that was named and isn't there.
        """
        spoken = {each.NAME: each for each in formats if each.KEY}
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

    def asked(self, body: Mapping[str, Json]) -> CompletionRequest:
        """A request in its protocol, as it would be recorded. Raises InputError where it asks for nothing
        that could be mirrored.
        """
        try:
            return read_request(self._form, body)
        except NotMirrored as reason:
            raise InputError(f"The request can't be mirrored: {reason.reason}.") from None

    def ask(self, asked: CompletionRequest) -> Completion:
        """Waits and tries again where the LLM is busy. Raises NotMirrored for an answer that says nothing to
        learn from, InputError where it refuses, or goes on being busy.
        """
        if any(each.role not in (*SYSTEM_ROLES, "user", "assistant") for each in asked.messages):
            raise NotMirrored("tool-messages")
        response = self._send(self._form.write_request(asked))
        try:
            body = response.json()
        except ValueError:
            raise NotMirrored("malformed-answer") from None
        try:
            return read_completion(self._form, asked, body)
        except NotMirrored as found:
            tokens = self._form.tokens_of(body) if isinstance(body, dict) else (None, None)
            raise UnusableAnswer(found.reason, tokens) from None

    def _send(self, body: dict[str, Any]) -> httpx.Response:
        found = "no answer"
        for attempt in range(_ATTEMPTS):
            wait = min(2.0**attempt / 2, _LONGEST_WAIT)
            try:
                response = self._client.post(self._url, json=body)
            except httpx.HTTPError as error:
                found = type(error).__name__
            else:
                if HEADER.decode() in response.headers:
                    raise InputError(
                        f"{self._url} is a mirror, where a student may answer and every call counts as "
                        "traffic. Name the LLM's own address, the one that the mirror has as its --upstream."
                    )
                if response.status_code == 200:
                    return response
                found = f"status {response.status_code}"
                if response.status_code not in _BUSY:
                    raise InputError(f"{self._url} refuses: {found}, {_error_message(response)}.")
                wait = min(_parse_retry_after(response.headers.get("retry-after"), wait), _LONGEST_WAIT)
            if attempt + 1 < _ATTEMPTS:
                time.sleep(wait)
        raise InputError(
            f"{self._url} gave no answer in {_ATTEMPTS} attempts ({found}). What was answered before is "
            "stored: run this again later."
        )


def _error_message(response: httpx.Response) -> str:
    """The first words of its own message."""
    try:
        said = response.json()["error"]["message"]
    except (ValueError, KeyError, TypeError):
        said = response.text
    return " ".join(str(said).split())[:200] or "without a reason"


def _parse_retry_after(header: str | None, usual: float) -> float:
    try:
        seconds = float(header or usual)
    except ValueError:  # a date
        return usual
    return usual if math.isnan(seconds) else max(seconds, 0.0)


@dataclass(frozen=True)
class Budget:
    """At most so many calls, and so much money by the prices of a million tokens; None: no limit."""

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
        """Of one call."""
        read, wrote = (each or 0 for each in tokens)
        return (read * self.input_price + wrote * self.output_price) / 1e6


@dataclass
class AskingResult:
    """What came of it: `asked` calls were answered and stored, `known` had been before, `left` the budget
    didn't reach. `passed` counts answers that nothing can be learned from, by their reason.
    """

    asked: int = 0
    known: int = 0
    left: int = 0
    money: float = 0.0
    passed: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class _UpstreamAnswer:
    """`failure` where the LLM refused the request, or was away. `tokens` are paid for, whatever was said."""

    asked: CompletionRequest
    answered: Completion | None
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
    """In their order, `at_once` at a time, those last that got no answer when they were asked before. Raises
    InputError where the LLM refuses; what was answered, or was being asked then, is stored.
    """
    if at_once < 1:
        raise InputError(f"at_once must be 1 or more, found {at_once:,}: nothing would be asked.")
    found, records = AskingResult(), CallRecords(store)
    unanswered = records.unanswered()
    questions = sorted(questions, key=lambda each: _fingerprint(store, each) in unanswered)
    total = len(questions) if budget.calls is None else min(len(questions), budget.calls)
    waiting = deque(questions[:total])
    with ThreadPoolExecutor(at_once) as pool:
        running: set[Future[_UpstreamAnswer]] = set()
        try:
            while True:
                while waiting and len(running) < at_once:
                    running.add(pool.submit(_ask_upstream, upstream, waiting.popleft()))
                if not running:
                    break
                done, running = wait(running, return_when=FIRST_COMPLETED)
                _store_answers(done, records, as_call, budget, found)
                if progress is not None:
                    progress(found.asked + found.passed.total(), total, "calls")
                if budget.money is not None and found.money >= budget.money:
                    waiting.clear()
        finally:
            for each in running:
                each.cancel()
            with suppress(InputError):  # as the one before
                _store_answers(wait(running).done, records, as_call, budget, found)
    found.left = len(questions) - found.asked - found.passed.total()
    return found


def _ask_upstream(upstream: Upstream, asked: CompletionRequest) -> _UpstreamAnswer:
    began, clock = time.time(), time.monotonic()
    try:
        answered = upstream.ask(asked)
    except UnusableAnswer as found:
        return _UpstreamAnswer(asked, None, found.reason, began, time.monotonic() - clock, found.tokens)
    except NotMirrored as found:
        return _UpstreamAnswer(asked, None, found.reason, began, time.monotonic() - clock)
    except InputError as failure:
        return _UpstreamAnswer(asked, None, "", began, time.monotonic() - clock, failure=failure)
    tokens = answered.input_tokens, answered.output_tokens
    return _UpstreamAnswer(asked, answered, "", began, time.monotonic() - clock, tokens)


def _fingerprint(store: Store, asked: CompletionRequest) -> str:
    """What stands for a question, without its texts."""
    messages = [[each.role, *each.parts] for each in asked.messages]
    question = [asked.protocol, asked.model, messages, asked.schema_name, asked.schema, asked.parameters]
    return store.fingerprint(json.dumps(question, sort_keys=True))


def _store_answers(
    done: Iterable["Future[_UpstreamAnswer]"],
    records: CallRecords,
    as_call: CallMaker,
    budget: Budget,
    found: AskingResult,
) -> None:
    """Stores what was answered, and which questions weren't. Raises the first error."""
    calls, unanswered, failures = list[Call](), list[CompletionRequest](), list[BaseException]()
    for future in done:
        if future.cancelled():
            continue
        if (failure := future.exception()) is not None:
            failures.append(failure)
            continue
        each = future.result()
        found.money += budget.price(each.tokens)
        if each.answered is None:
            unanswered.append(each.asked)
            if each.failure is not None:
                failures.append(each.failure)
            else:
                found.passed[each.why] += 1
            continue
        calls.append(as_call(each.asked, each.answered, each.began, each.seconds))
    found.asked += records.store.add(calls) if calls else 0
    records.keep_unanswered(_fingerprint(records.store, each) for each in unanswered)
    if failures:
        raise failures[0]


@dataclass(frozen=True)
class LabellingPrompt:
    """How each text is asked. `prompt` is what the system is told, or where it has {text} in it, the user's
    message.
    """

    model: str
    prompt: str
    schema: Mapping[str, Json]

    def body(self, text: str) -> dict[str, Json]:
        """As OpenAI's chat completions have it."""
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
    """Raises InputError for what is no schema of an object."""
    found = read_json(path)
    if not isinstance(found, dict) or not isinstance(found.get("properties"), dict):
        raise InputError(f"{path}: expected a JSON schema of an object, with its properties.")
    return found


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
    """Asks for those that the store doesn't have under this prompt, schema and model. The LLM reads a text
    as the store will have it: redacted; texts that are the same then are one. Raises InputError as `ask_all`.
    """
    redacted = (redactor.begin().redact_request(upstream.asked(question.body(text))) for text in texts)
    asked = list({_input_parts(each): each for each in redacted}.values())
    versions = {version_of(each, site_of(each, site)) for each in asked[:1]}  # they are all of one
    known = {_input_parts(call.request) for version in versions for call in store.calls(version)}
    new = [each for each in asked if _input_parts(each) not in known]

    def as_call(each: CompletionRequest, answered: Completion, began: float, seconds: float) -> Call:
        return make_call(each, answered, redactor, source=LABELLED, began=began, named=site, seconds=seconds)

    found = ask_all(new, upstream, store, as_call, budget, at_once, progress)
    return replace(found, known=len(asked) - len(new))


def find_other_version(
    question: LabellingPrompt, upstream: Upstream, store: Store, redactor: Redactor, site: str
) -> tuple[str, str] | None:
    """The latest other version of the site, and the one that these calls are of: a student learns from them
    apart. None where they were merged, or there is no other.
    """
    own = version_of(redactor.begin().redact_request(upstream.asked(question.body(GAP))), site)
    groups = [group for group in CallRecords(store).groups() if group[0].site == site]
    others = [group for group in groups if own not in {each.version for each in group}]
    if not others or len(others) == len(groups):  # none of them was answered
        return None
    return max(others[-1], key=lambda each: each.ended).version, own


def choose_version(store: Store, group: Sequence[VersionCount], named: str | None = None) -> VersionCount:
    """Of versions that count as one, the one whose inputs are asked again: the one that was `named`, else the
    one with the latest call of the traffic, or of a labelled file where there is no traffic.
    """

    def latest(version: VersionCount) -> tuple[bool, float]:
        calls = store.calls(version.version)
        times = ((call.source not in (AGAIN, LABELLED), call.began) for call in calls)
        return max(times, default=(False, 0.0))

    return next((each for each in group if each.version == named), None) or max(group, key=latest)


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
    """`count` recorded inputs of a version once more, drawn by their ids, as they came in the traffic; those
    asked again before are among them. Raises InputError as `ask_all`.
    """
    if count < 1:
        raise InputError(f"count must be 1 or more inputs to ask again, found {count:,}.")
    first: dict[tuple[tuple[str, ...], ...], Call] = {}
    again: set[tuple[tuple[str, ...], ...]] = set()
    for call in store.calls(version):
        if call.source == AGAIN:
            again.add(_input_parts(call.request))
        elif is_drawn(call, seed):  # as in proving
            first.setdefault(_input_parts(call.request), call)
    drawn = sorted(first.values(), key=lambda call: hash_fraction(call.id, seed))[:count]
    calls = {id(call.request): call for call in drawn}
    wanted = [call.request for call in drawn if _input_parts(call.request) not in again]

    def as_call(each: CompletionRequest, answered: Completion, began: float, seconds: float) -> Call:
        """Of its site and version."""
        made = make_call(each, answered, redactor, source=AGAIN, began=began, seconds=seconds)
        return replace(made, site=calls[id(each)].site, version=calls[id(each)].version)

    found = ask_all(wanted, upstream, store, as_call, budget, at_once, progress)
    return replace(found, known=len(drawn) - len(wanted))


def _input_parts(asked: CompletionRequest) -> tuple[tuple[str, ...], ...]:
    return tuple(each.parts for each in asked.inputs)
