"""What a protocol is, and what the routes of all of them share: bodies in, answers and refusals out.

How to add one from outside the package: docs/add-a-route.md.
"""

import asyncio
import math
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass
from json import JSONDecodeError
from typing import Annotated, Any, ClassVar, TypeVar

import numpy as np
import orjson
from fastapi import APIRouter, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from opentelemetry import trace
from pydantic import BaseModel, ConfigDict, FailFast, GetJsonSchemaHandler, ValidationError, model_validator
from pydantic.json_schema import JsonSchemaValue

from bertsmith.serving import LOG
from bertsmith.serving.admission import ANONYMOUS
from bertsmith.serving.operations.operation import LongText, Options
from bertsmith.serving.refusals import InvalidRequest, Refusal, documented
from bertsmith.serving.service import Answer, Service
from bertsmith.serving.service import Request as ServiceRequest

T = TypeVar("T")


class _First(FailFast):
    """Of a body of megabytes the first wrong element is told: to list them all takes the server a minute."""

    __hash__ = object.__hash__  # a part of a union of types must have one


ListOf = Annotated[list[T], _First()]
ErrorBody = Callable[[Refusal], Any]
StatusOf = Callable[[Refusal], int]
TIMEOUT = "x-timeout-ms"
CHANGES_NOTHING = frozenset(
    {
        *("user", "priority", "request_id", "metadata", "safety_identifier", "service_tier"),
        *("prompt_cache_key", "prompt_cache_options"),
    }
)
_DEEPEST = 64  # lists and objects within each other, in a body
_MANY = 100_000  # numbers
_JSON = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS


def our_error_body(refusal: Refusal) -> dict[str, Any]:
    """{"error": {"code", "message", "retry_after"}}."""
    return {
        "error": {"code": refusal.code, "message": refusal.message, "retry_after": refusal.retry_after},
    }


@dataclass(frozen=True)
class Protocol:
    """The routes that one kind of clients knows, and what they are told where one refuses.

    `name` is its heading in the OpenAPI document. `add_routes` puts its routes on a router, to be answered by
    a service. `error_body`: a refusal in the clients' envelope; `status_of`: its status, where the clients
    expect another than the refusal's own.
    """

    name: str
    add_routes: Callable[[APIRouter, Service], None]
    error_body: ErrorBody = our_error_body
    status_of: StatusOf | None = None

    def router(self, service: Service) -> APIRouter:
        """Its routes, for an application."""
        router = router_of(self.error_body, self.status_of, service, tags=[self.name])
        self.add_routes(router, service)
        return router


def router_of(
    error_body: ErrorBody = our_error_body,
    status_of: StatusOf | None = None,
    service: Service | None = None,
    **more: Any,
) -> APIRouter:
    """A router whose refusals have the protocol's own envelope, and its own status where that differs. Of a
    service, a body for a {model} of the path that isn't there is not looked at.
    """

    def refused(refusal: Refusal, request: Request) -> Response:
        return refuse(refusal, error_body, request, status_of(refusal) if status_of else None)

    class Route(APIRoute):
        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            usual = super().get_route_handler()

            async def handle(request: Request) -> Response:
                try:
                    name = request.path_params.get("model")
                    if service is not None and name is not None and self.body_field is not None:
                        service.models[name]  # raises UnknownModel
                    return await usual(JsonRequest(request.scope, request.receive))
                except Refusal as refusal:
                    return refused(refusal, request)
                except RequestValidationError as error:
                    return refused(InvalidBody(error), request)
                except Exception:
                    LOG.exception("a request failed by a bug of the service")
                    return refused(Refusal("The service failed. Its log says why."), request)

            return handle

    if status_of is not None:
        more["responses"] = documented(status_of)
    return APIRouter(route_class=Route, default_response_class=JsonResponse, **more)


def refuse(refusal: Refusal, error_body: ErrorBody, request: Request, status: int | None = None) -> Response:
    """The refusal in a protocol's envelope; Retry-After in whole seconds, as HTTP has it, and in ms."""
    request.state.refusal = refusal
    headers = dict(refusal.headers)
    if refusal.retry_after is not None:
        headers["retry-after"] = str(max(1, math.ceil(refusal.retry_after)))
        headers["retry-after-ms"] = str(math.ceil(refusal.retry_after * 1000))
    if refusal.status == 401:
        headers["www-authenticate"] = "Bearer"
    return JsonResponse(error_body(refusal), refusal.status if status is None else status, headers)


class InvalidBody(InvalidRequest):
    """A body without the route's shape. `place` is the way to what is wrong, "body" first."""

    def __init__(self, error: RequestValidationError) -> None:
        super().__init__(first_problem(error))
        self.place = tuple(error.errors()[0]["loc"])


def first_problem(error: RequestValidationError | ValidationError) -> str:
    """The first thing about a body that isn't as the route reads it."""
    first, *others = error.errors()
    place = ".".join(str(part) for part in first["loc"] if part != "body")
    if first["type"] == "json_invalid":
        return f"The body can't be read as JSON: {first['ctx']['error']}."
    if not place and first["type"] in ("model_attributes_type", "dict_type"):
        return "The body must be a JSON object, sent with content-type: application/json."
    said = [_lowered(first["msg"])]
    *before, kind = first["loc"] or ("",)
    if kind == "str":  # a text, or one of several others
        place = ".".join(str(part) for part in before if part != "body")
        said += [_lowered(each["msg"]) for each in others if list(each["loc"][: len(before)]) == before]
    return f"{place or 'The body'}: {', or '.join(dict.fromkeys(said))}."


def _lowered(message: str) -> str:
    return message[0].lower() + message[1:]


class StrictBody(BaseModel):
    """Takes no key that it doesn't know, and tells the first, and no value of another type: neither true nor
    "5" is a number. Null is as if nothing was said.
    """

    model_config = ConfigDict(strict=True)

    changes_nothing: ClassVar[frozenset[str]] = frozenset()  # keys that are let pass

    @model_validator(mode="before")
    @classmethod
    def _what_is_said(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        known, said = cls.model_fields, {}
        for name, value in given.items():
            if name in known and (value is not None or known[name].is_required()):
                said[name] = value
            elif name not in known and value is not None and name not in cls.changes_nothing:
                raise ValueError(f"there is no {str(name)[:80]!r} here: {', '.join(known)}")
        return said

    @classmethod
    def __get_pydantic_json_schema__(cls, core: Any, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """What is published says the same of null and of other keys."""
        schema = handler(core)
        described = handler.resolve_ref_schema(schema)
        for name, field in cls.model_fields.items():
            told = described["properties"][name]
            if not field.is_required() and {"type": "null"} not in told.get("anyOf", ()):
                about = {key: told[key] for key in told if key in ("default", "title", "description")}
                kind = {key: told[key] for key in told if key not in about}
                described["properties"][name] = about | {"anyOf": [kind, {"type": "null"}]}
        described["properties"] |= {name: {} for name in sorted(cls.changes_nothing - set(cls.model_fields))}
        described["additionalProperties"] = {"type": "null"}
        return schema


class ClientsBody(StrictBody):
    """A body as another service's clients send it. What changes no answer is let pass."""

    changes_nothing = CHANGES_NOTHING


class JsonRequest(Request):
    """JSON as orjson reads it: strictly, no NaN; and not nested deeper than our own code can follow."""

    async def json(self) -> Any:
        body = await self.body()
        found = orjson.loads(body)
        if body.count(b"[") + body.count(b"{") > _DEEPEST and _depth_is_above(found, _DEEPEST):
            raise JSONDecodeError(f"it is nested more than {_DEEPEST} deep", "", 0)
        return found


def _depth_is_above(found: Any, most: int) -> bool:
    level = [found]
    for _ in range(most):
        level = [
            each
            for outer in level
            for each in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(each, (dict, list))
        ]
        if not level:
            return False
    return True


class JsonResponse(Response):
    """JSON by orjson, which writes NumPy's numbers too."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return orjson.dumps(content, option=_JSON)


async def json_response(content: Any, headers: dict[str, str]) -> Response:
    """A JsonResponse; of megabytes of numbers it is written beside the event loop, row by row, since orjson
    lets no other thread go on while it writes.
    """
    if not _has_many(content):
        return JsonResponse(content, headers=headers)
    written = await asyncio.to_thread(lambda: b"".join(_in_parts(content)))
    return Response(written, headers=headers, media_type=JsonResponse.media_type)


def _has_many(content: Any) -> bool:
    """Whether there are more numbers and texts than are written in some milliseconds."""
    left, count = [content], 0
    while left and count <= _MANY:
        each = left.pop()
        if isinstance(each, np.ndarray):
            count += each.size
        elif isinstance(each, (list, tuple, dict)):
            count += len(each)
            left += each.values() if isinstance(each, dict) else each
    return count > _MANY


def _in_parts(content: Any) -> Iterator[bytes]:
    """The same bytes as JsonResponse writes, those of a row at a time."""
    if not _has_rows(content):
        yield orjson.dumps(content, option=_JSON)
    elif isinstance(content, dict):
        for place, (name, value) in enumerate(content.items()):
            yield b"," if place else b"{"
            yield orjson.dumps({name: 0}, option=_JSON)[1:-2]  # the name and its colon, whatever it is
            yield from _in_parts(value)
        yield b"}"
    else:
        for place, each in enumerate(content):
            yield b"," if place else b"["
            yield from _in_parts(each)
        yield b"]"


def _has_rows(content: Any) -> bool:
    if isinstance(content, np.ndarray):
        return content.ndim > 1 and len(content) > 0
    if not isinstance(content, (list, tuple, dict)):
        return False
    inside = content.values() if isinstance(content, dict) else content
    return any(isinstance(each, (list, tuple, dict, np.ndarray)) for each in inside)


async def ask(
    service: Service,
    request: Request,
    inputs: Any,
    model: str | None,
    operation: str | None,
    long_text: LongText | None = None,
    **more: Any,
) -> Answer:
    """The service's answer, within the client's time and under its key. Raises Refusal."""
    options = options_of(long_text, more)
    asked = ServiceRequest(inputs, model, operation, options, timeout_of(request), key_of(request))
    return await service.answer(asked)


def options_of(long_text: LongText | None, more: Mapping[str, Any]) -> Options:
    """Those that are None, or null in a body, aren't said."""
    return Options(long_text, {name: value for name, value in more.items() if value is not None})


async def read_apart(service: Service, request: Request, function: Callable[..., T], *arguments: Any) -> T:
    """What is slow, without computing: within the client's time, in turn with other keys'. Raises Refusal."""
    deadline = service.deadline(timeout_of(request))
    return await service.workers.read(key_of(request), deadline, function, *arguments)


def key_of(request: Request) -> str:
    """The name of the client's key."""
    return str(getattr(request.state, "key", ANONYMOUS))


def timeout_of(request: Request) -> float | None:
    """Milliseconds, as the client's header says. Raises InvalidRequest."""
    given = request.headers.get(TIMEOUT)
    if given is None:
        return None
    try:
        return float(given)
    except ValueError:
        raise InvalidRequest(f"{TIMEOUT} must be a number of milliseconds, found {given[:40]!r}.") from None


def note(request: Request, answer: Answer) -> dict[str, str]:
    """Leaves what metrics, the log and a trace want to know, and gives the headers of an answer."""
    request.state.answer = answer
    request.state.answers = [*getattr(request.state, "answers", ()), answer]  # several models may have one
    timing = answer.timing
    span = trace.get_current_span()
    span.set_attribute("bertsmith.model", answer.model.name)
    span.set_attribute("bertsmith.tokens", answer.total_tokens)
    span.set_attribute("bertsmith.queue_ms", timing.queued * 1000)
    span.set_attribute("bertsmith.computing_ms", timing.computing * 1000)
    return {
        "x-model": answer.model.name,
        "x-model-version": str(answer.model.version),
        "x-compute-tokens": str(answer.total_tokens),
        "x-tokenization-time": _ms(timing.tokenizing),
        "x-queue-time": _ms(timing.queued),
        "x-inference-time": _ms(timing.computing),
    }


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.3f}"
