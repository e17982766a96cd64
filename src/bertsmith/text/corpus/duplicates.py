"""Which documents stay: of equal and of nearly equal ones the first in source order.

Memory is 8 bytes a document for the key, and as much again, times three, while a band is sorted.
Band keys and signatures lie on disk: one band is in memory at a time.

D documents.
"""

from collections.abc import Callable, Iterator
from hashlib import blake2b
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bertsmith.text.corpus.minhash import BANDS, HASHES, UInt32s, UInt64s, band_keys

Mask = npt.NDArray[np.bool_]
COMPARED_AT_A_TIME = 4096  # signatures: 2 MB


def text_key(words: list[str]) -> int:
    """64 bits of the words in lower case: equal for texts that differ in case and white space only."""
    return int.from_bytes(blake2b(" ".join(words).encode(), digest_size=8).digest(), "little")


def first_of_equal(keys: UInt64s) -> Mask:
    """(D,) True where no earlier document has the same key."""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    first = np.ones(len(keys), dtype=np.bool_)
    first[order[1:]] = ordered[1:] != ordered[:-1]
    return first


class SignatureFiles:
    """Signatures of all documents in order, on disk: a file of whole ones, and one of keys for each band."""

    def __init__(self, folder: Path) -> None:
        self._signatures = folder / "signatures"
        self._bands = [folder / f"band-{band}" for band in range(BANDS)]

    def append(self, signatures: UInt32s) -> None:
        """(d, 112) signatures of the next documents."""
        _append(self._signatures, signatures)
        for path, keys in zip(self._bands, band_keys(signatures).T):
            _append(path, np.ascontiguousarray(keys))

    def first_of_similar(
        self, alive: Mask, threshold: float, finished: Callable[[int], None] = lambda bands: None
    ) -> Mask:
        """(D,) `alive` without the documents that resemble an earlier one at `threshold` or more.

        Two documents are compared when they agree in a band and both are still alive, by their whole
        signatures. So no two that stay agree in a band and reach the threshold, whichever way chains of
        resemblance run. `finished` hears how many of the 14 bands are done.
        """
        alive = alive.copy()
        if not alive.any():
            return alive
        signatures = np.memmap(self._signatures, np.uint32, "r").reshape(-1, HASHES)
        for done, path in enumerate(self._bands, start=1):
            for bucket in _buckets(np.fromfile(path, np.uint64), alive):
                alive[_followers(bucket, signatures, threshold)] = False
            finished(done)
        return alive


def _append(path: Path, values: npt.NDArray[np.unsignedinteger]) -> None:
    with path.open("ab") as file:
        values.tofile(file)


def _buckets(keys: UInt64s, alive: Mask) -> Iterator[npt.NDArray[np.int64]]:
    """Indices, in order, of each group of two and more living documents with one key."""
    documents = np.flatnonzero(alive)
    order = documents[np.argsort(keys[documents], kind="stable")]
    starts = np.flatnonzero(np.diff(keys[order], prepend=~keys[order[:1]]))
    sizes = np.diff(starts, append=len(order))
    for start, size in zip(starts[sizes > 1], sizes[sizes > 1]):
        yield order[start : start + size]


def _followers(bucket: npt.NDArray[np.int64], signatures: UInt32s, threshold: float) -> list[int]:
    """The documents of a bucket that resemble an earlier one of it which stays."""
    followers: list[int] = []
    while len(bucket) > 1:
        leader, rest = signatures[bucket[0]], bucket[1:]
        alike = np.concatenate(
            [
                (signatures[rest[start : start + COMPARED_AT_A_TIME]] == leader).mean(axis=1) >= threshold
                for start in range(0, len(rest), COMPARED_AT_A_TIME)
            ]
        )
        followers += rest[alike].tolist()
        bucket = rest[~alike]
    return followers
