"""The manifest of a corpus, which accounts for every source and document."""

from typing import Annotated, Literal

from pydantic import Field

from bertsmith.text.corpus_settings import CorpusSettings
from bertsmith.validation import Strict

Split = Literal["train", "heldout"]


class Counts(Strict):
    """An amount of text: documents, sentences, words (runs of non-blank characters), UTF-8 bytes."""

    documents: int = 0
    sentences: int = 0
    words: int = 0
    bytes: int = 0


class SourceEntry(Strict):
    """One source file or installed package, and what became of its documents.

    `kept` counts both splits. `sha256` is that of the file on disk, compressed or not; for a package, that of
    the RECORD that lists the hashes of its files. `origin` is the SOURCE argument that it was found under.
    """

    name: str
    origin: str
    format: str
    size: int
    sha256: str | None
    kept: Counts
    exact_duplicates: int
    near_duplicates: int
    empty: int


class CorpusShard(Strict):
    """One Parquet file of a split."""

    file: str = Field(pattern=r"^(train|heldout)-[0-9]+\.parquet$")  # no path outside of the corpus's folder
    documents: int
    size: int
    sha256: str


class SplitEntry(Strict):
    """The files of one split and how much text they hold."""

    counts: Counts
    shards: tuple[CorpusShard, ...]


class SkippedFiles(Strict):
    """How many files under the sources were not read, by reason."""

    hidden: int = 0
    binary: int = 0
    excluded: int = 0


class CheckedFile(Strict):
    """A test file or folder that a corpus was checked against.

    `sha256` maps its files to their hashes; `found` is how many of its `rows` the corpus contained.
    """

    name: str
    sha256: dict[str, str]
    rows: int
    found: int


class Decontamination(Strict):
    """One check against test files: its method, the files, and how much text was removed."""

    created_by: str
    method: str
    against: tuple[CheckedFile, ...]
    removed: Counts


class CorpusManifest(Strict):
    """What a corpus folder contains and where it came from; equal for equal sources and settings."""

    format_version: Literal[1] = 1
    created_by: str
    licence: str
    settings: CorpusSettings
    splits: Annotated[dict[Split, SplitEntry], Field(min_length=2)]  # both of them
    skipped: SkippedFiles
    sources: tuple[SourceEntry, ...]
    decontaminations: tuple[Decontamination, ...] = ()

    @property
    def checked_against(self) -> frozenset[str]:
        """The SHA-256 of every test file whose texts were removed, as far as they were found."""
        files = (file for check in self.decontaminations for file in check.against)
        return frozenset(digest for file in files for digest in file.sha256.values())

    @property
    def kept(self) -> Counts:
        """The amount of text in both splits together."""
        parts = [entry.counts.model_dump() for entry in self.splits.values()]
        return Counts(**{key: sum(part[key] for part in parts) for key in Counts.model_fields})

    @property
    def dropped(self) -> dict[str, int]:
        """Documents dropped over all sources, by reason."""
        reasons = ("exact_duplicates", "near_duplicates", "empty")
        return {reason: sum(getattr(source, reason) for source in self.sources) for reason in reasons}
