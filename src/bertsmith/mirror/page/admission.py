"""Who may look at the mirror's page, and who may change something there.

Without keys only this machine: its address at both ends, and no proxy between. A proxy that says nothing of
itself can't be noticed: behind any proxy a file of keys is needed. A page of somebody else's that
is open in a browser here can neither read the state nor change a mode. The Host must be this machine's, for
names can be bound anew, and what changes something must come from our own page, or from no page at all.
"""

from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import Request

from bertsmith.serving.admission import Client, Keys, is_loopback
from bertsmith.serving.refusals import Forbidden

_FORWARDED = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via")
_HERE = (
    "This page is shown on this machine alone. From elsewhere it takes a key: start the mirror with "
    "--page-keys-file, or come through a tunnel, such as ssh -L 8100:127.0.0.1:8100."
)


def admitted(request: Request, keys: Keys) -> Client:
    """Raises Unauthorized or Forbidden."""
    if keys.path is not None:
        return keys.client(request.headers.get("authorization", ""))
    if not _is_local(request):
        raise Forbidden(_HERE)
    return Client("", admin=True)


def require_own_page(request: Request, client: Client) -> None:
    """Before something is changed. Raises Forbidden."""
    if not client.admin:
        raise Forbidden(f"The key {client.name} may look, and not change modes. It takes one with 'admin'.")
    headers = request.headers
    if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise Forbidden("Expected content-type: application/json.")
    origin, site = headers.get("origin"), headers.get("sec-fetch-site", "same-origin")
    if site != "same-origin" or (origin is not None and urlsplit(origin).netloc != headers.get("host")):
        raise Forbidden("A mode can be changed from the mirror's own page only, not from another site's.")


def _is_local(request: Request) -> bool:
    if request.client is None or any(name in request.headers for name in _FORWARDED):
        return False
    if request.scope.get("http_version") == "1.0":  # as nginx's proxy_pass speaks, and no browser
        return False
    return is_loopback(request.client.host) and is_loopback(_host(request.headers))


def _host(headers: Headers) -> str:
    try:
        return urlsplit(f"//{headers.get('host', '')}").hostname or ""
    except ValueError:
        return ""
