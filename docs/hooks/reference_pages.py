"""The reference, made from the code: commands, settings, recipes, Python names, HTTP routes, the keys of a
model's files, and the map of the source.
"""

import ast
import inspect
import json
import re
import textwrap
import tomllib
from collections.abc import Iterable, Iterator, Mapping
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
from bertsmith.compression.distilling.recipes import DistilRecipe, EncoderDistilRecipe
from bertsmith.model.config_json import config_keys
from bertsmith.model.families import find_family
from bertsmith.model.folder_keys import CONFIG, TABLES, FileKeys
from bertsmith.serving.app import make_app
from bertsmith.serving.settings import ServingSettings
from bertsmith.tasks.registry import TASKS, find_task
from bertsmith.tasks.task import TaskSettings
from bertsmith.training.finetune_recipe import FinetuneRecipe
from bertsmith.training.finetuning.search import TuneSettings
from bertsmith.training.recipe import Recipe, list_recipes

SOURCE = Path(bertsmith.__file__).parent
RECIPES = resources.files("bertsmith") / "recipes"
# The layers whose public names stand under a heading.
NAMES = {
    "Text and tokens": ("text", "data"),
    "Models": ("model", "tasks"),
    "Training and use": ("machine", "planning", "training", "inference", "estimators", "benchmarks"),
    "Smaller models": ("compression",),
    "Errors": ("errors",),
}
# Set by options of the commands, or by the run itself.
NOT_SETTINGS = re.compile(r"settings|evaluation\..*|checkpoint\..*|steps|hours")
FAMILIES = (
    *("bert", "jina_bert", "roberta", "xlm-roberta", "camembert", "distilbert", "electra", "albert", "mpnet"),
    *("modernbert", "nomic_bert", "gte", "deberta-v2"),
)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    pages = {
        "commands": commands(),
        "settings": settings(),
        "recipes": recipes(),
        "python": python_names(),
        "http": http_routes(),
        "model-files": model_files(),
        "map": source_map(),
    }
    for name, parts in pages.items():
        files.append(File.generated(config, f"reference/{name}.md", content="\n\n".join(parts) + "\n"))
    return files


def table(head: str, rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table; `head` has its columns' names with | between them."""
    columns = head.split("|")
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


# -- commands ------------------------------------------------------------------------------------------------


def commands() -> Iterator[str]:
    """The text of `bertsmith COMMAND --help`, for each command."""
    yield "# Every command"
    yield "What `bertsmith COMMAND --help` prints."
    for command in COMMANDS:
        yield from command_page(f"bertsmith {command.name}", build_app(command.name)[command.name])


def command_page(name: str, app: App) -> Iterator[str]:
    subcommands = [subcommand for subcommand in app if not subcommand.startswith("-")]
    for subcommand in subcommands:
        yield from command_page(f"{name} {subcommand}", app[subcommand])
    if not subcommands:
        page = app.generate_docs(heading_level=2, usage_name=name)
        yield re.sub(r"\A## .*", f"## {name}", page).strip()
        if examples := docstring_parser.parse(app.default_command.__doc__ or "").examples:
            yield "**Examples**:"
            yield "```console\n" + "\n".join(example.description or "" for example in examples) + "\n```"


# -- settings ------------------------------------------------------------------------------------------------


def settings() -> Iterator[str]:
    """Every setting with its type, its default, and what its docstring says."""
    yield "# Every setting"
    yield "A default of – means that the recipe, the model, the data or the machine decides."
    yield "## Of pre-training"
    yield "`bertsmith pretrain RECIPE name=value …`: [Pre-training](../pretraining.md)."
    yield setting_table(Recipe)
    yield "## Of fine-tuning"
    yield "`bertsmith finetune TASK … name=value …`: [Fine-tuning](../finetuning.md)."
    yield setting_table(FinetuneRecipe)
    yield "## Of the tasks"
    yield "Also `name=value` of `bertsmith finetune`, for the task that is trained: [The tasks](../tasks.md)."
    yield "### all tasks"
    yield setting_table(TaskSettings)
    for name in TASKS:
        task_settings = find_task(name).Settings
        shared = {
            key
            for key, field in TaskSettings.model_fields.items()
            if (field.annotation, field.default) == default_of(task_settings, key)
        }
        if set(task_settings.model_fields) - shared:
            yield f"### {name}"
            yield setting_table(task_settings, shared)
    yield "## Of a search for settings"
    yield "`bertsmith tune TASK … name=value …`, beside those of fine-tuning."
    yield setting_table(TuneSettings)
    yield "## Of distillation"
    yield "`bertsmith distil TEACHER … name=value …`: [Smaller models](../smaller.md)."
    yield setting_table(DistilRecipe)
    yield "### of an encoder"
    yield setting_table(EncoderDistilRecipe)
    yield "## Of the service"
    yield "Options of `bertsmith serve`, or keys of its TOML file: [Serving](../serving.md)."
    yield setting_table(ServingSettings)


def setting_table(section: type[BaseModel], left_out: Iterable[str] = ()) -> str:
    return table(
        "setting|type|default|meaning",
        (
            (f"`{name}`", type_of(field), written(default), meaning)
            for name, field, default, meaning in fields(section)
            if name not in left_out and not (section is not Recipe and NOT_SETTINGS.fullmatch(name))
        ),
    )


def default_of(section: type[BaseModel], name: str) -> tuple[Any, Any]:
    field = section.model_fields[name]
    return field.annotation, field.default


def fields(
    section: type[BaseModel], prefix: str = "", values: BaseModel | None = None
) -> Iterator[tuple[str, FieldInfo, Any, str]]:
    """(dotted name, field, default, meaning) of every setting; `values` are the section's defaults."""
    defaults: dict[str, Any] = {}  # so far: one may depend on those before it
    meanings = attribute_docstrings(section)
    for name, field in section.model_fields.items():
        if values is None:
            default = field.get_default(call_default_factory=True, validated_data=defaults)
        else:
            default = getattr(values, name)
        defaults[name] = default
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from fields(field.annotation, f"{prefix}{name}.", default)
        else:
            default = None if field.is_required() else default
            yield prefix + name, field, default, field.description or meanings.get(name, "")


def attribute_docstrings(section: type[BaseModel]) -> dict[str, str]:
    """The strings that stand below the attributes of a class and of its bases."""
    texts: dict[str, str] = {}
    for owner in reversed(section.__mro__):
        if owner.__module__.startswith("bertsmith."):
            (definition,) = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
            assert isinstance(definition, ast.ClassDef)
            for statement, below in zip(definition.body, definition.body[1:], strict=False):
                if (
                    isinstance(statement, ast.AnnAssign)
                    and isinstance(statement.target, ast.Name)
                    and isinstance(below, ast.Expr)
                    and isinstance(below.value, ast.Constant)
                ):
                    texts[statement.target.id] = " ".join(str(below.value.value).split())
    return texts


def type_of(field: FieldInfo) -> str:
    """The type as a user reads it, with its bounds: `float`, > 0."""
    annotation = field.annotation
    simple = isinstance(annotation, type) and not hasattr(annotation, "__args__")
    text = annotation.__name__ if simple else str(annotation)  # type: ignore[union-attr]
    text = re.sub(r"\b(?:typing|pathlib|collections\.abc)\.|NoneType|\| None", "", text).strip()
    text = re.sub(r"Annotated\[(\w+)(?:[^][]|\[[^][]*\])*\]", r"\1", text)
    text = re.sub(r"Literal\[([^]]*)\]", r"\1", text).replace("'", "")
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


# -- recipes -------------------------------------------------------------------------------------------------


def recipes() -> Iterator[str]:
    """What each recipe changes, beside the defaults, and its file with source, cost and expected score."""
    changed = {name: dict(dotted(tomllib.loads(recipe_text(name)))) for name in list_recipes()}
    yield "# Recipes"
    yield "What each recipe changes. [Pre-training](../pretraining.md) says which is for what."
    rows = []
    for name, _, default, _ in fields(Recipe):
        values = [recipe.get(name) for recipe in changed.values()]
        if any(value is not None for value in values):
            cells = ["" if value is None else written(value) for value in values]
            rows.append([f"`{name}`", written(default), *cells])
    yield table("|".join(["setting", "default", *changed]), rows)
    for name in changed:
        yield f"## {name}\n\n```toml\n{recipe_text(name)}```"


def recipe_text(name: str) -> str:
    return (RECIPES / f"{name}.toml").read_text(encoding="utf-8")


def dotted(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from dotted(value, f"{prefix}{key}.")
        else:
            yield prefix + key, tuple(value) if isinstance(value, list) else value


# -- Python --------------------------------------------------------------------------------------------------


def python_names() -> Iterator[str]:
    """Each public name with its signature and docstring, by mkdocstrings."""
    yield "# Python names"
    yield "All that `import bertsmith` gives."
    homes = {name: getattr(bertsmith, name).__module__ for name in bertsmith.__all__}
    for title, layers in NAMES.items():
        yield f"## {title}"
        for name, home in homes.items():
            if home.split(".")[1] in layers:
                yield f"::: {home}.{name}"
                public = getattr(bertsmith, name)
                has_settings = isinstance(public, type) and issubclass(public, BaseModel)
                if has_settings and any(meaning for *_, meaning in fields(public)):
                    yield setting_table(public)


# -- HTTP ----------------------------------------------------------------------------------------------------


def http_routes() -> Iterator[str]:
    """Every route of `bertsmith serve` with the fields of its request, from its OpenAPI description."""
    model = {"name": "MODEL", "path": "."}
    described = make_app(ServingSettings.model_validate({"models": [model]})).openapi()
    bodies = described["components"]["schemas"]
    yield "# HTTP routes"
    yield (
        "What a service of `bertsmith serve` answers. `/openapi.json` of a running service has the same with "
        "every response. [Serving](../serving.md) shows the routes at work."
    )
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            yield f"## {method.upper()} {path}"
            yield str(operation.get("description") or operation.get("summary", ""))
            content = operation.get("requestBody", {}).get("content", {}).values()
            for schema in (part["schema"] for part in content):
                for name in re.findall(r"#/components/schemas/(\w+)", json.dumps(schema)):
                    yield f"`{name}`:"
                    yield body_table(bodies[name])


def body_table(body: Mapping[str, Any]) -> str:
    required = body.get("required", ())
    return table(
        "field|type|default|meaning",
        (
            (
                f"`{name}`",
                schema_type(field),
                "required" if name in required else f"`{json.dumps(field.get('default'))}`",
                " ".join(str(field.get("description", "")).split()).replace("|", "\\|"),
            )
            for name, field in body.get("properties", {}).items()
        ),
    )


def schema_type(field: Mapping[str, Any]) -> str:
    if "anyOf" in field:
        return " or ".join(schema_type(option) for option in field["anyOf"])
    if "$ref" in field:
        return f"`{field['$ref'].rpartition('/')[2]}`"
    if "enum" in field or "const" in field:
        return ", ".join(f"`{value}`" for value in field.get("enum", [field.get("const")]))
    if field.get("type") == "array":
        return f"list of {schema_type(field.get('items', {}))}"
    return f"`{field.get('type', 'any')}`"


# -- files of a model ----------------------------------------------------------------------------------------


def model_files() -> Iterator[str]:
    """Every key in the files of a model's folder: whether it is followed, without effect, or refused."""
    yield "# Keys of a model's files"
    yield (
        "**Honoured:** the numbers follow it, as in transformers and sentence-transformers. **Harmless:** it "
        "changes no number. **Refused unless:** any other value is refused. A key in none of the tables is "
        "refused in `config.json` and in the modules' files. [Files](../files.md) says more."
    )
    for file in TABLES:
        yield f"## {file.file}"
        yield from key_table(file)
        if file is CONFIG:
            for name in FAMILIES:
                yield f"### config.json of {name}"
                yield from key_table(own_keys(config_keys(find_family(name))))


def own_keys(keys: FileKeys) -> FileKeys:
    """The family's keys, without those that every family has."""

    def own(meanings: Mapping[str, Any]) -> dict[str, Any]:
        return {key: meaning for key, meaning in meanings.items() if key not in CONFIG.known}

    return FileKeys(keys.file, own(keys.honoured), own(keys.harmless), own(keys.accepted))


def key_table(keys: FileKeys) -> Iterator[str]:
    """Keys with the same meaning share a row."""
    rows = []
    for treatment, meanings in (("honoured", keys.honoured), ("harmless", keys.harmless)):
        for meaning in dict.fromkeys(meanings.values()):
            alike = sorted(key for key, text in meanings.items() if text == meaning)
            rows.append((", ".join(f"`{key}`" for key in alike), treatment, meaning))
    for key, values in keys.accepted.items():
        accepted = " or ".join(f"`{json.dumps(value)}`" for value in values) if values else "null"
        rows.append((f"`{key}`", "refused unless", accepted))
    yield table("keys||", rows)


# -- the map -------------------------------------------------------------------------------------------------


def source_map() -> Iterator[str]:
    """Every folder and file of the source, with the first sentence of its docstring."""
    yield "# The map"
    yield "Every file of the source with its first sentence. [How it works](../how-it-works.md) has the flow."
    yield file_table(path for path in SOURCE.glob("*.py"))
    for folder in sorted({path.parent for path in SOURCE.rglob("*.py")} - {SOURCE}):
        yield f"## {folder.relative_to(SOURCE)}"
        yield first_sentence(folder / "__init__.py") if (folder / "__init__.py").exists() else ""
        yield file_table(path for path in folder.glob("*.py") if path.stem != "__init__")


def file_table(paths: Iterable[Path]) -> str:
    return table("file|", ((f"`{path.name}`", first_sentence(path)) for path in sorted(paths)))


def first_sentence(path: Path) -> str:
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    paragraph = " ".join(docstring.partition("\n\n")[0].split())
    return re.split(r"(?<=[.?])(?<!et al\.)(?<!e\.g\.)\s+(?=[A-Z`])", paragraph)[0].replace("|", "\\|")
