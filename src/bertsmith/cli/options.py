"""Options that several commands share, each defined and explained once; and decorators with which a command
tells failures.py that it continues when repeated, and which settings it takes.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from shlex import join
from typing import Annotated, Any, Literal, TypeVar

from cyclopts import Group, Parameter, Token

from bertsmith.errors import InputError

AnyCommand = TypeVar("AnyCommand", bound=Callable[..., object])
Flag = Annotated[bool, Parameter(negative="")]  # cyclopts would add a --no-json to --json
ComputeDtype = Literal["float32", "int16", "int8", "bfloat16"]
PredictionDtype = Literal["float32", "int16", "int8"]
_SURROGATES = re.compile("[\ud800-\udfff]")
FileOrDash = Annotated[Path, Parameter(allow_leading_hyphen=True)]  # a lone dash looks like an option


def _read_path_or_dash(path_type: type[Path], tokens: Sequence[Token]) -> Path:
    """Converts --out to a path; "-" is standard output.

    Raises InputError for an empty name, which as a path would be the current folder, and for an option.
    """
    name = tokens[0].value
    if not name:
        raise InputError("--out is empty. Is a shell variable not set? The current folder is '.'.")
    if name.startswith("-") and name != "-":
        raise InputError(f"--out: expected a name, found {name}. Write ./{name} if it is one.")
    return path_type(name)


def _read_path(path_type: type[Path], tokens: Sequence[Token]) -> Path:
    """Converts --out to a path, for a command that can't write to standard output.

    Raises InputError for "-", and for a name that isn't UTF-8: pyarrow and others can't write it.
    """
    if tokens[0].value == "-":
        raise InputError("This command can't write to standard output. Name a file or a folder as --out.")
    if _SURROGATES.search(tokens[0].value):
        raise InputError(f"--out: expected a name in UTF-8, found {tokens[0].value}. Choose another.")
    return _read_path_or_dash(path_type, tokens)


def _replace_surrogates(text_type: type[str], tokens: Sequence[Token]) -> str:
    """Replaces lone surrogates, which stand for bytes that aren't UTF-8, by �: no tokenizer takes them."""
    return text_type(_SURROGATES.sub("\ufffd", tokens[0].value))


ReadableText = Annotated[str, Parameter(converter=_replace_surrogates)]
Out = Annotated[Path, Parameter(converter=_read_path, allow_leading_hyphen=True)]
OutOrDash = Annotated[Path, Parameter(converter=_read_path_or_dash, allow_leading_hyphen=True)]

_READING = "How the rows are read"

AS_NAMED = Parameter(
    group=Group(
        _READING, help="By default the first row names the columns, and they are found by their usual names."
    )
)
AS_TRAINED = Parameter(group=Group(_READING, help="By default as in training, but for the encoding."))


@Parameter(name="*")
@dataclass(frozen=True)
class RunFiles:
    """The model that a fine-tuning starts from, the files it reads and the folder it writes.

    Parameters
    ----------
    model
        The encoder to start from: a folder such as runs/NAME/model, minilm, or a model's name on the hub.
    out
        The folder to write: the model, the report and all figures.
    train
        Labelled rows: CSV, TSV, JSON lines or Parquet; CoNLL for tagging; SQuAD's JSON for question
        answering. A file or a folder of them; for more, repeat the option.
    dev
        Labelled rows that choose the best weights. Without it, up to 2,000 training rows are cross-validated;
        of more rows, and for question-answering, retrieval and reranking, a tenth is held out.
    test
        Labelled rows that are measured once, at the end.
    """

    model: str
    out: Out
    train: list[Path] | None = None
    dev: Path | None = None
    test: Path | None = None


@Parameter(name="*")
@dataclass(frozen=True)
class TextColumns:
    """Where in a row its texts are.

    Parameters
    ----------
    text
        The column of the text: its name, or its number counted from 1.
    text_pair
        The column of the second text of a pair: its name or number.
    """

    text: str | None = None
    text_pair: str | None = None


@Parameter(name="*")
@dataclass(frozen=True)
class LabelledColumns(TextColumns):
    """Where in a row its texts and its label are.

    Parameters
    ----------
    label
        The column of the label: its name or number.
    missing
        Rows without a text or a label: refuse them (by default), drop them, or keep blank texts as they are.
    scheme
        How the tags of words are written, for tagging: io, iob1, iob2, ioe1, ioe2, iobes, bilou, bmes, bmewo,
        or none if they mark no entities. By default it is recognised.
    """

    label: str | None = None
    missing: Literal["refuse", "drop", "keep"] | None = None
    scheme: str | None = None


@Parameter(name="*")
@dataclass(frozen=True)
class FileLayout:
    """How a file holds its rows.

    Parameters
    ----------
    header
        Whether the first row names the columns.
    format
        csv, tsv, jsonl, json, parquet, conll, or lines (a text per line). By default the file's ending
        decides.
    encoding
        The text's encoding, such as latin-1. By default UTF-8.
    """

    header: bool | None = None
    format: str | None = None
    encoding: str | None = None


def continues_when_repeated(command: AnyCommand) -> AnyCommand:
    """Marks a command that continues where it stopped when it is repeated; others need --resume."""
    command.__dict__["continues_when_repeated"] = True
    return command


def takes_settings(names: Callable[[Sequence[str]], list[str]]) -> Callable[[AnyCommand], AnyCommand]:
    """Marks a command that takes settings as key=value. `names` lists them, given the command's words."""

    def mark(command: AnyCommand) -> AnyCommand:
        command.__dict__["settings"] = names
        return command

    return mark


def finetune_setting_names(words: Sequence[str]) -> list[str]:
    """The names of finetune's settings: of the task among the words, or those that all tasks have."""
    from bertsmith.tasks.registry import TASKS, find_task
    from bertsmith.tasks.task import TaskSettings
    from bertsmith.training.finetune_recipe import FinetuneRecipe, list_finetune_settings

    task = next((find_task(word).Settings for word in words if word in TASKS), TaskSettings)
    return list_finetune_settings(FinetuneRecipe, *task.model_fields)


def as_typed(command: Callable[..., object], words: str, /, *arguments: object, **options: object) -> str:
    """The command line that runs `command` again: its words, its arguments, and the options that differ from
    their defaults, quoted for a shell.
    """
    typed = ["bertsmith", *words.split(), *map(str, arguments)]
    parameters = signature(command).parameters
    for name, value in options.items():
        option = name.replace("_", "-")
        if name in parameters and value == parameters[name].default:
            continue
        if isinstance(value, bool):
            typed.append(f"--{option}" if value else f"--no-{option}")
        else:
            typed += [f"--{option}", *(map(str, value) if isinstance(value, tuple) else [str(value)])]
    return join(typed)


def collect_options(*options: object) -> dict[str, Any]:
    """The options that were given on the command line, by name, with paths as text.

    An option that was left out is left out here, too: the task's settings hold its default.
    """
    values = {name: value for option in options if option is not None for name, value in vars(option).items()}
    return {name: _as_text(value) for name, value in values.items() if value is not None}


def _as_text(value: Any) -> Any:
    """Paths as text, those in a list too; other values as they are."""
    if isinstance(value, list):
        return [_as_text(part) for part in value]
    return str(value) if isinstance(value, Path) else value
