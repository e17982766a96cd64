"""Connections to the upstreams, kept for the next request.

httpcore's own pool, which httpx uses, looks at every idle connection's socket for each request, and closes
idle ones by how many there are in all: with hundreds of calls at a time it costs more than all the rest. Here
the connection that was used last is looked at, and the others when their time is over.
"""

import time
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator
from contextlib import suppress
from typing import cast

import httpcore
import httpx

Headers = list[tuple[bytes, bytes]]

_IDLE_SECONDS = 5.0  # as long as the providers' own clients keep one


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
