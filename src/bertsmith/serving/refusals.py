"""The errors that clients see, each with an HTTP status, a code and one sentence.

    Refusal
    ├── InvalidRequest              422  a body that isn't what the route reads
    │   └── EmptyRequest            422  a request for nothing
    ├── WrongMethod                 405  a path that is asked by other methods
    ├── BodyTimeout                 408  a body that took longer to arrive than the service waits
    ├── RequestTooLarge             413  more than the service takes: its size, and the limit
    ├── UnreadableBody              415  a body in a coding or a charset that isn't read here
    ├── TextTooLong                 422  a text of more tokens than the model reads, under long_text = "error"
    ├── AuthenticationError         401  no key, or none that is known
    ├── PermissionDeniedError       403  a key without this right
    ├── UnknownModel                404  no model of this name
    ├── UnsupportedRequest          422  the model can't do this
    ├── ServiceOverload             429  it would not be done in time: come back after `retry_after` seconds
    ├── ServiceUnavailable          503  starting, stopping, or the model is being replaced
    │   └── IndexUnreadable         503  an index that is served is gone or damaged
    └── DeadlineError               504  its time was over before it was begun

Each protocol has an envelope of its own for these (serving/protocols/).
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

_LONGEST_MESSAGE = 1000  # characters


class Refusal(Exception):
    """An error for the client. `message` is a sentence, shortened if it is very long. `retry_after` is in
    seconds, None if a second try won't help. `headers` are added to the response.
    """

    status = 500
    code = "internal_error"

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        if len(message) > _LONGEST_MESSAGE:  # it may quote what the client sent, but not all of it
            message = f"{message[: _LONGEST_MESSAGE // 2]} … {message[-_LONGEST_MESSAGE // 2 :]}"
        self.message, self.retry_after = message, retry_after
        self.headers: Mapping[str, str] = {}


class InvalidRequest(Refusal):
    """A body that isn't what the route reads."""

    status, code = 422, "invalid_request"


class EmptyRequest(InvalidRequest):
    """A request whose list of inputs is empty."""

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


class BodyTimeout(Refusal):
    """A body that took longer to arrive than the service waits."""

    status, code = 408, "request_timeout"


class RequestTooLarge(Refusal):
    """A body or a list longer than the service reads."""

    status, code = 413, "too_large"


class TextTooLong(Refusal):
    """A text of more tokens than the model reads."""

    status, code = 422, "text_too_long"


class AuthenticationError(Refusal):
    """No key, or none that is known."""

    status, code = 401, "unauthorized"


class PermissionDeniedError(Refusal):
    """A key that doesn't have the right to do this."""

    status, code = 403, "forbidden"


class UnknownModel(Refusal):
    """The service has no model of this name."""

    status, code = 404, "model_not_found"


class UnknownPipeline(Refusal):
    """A path that names no pipeline."""

    status, code = 404, "not_found"


class UnsupportedRequest(Refusal):
    """A request that the model has no operation for."""

    status, code = 422, "unsupported"


class ServiceOverload(Refusal):
    """It would not be done in time."""

    status, code = 429, "overloaded"


class ServiceUnavailable(Refusal):
    """The service is starting or stopping, and takes no requests."""

    status, code = 503, "unavailable"


class IndexUnreadable(ServiceUnavailable):
    """An index that is served is gone, damaged, or built anew with another model."""

    code = "index_unreadable"


class DeadlineError(Refusal):
    """Its time was over before it was begun."""

    status, code = 504, "deadline_exceeded"


def list_refusal_classes(base: type[Refusal] = Refusal) -> list[type[Refusal]]:
    """`base` and all its subclasses in this file; Refusal itself stands for a bug of the service (500)."""
    classes = [base, *(cls for child in base.__subclasses__() for cls in list_refusal_classes(child))]
    return [cls for cls in classes if cls.__module__ == __name__]


def make_openapi_responses(status_of: Callable[[Refusal], int]) -> dict[int | str, dict[str, Any]]:
    """The error responses that every route may give, by status, as FastAPI's `responses`. `status_of` is the
    protocol's mapping of a refusal to its status.
    """
    sentences: dict[int, list[str]] = {}
    for refusal in list_refusal_classes():
        meaning = "A bug of the service; its log says more." if refusal is Refusal else refusal.__doc__
        sentences.setdefault(status_of(refusal.__new__(refusal)), []).append(f"{refusal.code}: {meaning}")
    schema = {"application/json": {"schema": {"type": "object"}}}
    return {
        status: {"description": " ".join(lines), "content": schema}
        for status, lines in sorted(sentences.items())
    }
