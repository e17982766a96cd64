"""A token store: a tokenized corpus as memory-mapped arrays, and the manifest of its files.

    T   tokens      S   sentences      D   documents

    STORE/manifest.json          counts, sizes, hashes, and the tokenizer and corpus it came from
    STORE/train/tokens.bin       (T,)    token ids, uint16 for up to 65,536 tokens, else uint32
    STORE/train/sentences.bin    (S+1,)  int64: where each sentence starts in tokens; the last is T
    STORE/train/documents.bin    (D+1,)  int64: where each document starts in sentences; the last is S
    STORE/train/values.bin       (T, P)  float32, only in stores of rows with values: each token's values
    STORE/heldout/...            the same

All are little-endian and without headers, so that any language reads them. They contain no special tokens, no
empty sentence and no empty document.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from bertsmith.argument_checks import check_arguments, check_path, instance_of, optional
from bertsmith.errors import InputError, StoreError
from bertsmith.files import read_json, sha256
from bertsmith.progress import Progress
from bertsmith.text.corpus.manifest import Split
from bertsmith.text.tokens.tokenizer import Tokenizer
from bertsmith.validation import describe_problem

SPLITS: tuple[Split, ...] = ("train", "heldout")
TOKENS, SENTENCES, DOCUMENTS = "tokens.bin", "sentences.bin", "documents.bin"
VALUES = "values.bin"
OFFSETS = "<i8"
CODEC_FILE = "sequences.json"  # beside the manifest of a store that `bertsmith sequences build` made
REMAKE = "Make the store again with `bertsmith corpus tokenize`."

TokenType = Literal["<u2", "<u4"]


class StoreEntry(BaseModel):
    """The base of the manifest's parts: immutable, and an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class StoredFile(StoreEntry):
    """The size in bytes and the hash of one file."""

    size: int
    sha256: str


class StoredSplit(StoreEntry):
    """How much text one split has, and its files by name."""

    documents: int
    sentences: int
    tokens: int
    files: dict[str, StoredFile]

    @field_validator("files")
    @classmethod
    def _check_names(cls, files: dict[str, StoredFile]) -> dict[str, StoredFile]:
        if set(files) - {VALUES} != {TOKENS, SENTENCES, DOCUMENTS}:
            raise ValueError(f"expected {TOKENS}, {SENTENCES} and {DOCUMENTS}")
        return files


class StoreManifest(StoreEntry):
    """What a store contains; nothing in it depends on the date or the machine.

    `checked_against` has the SHA-256 of each test file that the corpus was checked against; None in stores of
    versions that didn't record it.
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
    def _check_splits(cls, splits: dict[Split, StoredSplit]) -> dict[Split, StoredSplit]:
        if set(splits) != set(SPLITS):
            raise ValueError(f"expected {' and '.join(SPLITS)}")
        return splits


def read_manifest(store: Path) -> StoreManifest:
    """The manifest of a store. Raises StoreError if it is missing, cut, altered or of another version."""
    path = store / "manifest.json"
    if not path.is_file():
        raise StoreError(f"{store} is not a token store: it has no manifest.json. {REMAKE}")
    try:
        return StoreManifest.model_validate(read_json(path))
    except ValidationError as error:
        raise StoreError(
            f"{path} is not the manifest of a token store of this version: "
            f"{describe_problem(error, StoreManifest)} {REMAKE}"
        ) from error
    except InputError as error:
        raise StoreError(f"{error} {REMAKE}") from error


@dataclass(frozen=True, eq=False)
class TokenStore:
    """One split of a tokenized corpus.

    Sentence s is `tokens[sentence_starts[s]:sentence_starts[s + 1]]`; document d has the sentences from
    `document_starts[d]` up to `document_starts[d + 1]`. The arrays are read-only memory maps: opening takes
    the same time for any size, and only the path is sent to another process.
    """

    path: Path
    split: Split
    manifest: StoreManifest
    tokens: npt.NDArray[np.uint16] | npt.NDArray[np.uint32]  # (T,)
    sentence_starts: npt.NDArray[np.int64]  # (S+1,)
    document_starts: npt.NDArray[np.int64]  # (D+1,)
    values: npt.NDArray[np.float32] | None = None  # (T, P) of patches

    @classmethod
    @check_arguments(path=check_path, tokenizer=optional(instance_of(Tokenizer)))
    def open(cls, path: Path | str, tokenizer: Tokenizer | None = None) -> "TokenStore":
        """Opens STORE/train or STORE/heldout in constant time, after checking the sizes of its files.

        Raises StoreError if a file is missing or has another size than the manifest says, or if the store was
        not made with `tokenizer`.
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
                actual = "no such file" if size is None else f"{size:,} bytes"
                raise StoreError(f"{path / name}: expected {file.size:,} bytes, found {actual}. {REMAKE}")
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
        """How many documents the split has, D."""
        return len(self.document_starts) - 1

    def __reduce__(self) -> tuple[Any, ...]:
        return TokenStore.open, (self.path,)

    @property
    def vocab_size(self) -> int:
        """The size of the vocabulary; every token id is smaller."""
        return self.manifest.vocab_size

    @property
    def tokenizer_sha256(self) -> str:
        """The `Tokenizer.sha256` of the tokenizer that made the store."""
        return self.manifest.tokenizer_sha256

    @property
    def corpus_sha256(self) -> str:
        """The SHA-256 of the corpus's manifest, which in turn has the hashes of its files."""
        return self.manifest.corpus_sha256

    @property
    def content_sha256(self) -> str:
        """A SHA-256 over all arrays of the store, those of both splits."""
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
            digest = sha256(self.path / name)
            if digest != entry.sha256:
                raise StoreError(
                    f"{self.path / name} was altered: expected SHA-256 {entry.sha256}, found {digest}. "
                    f"{REMAKE}"
                )
            if progress is not None:
                progress(done, len(files), "files verified")


def is_store(path: Path) -> bool:
    """Whether a folder is a token store rather than a corpus."""
    return any((path / split).is_dir() for split in SPLITS)


def _require_tokenizer(path: Path, manifest: StoreManifest, tokenizer: Tokenizer) -> None:
    """Raises StoreError for another tokenizer, even if it has as many tokens: its ids may mean others."""
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
    """The values (T, P) of a split, None for text; P follows from the size of the file."""
    if VALUES not in entry.files:
        return None
    size = entry.files[VALUES].size // 4
    if not entry.tokens or size % entry.tokens:
        return np.empty((0, 1), np.float32)
    return _map_array(path, "<f4", size).reshape(entry.tokens, -1)


def _map_array(path: Path, dtype: str, length: int) -> npt.NDArray[Any]:
    """A read-only map of a file. Raises StoreError if it hasn't the size of `length` values."""
    if path.stat().st_size != length * np.dtype(dtype).itemsize:
        raise StoreError(f"{path} does not hold the {length:,} values of its manifest. {REMAKE}")
    if length == 0:  # an empty file can't be mapped
        return np.empty(0, dtype)
    mapped = np.memmap(path, dtype, mode="r", shape=(length,))
    return mapped.view(np.ndarray)  # slices of a memmap are slow: pairs took 1.7 times as long
