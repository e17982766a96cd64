"""Callers whom the LLM has answered of late. A student answers nobody else: whether a key is good, only the
provider knows.

In memory, as salted digests.
"""

import hashlib
import secrets
import time
from collections.abc import Mapping

_NAMES = (b"authorization", b"x-api-key", b"api-key", b"openai-organization", b"openai-project")
_SECONDS = 3600.0  # after which a caller is the LLM's once more: keys are withdrawn
_MOST = 10_000  # callers


class KnownKeys:
    """By the headers that say who asks."""

    def __init__(self, seconds: float = _SECONDS) -> None:
        self.seconds = seconds
        self._salt = secrets.token_bytes(16)
        self._until: dict[bytes, float] = {}

    def has(self, headers: Mapping[bytes, bytes]) -> bool:
        """The LLM has answered this caller within these seconds."""
        return self._until.get(self._digest(headers), 0.0) > time.monotonic()

    def note(self, headers: Mapping[bytes, bytes], status: int) -> None:
        """What the LLM's answer had as its status."""
        digest = self._digest(headers)
        if status == 200:
            if len(self._until) >= _MOST:
                self._until.clear()
            self._until[digest] = time.monotonic() + self.seconds
        elif status in (401, 403):
            self._until.pop(digest, None)

    def _digest(self, headers: Mapping[bytes, bytes]) -> bytes:
        parts = b"\0".join(headers.get(name, b"") for name in _NAMES)
        return hashlib.blake2b(parts, key=self._salt, digest_size=16).digest()
