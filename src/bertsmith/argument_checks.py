"""Checks of public functions' arguments: a wrong one is refused in one sentence, before the function runs.

    @check_arguments(path=check_path, top=integer_from(1))
    def read(path: Path | str, top: int = 5) -> None: ...

A check takes a value and its name, and raises InputError for a value that the function can't use. It converts
nothing. Read `check_arguments` first; `import_class` and `import_object` load a user's own code by its name.
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
Check = Callable[[Any, str], None]  # (value, the name that the error calls it by)

_MAX_PATH_BYTES = 4096  # Linux's PATH_MAX
_MAX_NAME_BYTES = 255
_SHORT_REPR = reprlib.Repr()
_SHORT_REPR.maxstring = _SHORT_REPR.maxother = 60


def check_arguments(**checks: Check) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A decorator that checks each call's arguments by their names. Defaults are not checked."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        parameters = signature(function)

        @wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                arguments = parameters.bind(*args, **kwargs).arguments
            except TypeError as error:
                raise TypeError(f"{function.__qualname__}(): {error}") from None
            for name in checks.keys() & arguments.keys():
                checks[name](arguments[name], name)
            return function(*args, **kwargs)

        return checked

    return decorate


def describe_value(value: Any) -> str:
    """A value as an error message shows it: shortened, and with its type unless that is plain to see."""
    if value is None or isinstance(value, str | bool | int | float):
        return _SHORT_REPR.repr(value)
    return f"{_SHORT_REPR.repr(value)} ({type(value).__name__})"


def check_path(value: Any, name: str) -> None:
    """Accepts a path, or the name of a model: text or pathlib.Path, not empty and not too long."""
    if not isinstance(value, str | os.PathLike) or isinstance(os.fspath(value), bytes):
        raise InputError(f"{name} must be a path, as text or pathlib.Path, found {describe_value(value)}.")
    path = os.fspath(value)
    if not path or "\0" in path:
        raise InputError(f"{name} must be a path, found {describe_value(path)}.")
    longest = max(len(part) for part in os.fsencode(path).split(b"/"))
    if len(os.fsencode(path)) >= _MAX_PATH_BYTES or longest > _MAX_NAME_BYTES:
        raise InputError(
            f"{name} is too long for a path: {len(path):,} characters, {describe_value(path)}. A path has "
            f"fewer than {_MAX_PATH_BYTES:,} bytes, each name in it at most {_MAX_NAME_BYTES}."
        )


def check_text(value: Any, name: str) -> None:
    """Raises InputError for anything that is no str."""
    if not isinstance(value, str):
        raise InputError(f"{name} must be text, found {describe_value(value)}.")


def check_flag(value: Any, name: str) -> None:
    """Raises InputError for anything but True and False."""
    if not isinstance(value, bool):
        raise InputError(f"{name} must be True or False, found {describe_value(value)}.")


def integer_from(least: int, most: int | None = None) -> Check:
    """A check that accepts an integer in [least, most], numpy's integers too; True and False are none."""

    def check(value: Any, name: str) -> None:
        fits = isinstance(value, Integral) and not isinstance(value, bool)
        if not fits or value < least or (most is not None and value > most):
            bounds = f"from {least} on" if most is None else f"from {least} to {most:,}"
            raise InputError(f"{name} must be a whole number {bounds}, found {describe_value(value)}.")

    return check


def check_number(value: Any, name: str) -> None:
    """Raises InputError for anything that is no finite real number; True and False are none."""
    if not isinstance(value, Real) or isinstance(value, bool) or not math.isfinite(value):
        raise InputError(f"{name} must be a number, found {describe_value(value)}.")


def check_function(value: Any, name: str) -> None:
    """Accepts anything that can be called."""
    if not callable(value):
        raise InputError(f"{name} must be a function, found {describe_value(value)}.")


def one_of(*choices: Any) -> Check:
    """A check that accepts one of these values: a text that is equal, anything else that is identical."""

    def check(value: Any, name: str) -> None:
        if not any(value is choice or (isinstance(value, str) and value == choice) for choice in choices):
            listed = ", ".join(map(str, choices))
            raise InputError(f"{name} must be one of {listed}, found {describe_value(value)}.")

    return check


def import_class(name: str, parent: type[Any], what: str) -> Any:
    """A user's own class by its name, as `import_object`. Raises InputError too if it is not a subclass of
    `parent`.
    """
    imported = import_object(name, what)
    if not (isinstance(imported, type) and issubclass(imported, parent)):
        raise InputError(f"{name!r} is not a subclass of {parent.__module__}.{parent.__qualname__}.")
    return imported


def import_object(name: str, what: str) -> Any:
    """A user's own object by its name, `package.module:Name`; the error message calls it `what`.

    This runs the module's code, also from the current folder. So `name` may come from the user, but never
    from a file that somebody else wrote. Raises InputError if the import fails.
    """
    if "" not in sys.path:  # the current folder, last, so that it can't hide an installed package
        sys.path.append("")
    module, _, attribute = name.partition(":")
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(f"The {what} {name!r} can't be imported: {error}.") from error


def instance_of(*classes: type) -> Check:
    """A check that accepts an instance of one of the classes."""

    def check(value: Any, name: str) -> None:
        if not isinstance(value, classes):
            expected = " or ".join(accepted.__name__ for accepted in classes)
            raise InputError(f"{name} must be a {expected}, found {describe_value(value)}.")

    return check


def any_of(*checks: Check) -> Check:
    """A check that accepts what one of the checks accepts; otherwise the first one's error is raised."""

    def check(value: Any, name: str) -> None:
        for alternative in checks[1:]:
            with suppress(InputError):
                alternative(value, name)
                return
        checks[0](value, name)

    return check


def optional(check: Check) -> Check:
    """A check that also accepts None."""
    return lambda value, name: None if value is None else check(value, name)


def list_of(check: Check) -> Check:
    """A check that accepts a list, or another sized iterable, of items that `check` accepts. A single text, a
    path, a mapping, a set and an iterator are refused.
    """

    def check_items(value: Any, name: str) -> None:
        is_refused = isinstance(value, str | bytes | Mapping | Set | os.PathLike)
        if is_refused or not isinstance(value, Iterable) or not hasattr(value, "__len__"):
            raise InputError(f"{name} must be a list, found {describe_value(value)}.")
        for position, item in enumerate(value, 1):
            check(item, f"{name}, item {position},")

    return check_items
