"""The reference, made from the code: commands, settings, recipes, and what `import bertsmith` gives."""

import re
import tomllib
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import docstring_parser
from cyclopts import App
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from pydantic import BaseModel
from pydantic.fields import FieldInfo

import bertsmith
from bertsmith.cli.main import COMMANDS, build_app
from bertsmith.tasks.registry import TASKS, find_task
from bertsmith.tasks.task import TaskSettings
from bertsmith.training.finetune_recipe import FinetuneRecipe
from bertsmith.training.recipe import Recipe, list_recipes

DOCS = Path(__file__).parents[1]
RECIPES = resources.files("bertsmith") / "recipes"
# The layers whose public names stand under a heading.
NAMES = {
    "Text and tokens": ("text", "data"),
    "Models": ("model", "tasks"),
    "Training and use": ("machine", "planning", "training", "inference", "estimators", "benchmarks"),
    "Smaller models": ("compression",),
    "Errors": ("errors",),
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    made = {"commands": commands(), "settings": settings(), "recipes": recipes(), "python": names()}
    for name, parts in made.items():
        files.append(File.generated(config, f"reference/{name}.md", content="\n\n".join(parts) + "\n"))
    return files


# -- commands ------------------------------------------------------------------------------------------------


def commands() -> Iterator[str]:
    """What `bertsmith COMMAND --help` says, for each command."""
    yield "# Every command"
    yield "What `bertsmith COMMAND --help` says. [Commands at a glance](../commands.md) has a line for each."
    for command in COMMANDS:
        yield from command_page(f"bertsmith {command.name}", build_app(command.name)[command.name])


def command_page(name: str, app: App) -> Iterator[str]:
    subcommands = [each for each in app if not each.startswith("-")]
    for each in subcommands:
        yield from command_page(f"{name} {each}", app[each])
    if not subcommands:
        page = app.generate_docs(heading_level=2, usage_name=name)
        yield re.sub(r"\A## .*", f"## {name}", page).strip()
        if examples := docstring_parser.parse(app.default_command.__doc__ or "").examples:
            yield "**Examples**:"
            yield "```console\n" + "\n".join(each.description or "" for each in examples) + "\n```"


# -- settings ------------------------------------------------------------------------------------------------


def settings() -> Iterator[str]:
    """Every setting with its type and default, by the code; what it means, by the pages' tables."""
    yield "# Every setting"
    yield "A default of – means that the recipe, the model or the machine decides."
    yield "## Of pre-training"
    yield "`bertsmith pretrain RECIPE name=value …`; [Pre-training](../pretraining.md) explains them."
    yield setting_table(Recipe, meanings("pretraining-settings.md"))
    yield "## Of fine-tuning"
    yield "`bertsmith finetune TASK … name=value …`; [Fine-tuning](../finetuning.md) explains them."
    yield setting_table(FinetuneRecipe, meanings("finetuning-settings.md"))
    yield "## Of the tasks"
    yield "Also `name=value` of `bertsmith finetune`, for the task that is trained."
    yield "### all tasks"
    yield setting_table(TaskSettings, task_meanings("all"))
    for task in TASKS:
        kind = find_task(task).Settings
        common = TaskSettings.model_fields
        shared = {name for name, field in common.items() if same(kind.model_fields[name], field)}
        if set(kind.model_fields) - shared:
            yield f"### {task}"
            yield setting_table(kind, task_meanings("all") | task_meanings(f"`{task}`"), shared)


def setting_table(section: type[BaseModel], meaning: Mapping[str, str], left_out: Any = ()) -> str:
    lines = ["| setting | type | default | meaning |", "| --- | --- | --- | --- |"]
    for name, field, default in fields(section):
        if name in meaning and name not in left_out:
            lines.append(f"| `{name}` | {type_of(field)} | {written(default)} | {meaning[name]} |")
    return "\n".join(lines)


def fields(
    section: type[BaseModel], prefix: str = "", values: BaseModel | None = None
) -> Iterator[tuple[str, FieldInfo, Any]]:
    """(dotted name, field, default) of every setting; `values` are the section's defaults."""
    defaults: dict[str, Any] = {}  # so far: one may depend on those before it
    for name, field in section.model_fields.items():
        if values is None:
            default = field.get_default(call_default_factory=True, validated_data=defaults)
        else:
            default = getattr(values, name)
        defaults[name] = default
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from fields(field.annotation, f"{prefix}{name}.", default)
        else:
            yield prefix + name, field, None if field.is_required() else default


def type_of(field: FieldInfo) -> str:
    """The type as a user reads it, with its bounds: `float`, > 0."""
    kind = field.annotation
    text = kind.__name__ if isinstance(kind, type) and not hasattr(kind, "__args__") else str(kind)
    text = re.sub(r"\b(?:typing|pathlib|collections\.abc)\.|NoneType|\| None", "", text).strip()
    text = re.sub(r"Literal\[(.*)\]", r"\1", text).replace("'", "")
    signs = {"gt": ">", "ge": "≥", "lt": "<", "le": "≤"}
    bounds = [
        f"{sign} {getattr(bound, key):g}"
        for bound in field.metadata
        for key, sign in signs.items()
        if hasattr(bound, key)
    ]
    return ", ".join([f"`{text.replace('|', 'or')}`", *bounds])


def written(default: Any) -> str:
    if default is None:
        return "–"
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, tuple):
        return str(list(default))
    if isinstance(default, int | float):
        return f"{default:,}" if isinstance(default, int) else f"{default:g}"
    return f"`{default}`" if default else "empty"


def same(field: FieldInfo, other: FieldInfo) -> bool:
    return (field.annotation, field.default) == (other.annotation, other.default)


def meanings(page: str) -> dict[str, str]:
    """Of each setting, from the page's tables, which a test compares with the code."""
    rows = re.findall(r"^\| `([\w.]+)` \| .+? \| (.+) \|$", read(page), re.MULTILINE)
    return {name: rebased(text, page) for name, text in rows}


def task_meanings(task: str) -> dict[str, str]:
    page = "finetuning-settings.md"
    rows = re.findall(r"^\| (\S+) \| `(\w+)` \| .+? \| (.+) \|$", read(page), re.MULTILINE)
    return {name: rebased(text, page) for each, name, text in rows if each == task}


def read(page: str) -> str:
    return (DOCS / page).read_text(encoding="utf-8")


def rebased(text: str, page: str) -> str:
    """Links of that page as they are one folder down."""
    return re.sub(r"\]\((?!\w+:)([^)#]*)", lambda found: f"](../{found[1] or page}", text)


# -- recipes -------------------------------------------------------------------------------------------------


def recipes() -> Iterator[str]:
    """What each recipe changes, beside the defaults, and its file with source, cost and expected score."""
    changed = {name: dict(dotted(tomllib.loads(recipe_text(name)))) for name in list_recipes()}
    yield "# Recipes"
    yield "What each recipe changes. [Pre-training](../pretraining.md) says which is for what."
    lines = [f"| setting | default | {' | '.join(changed)} |", "| --- " * (len(changed) + 2) + "|"]
    for name, _, default in fields(Recipe):
        values = [recipe.get(name) for recipe in changed.values()]
        if any(value is not None for value in values):
            cells = " | ".join("" if value is None else written(value) for value in values)
            lines.append(f"| `{name}` | {written(default)} | {cells} |")
    yield "\n".join(lines)
    for name in changed:
        yield f"## {name}\n\n```toml\n{recipe_text(name)}```"


def recipe_text(name: str) -> str:
    return (RECIPES / f"{name}.toml").read_text(encoding="utf-8")


def dotted(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from dotted(value, f"{prefix}{key}.")
        else:
            yield prefix + key, tuple(value) if isinstance(value, list) else value


# -- Python --------------------------------------------------------------------------------------------------


def names() -> Iterator[str]:
    """Each public name with its signature and docstring, by mkdocstrings."""
    yield "# Python names"
    yield "All that `import bertsmith` gives. [Python by example](../python.md) shows it at work."
    homes = {name: getattr(bertsmith, name).__module__ for name in bertsmith.__all__}
    for title, layers in NAMES.items():
        yield f"## {title}"
        for name, home in homes.items():
            if home.split(".")[1] in layers:
                yield f"::: {home}.{name}"
                yield from fields_of(getattr(bertsmith, name))


def fields_of(kind: Any) -> Iterator[str]:
    """A table of the fields of a settings class that describes each."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        meaning = {name: field.description for name, field in kind.model_fields.items() if field.description}
        if meaning:
            yield setting_table(kind, meaning)
