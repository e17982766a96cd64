"""The errors that clients see, each with an HTTP status, a code and one sentence.

    Refusal
    ├── InvalidRequest              422  a body, field or header in a form that the route doesn't take
    │   └── EmptyRequest            422  an empty list of inputs
    ├── WrongMethod                 405  the path has other HTTP methods
    ├── BodyTimeout                 408  the body took longer to arrive than the service waits
    ├── RequestTooLarge             413  above a limit of the service
    ├── UnreadableBody              415  a content-encoding or charset that isn't read
    ├── TextTooLong                 422  a text of more tokens than the model reads at a time
    ├── AuthenticationError         401  no key, or an unknown one
    ├── PermissionDeniedError       403  a key without this right, or another machine's web page
    ├── UnknownModel                404  no model of this name, or none named where several could answer
    ├── UnknownPipeline             404  no pipeline of this name
    ├── UnknownPath                 404  a path of another API that this service can't answer
    ├── UnsupportedRequest          422  an operation, option or kind of input that isn't there
    ├── ServiceOverload             429  too much work is waiting: come back after `retry_after` seconds
    ├── ServiceUnavailable          503  the service is stopping, or can't take requests just now
    │   └── IndexUnreadable         503  an index is gone, damaged, or built anew with another model
    └── DeadlineError               504  the deadline passed before the answer was computed

The docstrings of the classes below are published: they describe the responses in /openapi.json.

Each protocol has an envelope of its own for these (serving/protocols/).
"""

import inspect
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
    """The body, a field of it or a header has a form or a value that the route doesn't take."""

    status, code = 422, "invalid_request"


class EmptyRequest(InvalidRequest):
    """The list of inputs is empty."""

    code = "no_inputs"


class WrongMethod(Refusal):
    """The path has other HTTP methods; the header `allow` lists them."""

    status, code = 405, "method_not_allowed"

    def __init__(self, method: str, path: str, allowed: Iterable[str]) -> None:
        known = ", ".join(sorted(allowed))
        super().__init__(f"There is no {method} {path[:200]} here. Its methods are: {known}.")
        self.headers = {"allow": known}


class UnreadableBody(Refusal):
    """The body's content-encoding or charset isn't one that the service reads."""

    status, code = 415, "unsupported_media_type"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.headers = {"accept-encoding": "gzip, deflate"}


class BodyTimeout(Refusal):
    """The body took longer to arrive than the service waits."""

    status, code = 408, "request_timeout"


class RequestTooLarge(Refusal):
    """The body, an input, the whole request or its answer would exceed a limit of the service, which the
    message names.
    """

    status, code = 413, "too_large"


class TextTooLong(Refusal):
    """A text has more tokens than the model reads at a time, and may not be cut."""

    status, code = 422, "text_too_long"


class AuthenticationError(Refusal):
    """The request has no key, or one that the service doesn't know."""

    status, code = 401, "unauthorized"


class PermissionDeniedError(Refusal):
    """The key doesn't have the right to do this, or the request comes from a place that may not send it,
    such as another machine's web page.
    """

    status, code = 403, "forbidden"


class UnknownModel(Refusal):
    """The service has no model of this name, or the request names none and several could answer."""

    status, code = 404, "model_not_found"


class UnknownPipeline(Refusal):
    """The service has no pipeline of the name in the path."""

    status, code = 404, "not_found"


class UnknownPath(Refusal):
    """The service has no such path, as it can't do what other services of the API do there."""

    status, code = 404, "not_found"


class UnsupportedRequest(Refusal):
    """The model or the service can't do what the request asks, such as an operation, an option or a kind of
    input that it lacks.
    """

    status, code = 422, "unsupported"


class ServiceOverload(Refusal):
    """Too much work is waiting: the queue is full, or the request or another one would miss its deadline."""

    status, code = 429, "overloaded"


class ServiceUnavailable(Refusal):
    """The service is stopping, or can't take or answer requests just now."""

    status, code = 503, "unavailable"


class IndexUnreadable(ServiceUnavailable):
    """The index that is served is gone, damaged, or built anew with another model."""

    code = "index_unreadable"


class DeadlineError(Refusal):
    """The request's deadline passed before its answer was computed."""

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
    for refusal_class in list_refusal_classes():
        docstring = inspect.getdoc(refusal_class) or ""
        meaning = "A bug of the service; its log says more." if refusal_class is Refusal else docstring
        refusal = refusal_class.__new__(refusal_class)  # only its class decides, and constructors differ
        sentence = f"{refusal_class.code}: {' '.join(meaning.split())}"
        sentences.setdefault(status_of(refusal), []).append(sentence)
    schema = {"application/json": {"schema": {"type": "object"}}}
    return {
        status: {"description": " ".join(lines), "content": schema}
        for status, lines in sorted(sentences.items())
    }
