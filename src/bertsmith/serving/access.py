"""Nobody without a key gets further than the health of the service and the page's own files. Without keys, a
service of this machine alone isn't asked by other people's web pages.
"""

import ipaddress
from typing import Any
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from bertsmith.serving.keys import Keys
from bertsmith.serving.refusals import Forbidden, Refusal

_PUBLIC = ("/health", "/health/live", "/health/ready", "/ping", "/")
_PAGE = "/page/static/"  # what is there, and at /, is in the package


class Access:
    """An ASGI application around another, which listens on `host`. `refuse` sends a refusal that comes before
    any route.
    """

    def __init__(self, app: ASGIApp, keys: Keys, host: str, refuse: Any) -> None:
        self.app, self.keys, self.refuse = app, keys, refuse
        self._is_for_here = keys.path is None and is_loopback(host)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not self._is_public(scope):
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

    def _is_public(self, scope: Scope) -> bool:
        if scope["method"] not in ("GET", "HEAD"):
            return False
        path = scope["path"]
        return path in _PUBLIC or path.startswith(_PAGE)


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
        raise Forbidden(
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
