"""Which documents stay, and which of these are held out.

Of equal documents the first in source order stays, then of nearly equal ones. How alike two are is known from
their MinHash signatures, 448 bytes each (Broder 1997). A document is the set of its runs of five words; of
Chinese and Japanese, characters. For each of 112 hash functions the signature keeps the smallest hash of the
set; the share of equal entries of two signatures estimates the Jaccard similarity of their sets, with a
standard deviation of at most 0.05. Fourteen bands of eight entries are FineWeb's numbers (Penedo et al.
2024): of pairs at similarity 0.8, 92 % agree in some whole band; at 0.9, all but one in 2,000.

Memory is 32 bytes of facts a document, and its 8-byte key three times more while a band is sorted. Band keys
and signatures lie on disk: one band is in memory at a time.

D documents; W words of one, S = W - 4 runs of words.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from zlib import crc32

import numpy as np
import numpy.typing as npt

from bertsmith.progress import Progress
from bertsmith.text.corpus.manifest import Split
from bertsmith.text.corpus_settings import CorpusSettings

UInt64s = npt.NDArray[np.uint64]
UInt32s = npt.NDArray[np.uint32]
Mask = npt.NDArray[np.bool_]

# 32 bytes a document: all that is kept of it in memory
FACTS = np.dtype(
    [("key", "u8"), ("bytes", "u8"), ("source", "u4"), ("sentences", "u4"), ("words", "u4")], align=True
)
Facts = npt.NDArray[np.void]

RUN = 5  # words
BANDS, ROWS = 14, 8
HASHES = BANDS * ROWS
RUNS_AT_A_TIME = 512  # 512 x 112 hashes of four bytes stay in the second-level cache
COMPARED_AT_A_TIME = 4096  # signatures: 2 MB
LONGEST_WORD = 20  # mean characters; beyond it, as in Thai, there are no spaces, and characters stand in

_generator = np.random.Generator(np.random.Philox(key=1997))
_MULTIPLIERS: UInt32s = _generator.integers(0, 1 << 32, HASHES, dtype=np.uint32) | np.uint32(1)
_OFFSETS: UInt32s = _generator.integers(0, 1 << 32, HASHES, dtype=np.uint32)
_RUN_WEIGHTS: UInt64s = _generator.integers(0, 1 << 64, RUN, dtype=np.uint64) | np.uint64(1)
_BAND_WEIGHTS: UInt64s = _generator.integers(0, 1 << 64, ROWS, dtype=np.uint64) | np.uint64(1)


@dataclass(frozen=True)
class DocumentSelection:
    """Masks (D,) over all documents with text."""

    exact_duplicates: Mask
    near_duplicates: Mask
    heldout: Mask  # part of kept

    @property
    def kept(self) -> Mask:
        """Documents that stay, in either split."""
        return ~(self.exact_duplicates | self.near_duplicates)

    @property
    def splits(self) -> dict[Split, Mask]:
        """The documents of each split."""
        return {"train": self.kept & ~self.heldout, "heldout": self.heldout}


def select_documents(
    facts: Facts,
    signatures: "SignatureFiles",
    settings: CorpusSettings,
    report: Progress,
) -> DocumentSelection:
    """Drops equal documents, then nearly equal ones, then holds out a share of those that stay."""
    keys = np.ascontiguousarray(facts["key"])
    distinct = mark_first_of_equal(keys)
    kept = distinct
    if settings.near_duplicates:
        kept = signatures.first_of_similar(
            distinct, settings.near_duplicate_threshold, lambda done: report(done, BANDS, "bands compared")
        )
    return DocumentSelection(~distinct, distinct & ~kept, choose_heldout(keys, kept, settings.heldout))


def mark_first_of_equal(keys: UInt64s) -> Mask:
    """(D,) True where no earlier document has the same key."""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    first = np.ones(len(keys), dtype=np.bool_)
    first[order[1:]] = ordered[1:] != ordered[:-1]
    return first


def choose_heldout(keys: UInt64s, kept: Mask, share: float) -> Mask:
    """(D,) the documents whose key, taken as a fraction of 2⁶⁴, is below `share`.

    So a document's side depends on its own text alone and stays when sources are added; a larger
    share holds out the same documents and more. Of a corpus too small to have any below, the lowest one
    is taken: a run needs something to be judged on.
    """
    chosen: Mask = kept & (keys < np.uint64(share * 2.0**64))
    if share > 0 and not chosen.any() and kept.sum() > 1:
        documents = np.flatnonzero(kept)
        chosen[documents[np.argmin(keys[documents])]] = True
    return chosen


class SignatureFiles:
    """Signatures of all documents in order, on disk: a file of whole ones, and one of keys for each band."""

    def __init__(self, folder: Path) -> None:
        self._signatures = folder / "signatures"
        self._bands = [folder / f"band-{band}" for band in range(BANDS)]

    def append(self, signatures: UInt32s) -> None:
        """(d, 112) signatures of the next documents."""
        _append(self._signatures, signatures)
        for path, keys in zip(self._bands, compute_band_keys(signatures).T):
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
            for bucket in _find_buckets(np.fromfile(path, np.uint64), alive):
                alive[_find_followers(bucket, signatures, threshold)] = False
            finished(done)
        return alive


def _append(path: Path, values: npt.NDArray[np.unsignedinteger]) -> None:
    with path.open("ab") as file:
        values.tofile(file)


def _find_buckets(keys: UInt64s, alive: Mask) -> Iterator[npt.NDArray[np.int64]]:
    """Indices, in order, of each group of two and more living documents with one key."""
    documents = np.flatnonzero(alive)
    order = documents[np.argsort(keys[documents], kind="stable")]
    starts = np.flatnonzero(np.diff(keys[order], prepend=~keys[order[:1]]))
    sizes = np.diff(starts, append=len(order))
    for start, size in zip(starts[sizes > 1], sizes[sizes > 1]):
        yield order[start : start + size]


def _find_followers(bucket: npt.NDArray[np.int64], signatures: UInt32s, threshold: float) -> list[int]:
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


def hash_text(words: list[str]) -> int:
    """64 bits of the words in lower case: equal for texts that differ in case and white space only."""
    return int.from_bytes(blake2b(" ".join(words).encode(), digest_size=8).digest(), "little")


def compute_signature(words: Sequence[str]) -> UInt32s:
    """(112,) smallest hashes of the runs of five words; of all words together when they are fewer."""
    runs = _hash_runs(words)
    smallest = np.full(HASHES, np.iinfo(np.uint32).max, np.uint32)
    for start in range(0, len(runs), RUNS_AT_A_TIME):
        hashes = runs[start : start + RUNS_AT_A_TIME, None] * _MULTIPLIERS + _OFFSETS  # (S, 112)
        np.minimum(smallest, hashes.min(axis=0), out=smallest)
    return smallest


def _hash_runs(spelt: Sequence[str]) -> UInt32s:
    """(S,) one hash a run. Words have CRC-32 as their hash, because Python's own differs from run to run."""
    if spelt and sum(map(len, spelt)) > LONGEST_WORD * len(spelt):
        words = np.frombuffer("".join(spelt).encode("utf-32-le"), np.uint32).astype(np.uint64)
    else:
        words = np.fromiter((crc32(word.encode()) for word in spelt), np.uint64, len(spelt))
    runs = max(1, len(words) - RUN + 1)
    mixed = np.zeros(runs, np.uint64)
    for position, weight in enumerate(_RUN_WEIGHTS):
        following = words[position : position + runs]
        mixed[: len(following)] += _mix_bits(following) * weight
    return (_mix_bits(mixed) >> np.uint64(32)).astype(np.uint32)


def compute_band_keys(signatures: UInt32s) -> UInt64s:
    """(D, 112) signatures -> (D, 14): equal where all eight entries of a band are."""
    bands = signatures.reshape(-1, BANDS, ROWS).astype(np.uint64)
    return _mix_bits((bands * _BAND_WEIGHTS).sum(axis=-1, dtype=np.uint64))


def _mix_bits(values: UInt64s) -> UInt64s:
    """The finaliser of MurmurHash3: every bit of the input reaches every bit of the output."""
    values = (values ^ (values >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
    values = (values ^ (values >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
    return values ^ (values >> np.uint64(33))
