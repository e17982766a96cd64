"""The documentation builds as a site, without a warning, and with all that it is made from."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from bertsmith import __all__ as public_names
from bertsmith.cli.main import COMMANDS
from bertsmith.training.finetune_recipe import FinetuneRecipe
from bertsmith.training.recipe import Recipe, list_recipes
from test_documented_commands import setting_names

pytestmark = pytest.mark.slow  # `make docs` builds it
REPOSITORY = Path(__file__).parent.parent
# Decided by what the commands are given, and not settings that one writes.
NOT_SETTINGS = re.compile(r"settings|evaluation\..*|checkpoint\..*|steps|hours")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs", reason="needs the extra docs")
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(out)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


def read(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    loaded = re.compile(r"<(?:script|img|iframe|source)[^>]+src=\"?https?:|<link[^>]+href=\"?https?:")
    assert [page.name for page in site.rglob("*.html") if loaded.search(read(page))] == []


def test_the_reference_has_every_command_setting_recipe_and_public_name(site: Path) -> None:
    commands, settings = read(site / "reference/commands.html"), read(site / "reference/settings.html")
    assert [command.name for command in COMMANDS if f"bertsmith-{command.name}" not in commands] == []
    of_pretraining, _, of_finetuning = settings.partition('id="of-fine-tuning"')
    assert [name for name in setting_names(Recipe) if f"<code>{name}</code>" not in of_pretraining] == []
    expected = [name for name in setting_names(FinetuneRecipe) if not NOT_SETTINGS.fullmatch(name)]
    assert [name for name in expected if f"<code>{name}</code>" not in of_finetuning] == []
    recipes, names = read(site / "reference/recipes.html"), read(site / "reference/python.html")
    assert [name for name in list_recipes() if f'id="{name}"' not in recipes] == []
    assert [name for name in public_names if not re.search(rf'id="bertsmith\.[\w.]+\.{name}"', names)] == []


def test_the_reference_has_the_routes_the_keys_and_the_files(site: Path) -> None:
    assert "/v1/embeddings" in read(site / "reference/http.html")
    assert "max_position_embeddings" in read(site / "reference/model-files.html")
    assert "weights.py" in read(site / "reference/map.html")


def test_what_lies_outside_of_docs_is_in_the_site(site: Path) -> None:
    assert "budget.toml" in read(site / "repository/src/bertsmith/recipes.html")
    assert "sampled_pieces" in read(site / "repository/src/bertsmith/recipes/budget.toml.html")
    assert (site / "repository/LOG.html").is_file()
