"""The mirror's page at /bertsmith/: its files, the state that it shows, and the changes that it allows.

GET  /bertsmith/            the page, and below /bertsmith/page/ its files, which hold nothing of the store
GET  /bertsmith/state       everything that the page shows, as JSON
POST /bertsmith/stages      {"version", "revision", "move"}, "move" being one of `MOVES`

Without a file of keys only this machine is let in: both addresses must be local, with no proxy between. A
proxy that adds no headers can't be detected, so behind any proxy a file of keys is needed. Another site's
page in a browser on this machine can neither read the state nor change a mode: the Host must be this
machine's (against DNS rebinding), and a change must come from the mirror's own page or from no page at all.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import orjson
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as NoConnection
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.types import Receive, Scope, Send

from bertsmith.errors import BertsmithError
from bertsmith.mirror.answering.judging import MOVES, apply_move, change_stage
from bertsmith.mirror.answering.stages import Stage
from bertsmith.mirror.database import mask_password
from bertsmith.mirror.page.state import StateReader
from bertsmith.mirror.settings import MirrorSettings
from bertsmith.serving import LOG
from bertsmith.serving.admission import ApiKeys, Client, is_loopback
from bertsmith.serving.page import FOLDERS, HEADERS, MEDIA_TYPES
from bertsmith.serving.refusals import (
    InvalidRequest,
    PermissionDeniedError,
    Refusal,
    RequestTooLarge,
    ServiceUnavailable,
    UnknownModel,
)

ROOT = "/bertsmith/"
_FOLDERS = (*FOLDERS, Path(__file__).parent / "static")
_MAX_BODY_BYTES = 4096  # of the body of a move
_CACHE_FACTOR = 5  # a state that took one second to compute is kept for five
_PROXY_HEADERS = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via")
_LOCAL_ONLY = (
    "This page is shown on this machine alone. From elsewhere it takes a key: start the mirror with "
    "--page-keys-file, or come through a tunnel, such as ssh -L 8100:127.0.0.1:8100."
)


def is_of_page(path: str) -> bool:
    """Whether a path belongs to the mirror itself, so that it isn't relayed."""
    return path.startswith(ROOT) or path == ROOT.rstrip("/")


class StageConflict(Refusal):
    """The mode was changed by someone else since the client read it."""

    status, code = 409, "changed_meanwhile"


class MirrorPage:
    """The page as an ASGI application. `running` returns the status of this process, as JSON."""

    def __init__(
        self, settings: MirrorSettings, reader: StateReader, running: Callable[[], Mapping[str, Any]]
    ) -> None:
        """Raises InputError for a file of keys that can't be read."""
        self.settings, self.reader, self.running = settings, reader, running
        self.keys = ApiKeys(settings.page_keys_file)
        self.files = {path.name: path for folder in _FOLDERS for path in sorted(folder.iterdir())}
        self._state: dict[str, Any] = {}
        self._until = 0.0
        self._state_lock = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            response = await self._answer(request)
        except Refusal as refusal:
            body = {"error": {"code": refusal.code, "message": refusal.message}}
            response = _json(body, refusal.status)
        except ClientDisconnect:
            return
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        path, is_read = request.url.path, request.method in ("GET", "HEAD")
        if is_read and path == ROOT.rstrip("/"):
            return RedirectResponse("bertsmith/")  # relative: a proxy may have put it under another path
        if is_read and path == ROOT:
            return self._file("mirror.html")
        if is_read and path.startswith(ROOT + "page/"):
            return self._file(path.removeprefix(ROOT + "page/"))
        if is_read and path == ROOT + "state":
            return await self._answer_state(request)
        if not is_read and path == ROOT + "stages":
            return await self._answer_move(request)
        raise UnknownModel(f"The mirror has no {request.method} {path[:80]} of its own.")

    def _file(self, name: str) -> Response:
        if name not in self.files:
            raise UnknownModel(f"The page has no file {name[:80]!r}.")
        path = self.files[name]
        headers = HEADERS | {"content-type": MEDIA_TYPES[path.suffix]}
        return Response(path.read_bytes(), headers=headers)

    async def _answer_state(self, request: Request) -> Response:
        """Answers with the state. It is computed once for all clients, and kept the longer, the longer it
        took.
        """
        client = authenticate(request, self.keys)
        texts = self.settings.page_texts
        async with self._state_lock:
            if (began := time.monotonic()) >= self._until:
                try:
                    self._state = await asyncio.to_thread(self.reader.state, has_texts=texts)
                except (DBAPIError, NoConnection) as error:
                    LOG.error("the page: the store can't be read: %s", type(error).__name__)
                    message = "The store can't be read just now. The mirror goes on relaying."
                    raise ServiceUnavailable(message) from None
                now = time.monotonic()
                self._until = now + _CACHE_FACTOR * (now - began)
            state = self._state
        own = {
            "running": self.running(),
            "store": mask_password(self.settings.store),
            "may_act": client.admin,
            "has_texts": texts,
        }
        return _json(state | own)

    async def _answer_move(self, request: Request) -> Response:
        client = authenticate(request, self.keys)
        require_own_page(request, client)
        version, revision, move = await _read_move(request)
        try:
            after = await asyncio.to_thread(self._apply_move, version, revision, move, client.name)
        except BertsmithError as error:
            raise InvalidRequest(str(error)) from None
        except (DBAPIError, NoConnection):
            raise ServiceUnavailable("The store can't be written just now. Nothing was changed.") from None
        finally:
            self._until = 0.0
        LOG.warning("version %s: %s on the page; now %s", version, move, after.mode)
        return _json(vars(after))

    def _apply_move(self, version: str, revision: int, move: str, who: str) -> Stage:
        stages = self.reader.stages
        before = stages.stages().get(version)
        if before is None:
            raise InvalidRequest(f"There is no version {version!r} in the store.")
        if before.revision != revision:
            raise StageConflict("The mode was changed meanwhile. Look again before you decide.")
        after = apply_move(stages, before, move, self.settings.canary_share)
        change_stage(stages, before, after, f"on the page{f', by {who}' if who else ''}")
        return after


async def _read_move(request: Request) -> tuple[str, int, str]:
    """Reads the version, its revision and the move of the body. Raises InvalidRequest, RequestTooLarge."""
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > _MAX_BODY_BYTES:
            raise RequestTooLarge(f"Expected at most {_MAX_BODY_BYTES} bytes.")
    try:
        values = orjson.loads(body)
        version, revision, move = values["version"], values["revision"], values["move"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        raise InvalidRequest('Expected JSON: {"version": …, "revision": …, "move": …}.') from None
    is_valid = isinstance(version, str) and type(revision) is int and isinstance(move, str) and move in MOVES
    if not is_valid:
        raise InvalidRequest(f"Expected a version, its revision, and a move: {', '.join(MOVES)}.")
    return version, revision, move


def _json(body: Any, status: int = 200) -> Response:
    headers = HEADERS | {"content-type": "application/json", "cache-control": "no-store"}
    return Response(orjson.dumps(body, option=orjson.OPT_NON_STR_KEYS), status, headers)


def authenticate(request: Request, keys: ApiKeys) -> Client:
    """The client of a request, by its key or as this machine's user. Raises Refusal."""
    if keys.path is not None:
        return keys.find_client(request.headers.get("authorization", ""))
    if not _is_local(request):
        raise PermissionDeniedError(_LOCAL_ONLY)
    return Client("", admin=True)


def require_own_page(request: Request, client: Client) -> None:
    """Requires a client who may change modes, on the mirror's own page. Raises PermissionDeniedError."""
    if not client.admin:
        raise PermissionDeniedError(
            f"The key {client.name} may look, and not change modes. It takes one with 'admin'."
        )
    headers = request.headers
    if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise PermissionDeniedError("Expected content-type: application/json.")
    origin, site = headers.get("origin"), headers.get("sec-fetch-site", "same-origin")
    if site != "same-origin" or (origin is not None and urlsplit(origin).netloc != headers.get("host")):
        raise PermissionDeniedError(
            "A mode can be changed from the mirror's own page only, not from another site's."
        )


def _is_local(request: Request) -> bool:
    if request.client is None or any(name in request.headers for name in _PROXY_HEADERS):
        return False
    if request.scope.get("http_version") == "1.0":  # as nginx's proxy_pass speaks, and no browser
        return False
    try:
        host = urlsplit(f"//{request.headers.get('host', '')}").hostname or ""
    except ValueError:
        return False
    return is_loopback(request.client.host) and is_loopback(host)
