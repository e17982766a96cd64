"""Reads a folder or a file as RetrievalData, in the layout that is named or that its files show.

The layouts of several files are in beir.py and trec.py; those of one file, ReQA's and WikiQA's, are read
here.
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
    """A layout: `read(path, split, encoding)` returns its RetrievalData.

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
    """Reads the test collection in a folder, or in a file of ReQA's (.json) or WikiQA's (.tsv) layout.

    format: beir, nanobeir, trec, reqa or wikiqa; by default the files decide. split: which of a folder's
    judgements to read, by name (BEIR's qrels/test.tsv, NanoBEIR's qrels/test-….parquet, a file *test.json or
    *test.tsv).
    Raises InputError naming file and line for whatever doesn't follow the layout.
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
    """The layout's name by a file's ending or by a folder's files; TREC's if no other fits: its files have
    any name.
    """
    endings = {layout.ending: name for name, layout in LAYOUTS.items() if layout.ending}
    if not path.is_dir():
        if path.suffix not in endings:
            raise InputError(f"{path}: its ending tells no layout. Name one with --format: reqa or wikiqa.")
        return endings[path.suffix]
    if is_beir(path):
        return "beir"
    if is_nanobeir(path):
        return "nanobeir"
    return next((name for ending, name in endings.items() if list(path.glob(f"*{split}{ending}"))), "trec")


def _find_split_file(folder: Path, split: str, ending: str) -> Path:
    files = sorted(folder.glob(f"*{split}{ending}"))
    if len(files) != 1:
        names = ", ".join(path.name for path in files or sorted(folder.glob(f"*{ending}"))) or "none"
        raise InputError(
            f"{folder}: expected one file *{split}{ending}, found {len(files)}. There are: {names}. "
            "Name one of them, or another --split."
        )
    return files[0]


def read_reqa(path: Path, encoding: str = "utf-8") -> RetrievalData:
    """Reads ReQA's layout (Ahmad et al. 2019): questions, and the candidate sentences that may answer them.

    A test file is {"questions": [...], "candidates": [...], "ground_truths": [[index, ...], ...]}, with the
    indices of each question's right candidates, from 0. A training file is {"questions": [...], "answers":
    [...]}: its candidates are all of its answers. Ids are the indices in the lists. Raises InputError naming
    file and item.
    """
    with open_table(path, "json", encoding, {".json": "json"}, None) as table:
        try:
            content = parse_json(table.stream.text(), with_distinct_keys)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path.name} is not valid JSON ({error}). It may have been cut.") from error
    if not isinstance(content, dict):
        raise InputError(f"{path.name}: expected an object with 'questions', found {type(content).__name__}.")
    questions = _require_texts(content, "questions", path.name)
    if "candidates" in content:
        candidates = _require_texts(content, "candidates", path.name)
        ground_truths = _require_list(content, "ground_truths", path.name)
    else:
        answers = _require_texts(content, "answers", path.name)
        candidates = list(dict.fromkeys(answers))
        indices = {text: index for index, text in enumerate(candidates)}
        ground_truths = [[indices[answer]] for answer in answers]
    if len(ground_truths) != len(questions):
        raise InputError(
            f"{path.name}: {len(questions):,} questions, but answers for {len(ground_truths):,}."
        )
    builder = RetrievalDataBuilder()
    for index, text in enumerate(candidates):
        builder.add_document(str(index), text, f"{path.name}, candidate {index}")
    for index, (text, right_candidates) in enumerate(zip(questions, ground_truths, strict=True)):
        where = f"{path.name}, question {index}"
        builder.add_query(str(index), text, where)
        for document in _require_indices(right_candidates, len(candidates), where):
            builder.judge(str(index), str(document), 1, where)
    return builder.finish(path.stem, path.name)


def _require_list(content: dict[str, Any], key: str, name: str) -> list[Any]:
    values = content.get(key)
    if not isinstance(values, list):
        keys = ", ".join(content) or "none"
        raise InputError(f"{name}: expected a list under {key!r}. There are: {keys}.")
    return values


def _require_texts(content: dict[str, Any], key: str, name: str) -> list[str]:
    texts = _require_list(content, key, name)
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise InputError(f"{name}, {key}[{index}]: expected text, found {type(text).__name__}.")
    return texts


def _require_indices(value: Any, count: int, where: str) -> list[int]:
    if isinstance(value, list) and all(type(index) is int and 0 <= index < count for index in value):
        return value
    raise InputError(
        f"{where}: expected a list of places among {count:,} candidates, from 0; found {str(value)[:60]}."
    )


def read_wikiqa(path: Path, encoding: str = "utf-8") -> RetrievalData:
    """Reads WikiQA's layout (Yang, Yih and Meek 2015): question TAB sentence TAB 0 or 1, without a header.

    The sentences of a question are its candidates, and only their order is evaluated. Published figures leave
    out the questions without a right sentence. The ids of queries are q1, q2 … in the file's order, those of
    their sentences q1-1, q1-2 … Raises InputError naming the line.
    """
    builder = RetrievalDataBuilder()
    ids: dict[str, str] = {}
    candidates: dict[str, list[str]] = {}
    rows = read_rows(path, (1, 2, 3), format="tsv", header=False, encoding=encoding)
    for (question, sentence, label), where in rows:
        if question not in ids:
            ids[question] = f"q{len(ids) + 1}"
            builder.add_query(ids[question], question, where)
        query = ids[question]
        document = f"{query}-{len(candidates.setdefault(query, [])) + 1}"
        builder.add_document(document, sentence, where)
        if label.strip() not in ("0", "1"):
            raise InputError(f"{where}: expected 0 or 1 in the third column, found {label!r}.")
        builder.judge(query, document, int(label), where)
        candidates[query].append(document)
    average = len(rows) / len(ids)
    note = f"Each query ranks its own {average:.0f} candidates (on average), not the whole collection."
    frozen_candidates = {query: tuple(documents) for query, documents in candidates.items()}
    return builder.finish(path.stem, path.name, (note,), frozen_candidates)
