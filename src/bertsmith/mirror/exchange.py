"""What passed through the relay → a call, or why there is none."""

import uuid
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import orjson

from bertsmith.mirror.call import (
    IMPORTED,
    UNDATED,
    Call,
    CallRouting,
    Completion,
    CompletionRequest,
    Json,
    NotMirrored,
)
from bertsmith.mirror.formats.reading import events_of
from bertsmith.mirror.formats.wire_format import WireFormat
from bertsmith.mirror.identity import content_of, import_of, site_of, version_of
from bertsmith.mirror.redaction import Redactor

_Read = TypeVar("_Read")
READABLE = "gzip"  # the one content-encoding that every client knows and whose size can be bounded
LARGEST = 64_000_000  # bytes of an answer unpacked
_GZIP, _PART = zlib.MAX_WBITS | 16, 1 << 14  # zlib's number for the format; bytes
_MALFORMED = (AttributeError, KeyError, IndexError, TypeError, ValueError, RecursionError)


@dataclass(frozen=True)
class Exchange:
    """What was asked, and the answer's bytes as they went by; `request_bytes` is how many were asked with.
    `named` and `subjects` are the client's headers; `is_whole` is false where HTTP did not end the answer.
    `routing` says what a student made of it, where one answers; `refusal` why the answer can't be read.
    """

    form: WireFormat
    request: CompletionRequest
    request_bytes: int
    content_type: str
    encoding: str
    answer: list[bytes]
    is_whole: bool
    began: float
    first_seconds: float
    seconds: float
    named: str = ""
    subjects: tuple[str, ...] = ()
    routing: CallRouting | None = None
    refusal: str = ""

    @property
    def size(self) -> int:
        """Bytes that it holds."""
        return self.request_bytes + sum(map(len, self.answer))


def read_call(exchange: Exchange, redactor: Redactor) -> Call:
    """Redacted. Raises NotMirrored saying why."""
    if exchange.refusal:
        raise NotMirrored(exchange.refusal)
    # A stream says itself where it ends; many clients hang up there, before the last bytes of HTTP.
    is_stream = "event-stream" in exchange.content_type
    if not (exchange.is_whole or is_stream):
        raise NotMirrored("cut")
    request = exchange.request
    content = decode_content(b"".join(exchange.answer), exchange.encoding, may_be_cut=is_stream)
    completion = parse_completion(exchange.form, request, content, is_stream)
    routing = exchange.routing
    audit = "" if routing is None else routing.audit
    return make_call(
        request,
        completion,
        redactor,
        source="audit" if audit else "relay",
        own=audit,
        named=exchange.named,
        subjects=exchange.subjects,
        began=exchange.began,
        seconds=exchange.seconds,
        first_seconds=exchange.first_seconds,
        weight=None if routing is None else routing.weight,
        site_weight=None if routing is None else routing.site_weight,
    )


def make_call(
    request: CompletionRequest,
    completion: Completion,
    redactor: Redactor,
    *,
    source: str,
    began: float,
    named: str = "",
    subjects: Iterable[str] = (),
    seconds: float | None = None,
    first_seconds: float | None = None,
    own: str = "",
    weight: float | None = None,
    site_weight: float | None = None,
) -> Call:
    """Redacted. `subjects` are whom it is about beside those of the request. `own` is its id; imported calls
    are named by their content, and by their time where the provider gave the answer no name, so that a second
    import finds them there.
    """
    site, redaction = site_of(request, named), redactor.begin()
    everyone = tuple(dict.fromkeys((*subjects, *request.subjects)))
    request = replace(redaction.redact_request(request), subjects=everyone)
    completion = redaction.redact_completion(completion)
    content = content_of(request, completion)
    version = version_of(request, site)
    if source == UNDATED or (source == IMPORTED and completion.response_id):
        own = content
    elif source == IMPORTED:
        own = import_of(content, began)
    own = own or uuid.uuid4().hex
    return Call(
        own,
        content,
        site,
        version,
        began,
        request,
        completion,
        source,
        seconds,
        first_seconds,
        weight,
        site_weight,
    )


def parse_request(form: WireFormat, body: bytes, path: str = "") -> CompletionRequest:
    """As `read_request`, of the body's bytes."""
    return read_request(form, _reading(lambda: orjson.loads(body), "malformed-request"), path)


def read_request(form: WireFormat, body: Json, path: str = "") -> CompletionRequest:
    """The model is the one that the request's `path` names, as Azure's deployments are, else the body's.
    Raises NotMirrored saying why.
    """
    if not isinstance(body, dict):
        raise NotMirrored("malformed-request")
    if model := form.model_of_path(path):
        body = {**body, "model": model}
    return _reading(lambda: form.read_request(body), "malformed-request")


def parse_completion(
    form: WireFormat, request: CompletionRequest, content: bytes, is_stream: bool
) -> Completion:
    """Raises NotMirrored saying why."""
    if is_stream:
        body = _reading(lambda: form.join(events_of(content)), "malformed-answer")
    else:
        body = _reading(lambda: orjson.loads(content), "malformed-answer")
    return read_completion(form, request, body)


def read_completion(form: WireFormat, request: CompletionRequest, body: Any) -> Completion:
    """Raises NotMirrored saying why."""
    if not isinstance(body, Mapping):
        raise NotMirrored("malformed-answer")
    try:
        return _reading(lambda: form.read_answer(request, body), "malformed-answer")
    except NotMirrored as found:  # parts are read alike in both
        raise NotMirrored(found.reason.replace("-request", "-answer")) from None


def _reading(read: Callable[[], _Read], reason: str) -> _Read:
    """A stranger's body may be of any shape: what no format looked for is said by its reason."""
    try:
        return read()
    except _MALFORMED:
        raise NotMirrored(reason) from None


def decode_content(
    content: bytes, encoding: str, largest: int = LARGEST, *, may_be_cut: bool = False
) -> bytes:
    """By its content-encoding; what came of one that `may_be_cut`. Raises NotMirrored for one that this
    machine can't read, and where more than `largest` bytes come out of it.
    """
    encoding = encoding.strip().lower()
    if encoding in ("", "identity"):
        return content
    if encoding != READABLE:
        raise NotMirrored("encoding")
    # All members of it (RFC 1952, section 2.2), as clients read them.
    found, rest, unpacking = bytearray(), memoryview(content), zlib.decompressobj(_GZIP)
    while rest:
        if unpacking.eof:
            unpacking = zlib.decompressobj(_GZIP)
        part = rest[:_PART]  # what is left of it behind a member's end is copied
        try:
            found += unpacking.decompress(part, largest + 1 - len(found))
        except zlib.error:
            raise NotMirrored("malformed-answer") from None
        if len(found) > largest:
            raise NotMirrored("too-large")
        rest = rest[len(part) - len(unpacking.unused_data) :]
    if content and not (unpacking.eof or may_be_cut):
        raise NotMirrored("cut")
    return bytes(found)
