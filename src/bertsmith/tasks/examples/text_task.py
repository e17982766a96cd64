"""What tasks on a text, or a pair of texts, have in common: rows and windows."""

from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from bertsmith.errors import InputError, ModelError
from bertsmith.files import read_json, write_json
from bertsmith.model.config import BertConfig
from bertsmith.model.folder_keys import SENTENCE_TRANSFORMERS, TOKENIZER_CONFIG
from bertsmith.model.locate import SENTENCE_SETTINGS
from bertsmith.tasks.examples.columns import (
    Cell,
    ColumnChoice,
    FittedColumns,
    as_cell,
    cells_of,
    require_apart,
)
from bertsmith.tasks.examples.encoding import (
    EncodedExample,
    Window,
    join_segments,
    pair_windows,
    single_windows,
    special_tokens,
    windows,
)
from bertsmith.tasks.examples.text_settings import MixedSettings
from bertsmith.tasks.saved_state import require_text, require_truth
from bertsmith.tasks.task import Prediction, Task
from bertsmith.text.files.columns import (
    guess_label,
    listed,
    named_column,
    names_a_text,
    unknown_column,
)
from bertsmith.text.files.rows import (
    are_lines,
    are_objects,
    guess_file_columns,
    names_of_numbers,
    quoting_warnings,
    read_column_names,
    read_keys,
    read_rows,
)
from bertsmith.text.files.tables import LINES_HAVE
from bertsmith.text.files.values import ID, as_category, as_id, as_text, is_blank, shown
from bertsmith.text.labelled.labelled_files import named_files
from bertsmith.text.tokens.long_texts import Pieces
from bertsmith.text.tokens.tokenizer import Tokenizer
from bertsmith.text.tokens.value_tokenizers import ValuePieces

_ROLES = {"text": "text", "text_pair": "second text", "label": "label"}
_KINDS: Mapping[bool | None, str] = {
    None: "a text, or a pair of texts",
    True: "a pair of texts",
    False: "a text",
}
_FIRST_ROW = np.zeros(1, np.int64)
_CROSS_ENCODER = {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}


@dataclass(frozen=True)
class TextExample:
    """A text, perhaps a second one, and its label (None where it is to be predicted). `id` is what the file
    calls it, to be known again among the predictions. `columns` are the cells of the table beside the text
    that the task reads too; `group` what the rows of one source have in common, where the file says so.
    """

    text: str
    text_pair: str | None
    label: Any
    where: str
    id: str | int | None = None
    columns: tuple[Cell, ...] = ()
    group: str | None = None


class TextTask(Task[TextExample]):
    """Reads a table's columns; a subclass says what a label is."""

    without_label: ClassVar[str] = ""  # what else could be done about rows that have none
    may_be_unlabelled: ClassVar[bool] = False  # whether an empty cell is an answer: no label at all
    columns: FittedColumns | None = (
        None  # what training showed of the columns beside the text, where there are any
    )
    prompt: str = ""  # before every text, of pairs the first, as the model's folder says
    pairs: bool | None = None  # whether training had a second text; None where the settings' columns say it
    _guesses_texts = False  # whether the names in the first file said which columns hold the texts

    def decoding(self, tokenizer: Tokenizer) -> dict[str, Any]:
        return {"prompt": self.prompt} if self.prompt else {}

    def for_file(self, path: Path, columns: Mapping[str, Any]) -> Self:
        """Where the file lacks a column that the settings name, the names in it decide, unless one was given.
        They don't decide whether texts come alone or in pairs.
        """
        task = super().for_file(path, columns)
        settings = task.settings
        layout = settings.model_dump(include={"format", "encoding"})
        if not settings.header or are_lines(path, **layout):
            return task
        names = read_column_names(path, header=True, **layout)
        guessed: dict[str, Any] = {}
        if "text" not in columns and isinstance(settings.text, str) and settings.text not in names:
            guessed = {"text": None, "text_pair": None}
        if "label" not in columns and isinstance(settings.label, str) and settings.label not in names:
            guessed["label"] = None
        task = super().for_file(path, guessed | dict(columns))
        if task.settings.text is None:
            task.pairs = self.reads_pairs
        return task

    @property
    def features(self) -> tuple[ColumnChoice, ...]:
        """The columns beside the text."""
        settings = self.settings
        return tuple(map(ColumnChoice.of, settings.features)) if isinstance(settings, MixedSettings) else ()

    @property
    def column_names(self) -> tuple[str, ...]:
        """Theirs."""
        return tuple(feature.name for feature in self.features)

    def fit_columns(self, train: Sequence[TextExample]) -> None:
        """What the training rows say of the columns. Raises InputError for one that says nothing."""
        if self.features:
            rows, places = [example.columns for example in train], [example.where for example in train]
            self.columns = FittedColumns.fit(self.features, rows, places)

    @property
    def column_width(self) -> int:
        """F, the features of all columns."""
        return 0 if self.columns is None else self.columns.width

    def read(self, path: Path | str, *, labelled: bool = True) -> list[TextExample]:
        """One example a row. Raises InputError naming file and line."""
        per_label = self.label_columns(path) if labelled else ()
        roles = self._columns(path, labelled, per_label)
        if labelled:  # what the first file's names decided holds for the files that follow
            if self.settings.text is None:
                self._guesses_texts = True
            elif self._guesses_texts:
                self._require_same_texts(path, per_label)
            self.settings = self.settings.model_copy(update=roles)
        settings = self.settings
        more = self.optional_group if labelled else ID
        group = getattr(settings, "group", None) if labelled and more is None else None
        beside = [*([] if group is None else [group]), *per_label]
        optional = [] if more is None else [more]
        rows = read_rows(
            path,
            [*roles.values(), *self.column_names, *beside],
            format=settings.format,
            header=settings.header,
            encoding=settings.encoding,
            optional=optional,
            blank_lines=not labelled,
        )
        named = [*roles, *([] if group is None else ["group"]), *range(len(per_label))]
        named += ["group" if labelled else ID for _ in optional]
        examples = []
        for values, where in rows:
            row, cells = self._divided(named, values, len(roles))
            if per_label:
                row["label"] = [row.pop(number) for number in range(len(per_label))]
            examples.append(self._example(row, cells, where))
        self.left_out += self._doubts_of_reading(examples, path)
        if not labelled:
            return examples
        self.tell_lost_groups(examples, path)
        return self.complete(examples, self.gaps(examples), path)

    def read_files(self, paths: Sequence[Path | str]) -> list[TextExample]:
        """-1 in one file says that there is no label where another has 0, 1, 2."""
        examples = super().read_files(paths)
        settings = self.settings
        columns = {"text": settings.text, "text_pair": settings.text_pair, "label": settings.label}
        layout = settings.model_dump(include={"format", "header", "encoding"})
        self.named_columns = names_of_numbers(paths, columns, **layout)
        if len(paths) == 1:
            return examples
        return self.complete(examples, self.gaps(examples), named_files(paths))

    def label_columns(self, path: Path | str) -> Sequence[str]:
        """Where each label has a column of its own: theirs."""
        return ()

    def has_text(self, example: TextExample) -> bool:
        """Columns beside a blank text may answer for it, and a prompt doesn't."""
        texts = (example.text,) if example.text_pair is None else (example.text, example.text_pair)
        return bool(example.columns) or not any(map(is_blank, texts))

    def stand_ins(self, labels: Collection[Any]) -> Collection[Any]:
        """Those of a file's labels that mean that there is none."""
        return ()

    def gaps(self, examples: Sequence[TextExample]) -> list[str]:
        """What each lacks of text and label; "" for nothing."""
        keeps = getattr(self.settings, "missing", "refuse") == "keep"
        stand_ins = self.stand_ins([example.label for example in examples if example.label is not None])
        return [
            "text"
            if not keeps and not self.has_text(example)
            else "label"
            if example.label is None or example.label in stand_ins
            else ""
            for example in examples
        ]

    def read_partly_labelled(self, path: Path | str, *, needs_label: bool = False) -> list[TextExample]:
        """One example a row; its label is None where its cell is blank, or there is no such column or, in a
        JSON object, no such key. The settings keep the columns that were guessed. Raises as `read` does, and
        where the label `needs_label` and no row has its column.
        """
        settings = self.settings
        lines = are_lines(path, format=settings.format, encoding=settings.encoding)
        per_label = () if lines else self.label_columns(path)
        label = None if lines or per_label else self._label_of_any_row(path)
        if needs_label and label is None and settings.label is not None:
            raise unknown_column(settings.label, self._names(path), str(path))
        if label is not None:
            self.settings = settings.model_copy(update={"label": label})
        columns = self._columns(path, label is not None, per_label)
        if settings.text is None:
            self.settings = self.settings.model_copy(update=columns)
        if label is None and not per_label:
            return self.read(path, labelled=False)
        by_key = are_objects(path, format=settings.format, encoding=settings.encoding)
        by_key = by_key and not str(label).isdecimal()  # objects have no numbers: an error says so
        needed = [column for role, column in columns.items() if role != "label" or not by_key]
        group = [] if self.optional_group is None else [self.optional_group]
        rows = read_rows(
            path,
            [*needed, *self.column_names, *per_label],
            format=settings.format,
            header=settings.header,
            encoding=settings.encoding,
            optional=[*([str(label)] if by_key and not per_label else []), *group],
        )
        found, roles = [], [*columns, *range(len(per_label)), *("group" for _ in group)]
        for values, where in rows:
            named, cells = self._divided(roles, values, len(needed))
            if per_label:
                hot = [named.pop(number) for number in range(len(per_label))]
                named["label"] = None if all(map(is_blank, hot)) else hot
            if is_blank(named["label"]):
                del named["label"]
            found.append(self._example(named, cells, where))
        self.left_out += self._doubts_of_reading(found, path)
        keeps = getattr(settings, "missing", "refuse") == "keep"
        if stand_ins := self.stand_ins({row.label for row in found} - {None}):
            found = [replace(row, label=None) if row.label in stand_ins else row for row in found]
        blank = [not keeps and row.label is not None and not self.has_text(row) for row in found]
        return self.complete(found, ["text" if is_one else "" for is_one in blank], path)

    def _doubts_of_reading(self, examples: Sequence[TextExample], path: Path | str) -> list[str]:
        texts = (text for example in examples for text in (example.text, example.text_pair or ""))
        found = quoting_warnings(path, texts, self.settings.format)
        first = next(iter(examples), None)
        if first is not None and not self.settings.header and names_a_text(first.text):
            found.append(
                f"{first.where}: {first.text!r} was read as a text, for the file is read without a header "
                "(header=false, or as in training). If it names a column, say --header"
            )
        return found

    def _label_of_any_row(self, path: Path | str) -> str | int | None:
        """The column that was named for the label, or one that is called so, if it is there. Where rows are
        objects with keys of their own, the first one may have none.
        """
        settings = self.settings
        names = self._names(path)
        if are_objects(path, format=settings.format, encoding=settings.encoding):
            names = read_keys(path, format=settings.format, encoding=settings.encoding)
        if settings.label is not None:
            return None if named_column(settings.label, names) is None else settings.label
        taken = [named_column(each, names) for each in (settings.text, settings.text_pair)]
        free = [name for name in names if name not in (*taken, *self.column_names)]
        return guess_label(free, str(path))

    def _divided(
        self, named: Sequence[str | int], values: Sequence[Any], roles: int
    ) -> tuple[dict[Any, Any], Sequence[Any]]:
        """A row's values by what they are, and the cells that stand behind so many roles."""
        cells = values[roles : roles + len(self.features)]
        others = [*values[:roles], *values[roles + len(cells) :]]
        return dict(zip(named, others, strict=True)), cells

    def _columns(
        self, path: Path | str, labelled: bool, per_label: Sequence[str] = ()
    ) -> dict[str, str | int]:
        """Which column plays which role: as set, else by the names in the file. No column is the label where
        each label has its own.
        """
        settings = self.settings
        roles: dict[str, str | int | None] = {
            "text": settings.text,
            "text_pair": settings.text_pair,
            "label": settings.label,
        }
        names: Sequence[str] = ()
        if settings.text is None or (labelled and settings.label is None):
            names = self._names(path)
            besides = (*self.column_names, *per_label)
            labelled = labelled and not per_label
            said = settings.model_dump(include={"format", "header", "encoding", *roles})
            roles = guess_file_columns(path, **said, besides=besides, labelled=labelled)._asdict()
        if not labelled:
            del roles["label"]
            single = roles["text_pair"] is None
            if single and are_lines(path, format=settings.format, encoding=settings.encoding):
                return {"text": LINES_HAVE[0]}  # whatever the column was called in training
        elif roles["label"] is None:
            beside = f", beside the features {listed(self.column_names)}" if self.features else ""
            free = [name for name in names if name not in self.column_names]
            raise InputError(
                f"{path}: no column has a name that says it is the label. There are: "
                f"{listed(free)}{beside}. Name it with --label.{self.without_label}"
            )
        found = {role: column for role, column in roles.items() if column is not None}
        asked: list[tuple[str | int, str]] = [(name, "one of the features") for name in self.column_names]
        asked += [(column, f"the {_ROLES[role]}") for role, column in found.items()]
        by_number = len(asked) > 1 and any(str(column).isdecimal() for column, _ in asked)
        if by_number and not names and str(path) != "-":
            names = self._names(path)
        require_apart(asked, names, str(path))
        group = getattr(settings, "group", None)
        if "label" in found and group is not None:  # the names may have made it the label
            require_apart([(found["label"], "the label"), (group, "the group")], names, str(path))
        return found

    def _names(self, path: Path | str) -> Sequence[str]:
        """Of the columns of a file that is read as the settings say."""
        settings = self.settings
        return read_column_names(
            path, format=settings.format, header=settings.header, encoding=settings.encoding
        )

    def _require_same_texts(self, path: Path | str, per_label: Sequence[str]) -> None:
        """Raises InputError for a later file whose own names say another text than the first one's, or one of
        a pair, which would be left out.
        """
        settings = self.settings
        said = settings.model_dump(include={"format", "header", "encoding", "label"})
        besides = (*self.column_names, *per_label)
        try:
            found = guess_file_columns(path, **said, besides=besides, labelled=False)
        except InputError:  # several could be the text, the first file's among them
            return
        first = listed([str(column) for column in (settings.text, settings.text_pair) if column is not None])
        here = listed([str(column) for column in found[:2] if column is not None])
        if here != first:
            raise InputError(
                f"{path}: by the names of its columns the text is {here}, but in the file before it was "
                f"{first}. Name the columns with --text and, for pairs, --text-pair, or call them alike."
            )

    def _example(self, values: dict[str, Any], cells: Sequence[Any], where: str) -> TextExample:
        pair = as_text(values["text_pair"], where) if "text_pair" in values else None
        reads = self.reads_pairs
        if reads not in (None, pair is not None):
            given = values["text"] if pair is None else (values["text"], pair)
            raise InputError(
                f"{where}: the model reads {_KINDS[reads]}; found {shown(given)}. Name the columns with "
                "--text and, for pairs, --text-pair."
            )
        given = values.get("label")
        has_label = "label" in values and (self.may_be_unlabelled or not is_blank(given))
        label = self.as_target(given, where) if has_label else None
        group = None if is_blank(values.get("group")) else as_category(values["group"])
        id = as_id(values.get(ID))
        columns = tuple(
            as_cell(cell, where, name) for cell, name in zip(cells, self.column_names, strict=True)
        )
        return TextExample(as_text(values["text"], where), pair, label, where, id, columns, group)

    def example(self, text: str | Sequence[str] | Mapping[str, Any], where: str = "the input") -> TextExample:
        """An unlabelled example from a text, or from two, as in training; where it read columns beside them,
        from {"text": …, "age": …}. InputError for anything else.
        """
        if self.features:
            return self._mixed_example(text, where)
        pairs = self.reads_pairs
        match text:
            case str() if not pairs:
                return TextExample(text, None, None, where)
            case [str() as first, str() as second] if pairs is not False:
                return TextExample(first, second, None, where)
        raise InputError(f"{where}: the model reads {_KINDS[pairs]}; found {shown(text)}.")

    def _mixed_example(self, given: Any, where: str) -> TextExample:
        roles = ("text", "text_pair") if self.reads_pairs else ("text",)
        if not isinstance(given, Mapping) or not all(isinstance(given.get(role), str) for role in roles):
            wanted = ", ".join(f'"{name}": …' for name in (*roles, *self.column_names))
            raise InputError(
                f"{where}: the model reads columns beside the text: {{{wanted}}}; found "
                f"{shown(dict(given) if isinstance(given, Mapping) else given)}."
            )
        others = {name: value for name, value in given.items() if name not in roles}
        cells = cells_of(others, self.column_names, where)
        pair = given["text_pair"] if self.reads_pairs else None
        return TextExample(given["text"], pair, None, where, None, cells)

    @property
    def reads_pairs(self) -> bool | None:
        """Whether training had a second text; None where nobody knows, as of a model of transformers."""
        if self.pairs is not None or self.settings.text is None:
            return self.pairs
        return self.settings.text_pair is not None

    @abstractmethod
    def as_target(self, value: Any, where: str) -> Any:
        """A label as it stands in a file → what examples hold. Raises InputError naming file and line."""

    def as_label(self, example: TextExample, prediction: Prediction) -> TextExample:
        """By the prediction's label or, where it has none, its score."""
        return replace(example, label=prediction["label" if "label" in prediction else "score"])

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
        """One text, or two, as the model reads them."""
        first = self.prompt + example.text
        return (first,) if example.text_pair is None else (first, example.text_pair)

    def encode(self, example: TextExample, pieces: Sequence[Pieces], tokenizer: Tokenizer) -> EncodedExample:
        """[CLS] text [SEP], or [CLS] text [SEP] pair [SEP]; the head reads the first row of each window."""
        room = self.settings.max_length - special_tokens(tokenizer, len(pieces))
        ids = [piece.ids for piece in pieces]
        stride, truncation = self.settings.stride, tokenizer.truncation
        if len(ids) == 2:
            spans = pair_windows(ids[0], ids[1], room, stride, truncation)
        else:
            spans = single_windows(ids[0], room, stride, truncation)
        made = [join_segments(tokenizer, *parts) for parts in spans]
        target = None if example.label is None else self.target(example.label)
        columns = None if self.columns is None else self.columns.vector(example.columns, example.where)
        if isinstance(pieces[0], ValuePieces):
            if len(pieces) != 1:
                raise InputError(f"{example.where}: a model of numbers reads one row, not a pair.")
            values = pieces[0].values  # (n, P) beside the tokens of a row
            bounds = windows(ids[0], room, stride, truncation)
            shown: tuple[Window, ...] = tuple(
                Window(*each, _FIRST_ROW, values=np.pad(values[start:end], ((1, 1), (0, 0))))  # [CLS], [SEP]
                for each, (start, end) in zip(made, bounds, strict=True)
            )
        else:
            shown = tuple(Window(*each, _FIRST_ROW) for each in made)
        return EncodedExample(shown, target, columns=columns)

    def state(self) -> dict[str, Any]:
        """What training showed of the columns and of pairs is part of it, where the settings don't say it."""
        columns = {} if self.columns is None else {"columns": self.columns.to_json()}
        pairs = {} if self.pairs is None else {"pairs": self.pairs}
        return super().state() | columns | pairs | ({"prompt": self.prompt} if self.prompt else {})

    def write_extra_files(self, folder: Path, config: BertConfig) -> None:
        """Where longer texts are cut, for transformers' pipeline and sentence-transformers' CrossEncoder, and
        for this the prompt, which it reads beside a modules.json alone.
        """
        path = folder / TOKENIZER_CONFIG.file
        write_json(path, read_json(path) | {"model_max_length": self.settings.max_length})
        if self.prompt:
            said = {"prompts": {"query": self.prompt}, "default_prompt_name": "query"}
            write_json(folder / SENTENCE_TRANSFORMERS.file, {"model_type": "CrossEncoder", **said})
            write_json(folder / "modules.json", [_CROSS_ENCODER])
            write_json(folder / SENTENCE_SETTINGS[0], {"transformer_task": "sequence-classification"})

    @classmethod
    def from_state(cls, state: Mapping[str, Any], where: str) -> Self:
        task = super().from_state(state, where)
        if "pairs" in state:
            task.pairs = require_truth(state["pairs"], "pairs", where)
        task.prompt = require_text(state.get("prompt", ""), "prompt", where)
        if task.features:
            task.columns = FittedColumns.from_json(state.get("columns"), task.column_names, where)
        elif "columns" in state:
            raise ModelError(
                f"{where}: has columns, but the settings name no features. The file was altered: take it "
                "from a copy, or train again."
            )
        return task


def as_text_or_pair(example: TextExample) -> str | tuple[str, str]:
    """What the baselines read."""
    return example.text if example.text_pair is None else (example.text, example.text_pair)
