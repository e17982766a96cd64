"""A request's body on its way to the upstream, with a copy of it where it isn't too large for one."""

import asyncio
from collections.abc import AsyncIterator

from starlette.types import Message, Receive


class ClientGone(Exception):
    """Nobody waits for the answer any more."""


class RequestBody:
    """Read once: at once by `begin`, or piece by piece."""

    def __init__(self, receive: Receive, most: int) -> None:
        self.receive, self.most = receive, most
        self.passed = asyncio.Event()
        self._copy: bytearray | None = bytearray()
        self._first: list[Message] = []

    @property
    def content(self) -> bytes | None:
        """All of it; None before it has passed, and where it was larger than `most`."""
        return bytes(self._copy) if self._copy is not None and self.passed.is_set() else None

    async def begin(self, *, whole: bool = False) -> bytes | None:
        """The body, where it came at once; else None, and it is to be iterated over. With `whole` all of it
        is waited for, unless it is larger than `most`. Raises ClientGone.
        """
        self._first.append(await self._next())
        while whole and self._copy is not None and not self.passed.is_set():
            self._first.append(await self._next())
        if not self.passed.is_set():
            return None
        return b"".join(each.get("body", b"") for each in self._first)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for message in self._first or [await self._next()]:
            yield message.get("body", b"")
        while not self.passed.is_set():
            yield (await self._next()).get("body", b"")

    async def _next(self) -> Message:
        message = await self.receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        if self._copy is not None:
            self._copy += message.get("body", b"")
            if len(self._copy) > self.most:
                self._copy = None
        if not message.get("more_body"):
            self.passed.set()
        return message

    async def client_gone(self) -> None:
        """Returns when it is."""
        await self.passed.wait()
        while (await self.receive())["type"] != "http.disconnect":
            pass
