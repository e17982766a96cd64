"""What is handed to a public function, checked at its door: one sentence, no error from deep inside.

    @door(path=place, top=whole(1))
    def read(path: Path | str, top: int = 5) -> None: ...

A check raises InputError for what can't be meant. Values pass as they are, nothing is converted.
"""

import math
import os
import reprlib
import sys
from collections.abc import Callable, Iterable, Mapping, Set
from contextlib import suppress
from functools import wraps
from importlib import import_module
from inspect import signature
from numbers import Integral, Real
from typing import Any, ParamSpec, TypeVar

from bertsmith.errors import InputError

P = ParamSpec("P")
R = TypeVar("R")
Check = Callable[[Any, str], None]  # a value, and what it is called

_LONGEST_PATH = 4096  # bytes, as Linux has it
_LONGEST_NAME = 255
_SHORTENED = reprlib.Repr()
_SHORTENED.maxstring = _SHORTENED.maxother = 60


def door(**checks: Check) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Checks arguments by their names before the function is called; defaults are not checked."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        parameters = signature(function)

        @wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                given = parameters.bind(*args, **kwargs).arguments
            except TypeError as error:
                raise TypeError(f"{function.__qualname__}(): {error}") from None
            for name in checks.keys() & given.keys():
                checks[name](given[name], name)
            return function(*args, **kwargs)

        return checked

    return decorate


def found(value: Any) -> str:
    """A value for a message, shortened, with its type where that isn't plain to see."""
    if value is None or isinstance(value, str | bool | int | float):
        return _SHORTENED.repr(value)
    return f"{_SHORTENED.repr(value)} ({type(value).__name__})"


def place(value: Any, name: str) -> None:
    """A path, or the name of a model."""
    if not isinstance(value, str | os.PathLike) or isinstance(os.fspath(value), bytes):
        raise InputError(f"{name} must be a path, as text or pathlib.Path, found {found(value)}.")
    path = os.fspath(value)
    if not path or "\0" in path:
        raise InputError(f"{name} must be a path, found {found(path)}.")
    longest = max(len(part) for part in os.fsencode(path).split(b"/"))
    if len(os.fsencode(path)) >= _LONGEST_PATH or longest > _LONGEST_NAME:
        raise InputError(
            f"{name} is too long for a path: {len(path):,} characters, {found(path)}. A path has fewer than "
            f"{_LONGEST_PATH:,} bytes, each name in it at most {_LONGEST_NAME}."
        )


def text(value: Any, name: str) -> None:
    if not isinstance(value, str):
        raise InputError(f"{name} must be text, found {found(value)}.")


def flag(value: Any, name: str) -> None:
    if not isinstance(value, bool):
        raise InputError(f"{name} must be True or False, found {found(value)}.")


def whole(least: int, most: int | None = None) -> Check:
    """A whole number from `least` on; numpy's too, and no True."""

    def check(value: Any, name: str) -> None:
        fits = isinstance(value, Integral) and not isinstance(value, bool)
        if not fits or value < least or (most is not None and value > most):
            wanted = f"from {least} on" if most is None else f"from {least} to {most:,}"
            raise InputError(f"{name} must be a whole number {wanted}, found {found(value)}.")

    return check


def number(value: Any, name: str) -> None:
    """A finite one."""
    if not isinstance(value, Real) or isinstance(value, bool) or not math.isfinite(value):
        raise InputError(f"{name} must be a number, found {found(value)}.")


def function(value: Any, name: str) -> None:
    if not callable(value):
        raise InputError(f"{name} must be a function, found {found(value)}.")


def one_of(*choices: Any) -> Check:
    """One of few values."""

    def check(value: Any, name: str) -> None:
        if not any(value is choice or (isinstance(value, str) and value == choice) for choice in choices):
            listed = ", ".join(map(str, choices))
            raise InputError(f"{name} must be one of {listed}, found {found(value)}.")

    return check


def own_class(name: str, parent: type[Any], what: str) -> Any:
    """A user's own class that is a `parent`, as `own_object`."""
    found = own_object(name, what)
    if not (isinstance(found, type) and issubclass(found, parent)):
        raise InputError(f"{name!r} is not a subclass of {parent.__module__}.{parent.__qualname__}.")
    return found


def own_object(name: str, what: str) -> Any:
    """What a user made, by `package.module:Name`; `what` it is, for messages.

    It imports code, also from the current folder: a name may come from the user, never from a file that isn't
    the user's own. Raises InputError.
    """
    if "" not in sys.path:  # the current folder; last, so that it hides nothing that is installed
        sys.path.append("")
    module, _, attribute = name.partition(":")
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(f"The {what} {name!r} can't be imported: {error}.") from error


def kind(*classes: type) -> Check:
    """An object of a class, or of one of several."""

    def check(value: Any, name: str) -> None:
        if not isinstance(value, classes):
            wanted = " or ".join(each.__name__ for each in classes)
            raise InputError(f"{name} must be a {wanted}, found {found(value)}.")

    return check


def either(*checks: Check) -> Check:
    """What passes one of the checks; the first one's sentence otherwise."""

    def check(value: Any, name: str) -> None:
        for each in checks[1:]:
            with suppress(InputError):
                each(value, name)
                return
        checks[0](value, name)

    return check


def optional(check: Check) -> Check:
    """None too."""
    return lambda value, name: None if value is None else check(value, name)


def several(check: Check) -> Check:
    """A list of what passes the check, of known length: neither one text, nor names, nor a stream."""

    def check_each(value: Any, name: str) -> None:
        lone = isinstance(value, str | bytes | Mapping | Set | os.PathLike)
        if lone or not isinstance(value, Iterable) or not hasattr(value, "__len__"):
            raise InputError(f"{name} must be a list, found {found(value)}.")
        for position, each in enumerate(value, 1):
            check(each, f"{name}, item {position},")

    return check_each
