"""A request's body is read before anything else is done: within a size, and within a time.

A client that goes away meanwhile, or while it waits for its answer, ends its request.
"""

import asyncio
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bertsmith.serving.refusals import Refusal, TooLarge, TooSlow, Unavailable

_SECONDS = 30.0  # for all of a body
_MOST_DIGITS = 18  # of a size: Python refuses to read thousands of them


class BodyReading:
    """An ASGI application around another. `refuse` sends a refusal that comes before any route."""

    def __init__(self, app: ASGIApp, most_bytes: int, refuse: Any, seconds: float = _SECONDS) -> None:
        self.app, self.most_bytes, self.refuse, self.seconds = app, most_bytes, refuse, seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        try:
            async with asyncio.timeout(self.seconds):
                body = await self._body(scope, receive)
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

    async def _body(self, scope: Scope, receive: Receive) -> bytes | None:
        """None where the client has gone. Raises TooLarge, as soon as it is known."""
        announced = dict(scope["headers"]).get(b"content-length", b"")
        self._require(int(announced[:_MOST_DIGITS]) if announced.isdigit() else 0)
        parts, size = [], 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            self._require(size)
            if not message.get("more_body"):
                return b"".join(parts)

    def _require(self, size: int) -> None:
        if size > self.most_bytes:
            raise TooLarge(
                f"The body has {size:,} bytes or more; this service takes {self.most_bytes:,}. "
                "Send it in parts."
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
            lost = Unavailable("The service stopped before this was answered. Send it to another one.", 1.0)
            await self.refuse(lost, scope, receive, send)
        finally:
            watching.cancel()
            work.cancel()
        if not work.cancelled():
            work.result()
