"""What a corpus and test files have in common: how many rows, in which way, in which column, with examples.

A model that has read its test questions is measured on its memory. The corpus is compared with the test files
before it is trained on; removal.py then writes it without what was found.

F places that were found.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from bertsmith.door import door, either, function, kind, optional, place, several, text, whole
from bertsmith.errors import InputError
from bertsmith.progress import Progress
from bertsmith.text.corpus.corpus import Corpus, open_corpus, read_shard
from bertsmith.text.corpus.manifest import Split
from bertsmith.text.decontamination.evaluation_texts import (
    EvaluationFile,
    EvaluationText,
    read_evaluation_file,
)
from bertsmith.text.decontamination.matching import Kind
from bertsmith.text.decontamination.scanning import KINDS, Places, find_places, is_too_short

EXAMPLES = 5  # of each test file


@dataclass(frozen=True)
class Example:
    """A row's text beside what the corpus has of it. `where`: the row's place in its file; `share`: how much
    of the text the corpus has, in words.
    """

    where: str
    column: str
    text: str
    document: str
    in_corpus: str
    kind: Kind
    share: float


@dataclass(frozen=True)
class FileFindings:
    """Of one test file: rows `too_short` to be looked for, found ones by `kinds` (each row by the best of its
    texts) and by `columns` (a row counts in each where it was found), and `examples` of all kinds.
    """

    file: EvaluationFile
    too_short: int
    kinds: dict[Kind, int]
    columns: dict[str, int]
    examples: tuple[Example, ...]

    @property
    def found(self) -> int:
        """Rows of which the corpus holds a text, or a part of one."""
        return sum(self.kinds.values())


@dataclass(frozen=True)
class Contamination:
    """What was found: for each test file, and `places` (F,) PLACE for each split of the corpus."""

    corpus: Corpus
    files: tuple[FileFindings, ...]
    places: dict[Split, Places]

    @property
    def documents(self) -> int:
        """Documents of the corpus that hold something of a test file."""
        return sum(len(set(places["document"].tolist())) for places in self.places.values())


@door(
    corpus=either(kind(Corpus), place),
    against=several(place),
    columns=several(text),
    workers=optional(whole(1)),
    progress=optional(function),
)
def find_contamination(
    corpus: Corpus | Path | str,
    against: Sequence[Path | str],
    *,
    columns: Sequence[str] = (),
    format: str | None = None,
    encoding: str = "utf-8",
    workers: int | None = None,
    progress: Progress | None = None,
) -> Contamination:
    """What `corpus`, or the one at that path, holds of the rows of the files and folders `against`.

    `columns`, `format` and `encoding` are those of `read_evaluation_file`, for all files alike. `workers` is
    the number of processes; None takes all cores for all but small corpora. Raises InputError for a test file
    that can't be read or has no text.
    """
    if not against:
        raise InputError("Name at least one test file to check the corpus against.")
    corpus = open_corpus(corpus)
    files = [read_evaluation_file(path, columns, format, encoding) for path in against]
    texts: dict[str, int] = {}  # each once, with its number: SQuAD's passages stand with every question
    for file in files:
        for each in file.texts:
            texts.setdefault(each.text, len(texts))
    places = find_places(corpus, list(texts), workers, progress)
    best = _find_best_places(places)
    chosen = [_choose_examples(file, texts, best) for file in files]
    shown = {(each.split, each.place) for rows in chosen for _, each in rows}
    passages = _read_passages(corpus, places, shown)
    found = []
    for file, rows in zip(files, chosen, strict=True):
        examples = tuple(
            Example(
                text.where.removeprefix(f"{file.name}, "),
                text.column,
                text.text,
                *passages[each.split, each.place],
                KINDS[each.kind],
                -each.minus_share,
            )
            for text, each in rows
        )
        found.append(_count_findings(file, texts, best, examples))
    return Contamination(corpus, tuple(found), places)


class _BestMatch(NamedTuple):
    """The best place of a text: by kind, then by share."""

    kind: int  # an index of KINDS, the best being 0
    minus_share: float
    split: Split
    place: int


def _find_best_places(places: Mapping[Split, Places]) -> dict[int, _BestMatch]:
    best: dict[int, _BestMatch] = {}
    for split, found in places.items():
        columns = (found[name].tolist() for name in ("text", "kind", "share"))
        for at, (number, rank, share) in enumerate(zip(*columns, strict=True)):
            candidate = _BestMatch(rank, -share, split, at)
            if number not in best or candidate[:2] < best[number][:2]:
                best[number] = candidate
    return best


def _choose_examples(
    file: EvaluationFile, texts: Mapping[str, int], best: Mapping[int, _BestMatch]
) -> list[tuple[EvaluationText, _BestMatch]]:
    """Examples of every kind in turn, the first rows of each; a text once."""
    of_kind: dict[int, list[tuple[EvaluationText, _BestMatch]]] = defaultdict(list)
    seen: set[str] = set()
    for entry in file.texts:
        found = best.get(texts[entry.text])
        if found is not None and entry.text not in seen and len(of_kind[found.kind]) < EXAMPLES:
            seen.add(entry.text)
            of_kind[found.kind].append((entry, found))
    in_turn = [
        of_kind[kind][number]
        for number in range(EXAMPLES)
        for kind in sorted(of_kind)
        if number < len(of_kind[kind])
    ]
    return sorted(in_turn[:EXAMPLES], key=lambda each: each[1][:2])


def _read_passages(
    corpus: Corpus, places: Mapping[Split, Places], shown: set[tuple[Split, int]]
) -> dict[tuple[Split, int], tuple[str, str]]:
    """Of each place (split, its number there) the document's id and the sentences, in one pass."""
    found: dict[tuple[Split, int], tuple[str, str]] = {}
    for split in {split for split, _ in shown}:
        wanted: dict[int, list[int]] = defaultdict(list)
        for number in sorted(number for where, number in shown if where == split):
            wanted[int(places[split][number]["document"])].append(number)
        ahead = 0
        for shard in corpus.manifest.splits[split].shards:
            for batch in read_shard(corpus.path / shard.file):
                for document in wanted.keys() & range(ahead, ahead + batch.num_rows):
                    id, _, sentences = (column[document - ahead].as_py() for column in batch.columns)
                    for number in wanted[document]:
                        place = places[split][number]
                        text = " ".join(sentences[place["first"] : place["last"] + 1])
                        found[split, number] = (id, text)
                ahead += batch.num_rows
    return found


def _count_findings(
    file: EvaluationFile,
    texts: Mapping[str, int],
    best: Mapping[int, _BestMatch],
    examples: tuple[Example, ...],
) -> FileFindings:
    of_row: dict[int, int] = {}
    columns: dict[str, set[int]] = {column: set() for column in file.columns}
    long_enough: set[int] = set()
    for entry in file.texts:
        found = best.get(texts[entry.text])
        if found is not None:
            of_row[entry.row] = min(found.kind, of_row.get(entry.row, found.kind))
            columns[entry.column].add(entry.row)
        if entry.row not in long_enough and not is_too_short(entry.text):
            long_enough.add(entry.row)
    kinds = Counter(of_row.values())
    return FileFindings(
        file,
        file.rows - len(long_enough),
        {kind: kinds[number] for number, kind in enumerate(KINDS)},
        {column: len(rows) for column, rows in columns.items()},
        examples,
    )
