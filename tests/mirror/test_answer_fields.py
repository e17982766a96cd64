"""Which fields an answer has, by its schema and by what answers held; values and answers back and forth."""

import itertools
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertsmith.mirror.fields import ABSENT, AnswerShape, Field, FieldHead, SpanForm
from bertsmith.mirror.learning.schema_fields import AnswerObservation, infer_shape


def of(properties: dict[str, Any], required: list[str] | None = None, **more: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties) if required is None else required,
        **more,
    }


def field_of(schema: dict[str, Any], values: list[Any], texts: list[str] | None = None, **more: Any) -> Any:
    """The one field of a schema, or why it is refused."""
    seen = [
        AnswerObservation({"x": value} if value is not ABSENT else {}, text)
        for value, text in zip(values, texts or [""] * len(values), strict=True)
    ]
    shape = infer_shape(of({"x": schema}, **more), seen)
    return shape.fields[0] if shape.fields else shape.refused[0].why


@pytest.mark.parametrize(
    ("schema", "values", "kind", "learned"),
    [
        ({"enum": ["a", "b"]}, ["a"], "enum", ("a", "b")),
        ({"type": "string", "enum": ["a", "b", None]}, ["a"], "enum", ("a", "b")),
        ({"anyOf": [{"const": "a"}, {"const": "b"}]}, ["a"], "enum", ("a", "b")),
        ({"type": "boolean"}, [True], "boolean", (True, False)),
        ({"type": "integer", "minimum": 1, "maximum": 5}, [2], "ordinal", (1, 2, 3, 4, 5)),
        ({"enum": [0, 1, 2]}, [1], "ordinal", (0, 1, 2)),
        ({"type": "number"}, [0.5, 1.0] * 20, "ordinal", (0.5, 1)),
        ({"type": "number"}, [n / 7 for n in range(50)], "number", ()),
        ({"type": "array", "items": {"enum": ["a", "b"]}}, [["a"]], "labels", ("a", "b")),
        ({"type": "string"}, ["yes", "no"] * 20, "enum", ("no", "yes")),
        ({"type": "array", "items": {"type": "string"}}, [["x"], ["o", "x"]] * 20, "labels", ("o", "x")),
    ],
)  # fmt: skip
def test_a_field_is_what_schema_and_answers_say(
    schema: dict[str, Any], values: list[Any], kind: str, learned: tuple[Any, ...]
) -> None:
    found = field_of(schema, values)
    assert (found.kind, found.values) == (kind, learned)


def test_texts_that_stand_in_their_inputs_are_quotes() -> None:
    texts = [f"call {n}: anna{n} met ben{n}" for n in range(40)]
    one = field_of({"type": "string"}, [f"anna{n}" for n in range(40)], texts)
    assert (one.kind, one.spans.form) == ("spans", "text")
    several = field_of(
        {"type": "array", "items": {"type": "string"}}, [[f"anna{n}", f"ben{n}"] for n in range(40)], texts
    )
    assert (several.kind, several.spans.form) == ("spans", "texts")
    items = of({"name": {"type": "string"}, "role": {"enum": ["host", "guest"]}})
    objects = field_of(
        {"type": "array", "items": items}, [[{"name": f"anna{n}", "role": "host"}] for n in range(40)], texts
    )
    assert (objects.kind, objects.values) == ("spans", ("host", "guest"))
    assert objects.spans == SpanForm(form="objects", text="name", label="role", keys=("name", "role"))


def test_texts_whose_input_is_not_known_have_no_say_in_whether_they_are_quotes() -> None:
    """Of calls that don't fit the template, such as those with a second turn."""
    texts = [f"call {n}: anna{n}" if n % 4 else "" for n in range(40)]
    found = field_of({"type": "string"}, [f"anna{n}" for n in range(40)], texts)
    assert found.kind == "spans"


@pytest.mark.parametrize("odd", [["host"], {"is": "host"}, 3, True, None])
def test_an_odd_kind_beside_a_quote_is_passed_over_and_fits_nothing(odd: Any) -> None:
    items = of({"name": {"type": "string"}, "role": {"type": "string"}})
    usual = [{"x": [{"name": f"anna{n}", "role": ["host", "guest"][n % 2]}]} for n in range(40)]
    answers = [*usual, *[{"x": [{"name": "ben", "role": odd}]}] * 10]
    shape = infer_shape(
        of({"x": {"type": "array", "items": items}}),
        [AnswerObservation(each, "anna ben") for each in answers],
    )
    assert not shape.fields  # the names aren't in the text
    texts = [f"anna{n}" for n in range(40)] + ["ben"] * 10
    seen = [AnswerObservation(each, text) for each, text in zip(answers, texts, strict=True)]
    shape = infer_shape(of({"x": {"type": "array", "items": items}}), seen)
    assert shape.field("$.x").values == ("guest", "host")
    assert [shape.allows(shape.read(each)) for each in answers] == [True] * 40 + [False] * 10
    assert all(shape.differing_paths(shape.read(answers[0]), shape.read(each)) for each in answers[40:])


@pytest.mark.parametrize(
    ("schema", "good", "odd"),
    [
        ({"enum": ["a", "b"]}, ["a", "b"], ["c", 1, None, ["a"], ABSENT]),
        ({"enum": ["a", None]}, ["a", None], ["c", ABSENT]),
        ({"type": "boolean"}, [True, False], [1, "true", None]),
        ({"type": "string"}, ["yes", "no"], [3, ["yes"], None]),
        ({"type": "number"}, [1, 2.5], ["1", True, None]),
        ({"type": "array", "items": {"enum": ["a", "b"]}}, [[], ["b", "a"]], ["a", ["c"], [["a"]], None]),
        ({"type": "array", "items": {"type": "string"}}, [[], ["b", "a"]], ["a", [1], None]),
    ],
)
def test_an_odd_answer_is_told_from_one_that_fits(
    schema: dict[str, Any], good: list[Any], odd: list[Any]
) -> None:
    answers = [{} if value is ABSENT else {"x": value} for value in (*good * 20, *odd)]
    shape = infer_shape(of({"x": schema}), [AnswerObservation(each, "") for each in answers])
    held = [shape.allows(shape.read(each)) for each in answers]
    assert held == [True] * (len(good) * 20) + [False] * len(odd)


@pytest.mark.parametrize(
    ("schema", "answers"),
    [
        ({"enum": [0.0, 0.5, 1.0]}, [0.0, 0, 1.0, 1, 0.5]),
        ({"enum": [1.0, 2.0]}, [1.0, 1, 2]),
        ({"enum": [1, 2]}, [1.0, 2.0]),
        ({"enum": [0.5, 2, 1e20]}, [1e20, 2.0, 2, 0.5]),
        ({"type": "array", "items": {"enum": [1.0, 2.0]}}, [[2, 1], [1.0, 2.0], []]),
    ],
)
def test_a_whole_number_is_the_same_with_its_point_and_without(
    schema: dict[str, Any], answers: list[Any]
) -> None:
    field = field_of(schema, answers)
    read = [field.read(value) for value in answers]
    assert all(map(field.allows, read))
    assert all(field.are_equal(field.read(field.write(value)), value) for value in read)
    for value, other in itertools.combinations(answers, 2):
        is_same = value == other or (isinstance(value, list) and sorted(value) == sorted(other))
        assert field.are_equal(field.read(value), field.read(other)) == is_same


def test_a_constant_number_is_the_same_with_its_point_and_without() -> None:
    shape = infer_shape(of({"x": {"const": 1.0}, "y": {"type": "boolean"}}), [])
    assert shape.read({"x": 1, "y": True}) == {"$.y": True}


@pytest.mark.parametrize(
    "odd",
    [
        {"type": "object", "properties": ["x"]},
        {"type": "object", "properties": {"x": {"anyOf": {"type": "string"}}}, "required": 1},
        {"type": "object", "properties": {"x": {"allOf": ["string"]}}},
        {"type": "object", "properties": {"x": {"oneOf": ["string", None]}}},
        {"type": "object", "properties": {"x": {"type": "object", "properties": "y"}}},
        {"type": "object", "properties": {"x": {"type": "array", "items": {"properties": [1]}}}},
    ],
)
def test_a_schema_that_is_none_has_fields_or_is_refused(odd: dict[str, Any]) -> None:
    shape = infer_shape(odd, [AnswerObservation({"x": "a"}, "")] * 20)
    assert {each.path for each in (*shape.fields, *shape.refused)} == {"$.x"}


@pytest.mark.parametrize(
    ("schema", "values", "why"),
    [
        ({"type": "string"}, [f"because {n}" for n in range(40)], "a free text"),
        ({"type": "array", "items": {"type": "string"}}, [[f"because {n}"] for n in range(40)], "free texts"),
        ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, ["a"], "several shapes"),
        ({"type": "array", "items": {"type": "number"}}, [[1.5]], "neither labels nor quotes"),
    ],
)
def test_what_cannot_be_learned_is_said_with_its_path(
    schema: dict[str, Any], values: list[Any], why: str
) -> None:
    shape = infer_shape(of({"x": schema}), [AnswerObservation({"x": value}, "") for value in values])
    assert not shape.is_mirrorable
    assert shape.why_not.startswith("$.x: ") and why in shape.why_not


def test_null_and_missing_values_are_values() -> None:
    nullable = field_of({"anyOf": [{"enum": ["a", "b"]}, {"type": "null"}]}, ["a", None])
    assert nullable.classes == ("a", "b", None)
    optional = field_of({"enum": ["a", "b"]}, ["a", ABSENT], required=[])
    assert optional.classes == ("a", "b", ABSENT)
    always_there = field_of({"enum": ["a", "b"]}, ["a", "b"], required=[])
    assert not always_there.optional
    for schema in ({"type": ["string", "null"]}, {"type": "null"}, {"const": None}):
        never_a_text = field_of(schema, [None] * 5)
        assert (never_a_text.kind, never_a_text.classes) == ("enum", (None,))


@pytest.mark.parametrize("items", [{"type": "string"}, {"type": "number"}, of({"name": {"type": "string"}})])
def test_a_list_that_was_never_filled_is_learned_as_empty(items: dict[str, Any]) -> None:
    found = field_of({"type": "array", "items": items}, [[]] * 5)
    assert (found.kind, found.values, found.empty_value) == ("labels", (), ())
    (filled,) = [found.read([{"name": "anna"}])]
    assert (
        not found.allows(filled) and not found.are_equal(filled, ()) and found.are_equal(found.read([]), ())
    )
    assert "never filled" in field_of({"type": "array", "items": {"type": "string"}}, [None] * 5)


@pytest.mark.parametrize(
    ("more", "none", "nothing"),
    [
        ({}, [[], [], ABSENT], ()),
        ({}, [[], ABSENT, ABSENT], ()),  # the schema requires it
        ({"required": []}, [[], ABSENT, ABSENT], ABSENT),
        ({"required": []}, [[], [], ABSENT], ()),
        ({"null": True}, [[], None, None], None),
        ({"null": True, "required": []}, [None, ABSENT, ABSENT, []], ABSENT),
        ({}, [], ()),
    ],
)
@pytest.mark.parametrize("items", [{"enum": ["a", "b"]}, {"type": "string"}])
def test_where_there_are_no_labels_or_quotes_ours_has_what_most_answers_had(
    items: dict[str, Any], more: dict[str, Any], none: list[Any], nothing: Any
) -> None:
    more = dict(more)
    schema: dict[str, Any] = {"type": "array", "items": items}
    schema = {"anyOf": [schema, {"type": "null"}]} if more.pop("null", False) else schema
    given = ["a", "b"] * 2 if "enum" in items else [f"anna{n}" for n in range(40)]
    values, texts = [[each] for each in given] + none, [f"met {each}" for each in given] + ["-"] * len(none)
    found = field_of(schema, values, texts, **more)
    assert found.kind == ("labels" if "enum" in items else "spans")
    assert found.empty_value == nothing


@pytest.mark.parametrize("none", [None, ABSENT])
def test_a_missing_quote_is_null_or_not_there_as_most_answers_had_it(none: Any) -> None:
    values = [*(f"anna{n}" for n in range(40)), none, none, None, ABSENT, none]
    texts = [*(f"met anna{n}" for n in range(40)), *["-"] * 5]
    found = field_of({"type": ["string", "null"]}, values, texts, required=[])
    assert found.spans.form == "text" and found.empty_value is none


def test_references_nested_objects_and_constants() -> None:
    schema = of(
        {"version": {"const": 2}, "order": {"$ref": "#/$defs/Order"}},
        **{"$defs": {"Order": of({"kind": {"$ref": "#/$defs/Kind"}}), "Kind": {"enum": ["new", "old"]}}},
    )
    answer = {"version": 2, "order": {"kind": "new"}}
    shape = infer_shape(schema, [AnswerObservation(answer, "")])
    assert [field.path for field in shape.fields] == ["$.order.kind"]
    assert shape.read(answer) == {"$.order.kind": "new"}
    assert shape.compose({"$.order.kind": "old"}) == {"version": 2, "order": {"kind": "old"}}


def test_a_reference_that_leads_to_itself_is_refused() -> None:
    node = of({"kind": {"enum": ["a", "b"]}, "next": {"$ref": "#/$defs/Node"}})
    shape = infer_shape({**of({"node": {"$ref": "#/$defs/Node"}}), "$defs": {"Node": node}}, [])
    assert not shape.is_mirrorable


def test_json_objects_without_a_schema_have_the_fields_of_their_answers() -> None:
    answers = [{"urgent": True, "intent": "card"}, {"urgent": False, "intent": "other"}] * 20
    shape = infer_shape({"type": "object"}, [AnswerObservation(each, "") for each in answers])
    assert {field.path: field.kind for field in shape.fields} == {"$.urgent": "boolean", "$.intent": "enum"}
    assert list(shape.compose({"$.intent": "card", "$.urgent": True})) == ["urgent", "intent"]


def test_keys_come_in_the_order_in_which_the_teacher_writes_them() -> None:
    schema = of({"a": {"enum": ["x", "y"]}, "b": {"type": "boolean"}})
    shape = infer_shape(schema, [AnswerObservation({"b": True, "a": "x"}, "")] * 3)
    assert list(shape.compose({"$.a": "x", "$.b": False})) == ["b", "a"]


def test_an_optional_free_text_is_left_out_and_an_answer_that_has_it_differs() -> None:
    schema = of({"a": {"enum": ["x", "y"]}, "note": {"type": "string"}}, required=["a"])
    seen = [
        AnswerObservation({"a": "x"}, ""),
        *(AnswerObservation({"a": "x", "note": f"n{n}"}, "") for n in range(30)),
    ]
    shape = infer_shape(schema, seen)
    assert shape.is_mirrorable and shape.compose({"$.a": "x"}) == {"a": "x"}
    assert shape.differing_paths({"$.a": "x"}, shape.read({"a": "x", "note": "why"})) == {"$.note"}
    assert not shape.differing_paths({"$.a": "x"}, shape.read({"a": "x"}))


def test_an_object_is_there_though_all_that_it_may_hold_is_left_out() -> None:
    """A schema requires it, and an answer without it is another one."""
    colour = of({"colour": {"enum": ["red", "blue"]}}, required=[])
    schema = of({"a": {"type": "boolean"}, "filters": colour, "meta": of({"note": {"type": "string"}}, [])})
    full = {"a": True, "filters": {"colour": "red"}, "meta": {}}
    bare = {"a": True, "filters": {}, "meta": {}}
    noted = [{"a": True, "filters": {}, "meta": {"note": f"because {n}"}} for n in range(30)]
    shape = infer_shape(schema, [AnswerObservation(each, "") for each in [full, bare, *noted]])
    assert shape.is_mirrorable
    for answer in (full, bare):
        assert shape.compose(shape.read(answer)) == answer
        assert not shape.differing_paths(shape.read(answer), shape.read(shape.compose(shape.read(answer))))
    assert shape.differing_paths(shape.read(full), shape.read(bare)) == {"$.filters.colour"}
    assert shape.differing_paths(shape.read(bare), shape.read({"a": True, "meta": {}})) == {"$.filters"}
    assert shape.differing_paths(shape.read(bare), shape.read({"a": True, "filters": {}})) == {"$.meta"}
    assert shape.differing_paths(shape.read(bare), shape.read({**bare, "filters": "none"})) == {"$.filters"}
    assert shape.differing_paths(shape.read(bare), shape.read(noted[0])) == {"$.meta"}


@pytest.mark.parametrize("other", [{"type": "boolean"}, {"const": True}, {"type": ["array", "boolean"]}])
def test_keys_that_are_written_alike_are_refused(other: dict[str, Any]) -> None:
    """A field of one would have been answered with the value of the other, and counted as agreeing."""
    schema = of({"a.b": other, "a": of({"b": {"type": "boolean"}, "c": {"type": "boolean"}})})
    shape = infer_shape(schema, [AnswerObservation({"a.b": True, "a": {"b": False, "c": True}}, "")] * 20)
    assert not shape.is_mirrorable
    assert "$.a.b: several keys that are written alike" in shape.why_not
    assert "$.a.c" not in shape.why_not


def test_a_key_beside_the_fields_that_is_written_like_one_of_them_differs() -> None:
    shape = infer_shape(
        of({"a": of({"b": {"type": "boolean"}})}), [AnswerObservation({"a": {"b": True}}, "")]
    )
    ours, taught = {"a": {"b": True}}, {"a": {"b": False}, "a.b": True}
    assert shape.differing_paths(shape.read(ours), shape.read(taught)) == {"$.a.b", "$.a.b (another)"}


def test_what_counts_as_the_same() -> None:
    labels = Field(keys=("x",), kind="labels", values=("a", "b"))
    assert labels.are_equal(labels.read(["b", "a"]), labels.read(["a", "b"]))
    number = Field(keys=("x",), kind="number", tolerance=0.5)
    assert number.are_equal(1.0, 1.5) and not number.are_equal(1.0, 1.6) and not number.are_equal(1.0, None)
    enum = Field(keys=("x",), kind="enum", values=(1, True, "1"))
    assert not enum.are_equal(1, True) and not enum.are_equal(1, "1") and enum.are_equal("1", "1")
    spans = Field(keys=("x",), kind="spans", values=("",), spans=SpanForm(form="texts"))
    assert spans.are_equal(spans.read(["b", "a"]), spans.read(["a", "b"]))
    assert not spans.are_equal(spans.read(["a", "a"]), spans.read(["a"]))


@pytest.mark.parametrize(
    ("limits", "answered"),
    [
        ({}, [0, 1, 2, 3]),
        ({"minItems": 1, "maxItems": 2}, [1, 2]),
        ({"minItems": 0}, [0, 1, 2, 3]),
        ({"maxItems": 0}, [0]),
    ],
)
def test_a_list_that_the_schema_finds_too_short_or_too_long_is_never_given(
    limits: dict[str, int], answered: list[int]
) -> None:
    labels = field_of({"type": "array", "items": {"enum": ["a", "b", "c"]}, **limits}, [["a"], ["b", "c"]])
    head = FieldHead(path="$.x", classes=(0, 1, 2))
    found = head.predict(labels, [[9.0] * count + [-9.0] * (3 - count) for count in range(4)])
    assert [len(each.value) for each in found] == [0, 1, 2, 3]
    assert [n for n in range(4) if found[n].confidence > 0.9] == answered
    assert all(found[n].confidence == 0.0 for n in range(4) if n not in answered)
    optional = labels.model_copy(update={"nullable": True, "empty": "null"})
    assert head.predict(optional, [[-9.0] * 3])[0].confidence > 0.9  # null is no list


VALUES = {
    "$.intent": st.sampled_from(["card", "other", None]),
    "$.order.urgent": st.booleans(),
    "$.order.level": st.sampled_from([1, 2, 3, ABSENT]),
    "$.topics": st.lists(st.sampled_from(["a", "b", "c"]), unique=True).map(lambda of: tuple(sorted(of))),
    "$.names": st.lists(st.tuples(st.sampled_from(["host", "guest"]), st.text(min_size=1))).map(tuple),
}
SHAPE = AnswerShape(
    fields=(
        Field(keys=("intent",), kind="enum", values=("card", "other"), nullable=True),
        Field(keys=("order", "urgent"), kind="boolean", values=(True, False)),
        Field(keys=("order", "level"), kind="ordinal", values=(1, 2, 3), optional=True),
        Field(keys=("topics",), kind="labels", values=("a", "b", "c")),
        Field(
            keys=("names",),
            kind="spans",
            values=("host", "guest"),
            spans=SpanForm(form="objects", text="name", label="role", keys=("role", "name")),
        ),
    ),
    order=(("intent",), ("order", "urgent"), ("order", "level"), ("topics",), ("names",)),
)


@given(st.fixed_dictionaries(VALUES))
def test_what_is_composed_is_read_back(values: dict[str, Any]) -> None:
    answer = SHAPE.compose(values)
    assert SHAPE.read(answer) == values
    assert not SHAPE.differing_paths(values, SHAPE.read(answer))
    again = AnswerShape.model_validate_json(SHAPE.model_dump_json())
    assert again.compose(values) == answer


def test_answers_of_another_kind_are_read_and_never_the_same() -> None:
    ours = SHAPE.read(SHAPE.compose({path: _first(each) for path, each in VALUES.items()}))
    for strange in ({}, [], "card", None, {"intent": {"deep": 1}}, {"names": [1], "topics": "a"}):
        assert SHAPE.differing_paths(ours, SHAPE.read(strange))


def _first(strategy: Any) -> Any:
    values = {"$.intent": "card", "$.order.urgent": True, "$.order.level": 1, "$.topics": (), "$.names": ()}
    return next(value for path, value in values.items() if VALUES[path] is strategy)


def test_a_shape_read_from_random_answers_reads_each_of_them() -> None:
    draw = random.Random(0)
    answers = [
        {"a": draw.choice(["x", "y"]), "n": draw.random(), "t": draw.random() < 0.5} for _ in range(60)
    ]
    shape = infer_shape({"type": "object"}, [AnswerObservation(each, "") for each in answers])
    assert shape.is_mirrorable
    for answer in answers:
        assert shape.compose(shape.read(answer)) == answer
