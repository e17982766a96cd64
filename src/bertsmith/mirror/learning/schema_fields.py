"""Infers the fields that a model can learn, and the parts that it can't, from a JSON schema and answers that
follow it. Read `infer_shape` first.

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
    canonical_json,
    is_number,
    json_path,
    normalize_number,
    value_at,
)

_FREE = "a free text, neither quoted from the input nor one of few values"
_DEEPEST = 12  # references and objects within each other
Keys = tuple[str, ...]
_TYPES = {
    str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null", list: "array",
}  # fmt: skip
MOST_VALUES = 100  # of a field whose values are taken from the answers
_EACH = 10  # least answers for each value on average; with fewer, values are likely missing
_MOST_NUMBERS = 20  # most values of a number that are learned as classes
_QUOTED = 0.95  # least share of a field's texts that are quotes of the input
_TOLERANCE = 0.05  # as a share of the range of the middle 90 % of the numbers


class FieldObservation(NamedTuple):
    """A field's value in one answer, and the input text of its call, "" where it is unknown."""

    value: Any
    text: str


class AnswerObservation(NamedTuple):
    """One answer, and the input text of its call, "" where it is unknown."""

    answer: Json
    text: str


def infer_shape(schema: Mapping[str, Json], observations: Sequence[AnswerObservation]) -> AnswerShape:
    """The fields, constants and unsupported parts of the answers. Where the schema has no properties, as with
    json_object, a schema is inferred from the answers.
    """
    root = dict(schema) if _properties(schema) else _infer_schema([seen.answer for seen in observations])
    walk = _SchemaWalk(root, observations)
    if not _properties(root):
        walk.refuse((), "no object with fields", required=True)
    else:
        walk.object(root, (), 0)
        walk.refuse_ambiguous()
    return AnswerShape(
        fields=tuple(walk.fields),
        refused=tuple(walk.refused),
        constants=tuple(walk.constants),
        order=_choose_order(walk, observations),
    )


@dataclass
class _SchemaNode:
    """A schema without null and references: the values of an enumeration, whether null is allowed, and the
    number of different shapes.
    """

    schema: Mapping[str, Json]
    values: list[Json] | None  # None: no enumeration
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
        """Refuses parts with the same path, such as the key a.b beside the key b in a."""
        groups = (self.fields, self.refused, self.constants)
        parts = [part.keys for group in groups for part in group]
        counts = Counter(map(json_path, parts))
        for keys in parts:
            if counts.pop(json_path(keys), 1) > 1:
                self.refuse(keys, "several keys that are written alike", required=True)

    def object(self, schema: Mapping[str, Json], keys: Keys, depth: int) -> None:
        """Adds the properties of an object."""
        required = schema.get("required")
        required = required if isinstance(required, list) else []
        for name, inner in _properties(schema).items():
            own = (*keys, name)
            seen = self.seen(own)
            missing = any(value.value is ABSENT for value in seen)
            optional = name not in required and (missing or not seen)
            self.property(inner if isinstance(inner, dict) else {}, own, seen, optional, depth + 1)

    def property(
        self, schema: Mapping[str, Json], keys: Keys, seen: list[FieldObservation], optional: bool, depth: int
    ) -> None:
        """Adds a property: a field, a constant, an unsupported part, or the parts of an object."""
        node = self.resolve(schema, depth)
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
            description = self.field(node, seen)
            if isinstance(description, str):
                self.refuse(keys, description, required=not optional)
            else:
                own = Field(keys=keys, nullable=node.nullable, optional=optional, **description)
                self.fields.append(own.model_copy(update={"empty": _usual_empty_value(own, seen)}))

    def field(self, node: _SchemaNode, seen: list[FieldObservation]) -> dict[str, Any] | str:
        """The attributes of a Field, or the reason why the property can't be learned."""
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
            described = self.array(node.schema, seen)
            return described if isinstance(described, str) else described | _list_limits(node.schema)
        if kind != "string":
            return "no type that could be learned"
        texts = [value for value in seen if isinstance(value.value, str)]
        if not texts and (node.nullable or not seen):
            # No text so far: only null or absence can be learned.
            return {"kind": "enum", "is_observed": True} if seen else _FREE
        if few := list_few_values(texts):
            return {"kind": "enum", "values": few, "is_observed": True}
        quotes = {"kind": "spans", "values": ("",), "spans": SpanForm(form="text")}
        return quotes if are_quotes(texts) else _FREE

    def array(self, schema: Mapping[str, Json], seen: list[FieldObservation]) -> dict[str, Any] | str:
        """The attributes of a field of labels or quotes, or the reason why the list can't be learned."""
        items = schema.get("items")
        node = self.resolve(items if isinstance(items, dict) else {}, 1)
        if node.variants > 1 or node.nullable:
            return "a list of several shapes"
        if node.values is not None:
            return {"kind": "labels", "values": tuple(node.values)}
        inner = [
            FieldObservation(item, value.text)
            for value in seen
            if isinstance(value.value, list)
            for item in value.value
        ]
        if not inner and any(value.value == [] for value in seen):
            # Never filled so far: only the empty list can be learned.
            return {"kind": "labels", "is_observed": True}
        if node.schema.get("type") == "string":
            texts = [item for item in inner if isinstance(item.value, str)]
            if few := list_few_values(texts):
                return {"kind": "labels", "values": few, "is_observed": True}
            if are_quotes(texts):
                return {"kind": "spans", "values": ("",), "spans": SpanForm(form="texts")}
            return "a list of free texts" if texts else "a list that was never filled"
        if _properties(node.schema):
            return self.list_of_objects(node.schema, inner)
        return "a list of neither labels nor quotes"

    def list_of_objects(
        self, schema: Mapping[str, Json], seen: list[FieldObservation]
    ) -> dict[str, Any] | str:
        """The attributes of a field of quotes with their kind: one free text, and at most one enumeration; or
        the reason why the list can't be learned.
        """
        texts, kinds = list[str](), dict[str, tuple[Json, ...]]()
        for name, inner in _properties(schema).items():
            node = self.resolve(inner if isinstance(inner, dict) else {}, 1)
            values = [
                FieldObservation(item.value[name], item.text)
                for item in seen
                if isinstance(item.value, dict) and isinstance(item.value.get(name), str)
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

    def resolve(self, schema: Mapping[str, Json], depth: int) -> _SchemaNode:
        """The schema without references and null; several enumerations become one."""
        variants = list(self.variants(schema, depth))
        nullable = any(_is_null(variant) for variant in variants)
        others = [variant for variant in variants if not _is_null(variant)]
        enumerations = [_enum_values(variant) for variant in others]
        if (others or nullable) and all(values is not None for values in enumerations):
            values = [value for enumeration in enumerations for value in enumeration or ()]
            nullable = nullable or None in values
            once = {canonical_json(value): value for value in values if value is not None}
            return _SchemaNode({}, list(once.values()), nullable)
        return _SchemaNode(others[0] if others else {}, None, nullable, max(len(others), 1))

    def variants(self, schema: Mapping[str, Json], depth: int) -> Iterator[Mapping[str, Json]]:
        """The alternatives that a schema allows, through $ref, allOf, anyOf, oneOf and lists of types."""
        if depth > _DEEPEST or not isinstance(schema, dict):
            yield {}
        elif "$ref" in schema:
            yield from self.variants(self.referenced(str(schema["$ref"])), depth + 1)
        elif isinstance(schema.get("allOf"), list) and len(schema["allOf"]) == 1:
            yield from self.variants(schema["allOf"][0], depth + 1)
        elif isinstance(either := schema.get("anyOf") or schema.get("oneOf"), list):
            for alternative in either:
                yield from self.variants(alternative, depth + 1)
        elif isinstance(schema.get("type"), list):
            for kind in schema["type"]:
                yield {**schema, "type": kind} if kind != "null" else {"type": "null"}
        else:
            yield schema

    def referenced(self, pointer: str) -> Mapping[str, Json]:
        """The target of a reference such as #/$defs/Intent within this schema; {} for any other reference."""
        target: Json = self.root
        if not pointer.startswith("#/"):
            return {}
        for key in pointer[2:].split("/"):
            key = key.replace("~1", "/").replace("~0", "~")
            if not isinstance(target, dict) or key not in target:
                return {}
            target = target[key]
        return target if isinstance(target, dict) else {}

    def seen(self, keys: Keys) -> list[FieldObservation]:
        """The answers' values at these keys, ABSENT where an answer has none."""
        return [FieldObservation(value_at(seen.answer, keys), seen.text) for seen in self.observations]


def _properties(schema: Mapping[str, Json]) -> dict[str, Json]:
    """A schema's properties; {} for anything but an object, since a schema is a client's input."""
    properties = schema.get("properties")
    return properties if isinstance(properties, dict) else {}


def _is_null(schema: Mapping[str, Json]) -> bool:
    return schema.get("type") == "null" or ("const" in schema and schema["const"] is None)


def _enum_values(schema: Mapping[str, Json]) -> list[Json] | None:
    """The values of an enumeration; None for any other schema, and where a value is a list or an object."""
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if not isinstance(values, list) or any(isinstance(value, dict | list) for value in values):
        return None
    return values


def _describe_number(schema: Mapping[str, Json], seen: list[FieldObservation]) -> dict[str, Any]:
    low, high = schema.get("minimum"), schema.get("maximum")
    is_short = isinstance(low, int) and isinstance(high, int) and 0 < high - low <= 20
    if schema.get("type") == "integer" and is_short:
        return {"kind": "ordinal", "values": tuple(range(low, high + 1))}  # type: ignore[arg-type,operator]
    numbers = [
        FieldObservation(normalize_number(value.value), "") for value in seen if is_number(value.value)
    ]
    if few := list_few_values(numbers, _MOST_NUMBERS):
        return {"kind": "ordinal", "values": few, "is_observed": True}
    return {"kind": "number", "tolerance": estimate_tolerance(seen, low, high)}


def _list_limits(schema: Mapping[str, Json]) -> dict[str, Any]:
    """How many items the schema of an array allows, as attributes of a Field."""
    limits = {"fewest": schema.get("minItems"), "most": schema.get("maxItems")}
    return {name: limit for name, limit in limits.items() if type(limit) is int}


def _usual_empty_value(field: Field, seen: list[FieldObservation]) -> str:
    """How most answers write a list without labels or quotes: "" (an empty list), "null" or "absent"."""
    if field.kind not in ("labels", "spans"):
        return ""
    counts = {
        "": sum(value.value == [] for value in seen),
        "null": sum(value.value is None for value in seen) if field.nullable else 0,
        "absent": sum(value.value is ABSENT for value in seen) if field.optional else 0,
    }
    return max(counts, key=counts.__getitem__)


def _infer_schema(values: Sequence[Json]) -> dict[str, Json]:
    kinds = {_TYPES.get(type(value), "object") for value in values}
    types = sorted(kinds - {"null"})
    if types == ["integer", "number"]:
        types = ["number"]
    if len(types) != 1:
        return {"anyOf": [{"type": name} for name in (*types, "null")]} if types else {"type": "null"}
    schema: dict[str, Json] = {"type": [types[0], "null"] if "null" in kinds else types[0]}
    present = [value for value in values if value is not None]
    if types == ["object"]:
        names = dict.fromkeys(name for value in present for name in value)
        schema["properties"] = {
            name: _infer_schema([value[name] for value in present if name in value]) for name in names
        }
        schema["required"] = [name for name in names if all(name in value for value in present)]
    if types == ["array"]:
        items = [item for value in present for item in value]
        schema["items"] = _infer_schema(items) if items else {"type": "string"}
    return schema


def _choose_order(walk: _SchemaWalk, observations: Sequence[AnswerObservation]) -> tuple[Keys, ...]:
    """The order of the keys in most answers, else the order in the schema."""
    known = [field.keys for field in walk.fields] + [constant.keys for constant in walk.constants]
    positions = {keys: position for position, keys in enumerate(_schema_keys(walk.root))}
    known.sort(key=lambda keys: positions.get(keys, len(positions)))
    orders = Counter(
        tuple(keys for keys in _answer_keys(seen.answer, (), set(known)) if keys in set(known))
        for seen in observations[-200:]
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
        for name, inner in value.items():
            yield from _answer_keys(inner, (*keys, name), known)


def list_few_values(seen: Sequence[FieldObservation], most: int = MOST_VALUES) -> tuple[Any, ...] | None:
    """The distinct texts or numbers, sorted; None for so many that others are likely to come."""
    values = [observation.value for observation in seen]
    counts = Counter(value for value in values if value is not None and value is not ABSENT)
    if len(counts) > most or counts.total() < _EACH * len(counts):
        return None
    return tuple(sorted(counts))


def estimate_tolerance(seen: Sequence[FieldObservation], low: Any, high: Any) -> float:
    """How far two numbers may be apart to count as the same: a twentieth of the range of the middle 90 % of
    the numbers, or of the schema's range where that is smaller. A schema's range alone may be far too wide:
    among amounts below a hundred with a maximum of a million, all would count as the same.
    """
    numbers = [float(value.value) for value in seen if is_number(value.value)]
    spans = [float(high - low)] if is_number(low) and is_number(high) and high > low else []
    if len(numbers) > 1:
        bottom, top = np.quantile(numbers, [0.05, 0.95])
        spans.append(float(top - bottom))
    return _TOLERANCE * min(spans, default=0.0)


def are_quotes(seen: Sequence[FieldObservation]) -> bool:
    """Whether nearly all of these texts occur literally in their inputs, as far as those are known."""
    pairs = [(item.value, item.text) for item in seen if isinstance(item.value, str)]
    pairs = [(value, text) for value, text in pairs if value.strip() and text]
    return bool(pairs) and sum(value in text for value, text in pairs) >= _QUOTED * len(pairs)
