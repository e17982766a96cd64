"""An exchange, as the relay saw its bytes go by → a redacted `Call`, or the reason why there is none. Read
`Exchange`, then `read_call`.
"""

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
from bertsmith.mirror.identity import content_hash, imported_call_id, site_id, version_id
from bertsmith.mirror.redaction import Redactor

_Read = TypeVar("_Read")
READABLE = "gzip"  # the one content-encoding that every client knows and whose size can be bounded
LARGEST = 64_000_000  # bytes of an answer when decompressed
_GZIP, _PART_BYTES = zlib.MAX_WBITS | 16, 1 << 14  # zlib's number for the format; bytes
_MALFORMED = (AttributeError, KeyError, IndexError, TypeError, ValueError, RecursionError)


@dataclass(frozen=True)
class Exchange:
    """A request and the bytes of its answer, as the relay passed them on.

    `request_bytes` is the length of the request's body. `encoding` is the answer's content-encoding. `named`
    (the site) and `subjects` come from the client's headers. `is_whole` is false if the HTTP message was cut.
    `began` is in seconds since 1970. `routing` says who answered, where a student serves. `refusal` is the
    reason if the LLM refused the call. `source` and `call_id` are those of the call; without an id it gets a
    new one, or its audit's.
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
    source: str = "relay"
    call_id: str = ""

    @property
    def size(self) -> int:
        """Bytes of the request's body and of the answer, which bound the recorder's queue."""
        return self.request_bytes + sum(map(len, self.answer))


def read_call(exchange: Exchange, redactor: Redactor) -> Call:
    """The redacted call of an exchange. Raises NotMirrored with the reason if there is none to record."""
    if exchange.refusal:
        raise NotMirrored(exchange.refusal)
    # A stream marks its own end; many clients hang up there, before the last bytes of HTTP.
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
        source="audit" if audit else exchange.source,
        call_id=audit or exchange.call_id,
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
    call_id: str = "",
    weight: float | None = None,
    site_weight: float | None = None,
) -> Call:
    """Redacts a request and its completion and makes a call of them.

    `named` is the site's name, if the client gave one. `subjects` are people whom the call is about, beside
    those whom the request names. `call_id` is the call's id; empty makes a new one. The id of an imported
    call is a hash of its content, and of its time if the provider gave the answer no id, so that importing it
    again finds it in the store.
    """
    site, redaction = site_id(request, named), redactor.begin_call()
    all_subjects = tuple(dict.fromkeys((*subjects, *request.subjects)))
    request = replace(redaction.redact_request(request), subjects=all_subjects)
    completion = redaction.redact_completion(completion)
    content = content_hash(request, completion)
    version = version_id(request, site)
    if source == UNDATED or (source == IMPORTED and completion.response_id):
        call_id = content
    elif source == IMPORTED:
        call_id = imported_call_id(content, began)
    call_id = call_id or uuid.uuid4().hex
    return Call(
        call_id,
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
    return read_request(form, _read_or_refuse(lambda: orjson.loads(body), "malformed-request"), path)


def read_request(form: WireFormat, body: Json, path: str = "") -> CompletionRequest:
    """Reads a request's parsed JSON body. The model is the one that `path` names, as Azure's deployments do,
    else the body's. Raises NotMirrored with the reason if it can't be mirrored.
    """
    if not isinstance(body, dict):
        raise NotMirrored("malformed-request")
    if model := form.model_of_path(path):
        body = {**body, "model": model}
    return _read_or_refuse(lambda: form.read_request(body), "malformed-request")


def parse_completion(
    form: WireFormat, request: CompletionRequest, content: bytes, is_stream: bool
) -> Completion:
    """Reads an answer from its bytes, which are JSON or a stream of events. Raises NotMirrored."""
    if is_stream:
        body = _read_or_refuse(lambda: form.join(events_of(content)), "malformed-answer")
    else:
        body = _read_or_refuse(lambda: orjson.loads(content), "malformed-answer")
    return read_completion(form, request, body)


def read_completion(form: WireFormat, request: CompletionRequest, body: Any) -> Completion:
    """Reads an answer's parsed JSON body. Raises NotMirrored with the reason if it can't be learned from."""
    if not isinstance(body, Mapping):
        raise NotMirrored("malformed-answer")
    try:
        return _read_or_refuse(lambda: form.read_answer(request, body), "malformed-answer")
    except NotMirrored as error:  # helpers that read requests too give their reason as for a request
        raise NotMirrored(error.reason.replace("-request", "-answer")) from None


def _read_or_refuse(read: Callable[[], _Read], reason: str) -> _Read:
    """Calls `read`; a body of an unexpected shape, which may raise anything, becomes NotMirrored(reason)."""
    try:
        return read()
    except _MALFORMED:
        raise NotMirrored(reason) from None


def decode_content(
    content: bytes, encoding: str, largest: int = LARGEST, *, may_be_cut: bool = False
) -> bytes:
    """Decompresses a body by its content-encoding; one that `may_be_cut` as far as it goes. Raises
    NotMirrored for an encoding other than gzip, for a damaged or cut body, and for more than `largest` bytes.
    """
    encoding = encoding.strip().lower()
    if encoding in ("", "identity"):
        return content
    if encoding != READABLE:
        raise NotMirrored("encoding")
    # A gzip file may have several members (RFC 1952, section 2.2); clients read all of them.
    decoded, rest, decompressor = bytearray(), memoryview(content), zlib.decompressobj(_GZIP)
    while rest:
        if decompressor.eof:
            decompressor = zlib.decompressobj(_GZIP)
        part = rest[:_PART_BYTES]  # small, because zlib copies what is left behind a member's end
        try:
            decoded += decompressor.decompress(part, largest + 1 - len(decoded))
        except zlib.error:
            raise NotMirrored("malformed-answer") from None
        if len(decoded) > largest:
            raise NotMirrored("too-large")
        rest = rest[len(part) - len(decompressor.unused_data) :]
    if content and not (decompressor.eof or may_be_cut):
        raise NotMirrored("cut")
    return bytes(decoded)
