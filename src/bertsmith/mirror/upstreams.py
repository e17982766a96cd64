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

from bertsmith.mirror.formats import anthropic, systemone
from bertsmith.mirror.relay_settings import RelaySettings

_VERSION, _MESSAGES = b"/v1", b"/messages"


class Target(NamedTuple):
    """`url` asks for the very bytes of the request; `host` is the header."""

    url: httpcore.URL
    host: bytes


class Upstreams:
    """By protocol."""

    def __init__(self, settings: RelaySettings) -> None:
        self._any = _read(settings.upstream)
        self._openai = _read(settings.openai_base_url)
        self._anthropic = _read(settings.anthropic_base_url)
        self._systemone = _read(settings.systemone_base_url)

    def target(self, path: bytes, query: bytes, headers: dict[bytes, bytes]) -> Target | None:
        """None where no upstream speaks the protocol."""
        found, has_version = self._of_protocol(path, headers)
        if found is None:
            return None
        base = found.target.rstrip(b"/")
        if path.startswith(_VERSION + b"/") and base and (has_version or base.endswith(_VERSION)):
            path = path.removeprefix(_VERSION)
        whole = base + path
        target = whole + b"?" + query if query else whole
        url = httpcore.URL(scheme=found.scheme, host=found.host, port=found.port, target=target)
        host = b"[%b]" % found.host if b":" in found.host else found.host  # of IPv6
        return Target(url, host if found.port is None else b"%b:%d" % (host, found.port))

    def _of_protocol(self, path: bytes, headers: dict[bytes, bytes]) -> tuple[httpcore.URL | None, bool]:
        """And whether the protocol's base URLs have the version in them, as OpenAI's do."""
        if path.endswith(systemone.PATH.encode()):
            return self._systemone or self._any, False
        is_messages = path == _MESSAGES or path.endswith(anthropic.PATH.encode())
        if is_messages or b"anthropic-version" in headers:
            return self._anthropic or self._any, False
        return self._openai or self._any, True


def _read(url: str | None) -> httpcore.URL | None:
    if url is None:
        return None
    found = httpx.URL(url)  # which knows of hosts in other scripts
    return httpcore.URL(scheme=found.raw_scheme, host=found.raw_host, port=found.port, target=found.raw_path)
