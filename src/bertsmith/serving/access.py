"""Nobody without a key gets further than the health of the service and the page's own files."""

from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from bertsmith.serving.keys import Keys
from bertsmith.serving.refusals import Refusal

_PUBLIC = ("/health", "/health/live", "/health/ready", "/ping", "/")
_PAGE = "/page/static/"  # what is there, and at /, is in the package


class Access:
    """An ASGI application around another. `refuse` sends a refusal that comes before any route."""

    def __init__(self, app: ASGIApp, keys: Keys, refuse: Any) -> None:
        self.app, self.keys, self.refuse = app, keys, refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not self._is_public(scope):
            given = dict(scope["headers"]).get(b"authorization", b"").decode("latin-1")
            try:
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
