"""The layout of a token store and the manifest that accounts for its files.

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

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from bertsmith.errors import InputError, StoreError
from bertsmith.files import read_json
from bertsmith.text.corpus.manifest import Split
from bertsmith.validation import first_problem

SPLITS: tuple[Split, ...] = ("train", "heldout")
TOKENS, SENTENCES, DOCUMENTS = "tokens.bin", "sentences.bin", "documents.bin"
VALUES = "values.bin"
OFFSETS = "<i8"
CODEC_FILE = "sequences.json"  # beside the manifest of a store that `bertsmith sequences build` made
REMAKE = "Make the store again with `bertsmith corpus tokenize`."

TokenType = Literal["<u2", "<u4"]


class Entry(BaseModel):
    """An unknown key is an error, and a value does not change once made."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class StoredFile(Entry):
    """Size in bytes and hash of one file."""

    size: int
    sha256: str


class StoredSplit(Entry):
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


class StoreManifest(Entry):
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
