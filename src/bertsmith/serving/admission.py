"""Who gets in, and with how much: what is asked of a request before any route is.

    request → Access: a key, or a page of this machine → BodyReader: a body within a size and a time → route

Keys come from a file, are compared in constant time, and read again when the file changes:

    # NAME KEY [admin]
    website   7f0c…
    batch     sha256:9b74c9897bac770ffc029102a200c5de…
    operator  c4d1…  admin

A key may stand as its SHA-256, so that the file gives nothing away. `admin` may replace models.
"""

import asyncio
import hashlib
import hmac
import ipaddress
import re
import time
import zlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bertsmith.errors import InputError
from bertsmith.serving import LOG
from bertsmith.serving.page import PAGE_FILES
from bertsmith.serving.refusals import (
    AuthenticationError,
    InvalidRequest,
    PermissionDeniedError,
    Refusal,
    TooLarge,
    TooSlow,
    Unavailable,
    UnreadableBody,
)

ANONYMOUS = ""  # the key of a service without keys
_HASHED = re.compile(r"sha256:([0-9a-f]{64})", re.IGNORECASE)
_COMMENT = re.compile(r"(?:^|\s)#")  # a key may have one in it
_SHORTEST = 16  # characters
_LOOKED_AT = 1.0  # seconds between two looks at the file
_PUBLIC = ("/health", "/health/live", "/health/ready", "/ping", "/")
_SECONDS = 30.0  # for all of a body
_MOST_DIGITS = 18  # of a size: Python refuses to read thousands of them
_BODIES = 128  # of the largest size, for which there is room: slow clients must not fill the memory
_CODINGS = {"gzip": 16 + zlib.MAX_WBITS, "x-gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
_CHARSET = re.compile(r';\s*charset\s*=\s*"?([\w.:-]+)', re.IGNORECASE)
_CHARSETS = ("utf-8", "utf8", "us-ascii", "ascii")


@dataclass(frozen=True)
class Client:
    """Whose key it is, and whether it may replace models."""

    name: str
    admin: bool = False


class Keys:
    """Without a file everybody may ask, and nobody may replace models."""

    def __init__(self, path: Path | None) -> None:
        """Raises InputError naming file and line."""
        self.path = path
        self._clients: list[tuple[bytes, Client]] = []
        self._state: tuple[int, ...] = ()
        self._looked = 0.0
        if path is not None:
            self._state = _state(path)
            self._clients = _read(path)

    def client(self, authorization: str) -> Client:
        """Of the header's value, 'Bearer KEY'. Raises Unauthorized."""
        if self.path is None:
            return Client(ANONYMOUS)
        self._look()
        scheme, _, given = authorization.partition(" ")
        found = None
        digest = hashlib.sha256(given.strip(" \t").encode("latin-1", "replace")).digest()  # as its bytes came
        for known, client in self._clients:  # all of them, so that time tells nothing
            if hmac.compare_digest(known, digest):
                found = client
        if found is None or scheme.lower() != "bearer":
            raise AuthenticationError("This service needs a key: send 'Authorization: Bearer KEY'.")
        return found

    def _look(self) -> None:
        """Reads the file again where it changed; what can't be read leaves the keys as they are."""
        assert self.path is not None
        now = time.monotonic()
        if now - self._looked < _LOOKED_AT:
            return
        self._looked = now
        state = _state(self.path)
        if state == self._state:
            return
        self._state = state  # also of what can't be read: said once
        try:
            self._clients = _read(self.path)
            LOG.info("%d keys read again", len(self._clients))
        except InputError as error:
            LOG.error("the keys stay as they were: %s", error)


def _state(path: Path) -> tuple[int, ...]:
    """Another one where the file was changed or replaced; () where it is gone."""
    try:
        found = path.stat()
    except OSError:
        return ()
    return found.st_mtime_ns, found.st_size, found.st_ino


def _read(path: Path) -> list[tuple[bytes, Client]]:
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} can't be read as a file of keys: {error}.") from None
    found: dict[str, tuple[bytes, Client]] = {}
    owners: dict[bytes, str] = {}
    for number, line in enumerate(lines, 1):
        words = _COMMENT.split(line)[0].split()
        if not words:
            continue
        if len(words) not in (2, 3) or words[2:] not in ([], ["admin"]):
            raise InputError(f"{path}, line {number}: expected NAME KEY, or NAME KEY admin.")
        name, key = words[:2]
        hashed = _HASHED.fullmatch(key)
        if not hashed and key.lower().startswith("sha256:"):
            raise InputError(
                f"{path}, line {number}: expected sha256: and 64 hexadecimal digits as the key of {name}, "
                f"found {len(key) - 7} characters."
            )
        if not hashed and len(key) < _SHORTEST:
            raise InputError(
                f"{path}, line {number}: the key of {name} is shorter than {_SHORTEST} characters."
            )
        if name in found:
            raise InputError(f"{path}, line {number}: {name} has a key already.")
        digest = bytes.fromhex(hashed[1]) if hashed else hashlib.sha256(key.encode()).digest()
        if digest in owners:
            raise InputError(f"{path}, line {number}: {name} has the key of {owners[digest]}.")
        owners[digest] = name
        found[name] = digest, Client(name, len(words) == 3)
    if not found:
        raise InputError(f"{path} has no keys. A line is NAME KEY; without --keys-file everybody may ask.")
    return list(found.values())


class Access:
    """Nobody without a key gets further than the health of the service and the page's own files. Without
    keys, a service of this machine alone isn't asked by other people's web pages.

    An ASGI application around another, which listens on `host`. `refuse` sends a refusal that comes before
    any route.
    """

    def __init__(self, app: ASGIApp, keys: Keys, host: str, refuse: Any) -> None:
        self.app, self.keys, self.refuse = app, keys, refuse
        self._is_for_here = keys.path is None and is_loopback(host)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        path, reads = scope["path"], scope["method"] in ("GET", "HEAD")
        if not (reads and (path in _PUBLIC or path.startswith(PAGE_FILES))):
            headers = dict(scope["headers"])
            given = headers.get(b"authorization", b"").decode("latin-1")
            try:
                if self._is_for_here and b"origin" in headers:
                    _require_own_page(headers[b"origin"].decode("latin-1"))
                client = self.keys.client(given)
            except Refusal as refusal:
                await self.refuse(refusal, scope, receive, send)
                return
            state = scope.setdefault("state", {})
            state["key"], state["admin"] = client.name, client.admin
        await self.app(scope, receive, send)


def _require_own_page(origin: str) -> None:
    """Browsers say in Origin which page sends a body. One whose name was bound anew to this machine is of the
    same origin for them, over http, since nothing here speaks TLS; a page over https is behind a proxy that
    does. null is a page that hides its name. Raises Forbidden.
    """
    try:
        parts = urlsplit(origin)
        is_ours = parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts.hostname or ""))
    except ValueError:
        is_ours = False
    if not is_ours:
        raise PermissionDeniedError(
            f"This service answers web pages of its own machine, and {origin[:80]!r} is another's. Start it "
            "with --keys-file to be asked from there, or open its page as http://127.0.0.1."
        )


def is_loopback(host: str) -> bool:
    """Whether it is a name or an address of this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@dataclass
class _BodySize:
    """Bytes of one body, of a key."""

    key: str
    size: int = 0


class BodyReader:
    """A request's body is read before anything else is done: within a size, compressed or not, and a time. A
    client that goes away meanwhile, or while it waits for its answer, ends its request. One key's bodies take
    at most half of the room that the others' leave.

    An ASGI application around another. `refuse` sends a refusal that comes before any route.
    """

    def __init__(self, app: ASGIApp, most_bytes: int, refuse: Any, seconds: float = _SECONDS) -> None:
        self.app, self.most_bytes, self.refuse, self.seconds = app, most_bytes, refuse, seconds
        self._held = Counter[str]()  # bytes of each key's bodies that are read or answered

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        held = _BodySize(scope.get("state", {}).get("key", ANONYMOUS))
        try:
            await self._read_and_answer(scope, held, receive, send)
        finally:
            self._held[held.key] -= held.size
            if not self._held[held.key]:
                del self._held[held.key]

    async def _read_and_answer(self, scope: Scope, held: _BodySize, receive: Receive, send: Send) -> None:
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

    async def _body(self, scope: Scope, held: _BodySize, receive: Receive) -> bytes | None:
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
            mine = self._held[held.key]
            most = (self.most_bytes * _BODIES - self._held.total() + mine) // 2
            if mine > most:
                whose = " of this key" if held.key else ""
                raise Unavailable(
                    f"The requests{whose} that are open have {mine:,} bytes; this service holds {most:,} at "
                    "a time now. Come back in a second.",
                    1.0,
                )
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
