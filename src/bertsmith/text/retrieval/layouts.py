"""A folder or a file → RetrievalData, by the layout that its files show or that was named.

Layouts of several files have files of their own, beir.py and trec.py; those of one file, ReQA's and
WikiQA's, are read here.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from bertsmith.errors import InputError
from bertsmith.files import parse_json, with_distinct_keys
from bertsmith.text.files.rows import read_rows
from bertsmith.text.files.table_file import open_table
from bertsmith.text.retrieval.beir import is_beir, is_nanobeir, read_beir, read_nanobeir
from bertsmith.text.retrieval.retrieval_data import RetrievalData, RetrievalDataBuilder
from bertsmith.text.retrieval.trec import read_trec


class DatasetLayout(NamedTuple):
    """How data of one layout is read: (path, split, encoding) -> RetrievalData.

    `ending` is that of its one file; None for a layout of several files in a folder.
    """

    read: Callable[[Path, str, str], RetrievalData]
    ending: str | None = None


LAYOUTS = {
    "beir": DatasetLayout(read_beir),
    "nanobeir": DatasetLayout(lambda path, split, encoding: read_nanobeir(path, split)),
    "trec": DatasetLayout(read_trec),
    "reqa": DatasetLayout(lambda path, split, encoding: read_reqa(path, encoding), ".json"),
    "wikiqa": DatasetLayout(lambda path, split, encoding: read_wikiqa(path, encoding), ".tsv"),
}


def read_retrieval_data(
    path: Path | str, format: str | None = None, split: str = "test", encoding: str = "utf-8"
) -> RetrievalData:
    """The collection in a folder, or in a file of ReQA's (.json) or WikiQA's (.tsv) layout.

    format: beir, nanobeir, trec, reqa or wikiqa, where the files don't tell. split: which judgements of a
    folder that has several, by name (BEIR's qrels/test.tsv, NanoBEIR's qrels/test-….parquet, a file
    *test.json or *test.tsv).
    Raises InputError naming file and line, for whatever isn't as the layout has it.
    """
    path = Path(path)
    if not path.exists():
        raise InputError(f"{path} does not exist. Name a folder, or a .json or .tsv file.")
    if format is not None and format not in LAYOUTS:
        raise InputError(f"There is no layout {format!r}. Choose one of {', '.join(LAYOUTS)}.")
    layout = LAYOUTS[format or _guess_layout(path, split)]
    if layout.ending is None and not path.is_dir():
        raise InputError(f"{path} is a file, and this layout is a folder of several. Name the folder.")
    if layout.ending is not None and path.is_dir():
        path = _find_split_file(path, split, layout.ending)
    return layout.read(path, split, encoding)


def _guess_layout(path: Path, split: str) -> str:
    """By a file's ending; a folder by its files, TREC's being known by their content only."""
    endings = {layout.ending: name for name, layout in LAYOUTS.items() if layout.ending}
    if not path.is_dir():
        if path.suffix not in endings:
            raise InputError(f"{path}: its ending tells no layout. Name one with --format: reqa or wikiqa.")
        return endings[path.suffix]
    if is_beir(path):
        return "beir"
    if is_nanobeir(path):
        return "nanobeir"
    return next((name for end, name in endings.items() if list(path.glob(f"*{split}{end}"))), "trec")


def _find_split_file(folder: Path, split: str, ending: str) -> Path:
    found = sorted(folder.glob(f"*{split}{ending}"))
    if len(found) != 1:
        names = ", ".join(path.name for path in found or sorted(folder.glob(f"*{ending}"))) or "none"
        raise InputError(
            f"{folder}: expected one file *{split}{ending}, found {len(found)}. There are: {names}. "
            "Name one of them, or another --split."
        )
    return found[0]


def read_reqa(path: Path, encoding: str = "utf-8") -> RetrievalData:
    """ReQA's layout (Ahmad et al. 2019): questions, and sentences out of which to find the one that answers.

    A test file is {"questions": [...], "candidates": [...], "ground_truths": [[place, ...], ...]}: for each
    question the places of its sentences among the candidates, from 0. A training file is {"questions": [...],
    "answers": [...]}: here the collection is all of its answers.
    Ids are the places in the lists, from 0. Raises InputError naming file and item.
    """
    with open_table(path, "json", encoding, {".json": "json"}, None) as table:
        try:
            found = parse_json(table.stream.text(), with_distinct_keys)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path.name} is not valid JSON ({error}). It may have been cut.") from error
    if not isinstance(found, dict):
        raise InputError(f"{path.name}: expected an object with 'questions', found {type(found).__name__}.")
    questions = _require_texts(found, "questions", path.name)
    if "candidates" in found:
        documents, truths = (
            _require_texts(found, "candidates", path.name),
            _require_list(found, "ground_truths", path.name),
        )
    else:
        answers = _require_texts(found, "answers", path.name)
        documents = list(dict.fromkeys(answers))
        places = {text: place for place, text in enumerate(documents)}
        truths = [[places[answer]] for answer in answers]
    if len(truths) != len(questions):
        raise InputError(f"{path.name}: {len(questions):,} questions, but answers for {len(truths):,}.")
    gathered = RetrievalDataBuilder()
    for place, text in enumerate(documents):
        gathered.add_document(str(place), text, f"{path.name}, candidate {place}")
    for place, (text, right) in enumerate(zip(questions, truths, strict=True)):
        where = f"{path.name}, question {place}"
        gathered.add_query(str(place), text, where)
        for document in _require_indices(right, len(documents), where):
            gathered.judge(str(place), str(document), 1, where)
    return gathered.finish(path.stem, path.name)


def _require_list(found: dict[str, Any], key: str, name: str) -> list[Any]:
    if not isinstance(found.get(key), list):
        there = ", ".join(found) or "none"
        raise InputError(f"{name}: expected a list under {key!r}. There are: {there}.")
    listed: list[Any] = found[key]
    return listed


def _require_texts(found: dict[str, Any], key: str, name: str) -> list[str]:
    listed = _require_list(found, key, name)
    for place, text in enumerate(listed):
        if not isinstance(text, str):
            raise InputError(f"{name}, {key}[{place}]: expected text, found {type(text).__name__}.")
    return listed


def _require_indices(found: Any, documents: int, where: str) -> list[int]:
    if isinstance(found, list) and all(type(each) is int and 0 <= each < documents for each in found):
        return found
    raise InputError(
        f"{where}: expected a list of places among {documents:,} candidates, from 0; found {str(found)[:60]}."
    )


def read_wikiqa(path: Path, encoding: str = "utf-8") -> RetrievalData:
    """WikiQA's layout (Yang, Yih and Meek 2015): question TAB sentence TAB 0 or 1, without a header.

    Rows with the same question are its candidates: what is measured is their order. Published figures leave
    out the questions without a right sentence.
    Queries are q1, q2 … in their order, their sentences q1-1, q1-2 … Raises InputError naming the line.
    """
    gathered = RetrievalDataBuilder()
    ids: dict[str, str] = {}
    candidates: dict[str, list[str]] = {}
    rows = read_rows(path, (1, 2, 3), format="tsv", header=False, encoding=encoding)
    for (question, sentence, label), where in rows:
        if question not in ids:
            ids[question] = f"q{len(ids) + 1}"
            gathered.add_query(ids[question], question, where)
        query = ids[question]
        document = f"{query}-{len(candidates.setdefault(query, [])) + 1}"
        gathered.add_document(document, sentence, where)
        if label.strip() not in ("0", "1"):
            raise InputError(f"{where}: expected 0 or 1 in the third column, found {label!r}.")
        gathered.judge(query, document, int(label), where)
        candidates[query].append(document)
    average = len(rows) / len(ids)
    note = f"Each query ranks its own {average:.0f} candidates (on average), not the whole collection."
    chosen = {query: tuple(documents) for query, documents in candidates.items()}
    return gathered.finish(path.stem, path.name, (note,), chosen)
