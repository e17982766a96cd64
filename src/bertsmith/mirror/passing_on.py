"""What a relay leaves out of a message that it hands on: what belongs to the connection (RFC 9110, section
7.6.1), and what was said to itself.
"""

import httpcore

from bertsmith.mirror.exchange import READABLE
from bertsmith.mirror.upstream_connections import Headers, UpstreamAnswer

HEADER = b"x-bertsmith"  # of a mirror's answers: what became of the call
SITE, SUBJECT = b"x-bertsmith-site", b"x-subject"  # what the client may tell the mirror
FAILED = (httpcore.TimeoutException, httpcore.NetworkError, httpcore.ProtocolError)
_OF_A_CONNECTION = {
    b"connection", b"expect", b"keep-alive", b"proxy-authenticate", b"proxy-authorization",
    b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade",
}  # fmt: skip
_NOT_SENT_ON = {SITE, SUBJECT, b"host"}


def is_students(answer: UpstreamAnswer) -> bool:
    """The upstream is a mirror too, and its student has answered."""
    return answer.header(HEADER).startswith("answered")


def meaning_of(error: Exception) -> tuple[int, str, str]:
    """Status, sentence and code of what kept the upstream from answering."""
    if isinstance(error, httpcore.TimeoutException):
        return 504, "The upstream did not answer in time.", "upstream-timeout"
    if isinstance(error, httpcore.ConnectError):
        return 502, "The upstream can't be reached.", "upstream-unreachable"
    return 502, "The upstream ended the connection without an answer.", "upstream-no-answer"


def sent_on(headers: Headers, host: bytes, *, narrow: bool) -> Headers:
    """A request's headers for the upstream. `narrow`: its answer has to be readable."""
    dropped = of_this_connection(headers) | _NOT_SENT_ON
    found = [(name, value) for name, value in headers if name not in dropped]
    if narrow:
        found = [(name, _narrowed(value) if name == b"accept-encoding" else value) for name, value in found]
    if any(name == b"transfer-encoding" for name, _ in headers):
        found.append((b"transfer-encoding", b"chunked"))
    return [(b"host", host), *found]


def _narrowed(accepted: bytes) -> bytes:
    return READABLE.encode() if READABLE.encode() in accepted else b"identity"


def of_this_connection(headers: Headers) -> set[bytes]:
    """Names in small letters."""
    named = {
        each.strip().lower() for name, value in headers if name == b"connection" for each in value.split(b",")
    }
    return _OF_A_CONNECTION | named
