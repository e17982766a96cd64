"""A folder or a file → RetrievalData, by the layout that its files show or that was named."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from bertsmith.errors import InputError
from bertsmith.text.retrieval.beir import is_beir, read_beir
from bertsmith.text.retrieval.nanobeir import is_nanobeir, read_nanobeir
from bertsmith.text.retrieval.reqa import read_reqa
from bertsmith.text.retrieval.retrieval_data import RetrievalData
from bertsmith.text.retrieval.trec import read_trec
from bertsmith.text.retrieval.wikiqa import read_wikiqa


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
    layout = LAYOUTS[format or _guess(path, split)]
    if layout.ending is None and not path.is_dir():
        raise InputError(f"{path} is a file, and this layout is a folder of several. Name the folder.")
    if layout.ending is not None and path.is_dir():
        path = _file_of_split(path, split, layout.ending)
    return layout.read(path, split, encoding)


def _guess(path: Path, split: str) -> str:
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


def _file_of_split(folder: Path, split: str, ending: str) -> Path:
    found = sorted(folder.glob(f"*{split}{ending}"))
    if len(found) != 1:
        names = ", ".join(path.name for path in found or sorted(folder.glob(f"*{ending}"))) or "none"
        raise InputError(
            f"{folder}: expected one file *{split}{ending}, found {len(found)}. There are: {names}. "
            "Name one of them, or another --split."
        )
    return found[0]
