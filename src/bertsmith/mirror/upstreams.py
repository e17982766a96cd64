"""Where a request goes, by which connection, and what a relay leaves out of a message that it hands on.

A request goes to the path that the client asked for, on the upstream of its provider:

client's base URL              upstream                        a request for    goes to
http://mirror/v1               https://api.openai.com/v1       /v1/responses    /v1/responses
http://mirror/v1               https://host/openai/v2          /v1/responses    /openai/v2/responses
http://mirror                  https://api.anthropic.com       /v1/messages     /v1/messages
http://mirror                  https://host/claude             /v1/messages     /claude/v1/messages

Left out is what belongs to the connection (RFC 9110, section 7.6.1), and what was said to the relay itself.

Connections are kept for the next request. httpcore's own pool, which httpx uses, looks at every idle
connection's socket for each request, and closes idle ones by how many there are in all: with hundreds of
calls at a time it costs more than all the rest. Here the connection that was used last is looked at, and the
others when their time is over.
"""

import time
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator
from contextlib import suppress
from typing import NamedTuple, cast

import httpcore
import httpx

from bertsmith.mirror.exchange import READABLE
from bertsmith.mirror.formats.registry import FORMATS, USUAL, format_of
from bertsmith.mirror.formats.wire_format import WireFormat
from bertsmith.mirror.settings import RelaySettings

_VERSION = b"/v1"
Headers = list[tuple[bytes, bytes]]
_IDLE_SECONDS = 5.0  # as long as the providers' own clients keep one
HEADER = b"x-bertsmith"  # of a mirror's answers: what became of the call
SITE, SUBJECT = b"x-bertsmith-site", b"x-subject"  # what the client may tell the mirror
FAILED = (httpcore.TimeoutException, httpcore.NetworkError, httpcore.ProtocolError)
_OF_A_CONNECTION = {
    b"connection", b"expect", b"keep-alive", b"proxy-authenticate", b"proxy-authorization",
    b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade",
}  # fmt: skip
_NOT_SENT_ON = {SITE, SUBJECT, b"host"}


class Target(NamedTuple):
    """`url` asks for the very bytes of the request; `host` is the header."""

    url: httpcore.URL
    host: bytes


class Upstreams:
    """By provider."""

    def __init__(self, settings: RelaySettings, formats: tuple[WireFormat, ...] = FORMATS) -> None:
        self._formats = formats
        self._any = _read(settings.upstream)
        addresses = {each.PROVIDER: f"{each.PROVIDER}_base_url" for each in formats}
        self._own = {name: _read(getattr(settings, key, None)) for name, key in addresses.items()}

    def target(self, path: bytes, query: bytes, headers: dict[bytes, bytes]) -> Target | None:
        """None where no upstream speaks the protocol."""
        form = format_of("POST", path.decode("latin-1"), self._formats) or USUAL
        if form.PROVIDER == USUAL.PROVIDER:  # unknown, or a path that other providers have too
            form = next((each for each in self._formats if each.HEADER in headers), form)
        found = self._own[form.PROVIDER] or self._any
        if found is None:
            return None
        base = found.target.rstrip(b"/")
        if path.startswith(_VERSION + b"/") and base and (form.BASE_HAS_VERSION or base.endswith(_VERSION)):
            path = path.removeprefix(_VERSION)
        whole = base + path
        target = whole + b"?" + query if query else whole
        url = httpcore.URL(scheme=found.scheme, host=found.host, port=found.port, target=target)
        host = b"[%b]" % found.host if b":" in found.host else found.host  # of IPv6
        return Target(url, host if found.port is None else b"%b:%d" % (host, found.port))


def _read(url: str | None) -> httpcore.URL | None:
    if url is None:
        return None
    found = httpx.URL(url)  # which knows of hosts in other scripts
    return httpcore.URL(scheme=found.raw_scheme, host=found.raw_host, port=found.port, target=found.raw_path)


class UpstreamAnswer:
    """An answer whose head has come. `headers` have their names in small letters."""

    def __init__(
        self,
        response: httpcore.Response,
        origin: httpcore.Origin,
        connection: httpcore.AsyncHTTPConnection,
        connections: "Connections",
    ) -> None:
        self.status = response.status
        self.headers: Headers = [(name.lower(), value) for name, value in response.headers]
        self._response, self._connection, self._connections = response, connection, connections
        self._origin = origin

    def header(self, name: bytes) -> str:
        """Empty where there is none; several are one list (RFC 9110, section 5.3)."""
        return b", ".join(value for each, value in self.headers if each == name).decode("latin-1")

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body as it comes, in its encoding. Raises httpcore's errors."""
        async for piece in cast(AsyncIterable[bytes], self._response.stream):
            yield piece

    async def close(self) -> None:
        """Ends the connection where the answer has not been read to its end; else it may be used again."""
        await self._response.aclose()
        await self._connections.put(self._origin, self._connection)


class Connections:
    """HTTP/1.1 to any number of origins."""

    def __init__(self, connect_seconds: float, silent_seconds: float) -> None:
        self._ssl = httpx.create_ssl_context()
        self._idle: dict[bytes, deque[tuple[float, httpcore.AsyncHTTPConnection]]] = {}
        self._timeout = {"connect": connect_seconds, "read": silent_seconds, "write": silent_seconds}

    async def ask(
        self, method: str, url: httpcore.URL, headers: Headers, content: bytes | AsyncIterable[bytes]
    ) -> UpstreamAnswer:
        """`content` goes out as it is. Raises httpcore's errors."""
        request = httpcore.Request(
            method,
            url,
            headers=headers,
            content=content,
            extensions={"timeout": self._timeout},
        )
        connection = await self._take(url.origin)
        try:
            response = await connection.handle_async_request(request)
        except BaseException:
            await connection.aclose()
            raise
        return UpstreamAnswer(response, url.origin, connection, self)

    async def put(self, origin: httpcore.Origin, connection: httpcore.AsyncHTTPConnection) -> None:
        """One that is done with."""
        if not connection.is_idle():
            await connection.aclose()
            return
        idle, now = self._idle.setdefault(_key(origin), deque()), time.monotonic()
        idle.append((now, connection))
        while idle and now - idle[0][0] > _IDLE_SECONDS:  # another request may take the last one meanwhile
            await idle.popleft()[1].aclose()

    async def close(self) -> None:
        """All that are idle."""
        for idle in self._idle.values():
            while idle:
                with suppress(OSError, httpcore.NetworkError):
                    await idle.pop()[1].aclose()

    async def _take(self, origin: httpcore.Origin) -> httpcore.AsyncHTTPConnection:
        """The one that was used last, if the upstream hasn't ended it; else a new one."""
        idle = self._idle.setdefault(_key(origin), deque())
        while idle:
            _, connection = idle.pop()
            if not connection.has_expired():
                return connection
            await connection.aclose()
        return httpcore.AsyncHTTPConnection(
            origin, ssl_context=self._ssl, keepalive_expiry=_IDLE_SECONDS, http1=True, http2=False
        )


def _key(origin: httpcore.Origin) -> bytes:
    return b"%b %b %d" % (origin.scheme, origin.host, origin.port)


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
    found = []
    for name, value in headers:
        if narrow and name == b"accept-encoding":
            value = READABLE.encode() if READABLE.encode() in value else b"identity"
        if name not in dropped:
            found.append((name, value))
    if any(name == b"transfer-encoding" for name, _ in headers):
        found.append((b"transfer-encoding", b"chunked"))
    return [(b"host", host), *found]


def of_this_connection(headers: Headers) -> set[bytes]:
    """Names in small letters."""
    named = {
        each.strip().lower() for name, value in headers if name == b"connection" for each in value.split(b",")
    }
    return _OF_A_CONNECTION | named
