"""Callers whom the LLM has answered of late. A student answers nobody else: whether a key is good, only the
provider knows.

In memory, as salted digests.
"""

import hashlib
import secrets
import time
from collections.abc import Mapping

# Whatever header a provider or a gateway knows a caller by.
_NAMES = (
    b"authorization", b"x-api-key", b"api-key", b"ocp-apim-subscription-key", b"x-goog-api-key", b"cookie",
    b"openai-organization", b"openai-project",
)  # fmt: skip
_SECONDS = 3600.0  # after which a caller is the LLM's once more: keys are withdrawn
_MOST = 10_000  # callers


class KnownKeys:
    """By the headers that say who asks, and the query, which may hold a key too."""

    def __init__(self, seconds: float = _SECONDS) -> None:
        self.seconds = seconds
        self._salt = secrets.token_bytes(16)
        self._until: dict[bytes, float] = {}

    def has(self, headers: Mapping[bytes, bytes], query: bytes = b"") -> bool:
        """The LLM has answered this caller within these seconds."""
        return self._until.get(self._digest(headers, query), 0.0) > time.monotonic()

    def note(self, headers: Mapping[bytes, bytes], status: int, query: bytes = b"") -> None:
        """What the LLM's answer had as its status. Only calls that ask the LLM tell: other paths may be open
        to everybody.
        """
        digest = self._digest(headers, query)
        if status == 200:
            if len(self._until) >= _MOST:
                self._until.clear()
            self._until[digest] = time.monotonic() + self.seconds
        elif status in (401, 403):
            self._until.pop(digest, None)

    def _digest(self, headers: Mapping[bytes, bytes], query: bytes) -> bytes:
        parts = b"\0".join([*(headers.get(name, b"") for name in _NAMES), query])
        return hashlib.blake2b(parts, key=self._salt, digest_size=16).digest()
