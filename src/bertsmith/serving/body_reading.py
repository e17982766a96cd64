"""A request's body is read before anything else is done: within a size, compressed or not, and a time.

A client that goes away meanwhile, or while it waits for its answer, ends its request. One key's bodies take
at most half of the room that the others' leave.
"""

import asyncio
import re
import zlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bertsmith.serving.refusals import (
    InvalidRequest,
    Refusal,
    TooLarge,
    TooSlow,
    Unavailable,
    UnreadableBody,
)
from bertsmith.serving.service import ANONYMOUS

_SECONDS = 30.0  # for all of a body
_MOST_DIGITS = 18  # of a size: Python refuses to read thousands of them
_BODIES = 128  # of the largest size, for which there is room: slow clients must not fill the memory
_CODINGS = {"gzip": 16 + zlib.MAX_WBITS, "x-gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
_CHARSET = re.compile(r';\s*charset\s*=\s*"?([\w.:-]+)', re.IGNORECASE)
_CHARSETS = ("utf-8", "utf8", "us-ascii", "ascii")


@dataclass
class _Held:
    """Bytes of one body, of a key."""

    key: str
    size: int = 0


class BodyReading:
    """An ASGI application around another. `refuse` sends a refusal that comes before any route."""

    def __init__(self, app: ASGIApp, most_bytes: int, refuse: Any, seconds: float = _SECONDS) -> None:
        self.app, self.most_bytes, self.refuse, self.seconds = app, most_bytes, refuse, seconds
        self._held = Counter[str]()  # bytes of each key's bodies that are read or answered

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        held = _Held(scope.get("state", {}).get("key", ANONYMOUS))
        try:
            await self._read_and_answer(scope, held, receive, send)
        finally:
            self._held[held.key] -= held.size
            if not self._held[held.key]:
                del self._held[held.key]

    async def _read_and_answer(self, scope: Scope, held: "_Held", receive: Receive, send: Send) -> None:
        try:
            async with asyncio.timeout(self.seconds):
                body = await self._body(scope, held, receive)
            if body:
                body = self._readable(dict(scope["headers"]), body)
                held.size += len(body)
                self._held[held.key] += len(body)
        except TimeoutError:
            late = TooSlow(f"The body did not arrive within {self.seconds:g} seconds.")
            await self.refuse(late, scope, receive, send)
            return
        except Refusal as refusal:  # what still comes of the body is thrown away by the server
            await self.refuse(refusal, scope, receive, send)
            return
        if body is not None:
            scope.setdefault("state", {})["body"] = body  # for the log, where it asks for texts
            await self._answer(scope, body, receive, send)

    async def _body(self, scope: Scope, held: "_Held", receive: Receive) -> bytes | None:
        """None where the client has gone. Raises TooLarge, as soon as it is known, and Unavailable."""
        announced = dict(scope["headers"]).get(b"content-length", b"")
        self._require(int(announced[:_MOST_DIGITS]) if announced.isdigit() else 0)
        parts = []
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            parts.append(message.get("body", b""))
            held.size += len(parts[-1])
            self._held[held.key] += len(parts[-1])
            self._require(held.size)
            self._require_room(held.key)
            if not message.get("more_body"):
                return b"".join(parts)

    def _readable(self, headers: Mapping[bytes, bytes], body: bytes) -> bytes:
        """Without its content-encoding. Raises UnreadableBody, TooLarge, InvalidRequest."""
        charset = _CHARSET.search(headers.get(b"content-type", b"").decode("latin-1"))
        if charset is not None and charset[1].lower() not in _CHARSETS:
            raise UnreadableBody(f"The body's charset is {charset[1]!r}: JSON is read in UTF-8.")
        coding = headers.get(b"content-encoding", b"").decode("latin-1").strip().lower()
        if coding in ("", "identity"):
            return body
        if coding not in _CODINGS:
            raise UnreadableBody(
                f"The body's content-encoding is {coding[:80]!r}: gzip and deflate are read here, or none."
            )
        bits = _CODINGS[coding]
        if coding == "deflate" and int.from_bytes(body[:2]) % 31:
            bits = -zlib.MAX_WBITS  # without zlib's two bytes in front, as some clients send it
        reader = zlib.decompressobj(bits)
        try:
            found = reader.decompress(body, self.most_bytes + 1)
        except zlib.error as error:
            raise InvalidRequest(
                f"The body can't be read as {coding}, which it says it is: {error}."
            ) from None
        self._require(len(found))
        if not reader.eof or reader.unused_data:
            what = "more follows its end" if reader.eof else "it is cut short"
            raise InvalidRequest(f"The body can't be read as {coding}, which it says it is: {what}.")
        return found

    def _require(self, size: int) -> None:
        if size > self.most_bytes:
            raise TooLarge(
                f"The body has {size:,} bytes or more; this service takes {self.most_bytes:,}. "
                "Send it in parts."
            )

    def _require_room(self, key: str) -> None:
        mine = self._held[key]
        most = (self.most_bytes * _BODIES - self._held.total() + mine) // 2
        if mine > most:
            whose = " of this key" if key else ""
            raise Unavailable(
                f"The requests{whose} that are open have {mine:,} bytes; this service holds {most:,} at a "
                "time now. Come back in a second.",
                1.0,
            )

    async def _answer(self, scope: Scope, body: bytes, receive: Receive, send: Send) -> None:
        left = [{"type": "http.request", "body": body, "more_body": False}]
        gone = asyncio.Event()

        async def read() -> Message:
            if left:
                return left.pop()
            await gone.wait()
            return {"type": "http.disconnect"}

        async def watch(work: "asyncio.Task[None]") -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            gone.set()
            work.cancel()

        work = asyncio.ensure_future(self.app(scope, read, send))
        watching = asyncio.ensure_future(watch(work))
        try:
            await asyncio.wait({work})
        except asyncio.CancelledError:  # the time of a stopping service is over
            work.cancel()
            await asyncio.wait({work})
            if work.cancelled():  # else it was answered at the last moment
                lost = Unavailable(
                    "The service stopped before this was answered. Send it to another one.", 1.0
                )
                await self.refuse(lost, scope, receive, send)
        finally:
            watching.cancel()
            work.cancel()
        if not work.cancelled():
            work.result()
