"""Where a request goes, over which connection, and which headers a relay leaves out.

A request goes to the path that the client asked for, on the upstream of its provider:

client's base URL              upstream                        a request for    goes to
http://mirror/v1               https://api.openai.com/v1       /v1/responses    /v1/responses
http://mirror/v1               https://host/openai/v2          /v1/responses    /openai/v2/responses
http://mirror                  https://api.anthropic.com       /v1/messages     /v1/messages
http://mirror                  https://host/claude             /v1/messages     /claude/v1/messages

Headers of the connection (RFC 9110, section 7.6.1) and those meant for the relay itself are left out.

Connections are kept for the next request. httpcore's own pool, which httpx uses, looks at every idle
connection's socket for each request, and closes idle ones by how many there are in all: with hundreds of
calls at a time that costs more than everything else. Here only the connection that was used last is checked,
and the others when their time is over.
"""

import re
import time
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator
from contextlib import suppress
from typing import NamedTuple, cast

import httpcore
import httpx

from bertsmith.mirror.exchange import READABLE
from bertsmith.mirror.formats.registry import DEFAULT_FORMAT, FORMATS, find_format
from bertsmith.mirror.formats.wire_format import WireFormat
from bertsmith.mirror.settings import RelaySettings

_VERSION = b"/v1"
Headers = list[tuple[bytes, bytes]]
_IDLE_SECONDS = 5.0  # how long an idle connection is kept, as in the providers' own clients
HEADER = b"x-bertsmith"  # on the mirror's answers: what became of the call
SITE, SUBJECT = b"x-bertsmith-site", b"x-subject"  # headers in which a client names the site and the subjects
FAILED = (httpcore.TimeoutException, httpcore.NetworkError, httpcore.ProtocolError)
_CONNECTION_HEADERS = {
    b"connection", b"expect", b"keep-alive", b"proxy-authenticate", b"proxy-authorization",
    b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade",
}  # fmt: skip
_NOT_SENT_ON = {SITE, SUBJECT, b"host"}
# With a weight of 0 a client says that it does not accept an encoding (RFC 9110, section 12.4.2).
_GZIP_ACCEPTED = re.compile(
    rb"(?i)(?:^|,)\s*(?:x-)?%b\s*(?:,|$|;(?!\s*q\s*=\s*0(?:\.0*)?\s*(?:,|$)))" % READABLE.encode()
)


class Target(NamedTuple):
    """Where a request goes. `url` keeps the bytes of the client's path; `host` is the Host header."""

    url: httpcore.URL
    host: bytes


class Upstreams:
    """The upstream of each provider, by the settings."""

    def __init__(self, settings: RelaySettings, formats: tuple[WireFormat, ...] = FORMATS) -> None:
        self._formats = formats
        self._default = _parse_url(settings.upstream)
        setting_names = {form.PROVIDER: f"{form.PROVIDER}_base_url" for form in formats}
        self._own = {name: _parse_url(getattr(settings, key, None)) for name, key in setting_names.items()}

    def target(self, path: bytes, query: bytes, headers: dict[bytes, bytes]) -> Target | None:
        """Where a request for `path` goes; None if no upstream serves its protocol."""
        form = find_format("POST", path.decode("latin-1"), self._formats) or DEFAULT_FORMAT
        if form.PROVIDER == DEFAULT_FORMAT.PROVIDER:  # unknown, or a path that other providers have too
            form = next((other for other in self._formats if other.HEADER in headers), form)
        upstream = self._own[form.PROVIDER] or self._default
        if upstream is None:
            return None
        base = upstream.target.rstrip(b"/")
        if path.startswith(_VERSION + b"/") and base and (form.BASE_HAS_VERSION or base.endswith(_VERSION)):
            path = path.removeprefix(_VERSION)
        path = base + path
        target = path + b"?" + query if query else path
        url = httpcore.URL(scheme=upstream.scheme, host=upstream.host, port=upstream.port, target=target)
        host = b"[%b]" % upstream.host if b":" in upstream.host else upstream.host  # IPv6
        return Target(url, host if upstream.port is None else b"%b:%d" % (host, upstream.port))


def _parse_url(url: str | None) -> httpcore.URL | None:
    if url is None:
        return None
    parsed = httpx.URL(url)  # unlike httpcore, it encodes international host names
    return httpcore.URL(
        scheme=parsed.raw_scheme, host=parsed.raw_host, port=parsed.port, target=parsed.raw_path
    )


class UpstreamAnswer:
    """An answer whose status and headers have come. The names of `headers` are in lower case."""

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
        """A header's value, empty if missing; several are joined to a list (RFC 9110, section 5.3)."""
        return b", ".join(value for other, value in self.headers if other == name).decode("latin-1")

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yields the body as it comes, still encoded. Raises httpcore's errors."""
        async for piece in cast(AsyncIterable[bytes], self._response.stream):
            yield piece

    async def close(self) -> None:
        """Gives the connection back; it is closed if the answer was not read to its end."""
        await self._response.aclose()
        await self._connections.put(self._origin, self._connection)


class Connections:
    """A pool of HTTP/1.1 connections to any number of origins."""

    def __init__(self, connect_seconds: float, silent_seconds: float) -> None:
        self._ssl = httpx.create_ssl_context()
        self._idle: dict[bytes, deque[tuple[float, httpcore.AsyncHTTPConnection]]] = {}
        self._timeout = {"connect": connect_seconds, "read": silent_seconds, "write": silent_seconds}

    async def ask(
        self, method: str, url: httpcore.URL, headers: Headers, content: bytes | AsyncIterable[bytes]
    ) -> UpstreamAnswer:
        """Sends a request with `content` as its body, and returns when the answer's head has come. Raises
        httpcore's errors.
        """
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
        """Keeps a connection for the next request, if its answer was read to the end."""
        if not connection.is_idle():
            await connection.aclose()
            return
        idle, now = self._idle.setdefault(_key(origin), deque()), time.monotonic()
        idle.append((now, connection))
        while idle and now - idle[0][0] > _IDLE_SECONDS:  # another request may take the last one meanwhile
            await idle.popleft()[1].aclose()

    async def close(self) -> None:
        """Closes all idle connections to the upstreams."""
        for idle in self._idle.values():
            while idle:
                with suppress(OSError, httpcore.NetworkError):
                    await idle.pop()[1].aclose()

    async def _take(self, origin: httpcore.Origin) -> httpcore.AsyncHTTPConnection:
        """The connection that was used last, if the upstream hasn't closed it, or a new one."""
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


def is_student_answer(answer: UpstreamAnswer) -> bool:
    """Whether the upstream is a mirror itself and a student of it has answered."""
    return answer.header(HEADER).startswith("answered")


def describe_failure(error: Exception) -> tuple[int, str, str]:
    """Status, message and code for the client where the upstream gave no answer."""
    if isinstance(error, httpcore.TimeoutException):
        return 504, "The upstream did not answer in time.", "upstream-timeout"
    if isinstance(error, httpcore.ConnectError):
        return 502, "The upstream can't be reached.", "upstream-unreachable"
    return 502, "The upstream ended the connection without an answer.", "upstream-no-answer"


def forwarded_headers(headers: Headers, host: bytes, *, narrow: bool) -> Headers:
    """A request's headers for the upstream. `narrow`: accept no encoding but gzip, so that the relay can read
    the answer.
    """
    dropped = connection_headers(headers) | _NOT_SENT_ON
    sent = []
    for name, value in headers:
        if narrow and name == b"accept-encoding":
            value = READABLE.encode() if _GZIP_ACCEPTED.search(value) else b"identity"
        if name not in dropped:
            sent.append((name, value))
    if any(name == b"transfer-encoding" for name, _ in headers):
        sent.append((b"transfer-encoding", b"chunked"))
    return [(b"host", host), *sent]


def connection_headers(headers: Headers) -> set[bytes]:
    """The names, in lower case, of the headers that belong to one connection only."""
    named = {
        option.strip().lower()
        for name, value in headers
        if name == b"connection"
        for option in value.split(b",")
    }
    return _CONNECTION_HEADERS | named
