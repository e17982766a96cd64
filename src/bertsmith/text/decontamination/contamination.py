"""Finds the rows of test files that a corpus contains, and counts them by kind and column, with examples.

A model that has read its test questions is measured on its memory. So the corpus is compared with the test
files before training; removal.py then writes it without what was found.

F matches.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from bertsmith.argument_checks import (
    any_of,
    check_arguments,
    check_function,
    check_path,
    check_text,
    instance_of,
    integer_from,
    list_of,
    optional,
)
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
from bertsmith.text.decontamination.scanning import KINDS, CorpusMatches, find_corpus_matches, is_too_short

EXAMPLES = 5  # of each test file


@dataclass(frozen=True)
class Example:
    """A row's text beside what the corpus has of it.

    `where` is the row's location in its file, `share` the share of the text's words that the corpus has.
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
    """What was found of one test file: rows by kind and by column, and examples.

    `too_short` counts the rows too short to be searched for. `kinds` counts each row found by the best match
    of its texts, `columns` counts it for each column in which it was found.
    """

    file: EvaluationFile
    too_short: int
    kinds: dict[Kind, int]
    columns: dict[str, int]
    examples: tuple[Example, ...]

    @property
    def found(self) -> int:
        """How many rows have a text that the corpus contains, whole or in part."""
        return sum(self.kinds.values())


@dataclass(frozen=True)
class Contamination:
    """What a corpus has in common with test files: findings by file, and (F,) MATCH for each split."""

    corpus: Corpus
    files: tuple[FileFindings, ...]
    matches: dict[Split, CorpusMatches]

    @property
    def documents(self) -> int:
        """How many documents of the corpus contain something of a test file."""
        return sum(len(set(matches["document"].tolist())) for matches in self.matches.values())


@check_arguments(
    corpus=any_of(instance_of(Corpus), check_path),
    against=list_of(check_path),
    columns=list_of(check_text),
    workers=optional(integer_from(1)),
    progress=optional(check_function),
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
    """Finds what `corpus`, or the one at that path, contains of the files and folders `against`.

    `columns`, `format` and `encoding` are those of `read_evaluation_file`, for all files alike. `workers` is
    the number of processes; None takes one for small corpora, else all cores. Raises InputError for a test
    file that can't be read or has no text.
    """
    if not against:
        raise InputError("Name at least one test file to check the corpus against.")
    corpus = open_corpus(corpus)
    files = [read_evaluation_file(path, columns, format, encoding) for path in against]
    text_ids: dict[str, int] = {}  # each text once: SQuAD repeats a passage for every question
    for file in files:
        for entry in file.texts:
            text_ids.setdefault(entry.text, len(text_ids))
    matches = find_corpus_matches(corpus, list(text_ids), workers, progress)
    best = _find_best_matches(matches)
    example_matches = [_choose_examples(file, text_ids, best) for file in files]
    needed = {(match.split, match.position) for rows in example_matches for _, match in rows}
    passages = _read_passages(corpus, matches, needed)
    findings = []
    for file, rows in zip(files, example_matches, strict=True):
        examples = tuple(
            Example(
                entry.where.removeprefix(f"{file.name}, "),
                entry.column,
                entry.text,
                *passages[match.split, match.position],
                KINDS[match.kind],
                -match.negative_share,
            )
            for entry, match in rows
        )
        findings.append(_count_findings(file, text_ids, best, examples))
    return Contamination(corpus, tuple(findings), matches)


class _BestMatch(NamedTuple):
    """The best match of a text, by kind and then by share; the lower tuple is the better one."""

    kind: int  # an index of KINDS, of which 0 is the best
    negative_share: float
    split: Split
    position: int  # of the match in its split


def _find_best_matches(matches: Mapping[Split, CorpusMatches]) -> dict[int, _BestMatch]:
    """The best match of each text that has any, by the text's id."""
    best: dict[int, _BestMatch] = {}
    for split, split_matches in matches.items():
        columns = (split_matches[name].tolist() for name in ("text", "kind", "share"))
        for index, (text_id, kind_index, share) in enumerate(zip(*columns, strict=True)):
            candidate = _BestMatch(kind_index, -share, split, index)
            if text_id not in best or candidate[:2] < best[text_id][:2]:
                best[text_id] = candidate
    return best


def _choose_examples(
    file: EvaluationFile, text_ids: Mapping[str, int], best: Mapping[int, _BestMatch]
) -> list[tuple[EvaluationText, _BestMatch]]:
    """Up to `EXAMPLES` texts of a file with their matches: the first of every kind in turn."""
    of_kind: dict[int, list[tuple[EvaluationText, _BestMatch]]] = defaultdict(list)
    seen: set[str] = set()
    for entry in file.texts:
        match = best.get(text_ids[entry.text])
        if match is not None and entry.text not in seen and len(of_kind[match.kind]) < EXAMPLES:
            seen.add(entry.text)
            of_kind[match.kind].append((entry, match))
    in_turn = [
        of_kind[kind][number]
        for number in range(EXAMPLES)
        for kind in sorted(of_kind)
        if number < len(of_kind[kind])
    ]
    return sorted(in_turn[:EXAMPLES], key=lambda example: example[1][:2])


def _read_passages(
    corpus: Corpus, matches: Mapping[Split, CorpusMatches], needed: set[tuple[Split, int]]
) -> dict[tuple[Split, int], tuple[str, str]]:
    """The document's id and the matched sentences of each needed match (split, index), read in one pass."""
    passages: dict[tuple[Split, int], tuple[str, str]] = {}
    for split in {split for split, _ in needed}:
        by_document: dict[int, list[int]] = defaultdict(list)
        for index in sorted(index for other_split, index in needed if other_split == split):
            by_document[int(matches[split][index]["document"])].append(index)
        offset = 0
        for shard in corpus.manifest.splits[split].shards:
            for batch in read_shard(corpus.path / shard.file):
                for document in by_document.keys() & range(offset, offset + batch.num_rows):
                    id, _, sentences = (column[document - offset].as_py() for column in batch.columns)
                    for index in by_document[document]:
                        match = matches[split][index]
                        text = " ".join(sentences[match["first"] : match["last"] + 1])
                        passages[split, index] = (id, text)
                offset += batch.num_rows
    return passages


def _count_findings(
    file: EvaluationFile,
    text_ids: Mapping[str, int],
    best: Mapping[int, _BestMatch],
    examples: tuple[Example, ...],
) -> FileFindings:
    """The findings of one file, from the best match of each of its texts."""
    kind_of_row: dict[int, int] = {}
    columns: dict[str, set[int]] = {column: set() for column in file.columns}
    long_enough: set[int] = set()
    for entry in file.texts:
        match = best.get(text_ids[entry.text])
        if match is not None:
            kind_of_row[entry.row] = min(match.kind, kind_of_row.get(entry.row, match.kind))
            columns[entry.column].add(entry.row)
        if entry.row not in long_enough and not is_too_short(entry.text):
            long_enough.add(entry.row)
    kinds = Counter(kind_of_row.values())
    return FileFindings(
        file,
        file.rows - len(long_enough),
        {kind: kinds[index] for index, kind in enumerate(KINDS)},
        {column: len(rows) for column, rows in columns.items()},
        examples,
    )
