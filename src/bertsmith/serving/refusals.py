"""What the service answers when it doesn't do what was asked: a status, a code and one sentence.

    Refusal
    ├── InvalidRequest   422  a body that isn't what the route reads
    │   └── NoInputs     422  a request for nothing
    ├── WrongMethod      405  a path that is asked by other methods
    ├── TooSlow          408  a body that took longer to arrive than the service waits
    ├── TooLarge         413  more than the service takes: says what, how much, and how much is taken
    ├── UnreadableBody   415  a body in a coding or a charset that isn't read here
    ├── TooLong          422  a text of more tokens than the model reads, under long_text = "error"
    ├── Unauthorized     401  no key, or none that is known
    ├── Forbidden        403  a key without this right
    ├── UnknownModel     404  no model of this name
    ├── Unsupported      422  the model can't do this
    ├── Overloaded       429  it would not be done in time: come back after `retry_after` seconds
    ├── Unavailable      503  starting, stopping, or the model is being replaced
    │   └── IndexUnreadable  503  an index that is served is gone or damaged
    └── Expired          504  its time was over before it was begun

Each protocol has an envelope of its own for these (serving/protocols/).
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

_LONGEST = 1000  # characters of a sentence


class Refusal(Exception):
    """`retry_after` in seconds, None where coming back won't help. `headers` are the answer's."""

    status = 500
    code = "internal_error"

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        if len(message) > _LONGEST:  # what a client sent is shown to it, but not all of it
            message = f"{message[: _LONGEST // 2]} … {message[-_LONGEST // 2 :]}"
        self.message, self.retry_after = message, retry_after
        self.headers: Mapping[str, str] = {}


class InvalidRequest(Refusal):
    """A body that isn't what the route reads."""

    status, code = 422, "invalid_request"


class NoInputs(InvalidRequest):
    """A request for nothing."""

    code = "no_inputs"


class WrongMethod(Refusal):
    """A path that is asked by other methods."""

    status, code = 405, "method_not_allowed"

    def __init__(self, method: str, path: str, allowed: Iterable[str]) -> None:
        known = ", ".join(sorted(allowed))
        super().__init__(f"There is no {method} {path[:200]} here. Its methods are: {known}.")
        self.headers = {"allow": known}


class UnreadableBody(Refusal):
    """A body in a coding or a charset that isn't read here."""

    status, code = 415, "unsupported_media_type"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.headers = {"accept-encoding": "gzip, deflate"}


class TooSlow(Refusal):
    """A body that took longer to arrive than the service waits."""

    status, code = 408, "request_timeout"


class TooLarge(Refusal):
    """More than the service takes."""

    status, code = 413, "too_large"


class TooLong(Refusal):
    """A text of more tokens than the model reads."""

    status, code = 422, "text_too_long"


class AuthenticationError(Refusal):
    """No key, or none that is known."""

    status, code = 401, "unauthorized"


class PermissionDeniedError(Refusal):
    """A key without this right."""

    status, code = 403, "forbidden"


class UnknownModel(Refusal):
    """No model of this name."""

    status, code = 404, "model_not_found"


class UnknownPipeline(Refusal):
    """A path that names no pipeline."""

    status, code = 404, "not_found"


class UnsupportedRequest(Refusal):
    """The model can't do this."""

    status, code = 422, "unsupported"


class ServiceOverload(Refusal):
    """It would not be done in time."""

    status, code = 429, "overloaded"


class Unavailable(Refusal):
    """Starting or stopping."""

    status, code = 503, "unavailable"


class IndexUnreadable(Unavailable):
    """An index that is served is gone, damaged, or built anew with another model."""

    code = "index_unreadable"


class DeadlineError(Refusal):
    """Its time was over before it was begun."""

    status, code = 504, "deadline_exceeded"


def kinds(of: type[Refusal] = Refusal) -> list[type[Refusal]]:
    """All refusals of this file, the bug of the service (500) among them."""
    found = [of, *(each for kind in of.__subclasses__() for each in kinds(kind))]
    return [each for each in found if each.__module__ == __name__]


def documented(status_of: Callable[[Refusal], int]) -> dict[int | str, dict[str, Any]]:
    """The answers that any route may give, for an OpenAPI document: their envelope is the protocol's, and so
    may the status be.
    """
    said: dict[int, list[str]] = {}
    for kind in kinds():
        what = "A bug of the service; its log says more." if kind is Refusal else kind.__doc__
        said.setdefault(status_of(kind.__new__(kind)), []).append(f"{kind.code}: {what}")
    schema = {"application/json": {"schema": {"type": "object"}}}
    return {
        status: {"description": " ".join(found), "content": schema} for status, found in sorted(said.items())
    }
