"""The fields of a site's answers: the values that each field may hold, and how a model's outputs are read as
values. Read `Field` and `AnswerShape` first.

An answer is a dict of values by JSON path, with paths as the store writes them ($.order.kind). Two values are
equal if they mean the same: labels and quotes are compared without their order, numbers within a tolerance.

    {"intent": "card", "urgent": false}  ↔  {"$.intent": "card", "$.urgent": False}

A `FieldHead` turns a model's outputs into a value and its confidence:

    enum, boolean, ordinal   softmax over the classes; the most probable class, with its probability
    labels                   one sigmoid per label; all labels above their thresholds, with the probability of
                             exactly this set if the labels were independent
    number                   softmax over ranges of numbers, each with a centre; the centre that has the most
                             probability within the field's tolerance

Shapes: E texts, C classes.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import orjson
from pydantic import BaseModel, ConfigDict
from pydantic import Field as Bounded

from bertsmith.arrays import Floats
from bertsmith.metrics.calibration import COLDEST, HOTTEST, confidence_of, probabilities_of
from bertsmith.mirror.call import Json

Kind = Literal["enum", "boolean", "ordinal", "number", "labels", "spans"]
Values = dict[str, Any]  # an answer's values by JSON path


class Absence(Enum):
    """The type of ABSENT, the value of an optional field whose key is missing (None is JSON's null)."""

    ABSENT = "absent"


ABSENT = Absence.ABSENT
ANOTHER = " (another)"  # behind the path of a part that is no field, though it is written like one


class SpanForm(BaseModel):
    """How an answer writes quotes from the input.

    `form` is one `text`, a list of `texts`, or a list of `objects`. Each object has the quote under the key
    `text` and, if quotes have kinds, the kind under the key `label`; `keys` is the order of the keys.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    form: Literal["text", "texts", "objects"]
    text: str = ""
    label: str = ""
    keys: tuple[str, ...] = ()


class Field(BaseModel):
    """One value of an answer. `keys` lead to it from the answer's top level.

    kind      a value is                                    `values` are
    enum      one of `values`                               all possible values
    boolean   True or False                                 both
    ordinal   a number or a level                           all, in ascending order
    number    a number; equal to all within `tolerance`     empty
    labels    a tuple of some, in the order of `values`     all labels
    spans     a tuple of (kind, quote)                      all kinds; "" if quotes have no kind

    `nullable` fields may be None. The key of `optional` fields may be missing, which is the value ABSENT.
    `is_observed` says that `values` were collected from answers and the schema allows others. `empty` says
    what most answers had instead of an empty list of labels or quotes, or instead of a missing quote. The
    schema allows lists of `fewest` to `most` items.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    keys: tuple[str, ...]
    kind: Kind
    values: tuple[Json, ...] = ()
    nullable: bool = False
    optional: bool = False
    is_observed: bool = False
    tolerance: float = 0.0
    spans: SpanForm | None = None
    empty: Literal["", "null", "absent"] = ""
    fewest: int = 0
    most: int | None = None

    @property
    def path(self) -> str:
        """The field's JSON path, such as $.order.kind."""
        return json_path(self.keys)

    @property
    def classes(self) -> tuple[Any, ...]:
        """All values that the field can have, with None and ABSENT if allowed. Not for labels and spans."""
        classes = list(self.values)
        if self.nullable and None not in classes:
            classes.append(None)
        return (*classes, ABSENT) if self.optional else tuple(classes)

    @property
    def empty_value(self) -> Any:
        """The value of a labels or spans field without labels or quotes: an empty tuple, None or ABSENT."""
        if self.empty == "absent":
            return ABSENT
        is_text = self.spans is not None and self.spans.form == "text"
        if is_text and not self.empty and self.optional and not self.nullable:
            return ABSENT
        return None if is_text or self.empty == "null" else ()

    def read(self, value: Json) -> Any:
        """Converts an answer's JSON value to the form in which values are compared and learned: labels and
        spans become tuples, 1.0 becomes 1. A value of another form is returned unchanged; it equals none of
        the field's values.
        """
        if value is None or value is ABSENT:
            return value
        if self.kind == "labels":
            return self._read_labels(value)
        if self.kind == "spans":
            return self._read_spans(value)
        return normalize_number(value) if self.kind in ("ordinal", "number") else value

    def write(self, value: Any) -> Json:
        """Converts a value back to the JSON of an answer; the inverse of `read`."""
        if value is None or self.kind not in ("labels", "spans"):
            return value
        if self.kind == "labels":
            return list(value)
        assert self.spans is not None
        if self.spans.form == "text":
            return value[0][1] if value else None
        if self.spans.form == "texts":
            return [quote for _, quote in value]
        return [self._write_span(kind, quote) for kind, quote in value]

    def are_equal(self, first: Any, second: Any) -> bool:
        """Whether two values, as `read` returns them, mean the same."""
        if self.kind == "number" and is_number(first) and is_number(second):
            return bool(abs(first - second) <= self.tolerance)
        if self.kind == "spans" and isinstance(first, tuple) and isinstance(second, tuple):
            return sorted(first) == sorted(second)
        return canonical_json(first) == canonical_json(second)

    def allows(self, value: Any) -> bool:
        """Whether the field may have this value, as `read` returns it: it has the field's kind and, if the
        schema lists the values, is one of them.
        """
        if value is None or value is ABSENT:
            return value in self.classes
        if self.kind == "number":
            return is_number(value)
        if self.kind == "spans":
            return isinstance(value, tuple)
        if self.kind != "labels":
            return self._is_listed(value)
        return isinstance(value, list | tuple) and all(map(self._is_listed, value))

    def allows_length(self, value: Any) -> bool:
        """Whether the schema allows a list of so many labels or quotes; True for anything but a list."""
        count = len(value) if isinstance(value, tuple) else self.fewest
        return self.fewest <= count and (self.most is None or count <= self.most)

    def _is_listed(self, value: Any) -> bool:
        """Whether `value` is one of `values`, or of the same type if these were only observed."""
        if self.is_observed and isinstance(value, str):
            return any(isinstance(listed, str) for listed in self.values)
        if self.is_observed and is_number(value):
            return any(map(is_number, self.values))
        return any(canonical_json(value) == canonical_json(listed) for listed in self.values)

    def _read_labels(self, value: Json) -> Any:
        if not isinstance(value, list):
            return value
        answered = {canonical_json(label) for label in value}
        labels = {canonical_json(label): label for label in self.values}
        if not answered <= labels.keys():
            return value
        return tuple(label for key, label in labels.items() if key in answered)

    def _read_spans(self, value: Json) -> Any:
        """Pairs of kind and quote, or the value itself if it has another form."""
        form = self.spans
        assert form is not None
        if form.form == "text":
            return (("", value),) if isinstance(value, str) else value
        if not isinstance(value, list):
            return value
        spans = []
        for item in value:
            if form.form == "texts":
                kind, quote = "", item
            elif isinstance(item, dict) and set(item) == set(form.keys):
                kind, quote = item[form.label] if form.label else "", item[form.text]
            else:
                return value
            if not isinstance(quote, str) or not isinstance(kind, str):
                return value
            spans.append((kind, quote))
        return tuple(spans)

    def _write_span(self, kind: str, quote: str) -> Json:
        assert self.spans is not None
        return {key: quote if key == self.spans.text else kind for key in self.spans.keys}


class UnsupportedPart(BaseModel):
    """A part of the answer that no student can give, such as a free text. `why` says so in words."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    keys: tuple[str, ...]
    why: str
    required: bool

    @property
    def path(self) -> str:
        """The part's JSON path, such as $.order.note."""
        return json_path(self.keys)


class Constant(BaseModel):
    """A part of the answer that has the same value in every answer."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    keys: tuple[str, ...]
    value: Json


class AnswerShape(BaseModel):
    """The fields, constants and unsupported parts of a site's answers.

    `order` lists the keys of fields and constants in the order in which answers have them. Parts that are
    `refused` and not required are left out of a student's answers; an answer by the teacher that has such a
    part differs from the student's.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    fields: tuple[Field, ...]
    refused: tuple[UnsupportedPart, ...] = ()
    constants: tuple[Constant, ...] = ()
    order: tuple[tuple[str, ...], ...] = ()

    @property
    def is_mirrorable(self) -> bool:
        """Whether a student could give the complete answer: no unsupported part is required."""
        return bool(self.fields) and not any(part.required for part in self.refused)

    @property
    def why_not(self) -> str:
        """Why no student could give it, such as "$.reason: a free text"; empty if `is_mirrorable`."""
        if self.is_mirrorable:
            return ""
        reasons = [f"{part.path}: {part.why}" for part in self.refused if part.required]
        return "; ".join(reasons) or "the answers have no fields"

    def field(self, path: str) -> Field:
        """The field with this JSON path. Raises KeyError if there is none."""
        return {field.path: field for field in self.fields}[path]

    def read(self, answer: Json) -> Values:
        """Reads an answer's values by path; a missing field is ABSENT. A part of the answer that is no field
        is included under its own path, so that no student's answer equals this one.
        """
        fields = {field.path: field.read(value_at(answer, field.keys)) for field in self.fields}
        values: Values = dict(fields)
        constants = {constant.keys: canonical_json(constant.value) for constant in self.constants}
        known = {field.keys for field in self.fields}
        parts = [*known, *constants]
        # Objects that contain fields or constants: they may be there while all of these are left out.
        objects = {keys[:length] for keys in parts for length in range(1, len(keys))}
        for keys, value in _list_leaves(answer, (), known | constants.keys()):
            is_empty = keys in objects and value == {}  # all that it may hold is left out
            if keys not in known and not is_empty and constants.get(keys) != canonical_json(value):
                path = json_path(keys)
                values[path + ANOTHER if path in fields else path] = value
        for keys in (*constants, *objects):
            if value_at(answer, keys) is ABSENT:
                values[json_path(keys)] = ABSENT
        return values

    def allows(self, values: Values) -> bool:
        """Whether every field allows its value in `values`, as `read` returns them."""
        return all(field.allows(values[field.path]) for field in self.fields)

    def compose(self, values: Mapping[str, Any]) -> dict[str, Json]:
        """Writes an answer with these values by path, its keys in the teacher's order. Raises KeyError for a
        field without a value.
        """
        fields = {field.keys: field for field in self.fields}
        constants = {constant.keys: constant.value for constant in self.constants}
        answer: dict[str, Json] = {}
        for keys in self.order:
            field = fields.get(keys)
            value = constants[keys] if field is None else values[field.path]
            parent = answer
            for key in keys[:-1]:
                parent = parent.setdefault(key, {})
            if value is not ABSENT:
                parent[keys[-1]] = value if field is None else field.write(value)
        return answer

    def differing_paths(self, first: Mapping[str, Any], second: Mapping[str, Any]) -> frozenset[str]:
        """The paths at which two answers, as `read` returns them, differ; empty if they mean the same."""
        fields = {field.path: field for field in self.fields}
        return frozenset(
            path
            for path in first.keys() | second.keys()
            if path not in fields
            or not fields[path].are_equal(first.get(path, ABSENT), second.get(path, ABSENT))
        )


def json_path(keys: tuple[str, ...]) -> str:
    """Joins keys to a JSON path, as in the store's table of fields: ("order", "kind") → $.order.kind. NULs,
    which PostgreSQL's texts can't hold, are left out.
    """
    return ".".join(("$", *keys)).replace("\0", "")


def format_value(value: Any) -> str:
    """A field's value, as `Field.read` returns it, in words: "true", "null", "a, b", "(none)"."""
    if value is ABSENT:
        return "(not there)"
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ", ".join(_format_item(item) for item in value) or "(none)"
    return str(value)


def _format_item(item: Any) -> str:
    """Formats a label, or a quote with its kind."""
    if isinstance(item, tuple) and len(item) == 2:
        kind, quote = item
        return f"{kind}: {quote}" if kind else str(quote)
    return str(item)


def is_number(value: Any) -> bool:
    """Whether `value` is a number of JSON; True and False are none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def normalize_number(value: Any) -> Any:
    """Returns 1 for 1.0, since JSON has one kind of number, and all else unchanged; also floats beyond 2⁵³,
    where not every integer has a float.
    """
    is_whole = isinstance(value, float) and value.is_integer() and abs(value) <= 2**53
    return int(value) if is_whole else value


def canonical_json(value: Any) -> bytes:
    """JSON bytes that are equal for equal values: 1.0 equals 1 but not true, a tuple equals its list, and the
    order of an object's keys is ignored. ABSENT is empty.
    """
    if value is ABSENT:
        return b""
    return orjson.dumps(normalize_number(value), option=orjson.OPT_SORT_KEYS)


def value_at(answer: Json, keys: tuple[str, ...]) -> Any:
    """The part of an answer at `keys`; ABSENT if there is none."""
    for key in keys:
        if not isinstance(answer, dict) or key not in answer:
            return ABSENT
        answer = answer[key]
    return answer


def _list_leaves(
    value: Json, keys: tuple[str, ...], known: set[tuple[str, ...]]
) -> list[tuple[tuple[str, ...], Json]]:
    """All parts inside nested objects with their keys, down to scalars, lists and `known` parts."""
    if not isinstance(value, dict) or keys in known or (keys and not value):
        return [(keys, value)]
    return [leaf for key, part in value.items() for leaf in _list_leaves(part, (*keys, key), known)]


class FieldPrediction(NamedTuple):
    """A student's value for one field of one text.

    `value` has the form that `Field.read` returns; `confidence` is the probability that the teacher gives an
    equal value. `probabilities` lists each class with its probability, for fields with one of several values.
    """

    value: Any
    confidence: float
    probabilities: tuple[tuple[Any, float], ...] = ()


class FieldHead(BaseModel):
    """How a model's C outputs for the field `path` are turned into values.

    `classes` (C,) are indices into `Field.classes`, or into the labels of a labels field. A number field has
    the indices of None and ABSENT there, and -1 for each range of numbers. `centres` (C,) belong to a number
    field and `thresholds` (C,) to a labels field; both are empty elsewhere.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    path: str
    classes: tuple[int, ...]
    temperature: float = Bounded(1.0, ge=COLDEST, le=HOTTEST)
    thresholds: tuple[float, ...] = ()
    centres: tuple[float, ...] = ()

    def has_alternatives(self, field: Field) -> bool:
        """Whether the outputs can lead to more than one value."""
        return len(self.classes) > (field.kind != "labels")

    def probabilities(self, field: Field, logits: npt.ArrayLike) -> Floats:
        """Calibrated probabilities (E, C) of `logits` (E, C)."""
        return probabilities_of(logits, self.temperature, multi_label=field.kind == "labels")

    def predict(self, field: Field, logits: npt.ArrayLike) -> list[FieldPrediction]:
        """The value of each text by its `logits` (E, C)."""
        probabilities = self.probabilities(field, logits)
        if field.kind == "labels":
            return self._predict_labels(field, probabilities)
        if field.kind == "number":
            return [self._predict_number(field, row) for row in probabilities]
        best = probabilities.argmax(axis=1)
        values = [field.classes[number] for number in self.classes]
        return [
            FieldPrediction(values[index], float(row[index]), tuple(zip(values, row.tolist(), strict=True)))
            for index, row in zip(best, probabilities, strict=True)
        ]

    def _predict_labels(self, field: Field, probabilities: Floats) -> list[FieldPrediction]:
        """As `predict`. The confidence is 0 where the schema allows no list of so many labels."""
        thresholds = np.array(self.thresholds or [0.5] * len(self.classes))
        predictions = []
        for row, confidence in zip(
            probabilities >= thresholds, confidence_of(probabilities, thresholds), strict=True
        ):
            labels = tuple(
                field.values[number] for number, chosen in zip(self.classes, row, strict=True) if chosen
            )
            value = labels or field.empty_value
            predictions.append(FieldPrediction(value, float(confidence) * field.allows_length(value)))
        return predictions

    def _predict_number(self, field: Field, probabilities: Floats) -> FieldPrediction:
        values = [
            field.classes[number] if number >= 0 else normalize_number(self.centres[index])
            for index, number in enumerate(self.classes)
        ]
        is_near = np.array([[field.are_equal(one, other) for other in values] for one in values], np.float64)
        mass = is_near @ probabilities
        best = int(mass.argmax())
        return FieldPrediction(values[best], float(min(mass[best], 1.0)))


def nearest_output(head: FieldHead, field: Field, value: Any) -> int | None:
    """The index of the output that stands for a number field's value: the one with the nearest centre, or
    that of None or ABSENT. None if the value is neither a number nor one of the classes.
    """
    if value is None or value is ABSENT:
        number = next((index for index, known in enumerate(field.classes) if known is value), None)
        return head.classes.index(number) if number in head.classes else None
    if not is_number(value):
        return None
    ranges = [index for index, number in enumerate(head.classes) if number < 0]
    return min(ranges, key=lambda index: abs(head.centres[index] - value), default=None)
