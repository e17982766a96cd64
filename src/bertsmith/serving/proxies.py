"""What stands between the service and those who ask it: reverse proxies, and web pages of other origins.

    request → ForwardedAddress: the prefix, and what a trusted proxy says of the address → CrossOrigin → …

With the setting root_path a proxy may pass on PREFIX/v1/NAME or, without the prefix, /v1/NAME: both are the
same here. X-Forwarded-Proto, -Host and -Prefix decide nothing but the addresses that the service writes, in
redirects and /openapi.json. Neither what is answered nor who may ask is decided by them: many proxies pass on
what a client made up, and a prefix that took parts off the path would lead past their rules for paths.
"""

import ipaddress
import re
from collections.abc import Collection, Mapping

from starlette.middleware.cors import CORSMiddleware
from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from bertsmith.serving.settings import PREFIX, ServingSettings

_HOST = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\])(?::\d{1,5})?")
_PREFLIGHT_SECONDS = 600  # for which a browser remembers the answer to a preflight
# Headers of an answer that a page of another origin may read.
_READABLE = (
    *("retry-after", "retry-after-ms", "x-request-id", "x-model", "x-model-version", "x-compute-tokens"),
    *("x-tokenization-time", "x-queue-time", "x-inference-time"),
)


def route_path(scope: Scope) -> str:
    """The path of a request as the routes know it, without the prefix of `ForwardedAddress`."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))


class ForwardedAddress:
    """ASGI middleware that takes the prefix of the settings off the path, and reads the outer address of the
    service from a trusted proxy's headers. A prefix that a header names was taken off by the proxy.
    """

    def __init__(self, app: ASGIApp, settings: ServingSettings) -> None:
        self.app, self.prefix = app, settings.root_path
        self._has_unix_socket = settings.uds is not None
        self._trusted = [ipaddress.ip_network(address, strict=False) for address in settings.trusted_proxies]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        outer, path = self.prefix, scope["path"]
        if self._trusts(scope.get("client")):
            outer = self._read_headers(scope) or outer
        if self.prefix and path == self.prefix and scope["method"] in ("GET", "HEAD"):
            # The page's addresses are relative to PREFIX/.
            await RedirectResponse(f"{outer}/", 308)(scope, receive, send)
            return
        if self.prefix and f"{path}/".startswith(f"{self.prefix}/"):
            path = path.removeprefix(self.prefix) or "/"
        scope["root_path"], scope["path"] = outer, outer + path
        await self.app(scope, receive, send)

    def _trusts(self, client: tuple[str, int] | None) -> bool:
        """Whether a request's peer is a proxy whose headers count: all who may open the Unix socket are."""
        if client is None:
            return self._has_unix_socket
        try:
            address = ipaddress.ip_address(client[0])
        except ValueError:
            return False
        address = getattr(address, "ipv4_mapped", None) or address
        return any(address in network for network in self._trusted)

    def _read_headers(self, scope: Scope) -> str:
        """The prefix that a proxy names, "" for none; scheme and host go into `scope`. Of several values the
        last is the nearest proxy's. What is no scheme, host or prefix is passed over.
        """
        named: Mapping[bytes, str] = {
            name: value.decode("latin-1").rpartition(",")[2].strip() for name, value in scope["headers"]
        }
        if (scheme := named.get(b"x-forwarded-proto", "").lower()) in ("http", "https"):
            scope["scheme"] = scheme
        if _HOST.fullmatch(host := named.get(b"x-forwarded-host", "")):
            others = [header for header in scope["headers"] if header[0] != b"host"]
            scope["headers"] = [(b"host", host.encode("ascii")), *others]
        prefix = named.get(b"x-forwarded-prefix", "").rstrip("/")
        return prefix if PREFIX.fullmatch(prefix) else ""


def first_part(path: str) -> str:
    """The part of a path before its second slash: v1 of /v1/models."""
    return path.removeprefix("/").partition("/")[0]


class CrossOrigin(CORSMiddleware):
    """ASGI middleware that lets a browser's pages of `origins` ask and read answers: it answers preflights,
    which have no key. A key is sent by the page's program, never by the browser on its own (no credentials).
    """

    def __init__(self, app: ASGIApp, origins: Collection[str]) -> None:
        super().__init__(
            app,
            allow_origins=origins,
            allow_methods=("GET", "HEAD", "POST"),
            allow_headers=("*",),
            allow_private_network=True,  # a public page may ask a service within the network
            expose_headers=_READABLE,
            max_age=_PREFLIGHT_SECONDS,
        )
