"""The typed settings of a corpus build, and the manifest that says what came of it."""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ModelWrapValidatorHandler, ValidationError, model_validator

from bertsmith.errors import RecipeError
from bertsmith.validation import first_problem

Split = Literal["train", "heldout"]
Format = Literal["auto", "file", "blank-lines", "lines", "wikiextractor", "jsonl", "csv", "tsv", "parquet"]


class Strict(BaseModel):
    """An unknown key is an error, and a value does not change once made."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class CorpusSettings(Strict):
    """Every choice of `bertsmith corpus build`; the defaults live here and nowhere else."""

    format: Format = Field(default="auto", description="how documents lie in files; auto looks at each")
    text_column: str = Field(default="text", description="column or key of the text in tables and JSON lines")
    language: str = Field(default="en", description="two-letter code, for splitting into sentences")
    encoding: str = Field(default="utf-8", description="of files without a byte-order mark")
    encoding_errors: Literal["strict", "replace"] = Field(default="strict", description="stop, or put U+FFFD")
    include: tuple[str, ...] = Field(default=(), description="globs: take only files with such a name")
    exclude: tuple[str, ...] = Field(default=(), description="globs: leave out files with such a name")
    heldout: float = Field(default=0.01, ge=0, lt=1, description="share of documents kept for evaluation")
    near_duplicates: bool = Field(default=True, description="drop documents nearly equal to an earlier one")
    near_duplicate_threshold: float = Field(default=0.8, gt=0, le=1, description="Jaccard of 5-word runs")
    min_words: int = Field(default=1, ge=1, description="shorter documents count as empty and are dropped")
    licence: str = Field(default="", description="what the text may be used for, for the manifest")

    @model_validator(mode="wrap")
    @classmethod
    def _complain_in_a_sentence(cls, values: Any, validate: ModelWrapValidatorHandler[Self]) -> Self:
        """Raises RecipeError instead of pydantic's ValidationError: settings are the user's to mend."""
        try:
            return validate(values)
        except ValidationError as error:
            raise RecipeError(f"corpus: {first_problem(error, cls)}") from error


class Counts(Strict):
    """How much text: documents, sentences, words (runs of non-blank characters), UTF-8 bytes."""

    documents: int = 0
    sentences: int = 0
    words: int = 0
    bytes: int = 0


class SourceEntry(Strict):
    """One source file or installed package, and what became of its documents.

    `kept` counts both splits. `sha256` is of the file as it lies on disk, compressed or not; of a package, of
    the RECORD that lists the hashes of its files. `origin` is the SOURCE it was found under.
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


class Shard(Strict):
    """One Parquet file of a split."""

    file: str = Field(pattern=r"^(train|heldout)-[0-9]+\.parquet$")  # nothing outside of the corpus's folder
    documents: int
    size: int
    sha256: str


class SplitEntry(Strict):
    """The files of one split and how much text they hold."""

    counts: Counts
    shards: tuple[Shard, ...]


class Skipped(Strict):
    """Files under the sources that were passed over, by reason."""

    hidden: int = 0
    binary: int = 0
    excluded: int = 0
    unparsable: int = 0


class CorpusManifest(Strict):
    """What lies in a corpus folder and where it came from; the same for the same sources and settings."""

    format_version: Literal[1] = 1
    created_by: str
    licence: str
    settings: CorpusSettings
    splits: Annotated[dict[Split, SplitEntry], Field(min_length=2)]  # both of them
    skipped: Skipped
    sources: tuple[SourceEntry, ...]

    @property
    def kept(self) -> Counts:
        """The two splits together."""
        parts = [entry.counts.model_dump() for entry in self.splits.values()]
        return Counts(**{key: sum(part[key] for part in parts) for key in Counts.model_fields})

    @property
    def dropped(self) -> dict[str, int]:
        """Documents dropped over all sources, by reason."""
        reasons = ("exact_duplicates", "near_duplicates", "empty")
        return {reason: sum(getattr(source, reason) for source in self.sources) for reason in reasons}
