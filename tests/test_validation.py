"""What pydantic refuses becomes one sentence: the key, what was expected, what was found."""

import random
from typing import Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from bertsmith.errors import did_you_mean
from bertsmith.validation import describe_problem


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid")

    rate: float = Field(0.1, gt=0)
    every: int = 1

    @model_validator(mode="after")
    def _possible(self) -> "Section":
        if self.every > 100:
            raise ValueError("LoRA needs every below 100")
        return self


class Settings(BaseModel):
    model_config = ConfigDict(extra="forbid")

    steps: int
    kind: Literal["a", "b"] = "a"
    weights: Literal["none"] | dict[str, float] = "none"
    optimizer: Section = Section()
    names: dict[str, str] = {}
    layers: int | tuple[int, ...] = 1

    @field_validator("names")
    @classmethod
    def _no_dots(cls, names: dict[str, str]) -> dict[str, str]:
        if "." in names:
            raise ValueError("'.' leads out of the folder")
        return names


def problem(values: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        Settings.model_validate(values)
    return describe_problem(caught.value, Settings)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({}, "the key 'steps' is missing."),
        ({"steps": 0.5}, "steps: expected a whole number, found 0.5."),
        ({"steps": {"a": 1}}, "steps: expected a whole number, found {'a': 1}."),
        ({"steps": 1, "kind": "c"}, "kind: expected 'a' or 'b', found 'c'."),
        ({"steps": 1, "weights": {"x": "much"}}, "weights.x: expected a number, found 'much'."),
        ({"steps": 1, "weights": 3}, "weights: expected 'none', or names with values, found 3."),
        ({"steps": 1, "layers": "x"}, "layers: expected a whole number, or a list, found 'x'."),
        ({"steps": 1, "layers": [2, "x"]}, "layers.1: expected a whole number, found 'x'."),
        ({"steps": 1, "names": {"a": 3}}, "names.a: expected text, found 3."),
        ({"steps": 1, "names": {".": ""}}, "names: '.' leads out of the folder."),
        ({"steps": 1, "optimizer": {"rate": 0}}, "optimizer.rate: expected greater than 0, found 0."),
        ({"steps": 1, "optimizer": {"every": 101}}, "optimizer: LoRA needs every below 100."),
        (
            {"steps": 1, "optimizer": {"rat": 1}},
            "unknown key 'optimizer.rat'. Did you mean 'optimizer.rate'?",
        ),
        (
            {"steps": 1, "optimizer": "sgd"},
            "optimizer is a section: name what is meant in it (optimizer.rate, optimizer.every).",
        ),
        ({"steps": 1, "every": 1}, "unknown key 'every'. Did you mean 'optimizer.every'?"),
        ({"steps": 1, "xyzzy": 1}, "unknown key 'xyzzy'."),
        ({"steps": 1, "float": 1}, "unknown key 'float'."),
    ],
)
def test_the_first_problem_is_a_sentence(values: dict[str, Any], sentence: str) -> None:
    assert problem(values) == sentence


def test_a_value_of_any_size_is_shown_short() -> None:
    for value in ("x" * 10**6, list(range(10**5)), {str(number): [number] * 9 for number in range(10**4)}):
        assert len(problem({"steps": 1, "kind": value})) < 400


def test_a_slip_of_one_letter_is_understood_and_noise_is_not() -> None:
    choices = ["steps", "batch_size", "learning_rate", "dropout"]
    generator = random.Random(0)
    for name in choices:
        for _ in range(20):
            place = generator.randrange(len(name))
            slip = name[:place] + generator.choice(["", name[place] * 2, "q"]) + name[place + 1 :]
            assert did_you_mean(slip, choices) == f" Did you mean {name!r}?"
    assert did_you_mean("zzzzz", choices) == ""


def test_several_may_be_meant_the_nearest_first() -> None:
    choices = ["article", "articles", "art"]
    assert did_you_mean("articlez", choices, count=2) == " Did you mean 'article' or 'articles'?"
