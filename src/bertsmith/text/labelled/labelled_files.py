"""Lists the files of labelled rows to train on, out of files and folders, in a stable order."""

import re
from collections.abc import Sequence
from pathlib import Path

from bertsmith.errors import InputError
from bertsmith.text.corpus_settings import CorpusSettings
from bertsmith.text.files.rows import tells_format
from bertsmith.text.files.sources import find_sources
from bertsmith.text.files.streams import SourceFile, file_ending
from bertsmith.text.labelled import conll

# Names of files that aren't for training, such as SuperGLUE's val.jsonl, CoNLL-2003's eng.testa, testset.csv.
_OTHER_SPLIT = re.compile(
    r"(?:^|[^a-z])(dev|devel|eval|evaluation|tests?|test[ab]|testing|val|valid|validation|h[eo]ld[-_]?out)"
    r"(?:set|data)?(?:[^a-z]|$)",
    re.IGNORECASE,
)


def list_labelled_files(
    paths: Sequence[Path | str], *, besides: Sequence[Path | str | None] = (), format: str | None = None
) -> list[str]:
    """The files among `paths` as they are named, and the files of labelled rows below the folders, sorted.

    In a folder, those with the ending of a format count, or all files if the `format` is given. Its files
    that are `besides` are left out: they have another purpose, such as the dev set. Raises InputError for a
    folder without such files, for a folder with a file that is dev or test data by its name or by its
    folder's, and for a file that is named twice.
    """
    other_files = {Path(path).resolve() for path in besides if path is not None}
    files: list[str] = []
    for path in map(str, paths):
        files += _list_folder(path, other_files, format) if Path(path).is_dir() else [path]
    resolved = [Path(path).resolve() for path in files]
    for index, path in enumerate(files):
        if resolved[index] in resolved[:index]:
            raise InputError(f"{path} is given twice. Name each file once.")
    return files


def describe_files(paths: Sequence[Path | str]) -> str:
    """The first file and how many more there are, for a message: 'a.csv and 2 more'."""
    return str(paths[0]) + (f" and {len(paths) - 1} more" if len(paths) > 1 else "")


def _list_folder(folder: str, other_files: set[Path], format: str | None) -> list[str]:
    sources = find_sources([folder], CorpusSettings()).sources
    names_below = {  # path -> path within the folder
        source.path: source.name.partition("/")[2] for source in sources if isinstance(source, SourceFile)
    }
    files = [file for file in names_below if Path(file).resolve() not in other_files]
    if format is None:  # plain text has no labels
        files = [
            file
            for file in files
            if file_ending(file) in conll.FORMATS or (tells_format(file) and file_ending(file) != ".txt")
        ]
    for file in files:
        if split := _OTHER_SPLIT.search(names_below[file]):
            raise InputError(
                f"{file} is {split[1]} data by its name, and lies in a folder to learn from. Give it as "
                "--dev or --test, which leaves it out here, or name the files to learn from."
            )
    if not files:
        raise InputError(
            f"{folder} holds no file of labelled rows to learn from: none has an ending such as .csv or "
            ".jsonl. Name the files, or give --format."
        )
    return files
