"""A corpus and the texts to be looked for → every place where the corpus holds one, by worker processes.

F places that were found.
"""

from collections.abc import Iterator, Sequence
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
from bertsmith.text.decontamination.matching import Kind, Match, Words, find_matches
from bertsmith.text.decontamination.normalised_words import READINGS, is_too_short, readings_of
from bertsmith.text.decontamination.text_index import UNKNOWN, Int32s, TextIndex
from bertsmith.text.workers import ordered, usable_cores

KINDS: tuple[Kind, ...] = ("exact", "near", "part")
WORTH_WORKERS = 8_000_000  # bytes of text; below, starting processes costs more than it saves
# One place: which text, and in which document of the split which sentences hold it (the last one included).
PLACE = np.dtype(
    [("document", "i8"), ("text", "i4"), ("first", "i4"), ("last", "i4"), ("share", "f4"), ("kind", "i1")]
)
Places = npt.NDArray[np.void]


class _Prepared(NamedTuple):
    """What a worker looks for: the ids of all words that occur in a text, and an index for each reading."""

    vocabulary: dict[str, int]
    indexes: tuple[TextIndex, ...]


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
        _save(_prepare(texts), Path(folder))
        done = 0
        for split, entry in corpus.manifest.splits.items():
            files = [corpus.path / shard.file for shard in entry.shards]
            places, ahead = [np.zeros(0, PLACE)], 0
            for each, documents in ordered(_search, _tasks(files, Path(folder)), workers):
                each["document"] += ahead
                places.append(each)
                ahead, done = ahead + documents, done + documents
                if progress:
                    progress(done, counts.documents, "documents")
            found[split] = np.concatenate(places)
    _load.cache_clear()  # what this process has searched with, where it did so itself
    return found


def _prepare(texts: Sequence[str]) -> _Prepared:
    vocabulary: dict[str, int] = {}
    readings: list[list[Int32s]] = [[] for _ in READINGS]
    for text in texts:
        too_short = is_too_short(text)
        for words, reading in zip(readings_of(text), readings, strict=True):
            wanted = [] if too_short else words
            ids = [vocabulary.setdefault(word, len(vocabulary) + 1) for word in wanted]
            reading.append(np.array(ids, np.int32))
    return _Prepared(vocabulary, tuple(map(TextIndex.of_texts, readings)))


def _save(prepared: _Prepared, folder: Path) -> None:
    (folder / "vocabulary").write_text("\n".join(prepared.vocabulary), encoding="utf-8")
    for number, index in enumerate(prepared.indexes):
        index.save(folder / f"index-{number}.npz")


@lru_cache(maxsize=1)
def _load(folder: Path) -> _Prepared:
    words = (folder / "vocabulary").read_text(encoding="utf-8").split("\n")
    vocabulary = {word: number for number, word in enumerate(words, start=1)}
    return _Prepared(
        vocabulary, tuple(TextIndex.load(folder / f"index-{n}.npz") for n in range(len(READINGS)))
    )


def _tasks(files: Sequence[Path], folder: Path) -> Iterator[tuple[Path, int, Path]]:
    for path in files:
        for group in range(pq.read_metadata(path).num_row_groups):
            yield path, group, folder


def _search(path: Path, group: int, folder: Path) -> tuple[Places, int]:
    """The places in one row group, documents numbered from its first, and how many documents it has."""
    prepared, found, ahead = _load(folder), [np.zeros(0, PLACE)], 0
    for batch in read_shard(path, group):
        documents: list[list[str]] = batch.column("sentences").to_pylist()
        places: dict[tuple[int, ...], tuple[int | float, ...]] = {}
        for reading, index in enumerate(prepared.indexes):
            if index.seeds:
                words = _words(documents, reading, prepared.vocabulary)
                for match in find_matches(words, index):
                    row = _as_place(match, words, ahead)
                    places.setdefault(row[:4], row)
        found.append(np.array(sorted(places.values()), PLACE))
        ahead += len(documents)
    return np.concatenate(found), ahead


def _words(documents: Sequence[Sequence[str]], reading: int, vocabulary: dict[str, int]) -> Words:
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


def _as_place(match: Match, words: Words, ahead: int) -> tuple[int, int, int, int, float, int]:
    document, first, last = (
        int(array[at])
        for array, at in (
            (words.document, match.first),
            (words.sentence, match.first),
            (words.sentence, match.last),
        )
    )
    return ahead + document, match.text, first, last, match.share, KINDS.index(match.kind)
