"""Where a request goes: the path that the client asked for, on the upstream of its protocol.

client's base URL              upstream                        a request for    goes to
http://mirror/v1               https://api.openai.com/v1       /v1/responses    /v1/responses
http://mirror/v1               https://host/openai/v2          /v1/responses    /openai/v2/responses
http://mirror                  https://api.anthropic.com       /v1/messages     /v1/messages
http://mirror                  https://host/claude             /v1/messages     /claude/v1/messages
"""

from typing import NamedTuple

import httpcore
import httpx

from bertsmith.mirror.formats.registry import FORMATS, USUAL, format_of
from bertsmith.mirror.formats.wire_format import WireFormat
from bertsmith.mirror.relay_settings import RelaySettings

_VERSION = b"/v1"


class Target(NamedTuple):
    """`url` asks for the very bytes of the request; `host` is the header."""

    url: httpcore.URL
    host: bytes


class Upstreams:
    """By provider."""

    def __init__(self, settings: RelaySettings, formats: tuple[WireFormat, ...] = FORMATS) -> None:
        self._formats = formats
        self._any = _read(settings.upstream)
        addresses = {each.PROVIDER: f"{each.PROVIDER}_base_url" for each in formats}
        self._own = {name: _read(getattr(settings, key, None)) for name, key in addresses.items()}

    def target(self, path: bytes, query: bytes, headers: dict[bytes, bytes]) -> Target | None:
        """None where no upstream speaks the protocol."""
        form = self._form(path, headers)
        found = self._own[form.PROVIDER] or self._any
        if found is None:
            return None
        base = found.target.rstrip(b"/")
        if path.startswith(_VERSION + b"/") and base and (form.BASE_HAS_VERSION or base.endswith(_VERSION)):
            path = path.removeprefix(_VERSION)
        whole = base + path
        target = whole + b"?" + query if query else whole
        url = httpcore.URL(scheme=found.scheme, host=found.host, port=found.port, target=target)
        host = b"[%b]" % found.host if b":" in found.host else found.host  # of IPv6
        return Target(url, host if found.port is None else b"%b:%d" % (host, found.port))

    def _form(self, path: bytes, headers: dict[bytes, bytes]) -> WireFormat:
        """The one of its path; where that is unknown, or one that other providers have too, its header's."""
        form = format_of("POST", path.decode("latin-1"), self._formats) or USUAL
        if form.PROVIDER != USUAL.PROVIDER:
            return form
        return next((each for each in self._formats if each.HEADER in headers), form)


def _read(url: str | None) -> httpcore.URL | None:
    if url is None:
        return None
    found = httpx.URL(url)  # which knows of hosts in other scripts
    return httpcore.URL(scheme=found.raw_scheme, host=found.raw_host, port=found.port, target=found.raw_path)
