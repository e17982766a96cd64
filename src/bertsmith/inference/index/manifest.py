"""index.json: what an index was made with, and which version of its table is committed.

The file is replaced atomically, after everything that it names was flushed to disk. What was written later
and isn't named yet doesn't count. So several operations on the table become one commit, and a kill between
them costs nothing but work.
"""

import hashlib
import re
import unicodedata
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError

import bertsmith
from bertsmith.errors import InputError
from bertsmith.files import atomic_write, read_json
from bertsmith.text.corpus_settings import AS_BUILT
from bertsmith.text.retrieval.passages import PassageSettings
from bertsmith.validation import Strict, describe_problem

MANIFEST = "index.json"
APPROXIMATE_FROM = 100_000  # rows; below, comparing every vector takes some ten milliseconds
_NO_HASH = '"sha256": ""\n}'  # sha256 is the last key
_OWN_HASH = re.compile(r'"sha256": "[0-9a-f]{64}"\n}')
FOLDED_TEXT = "folded_text"
_MARKS = re.compile("(?<=[A-Za-z])[\u0300-\u036f]+")  # й and が are letters of their own
ColumnKind = Literal["text", "whole numbers", "numbers", "yes or no"]
Count = Annotated[int, Field(ge=0, lt=2**63)]


def folds_first(language: str) -> bool:
    """Whether accents must be removed before words are stemmed: in English, where "résumé" and "resume" would
    get two stems. Stems and stop words of other languages are spelled with accents.
    """
    return language.partition("-")[0] == "en"


class IndexModel(Strict):
    """The model whose vectors an index holds. `sha256` is the hash of its weights and of every other file
    that determines the vectors, `tokenizer` that of its tokenizer.

    Fields that an embedder of your own doesn't provide are empty, or 0.
    """

    name: str
    sha256: str
    dimension: int = Field(ge=1, lt=2**31)
    tokenizer: str = ""
    pooling: str = ""
    max_length: Count = 0
    long_texts: str = ""
    query_prefix: str = ""
    document_prefix: str = ""


class Approximate(Strict):
    """The approximate index: the number of rows it was trained on, its search parameters and its recall.

    `recall` is recall@10 against exact search, measured by `queries` vectors of the index when it had `rows`.
    """

    rows: Count
    probes: int = Field(ge=1, lt=2**31)
    refine: int = Field(ge=1, lt=2**31)
    recall: float = Field(ge=0, le=1)
    queries: Count


class IndexManifest(Strict):
    """All that a reader has to know about an index.

    `id` is random, so that a folder that was removed and built again is recognised as another index.
    `version` is that of LanceDB's table. `complete`: no build or `add` was interrupted; `adding`: an `add`
    was interrupted, not a build; `to_add`: the sources of interrupted `add`s, each of which an `add` of the
    same sources completes (indexes of older versions don't name them; there any `add` does).

    `approximate_from`: the number of rows from which on there is an approximate index. `composed`: passages
    and queries are in Unicode's composed form NFC (in indexes of older versions they are unchanged).
    `folded`: full-text search reads a column of its own, in which Latin letters have no accents.

    `hashes` and `golden` are the hashes of the list of file hashes and of the golden queries; `sha256` is the
    hash of this file without that field. All three are empty in older versions.
    """

    format_version: Literal[1] = 1
    created_by: str = f"bertsmith {bertsmith.__version__}"
    id: str = ""
    model: IndexModel
    passages: PassageSettings
    metadata: dict[str, ColumnKind] = Field(default_factory=dict)
    sources: tuple[str, ...] = ()
    documents: Count = 0
    rows: Count = 0
    version: int = Field(ge=1, lt=2**63)
    complete: bool = False
    adding: bool = False
    to_add: tuple[str, ...] = ()
    approximate_from: Count = APPROXIMATE_FROM
    approximate: Approximate | None = None
    composed: bool = False
    folded: bool = False
    hashes: str = ""
    golden: str = ""
    sha256: str = ""

    @property
    def to_repeat(self) -> str:
        """The commands that complete an interrupted index, for messages; '' for a complete index."""
        if self.complete:
            return ""
        added = " of " + ", ".join(self.to_add) if self.to_add else ""
        commands = [] if self.adding else ["`bertsmith index build`"]
        commands += [f"`bertsmith index add`{added}"] if self.adding or added else []
        return "the same " + " and ".join(commands)

    @property
    def commit(self) -> tuple[str, int]:
        """Identifies the content: two manifests with the same value have the same rows."""
        return self.id, self.version

    @property
    def full_text(self) -> str:
        """The name of the column that full-text search reads."""
        return FOLDED_TEXT if self.folded else "text"

    def shown_text(self, text: str) -> str:
        """A passage's text as the index stores it: composed, so that é is always one character, and without
        soft hyphens, which aren't seen and would end a word.
        """
        return unicodedata.normalize("NFC", text.replace("\u00ad", "")) if self.composed else text

    def searchable_text(self, text: str) -> str:
        """A passage's or query's text as full-text search reads it: composed, and perhaps without accents."""
        if not self.folded:
            return self.shown_text(text)
        decomposed = _MARKS.sub("", unicodedata.normalize("NFD", self.shown_text(text)))
        return unicodedata.normalize("NFC", decomposed)


def read_index_manifest(folder: Path) -> IndexManifest:
    """Reads index.json. Raises InputError when the folder holds no index, or its index.json was altered."""
    path = Path(folder) / MANIFEST
    if not path.is_file():
        what = "is no index: it holds no index.json" if Path(folder).is_dir() else "does not exist"
        raise InputError(
            f"{folder} {what}. Name a folder that was made by "
            "`bertsmith index build SOURCE --model MODEL --out INDEX`."
        )
    try:
        return IndexManifest.model_validate(read_json(path), context=AS_BUILT)
    except ValidationError as error:
        raise InputError(
            f"{path}: {describe_problem(error, IndexManifest)} It was altered, or written by a newer "
            f"Bertsmith than {bertsmith.__version__}."
        ) from error


def write_index_manifest(folder: Path, manifest: IndexManifest) -> None:
    """Commits: replaces index.json, so that readers see `manifest.version` from now on."""
    content = manifest.model_copy(update={"sha256": ""}).model_dump_json(indent=2) + "\n"
    digest = hashlib.sha256(content.encode()).hexdigest()
    atomic_write(Path(folder) / MANIFEST, content.replace(_NO_HASH, _NO_HASH.replace('""', f'"{digest}"')))


def stated_sha256(folder: Path) -> str:
    """The SHA-256 of index.json as it is on disk, without the hash that it states of itself."""
    content = (Path(folder) / MANIFEST).read_text(encoding="utf-8")
    return hashlib.sha256(_OWN_HASH.sub(_NO_HASH, content).encode()).hexdigest()
