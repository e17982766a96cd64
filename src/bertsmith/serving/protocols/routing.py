"""What the routes of every protocol share: bodies in, answers and refusals out."""

import logging
import math
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import orjson
from fastapi import APIRouter, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute

from bertsmith.serving.refusals import InvalidRequest, Refusal
from bertsmith.serving.service import ANONYMOUS, Answer

try:  # FastAPI traces each request where it is there
    from opentelemetry import trace
except ImportError:
    trace = None  # type: ignore[assignment]

ErrorBody = Callable[[Refusal], Any]
TIMEOUT = "x-timeout-ms"
_LOG = logging.getLogger("bertsmith.serving")


class JsonRequest(Request):
    """JSON as orjson reads it: strictly, no NaN, nothing nested a thousand deep."""

    async def json(self) -> Any:
        return orjson.loads(await self.body())


class JsonResponse(Response):
    """JSON by orjson, which writes NumPy's numbers too."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS)


def router_of(error_body: ErrorBody, **more: Any) -> APIRouter:
    """A router whose refusals have the protocol's own envelope."""

    class Route(APIRoute):
        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            usual = super().get_route_handler()

            async def handle(request: Request) -> Response:
                try:
                    return await usual(JsonRequest(request.scope, request.receive))
                except Refusal as refusal:
                    return refuse(refusal, error_body, request)
                except RequestValidationError as error:
                    return refuse(InvalidRequest(first_problem(error)), error_body, request)
                except Exception:
                    _LOG.exception("a request failed by a bug of the service")
                    return refuse(Refusal("The service failed. Its log says why."), error_body, request)

            return handle

    return APIRouter(route_class=Route, default_response_class=JsonResponse, **more)


def refuse(refusal: Refusal, error_body: ErrorBody, request: Request) -> Response:
    """The refusal in a protocol's envelope; Retry-After in whole seconds, as HTTP has it, and in ms."""
    request.state.refusal = refusal
    headers = {}
    if refusal.retry_after is not None:
        headers["retry-after"] = str(max(1, math.ceil(refusal.retry_after)))
        headers["retry-after-ms"] = str(math.ceil(refusal.retry_after * 1000))
    if refusal.status == 401:
        headers["www-authenticate"] = "Bearer"
    return JsonResponse(error_body(refusal), refusal.status, headers)


def first_problem(error: RequestValidationError) -> str:
    """The first thing about a body that isn't as the route reads it."""
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"] if part != "body")
    if first["type"] == "json_invalid":
        return "The body is no JSON."
    said = str(first["msg"])
    return f"{place}: {said[0].lower()}{said[1:]}." if place else f"The body: {said[0].lower()}{said[1:]}."


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


def note(request: Request, answer: Answer) -> Mapping[str, str]:
    """Leaves what metrics, the log and a trace want to know, and gives the headers of an answer."""
    request.state.answer = answer
    timing = answer.timing
    if trace is not None:
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
