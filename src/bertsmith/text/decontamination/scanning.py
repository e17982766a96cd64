"""A corpus and the texts to be looked for → every place where the corpus holds one, by worker processes.

Texts are compared by their words: no case, no punctuation, compatible characters as one (NFKC). There are
three readings, for punctuation inside a word can go in two ways: "well-known" becomes two words where a
blank takes its place, and one where it is left out, as is usual of apostrophes alone. A copy is looked for
in all of them, so that either change of all its punctuation leaves one of them as it was.

| reading | "It's well-known: 3.5 %" |
| --- | --- |
| separated | its well known 3 5 |
| joined | its wellknown 35 |
| split | it s well known 3 5 |

In the scripts of Chinese and Japanese, which have no blanks, each character is a word.

F places that were found.
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
from bertsmith.text.words import MARKS, WITHOUT_BLANKS, word_pattern
from bertsmith.text.workers import map_in_order, usable_cores

KINDS: tuple[Kind, ...] = ("exact", "near", "part")
WORTH_WORKERS = 8_000_000  # bytes of text; below, starting processes costs more than it saves
# One place: which text, and in which document of the split which sentences hold it (the last one included).
PLACE = np.dtype(
    [("document", "i8"), ("text", "i4"), ("first", "i4"), ("last", "i4"), ("share", "f4"), ("kind", "i1")]
)
Places = npt.NDArray[np.void]

SHORTEST = 3  # words of a text that is looked for
_WORD = re.compile(f"[{WITHOUT_BLANKS}]|" + word_pattern(f"[^\\W_{WITHOUT_BLANKS}]"))
_APOSTROPHES = str.maketrans(dict.fromkeys("\u2018\u2019\u02bc`", "'"))
_NO_LETTERS = re.compile(rf"[^\w\s{MARKS}]+|_+")


class _Lookup(NamedTuple):
    """What a worker looks for: the ids of all words that occur in a text, and an index for each reading."""

    vocabulary: dict[str, int]
    indexes: tuple[TextIndex, ...]

    def save(self, folder: Path) -> None:
        """To files, from which each worker reads them."""
        (folder / "vocabulary").write_text("\n".join(self.vocabulary), encoding="utf-8")
        for number, index in enumerate(self.indexes):
            index.save(folder / f"index-{number}.npz")


def find_places(
    corpus: Corpus, texts: Sequence[str], workers: int | None = None, progress: Progress | None = None
) -> dict[Split, Places]:
    """(F,) PLACE for each split, by document: every copy of one of the texts.

    Memory: the texts with their index once in each process, a row group (8 MB of text) there, and 28 bytes a
    place. `progress` hears of documents. The result is the same for any number of workers.
    """
    counts = corpus.manifest.kept
    if workers is None:
        workers = usable_cores() if counts.bytes >= WORTH_WORKERS else 1
    found: dict[Split, Places] = {}
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
            places, ahead = [np.zeros(0, PLACE)], 0
            for each, documents in map_in_order(_search, tasks, workers):
                each["document"] += ahead
                places.append(each)
                ahead, done = ahead + documents, done + documents
                if progress:
                    progress(done, counts.documents, "documents")
            found[split] = np.concatenate(places)
    _load_lookup.cache_clear()  # what this process has searched with, where it did so itself
    return found


def _build_lookup(texts: Sequence[str]) -> _Lookup:
    vocabulary: dict[str, int] = {}
    readings: list[list[Int32s]] = [[] for _ in READINGS]
    for text in texts:
        too_short = is_too_short(text)
        for words, reading in zip(read_all_ways(text), readings, strict=True):
            wanted = [] if too_short else words
            ids = [vocabulary.setdefault(word, len(vocabulary) + 1) for word in wanted]
            reading.append(np.array(ids, np.int32))
    return _Lookup(vocabulary, tuple(map(TextIndex.of_texts, readings)))


def _search(path: Path, group: int, folder: Path) -> tuple[Places, int]:
    """The places in one row group, documents numbered from its first, and how many documents it has."""
    prepared, found, ahead = _load_lookup(folder), [np.zeros(0, PLACE)], 0
    for batch in read_shard(path, group):
        documents: list[list[str]] = batch.column("sentences").to_pylist()
        places: dict[tuple[int, ...], tuple[int | float, ...]] = {}
        for reading, index in enumerate(prepared.indexes):
            if index.seeds:
                words = _encode_documents(documents, reading, prepared.vocabulary)
                for match in find_matches(words, index):
                    document = ahead + int(words.document[match.first])
                    first, last = (int(words.sentence[at]) for at in (match.first, match.last))
                    row = document, match.text, first, last, match.share, KINDS.index(match.kind)
                    places.setdefault(row[:4], row)
        found.append(np.array(sorted(places.values()), PLACE))
        ahead += len(documents)
    return np.concatenate(found), ahead


@lru_cache(maxsize=1)
def _load_lookup(folder: Path) -> _Lookup:
    words = (folder / "vocabulary").read_text(encoding="utf-8").split("\n")
    vocabulary = {word: number for number, word in enumerate(words, start=1)}
    return _Lookup(vocabulary, tuple(TextIndex.load(folder / f"index-{n}.npz") for n in range(len(READINGS))))


def _encode_documents(documents: Sequence[Sequence[str]], reading: int, vocabulary: dict[str, int]) -> Words:
    """The documents' words as ids, with a gap behind each document."""
    read, known = READINGS[reading], vocabulary.get
    ids: list[int] = []
    in_sentence, in_document = list[int](), list[int]()  # how many words
    sentences = list[int]()
    for document in documents:
        before = len(ids)
        for sentence in document:
            start = len(ids)
            ids += [known(word, UNKNOWN) for word in read(sentence)]
            in_sentence.append(len(ids) - start)
        ids.append(UNKNOWN)
        in_sentence.append(1)  # the gap counts as a sentence of its own
        sentences += range(len(document) + 1)
        in_document.append(len(ids) - before)
    return Words(
        np.array(ids, np.int32),
        np.repeat(np.arange(len(documents), dtype=np.int32), in_document),
        np.repeat(np.array(sentences, np.int32), in_sentence),
    )


def read_all_ways(text: str) -> list[list[str]]:
    """A text that is looked for in each of READINGS; empty where it is no other than in an earlier one, and
    so has nothing more to find. Only `split_at_all_punctuation` finds "it 's" where a document has "it's".
    """
    separated, joined, split = (read(text) for read in READINGS)
    return [separated, joined if joined != separated else [], split if "'" in _normalise_text(text) else []]


def is_too_short(text: str) -> bool:
    """Whether a text says nothing of where it is from: one of one or two words, when all are counted."""
    return len(split_at_punctuation(text)) < SHORTEST


def split_at_punctuation(text: str) -> list[str]:
    """Words end at blanks and at punctuation but apostrophes, which go without a trace."""
    return _WORD.findall(_normalise_text(text).replace("'", ""))


def split_without_punctuation(text: str) -> list[str]:
    """Words end at blanks alone; all punctuation goes without a trace."""
    return _WORD.findall(_NO_LETTERS.sub("", _normalise_text(text)))


def split_at_all_punctuation(text: str) -> list[str]:
    """Words end at blanks and at all punctuation."""
    return _WORD.findall(_normalise_text(text))


READINGS: tuple[Callable[[str], list[str]], ...] = (
    split_at_punctuation,
    split_without_punctuation,
    split_at_all_punctuation,
)


def _normalise_text(text: str) -> str:
    """In one case, with one kind of apostrophe."""
    if not text.isascii():  # NFKC has a blank and a mark for \u00b4, which keyboards give for an apostrophe
        text = unicodedata.normalize("NFKC", text.replace("\u00b4", "'"))
    return text.casefold().translate(_APOSTROPHES)
