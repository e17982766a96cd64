"""A tokenised corpus as memory-mapped arrays, and the manifest that accounts for its files.

    T   tokens      S   sentences      D   documents

    STORE/manifest.json          counts, sizes, hashes, and the tokenizer and corpus it came from
    STORE/train/tokens.bin       (T,)    token ids, uint16 up to 65,536 pieces, else uint32
    STORE/train/sentences.bin    (S+1,)  int64: where each sentence starts in tokens; the last is T
    STORE/train/documents.bin    (D+1,)  int64: where each document starts in sentences; the last is S
    STORE/train/values.bin       (T, P)  float32, of stores of patches alone: each token's values
    STORE/heldout/...            the same

All little-endian, without headers: any language reads them. They hold no special tokens, no empty
sentence and no empty document.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from bertsmith.door import door, kind, optional, place
from bertsmith.errors import InputError, StoreError
from bertsmith.files import read_json, sha256
from bertsmith.progress import Progress
from bertsmith.text.corpus.manifest import Split
from bertsmith.text.tokens.tokenizer import Tokenizer
from bertsmith.validation import first_problem

SPLITS: tuple[Split, ...] = ("train", "heldout")
TOKENS, SENTENCES, DOCUMENTS = "tokens.bin", "sentences.bin", "documents.bin"
VALUES = "values.bin"
OFFSETS = "<i8"
CODEC_FILE = "sequences.json"  # beside the manifest of a store that `bertsmith sequences build` made
REMAKE = "Make the store again with `bertsmith corpus tokenize`."

TokenType = Literal["<u2", "<u4"]


class StoreEntry(BaseModel):
    """An unknown key is an error, and a value does not change once made."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class StoredFile(StoreEntry):
    """Size in bytes and hash of one file."""

    size: int
    sha256: str


class StoredSplit(StoreEntry):
    """How much text one split holds, and its files by name."""

    documents: int
    sentences: int
    tokens: int
    files: dict[str, StoredFile]

    @field_validator("files")
    @classmethod
    def _all_three(cls, files: dict[str, StoredFile]) -> dict[str, StoredFile]:
        if set(files) - {VALUES} != {TOKENS, SENTENCES, DOCUMENTS}:
            raise ValueError(f"expected {TOKENS}, {SENTENCES} and {DOCUMENTS}")
        return files


class StoreManifest(StoreEntry):
    """What lies in a store; nothing in it depends on the day or the machine.

    `checked_against`: the SHA-256 of each test file that the corpus was compared with; None in the stores of
    versions that didn't say.
    """

    format_version: Literal[1] = 1
    created_by: str
    dtype: TokenType
    vocab_size: int
    tokenizer_sha256: str
    corpus_sha256: str
    checked_against: tuple[str, ...] | None = None
    splits: dict[Split, StoredSplit]

    @field_validator("splits")
    @classmethod
    def _both(cls, splits: dict[Split, StoredSplit]) -> dict[Split, StoredSplit]:
        if set(splits) != set(SPLITS):
            raise ValueError(f"expected {' and '.join(SPLITS)}")
        return splits


def read_manifest(store: Path) -> StoreManifest:
    """Raises StoreError when the manifest is missing, cut, altered or of another version."""
    path = store / "manifest.json"
    if not path.is_file():
        raise StoreError(f"{store} is not a token store: it has no manifest.json. {REMAKE}")
    try:
        return StoreManifest.model_validate(read_json(path))
    except ValidationError as error:
        raise StoreError(
            f"{path} is not the manifest of a token store of this version: "
            f"{first_problem(error, StoreManifest)} {REMAKE}"
        ) from error
    except InputError as error:
        raise StoreError(f"{error} {REMAKE}") from error


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
        for name, file in entry.files.items():
            size = (path / name).stat().st_size if (path / name).is_file() else None
            if size != file.size:
                found = "no such file" if size is None else f"{size:,} bytes"
                raise StoreError(f"{path / name}: expected {file.size:,} bytes, found {found}. {REMAKE}")
        if tokenizer is not None:
            _require_tokenizer(path, manifest, tokenizer)
        return cls(
            path,
            split,
            manifest,
            tokens=_map_array(path / TOKENS, manifest.dtype, entry.tokens),
            sentence_starts=_map_array(path / SENTENCES, OFFSETS, entry.sentences + 1),
            document_starts=_map_array(path / DOCUMENTS, OFFSETS, entry.documents + 1),
            values=_map_values(path / VALUES, entry),
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
            split.files[name].sha256
            for split in self.manifest.splits.values()
            for name in sorted(split.files)
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


def is_store(path: Path) -> bool:
    """Whether a folder holds a token store, rather than a corpus."""
    return any((path / split).is_dir() for split in SPLITS)


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


def _map_values(path: Path, entry: StoredSplit) -> npt.NDArray[np.float32] | None:
    """As many a token as the file has bytes for."""
    if VALUES not in entry.files:
        return None
    size = entry.files[VALUES].size // 4
    if not entry.tokens or size % entry.tokens:
        return np.empty((0, 1), np.float32)
    return _map_array(path, "<f4", size).reshape(entry.tokens, -1)


def _map_array(path: Path, dtype: str, length: int) -> npt.NDArray[Any]:
    if path.stat().st_size != length * np.dtype(dtype).itemsize:
        raise StoreError(f"{path} does not hold the {length:,} values of its manifest. {REMAKE}")
    if length == 0:  # nothing can be mapped; an empty split has no tokens
        return np.empty(0, dtype)
    mapped = np.memmap(path, dtype, mode="r", shape=(length,))
    return mapped.view(np.ndarray)  # slices of a memmap are slow: pairs took 1.7 times as long
