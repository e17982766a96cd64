"""Every choice of a corpus build: how sources are read, and what becomes of their documents."""

from typing import Literal

from pydantic import Field

from bertsmith.text.languages import Language
from bertsmith.validation import UserSettings

Format = Literal["auto", "file", "blank-lines", "lines", "wikiextractor", "jsonl", "csv", "tsv", "parquet"]


class CorpusSettings(UserSettings):
    """Every choice of `bertsmith corpus build`; the defaults live here and nowhere else."""

    format: Format = Field(default="auto", description="How documents lie in files; auto looks at each file.")
    text_column: str = Field(
        default="text", description="Column or key of the text in tables and JSON lines."
    )
    language: Language = Field(default="en", description="Two-letter code, for splitting into sentences.")
    encoding: str = Field(default="utf-8", description="Encoding of files without a byte-order mark.")
    encoding_errors: Literal["strict", "replace"] = Field(
        default="strict", description="Bad bytes: stop, or put U+FFFD."
    )
    include: tuple[str, ...] = Field(
        default=(), description="Glob patterns: read only files with such names."
    )
    exclude: tuple[str, ...] = Field(
        default=(), description="Glob patterns: leave out files with such names."
    )
    heldout: float = Field(
        default=0.01, ge=0, lt=1, description="Share of documents held out for evaluation."
    )
    near_duplicates: bool = Field(default=True, description="Drop documents nearly equal to an earlier one.")
    # Of pairs as alike as that, signatures find 92 in 100 at 0.8; at 0.7 it would be 56, at 0.5 five.
    near_duplicate_threshold: float = Field(
        default=0.8, ge=0.8, le=1, description="How alike: Jaccard similarity of 5-word runs."
    )
    min_words: int = Field(default=1, ge=1, description="Documents with fewer words are dropped.")
    licence: str = Field(default="", description="The text's licence, for the manifest.")
