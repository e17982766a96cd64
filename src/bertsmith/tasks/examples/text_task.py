"""What tasks on a text, or a pair of texts, have in common: rows and windows."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from bertsmith.arrays import Int32s, Ints
from bertsmith.data.windows import windows
from bertsmith.errors import InputError
from bertsmith.tasks.checkpoints.sentence_settings import read_pooling
from bertsmith.tasks.examples.encoding import Encoded, Window, join_segments, special_tokens
from bertsmith.tasks.heads.pooling import Pooling
from bertsmith.tasks.task import Prediction, Task, TaskSettings
from bertsmith.text.files.columns import guess_columns, listed
from bertsmith.text.files.values import as_text, shown
from bertsmith.text.labelled.rows import LINES_HAVE, are_lines, read_column_names, read_rows
from bertsmith.text.tokens.long_texts import Pieces
from bertsmith.text.tokens.patch_tokenizer import PatchPieces
from bertsmith.text.tokens.tokenizer import Tokenizer

ID = "id"  # the column that is carried over to the predictions
_FIRST_ROW = np.zeros(1, np.int64)


@dataclass(frozen=True)
class TextExample:
    """A text, perhaps a second one, and its label (None where it is to be predicted). `id` is what the file
    calls it, to be known again among the predictions.
    """

    text: str
    text_pair: str | None
    label: Any
    where: str
    id: str | int | None = None


class PooledSettings(TaskSettings):
    """`pooling` makes a text's hidden states one vector, which a linear layer reads: mean, cls or max.
    published: the head of the family's class in transformers. None: training chooses, as the encoder suits.
    """

    pooling: Literal["mean", "cls", "max", "published"] | None = None

    @property
    def linear_pooling(self) -> Pooling | None:
        """None for the published head, which is that of a model that says nothing."""
        return None if self.pooling == "published" else self.pooling


def choose_pooling(task: Task[Any], source: Path) -> None:
    """Settles, where the user didn't, what a head of the task reads: the pooling that the encoder's folder
    names, else the mean.
    """
    if isinstance(task.settings, PooledSettings) and task.settings.pooling is None:
        task.settings = task.settings.model_copy(update={"pooling": read_pooling(source) or "mean"})


class TextTask(Task[TextExample]):
    """Reads a table's columns; a subclass says what a label is."""

    without_label: ClassVar[str] = ""  # what else could be done about rows that have none

    def read(self, path: Path | str, *, labelled: bool = True) -> list[TextExample]:
        """One example a row. Raises InputError naming file and line."""
        roles = self._columns(path, labelled)
        if labelled:  # what the first file's names decided holds for the files that follow
            self.settings = self.settings.model_copy(update=roles)
        settings = self.settings
        rows = read_rows(
            path,
            list(roles.values()),
            format=settings.format,
            header=settings.header,
            encoding=settings.encoding,
            optional=[] if labelled else [ID],
            blank_lines=not labelled,
        )
        names = [*roles] if labelled else [*roles, ID]
        return [self._example(dict(zip(names, values, strict=True)), where) for values, where in rows]

    def read_partly_labelled(self, path: Path | str) -> list[TextExample]:
        """One example a row; its label is None where its cell is blank, or there is no such column. Raises as
        `read` does.
        """
        settings, columns = self.settings, None
        if not are_lines(path, format=settings.format, encoding=settings.encoding):
            names = read_column_names(
                path, format=settings.format, header=settings.header, encoding=settings.encoding
            )
            column = guess_columns(names, str(path)).label if settings.label is None else settings.label
            if column in names or (column is not None and not settings.header):
                columns = self._columns(path, True)
        if columns is None:
            return self.read(path, labelled=False)
        rows = read_rows(
            path,
            list(columns.values()),
            format=settings.format,
            header=settings.header,
            encoding=settings.encoding,
        )
        found = []
        for values, where in rows:
            named = dict(zip(columns, values, strict=True))
            if named["label"] is None or (isinstance(named["label"], str) and not named["label"].strip()):
                del named["label"]
            found.append(self._example(named, where))
        return found

    def _columns(self, path: Path | str, labelled: bool) -> dict[str, str | int]:
        """Which column plays which role: as set, else by the names in the file."""
        settings = self.settings
        roles: dict[str, str | int | None] = {
            "text": settings.text,
            "text_pair": settings.text_pair,
            "label": settings.label,
        }
        if settings.text is None or (labelled and settings.label is None):
            names = read_column_names(
                path, format=settings.format, header=settings.header, encoding=settings.encoding
            )
            guessed = guess_columns(names, str(path))._asdict()
            if settings.text is not None:  # who names the text means no pair, unless one is named
                guessed["text_pair"] = None
            roles = {role: guessed[role] if column is None else column for role, column in roles.items()}
        if not labelled:
            del roles["label"]
            single = roles["text_pair"] is None
            if single and are_lines(path, format=settings.format, encoding=settings.encoding):
                return {"text": LINES_HAVE[0]}  # whatever the column was called in training
        elif roles["label"] is None:
            raise InputError(
                f"{path}: no column has a name that says it is the label. There are: "
                f"{listed(names)}. Name it with --label.{self.without_label}"
            )
        return {role: column for role, column in roles.items() if column is not None}

    def _example(self, values: dict[str, Any], where: str) -> TextExample:
        pair = as_text(values["text_pair"], where) if "text_pair" in values else None
        label = self.as_target(values["label"], where) if "label" in values else None
        id = values.get(ID)
        known = id if id is None or isinstance(id, str | int) else str(id)
        return TextExample(as_text(values["text"], where), pair, label, where, known)

    def example(self, text: str | Sequence[str], where: str = "the input") -> TextExample:
        """An unlabelled example from a text, or from two, as in training; InputError for anything else."""
        pairs = self.reads_pairs
        match text:
            case str() if not pairs:
                return TextExample(text, None, None, where)
            case [str() as first, str() as second] if pairs is not False:
                return TextExample(first, second, None, where)
        wanted = "a text, or a pair of texts" if pairs is None else "a pair of texts" if pairs else "a text"
        raise InputError(f"{where}: the model reads {wanted}; found {shown(text)}.")

    @property
    def reads_pairs(self) -> bool | None:
        """Whether training had a second text; None where nobody knows, as of a model of transformers."""
        return None if self.settings.text is None else self.settings.text_pair is not None

    @abstractmethod
    def as_target(self, value: Any, where: str) -> Any:
        """A label as it stands in a file → what examples hold. Raises InputError naming file and line."""

    def target(self, label: Any) -> Any:
        """An example's label → what the loss compares with."""
        return label

    def line(self, example: TextExample, prediction: Prediction) -> dict[str, Any]:
        """The id, the text, its partner and its label, where there are any, then the prediction."""
        pair = {} if example.text_pair is None else {"text_pair": example.text_pair}
        gold = {} if example.label is None else {"gold": example.label}
        known = {} if example.id is None else {ID: example.id}
        return {**known, "text": example.text, **pair, **gold, **prediction}

    def texts(self, example: TextExample) -> Sequence[str]:
        """One text, or two."""
        return (example.text,) if example.text_pair is None else (example.text, example.text_pair)

    def encode(self, example: TextExample, pieces: Sequence[Pieces], tokenizer: Tokenizer) -> Encoded:
        """[CLS] text [SEP], or [CLS] text [SEP] pair [SEP]; the head reads the first row of each window."""
        room = self.settings.max_length - special_tokens(tokenizer, len(pieces))
        ids = [piece.ids for piece in pieces]
        stride = self.settings.stride
        if len(ids) == 2:
            spans = pair_windows(ids[0], ids[1], room, stride)
        else:
            spans = single_windows(ids[0], room, stride)
        made = [join_segments(tokenizer, *parts) for parts in spans]
        if isinstance(pieces[0], PatchPieces):
            return Encoded((_patch_window(example, pieces, *made[0]),), self._target(example))
        return Encoded(tuple(Window(*each, _FIRST_ROW) for each in made), self._target(example))

    def _target(self, example: TextExample) -> Any:
        return None if example.label is None else self.target(example.label)


def _patch_window(
    example: TextExample, pieces: Sequence[Pieces], token_ids: Int32s, segment_ids: Ints
) -> Window:
    """[CLS] patches [SEP] and their values; of a row that is too long its beginning."""
    first = pieces[0]
    if len(pieces) != 1 or not isinstance(first, PatchPieces):
        raise InputError(f"{example.where}: a model of patches reads one row of numbers, not a pair.")
    values = np.zeros((len(token_ids), first.values.shape[1]), np.float32)
    values[1:-1] = first.values[: len(token_ids) - 2]
    return Window(token_ids, segment_ids, _FIRST_ROW, values=values)


def as_text_or_pair(example: TextExample) -> str | tuple[str, str]:
    """What the baselines read."""
    return example.text if example.text_pair is None else (example.text, example.text_pair)


def single_windows(ids: Sequence[int], room: int, stride: int | None) -> list[tuple[Sequence[int], ...]]:
    """The windows of one text."""
    return [(ids[start:end],) for start, end in windows(ids, room, stride)]


def pair_windows(
    first: Sequence[int], second: Sequence[int], room: int, stride: int | None
) -> list[tuple[Sequence[int], ...]]:
    """The windows of a pair: without a stride both are cut, the longer one first; with one, the first text
    stands before each window of the second, cut only if it takes more than half of the room.
    """
    if len(first) + len(second) <= room:
        return [(first, second)]
    if stride is None:
        kept = max(room - min(len(second), room // 2), 0)
        first = first[:kept]
        return [(first, second[: room - len(first)])]
    first = first[: room // 2]
    left = room - len(first)
    return [(first, second[start:end]) for start, end in windows(second, left, min(stride, left - 1))]
