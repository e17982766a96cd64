"""The base classes of settings and manifests (pydantic models), and their errors as sentences of ours.

Read `Strict`, `UserSettings` and `check` first.
"""

import re
import reprlib
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    ModelWrapValidatorHandler,
    ValidationError,
    model_validator,
)
from pydantic.fields import FieldInfo

from bertsmith.errors import BertsmithError, RecipeError, did_you_mean

if TYPE_CHECKING:  # pydantic has no public name for it
    from pydantic._internal._model_construction import ModelMetaclass
else:
    ModelMetaclass = type(BaseModel)

# The value may come from a stranger's file, of any size.
_SHORTENED = reprlib.Repr()
_SHORTENED.maxstring = _SHORTENED.maxother = 80
# Where a value may be of several types, pydantic puts the one it tried into the key: class_weights.literal[…]
_TYPE_TRIED = re.compile(r"[a-z-]*\[.*\]")
_PLAIN_TYPES = ("str", "int", "float", "bool")
# What a key was called before, and what it is called now.
_RENAMED = {
    "optimizer.clip": "optimizer.max_grad_norm",
    "masking.chosen": "masking.mask_rate",
    "data.short_probability": "data.short_seq_prob",
    "reinitialise": "reinit_layers",
}
# What settings of transformers' TrainingArguments and scripts are called here: the first that there is.
_OF_TRANSFORMERS = {
    "learning_rate": ("optimizer.learning_rate",),
    "lr": ("optimizer.learning_rate",),
    "lr_scheduler_type": ("optimizer.schedule",),
    "warmup_ratio": ("optimizer.warmup",),
    "warmup_steps": ("optimizer.warmup",),
    "adam_beta1": ("optimizer.beta1",),
    "adam_beta2": ("optimizer.beta2",),
    "adam_epsilon": ("optimizer.epsilon",),
    "num_train_epochs": ("epochs", "steps"),
    "max_steps": ("steps", "epochs"),
    "per_device_train_batch_size": ("batch_size", "data.batch_size"),
    "train_batch_size": ("batch_size", "data.batch_size"),
    "max_seq_length": ("max_length", "data.sequence_length", "data.sequence_lengths"),
    "early_stopping_patience": ("patience",),
    "mlm_probability": ("masking.mask_rate",),
    "fp16": ("hardware.precision",),
    "bf16": ("hardware.precision",),
    "logging_steps": ("log_every",),
    "output_dir": ("out",),
}
# Problems for which pydantic gives the whole model as the value.
_OF_WHOLE_MODEL = ("missing", "value_error")
_EXPECTED = {
    "bool_parsing": "expected true or false",
    "dict_type": "expected names with values",
    "float_parsing": "expected a number",
    "float_type": "expected a number",
    "int_from_float": "expected a whole number",
    "int_parsing": "expected a whole number",
    "int_type": "expected a whole number",
    "list_type": "expected a list",
    "string_type": "expected text",
    "tuple_type": "expected a list",
}


def _split_at_commas(value: object) -> object:
    if not isinstance(value, str):
        return tuple(value) if isinstance(value, list) else value  # of JSON, where types are strict
    inner = value[1:-1] if value.startswith("[") and value.endswith("]") else value
    return tuple(part.strip() for part in inner.split(","))


# For a setting that is a list of entries without commas: on the command line, query,value is a list, and so
# is [query,value], from which a shell took the quotes.
BY_COMMAS = BeforeValidator(_split_at_commas)
EntryT = TypeVar("EntryT")
Listed = Annotated[tuple[EntryT, ...], BY_COMMAS]

ModelT = TypeVar("ModelT", bound=BaseModel)


class Strict(BaseModel):
    """A pydantic model that refuses unknown keys and can't be changed."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="wrap")
    @classmethod
    def _refuse_bool_as_number(cls, values: Any, validate: ModelWrapValidatorHandler[Self]) -> Self:
        """Refuses True for a number: it is an int in Python, and pydantic would take it for 1."""
        model = validate(values)
        for name, value in values.items() if isinstance(values, Mapping) else ():
            if isinstance(value, bool) and type(getattr(model, name, None)) in (int, float):
                raise ValueError(f"{name}: expected a number, found {value}")
        return model


class _SettingsMeta(ModelMetaclass):
    """A metaclass: calling the class raises the class's `refusal` with a sentence of ours. `model_validate`,
    for values that were read from a file, keeps pydantic's error, which has the path of the wrong value.
    """

    def __call__(cls: Any, *values: Any, **named: Any) -> Any:  # noqa: N805
        if values:
            name = next(iter(cls.model_fields))
            raise cls.refusal(f"{cls.__name__}: name what is set, as in {cls.__name__}({name}=…).")
        try:
            return type.__call__(cls, **named)
        except ValidationError as error:
            raise cls.refusal(f"{cls.__name__}: {describe_problem(error, cls)}") from error


class UserSettings(Strict, metaclass=_SettingsMeta):
    """Settings that users write in Python too. `CorpusSettings(heldout=2)` raises `refusal`."""

    model_config = ConfigDict(allow_inf_nan=False)

    refusal: ClassVar[type[BertsmithError]] = RecipeError


def check(kind: type[ModelT], values: dict[str, Any], where: str) -> ModelT:
    """Makes settings of class `kind` from plain values.

    Raises RecipeError with `where` the values are from, the wrong key and the nearest right one.
    """
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise RecipeError(f"{where}: {describe_problem(error, kind)}") from error


def describe_problem(error: ValidationError, model: type[BaseModel]) -> str:
    """Describes the first problem of `error` as a sentence with its full stop: the key, what was expected,
    what was found.

    An unknown key comes with the nearest that `model` has. If a value may be of several types, pydantic has a
    problem for each: the one counts that got furthest into the value; if none did, all types are named.
    """
    problems, path = error.errors(), _error_path(error.errors()[0])
    problems = [problem for problem in problems if _error_path(problem)[: len(path)] == path]
    first = max(problems, key=lambda problem: len(_error_path(problem)))
    key = ".".join(_error_path(first))
    if first["type"] == "missing":
        return f"the key {key!r} is missing."
    if first["type"] == "extra_forbidden":
        if key in _RENAMED:
            return f"unknown key {key!r}: it is called {_RENAMED[key]!r} now."
        return f"unknown key {key!r}.{did_you_mean_setting(key, setting_names(model))}"
    if first["type"] in ("model_type", "model_attributes_type"):
        section = [name for name in _keys(model.model_fields) if name.startswith(f"{key}.")]
        return f"{key} is a section: name what is meant in it ({', '.join(section)})."
    is_whole_model = first["type"] in _OF_WHOLE_MODEL and isinstance(first["input"], dict | BaseModel)
    found = "" if is_whole_model else f", found {_SHORTENED.repr(first['input'])}"
    same_path = [problem for problem in problems if _error_path(problem) == _error_path(first)]
    expected = _join_expectations(
        [_EXPECTED.get(problem["type"]) or _plain_message(problem["msg"]) for problem in same_path]
    )
    return f"{key + ': ' if key else ''}{expected}{found}."


def _error_path(error: Mapping[str, Any]) -> tuple[str, ...]:
    """The path of keys to a problem, without the types that pydantic tried."""
    parts = [str(part) for part in error["loc"] if not _TYPE_TRIED.fullmatch(str(part))]
    if parts and parts[-1] in _PLAIN_TYPES and error["type"] not in ("missing", "extra_forbidden"):
        parts.pop()
    return tuple(parts)


def _join_expectations(expectations: list[str]) -> str:
    """Joins what each type expects: "expected 'none' or 'auto', or names with values"."""
    first, *others = dict.fromkeys(expectations)
    if not all(expectation.startswith("expected ") for expectation in (first, *others)):
        return first
    return ", or ".join([first, *(other.removeprefix("expected ") for other in others)])


def _plain_message(message: str) -> str:
    """Removes pydantic's openings ("Value error", "Input should be") from a message."""
    if message.startswith("Value error, "):
        return message.removeprefix("Value error, ")
    message = re.sub("^Input should be ", "expected ", message)
    return message[0].lower() + message[1:]


def setting_names(model: type[BaseModel]) -> list[str]:
    """All dotted names of the model's settings, with those of its sections."""
    return list(_keys(model.model_fields))


def did_you_mean_setting(key: str, known: Collection[str]) -> str:
    """A "Did you mean …?" for an unknown key: at most two settings that transformers calls so or that another
    section has under this name, else the nearest. See `did_you_mean`.
    """
    return did_you_mean(key, find_settings_called(key, known), count=2, cutoff=0) or did_you_mean(key, known)


def find_settings_called(key: str, known: Collection[str]) -> list[str]:
    """The `known` settings of this name: the one that transformers calls so, else those of any section."""
    last = key.rpartition(".")[2]
    theirs = [name for name in _OF_TRANSFORMERS.get(last, ()) if name in known]
    return theirs[:1] or [name for name in known if name.rpartition(".")[2] == last]


def _keys(fields: Mapping[str, FieldInfo], prefix: str = "") -> Iterator[str]:
    for name, field in fields.items():
        yield prefix + name
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from _keys(kind.model_fields, f"{prefix}{name}.")
