"""ReQA's layout (Ahmad et al. 2019): questions, and sentences out of which to find the one that answers.

A test file is {"questions": [...], "candidates": [...], "ground_truths": [[place, ...], ...]}: for each
question the places of its sentences among the candidates, from 0. A training file is {"questions": [...],
"answers": [...]}: here the collection is all of its answers.
"""

from pathlib import Path
from typing import Any

from bertsmith.errors import InputError
from bertsmith.files import parse_json, with_distinct_keys
from bertsmith.text.files.table_file import open_table
from bertsmith.text.retrieval.retrieval_data import Gathering, RetrievalData


def read_reqa(path: Path, encoding: str = "utf-8") -> RetrievalData:
    """Ids are the places in the lists, from 0. Raises InputError naming file and item."""
    found = _read(path, encoding)
    if not isinstance(found, dict):
        raise InputError(f"{path.name}: expected an object with 'questions', found {type(found).__name__}.")
    questions = _texts(found, "questions", path.name)
    if "candidates" in found:
        documents, truths = _texts(found, "candidates", path.name), _list(found, "ground_truths", path.name)
    else:
        answers = _texts(found, "answers", path.name)
        documents = list(dict.fromkeys(answers))
        places = {text: place for place, text in enumerate(documents)}
        truths = [[places[answer]] for answer in answers]
    if len(truths) != len(questions):
        raise InputError(f"{path.name}: {len(questions):,} questions, but answers for {len(truths):,}.")
    gathered = Gathering()
    for place, text in enumerate(documents):
        gathered.add_document(str(place), text, f"{path.name}, candidate {place}")
    for place, (text, right) in enumerate(zip(questions, truths, strict=True)):
        where = f"{path.name}, question {place}"
        gathered.add_query(str(place), text, where)
        for document in _places(right, len(documents), where):
            gathered.judge(str(place), str(document), 1, where)
    return gathered.finish(path.stem, path.name)


def _read(path: Path, encoding: str) -> Any:
    with open_table(path, "json", encoding, {".json": "json"}, None) as table:
        try:
            return parse_json(table.stream.text(), with_distinct_keys)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path.name} is not valid JSON ({error}). It may have been cut.") from error


def _list(found: dict[str, Any], key: str, name: str) -> list[Any]:
    if not isinstance(found.get(key), list):
        there = ", ".join(found) or "none"
        raise InputError(f"{name}: expected a list under {key!r}. There are: {there}.")
    listed: list[Any] = found[key]
    return listed


def _texts(found: dict[str, Any], key: str, name: str) -> list[str]:
    listed = _list(found, key, name)
    for place, text in enumerate(listed):
        if not isinstance(text, str):
            raise InputError(f"{name}, {key}[{place}]: expected text, found {type(text).__name__}.")
    return listed


def _places(found: Any, documents: int, where: str) -> list[int]:
    if isinstance(found, list) and all(type(each) is int and 0 <= each < documents for each in found):
        return found
    raise InputError(
        f"{where}: expected a list of places among {documents:,} candidates, from 0; found {str(found)[:60]}."
    )
