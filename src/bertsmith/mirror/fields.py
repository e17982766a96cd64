"""The fields of a site's answers: what each may hold, and what a model's outputs say of it.

An answer is values by path, as the store writes paths: $.order.kind. Values are compared by what they say:
several labels without their order, numbers within a tolerance, quotes without theirs.

    {"intent": "card", "urgent": false}  ↔  {"$.intent": "card", "$.urgent": False}

Of outputs it is told which value they say, and how sure that is:

    enum, boolean, ordinal   softmax over the classes learned; the likeliest, with its probability
    labels                   a sigmoid a label; those above their thresholds, with the probability of the set
                             as if labels were independent
    number                   softmax over ranges of the numbers learned, each with its centre; that centre
                             which has the most probability within the field's tolerance of it

E texts, C classes.
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
Values = dict[str, Any]  # of an answer, by path


class Absence(Enum):
    """What an optional field holds that isn't there."""

    ABSENT = "absent"


ABSENT = Absence.ABSENT


class SpanForm(BaseModel):
    """How quotes stand in an answer: one `text`, a list of `texts`, or a list of `objects` with the quote
    under the key `text` and, if there are kinds, the kind under `label`; `keys` is their order.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    form: Literal["text", "texts", "objects"]
    text: str = ""
    label: str = ""
    keys: tuple[str, ...] = ()


class Field(BaseModel):
    """One value of an answer, found by its `keys`.

    kind      value                                     values
    enum      one of them                               all of them
    boolean   True or False                             both
    ordinal   a number, or a level                      all, in their order
    number    a number; within `tolerance` is the same  none
    labels    a tuple of some, in their order           all of them
    spans     a tuple of (kind, quote)                  the kinds, "" where there are none

    `nullable`: None may stand there. `optional`: the key may be missing, which is the value ABSENT.
    `is_observed`: the values are those that answers had, and the schema would allow more. `empty`: what most
    answers had in place of an empty list of labels or quotes, or of a quote that isn't there.
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

    @property
    def path(self) -> str:
        """$.order.kind"""
        return json_path(self.keys)

    @property
    def classes(self) -> tuple[Any, ...]:
        """What one of its values is chosen from, None and ABSENT among them; not for labels and spans."""
        found = list(self.values)
        if self.nullable and None not in found:
            found.append(None)
        return (*found, ABSENT) if self.optional else tuple(found)

    @property
    def nothing(self) -> Any:
        """What labels or quotes are where there are none: an empty tuple, None or ABSENT."""
        if self.empty == "absent":
            return ABSENT
        is_text = self.spans is not None and self.spans.form == "text"
        if is_text and not self.empty and self.optional and not self.nullable:
            return ABSENT
        return None if is_text or self.empty == "null" else ()

    def read(self, value: Json) -> Any:
        """A value as it stands in an answer → as it is compared and learned. What can't be read stays as it
        is, and is the same as nothing that this field says.
        """
        if value is None or value is ABSENT:
            return value
        if self.kind == "labels":
            return self._labels(value)
        if self.kind == "spans":
            return self._spans(value)
        return normalize_number(value) if self.kind in ("ordinal", "number") else value

    def write(self, value: Any) -> Json:
        """The inverse of `read`."""
        if value is None or self.kind not in ("labels", "spans"):
            return value
        if self.kind == "labels":
            return list(value)
        assert self.spans is not None
        if self.spans.form == "text":
            return value[0][1] if value else None
        if self.spans.form == "texts":
            return [quote for _, quote in value]
        return [self._object(kind, quote) for kind, quote in value]

    def same(self, first: Any, second: Any) -> bool:
        """Whether two values of the field say the same."""
        if self.kind == "number" and is_number(first) and is_number(second):
            return bool(abs(first - second) <= self.tolerance)
        if self.kind == "spans" and isinstance(first, tuple) and isinstance(second, tuple):
            return sorted(first) == sorted(second)
        return canonical_json(first) == canonical_json(second)

    def holds(self, value: Any) -> bool:
        """Whether a value that was read is one that may stand there: of its kind, and where the schema says
        which, one of these.
        """
        if value is None or value is ABSENT:
            return value in self.classes
        if self.kind == "number":
            return is_number(value)
        if self.kind == "spans":
            return isinstance(value, tuple)
        if self.kind != "labels":
            return self._knows(value)
        return isinstance(value, list | tuple) and all(map(self._knows, value))

    def _knows(self, value: Any) -> bool:
        """One of its values; where they are those that were seen, another of their kind too."""
        if self.is_observed and isinstance(value, str):
            return any(isinstance(each, str) for each in self.values)
        if self.is_observed and is_number(value):
            return any(map(is_number, self.values))
        return any(canonical_json(value) == canonical_json(each) for each in self.values)

    def _labels(self, value: Json) -> Any:
        if not isinstance(value, list):
            return value
        given = {canonical_json(each) for each in value}
        known = {canonical_json(each): each for each in self.values}
        return tuple(known[key] for key in known if key in given) if given <= known.keys() else value

    def _spans(self, value: Json) -> Any:
        """Pairs of kind and quote, or the value itself where it has another form."""
        form = self.spans
        assert form is not None
        if form.form == "text":
            return (("", value),) if isinstance(value, str) else value
        if not isinstance(value, list):
            return value
        found = []
        for each in value:
            if form.form == "texts":
                kind, quote = "", each
            elif isinstance(each, dict) and set(each) == set(form.keys):
                kind, quote = each[form.label] if form.label else "", each[form.text]
            else:
                return value
            if not isinstance(quote, str) or not isinstance(kind, str):
                return value
            found.append((kind, quote))
        return tuple(found)

    def _object(self, kind: str, quote: str) -> Json:
        assert self.spans is not None
        return {key: quote if key == self.spans.text else kind for key in self.spans.keys}


class UnsupportedPart(BaseModel):
    """A part of the answer that no model of ours can give, and why."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    keys: tuple[str, ...]
    why: str
    required: bool

    @property
    def path(self) -> str:
        """$.order.note"""
        return json_path(self.keys)


class Constant(BaseModel):
    """A part that is the same in every answer."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    keys: tuple[str, ...]
    value: Json


class AnswerShape(BaseModel):
    """What a site's answers hold. `order` are the keys of fields and constants as they follow each other.

    A part that is `refused` and need not be there is left out of our answers: a teacher's answer that has it
    is another one.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    fields: tuple[Field, ...]
    refused: tuple[UnsupportedPart, ...] = ()
    constants: tuple[Constant, ...] = ()
    order: tuple[tuple[str, ...], ...] = ()

    @property
    def is_mirrorable(self) -> bool:
        """Whether a model could give the whole answer."""
        return bool(self.fields) and not any(each.required for each in self.refused)

    @property
    def why_not(self) -> str:
        """'$.reason: a free text'; empty where it is mirrorable."""
        if self.is_mirrorable:
            return ""
        reasons = [f"{each.path}: {each.why}" for each in self.refused if each.required]
        return "; ".join(reasons) or "the answers have no fields"

    def field(self, path: str) -> Field:
        """By its path; KeyError where there is none."""
        return {field.path: field for field in self.fields}[path]

    def read(self, answer: Json) -> Values:
        """Values by path, ABSENT for what isn't there. What the answer has beside the fields is there too,
        under its own path, so that no answer of ours is the same.
        """
        fields = {field.path: field.read(value_at(answer, field.keys)) for field in self.fields}
        found: Values = dict(fields)
        constants = {constant.keys: canonical_json(constant.value) for constant in self.constants}
        known = {field.keys for field in self.fields}
        parts = [*known, *constants]
        # What these stand in, which is there though they be left out.
        objects = {keys[:length] for keys in parts for length in range(1, len(keys))}
        for keys, value in _list_leaves(answer, (), known | constants.keys()):
            is_empty = keys in objects and value == {}  # all that it may hold is left out
            if keys not in known and not is_empty and constants.get(keys) != canonical_json(value):
                path = json_path(keys)
                found[f"{path} (another)" if path in fields else path] = value
        for keys in (*constants, *objects):
            if value_at(answer, keys) is ABSENT:
                found[json_path(keys)] = ABSENT
        return found

    def holds(self, values: Values) -> bool:
        """Whether each field has a value, as `read` gives it, that may stand there."""
        return all(field.holds(values[field.path]) for field in self.fields)

    def compose(self, values: Mapping[str, Any]) -> dict[str, Json]:
        """An answer of these values, in the order in which the teacher writes its keys. KeyError for a field
        without a value.
        """
        fields = {each.keys: each for each in self.fields}
        constants = {constant.keys: constant.value for constant in self.constants}
        answer: dict[str, Json] = {}
        for keys in self.order:
            field = fields.get(keys)
            value = constants[keys] if field is None else values[field.path]
            inner = answer
            for key in keys[:-1]:
                inner = inner.setdefault(key, {})
            if value is not ABSENT:
                inner[keys[-1]] = value if field is None else field.write(value)
        return answer

    def differing(self, ours: Mapping[str, Any], taught: Mapping[str, Any]) -> frozenset[str]:
        """Paths at which two answers, as `read` gives them, differ; empty where they say the same."""
        fields = {field.path: field for field in self.fields}
        return frozenset(
            path
            for path in ours.keys() | taught.keys()
            if path not in fields or not fields[path].same(ours.get(path, ABSENT), taught.get(path, ABSENT))
        )


def json_path(keys: tuple[str, ...]) -> str:
    """As the store's table of fields has it, without what a text can't hold."""
    return ".".join(("$", *keys)).replace("\0", "")


def format_value(value: Any) -> str:
    """A field's value for people."""
    if value is ABSENT:
        return "(not there)"
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ", ".join(_format_item(each) for each in value) or "(none)"
    return str(value)


def _format_item(each: Any) -> str:
    """A label, or a quote with its kind."""
    if isinstance(each, tuple) and len(each) == 2:
        kind, quote = each
        return f"{kind}: {quote}" if kind else str(quote)
    return str(each)


def is_number(value: Any) -> bool:
    """A number of JSON; True isn't."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def normalize_number(value: Any) -> Any:
    """1 for 1.0: JSON has one kind of number. Beyond 2⁵³, where floats skip integers, it stays as it is."""
    is_whole = isinstance(value, float) and value.is_integer() and abs(value) <= 2**53
    return int(value) if is_whole else value


def canonical_json(value: Any) -> bytes:
    """Equal for equal values: 1.0 is 1 but true isn't, and a list that a tuple was made of is the same."""
    if value is ABSENT:
        return b""
    return orjson.dumps(normalize_number(value), option=orjson.OPT_SORT_KEYS)


def value_at(answer: Json, keys: tuple[str, ...]) -> Any:
    """What an answer has there; ABSENT where it has nothing."""
    for key in keys:
        if not isinstance(answer, dict) or key not in answer:
            return ABSENT
        answer = answer[key]
    return answer


def _list_leaves(
    value: Json, keys: tuple[str, ...], known: set[tuple[str, ...]]
) -> list[tuple[tuple[str, ...], Json]]:
    """What stands in objects, down to values, lists and known parts."""
    if not isinstance(value, dict) or keys in known or (keys and not value):
        return [(keys, value)]
    return [leaf for key, each in value.items() for leaf in _list_leaves(each, (*keys, key), known)]


class FieldPrediction(NamedTuple):
    """A field's value as `Field.read` gives it, and the probability that the teacher says the same. `spread`
    has the probability of each value learned, of fields that hold one of several.
    """

    value: Any
    confidence: float
    spread: tuple[tuple[Any, float], ...] = ()


class FieldHead(BaseModel):
    """How a model's C outputs for the field `path` are read.

    `classes`: numbers of `Field.classes`, or of its labels, in the order of the outputs; of a number field
    the place of None or ABSENT there, and -1 for a range. `centres` (C,) are a number field's, `thresholds`
    (C,) a labels field's; both are empty elsewhere.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    path: str
    classes: tuple[int, ...]
    temperature: float = Bounded(1.0, ge=COLDEST, le=HOTTEST)
    thresholds: tuple[float, ...] = ()
    centres: tuple[float, ...] = ()

    def tells_apart(self, field: Field) -> bool:
        """Whether it has more than one answer to give."""
        return len(self.classes) > (field.kind != "labels")

    def probabilities(self, field: Field, logits: npt.ArrayLike) -> Floats:
        """(E, C) of logits (E, C)."""
        return probabilities_of(logits, self.temperature, multi_label=field.kind == "labels")

    def guesses(self, field: Field, logits: npt.ArrayLike) -> list[FieldPrediction]:
        """Of logits (E, C), one a text."""
        probabilities = self.probabilities(field, logits)
        if field.kind == "labels":
            return self._labels(field, probabilities)
        if field.kind == "number":
            return [self._number(field, row) for row in probabilities]
        best = probabilities.argmax(axis=1)
        values = [field.classes[number] for number in self.classes]
        return [
            FieldPrediction(values[place], float(row[place]), tuple(zip(values, row.tolist(), strict=True)))
            for place, row in zip(best, probabilities, strict=True)
        ]

    def _labels(self, field: Field, probabilities: Floats) -> list[FieldPrediction]:
        thresholds = np.array(self.thresholds or [0.5] * len(self.classes))
        sure = confidence_of(probabilities, thresholds)
        return [
            FieldPrediction(
                tuple(field.values[number] for number, holds in zip(self.classes, row, strict=True) if holds)
                or field.nothing,
                float(confidence),
            )
            for row, confidence in zip(probabilities >= thresholds, sure, strict=True)
        ]

    def _number(self, field: Field, probabilities: Floats) -> FieldPrediction:
        values = [
            field.classes[number] if number >= 0 else normalize_number(self.centres[place])
            for place, number in enumerate(self.classes)
        ]
        near = np.array([[field.same(one, other) for other in values] for one in values], np.float64)
        mass = near @ probabilities
        best = int(mass.argmax())
        return FieldPrediction(values[best], float(min(mass[best], 1.0)))


def nearest_output(head: FieldHead, field: Field, value: Any) -> int | None:
    """The output that stands for a value of a number field: that of the nearest centre. None for what is
    neither a number nor one of its classes.
    """
    if value is None or value is ABSENT:
        number = next((n for n, each in enumerate(field.classes) if each is value), None)
        return head.classes.index(number) if number in head.classes else None
    if not is_number(value):
        return None
    ranges = [place for place, number in enumerate(head.classes) if number < 0]
    return min(ranges, key=lambda place: abs(head.centres[place] - value), default=None)
