"""Every command in the documentation is one that there is, with options and settings that it takes."""

import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cyclopts import CycloptsError
from pydantic import BaseModel

from bertsmith.cli.main import COMMANDS, build_app
from bertsmith.compression.distilling.recipes import (
    EncoderDistilRecipe,
    make_distil_recipe,
    make_encoder_recipe,
)
from bertsmith.errors import BertsmithError
from bertsmith.training.finetune_recipe import FinetuneRecipe, make_finetune_recipe
from bertsmith.training.finetuning.search import make_search
from bertsmith.training.recipe import Recipe, list_recipes, read_recipe

REPOSITORY = Path(__file__).parent.parent
PAGES = [
    *sorted(REPOSITORY.glob("*.md")),
    *sorted(REPOSITORY.glob("docs/**/*.md")),
    *sorted(REPOSITORY.glob("src/bertsmith/recipes/*.toml")),
]
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def setting_names(section: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """The dotted name of every setting."""
    for name, field in section.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from setting_names(field.annotation, f"{prefix}{name}.")
        else:
            yield prefix + name


NAMES = {command.name for command in COMMANDS}
GROUPS = ("corpus", "sequences", "tokenizer", "index", "mirror", "benchmark")  # of commands
RECIPES = (Recipe, FinetuneRecipe, EncoderDistilRecipe)
SETTINGS = {name for recipe in RECIPES for name in setting_names(recipe)}
SECTIONS = {name.partition(".")[0] for name in SETTINGS if "." in name}

FILES = (".json", ".safetensors", ".onnx", ".xml", ".bin")  # whose names look like settings

# What stands for something else in a synopsis.
PLACEHOLDERS = {
    "[dotted.key=value": "",
    "[key=value": "",
    "...]": "",
    "[--resume]": "--resume",
    "[--dev": "--dev",
    "[--test": "--test",
    "FILE]": "FILE",
    "COMMAND": "",
}


def read(page: Path) -> str:
    return page.read_text(encoding="utf-8")


@each_page
def test_commands_parse(page: Path) -> None:
    assert refusals(page, parse) == []


@each_page
def test_settings_of_pretrain_are_ones_that_there_are(page: Path) -> None:
    def read_settings(words: list[str]) -> None:
        if words[0] == "pretrain" and len(words) > 2 and "RECIPE" not in words:
            recipe = words[1] if words[1] in list_recipes() else "budget"
            read_recipe(recipe, [word for word in words[2:] if "=" in word])

    assert refusals(page, read_settings) == []


@each_page
def test_settings_of_finetune_tune_and_distil_are_ones_that_there_are(page: Path) -> None:
    """Those of a task that the page makes itself are held by the test that makes it."""
    check = {"finetune": make_finetune_recipe, "tune": make_search}

    def read_settings(words: list[str]) -> None:
        if words[0] in check and len(words) > 2 and words[1] != "TASK" and ":" not in words[1]:
            given = {"task": words[1], "model": "m", "train": "t", "out": "o"}
            check[words[0]](given, [word for word in words[2:] if re.match(r"[\w.]+=", word)])
        if words[0] == "distil" and len(words) > 2:
            chosen = [word for word in words[2:] if re.match(r"[\w.]+=", word)]
            if "--corpus" in words:
                make_encoder_recipe({"teacher": words[1], "corpus": "c", "out": "o"}, chosen)
            else:
                make_distil_recipe({"teacher": [words[1]], "train": "t", "out": "o"}, chosen)

    assert refusals(page, read_settings) == []


@each_page
def test_settings_named_in_the_text_are_ones_that_there_are(page: Path) -> None:
    for span in inline_code(read(page)):
        found = re.fullmatch(r"((\w+)\.\w+)(?:=\S*)?", span)
        if found and found[2] in SECTIONS and not span.endswith(FILES):
            assert found[1] in SETTINGS, f"{page.name} names the setting {span}"


@each_page
def test_targets_of_make_are_in_the_makefile(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", read(REPOSITORY / "Makefile"), re.MULTILINE))
    named = re.findall(r"(?:^|`)make ([a-z][a-z -]*)", read(page), re.MULTILINE)
    assert {target for words in named for target in words.split("  ")[0].split()} <= targets


@pytest.mark.parametrize(
    "text",
    [
        "```\nbertsmith corpus build articles/ --outt corpora/law\n```",
        "```\nbertsmith corpus biuld articles/ --out corpora/law\n```",
        "Then run `bertsmith evalute runs/law/model`.",
        "| x | `bertsmith fill-mask runs/law/model` |",
    ],
)
def test_a_planted_slip_is_found(text: str) -> None:
    with pytest.raises((AssertionError, CycloptsError)):
        for words in commands(text):
            parse(words)


def refusals(page: Path, check: Callable[[list[str]], None]) -> list[str]:
    """Which commands of the page are refused, and why."""
    found = []
    for words in commands(read(page)):
        try:
            check(words)
        except (AssertionError, CycloptsError, BertsmithError) as error:
            found.append(f"{' '.join(words)}: {error}")
    return found


def commands(text: str) -> Iterator[list[str]]:
    """The words after `bertsmith`, in blocks, recipes' headers, tables and running text."""
    for line in [*block_lines(text), *header_lines(text), *inline_code(text)]:
        found = re.match(r"(?:(?:torchrun .*|python) -m )?bertsmith +(.+)", line)
        if found:
            words = [PLACEHOLDERS.get(word, word) for word in shlex.split(found[1].partition(" > ")[0])]
            yield [word for word in words if word]


def block_lines(text: str) -> Iterator[str]:
    """Lines of code blocks without a language: continued ones joined, remarks two blanks away cut off."""
    every = re.findall(r"^```(.*?)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    for block in [block for language, block in every if not language]:
        for line in re.sub(r" *\\\n *", " ", block).splitlines():
            yield re.split(r"\s{2,}", line.strip())[0]


def header_lines(text: str) -> list[str]:
    """The commands of recipes."""
    return re.findall(r"^# Command: +(.+)$", text, re.MULTILINE)


def inline_code(text: str) -> list[str]:
    """What stands between backticks outside of blocks, also over the end of a line."""
    outside = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    return [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", outside)]


def parse(words: list[str]) -> None:
    """Raises when there is no such command, or it doesn't take these arguments."""
    if not words or words[0].startswith("-"):
        return
    assert words[0] in NAMES, f"there is no command {words[0]!r}"
    app = build_app(words[0])
    if is_just_a_name(words):
        assert words[1:] == [] or words[1] in list(app[words[0]])
    else:
        app.parse_args(words, exit_on_error=False, print_error=False)


def is_just_a_name(words: list[str]) -> bool:
    """`bertsmith corpus build` in running text."""
    return len(words) <= 1 + (words[0] in GROUPS)
