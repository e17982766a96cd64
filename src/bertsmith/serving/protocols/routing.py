"""The class Protocol, and what the routes of all protocols share: request bodies, answers and refusals.

How to add one from outside the package: docs/add-a-format-or-route.md.
"""

import asyncio
import math
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from json import JSONDecodeError
from typing import Annotated, Any, ClassVar, TypeVar

import numpy as np
import orjson
from fastapi import APIRouter, Path, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from opentelemetry import trace
from pydantic import BaseModel, ConfigDict, FailFast, GetJsonSchemaHandler, ValidationError, model_validator
from pydantic.json_schema import JsonSchemaValue
from starlette.convertors import StringConvertor, register_url_convertor
from starlette.routing import Match
from starlette.types import Scope

from bertsmith.serving import LOG
from bertsmith.serving.admission import ANONYMOUS
from bertsmith.serving.operations.operation import LongText, Options
from bertsmith.serving.proxies import route_path
from bertsmith.serving.refusals import InvalidRequest, Refusal, make_openapi_responses
from bertsmith.serving.service import Service, ServiceAnswer, ServiceRequest
from bertsmith.serving.settings import LONGEST_NAME

T = TypeVar("T")


class ModelConvertor(StringConvertor):
    """A model's name in a path, which may have some slashes but no empty parts: {model:model}."""

    regex = "[^/]+(?:/[^/]+){0,7}"


register_url_convertor("model", ModelConvertor())


class _FirstErrorOnly(FailFast):
    """Stops validation at the first invalid element of a list: to list all of those in a body of megabytes
    takes a minute.
    """

    __hash__ = object.__hash__  # members of a union must be hashable


ListOf = Annotated[list[T], _FirstErrorOnly()]
ModelName = Annotated[str, Path(max_length=LONGEST_NAME)]  # in a path, as {model:model}
ErrorBody = Callable[[Refusal], Any]
StatusOf = Callable[[Refusal], int]
TIMEOUT = "x-timeout-ms"
CHANGES_NOTHING = frozenset(
    {
        *("user", "priority", "request_id", "metadata", "safety_identifier", "service_tier"),
        *("prompt_cache_key", "prompt_cache_options"),
    }
)
_DEEPEST = 64  # levels of nesting in a body
_MANY_VALUES = 100_000  # in an answer, which take milliseconds to write
_ORJSON_OPTIONS = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS


def our_error_body(refusal: Refusal) -> dict[str, Any]:
    """Bertsmith's own error envelope: {"error": {"code", "message", "retry_after"}}."""
    return {
        "error": {"code": refusal.code, "message": refusal.message, "retry_after": refusal.retry_after},
    }


@dataclass(frozen=True)
class Protocol:
    """The routes and errors of one API that clients know, such as OpenAI's.

    `name` is its heading in the OpenAPI document. `add_routes` adds its routes, answered by a service, to a
    router. `error_body` puts a refusal into the API's envelope; `status_of` gives its status, None for the
    refusal's own.
    """

    name: str
    add_routes: Callable[[APIRouter, Service], None]
    error_body: ErrorBody = our_error_body
    status_of: StatusOf | None = None

    def router(self, service: Service) -> APIRouter:
        """A router with the protocol's routes, to include in an application."""
        router = make_router(self.error_body, self.status_of, service, tags=[self.name])
        self.add_routes(router, service)
        return router


def make_router(
    error_body: ErrorBody = our_error_body,
    status_of: StatusOf | None = None,
    service: Service | None = None,
    **more: Any,
) -> APIRouter:
    """A router that answers refusals in a protocol's envelope and with its status. With a `service`, a
    request for an unknown {model} of the path is refused before its body is parsed.
    """

    def refused(refusal: Refusal, request: Request) -> Response:
        return refuse(refusal, error_body, request, status_of(refusal) if status_of else None)

    class Route(APIRoute):
        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            handle_request = super().get_route_handler()

            async def handle(request: Request) -> Response:
                try:
                    name = request.path_params.get("model")
                    if service is not None and name is not None and self.body_field is not None:
                        service.models[name]  # raises UnknownModel
                    return await handle_request(JsonRequest(request.scope, request.receive))
                except Refusal as refusal:
                    return refused(refusal, request)
                except RequestValidationError as error:
                    return refused(InvalidBody(error), request)
                except Exception:
                    LOG.exception("a request failed by a bug of the service")
                    return refused(Refusal("The service failed. Its log says why."), request)

            return handle

    if status_of is not None:
        more["responses"] = make_openapi_responses(status_of)
    return _Router(route_class=Route, default_response_class=JsonResponse, **more)


class _Router(APIRouter):
    """A router that is passed over quickly by requests for other routers' paths: FastAPI would try each of
    its routes, which takes a quarter of the time of a refusal.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._has_path = lru_cache(maxsize=1024)(self._match_path)

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Whether a request is for one of the routes, and what its path says."""
        if not self._has_path(route_path(scope)):
            return Match.NONE, {}
        return super().matches(scope)

    def _match_path(self, path: str) -> bool:
        return any(not isinstance(route, APIRoute) or route.path_regex.match(path) for route in self.routes)


def refuse(refusal: Refusal, error_body: ErrorBody, request: Request, status: int | None = None) -> Response:
    """The response to a refusal, in a protocol's envelope; with Retry-After in seconds and in
    milliseconds.
    """
    request.state.refusal = refusal
    headers = dict(refusal.headers)
    if refusal.retry_after is not None:
        headers["retry-after"] = str(max(1, math.ceil(refusal.retry_after)))
        headers["retry-after-ms"] = str(math.ceil(refusal.retry_after * 1000))
    if refusal.status == 401:
        headers["www-authenticate"] = "Bearer"
    return JsonResponse(error_body(refusal), refusal.status if status is None else status, headers)


class InvalidBody(InvalidRequest):
    """A body that doesn't fit the route's schema. `location` is the path to the error, "body" first."""

    def __init__(self, error: RequestValidationError) -> None:
        super().__init__(describe_first_error(error))
        self.location = tuple(error.errors()[0]["loc"])


def describe_first_error(error: RequestValidationError | ValidationError) -> str:
    """A sentence about the first error in a body."""
    first, *others = error.errors()
    location = ".".join(str(part) for part in first["loc"] if part != "body")
    if first["type"] == "json_invalid":
        return f"The body can't be read as JSON: {first['ctx']['error']}."
    if not location and first["type"] in ("model_attributes_type", "dict_type"):
        return "The body must be a JSON object, sent with content-type: application/json."
    messages = [_lower_first_letter(first["msg"])]
    *before, kind = first["loc"] or ("",)
    if kind == "str":  # a text, or one of several others
        location = ".".join(str(part) for part in before if part != "body")
        messages += [
            _lower_first_letter(other["msg"])
            for other in others
            if list(other["loc"][: len(before)]) == before
        ]
    return f"{location or 'The body'}: {', or '.join(dict.fromkeys(messages))}."


def _lower_first_letter(message: str) -> str:
    return message[0].lower() + message[1:]


class StrictBody(BaseModel):
    """A request body that refuses unknown keys, naming the first, and values of another type: neither true
    nor "5" is a number. Null means that a key is absent.
    """

    model_config = ConfigDict(strict=True)

    changes_nothing: ClassVar[frozenset[str]] = frozenset()  # keys that are ignored

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, body: Any) -> Any:
        if not isinstance(body, dict):
            return body
        known, values = cls.model_fields, {}
        for name, value in body.items():
            if name in known and (value is not None or known[name].is_required()):
                values[name] = value
            elif name not in known and value is not None and name not in cls.changes_nothing:
                raise ValueError(f"there is no {str(name)[:80]!r} here: {', '.join(known)}")
        return values

    @classmethod
    def __get_pydantic_json_schema__(cls, core: Any, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Describes nulls and further keys in the published schema as the validator treats them."""
        schema = handler(core)
        described = handler.resolve_ref_schema(schema)
        for name, field in cls.model_fields.items():
            property_ = described["properties"][name]
            if not field.is_required() and {"type": "null"} not in property_.get("anyOf", ()):
                annotations = {
                    key: property_[key] for key in property_ if key in ("default", "title", "description")
                }
                type_ = {key: property_[key] for key in property_ if key not in annotations}
                described["properties"][name] = annotations | {"anyOf": [type_, {"type": "null"}]}
        described["properties"] |= {name: {} for name in sorted(cls.changes_nothing - set(cls.model_fields))}
        described["additionalProperties"] = {"type": "null"}
        return schema


class ClientsBody(StrictBody):
    """A body as another service's clients send it: keys that change no answer are ignored."""

    changes_nothing = CHANGES_NOTHING


class JsonRequest(Request):
    """A request whose JSON is read by orjson, strictly (no NaN) and with a limit on nesting."""

    async def json(self) -> Any:
        body = await self.body()
        content = orjson.loads(body)
        if body.count(b"[") + body.count(b"{") > _DEEPEST and _depth_is_above(content, _DEEPEST):
            raise JSONDecodeError(f"it is nested more than {_DEEPEST} deep", "", 0)
        return content


def _depth_is_above(content: Any, most: int) -> bool:
    """Whether lists and objects are nested more than `most` deep."""
    level = [content]
    for _ in range(most):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, (dict, list))
        ]
        if not level:
            return False
    return True


class JsonResponse(Response):
    """A JSON response written by orjson, NumPy arrays included."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return orjson.dumps(content, option=_ORJSON_OPTIONS)


async def json_response(content: Any, headers: dict[str, str]) -> Response:
    """A JsonResponse. Megabytes of numbers are written in another thread, row by row, because orjson holds
    the GIL while it writes.
    """
    if not _has_many(content):
        return JsonResponse(content, headers=headers)
    written = await asyncio.to_thread(lambda: b"".join(_write_parts(content)))
    return Response(written, headers=headers, media_type=JsonResponse.media_type)


def _has_many(content: Any) -> bool:
    """Whether writing the content takes more than some milliseconds."""
    values, count = [content], 0
    while values and count <= _MANY_VALUES:
        value = values.pop()
        if isinstance(value, np.ndarray):
            count += value.size
        elif isinstance(value, (list, tuple, dict)):
            count += len(value)
            values += value.values() if isinstance(value, dict) else value
    return count > _MANY_VALUES


def _write_parts(content: Any) -> Iterator[bytes]:
    """The bytes that JsonResponse writes, a row at a time."""
    if not _has_rows(content):
        yield orjson.dumps(content, option=_ORJSON_OPTIONS)
    elif isinstance(content, dict):
        for index, (name, value) in enumerate(content.items()):
            yield b"," if index else b"{"
            yield orjson.dumps({name: 0}, option=_ORJSON_OPTIONS)[
                1:-2
            ]  # the name and its colon, whatever it is
            yield from _write_parts(value)
        yield b"}"
    else:
        for index, row in enumerate(content):
            yield b"," if index else b"["
            yield from _write_parts(row)
        yield b"]"


def _has_rows(content: Any) -> bool:
    """Whether the content has lists, objects or arrays inside, which can be written one at a time."""
    if isinstance(content, np.ndarray):
        return content.ndim > 1 and len(content) > 0
    if not isinstance(content, (list, tuple, dict)):
        return False
    inside = content.values() if isinstance(content, dict) else content
    return any(isinstance(value, (list, tuple, dict, np.ndarray)) for value in inside)


async def ask(
    service: Service,
    request: Request,
    inputs: Any,
    model: str | None,
    operation: str | None,
    long_text: LongText | None = None,
    **more: Any,
) -> ServiceAnswer:
    """The service's answer to a route, with the client's timeout and key. Raises Refusal."""
    options = make_options(long_text, more)
    service_request = ServiceRequest(
        inputs, model, operation, options, read_timeout(request), read_api_key_name(request)
    )
    return await service.answer(service_request)


def make_options(long_text: LongText | None, more: Mapping[str, Any]) -> Options:
    """The options of a request, without those that are None (null in a body)."""
    return Options(long_text, {name: value for name, value in more.items() if value is not None})


async def run_in_reading_thread(
    service: Service, request: Request, function: Callable[..., T], *arguments: Any
) -> T:
    """Calls a slow function in a shared thread, within the client's timeout. Raises Refusal."""
    deadline = service.compute_deadline(read_timeout(request))
    return await service.workers.run_in_reading_thread(
        read_api_key_name(request), deadline, function, *arguments
    )


def read_api_key_name(request: Request) -> str:
    """The name of the client's API key, "" for a service without keys."""
    return str(getattr(request.state, "key", ANONYMOUS))


def read_timeout(request: Request) -> float | None:
    """The timeout of the header x-timeout-ms, None without one. Raises InvalidRequest."""
    value = request.headers.get(TIMEOUT)
    if value is None:
        return None
    try:
        return float(value)
    except ValueError:
        raise InvalidRequest(f"{TIMEOUT} must be a number of milliseconds, found {value[:40]!r}.") from None


def note(request: Request, answer: ServiceAnswer) -> dict[str, str]:
    """Records an answer for metrics, log and trace, and returns the headers of the response: without this
    call a request is missing from the metrics.
    """
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
        "x-tokenization-time": _format_ms(timing.tokenizing),
        "x-queue-time": _format_ms(timing.queued),
        "x-inference-time": _format_ms(timing.computing),
    }


def _format_ms(seconds: float) -> str:
    return f"{seconds * 1000:.3f}"
