"""Authentication and limits on the body: the middleware that a request passes before its route.

    request → Access: a key, or a page of this machine → BodyReader: a body within a size and a time → route

Keys come from a file. They are compared in constant time, and read again when the file changes:

    # NAME KEY [admin]
    website   7f0c…
    batch     sha256:9b74c9897bac770ffc029102a200c5de…
    operator  c4d1…  admin

A key may be written as its SHA-256, so that the file gives nothing away. A key with `admin` may replace
models.
"""

import asyncio
import hashlib
import hmac
import ipaddress
import re
import time
import zlib
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bertsmith.errors import InputError
from bertsmith.serving import LOG
from bertsmith.serving.page import PAGE_FILES
from bertsmith.serving.proxies import route_path
from bertsmith.serving.refusals import (
    AuthenticationError,
    BodyTimeout,
    InvalidRequest,
    PermissionDeniedError,
    Refusal,
    RequestTooLarge,
    ServiceUnavailable,
    UnreadableBody,
)

ANONYMOUS = ""  # the key of a service without keys
_HASHED = re.compile(r"sha256:([0-9a-f]{64})", re.IGNORECASE)
_COMMENT = re.compile(r"(?:^|\s)#")  # a key itself may contain #
_MIN_KEY_LENGTH = 16  # characters
_RELOAD_SECONDS = 1.0  # seconds between two looks at the file
_PUBLIC = ("/health", "/health/live", "/health/ready", "/ping", "/")
_BODY_SECONDS = 30.0  # seconds for a whole body to arrive
_MOST_DIGITS = 18  # of content-length that are parsed: Python refuses to parse thousands
_MOST_BODIES = 128  # of the largest size that are held at a time: slow clients must not fill the memory
_CODINGS = {"gzip": 16 + zlib.MAX_WBITS, "x-gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
_CHARSET = re.compile(r';\s*charset\s*=\s*"?([\w.:-]+)', re.IGNORECASE)
_CHARSETS = ("utf-8", "utf8", "us-ascii", "ascii")


@dataclass(frozen=True)
class Client:
    """The owner of a key, and whether the key may replace models."""

    name: str
    admin: bool = False


class ApiKeys:
    """The keys of a service. Without a file everybody may send requests, and nobody may replace models."""

    def __init__(self, path: Path | None) -> None:
        """Reads the file of keys, if there is one. Raises InputError naming file and line."""
        self.path = path
        self._clients: list[tuple[bytes, Client]] = []
        self._file_state: tuple[int, ...] = ()
        self._last_check = 0.0
        if path is not None:
            self._file_state = _stat_file(path)
            self._clients = _read_keys(path)

    def find_client(self, authorization: str, api_key: str = "") -> Client:
        """The client whose key the Authorization header ('Bearer KEY') holds, or else the header api-key, as
        Azure's clients send it. Raises AuthenticationError.
        """
        if self.path is None:
            return Client(ANONYMOUS)
        self._reload_if_changed()
        scheme, _, key = authorization.partition(" ")
        if scheme.lower() != "bearer":  # none, or what a proxy in front asks for
            key = api_key
        owner = None
        digest = hashlib.sha256(key.strip(" \t").encode("latin-1", "replace")).digest()  # the header's bytes
        for known, client in self._clients:  # always all of them, so that the time gives nothing away
            if hmac.compare_digest(known, digest):
                owner = client
        if owner is None:
            raise AuthenticationError("This service needs a key: send 'Authorization: Bearer KEY'.")
        return owner

    def _reload_if_changed(self) -> None:
        """Reads the file again if it changed. A file that can't be read leaves the keys as they were."""
        assert self.path is not None
        now = time.monotonic()
        if now - self._last_check < _RELOAD_SECONDS:
            return
        self._last_check = now
        state = _stat_file(self.path)
        if state == self._file_state:
            return
        self._file_state = state  # of an unreadable file too, so that it is reported once
        try:
            self._clients = _read_keys(self.path)
            LOG.info("%d keys read again", len(self._clients))
        except InputError as error:
            LOG.error("the keys stay as they were: %s", error)


def _stat_file(path: Path) -> tuple[int, ...]:
    """Modification time, size and inode of a file, which differ after a change; () if it is gone."""
    try:
        status = path.stat()
    except OSError:
        return ()
    return status.st_mtime_ns, status.st_size, status.st_ino


def _read_keys(path: Path) -> list[tuple[bytes, Client]]:
    """The SHA-256 of each key and its owner. Raises InputError naming file and line."""
    try:
        lines = path.read_text("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} can't be read as a file of keys: {error}.") from None
    clients: dict[str, tuple[bytes, Client]] = {}
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
        if not hashed and len(key) < _MIN_KEY_LENGTH:
            raise InputError(
                f"{path}, line {number}: the key of {name} is shorter than {_MIN_KEY_LENGTH} characters."
            )
        if name in clients:
            raise InputError(f"{path}, line {number}: {name} has a key already.")
        digest = bytes.fromhex(hashed[1]) if hashed else hashlib.sha256(key.encode()).digest()
        if digest in owners:
            raise InputError(f"{path}, line {number}: {name} has the key of {owners[digest]}.")
        owners[digest] = name
        clients[name] = digest, Client(name, len(words) == 3)
    if not clients:
        raise InputError(f"{path} has no keys. A line is NAME KEY; without --keys-file everybody may ask.")
    return list(clients.values())


class Access:
    """ASGI middleware that admits only requests with a known key, except to the health routes and the page's
    own files. A service without keys that listens on this machine alone refuses other sites' web pages.

    `host` is the address that the service listens on, `origins` are those of web pages that may ask. `refuse`
    sends a refusal before any route is known.
    """

    def __init__(
        self, app: ASGIApp, keys: ApiKeys, host: str, refuse: Any, origins: Collection[str] = ()
    ) -> None:
        self.app, self.keys, self.refuse, self.origins = app, keys, refuse, origins
        self._is_local = keys.path is None and is_loopback(host)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        path, is_reading = route_path(scope), scope["method"] in ("GET", "HEAD")
        if not (is_reading and (path in _PUBLIC or path.startswith(PAGE_FILES))):
            headers = dict(scope["headers"])
            authorization, api_key, origin, host, site = (
                headers.get(name, b"").decode("latin-1")
                for name in (b"authorization", b"api-key", b"origin", b"host", b"sec-fetch-site")
            )
            try:
                if self._is_local and b"origin" in headers and origin not in self.origins:
                    _require_own_page(origin, host, site)
                client = self.keys.find_client(authorization, api_key)
            except Refusal as refusal:
                await self.refuse(refusal, scope, receive, send)
                return
            state = scope.setdefault("state", {})
            state["key"], state["admin"] = client.name, client.admin
        await self.app(scope, receive, send)


def _require_own_page(origin: str, host: str, site: str) -> None:
    """Raises PermissionDeniedError unless the Origin header names a page of this machine or of its proxy.

    An attacker may bind a host name to 127.0.0.1 (DNS rebinding): to the browser, the attacker's page and
    this service then have the same origin. So over http only loopback names pass. Over https the attacker has
    no certificate for that, and the operator's proxy serves the page: the browser says that page and service
    are one site (`site`, Sec-Fetch-Site, which no page can set; an old browser doesn't send it), or the proxy
    hands on its name (`host`). A page that hides its name sends "null".
    """
    try:
        parts = urlsplit(origin)
        is_proxied = parts.scheme == "https" and (site == "same-origin" if site else parts.netloc == host)
        is_ours = is_proxied or (parts.scheme in ("http", "https") and is_loopback(parts.hostname or ""))
    except ValueError:
        is_ours = False
    if not is_ours:
        raise PermissionDeniedError(
            f"This service answers web pages of its own machine, and {origin[:80]!r} is another's. Start it "
            "with --keys-file, or with --cors-origins, to be asked from there, or open its page as http://127.0.0.1."
        )


def is_loopback(host: str) -> bool:
    """Whether `host` is a name or an address that only this machine can reach."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@dataclass
class _BodySize:
    """The bytes of one request's body so far, which count for its key."""

    key: str
    size: int = 0


class BodyReader:
    """ASGI middleware that reads a request's whole body before the application is called.

    The body is limited in size (`most_bytes`, before and after decompression) and in time (`seconds`). A
    client that disconnects cancels its request. The bodies of one key may take at most half of the room that
    the other keys leave. `refuse` sends a refusal before any route is known.
    """

    def __init__(self, app: ASGIApp, most_bytes: int, refuse: Any, seconds: float = _BODY_SECONDS) -> None:
        self.app, self.most_bytes, self.refuse, self.seconds = app, most_bytes, refuse, seconds
        self._bytes_of_key = Counter[str]()  # bytes of each key's bodies that are read or answered

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        body_size = _BodySize(scope.get("state", {}).get("key", ANONYMOUS))
        try:
            await self._read_and_answer(scope, body_size, receive, send)
        finally:
            self._bytes_of_key[body_size.key] -= body_size.size
            if not self._bytes_of_key[body_size.key]:
                del self._bytes_of_key[body_size.key]

    async def _read_and_answer(
        self, scope: Scope, body_size: _BodySize, receive: Receive, send: Send
    ) -> None:
        """Reads and decodes the body, then calls the application, or sends the refusal of the body."""
        try:
            async with asyncio.timeout(self.seconds):
                body = await self._read_body(scope, body_size, receive)
            if body:
                body = self._decode_body(dict(scope["headers"]), body)
                body_size.size += len(body)
                self._bytes_of_key[body_size.key] += len(body)
        except TimeoutError:
            refusal = BodyTimeout(f"The body did not arrive within {self.seconds:g} seconds.")
            await self.refuse(refusal, scope, receive, send)
            return
        except Refusal as refusal:  # the server discards the rest of the body
            await self.refuse(refusal, scope, receive, send)
            return
        if body is not None:
            scope.setdefault("state", {})["body"] = body  # for the log, if it shall have texts
            await self._run_app(scope, body, receive, send)

    async def _read_body(self, scope: Scope, body_size: _BodySize, receive: Receive) -> bytes | None:
        """The body as sent; None if the client has gone. Raises RequestTooLarge, ServiceUnavailable."""
        announced = dict(scope["headers"]).get(b"content-length", b"")
        self._check_size(int(announced[:_MOST_DIGITS]) if announced.isdigit() else 0)
        parts = []
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            parts.append(message.get("body", b""))
            body_size.size += len(parts[-1])
            self._bytes_of_key[body_size.key] += len(parts[-1])
            self._check_size(body_size.size)
            key_bytes = self._bytes_of_key[body_size.key]
            most = (self.most_bytes * _MOST_BODIES - self._bytes_of_key.total() + key_bytes) // 2
            if key_bytes > most:
                whose = " of this key" if body_size.key else ""
                raise ServiceUnavailable(
                    f"The requests{whose} that are open have {key_bytes:,} bytes; this service holds "
                    f"{most:,} at a time now. Come back in a second.",
                    1.0,
                )
            if not message.get("more_body"):
                return b"".join(parts)

    def _decode_body(self, headers: Mapping[bytes, bytes], body: bytes) -> bytes:
        """The body without its content-encoding. Raises UnreadableBody, RequestTooLarge, InvalidRequest."""
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
            bits = -zlib.MAX_WBITS  # some clients send raw deflate, without the two bytes of zlib's header
        reader = zlib.decompressobj(bits)
        try:
            decoded = reader.decompress(body, self.most_bytes + 1)
        except zlib.error as error:
            raise InvalidRequest(
                f"The body can't be read as {coding}, which it says it is: {error}."
            ) from None
        self._check_size(len(decoded))
        if not reader.eof or reader.unused_data:
            what = "more follows its end" if reader.eof else "it is cut short"
            raise InvalidRequest(f"The body can't be read as {coding}, which it says it is: {what}.")
        return decoded

    def _check_size(self, size: int) -> None:
        if size > self.most_bytes:
            raise RequestTooLarge(
                f"The body has {size:,} bytes or more; this service takes {self.most_bytes:,}. "
                "Send it in parts."
            )

    async def _run_app(self, scope: Scope, body: bytes, receive: Receive, send: Send) -> None:
        """Calls the application with the whole body; cancels it if the client disconnects."""
        messages = [{"type": "http.request", "body": body, "more_body": False}]
        disconnected = asyncio.Event()

        async def read() -> Message:
            if messages:
                return messages.pop()
            await disconnected.wait()
            return {"type": "http.disconnect"}

        async def watch(work: "asyncio.Task[None]") -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            disconnected.set()
            work.cancel()

        work = asyncio.ensure_future(self.app(scope, read, send))
        watching = asyncio.ensure_future(watch(work))
        try:
            await asyncio.wait({work})
        except asyncio.CancelledError:  # the service stops and waits no longer
            work.cancel()
            await asyncio.wait({work})
            if work.cancelled():  # else the answer came at the last moment
                refusal = ServiceUnavailable(
                    "The service stopped before this was answered. Send it to another one.", 1.0
                )
                await self.refuse(refusal, scope, receive, send)
        finally:
            watching.cancel()
            work.cancel()
        if not work.cancelled():
            work.result()
