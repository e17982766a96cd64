"""Chooses the documents of a corpus: removes duplicates and holds out a share of the rest.

Of equal documents the first in source order is kept, and then the first of nearly equal ones. Similarity is
estimated from MinHash signatures of 448 bytes (Broder 1997). A document is the set of its runs of five words,
in Chinese and Japanese of five characters. For each of 112 hash functions the signature holds the smallest
hash of the set; the share of equal entries of two signatures estimates the Jaccard similarity of their sets,
with a standard deviation of at most 0.05. Fourteen bands of eight entries are FineWeb's numbers (Penedo et
al. 2024): of pairs with similarity 0.8, 92 % agree in some whole band; with 0.9, all but one in 2,000.

Memory is 32 bytes of facts per document, and three times its 8-byte key while a band is sorted. Band keys and
signatures are on disk; one band is in memory at a time.

D documents; W words of a document, S = W - 4 runs of words.
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

# 32 bytes per document: all that is kept in memory
FACTS = np.dtype(
    [("key", "u8"), ("bytes", "u8"), ("source", "u4"), ("sentences", "u4"), ("words", "u4")], align=True
)
Facts = npt.NDArray[np.void]

RUN = 5  # words
BANDS, ROWS = 14, 8
HASHES = BANDS * ROWS
RUNS_AT_A_TIME = 512  # 512 x 112 hashes of four bytes stay in the second-level cache
COMPARED_AT_A_TIME = 4096  # signatures: 2 MB
LONGEST_WORD = 20  # mean characters; above it, as in Tibetan, characters are taken for words

_generator = np.random.Generator(np.random.Philox(key=1997))
_MULTIPLIERS: UInt32s = _generator.integers(0, 1 << 32, HASHES, dtype=np.uint32) | np.uint32(1)
_OFFSETS: UInt32s = _generator.integers(0, 1 << 32, HASHES, dtype=np.uint32)
_RUN_WEIGHTS: UInt64s = _generator.integers(0, 1 << 64, RUN, dtype=np.uint64) | np.uint64(1)
_BAND_WEIGHTS: UInt64s = _generator.integers(0, 1 << 64, ROWS, dtype=np.uint64) | np.uint64(1)


@dataclass(frozen=True)
class DocumentSelection:
    """What becomes of each document with text, as masks (D,)."""

    exact_duplicates: Mask
    near_duplicates: Mask
    heldout: Mask  # a subset of `kept`

    @property
    def kept(self) -> Mask:
        """(D,) the documents of either split: those that are no duplicates."""
        return ~(self.exact_duplicates | self.near_duplicates)

    @property
    def splits(self) -> dict[Split, Mask]:
        """The documents of each split, as masks (D,)."""
        return {"train": self.kept & ~self.heldout, "heldout": self.heldout}


def select_documents(
    facts: Facts,
    signatures: "SignatureFiles",
    settings: CorpusSettings,
    report: Progress,
) -> DocumentSelection:
    """Drops equal documents, then nearly equal ones, then holds out a share of the rest.

    `facts` (D,) are FACTS; `signatures` are those of the same documents. `report` is called after each band.
    """
    keys = np.ascontiguousarray(facts["key"])
    distinct = mark_first_of_equal(keys)
    kept = distinct
    if settings.near_duplicates:
        kept = signatures.mark_first_of_similar(
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
    """(D,) True for `kept` documents whose key, as a fraction of 2⁶⁴, is below `share`.

    So the split of a document depends on its own text alone and doesn't change when sources are added; a
    larger share holds out the same documents and more. If a small corpus has none below, the document with
    the lowest key is held out: a run needs something to be evaluated on.
    """
    chosen: Mask = kept & (keys < np.uint64(share * 2.0**64))
    if share > 0 and not chosen.any() and kept.sum() > 1:
        documents = np.flatnonzero(kept)
        chosen[documents[np.argmin(keys[documents])]] = True
    return chosen


class SignatureFiles:
    """The signatures of all documents in order, on disk: whole ones, and the keys of each band."""

    def __init__(self, folder: Path) -> None:
        self._signatures = folder / "signatures"
        self._bands = [folder / f"band-{band}" for band in range(BANDS)]

    def append(self, signatures: UInt32s) -> None:
        """Appends the signatures (d, 112) of the next d documents."""
        _append(self._signatures, signatures)
        for path, keys in zip(self._bands, compute_band_keys(signatures).T):
            _append(path, np.ascontiguousarray(keys))

    def mark_first_of_similar(
        self, alive: Mask, threshold: float, finished: Callable[[int], None] = lambda bands: None
    ) -> Mask:
        """(D,) `alive` without the documents whose similarity to an earlier one is at least `threshold`.

        Two documents that agree in a band and are both still alive are compared by their whole signatures. So
        no two documents of the result agree in a band and reach the threshold, however similarities are
        chained. `finished` is called with the number of bands that are done, of 14.
        """
        alive = alive.copy()
        if not alive.any():
            return alive
        signatures = np.memmap(self._signatures, np.uint32, "r").reshape(-1, HASHES)
        for done, path in enumerate(self._bands, start=1):
            for bucket in _find_buckets(np.fromfile(path, np.uint64), alive):
                alive[_find_similar(bucket, signatures, threshold)] = False
            finished(done)
        return alive


def _append(path: Path, values: npt.NDArray[np.unsignedinteger]) -> None:
    with path.open("ab") as file:
        file.write(values.tobytes())  # tofile doesn't say that the disk is full, only how much it wrote


def _find_buckets(keys: UInt64s, alive: Mask) -> Iterator[npt.NDArray[np.int64]]:
    """Each group of two or more documents that are `alive` (D,) and share a key: their indices in order."""
    documents = np.flatnonzero(alive)
    order = documents[np.argsort(keys[documents], kind="stable")]
    starts = np.flatnonzero(np.diff(keys[order], prepend=~keys[order[:1]]))
    sizes = np.diff(starts, append=len(order))
    for start, size in zip(starts[sizes > 1], sizes[sizes > 1]):
        yield order[start : start + size]


def _find_similar(bucket: npt.NDArray[np.int64], signatures: UInt32s, threshold: float) -> list[int]:
    """The documents of a bucket that are similar to an earlier one which is kept."""
    similar: list[int] = []
    while len(bucket) > 1:
        first, others = signatures[bucket[0]], bucket[1:]
        is_similar = np.concatenate(
            [
                (signatures[others[start : start + COMPARED_AT_A_TIME]] == first).mean(axis=1) >= threshold
                for start in range(0, len(others), COMPARED_AT_A_TIME)
            ]
        )
        similar += others[is_similar].tolist()
        bucket = others[~is_similar]
    return similar


def hash_text(words: list[str]) -> int:
    """A 64-bit hash of words in lower case: equal for texts that differ only in case and white space."""
    return int.from_bytes(blake2b(" ".join(words).encode(), digest_size=8).digest(), "little")


def compute_signature(words: Sequence[str]) -> UInt32s:
    """(112,) the smallest hashes over the runs of five words; with fewer words all of them are one run."""
    runs = _hash_runs(words)
    smallest = np.full(HASHES, np.iinfo(np.uint32).max, np.uint32)
    for start in range(0, len(runs), RUNS_AT_A_TIME):
        hashes = runs[start : start + RUNS_AT_A_TIME, None] * _MULTIPLIERS + _OFFSETS  # (S, 112)
        np.minimum(smallest, hashes.min(axis=0), out=smallest)
    return smallest


def _hash_runs(words: Sequence[str]) -> UInt32s:
    """(S,) a hash for each run of words, of the words' CRC-32: Python's own hash differs each time."""
    if words and sum(map(len, words)) > LONGEST_WORD * len(words):
        hashes = np.frombuffer("".join(words).encode("utf-32-le"), np.uint32).astype(np.uint64)
    else:
        hashes = np.fromiter((crc32(word.encode()) for word in words), np.uint64, len(words))
    run_count = max(1, len(hashes) - RUN + 1)
    sums = np.zeros(run_count, np.uint64)
    for position, weight in enumerate(_RUN_WEIGHTS):
        following = hashes[position : position + run_count]
        sums[: len(following)] += _mix_bits(following) * weight
    return (_mix_bits(sums) >> np.uint64(32)).astype(np.uint32)


def compute_band_keys(signatures: UInt32s) -> UInt64s:
    """(D, 112) signatures → (D, 14) keys, equal where all eight entries of a band are equal."""
    bands = signatures.reshape(-1, BANDS, ROWS).astype(np.uint64)
    return _mix_bits((bands * _BAND_WEIGHTS).sum(axis=-1, dtype=np.uint64))


def _mix_bits(values: UInt64s) -> UInt64s:
    """The finaliser of MurmurHash3: every bit of the input reaches every bit of the output."""
    values = (values ^ (values >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
    values = (values ^ (values >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
    return values ^ (values >> np.uint64(33))
