"""Who may ask: keys from a file, compared in constant time, read again when the file changes.

    # NAME KEY [admin]
    website   7f0c…
    batch     sha256:9b74c9897bac770ffc029102a200c5de…
    operator  c4d1…  admin

A key may stand as its SHA-256, so that the file gives nothing away. `admin` may replace models.
"""

import hashlib
import hmac
import re
import time
from dataclasses import dataclass
from pathlib import Path

from bertsmith.errors import InputError
from bertsmith.serving.json_log import LOG
from bertsmith.serving.refusals import Unauthorized

_HASHED = re.compile(r"sha256:([0-9a-f]{64})", re.IGNORECASE)
_COMMENT = re.compile(r"(?:^|\s)#")  # a key may have one in it
_SHORTEST = 16  # characters
_LOOKED_AT = 1.0  # seconds between two looks at the file


@dataclass(frozen=True)
class Client:
    """Whose key it is, and whether it may replace models."""

    name: str
    admin: bool = False


class Keys:
    """Without a file everybody may ask, and nobody may replace models."""

    def __init__(self, path: Path | None) -> None:
        """Raises InputError naming file and line."""
        self.path = path
        self._clients: list[tuple[bytes, Client]] = []
        self._state: tuple[int, ...] = ()
        self._looked = 0.0
        if path is not None:
            self._state = _state(path)
            self._clients = _read(path)

    def client(self, authorization: str) -> Client:
        """Of the header's value, 'Bearer KEY'. Raises Unauthorized."""
        if self.path is None:
            return Client("")
        self._look()
        scheme, _, given = authorization.partition(" ")
        found = None
        digest = hashlib.sha256(given.strip(" \t").encode("latin-1", "replace")).digest()  # as its bytes came
        for known, client in self._clients:  # all of them, so that time tells nothing
            if hmac.compare_digest(known, digest):
                found = client
        if found is None or scheme.lower() != "bearer":
            raise Unauthorized("This service needs a key: send 'Authorization: Bearer KEY'.")
        return found

    def _look(self) -> None:
        """Reads the file again where it changed; what can't be read leaves the keys as they are."""
        assert self.path is not None
        now = time.monotonic()
        if now - self._looked < _LOOKED_AT:
            return
        self._looked = now
        state = _state(self.path)
        if state == self._state:
            return
        self._state = state  # also of what can't be read: said once
        try:
            self._clients = _read(self.path)
            LOG.info("%d keys read again", len(self._clients))
        except InputError as error:
            LOG.error("the keys stay as they were: %s", error)


def _state(path: Path) -> tuple[int, ...]:
    """Another one where the file was changed or replaced; () where it is gone."""
    try:
        found = path.stat()
    except OSError:
        return ()
    return found.st_mtime_ns, found.st_size, found.st_ino


def _read(path: Path) -> list[tuple[bytes, Client]]:
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} can't be read as a file of keys: {error}.") from None
    found: dict[str, tuple[bytes, Client]] = {}
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
        if not hashed and len(key) < _SHORTEST:
            raise InputError(
                f"{path}, line {number}: the key of {name} is shorter than {_SHORTEST} characters."
            )
        if name in found:
            raise InputError(f"{path}, line {number}: {name} has a key already.")
        digest = bytes.fromhex(hashed[1]) if hashed else hashlib.sha256(key.encode()).digest()
        if digest in owners:
            raise InputError(f"{path}, line {number}: {name} has the key of {owners[digest]}.")
        owners[digest] = name
        found[name] = digest, Client(name, len(words) == 3)
    if not found:
        raise InputError(f"{path} has no keys. A line is NAME KEY; without --keys-file everybody may ask.")
    return list(found.values())
