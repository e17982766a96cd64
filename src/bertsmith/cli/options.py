"""Options that several commands share, each named and explained once; and what a command says of itself
beside its options, for the sentences of failures.py.
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
ComputeDtype = Literal["float32", "int16", "bfloat16"]
_SURROGATES = re.compile("[\ud800-\udfff]")
FileOrDash = Annotated[Path, Parameter(allow_leading_hyphen=True)]  # a lone dash looks like an option


def _place_or_dash(kind: type[Path], tokens: Sequence[Token]) -> Path:
    """Raises InputError for an empty name, which as a path would be the current folder, and for an option."""
    name = tokens[0].value
    if not name:
        raise InputError("--out is empty. Is a shell variable not set? The current folder is '.'.")
    if name.startswith("-") and name != "-":
        raise InputError(f"--out: expected a name, found {name}. Write ./{name} if it is one.")
    return kind(name)


def _place(kind: type[Path], tokens: Sequence[Token]) -> Path:
    """The same for what can't be written to standard output. Raises InputError for a name that is no UTF-8,
    which pyarrow and others don't write.
    """
    if tokens[0].value == "-":
        raise InputError("This command can't write to standard output. Name a file or a folder as --out.")
    if _SURROGATES.search(tokens[0].value):
        raise InputError(f"--out: expected a name in UTF-8, found {tokens[0].value}. Choose another.")
    return _place_or_dash(kind, tokens)


def _readable(kind: type[str], tokens: Sequence[Token]) -> str:
    """Bytes that are no UTF-8 come as lone surrogates, which no tokenizer takes: � stands for each."""
    return kind(_SURROGATES.sub("\ufffd", tokens[0].value))


ReadableText = Annotated[str, Parameter(converter=_readable)]
Out = Annotated[Path, Parameter(converter=_place, allow_leading_hyphen=True)]
OutOrDash = Annotated[Path, Parameter(converter=_place_or_dash, allow_leading_hyphen=True)]

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
    """What a fine-tuning begins with, reads and writes.

    Parameters
    ----------
    model
        The encoder to start from: a folder such as runs/NAME/model, minilm, or a model's name on the hub.
    train
        Labelled rows: CSV, TSV, JSON lines or Parquet; CoNLL for tagging; SQuAD's JSON for question
        answering. A file or a folder of them; for more, repeat the option.
    out
        The folder to write: the model, the report and all figures.
    dev
        Labelled rows that choose the best weights. Without it, up to 2,000 training rows are cross-validated;
        of more rows, and for question-answering, retrieval and reranking, a tenth is held out.
    test
        Labelled rows that are measured once, at the end.
    """

    model: str
    train: list[Path]
    out: Out
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
    """Says that the same command goes on from what is finished; others need --resume, or begin anew."""
    command.__dict__["continues_when_repeated"] = True
    return command


def takes_settings(names: Callable[[Sequence[str]], list[str]]) -> Callable[[AnyCommand], AnyCommand]:
    """Says that a command takes settings as key=value, and their `names`, given the words of the command."""

    def said(command: AnyCommand) -> AnyCommand:
        command.__dict__["settings"] = names
        return command

    return said


def finetune_setting_names(words: Sequence[str]) -> list[str]:
    """Of the task that is among the words, or what all tasks have."""
    from bertsmith.tasks.registry import TASKS, find_task
    from bertsmith.tasks.task import TaskSettings
    from bertsmith.training.finetune_recipe import FinetuneRecipe, list_finetune_settings

    task = next((find_task(word).Settings for word in words if word in TASKS), TaskSettings)
    return list_finetune_settings(FinetuneRecipe, *task.model_fields)


def as_typed(command: Callable[..., object], words: str, /, *arguments: object, **options: object) -> str:
    """What to type to run a command again: its words, its arguments, and the options that differ from their
    defaults.
    """
    typed = ["bertsmith", *words.split(), *map(str, arguments)]
    parameters = signature(command).parameters
    for name, value in options.items():
        option = name.replace("_", "-")
        if name in parameters and value == parameters[name].default:
            continue
        if value is False:
            typed.append(f"--no-{option}")
        else:
            typed += [f"--{option}", *(map(str, value) if isinstance(value, tuple) else [str(value)])]
    return join(typed)


def collect_options(*options: object) -> dict[str, Any]:
    """What was said on the command line, by name: paths as text, and nothing for what was left out.

    The rest is for the settings of the task to decide, which hold the defaults.
    """
    said = {name: value for option in options if option is not None for name, value in vars(option).items()}
    return {name: _as_text(value) for name, value in said.items() if value is not None}


def _as_text(value: Any) -> Any:
    """Paths, and those of a list."""
    if isinstance(value, list):
        return [_as_text(part) for part in value]
    return str(value) if isinstance(value, Path) else value
