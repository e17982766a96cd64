"""What this house uses of pydantic, in plain Python: the wheel without torch has this in its place.

The same classes are checked by either, and a test compares them: a value that one refuses, the other does, at
the same key. Strings aren't taken for numbers, except as keys of JSON objects. Pydantic is 5 MB and 100 ms.
"""

import inspect
import json
import math
import re
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Annotated, Any, ClassVar, Generic, Literal, Self, TypeVar, Union, get_args, get_origin

_MISSING: Any = object()
_LIMITS: Mapping[str, tuple[Callable[[Any, Any], bool], str]] = {
    "ge": (lambda value, limit: value >= limit, "greater than or equal to"),
    "gt": (lambda value, limit: value > limit, "greater than"),
    "le": (lambda value, limit: value <= limit, "less than or equal to"),
    "lt": (lambda value, limit: value < limit, "less than"),
}
ConfigDict = dict
Model = TypeVar("Model")


class ModelWrapValidatorHandler(Generic[Model]):
    """The type of what a check around all others is given: values -> model."""


class ValidationError(ValueError):
    """`problems` with the keys of pydantic's: loc, type, msg, input; `title` is the class's name."""

    def __init__(self, problems: list[dict[str, Any]], title: str = "") -> None:
        super().__init__("; ".join(str(problem["msg"]) for problem in problems))
        self.problems, self.title = problems, title

    def errors(self) -> list[dict[str, Any]]:
        return self.problems


def _refuse(kind: str, message: str, value: Any) -> typing.NoReturn:
    raise ValidationError([{"loc": (), "type": kind, "msg": message, "input": value}])


class FieldInfo:
    """A field's type, default and limits."""

    def __init__(self, default: Any = _MISSING, annotation: Any = None, **limits: Any) -> None:
        self.default = _MISSING if default is ... else default
        self.annotation, self.limits = annotation, limits

    @property
    def discriminator(self) -> str | None:
        return self.limits.get("discriminator")

    def check(self, value: Any) -> None:
        """Raises ValidationError for a value outside the limits; None has none."""
        if value is None:
            return
        for name, (holds, words) in _LIMITS.items():
            if name in self.limits and not holds(value, self.limits[name]):
                _refuse("limit", f"Input should be {words} {self.limits[name]}", value)
        if self.limits.get("allow_inf_nan") is False:
            _require_finite(value)
        if "pattern" in self.limits and not re.search(self.limits["pattern"], value):
            _refuse("pattern", f"String should match pattern '{self.limits['pattern']}'", value)
        length = len(value) if isinstance(value, Collection) else 0
        if length > self.limits.get("max_length", math.inf):
            _refuse("too_long", f"Value should have at most {self.limits['max_length']} items", value)
        if length < self.limits.get("min_length", 0):
            _refuse("too_short", f"Value should have at least {self.limits['min_length']} items", value)


def Field(default: Any = _MISSING, **limits: Any) -> Any:  # noqa: N802
    return FieldInfo(default, **limits)


class BeforeValidator:
    def __init__(self, check: Callable[[Any], Any]) -> None:
        self.check = check


class AfterValidator:
    def __init__(self, check: Callable[[Any], Any]) -> None:
        self.check = check


class _ClassCheck:
    """A method of a class that checks its values, all or those of the named fields."""

    def __init__(self, method: Any, mode: str, fields: Collection[str] | None) -> None:
        self.method, self.mode, self.fields = method, mode, fields

    def bound(self, owner: Any) -> Any:
        return self.method.__get__(None, owner) if isinstance(self.method, classmethod) else self.method


def model_validator(*, mode: str) -> Any:
    return lambda method: _ClassCheck(method, mode, None)


def field_validator(*fields: str, mode: str = "after") -> Any:
    return lambda method: _ClassCheck(method, mode, fields)


class ModelMetaclass(type):
    model_fields: dict[str, FieldInfo]
    model_config: dict[str, Any]

    def __new__(mcs, name: str, bases: tuple[type, ...], names: dict[str, Any], **options: Any) -> Any:
        marked = {key: value for key, value in names.items() if isinstance(value, _ClassCheck)}
        kept = {key: value for key, value in names.items() if key not in marked}
        made: Any = super().__new__(mcs, name, bases, kept, **options)
        parents = [base for base in bases if isinstance(base, ModelMetaclass)]
        fields, checks, config = dict[str, FieldInfo](), dict[str, _ClassCheck](), dict[str, Any]()
        for parent in reversed(parents):
            fields, checks = {**fields, **parent.model_fields}, {**checks, **parent._checks}  # type: ignore[attr-defined]
            config |= parent.model_config
        made.model_config = config | kept.get("model_config", {})
        for field, annotation in inspect.get_annotations(made).items():
            if ClassVar in (get_origin(annotation), annotation) or field == "model_config":
                continue
            value = kept.get(field, _MISSING)
            info = value if isinstance(value, FieldInfo) else FieldInfo(value)
            info.annotation = annotation
            fields[field] = info
            if field in kept:
                delattr(made, field)
        made.model_fields, made._checks, made._types = fields, {**checks, **marked}, None
        return made


class BaseModel(metaclass=ModelMetaclass):
    """Values of the annotated fields, checked when they are made."""

    model_config: ClassVar[dict[str, Any]] = {}
    model_fields: ClassVar[dict[str, FieldInfo]]
    _checks: ClassVar[dict[str, _ClassCheck]]
    _types: ClassVar[dict[str, Any] | None]

    def __init__(self, **values: Any) -> None:
        other = type(self)._make(values, strict=False)
        object.__setattr__(self, "__dict__", dict(vars(other)))

    @classmethod
    def model_validate(cls, values: Any, *, strict: bool | None = None) -> Self:
        if isinstance(values, cls):
            return values
        return cls._make(values, strict=bool(strict))

    @classmethod
    def model_validate_json(cls, text: str | bytes, *, strict: bool | None = None) -> Self:
        return cls._make(json.loads(text), strict=bool(strict))

    @classmethod
    def _make(cls, values: Any, *, strict: bool) -> Self:
        try:
            return cls._through(values, strict, [c for c in cls._checks.values() if c.fields is None])
        except ValidationError as error:
            raise ValidationError(error.problems, cls.__name__) from None

    @classmethod
    def _through(cls, values: Any, strict: bool, checks: list[_ClassCheck]) -> Self:
        """The checks of the whole, those before, around and after, then the fields themselves."""
        for check in checks:
            if check.mode == "before":
                values = _as_problem(check.bound(cls), values)
        around = next((check for check in checks if check.mode == "wrap"), None)
        if around is not None:
            method = around.bound(cls)
            made: Self = _as_problem(lambda given: method(given, lambda v: cls._fill(v, strict)), values)
        else:
            made = cls._fill(values, strict)
        for check in checks:
            if check.mode == "after":
                made = _as_problem(check.method, made, given=values)
        return made

    @classmethod
    def _fill(cls, values: Any, strict: bool) -> Self:
        if isinstance(values, cls):
            return values
        if not isinstance(values, Mapping):
            _refuse("model_type", f"Input should be a valid dictionary or instance of {cls.__name__}", values)
        strict = strict or bool(cls.model_config.get("strict"))
        if cls._types is None:
            cls._types = typing.get_type_hints(cls, include_extras=True)
        filled, problems = dict[str, Any](), list[dict[str, Any]]()
        for name, info in cls.model_fields.items():
            if name not in values:
                if info.default is _MISSING:
                    problem = {"loc": (name,), "type": "missing", "msg": "Field required", "input": values}
                    problems.append(problem)
                filled[name] = info.default
                continue
            try:
                value = values[name]
                checks = [c for c in cls._checks.values() if c.fields is not None and name in c.fields]
                for check in checks:
                    if check.mode == "before":
                        value = _as_problem(check.bound(cls), value)
                value = _check(cls._types[name], value, strict, info)
                if cls.model_config.get("allow_inf_nan") is False:
                    _require_finite(value)
                for check in checks:
                    if check.mode == "after":
                        value = _as_problem(check.bound(cls), value)
                filled[name] = value
            except ValidationError as error:
                problems += _under(name, error)
        extra = [name for name in values if name not in cls.model_fields]
        if extra and cls.model_config.get("extra") == "forbid":
            message = "Extra inputs are not permitted"
            problems += [
                {"loc": (n,), "type": "extra_forbidden", "msg": message, "input": values[n]} for n in extra
            ]
        if problems:
            raise ValidationError(problems, cls.__name__)
        made = cls.__new__(cls)
        object.__setattr__(made, "__dict__", filled)
        return made

    def __setattr__(self, name: str, value: Any) -> None:
        if self.model_config.get("frozen"):
            raise TypeError(f"{type(self).__name__} can't be changed")
        object.__setattr__(self, name, value)

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        return iter(vars(self).items())

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((type(self), *vars(self).values()))

    def model_copy(self, *, update: Mapping[str, Any] | None = None) -> Self:
        copy = type(self).__new__(type(self))
        object.__setattr__(copy, "__dict__", {**vars(self), **(update or {})})
        return copy

    def model_dump(
        self, *, exclude: Collection[str] = (), exclude_none: bool = False, mode: str = "python"
    ) -> dict[str, Any]:
        names = [name for name in type(self).model_fields if name not in exclude]
        values = {name: _dumped(getattr(self, name), mode) for name in names}
        return {name: v for name, v in values.items() if v is not None or not exclude_none}

    def model_dump_json(self) -> str:
        return json.dumps(self.model_dump(mode="json"), separators=(",", ":"), ensure_ascii=False)


def _dumped(value: Any, mode: str) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode=mode)
    if isinstance(value, list | tuple):
        parts = [_dumped(part, mode) for part in value]
        return parts if mode == "json" or isinstance(value, list) else tuple(parts)
    if isinstance(value, dict):
        return {name: _dumped(part, mode) for name, part in value.items()}
    return value


def _as_problem(check: Callable[[Any], Any], value: Any, given: Any = _MISSING) -> Any:
    """The check's result; a ValueError of its own becomes a problem of ours."""
    try:
        return check(value)
    except ValidationError:
        raise
    except ValueError as error:
        found = value if given is _MISSING else given
        _refuse("value_error", f"Value error, {error}", found)


def _require_finite(value: Any) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        _refuse("finite_number", "Input should be a finite number", value)


def _under(name: Any, error: ValidationError) -> list[dict[str, Any]]:
    return [{**problem, "loc": (name, *problem["loc"])} for problem in error.problems]


def _check(kind: Any, value: Any, strict: bool, info: FieldInfo | None = None) -> Any:
    """The value as this type has it. Raises ValidationError."""
    if get_origin(kind) is Annotated:
        inner, *marks = get_args(kind)
        for mark in marks:
            if isinstance(mark, BeforeValidator):
                value = _as_problem(mark.check, value)
        own = next((mark for mark in marks if isinstance(mark, FieldInfo)), None)
        value = _check(inner, value, strict, own)
        for mark in marks:
            if isinstance(mark, AfterValidator):
                value = _as_problem(mark.check, value)
    else:
        value = _check_plain(kind, value, strict, info)
    if info is not None:
        info.check(value)
    return value


def _check_plain(kind: Any, value: Any, strict: bool, info: FieldInfo | None) -> Any:
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if origin in (Union, types.UnionType):
        return _check_union(arguments, value, strict, info)
    if origin is Literal:
        if not any(value == known and type(value) is type(known) for known in arguments):
            _refuse("literal_error", f"Input should be {' or '.join(map(repr, arguments))}", value)
        return value
    if kind is None or kind is type(None):
        if value is not None:
            _refuse("none_required", "Input should be None", value)
        return None
    if origin is dict:
        return _check_dict(arguments, value, strict)
    if origin in (list, tuple):
        return _check_list(origin, arguments, value, strict)
    if isinstance(kind, ModelMetaclass):
        return kind._make(value, strict=strict)  # type: ignore[attr-defined]
    return _check_scalar(kind, value)


def _check_scalar(kind: Any, value: Any) -> Any:
    if kind is str and not isinstance(value, str):
        _refuse("string_type", "Input should be a valid string", value)
    if kind is bool and not isinstance(value, bool):
        _refuse("bool_type", "Input should be a valid boolean", value)
    if kind is int:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool):
            kind_of_problem = "int_from_float" if isinstance(value, float) else "int_type"
            _refuse(kind_of_problem, "Input should be a valid integer", value)
    if kind is float:
        if not isinstance(value, int | float) or isinstance(value, bool):
            _refuse("float_type", "Input should be a valid number", value)
        value = float(value)
    return value


def _check_union(kinds: tuple[Any, ...], value: Any, strict: bool, info: FieldInfo | None) -> Any:
    if info is not None and info.discriminator and isinstance(value, Mapping):
        name = value.get(info.discriminator)
        members = [member for kind in kinds for member in _members(kind)]
        tagged = {tag: member for member in members for tag in _tags(member, info.discriminator)}
        if not isinstance(name, str) or name not in tagged:
            expected = ", ".join(map(repr, tagged))
            _refuse("union_tag_invalid", f"Input tag {name!r} does not match any of {expected}", value)
        try:
            return _check(tagged[name], value, strict)
        except ValidationError as error:
            raise ValidationError(_under(name, error)) from None
    problems = list[dict[str, Any]]()
    for kind in kinds:
        try:
            return _check(kind, value, strict)
        except ValidationError as error:
            problems += error.problems
    raise ValidationError([p for p in problems if p["type"] != "none_required"] or problems)


def _members(kind: Any) -> list[Any]:
    """The classes of a union that may lie in an Annotated."""
    if get_origin(kind) is Annotated:
        return _members(get_args(kind)[0])
    if get_origin(kind) in (Union, types.UnionType):
        return [member for part in get_args(kind) for member in _members(part)]
    return [kind]


def _tags(member: Any, name: str) -> tuple[Any, ...]:
    return get_args(member.model_fields[name].annotation) if isinstance(member, ModelMetaclass) else ()


def _check_dict(kinds: tuple[Any, ...], value: Any, strict: bool) -> dict[Any, Any]:
    if not isinstance(value, Mapping):
        _refuse("dict_type", "Input should be a valid dictionary", value)
    if kinds == (str, int) and {*map(type, value)} <= {str} and {*map(type, value.values())} <= {int}:
        return dict(value)  # a vocabulary
    checked = {}
    for name, part in value.items():
        try:
            is_number = kinds[0] is int and isinstance(name, str) and name.isdecimal()
            key = _check(kinds[0], int(name) if is_number else name, strict)
            checked[key] = _check(kinds[1], part, strict)
        except ValidationError as error:
            raise ValidationError(_under(name, error)) from None
    return checked


def _check_list(origin: Any, kinds: tuple[Any, ...], value: Any, strict: bool) -> Any:
    if not isinstance(value, list | tuple):
        _refuse(f"{origin.__name__}_type", f"Input should be a valid {origin.__name__}", value)
    if origin is tuple and not (len(kinds) == 2 and kinds[1] is ...):
        if len(value) != len(kinds):
            _refuse("too_long", f"Tuple should have {len(kinds)} items", value)
    else:
        if kinds[0] is str and {*map(type, value)} <= {str}:
            return origin(value)
        kinds = (kinds[0],) * len(value)
    checked = []
    for number, (kind, part) in enumerate(zip(kinds, value, strict=True)):
        try:
            checked.append(_check(kind, part, strict))
        except ValidationError as error:
            raise ValidationError(_under(number, error)) from None
    return origin(checked)
