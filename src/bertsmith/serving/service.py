"""The service itself, without HTTP: a request goes in, its answer comes out.

request → model → operation.prepare → admission → queue → a worker's batch → finish → answer

Keys share what takes long: the queue its tokens, threads what is tokenised and what is slow to finish.
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

_INLINE_CHARACTERS = 4096  # tokenised in a millisecond: sooner than another thread would begin with it


@dataclass(frozen=True)
class ServiceRequest:
    """A request as the service reads it, whatever protocol it came by.

    `model` None is the only model, or the only one that has the operation. `operation` None is the model's
    usual one. `timeout_ms` None is the service's. `key` is the name of the client's key.
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
        self._answering = 0  # requests on their way, tokenised or not

    def start(self) -> None:
        """Starts the threads; call it in the event loop's process."""
        self.workers.start()

    async def stop(self) -> None:
        """Lets all that was accepted be answered, then ends the threads."""
        self.draining = True
        while self._answering:
            await asyncio.sleep(0.01)
        await asyncio.to_thread(self.workers.stop)  # meanwhile a second signal is still heard

    async def answer(self, request: ServiceRequest) -> ServiceAnswer:
        """Answers a request. Raises Refusal. A cancelled request leaves the queue."""
        if self.draining:
            raise ServiceUnavailable(
                "The service is stopping. Send the request to another one.", retry_after=1.0
            )
        self._answering += 1
        try:
            return await self._answer(request)
        finally:
            self._answering -= 1

    async def _answer(self, request: ServiceRequest) -> ServiceAnswer:
        model = self.models.find(request.model, request.operation)
        operation = model.operation(request.operation)
        self.require_size(request.inputs, request.options.more.values())
        known_options = operation.options
        if unknown := sorted(set(request.options.more) - known_options):
            raise UnsupportedRequest(
                f"{model.name} doesn't know the option {unknown[0]!r} here: "
                f"{', '.join(sorted(known_options)) or 'there are none'}."
            )
        began = time.monotonic()
        deadline = self.deadline(request.timeout_ms)
        self.queue.require_time_left(deadline, request.key)  # before time is spent on it
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
        except FilterError as error:  # a filter of a search is read when it is used
            raise InvalidRequest(str(error)) from error
        timing = RequestTiming(prepared_at - began, job.begun - prepared_at, job.ended - job.begun)
        return ServiceAnswer(
            results, model, prepared.input_tokens, prepared.truncated, prepared.tokens, timing
        )

    async def _prepare(self, prepare: Any, request: ServiceRequest, deadline: float) -> PreparedRequest:
        options = replace(request.options, most_tokens=self.settings.max_input_tokens)
        try:
            beside = count_characters(request.options.more) * len(
                request.inputs
            )  # a query is read with each text
            if count_characters(request.inputs) + beside <= _INLINE_CHARACTERS:
                prepared: PreparedRequest = prepare(request.inputs, options)
            else:
                prepared = await self.workers.read(request.key, deadline, prepare, request.inputs, options)
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

    def deadline(self, wanted_ms: float | None) -> float:
        """The deadline of a request that arrives now, by time.monotonic. Raises InvalidRequest."""
        most = self.settings.timeout_ms
        if wanted_ms is not None and not 0 < wanted_ms <= most:
            raise InvalidRequest(f"timeout_ms must be above 0 and at most {most:g}, found {wanted_ms!r}.")
        return time.monotonic() + (most if wanted_ms is None else wanted_ms) / 1000

    def require_size(self, inputs: Sequence[Any], beside: Iterable[Any] = ()) -> None:
        """Checks the inputs' number and length; `beside` are texts read with each, as a query. Raises
        EmptyRequest, RequestTooLarge.
        """
        most = self.settings.max_inputs
        if not inputs:
            raise EmptyRequest("There are no inputs. Send at least one.")
        if len(inputs) > most:
            raise RequestTooLarge(
                f"The request has {len(inputs)} inputs; this service takes {most} at a time."
            )
        longest, most = max(map(count_characters, [*inputs, *beside])), self.settings.max_input_characters
        if longest > most:
            raise RequestTooLarge(
                f"An input has {longest:,} characters; this service takes {most:,}. Send it in parts."
            )


def count_characters(inputs: Any) -> int:
    """The approximate number of characters to tokenise in (nested) inputs."""
    if isinstance(inputs, str):
        return len(inputs)
    if isinstance(inputs, Mapping):
        return sum(count_characters(value) for value in inputs.values())
    if isinstance(inputs, Sequence):
        return sum(count_characters(part) for part in inputs)
    return 1
