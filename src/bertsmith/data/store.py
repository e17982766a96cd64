"""A tokenised corpus as memory-mapped arrays; `store_manifest` describes the files.

T   tokens      S   sentences      D   documents
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bertsmith.data.store_manifest import (
    CODEC_FILE,
    DOCUMENTS,
    OFFSETS,
    REMAKE,
    SENTENCES,
    SPLITS,
    TOKENS,
    VALUES,
    StoredSplit,
    StoreManifest,
    read_manifest,
)
from bertsmith.door import door, kind, optional, place
from bertsmith.errors import StoreError
from bertsmith.files import sha256
from bertsmith.progress import Progress
from bertsmith.text.corpus.manifest import Split
from bertsmith.text.tokens.tokenizer import Tokenizer


@dataclass(frozen=True, eq=False)
class TokenStore:
    """One split of a tokenised corpus.

    Sentence s is `tokens[sentence_starts[s]:sentence_starts[s + 1]]`; document d has the sentences from
    `document_starts[d]` up to `document_starts[d + 1]`. The arrays are read-only memory maps: opening costs
    the same for any size, and what is sent to another process is the path.
    """

    path: Path
    split: Split
    manifest: StoreManifest
    tokens: npt.NDArray[np.uint16] | npt.NDArray[np.uint32]  # (T,)
    sentence_starts: npt.NDArray[np.int64]  # (S+1,)
    document_starts: npt.NDArray[np.int64]  # (D+1,)
    values: npt.NDArray[np.float32] | None = None  # (T, P) of patches

    @classmethod
    @door(path=place, tokenizer=optional(kind(Tokenizer)))
    def open(cls, path: Path | str, tokenizer: Tokenizer | None = None) -> "TokenStore":
        """Opens STORE/train or STORE/heldout in constant time, after checking the sizes of its files.

        Raises StoreError when a file is missing or has another size than the manifest says, or when the
        store was not made with `tokenizer`.
        """
        path = Path(path)
        split = next((split for split in SPLITS if split == path.name), None)
        if split is None:
            raise StoreError(
                f"{path} is not a split of a token store: expected {path}/train or {path}/heldout."
            )
        manifest = read_manifest(path.parent)
        entry = manifest.splits[split]
        _require_sizes(path, entry)
        if tokenizer is not None:
            _require_tokenizer(path, manifest, tokenizer)
        return cls(
            path,
            split,
            manifest,
            tokens=_mapped(path / TOKENS, manifest.dtype, entry.tokens),
            sentence_starts=_mapped(path / SENTENCES, OFFSETS, entry.sentences + 1),
            document_starts=_mapped(path / DOCUMENTS, OFFSETS, entry.documents + 1),
            values=_values(path / VALUES, entry),
        )

    def __len__(self) -> int:
        """D, the number of documents."""
        return len(self.document_starts) - 1

    def __reduce__(self) -> tuple[Any, ...]:
        return TokenStore.open, (self.path,)

    @property
    def vocab_size(self) -> int:
        """Pieces in the vocabulary; every token id is below."""
        return self.manifest.vocab_size

    @property
    def tokenizer_sha256(self) -> str:
        """Of the tokenizer that made the store (`Tokenizer.sha256`)."""
        return self.manifest.tokenizer_sha256

    @property
    def corpus_sha256(self) -> str:
        """Of the corpus's manifest, which in turn holds the hashes of its files."""
        return self.manifest.corpus_sha256

    @property
    def content_sha256(self) -> str:
        """Of all arrays of the store, this split's and the others'."""
        files = [
            each.files[name].sha256 for each in self.manifest.splits.values() for name in sorted(each.files)
        ]
        return hashlib.sha256(" ".join(files).encode()).hexdigest()

    def verify(self, progress: Progress | None = None) -> None:
        """Reads every byte of this split. Raises StoreError naming the file that was altered."""
        files = self.manifest.splits[self.split].files
        for done, (name, entry) in enumerate(files.items(), start=1):
            found = sha256(self.path / name)
            if found != entry.sha256:
                raise StoreError(
                    f"{self.path / name} was altered: expected SHA-256 {entry.sha256}, found {found}. "
                    f"{REMAKE}"
                )
            if progress is not None:
                progress(done, len(files), "files verified")


def _require_sizes(path: Path, entry: StoredSplit) -> None:
    for name, file in entry.files.items():
        size = (path / name).stat().st_size if (path / name).is_file() else None
        if size != file.size:
            found = "no such file" if size is None else f"{size:,} bytes"
            raise StoreError(f"{path / name}: expected {file.size:,} bytes, found {found}. {REMAKE}")


def _require_tokenizer(path: Path, manifest: StoreManifest, tokenizer: Tokenizer) -> None:
    """A vocabulary of the same size is not enough: its ids may mean other pieces."""
    if manifest.tokenizer_sha256 != tokenizer.sha256:
        remake = (
            "Make it with `bertsmith sequences build FILE --like STORE`, the store the model learned from."
            if (path.parent / CODEC_FILE).is_file()
            else REMAKE
        )
        raise StoreError(
            f"{path} was made with another tokenizer: expected SHA-256 {tokenizer.sha256} "
            f"({tokenizer.vocab_size:,} pieces), found {manifest.tokenizer_sha256} "
            f"({manifest.vocab_size:,} pieces). {remake}"
        )


def _values(path: Path, entry: StoredSplit) -> npt.NDArray[np.float32] | None:
    """As many a token as the file has bytes for."""
    if VALUES not in entry.files:
        return None
    size = entry.files[VALUES].size // 4
    if not entry.tokens or size % entry.tokens:
        return np.empty((0, 1), np.float32)
    return _mapped(path, "<f4", size).reshape(entry.tokens, -1)


def _mapped(path: Path, dtype: str, length: int) -> npt.NDArray[Any]:
    if path.stat().st_size != length * np.dtype(dtype).itemsize:
        raise StoreError(f"{path} does not hold the {length:,} values of its manifest. {REMAKE}")
    if length == 0:  # nothing can be mapped; an empty split has no tokens
        return np.empty(0, dtype)
    mapped = np.memmap(path, dtype, mode="r", shape=(length,))
    return mapped.view(np.ndarray)  # slices of a memmap are slow: pairs took 1.7 times as long
