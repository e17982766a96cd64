"""Rows of token ids, and of patches their values, into a token store: held out by their content."""

import hashlib
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

import bertsmith
from bertsmith.data.sequences.codec import Codec
from bertsmith.data.store_manifest import (
    CODEC_FILE,
    DOCUMENTS,
    OFFSETS,
    SENTENCES,
    SPLITS,
    TOKENS,
    VALUES,
    StoredSplit,
    StoreManifest,
)
from bertsmith.data.tokenizing import ArrayFile
from bertsmith.errors import InputError
from bertsmith.files import sha256, write_json
from bertsmith.text.corpus.manifest import Split
from bertsmith.text.tokens.tokenizer import Tokenizer


@dataclass(frozen=True)
class BuiltSequences:
    """What came of a build: rows by split, tokens, rows without any item, the size of the vocabulary, and how
    many tokens are not in it.
    """

    rows: dict[Split, int]
    tokens: int
    empty: int
    vocab_size: int
    unknown: int
    codec: Codec


class _SplitFiles:
    """The arrays of one split, growing by rows: each is a document of one sentence."""

    def __init__(self, folder: Path, dtype: str, with_values: bool, stack: ExitStack) -> None:
        folder.mkdir()
        self.tokens = stack.enter_context(ArrayFile(folder / TOKENS, dtype))
        self.sentences = stack.enter_context(ArrayFile(folder / SENTENCES, OFFSETS))
        self.documents = stack.enter_context(ArrayFile(folder / DOCUMENTS, OFFSETS))
        self.values = stack.enter_context(ArrayFile(folder / VALUES, "<f4")) if with_values else None
        self.rows = 0
        self.sentences.append(np.zeros(1))
        self.documents.append(np.zeros(1))

    def add(self, ids: Sequence[int], values: npt.NDArray[np.float32] | None) -> None:
        self.rows += 1
        self.tokens.append(np.array(ids))
        self.sentences.append(np.array([self.tokens.length]))
        self.documents.append(np.array([self.rows]))
        if self.values is not None and values is not None:
            self.values.append(values.reshape(-1))

    def entry(self) -> StoredSplit:
        files = (self.tokens, self.sentences, self.documents, *([self.values] if self.values else []))
        return StoredSplit(
            documents=self.rows,
            sentences=self.rows,
            tokens=self.tokens.length,
            files={array.path.name: array.entry() for array in files},
        )


class StoreWriter:
    """Both splits; a context manager. `heldout` is the share of rows that are kept for evaluation."""

    def __init__(
        self, folder: Path, tokenizer: Tokenizer, heldout: float, *, with_values: bool = False
    ) -> None:
        self.tokenizer, self.heldout, self.empty = tokenizer, heldout, 0
        self.dtype: Literal["<u2", "<u4"] = "<u2" if tokenizer.vocab_size <= 2**16 else "<u4"
        self._folder, self._with_values, self._stack = folder, with_values, ExitStack()

    def __enter__(self) -> "StoreWriter":
        self.splits = {
            split: _SplitFiles(self._folder / split, self.dtype, self._with_values, self._stack)
            for split in SPLITS
        }
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def add(self, ids: Sequence[int], content: bytes, values: npt.NDArray[np.float32] | None = None) -> None:
        """A row; its `content` chooses the split, so that equal rows are on the same side."""
        if not len(ids):
            self.empty += 1
            return
        place = int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")
        split: Split = "heldout" if place < self.heldout * 2**64 else "train"
        self.splits[split].add(ids, values)

    def finish(self, files: Sequence[Path | str], codec: Codec, unknown: int = 0) -> BuiltSequences:
        """Writes what stands beside the arrays, once these are closed. Raises InputError where nothing is
        left to train on.
        """
        if not self.splits["train"].rows:
            raise InputError(f"{files[0]}: no row with an item is left to train on. Lower --heldout.")
        write_json(self._folder / "manifest.json", self._manifest(files).model_dump(mode="json"))
        write_json(self._folder / CODEC_FILE, codec.model_dump(mode="json"))
        self.tokenizer.save(self._folder / "tokenizer")
        return BuiltSequences(
            {split: self.splits[split].rows for split in SPLITS},
            sum(each.tokens.length for each in self.splits.values()),
            self.empty,
            self.tokenizer.vocab_size,
            unknown,
            codec,
        )

    def _manifest(self, files: Sequence[Path | str]) -> StoreManifest:
        """The corpus is the files: its hash is of theirs."""
        hashes = "".join(sha256(Path(path)) for path in files)
        return StoreManifest(
            created_by=f"bertsmith {bertsmith.__version__}",
            dtype=self.dtype,
            vocab_size=self.tokenizer.vocab_size,
            tokenizer_sha256=self.tokenizer.sha256,
            corpus_sha256=hashlib.sha256(hashes.encode()).hexdigest(),
            splits={split: each.entry() for split, each in self.splits.items()},
        )
