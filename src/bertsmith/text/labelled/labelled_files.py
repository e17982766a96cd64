"""Files and folders → the files of labelled rows to learn from, in a stable order."""

import re
from collections.abc import Sequence
from pathlib import Path

from bertsmith.errors import InputError
from bertsmith.text.corpus_settings import CorpusSettings
from bertsmith.text.files.rows import tells_format
from bertsmith.text.files.sources import find_sources
from bertsmith.text.files.streams import SourceFile
from bertsmith.text.labelled import conll

# SuperGLUE has val.jsonl, CoNLL-2003 eng.testa and eng.testb.
_OTHER_SPLIT = re.compile(
    r"(?:^|[^a-z])(dev|devel|eval|evaluation|test|test[ab]|testing|val|valid|validation)(?:[^a-z]|$)",
    re.IGNORECASE,
)


def list_labelled_files(
    paths: Sequence[Path | str], *, besides: Sequence[Path | str | None] = (), format: str | None = None
) -> list[str]:
    """Files as they are named; of folders those below them whose ending tells a format, or all where the
    `format` is given, by name. Files `besides` are for something else: a folder's are left out.

    Raises InputError for a folder without any, for one whose file is to choose or to test by, as its name or
    that of its folder says, and for a file that is named twice.
    """
    others = {Path(path).resolve() for path in besides if path is not None}
    found: list[str] = []
    for path in map(str, paths):
        found += _list_folder(path, others, format) if Path(path).is_dir() else [path]
    resolved = [Path(path).resolve() for path in found]
    for number, path in enumerate(found):
        if resolved[number] in resolved[:number]:
            raise InputError(f"{path} is given twice. Name each file once.")
    return found


def describe_files(paths: Sequence[Path | str]) -> str:
    """For messages: the first, and how many more."""
    return str(paths[0]) + (f" and {len(paths) - 1} more" if len(paths) > 1 else "")


def _list_folder(folder: str, others: set[Path], format: str | None) -> list[str]:
    sources = find_sources([folder], CorpusSettings()).sources
    below = {
        source.path: source.name.partition("/")[2] for source in sources if isinstance(source, SourceFile)
    }
    files = [file for file in below if Path(file).resolve() not in others]
    if format is None:  # plain lines have no labels
        files = [
            file
            for file in files
            if Path(file).suffix.lower() in conll.FORMATS
            or (tells_format(file) and not re.search(r"\.txt(\.\w+)?$", file, re.IGNORECASE))
        ]
    for file in files:
        if name := _OTHER_SPLIT.search(below[file]):
            raise InputError(
                f"{file} is {name[1]} data by its name, and lies in a folder to learn from. Give it as --dev "
                "or --test, which leaves it out here, or name the files to learn from."
            )
    if not files:
        raise InputError(
            f"{folder} holds no file of labelled rows to learn from: none has an ending such as .csv or "
            ".jsonl. Name the files, or give --format."
        )
    return files
