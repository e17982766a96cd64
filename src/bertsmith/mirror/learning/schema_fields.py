"""A JSON schema, and answers that followed it → the fields that a model can learn, and what it can't.

enum, const, boolean                    their values
integer, number                         few values in the schema or seen: ordinal; else a number
array of enum                           labels
string, array of string                 quotes of the input, or the few values that were seen
array of {string, enum}                 quotes with their kind
any of these or null, or not required   nullable, optional
object                                  its properties, each by itself
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from bertsmith.mirror.call import Json
from bertsmith.mirror.fields import (
    ABSENT,
    AnswerShape,
    Constant,
    Field,
    SpanForm,
    UnsupportedPart,
    is_number,
    path_of,
    plain,
    value_at,
    written,
)

_FREE = "a free text, neither quoted from the input nor one of few values"
_DEEPEST = 12  # references and objects within each other
Keys = tuple[str, ...]
_TYPES = {
    str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null", list: "array",
}  # fmt: skip
MOST_VALUES = 100  # of a field whose values are those that were seen
_EACH = 10  # answers for each of them on average: fewer, and there are more values than were seen
_MOST_NUMBERS = 20  # values of a number that are learned one by one
_QUOTED = 0.95  # of the texts of a field, to be taken for quotes
_TOLERANCE = 0.05  # of the middle 90 % of the numbers seen


class FieldObservation(NamedTuple):
    """A value of a field, and the input of its call, "" where it isn't known."""

    value: Any
    text: str


class AnswerObservation(NamedTuple):
    """An answer, and the input of its call."""

    answer: Json
    text: str


def infer_shape(schema: Mapping[str, Json], observations: Sequence[AnswerObservation]) -> AnswerShape:
    """What the answers hold. Where the schema has no properties, as of json_object, they are those of the
    answers.
    """
    described = dict(schema) if _properties(schema) else _infer_schema([each.answer for each in observations])
    walk = _SchemaWalk(described, observations)
    if not _properties(described):
        walk.refuse((), "no object with fields", required=True)
    else:
        walk.object(described, (), 0)
        walk.refuse_ambiguous()
    return AnswerShape(
        fields=tuple(walk.fields),
        refused=tuple(walk.refused),
        constants=tuple(walk.constants),
        order=_choose_order(walk, observations),
    )


@dataclass
class _SchemaNode:
    """A schema without null and references, and how it may be missing."""

    schema: Mapping[str, Json]
    values: list[Json] | None  # of an enumeration
    nullable: bool
    variants: int = 1


@dataclass
class _SchemaWalk:
    root: Mapping[str, Json]
    observations: Sequence[AnswerObservation]
    fields: list[Field] = field(default_factory=list)
    refused: list[UnsupportedPart] = field(default_factory=list)
    constants: list[Constant] = field(default_factory=list)

    def refuse(self, keys: Keys, why: str, *, required: bool) -> None:
        self.refused.append(UnsupportedPart(keys=keys, why=why, required=required))

    def refuse_ambiguous(self) -> None:
        """Parts that have one path, such as the key a.b beside the key b in a."""
        parts = [each.keys for some in (self.fields, self.refused, self.constants) for each in some]
        counts = Counter(map(path_of, parts))
        for keys in parts:
            if counts.pop(path_of(keys), 1) > 1:
                self.refuse(keys, "several keys that are written alike", required=True)

    def object(self, schema: Mapping[str, Json], keys: Keys, depth: int) -> None:
        """Its properties, one by one."""
        required = schema.get("required")
        required = required if isinstance(required, list) else []
        for name, inner in _properties(schema).items():
            own = (*keys, name)
            seen = self.seen(own)
            missing = any(each.value is ABSENT for each in seen)
            optional = name not in required and (missing or not seen)
            self.property(inner if isinstance(inner, dict) else {}, own, seen, optional, depth + 1)

    def property(
        self, schema: Mapping[str, Json], keys: Keys, seen: list[FieldObservation], optional: bool, depth: int
    ) -> None:
        """One field, one constant, a refusal, or an object's."""
        node = self.resolved(schema, depth)
        if node.variants > 1 or depth > _DEEPEST:
            self.refuse(keys, "several shapes in one place", required=not optional)
        elif _properties(node.schema):
            if optional or node.nullable:
                self.refuse(keys, "an object that may be missing", required=not optional)
            else:
                count = len(self.fields) + len(self.constants)
                self.object(node.schema, keys, depth)
                if count == len(self.fields) + len(self.constants):  # it may hold free texts alone
                    self.constants.append(Constant(keys=keys, value={}))
        elif node.values is not None and len(node.values) == 1 and not optional and not node.nullable:
            self.constants.append(Constant(keys=keys, value=node.values[0]))
        else:
            found = self.field(node, seen)
            if isinstance(found, str):
                self.refuse(keys, found, required=not optional)
            else:
                own = Field(keys=keys, nullable=node.nullable, optional=optional, **found)
                self.fields.append(own.model_copy(update={"empty": _usual_empty_value(own, seen)}))

    def field(self, node: _SchemaNode, seen: list[FieldObservation]) -> dict[str, Any] | str:
        """What a Field has beside its place, or why there is none."""
        if (values := node.values) is not None:
            if values and all(isinstance(value, bool) for value in values):
                return {"kind": "boolean", "values": tuple(values)}
            is_ordinal = len(values) > 2 and all(is_number(value) for value in values)
            return {"kind": "ordinal" if is_ordinal else "enum", "values": tuple(values)}
        kind = node.schema.get("type")
        if kind == "boolean":
            return {"kind": "boolean", "values": (True, False)}
        if kind in ("integer", "number"):
            return _describe_number(node.schema, seen)
        if kind == "array":
            return self.array(node.schema, seen)
        if kind != "string":
            return "no type that could be learned"
        given = [each for each in seen if isinstance(each.value, str)]
        if not given and (node.nullable or not seen):
            # Never a text so far: null, or nothing, is all there is to learn.
            return {"kind": "enum", "is_observed": True} if seen else _FREE
        if few := list_few_values(given):
            return {"kind": "enum", "values": few, "is_observed": True}
        quotes = {"kind": "spans", "values": ("",), "spans": SpanForm(form="text")}
        return quotes if are_quotes(given) else _FREE

    def array(self, schema: Mapping[str, Json], seen: list[FieldObservation]) -> dict[str, Any] | str:
        """Labels or quotes."""
        items = schema.get("items")
        node = self.resolved(items if isinstance(items, dict) else {}, 1)
        if node.variants > 1 or node.nullable:
            return "a list of several shapes"
        if node.values is not None:
            return {"kind": "labels", "values": tuple(node.values)}
        inner = [
            FieldObservation(item, each.text)
            for each in seen
            if isinstance(each.value, list)
            for item in each.value
        ]
        if not inner and any(each.value == [] for each in seen):
            # Never filled so far: that is all there is to learn.
            return {"kind": "labels", "is_observed": True}
        if node.schema.get("type") == "string":
            given = [each for each in inner if isinstance(each.value, str)]
            if few := list_few_values(given):
                return {"kind": "labels", "values": few, "is_observed": True}
            if are_quotes(given):
                return {"kind": "spans", "values": ("",), "spans": SpanForm(form="texts")}
            return "a list of free texts" if given else "a list that was never filled"
        if _properties(node.schema):
            return self.list_of_objects(node.schema, inner)
        return "a list of neither labels nor quotes"

    def list_of_objects(
        self, schema: Mapping[str, Json], seen: list[FieldObservation]
    ) -> dict[str, Any] | str:
        """Quotes with their kind: one free text, and at most one enumeration."""
        texts, kinds = list[str](), dict[str, tuple[Json, ...]]()
        for name, inner in _properties(schema).items():
            node = self.resolved(inner if isinstance(inner, dict) else {}, 1)
            values = [
                FieldObservation(each.value[name], each.text)
                for each in seen
                if isinstance(each.value, dict) and isinstance(each.value.get(name), str)
            ]
            if node.values:
                kinds[name] = tuple(node.values)
            elif node.schema.get("type") == "string" and are_quotes(values):
                texts.append(name)
            elif node.schema.get("type") == "string" and (few := list_few_values(values)):
                kinds[name] = few
            else:
                return "a list of objects that are no quotes of the input"
        if (
            len(texts) != 1
            or len(kinds) > 1
            or not all(isinstance(v, str) for k in kinds.values() for v in k)
        ):
            return "a list of objects that are no quotes of the input"
        label = next(iter(kinds), "")
        form = SpanForm(form="objects", text=texts[0], label=label, keys=tuple(_properties(schema)))
        return {"kind": "spans", "values": kinds.get(label, ("",)), "spans": form}

    def resolved(self, schema: Mapping[str, Json], depth: int) -> _SchemaNode:
        """Without references and null; several enumerations as one."""
        variants = list(self.variants(schema, depth))
        nullable = any(_is_null(each) for each in variants)
        others = [each for each in variants if not _is_null(each)]
        enumerated = [_enum_values(each) for each in others]
        if (others or nullable) and all(each is not None for each in enumerated):
            values = [value for each in enumerated for value in each or ()]
            nullable = nullable or None in values
            once = {written(value): value for value in values if value is not None}
            return _SchemaNode({}, list(once.values()), nullable)
        return _SchemaNode(others[0] if others else {}, None, nullable, max(len(others), 1))

    def variants(self, schema: Mapping[str, Json], depth: int) -> Iterator[Mapping[str, Json]]:
        """Every shape that it allows."""
        if depth > _DEEPEST or not isinstance(schema, dict):
            yield {}
        elif "$ref" in schema:
            yield from self.variants(self.referenced(str(schema["$ref"])), depth + 1)
        elif isinstance(schema.get("allOf"), list) and len(schema["allOf"]) == 1:
            yield from self.variants(schema["allOf"][0], depth + 1)
        elif isinstance(either := schema.get("anyOf") or schema.get("oneOf"), list):
            for each in either:
                yield from self.variants(each, depth + 1)
        elif isinstance(schema.get("type"), list):
            for kind in schema["type"]:
                yield {**schema, "type": kind} if kind != "null" else {"type": "null"}
        else:
            yield schema

    def referenced(self, pointer: str) -> Mapping[str, Json]:
        """#/$defs/Intent within the schema itself; nothing else is looked up."""
        found: Json = self.root
        if not pointer.startswith("#/"):
            return {}
        for key in pointer[2:].split("/"):
            key = key.replace("~1", "/").replace("~0", "~")
            if not isinstance(found, dict) or key not in found:
                return {}
            found = found[key]
        return found if isinstance(found, dict) else {}

    def seen(self, keys: Keys) -> list[FieldObservation]:
        """What answers had there, ABSENT where they had nothing."""
        return [FieldObservation(value_at(each.answer, keys), each.text) for each in self.observations]


def _properties(schema: Mapping[str, Json]) -> dict[str, Json]:
    """None where it says nothing that could be them: a schema is what a client wrote."""
    found = schema.get("properties")
    return found if isinstance(found, dict) else {}


def _is_null(schema: Mapping[str, Json]) -> bool:
    return schema.get("type") == "null" or ("const" in schema and schema["const"] is None)


def _enum_values(schema: Mapping[str, Json]) -> list[Json] | None:
    """Of an enumeration of values that aren't lists or objects."""
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if not isinstance(values, list) or any(isinstance(value, dict | list) for value in values):
        return None
    return values


def _describe_number(schema: Mapping[str, Json], seen: list[FieldObservation]) -> dict[str, Any]:
    low, high = schema.get("minimum"), schema.get("maximum")
    is_short = isinstance(low, int) and isinstance(high, int) and 0 < high - low <= 20
    if schema.get("type") == "integer" and is_short:
        return {"kind": "ordinal", "values": tuple(range(low, high + 1))}  # type: ignore[arg-type,operator]
    numbers = [FieldObservation(plain(each.value), "") for each in seen if is_number(each.value)]
    if few := list_few_values(numbers, _MOST_NUMBERS):
        return {"kind": "ordinal", "values": few, "is_observed": True}
    return {"kind": "number", "tolerance": estimate_tolerance(seen, low, high)}


def _usual_empty_value(field: Field, seen: list[FieldObservation]) -> str:
    """What most answers had where there were no labels or quotes, of what the schema allows."""
    if field.kind not in ("labels", "spans"):
        return ""
    counts = {
        "": sum(each.value == [] for each in seen),
        "null": sum(each.value is None for each in seen) if field.nullable else 0,
        "absent": sum(each.value is ABSENT for each in seen) if field.optional else 0,
    }
    return max(counts, key=counts.__getitem__)


def _infer_schema(values: Sequence[Json]) -> dict[str, Json]:
    kinds = {_TYPES.get(type(value), "object") for value in values}
    types = sorted(kinds - {"null"})
    if types == ["integer", "number"]:
        types = ["number"]
    if len(types) != 1:
        return {"anyOf": [{"type": each} for each in (*types, "null")]} if types else {"type": "null"}
    found: dict[str, Json] = {"type": [types[0], "null"] if "null" in kinds else types[0]}
    present = [value for value in values if value is not None]
    if types == ["object"]:
        names = dict.fromkeys(name for value in present for name in value)
        found["properties"] = {
            name: _infer_schema([value[name] for value in present if name in value]) for name in names
        }
        found["required"] = [name for name in names if all(name in value for value in present)]
    if types == ["array"]:
        items = [item for value in present for item in value]
        found["items"] = _infer_schema(items) if items else {"type": "string"}
    return found


def _choose_order(walk: _SchemaWalk, observations: Sequence[AnswerObservation]) -> tuple[Keys, ...]:
    """As most answers have their keys; what these lack, as the schema has it."""
    known = [each.keys for each in walk.fields] + [each.keys for each in walk.constants]
    places = {keys: place for place, keys in enumerate(_schema_keys(walk.root))}
    known.sort(key=lambda keys: places.get(keys, len(places)))
    orders = Counter(
        tuple(keys for keys in _answer_keys(each.answer, (), set(known)) if keys in set(known))
        for each in observations[-200:]
    )
    complete = [order for order, _ in orders.most_common() if len(order) == len(known)]
    return complete[0] if complete else tuple(known)


def _schema_keys(schema: Mapping[str, Json], keys: Keys = (), depth: int = 0) -> Iterator[Keys]:
    for name, inner in _properties(schema).items():
        if isinstance(inner, dict) and _properties(inner) and depth < _DEEPEST:
            yield from _schema_keys(inner, (*keys, name), depth + 1)
        else:
            yield (*keys, name)


def _answer_keys(value: Json, keys: Keys, known: set[Keys]) -> Iterator[Keys]:
    if keys in known or not isinstance(value, dict):
        yield keys
    else:
        for name, each in value.items():
            yield from _answer_keys(each, (*keys, name), known)


def list_few_values(seen: Sequence[FieldObservation], most: int = MOST_VALUES) -> tuple[Any, ...] | None:
    """The different texts or numbers, in order; None where there are too many to have seen them all."""
    counts = Counter(each.value for each in seen if each.value is not None and each.value is not ABSENT)
    if len(counts) > most or counts.total() < _EACH * len(counts):
        return None
    return tuple(sorted(counts))


def estimate_tolerance(seen: Sequence[FieldObservation], low: Any, high: Any) -> float:
    """How far two numbers may be apart to count as the same: a twentieth of what nine in ten of the numbers
    seen span, and of the schema's range where that is smaller. A schema's range may be far wider than what is
    said: of amounts up to a million that all are below a hundred, any would be the same.
    """
    numbers = [float(each.value) for each in seen if is_number(each.value)]
    spans = [float(high - low)] if is_number(low) and is_number(high) and high > low else []
    if len(numbers) > 1:
        bottom, top = np.quantile(numbers, [0.05, 0.95])
        spans.append(float(top - bottom))
    return _TOLERANCE * min(spans, default=0.0)


def are_quotes(seen: Sequence[FieldObservation]) -> bool:
    """Whether nearly all of these texts stand in their inputs word for word, where these are known."""
    texts = [each for each in seen if isinstance(each.value, str) and each.value.strip() and each.text]
    return bool(texts) and sum(each.value in each.text for each in texts) >= _QUOTED * len(texts)
