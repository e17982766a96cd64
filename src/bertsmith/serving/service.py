"""The service itself, without HTTP: it takes a request and returns its answer.

request → model → operation.prepare → admission → queue → a worker's batch → finish → answer

Clients' keys share what takes long: the queue shares out tokens, and the threads share out reading long texts
and slow last steps.
"""

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from bertsmith.errors import BertsmithError, FilterError
from bertsmith.serving.admission import ANONYMOUS
from bertsmith.serving.models import Models
from bertsmith.serving.operations.operation import Options, PreparedRequest
from bertsmith.serving.queue import Job, WorkQueue
from bertsmith.serving.refusals import (
    EmptyRequest,
    InvalidRequest,
    RequestTooLarge,
    ServiceUnavailable,
    UnsupportedRequest,
)
from bertsmith.serving.served_model import ServedModel
from bertsmith.serving.settings import ServingSettings
from bertsmith.serving.workers import Workers

_INLINE_CHARACTERS = 4096  # tokenised in a millisecond, sooner than another thread would start


@dataclass(frozen=True)
class ServiceRequest:
    """A request as the service reads it, whatever protocol it came by.

    `model` None: the only model, or the only one that has the operation. `operation` None: the model's
    default. `timeout_ms` None: the service's limit. `key` is the name of the client's key.
    """

    inputs: Sequence[Any]
    model: str | None = None
    operation: str | None = None
    options: Options = field(default_factory=Options)
    timeout_ms: float | None = None
    key: str = ANONYMOUS


@dataclass(frozen=True)
class RequestTiming:
    """Seconds that a request spent: reading and tokenising, waiting in the queue, computing and decoding."""

    tokenizing: float
    queued: float
    computing: float


@dataclass(frozen=True)
class ServiceAnswer:
    """The answer to a request. `results`, `input_tokens` and `truncated` have one element an input.
    `total_tokens` were computed in all, including those of a source that the inputs are compared with.
    """

    results: Any
    model: ServedModel
    input_tokens: Sequence[int]
    truncated: Sequence[bool]
    total_tokens: int
    timing: RequestTiming


class Service:
    """The service: its models, its queue and its threads."""

    def __init__(self, settings: ServingSettings, models: Models) -> None:
        self.settings, self.models = settings, models
        self.queue = WorkQueue(settings.queue_tokens)
        self.workers = Workers(self.queue, models.device, settings.batch_tokens)
        self.draining = False
        self._in_progress = 0  # requests that are tokenised, queued, computed or finished now

    def start(self) -> None:
        """Starts the threads that compute and read."""
        self.workers.start()

    async def stop(self) -> None:
        """Lets all that was accepted be answered, then ends the threads."""
        self.draining = True
        while self._in_progress:
            await asyncio.sleep(0.01)
        await asyncio.to_thread(self.workers.stop)  # so that a second signal is still handled

    async def answer(self, request: ServiceRequest) -> ServiceAnswer:
        """Answers a request. Raises Refusal. A cancelled request leaves the queue."""
        if self.draining:
            raise ServiceUnavailable(
                "The service is stopping. Send the request to another one.", retry_after=1.0
            )
        self._in_progress += 1
        try:
            return await self._answer(request)
        finally:
            self._in_progress -= 1

    async def _answer(self, request: ServiceRequest) -> ServiceAnswer:
        model = self.models.find(request.model, request.operation)
        operation = model.operation(request.operation)
        self.require_size(request.inputs, request.options.more.values())
        known_options = operation.option_names
        if unknown := sorted(set(request.options.more) - known_options):
            raise UnsupportedRequest(
                f"{model.name} doesn't know the option {unknown[0]!r} here: "
                f"{', '.join(sorted(known_options)) or 'there are none'}."
            )
        began = time.monotonic()
        deadline = self.compute_deadline(request.timeout_ms)
        # Before time is spent on tokenising; a longer request is tokenised in another thread.
        tokens = estimate_fewest_tokens(request.inputs, model.shortest_window) if is_short(request) else 0
        self.queue.require_time_left(deadline, request.key, model.name, tokens)
        prepared = await self._prepare(operation.prepare, request, deadline)
        prepared_at = time.monotonic()
        job = Job(prepared, deadline, request.key, asyncio.get_running_loop())
        self.queue.admit(job)
        try:
            results = await job.future
            if prepared.is_slow:
                results = await self.workers.finish(job, results)
                job.ended = time.monotonic()
        except asyncio.CancelledError:
            self.queue.cancel(job)
            raise
        except FilterError as error:  # a search parses its filter only when it runs
            raise InvalidRequest(str(error)) from error
        timing = RequestTiming(prepared_at - began, job.begun - prepared_at, job.ended - job.begun)
        return ServiceAnswer(
            results, model, prepared.input_tokens, prepared.truncated, prepared.tokens, timing
        )

    async def _prepare(self, prepare: Any, request: ServiceRequest, deadline: float) -> PreparedRequest:
        """Tokenises a request with an operation's `prepare`: a long one in a shared thread, so that the event
        loop goes on. Raises InvalidRequest, and RequestTooLarge for more tokens than the service takes.
        """
        options = replace(request.options, most_tokens=self.settings.max_input_tokens)
        try:
            if is_short(request):
                prepared: PreparedRequest = prepare(request.inputs, options)
            else:
                prepared = await self.workers.run_in_reading_thread(
                    request.key, deadline, prepare, request.inputs, options
                )
        except BertsmithError as error:
            raise InvalidRequest(str(error)) from error
        longest = max((*prepared.input_tokens, *(encoded.tokens for encoded in prepared.encoded)), default=0)
        if longest > self.settings.max_input_tokens:
            raise RequestTooLarge(
                f"An input has at least {longest:,} tokens with the windows' overlap; this service takes "
                f"{self.settings.max_input_tokens:,}. Send it in parts, or with long_text = 'truncate'."
            )
        if prepared.tokens > self.settings.max_request_tokens:
            raise RequestTooLarge(
                f"The request has {prepared.tokens:,} tokens; this service takes "
                f"{self.settings.max_request_tokens:,}. Send fewer inputs at a time."
            )
        return prepared

    def compute_deadline(self, timeout_ms: float | None) -> float:
        """The deadline of a request that arrives now, by time.monotonic. Raises InvalidRequest."""
        most = self.settings.timeout_ms
        if timeout_ms is not None and not 0 < timeout_ms <= most:
            raise InvalidRequest(f"timeout_ms must be above 0 and at most {most:g}, found {timeout_ms!r}.")
        return time.monotonic() + (most if timeout_ms is None else timeout_ms) / 1000

    def require_size(self, inputs: Sequence[Any], option_values: Iterable[Any] = ()) -> None:
        """Checks the inputs' number and length; `option_values` may have texts that are read with each, such
        as a query. Raises EmptyRequest, RequestTooLarge.
        """
        most = self.settings.max_inputs
        if not inputs:
            raise EmptyRequest("There are no inputs. Send at least one.")
        if len(inputs) > most:
            raise RequestTooLarge(
                f"The request has {len(inputs)} inputs; this service takes {most} at a time."
            )
        longest, most = (
            max(map(count_characters, [*inputs, *option_values])),
            self.settings.max_input_characters,
        )
        if longest > most:
            raise RequestTooLarge(
                f"An input has {longest:,} characters; this service takes {most:,}. Send it in parts."
            )


def is_short(request: ServiceRequest) -> bool:
    """Whether a request is tokenised in the event loop. Options such as a query are read with each input."""
    option_characters = count_characters(request.options.more) * len(request.inputs)
    return count_characters(request.inputs) + option_characters <= _INLINE_CHARACTERS


def estimate_fewest_tokens(inputs: Sequence[Any], window: int) -> int:
    """The tokens to compute for the inputs, estimated from below by their words, of which each has one token
    or more. Of an input longer than `window` the model may read no more. An object counts as none, because it
    may have features beside its texts.
    """
    return sum(min(_count_words(input_), window) for input_ in inputs)


def _count_words(input_: Any) -> int:
    if isinstance(input_, str):
        return len(input_.split())
    return sum(map(_count_words, input_)) if isinstance(input_, list | tuple) else 0


def count_characters(inputs: Any) -> int:
    """The characters to tokenise in an input or nested inputs; a number or null counts as one."""
    if isinstance(inputs, str):
        return len(inputs)
    if isinstance(inputs, Mapping):
        return sum(count_characters(value) for value in inputs.values())
    if isinstance(inputs, Sequence):
        return sum(count_characters(part) for part in inputs)
    return 1
