"""Writes public_names.txt: what a program that uses Bertsmith may rely on, a name and its parameters a line.

    python tests/golden/public_names.py

The names are those of the package and of the modules that the documentation names, or once named, with the
methods and settings of their classes. Run it when names are added; the test of the same file fails where a
line isn't true any more.
"""

import ast
import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo

import bertsmith

FILE = Path(__file__).with_suffix(".txt")
REPOSITORY = Path(__file__).parents[2]
_PLAIN = (bool, int, float, str, bytes, type(None))  # defaults that are shown; of others their type


def description(name: str) -> str:
    """The line of a name such as `bertsmith.Tokenizer.encode`. Raises AttributeError where there is none."""
    thing: Any = bertsmith
    for part in name.split(".")[1:]:
        if inspect.ismodule(thing) and not hasattr(thing, part):
            import_module(f"{thing.__name__}.{part}")
        settings = getattr(thing, "model_fields", {}) if inspect.isclass(thing) else {}
        own = settings[part] if part in settings else inspect.getattr_static(thing, part, None)
        thing = getattr(thing, part) if own is None else own  # a property itself, and not its value
    if isinstance(thing, property):
        return f"{name}: property"
    if isinstance(thing, classmethod | staticmethod):
        thing = thing.__func__
    if isinstance(thing, FieldInfo):
        return f"{name} = {'required' if thing.is_required() else _shown(thing.default)}"
    if inspect.isclass(thing) and issubclass(thing, BaseException | dict | list | tuple | str):
        return f"{name}: class"
    try:
        parameters = inspect.signature(thing).parameters.values()
    except (TypeError, ValueError):
        return f"{name}: {type(thing).__name__}"
    return f"{name}({', '.join(map(_parameter, parameters))})"


def names() -> Iterator[str]:
    """Of the package and of the documented modules, as they are today."""
    for name in bertsmith.__all__:
        yield from _with_members(f"bertsmith.{name}", getattr(bertsmith, name))
    for module in documented_modules():
        tree = ast.parse(Path(str(import_module(module).__file__)).read_text(encoding="utf-8"))
        for name in sorted(_defined(tree)):
            yield from _with_members(f"{module}.{name}", getattr(import_module(module), name))


def documented_modules() -> list[str]:
    """Those that a page names, and those that one named before: programs may use them."""
    pages = [REPOSITORY / "README.md", *(REPOSITORY / "docs").rglob("*.md"), FILE]
    written = {
        match
        for page in pages
        for match in re.findall(r"\bbertsmith(?:\.[a-z_]+)+", page.read_text(encoding="utf-8"))
    }
    return sorted({module for path in written if (module := _longest_module(path))})


def _longest_module(path: str) -> str | None:
    """The file that the dotted path begins with: `a.b.c` may be the name c in a/b.py."""
    while "." in path:
        if (REPOSITORY / "src" / f"{path.replace('.', '/')}.py").is_file():
            return path
        path = path.rpartition(".")[0]
    return None


def _defined(tree: ast.Module) -> set[str]:
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    defined = {node.name for node in tree.body if isinstance(node, kinds)}
    targets = [target for node in tree.body if isinstance(node, ast.Assign) for target in node.targets]
    defined |= {target.id for target in targets if isinstance(target, ast.Name)}
    return {name for name in defined if not name.startswith("_")}


def _with_members(name: str, thing: Any) -> Iterator[str]:
    yield name
    if not inspect.isclass(thing):
        return
    own = [kind for kind in thing.__mro__ if kind.__module__.startswith("bertsmith")]
    members = {member for kind in own for member in vars(kind) if not member.startswith("_")}
    members = {
        member for member in members if callable(getattr(thing, member)) or _is_property(thing, member)
    }
    yield from (f"{name}.{member}" for member in sorted(members | set(getattr(thing, "model_fields", {}))))


def _is_property(kind: type, member: str) -> bool:
    return isinstance(inspect.getattr_static(kind, member), property)


def _parameter(parameter: inspect.Parameter) -> str:
    marks = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    keyword = "kw " if parameter.kind is inspect.Parameter.KEYWORD_ONLY else ""
    text = f"{keyword}{marks.get(parameter.kind, '')}{parameter.name}"
    return text if parameter.default is inspect.Parameter.empty else f"{text}={_shown(parameter.default)}"


def _shown(value: Any) -> str:
    if isinstance(value, _PLAIN):
        return repr(value)
    if isinstance(value, tuple | list) and all(isinstance(part, _PLAIN) for part in value):
        return repr(value)
    return f"<{type(value).__name__}>"


if __name__ == "__main__":
    FILE.write_text("".join(f"{description(name)}\n" for name in names()), encoding="utf-8")
