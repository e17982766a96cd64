"""Searches a corpus for copies of texts, in worker processes.

Texts are compared by their words, without case and punctuation, and with compatible characters as one (NFKC).
Punctuation inside a word can be dropped in two ways: "well-known" becomes two words if a blank replaces the
hyphen, and one word if it is left out, which is usual only for apostrophes. So texts are compared in three
readings: whichever way a copy lost all its punctuation, one reading of it is unchanged. Before, a text is
cleaned as a corpus cleans its documents: "&amp;" is "&" there, and has no word.

| reading | "It's well-known: 3.5 %" |
| --- | --- |
| separated | its well known 3 5 |
| joined | its wellknown 35 |
| split | it s well known 3 5 |

In the scripts of Chinese and Japanese, which have no blanks, each character is a word.

F matches.
"""

import re
import unicodedata
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

from bertsmith.progress import Progress
from bertsmith.text.corpus.corpus import Corpus, read_shard
from bertsmith.text.corpus.manifest import Split
from bertsmith.text.decontamination.matching import (
    UNKNOWN,
    Int32s,
    Kind,
    TextIndex,
    Words,
    find_matches,
)
from bertsmith.text.prose.sentences import clean_text
from bertsmith.text.words import IN_ONE_RUN, MARKS, WORD_WITHOUT_BLANKS, word_pattern
from bertsmith.text.workers import map_in_order, usable_cores

KINDS: tuple[Kind, ...] = ("exact", "near", "part")
WORTH_WORKERS = 8_000_000  # bytes of text; below, starting processes costs more than it saves
# A copy of a text: the document of the split and its sentences from `first` to `last` (inclusive), how much
# of the text they hold, and the index of its kind in KINDS.
MATCH = np.dtype(
    [("document", "i8"), ("text", "i4"), ("first", "i4"), ("last", "i4"), ("share", "f4"), ("kind", "i1")]
)
CorpusMatches = npt.NDArray[np.void]

SHORTEST = 3  # words of a text that is searched for
_WORD = re.compile(f"{WORD_WITHOUT_BLANKS}|" + word_pattern(f"[^\\W_{IN_ONE_RUN}]"))
_APOSTROPHES = str.maketrans(dict.fromkeys("\u2018\u2019\u02bc`", "'"))
_NO_LETTERS = re.compile(rf"[^\w\s{MARKS}]+|_+")


class _Lookup(NamedTuple):
    """What a worker searches for: the ids of all words of the texts, and an index for each reading."""

    vocabulary: dict[str, int]
    indexes: tuple[TextIndex, ...]

    def save(self, folder: Path) -> None:
        """Writes the vocabulary and the indexes to files in `folder`, from which each worker reads them."""
        (folder / "vocabulary").write_text("\n".join(self.vocabulary), encoding="utf-8")
        for number, index in enumerate(self.indexes):
            index.save(folder / f"index-{number}.npz")


def find_corpus_matches(
    corpus: Corpus, texts: Sequence[str], workers: int | None = None, progress: Progress | None = None
) -> dict[Split, CorpusMatches]:
    """Every copy of one of the texts: (F,) MATCH for each split, in the order of documents.

    Each process holds the texts with their index, and a row group (8 MB of text); each match takes 28 bytes.
    `progress` is called with the number of documents. The result is the same for any number of workers.
    """
    counts = corpus.manifest.kept
    if workers is None:
        workers = usable_cores() if counts.bytes >= WORTH_WORKERS else 1
    matches: dict[Split, CorpusMatches] = {}
    with TemporaryDirectory(prefix="bertsmith-") as folder:
        _build_lookup(texts).save(Path(folder))
        done = 0
        for split, entry in corpus.manifest.splits.items():
            files = [corpus.path / shard.file for shard in entry.shards]
            tasks = (
                (file, group, Path(folder))
                for file in files
                for group in range(pq.read_metadata(file).num_row_groups)
            )
            parts, offset = [np.zeros(0, MATCH)], 0
            for part, documents in map_in_order(_search_row_group, tasks, workers):
                part["document"] += offset
                parts.append(part)
                offset, done = offset + documents, done + documents
                if progress:
                    progress(done, counts.documents, "documents")
            matches[split] = np.concatenate(parts)
    _load_lookup.cache_clear()  # in case this process has searched itself
    return matches


def _build_lookup(texts: Sequence[str]) -> _Lookup:
    """The lookup of these texts; a text that is too short has no words in any reading."""
    vocabulary: dict[str, int] = {}
    readings: list[list[Int32s]] = [[] for _ in READINGS]
    for text in texts:
        too_short = is_too_short(text)
        for words, reading in zip(read_all_ways(clean_text(text)), readings, strict=True):
            indexed_words = [] if too_short else words
            ids = [vocabulary.setdefault(word, len(vocabulary) + 1) for word in indexed_words]
            reading.append(np.array(ids, np.int32))
    return _Lookup(vocabulary, tuple(map(TextIndex.of_texts, readings)))


def _search_row_group(path: Path, group: int, folder: Path) -> tuple[CorpusMatches, int]:
    """The matches in one row group, with documents numbered from its first, and its number of documents.

    `folder` has the files of the lookup.
    """
    lookup, parts, offset = _load_lookup(folder), [np.zeros(0, MATCH)], 0
    for batch in read_shard(path, group):
        documents: list[list[str]] = batch.column("sentences").to_pylist()
        rows: dict[tuple[int, ...], tuple[int | float, ...]] = {}
        for reading, index in enumerate(lookup.indexes):
            if index.seeds:
                words = _encode_documents(documents, reading, lookup.vocabulary)
                for match in find_matches(words, index):
                    document = offset + int(words.document[match.first])
                    first, last = (int(words.sentence[position]) for position in (match.first, match.last))
                    row = document, match.text, first, last, match.share, KINDS.index(match.kind)
                    rows[row[:4]] = min(row, rows.get(row[:4], row), key=lambda row: (row[5], -row[4]))
        parts.append(np.array(sorted(rows.values()), MATCH))
        offset += len(documents)
    return np.concatenate(parts), offset


@lru_cache(maxsize=1)
def _load_lookup(folder: Path) -> _Lookup:
    words = (folder / "vocabulary").read_text(encoding="utf-8").split("\n")
    vocabulary = {word: number for number, word in enumerate(words, start=1)}
    return _Lookup(vocabulary, tuple(TextIndex.load(folder / f"index-{n}.npz") for n in range(len(READINGS))))


def _encode_documents(documents: Sequence[Sequence[str]], reading: int, vocabulary: dict[str, int]) -> Words:
    """The documents' words in one of the READINGS as ids, with a gap after each document."""
    split_words, word_id = READINGS[reading], vocabulary.get
    ids: list[int] = []
    sentence_lengths, document_lengths = list[int](), list[int]()  # in words
    sentences = list[int]()
    for document in documents:
        document_start = len(ids)
        for sentence in document:
            start = len(ids)
            ids += [word_id(word, UNKNOWN) for word in split_words(sentence)]
            sentence_lengths.append(len(ids) - start)
        ids.append(UNKNOWN)
        sentence_lengths.append(1)
        sentences += [*range(len(document)), -1]  # no sentence of either document has the gap's number
        document_lengths.append(len(ids) - document_start)
    return Words(
        np.array(ids, np.int32),
        np.repeat(np.arange(len(documents), dtype=np.int32), document_lengths),
        np.repeat(np.array(sentences, np.int32), sentence_lengths),
    )


def read_all_ways(text: str) -> list[list[str]]:
    """The words of a text in each of READINGS; empty for a reading that can find nothing more than another.

    That is so where the joined words are the separated ones, and where the text has no apostrophe: only
    `split_at_all_punctuation` finds "it 's" if a document has "it's".
    """
    separated, joined, split = (split_words(text) for split_words in READINGS)
    return [separated, joined if joined != separated else [], split if "'" in _normalise_text(text) else []]


def is_too_short(text: str) -> bool:
    """Whether a text has only one or two words, which could be from anywhere."""
    return len(split_at_punctuation(clean_text(text))) < SHORTEST


def split_at_punctuation(text: str) -> list[str]:
    """Words without case and punctuation; they end at blanks and punctuation, but not at apostrophes."""
    return _WORD.findall(_normalise_text(text).replace("'", ""))


def split_without_punctuation(text: str) -> list[str]:
    """Words without case and punctuation; they end only at blanks."""
    return _WORD.findall(_NO_LETTERS.sub("", _normalise_text(text)))


def split_at_all_punctuation(text: str) -> list[str]:
    """Words without case and punctuation; they end at blanks and at all punctuation."""
    return _WORD.findall(_normalise_text(text))


READINGS: tuple[Callable[[str], list[str]], ...] = (
    split_at_punctuation,
    split_without_punctuation,
    split_at_all_punctuation,
)


def _normalise_text(text: str) -> str:
    """The text in NFKC, case-folded and with one kind of apostrophe."""
    if not text.isascii():  # NFKC has a blank and a mark for \u00b4, which keyboards give for an apostrophe
        text = unicodedata.normalize("NFKC", text.replace("\u00b4", "'"))
    return text.casefold().translate(_APOSTROPHES)
