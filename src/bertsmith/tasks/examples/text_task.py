"""The common base of tasks on a text or a pair of texts: reading rows and encoding windows."""

from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from heapq import heappop, heappush
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
    LABELS,
    LESSER_LABELS,
    guess_label,
    listed,
    named_column,
    names_a_text,
    plain_name,
    unknown_column,
)
from bertsmith.text.files.rows import (
    are_lines,
    are_objects,
    find_names_of_numbers,
    guess_file_columns,
    quoting_warnings,
    read_column_names,
    read_keys,
    read_rows,
    stream_rows,
)
from bertsmith.text.files.tables import LINES_COLUMNS
from bertsmith.text.files.values import ID, as_category, as_id, as_text, is_blank, shown
from bertsmith.text.labelled.labelled_files import describe_files
from bertsmith.text.tokens.long_texts import TextEncoding
from bertsmith.text.tokens.tokenizer import Tokenizer
from bertsmith.text.tokens.value_tokenizers import RowEncoding

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
    """A text, perhaps a second one, and its label (None if it is to be predicted). `id` is the row's id in
    the file, which predictions repeat. `columns` are the cells beside the text that the task also reads;
    `group` is the row's value in the column of groups.
    """

    text: str
    text_pair: str | None
    label: Any
    where: str
    id: str | int | None = None
    columns: tuple[Cell, ...] = ()
    group: str | None = None


class TextTask(Task[TextExample]):
    """Reads the columns of a table; a subclass defines what a label is."""

    without_label: ClassVar[str] = ""  # advice for files without a label column
    may_be_unlabelled: ClassVar[bool] = False  # whether an empty cell is a label: no label applies
    columns: FittedColumns | None = None  # the columns beside the text, if there are any
    prompt: str = ""  # before every text, or the first of a pair, as the model's folder says
    pairs: bool | None = None  # whether training had a second text; None if the settings' columns tell
    _guesses_texts = False  # whether the text columns were guessed by the names in the first file

    def decoding(self, tokenizer: Tokenizer) -> dict[str, Any]:
        return {"prompt": self.prompt} if self.prompt else {}

    def for_file(self, path: Path, columns: Mapping[str, Any]) -> Self:
        """If the file lacks a column that the settings name and none was given, the column is guessed by
        name. Whether texts come alone or in pairs stays as in training.
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
        """The columns that are read beside the text."""
        settings = self.settings
        return tuple(map(ColumnChoice.of, settings.features)) if isinstance(settings, MixedSettings) else ()

    @property
    def column_names(self) -> tuple[str, ...]:
        """The names of the columns that are read beside the text."""
        return tuple(feature.name for feature in self.features)

    def fit_columns(self, train: Sequence[TextExample]) -> None:
        """Fits the columns to the training rows. Raises InputError for one from which nothing can be
        learned.
        """
        if self.features:
            rows, places = [example.columns for example in train], [example.where for example in train]
            self.columns = FittedColumns.fit(self.features, rows, places)

    @property
    def column_width(self) -> int:
        """F, the number of features of all columns."""
        return 0 if self.columns is None else self.columns.width

    def read(self, path: Path | str, *, labelled: bool = True) -> list[TextExample]:
        """Reads one example a row. Raises InputError naming file and line."""
        per_label = self.label_columns(path) if labelled else ()
        roles = self._find_columns(path, labelled, per_label)
        if labelled:  # the columns found in the first file are used for the files that follow
            if self.settings.text is None:
                self._guesses_texts = True
            elif self._guesses_texts:
                self._require_same_texts(path, per_label)
            self.settings = self.settings.model_copy(update=roles)
        settings = self.settings
        optional_column = self.optional_group if labelled else ID
        group = getattr(settings, "group", None) if labelled and optional_column is None else None
        further = [*([] if group is None else [group]), *per_label]
        optional = [] if optional_column is None else [optional_column]
        rows = read_rows(
            path,
            [*roles.values(), *self.column_names, *further],
            format=settings.format,
            header=settings.header,
            encoding=settings.encoding,
            optional=optional,
            blank_lines=not labelled,
        )
        row_keys = [*roles, *([] if group is None else ["group"]), *range(len(per_label))]
        row_keys += ["group" if labelled else ID for _ in optional]
        examples = []
        for values, where in rows:
            row, cells = self._split_row(row_keys, values, len(roles))
            if per_label:
                row["label"] = [row.pop(index) for index in range(len(per_label))]
            examples.append(self._make_example(row, cells, where))
        self.left_out += self._reading_warnings(examples, path)
        if not labelled:
            return examples
        self.tell_lost_groups(examples, path)
        return self.complete(examples, self.gaps(examples), path)

    def draw_texts(self, path: Path, most: int) -> tuple[list[TextExample], int]:
        roles, settings, count = self._find_columns(path, False), self.settings, 0
        columns = [*roles.values(), *self.column_names]
        layout = settings.model_dump(include={"format", "header", "encoding"})
        # The rows with the lowest hashes: a million never lie in memory, and copies, which have one hash,
        # count once (Broder 1997, bottom-k sketches).
        drawn, highest = dict[int, tuple[int, Sequence[Any], str]](), list[int]()
        is_full = False
        for values, where in stream_rows(path, columns, **layout):
            content = "\x1f".join(map(str, values)).encode("utf-8", "surrogatepass")
            key = int.from_bytes(blake2b(content, digest_size=8).digest())
            if key not in drawn and (len(drawn) < most or key < -highest[0]):
                drawn[key] = count, values, where
                heappush(highest, -key)
            if len(drawn) > most:
                is_full = True
                del drawn[-heappop(highest)]
            count += 1
        examples = []
        for _, drawn_values, where in sorted(drawn.values(), key=lambda row: row[0]):
            row, cells = self._split_row([*roles], drawn_values, len(roles))
            examples.append(self._make_example(row, cells, where))
        self.left_out += self._reading_warnings(examples, path)
        if (
            settings.text is None
            and str(roles["text"]).lower() != "text"
            and not isinstance(roles["text"], int)
        ):
            self.left_out.append(
                f"{path}: by its name the column {roles['text']} has the texts; --text names another"
            )
        if (copies := count - len(examples)) and not is_full:
            self.left_out.append(
                f"of {count:,} texts {copies:,} are copies of another: each text counts once"
            )
        return examples, count if is_full else len(examples)

    def read_files(self, paths: Sequence[Path | str]) -> list[TextExample]:
        """Reads several files. Gaps are found again over all of them: -1 marks a missing label in one file if
        another has 0, 1, 2.
        """
        examples = super().read_files(paths)
        settings = self.settings
        columns = {"text": settings.text, "text_pair": settings.text_pair, "label": settings.label}
        layout = settings.model_dump(include={"format", "header", "encoding"})
        self.named_columns = find_names_of_numbers(paths, columns, **layout)
        if len(paths) == 1:
            return examples
        return self.complete(examples, self.gaps(examples), describe_files(paths))

    def label_columns(self, path: Path | str) -> Sequence[str]:
        """The columns of a file that has one for each label; empty for other files."""
        return ()

    def has_text(self, example: TextExample) -> bool:
        """Whether there is something to read: no text is blank, or there are columns beside it. A prompt
        doesn't count.
        """
        texts = (example.text,) if example.text_pair is None else (example.text, example.text_pair)
        return bool(example.columns) or not any(map(is_blank, texts))

    def stand_ins(self, labels: Collection[Any]) -> Collection[Any]:
        """Those of a file's labels that stand for a missing label."""
        return ()

    def gaps(self, examples: Sequence[TextExample]) -> list[str]:
        """ "text" or "label" for what each example lacks; "" for nothing."""
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
        """Reads one example a row. Its label is None if its cell is blank, there is no such column or, in a
        JSON object, no such key. The settings keep guessed columns. Raises as `read` does, and if
        `needs_label` and no row has the label's column.
        """
        settings = self.settings
        lines = are_lines(path, format=settings.format, encoding=settings.encoding)
        per_label = () if lines else self.label_columns(path)
        label = None if lines or per_label else self._find_label_column(path)
        if needs_label and label is None and settings.label is not None:
            raise unknown_column(settings.label, self._read_names(path), str(path))
        if label is not None:
            self.settings = settings.model_copy(update={"label": label})
        columns = self._find_columns(path, label is not None, per_label)
        if settings.text is None:
            self.settings = self.settings.model_copy(update=columns)
        if label is None and not per_label:
            return self.read(path, labelled=False)
        by_key = are_objects(path, format=settings.format, encoding=settings.encoding)
        by_key = by_key and not str(label).isdecimal()  # keys have no numbers, which raises an error below
        needed = [column for role, column in columns.items() if role != "label" or not by_key]
        name = getattr(settings, "group", None)  # rows to suggest need no group, so the file may lack it
        group = [name] if isinstance(name, str) and not name.isdecimal() else []
        rows = read_rows(
            path,
            [*needed, *self.column_names, *per_label],
            format=settings.format,
            header=settings.header,
            encoding=settings.encoding,
            optional=[*([str(label)] if by_key and not per_label else []), *group],
        )
        examples, row_keys = [], [*columns, *range(len(per_label)), *("group" for _ in group)]
        for values, where in rows:
            row, cells = self._split_row(row_keys, values, len(needed))
            if per_label:
                multi_hot = [row.pop(index) for index in range(len(per_label))]
                row["label"] = None if all(map(is_blank, multi_hot)) else multi_hot
            if is_blank(row["label"]):
                del row["label"]
            examples.append(self._make_example(row, cells, where))
        self.left_out += self._reading_warnings(examples, path)
        keeps = getattr(settings, "missing", "refuse") == "keep"
        if stand_ins := self.stand_ins({example.label for example in examples} - {None}):
            examples = [
                replace(example, label=None) if example.label in stand_ins else example
                for example in examples
            ]
        gaps = [
            "text" if not keeps and example.label is not None and not self.has_text(example) else ""
            for example in examples
        ]
        return self.complete(examples, gaps, path)

    def _reading_warnings(self, examples: Sequence[TextExample], path: Path | str) -> list[str]:
        texts = (text for example in examples for text in (example.text, example.text_pair or ""))
        warnings = quoting_warnings(path, texts, self.settings.format)
        first = next(iter(examples), None)
        if first is not None and not self.settings.header and names_a_text(first.text):
            warnings.append(
                f"{first.where}: {first.text!r} was read as a text, for the file is read without a header "
                "(header=false, or as in training). If it names a column, say --header"
            )
        return warnings

    def _find_label_column(self, path: Path | str) -> str | int | None:
        """The label's column if the file has it: the one in the settings, or one that is named like a label.
        If rows are objects, the first may lack the key, so the keys of all are considered.
        """
        settings = self.settings
        names = self._read_names(path)
        if are_objects(path, format=settings.format, encoding=settings.encoding):
            names = read_keys(path, format=settings.format, encoding=settings.encoding)
        if settings.label is not None and named_column(settings.label, names) is not None:
            return settings.label
        text_columns = [named_column(column, names) for column in (settings.text, settings.text_pair)]
        free = [name for name in names if name not in (*text_columns, *self.column_names)]
        if settings.label is None:
            return guess_label(free, str(path))
        if other := [name for name in free if plain_name(name) in (*LABELS, *LESSER_LABELS)]:
            self.left_out.append(
                f"{path} has no column {settings.label!r}, so none of its rows has a label. If one is in "
                f"{listed(other)}, name it with --label"
            )
        return None

    def _split_row(
        self, row_keys: Sequence[str | int], values: Sequence[Any], roles: int
    ) -> tuple[dict[Any, Any], Sequence[Any]]:
        """A row's values by key, and the cells of the columns beside the text, which follow the `roles`."""
        cells = values[roles : roles + len(self.features)]
        others = [*values[:roles], *values[roles + len(cells) :]]
        return dict(zip(row_keys, others, strict=True)), cells

    def _find_columns(
        self, path: Path | str, labelled: bool, per_label: Sequence[str] = ()
    ) -> dict[str, str | int]:
        """The column of each role: as set, otherwise by the names in the file. If each label has its own
        column, there is no label column.
        """
        settings = self.settings
        roles: dict[str, str | int | None] = {
            "text": settings.text,
            "text_pair": settings.text_pair,
            "label": settings.label,
        }
        names: Sequence[str] = ()
        if settings.text is None or (labelled and settings.label is None):
            names = self._read_names(path)
            besides = (*self.column_names, *per_label)
            labelled = labelled and not per_label
            given = settings.model_dump(include={"format", "header", "encoding", *roles})
            roles = guess_file_columns(path, **given, besides=besides, labelled=labelled)._asdict()
        if not labelled:
            del roles["label"]
            single = roles["text_pair"] is None
            if single and are_lines(path, format=settings.format, encoding=settings.encoding):
                return {"text": LINES_COLUMNS[0]}  # whatever the column was called in training
        elif roles["label"] is None:
            beside = f", beside the features {listed(self.column_names)}" if self.features else ""
            free = [name for name in names if name not in self.column_names]
            raise InputError(
                f"{path}: no column has a name that says it is the label. There are: "
                f"{listed(free)}{beside}. Name it with --label.{self.without_label}"
            )
        columns = {role: column for role, column in roles.items() if column is not None}
        uses: list[tuple[str | int, str]] = [(name, "one of the features") for name in self.column_names]
        uses += [(column, f"the {_ROLES[role]}") for role, column in columns.items()]
        by_number = len(uses) > 1 and any(str(column).isdecimal() for column, _ in uses)
        if by_number and not names and str(path) != "-":
            names = self._read_names(path)
        require_apart(uses, names, str(path))
        group = getattr(settings, "group", None)
        if "label" in columns and group is not None:  # the group's column may have been guessed as the label
            require_apart([(columns["label"], "the label"), (group, "the group")], names, str(path))
        return columns

    def _read_names(self, path: Path | str) -> Sequence[str]:
        """The names of a file's columns, read as the settings say."""
        settings = self.settings
        return read_column_names(
            path, format=settings.format, header=settings.header, encoding=settings.encoding
        )

    def _require_same_texts(self, path: Path | str, per_label: Sequence[str]) -> None:
        """Raises InputError for a later file whose column names point to another text than the first file's,
        or to a pair whose second text would be ignored.
        """
        settings = self.settings
        given = settings.model_dump(include={"format", "header", "encoding", "label"})
        besides = (*self.column_names, *per_label)
        try:
            guessed = guess_file_columns(path, **given, besides=besides, labelled=False)
        except InputError:  # several columns could be the text, including the first file's
            return
        first = listed([str(column) for column in (settings.text, settings.text_pair) if column is not None])
        here = listed([str(column) for column in guessed[:2] if column is not None])
        if here != first:
            raise InputError(
                f"{path}: by the names of its columns the text is {here}, but in the file before it was "
                f"{first}. Name the columns with --text and, for pairs, --text-pair, or call them alike."
            )

    def _make_example(self, values: dict[str, Any], cells: Sequence[Any], where: str) -> TextExample:
        pair = as_text(values["text_pair"], where) if "text_pair" in values else None
        reads = self.reads_pairs
        if reads not in (None, pair is not None):
            texts = values["text"] if pair is None else (values["text"], pair)
            raise InputError(
                f"{where}: the model reads {_KINDS[reads]}; found {shown(texts)}. Name the columns with "
                "--text and, for pairs, --text-pair."
            )
        label_cell = values.get("label")
        has_label = "label" in values and (self.may_be_unlabelled or not is_blank(label_cell))
        label = self.as_target(label_cell, where) if has_label else None
        group = None if is_blank(values.get("group")) else as_category(values["group"])
        id = as_id(values.get(ID))
        columns = tuple(
            as_cell(cell, where, name) for cell, name in zip(cells, self.column_names, strict=True)
        )
        return TextExample(as_text(values["text"], where), pair, label, where, id, columns, group)

    def example(self, text: str | Sequence[str] | Mapping[str, Any], where: str = "the input") -> TextExample:
        """An unlabelled example from a text or two, as in training. If the model reads columns beside the
        text, from a mapping such as {"text": …, "age": …}. Raises InputError for anything else.
        """
        if self.features:
            return self._example_with_columns(text, where)
        pairs = self.reads_pairs
        match text:
            case str() if not pairs:
                return TextExample(text, None, None, where)
            case [str() as first, str() as second] if pairs is not False:
                return TextExample(first, second, None, where)
        raise InputError(f"{where}: the model reads {_KINDS[pairs]}; found {shown(text)}.")

    def _example_with_columns(self, given: Any, where: str) -> TextExample:
        roles = ("text", "text_pair") if self.reads_pairs else ("text",)
        if not isinstance(given, Mapping) or not all(isinstance(given.get(role), str) for role in roles):
            expected = ", ".join(f'"{name}": …' for name in (*roles, *self.column_names))
            raise InputError(
                f"{where}: the model reads columns beside the text: {{{expected}}}; found "
                f"{shown(dict(given) if isinstance(given, Mapping) else given)}."
            )
        others = {name: value for name, value in given.items() if name not in roles}
        cells = cells_of(others, self.column_names, where)
        pair = given["text_pair"] if self.reads_pairs else None
        return TextExample(given["text"], pair, None, where, None, cells)

    @property
    def reads_pairs(self) -> bool | None:
        """Whether training had a second text; None if unknown, as for a model of transformers."""
        if self.pairs is not None or self.settings.text is None:
            return self.pairs
        return self.settings.text_pair is not None

    @abstractmethod
    def as_target(self, value: Any, where: str) -> Any:
        """Reads an example's label from a cell of a file; `target` then encodes it for the loss. Raises
        InputError naming file and line.
        """

    def as_label(self, example: TextExample, prediction: Prediction) -> TextExample:
        """The example with the prediction's label or, if it has none, its score."""
        return replace(example, label=prediction["label" if "label" in prediction else "score"])

    def target(self, label: Any) -> Any:
        """Converts an example's label into what the loss compares outputs with."""
        return label

    def line(self, example: TextExample, prediction: Prediction) -> dict[str, Any]:
        """The id, text, second text and label, if there are any, then the prediction."""
        pair = {} if example.text_pair is None else {"text_pair": example.text_pair}
        gold = {} if example.label is None else {"gold": example.label}
        known = {} if example.id is None else {ID: example.id}
        return {**known, "text": example.text, **pair, **gold, **prediction}

    def texts(self, example: TextExample) -> Sequence[str]:
        """One text or two, the first with the prompt."""
        first = self.prompt + example.text
        return (first,) if example.text_pair is None else (first, example.text_pair)

    def encode(
        self, example: TextExample, pieces: Sequence[TextEncoding], tokenizer: Tokenizer
    ) -> EncodedExample:
        """[CLS] text [SEP], or [CLS] text [SEP] pair [SEP]; the head reads the first row of each window."""
        room = self.settings.max_length - special_tokens(tokenizer, len(pieces))
        ids = [piece.ids for piece in pieces]
        stride, truncation = self.settings.stride, tokenizer.truncation
        if len(ids) == 2:
            spans = pair_windows(ids[0], ids[1], room, stride, truncation)
        else:
            spans = single_windows(ids[0], room, stride, truncation)
        segments = [join_segments(tokenizer, *parts) for parts in spans]
        target = None if example.label is None else self.target(example.label)
        columns = None if self.columns is None else self.columns.vector(example.columns, example.where)
        if isinstance(pieces[0], RowEncoding):
            if len(pieces) != 1:
                raise InputError(f"{example.where}: a model of numbers reads one row, not a pair.")
            values = pieces[0].values  # (n, P) beside the tokens of a row
            bounds = windows(ids[0], room, stride, truncation)
            text_windows: tuple[Window, ...] = tuple(
                Window(*ids_and_segments, _FIRST_ROW, values=np.pad(values[start:end], ((1, 1), (0, 0))))
                for ids_and_segments, (start, end) in zip(segments, bounds, strict=True)
            )  # padded for [CLS] and [SEP]
        else:
            text_windows = tuple(Window(*ids_and_segments, _FIRST_ROW) for ids_and_segments in segments)
        return EncodedExample(text_windows, target, columns=columns)

    def state(self) -> dict[str, Any]:
        """The state includes the fitted columns and, if the settings don't tell, whether texts come
        in pairs.
        """
        columns = {} if self.columns is None else {"columns": self.columns.to_json()}
        pairs = {} if self.pairs is None else {"pairs": self.pairs}
        return super().state() | columns | pairs | ({"prompt": self.prompt} if self.prompt else {})

    def write_extra_files(self, folder: Path, config: BertConfig) -> None:
        """Writes the length at which texts are cut, for transformers' pipelines and sentence-transformers'
        CrossEncoder, and for the latter the prompt, which it reads only next to a modules.json.
        """
        path = folder / TOKENIZER_CONFIG.file
        write_json(path, read_json(path) | {"model_max_length": self.settings.max_length})
        if self.prompt:
            prompts = {"prompts": {"query": self.prompt}, "default_prompt_name": "query"}
            write_json(folder / SENTENCE_TRANSFORMERS.file, {"model_type": "CrossEncoder", **prompts})
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
    """The text, or both texts, as the baselines take them."""
    return example.text if example.text_pair is None else (example.text, example.text_pair)


def missing_score_warnings(examples: Sequence[TextExample]) -> list[str]:
    """Warns of -1 among scores that are otherwise positive: in GLUE's files it marks a missing score."""
    scores = {example.label for example in examples}
    if min(scores - {-1.0}, default=-1.0) < 0 or max(scores) <= 1 or -1.0 not in scores:
        return []
    unknown = [example for example in examples if example.label == -1.0]
    return [
        f"{len(unknown):,} of {len(examples):,} rows have the score -1, the first in {unknown[0].where}, "
        "and no other score is below 0. In many data sets it says that there is none: remove them if so"
    ]
