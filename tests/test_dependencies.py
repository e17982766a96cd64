"""What the package declares is what it imports, and every version of it is pinned."""

import ast
import sys
import tomllib
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from bertsmith.training import diagnosis

REPOSITORY = Path(__file__).parent.parent
SOURCE = REPOSITORY / "src" / "bertsmith"
PYPROJECT: dict[str, Any] = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
DECLARED = {*PROJECT["dependencies"], *(each for extra in EXTRAS.values() for each in extra)}
CONSTRAINTS = (REPOSITORY / "constraints.txt").read_text(encoding="utf-8").splitlines()

# Imported where they are used, with an error that prints the install command when missing.
OPTIONAL = {
    *("huggingface-hub", "optuna", "lancedb", "bm25s", "pystemmer", "pyyaml", "ray"),
    *("onnx", "onnxruntime", "openvino"),
    *("fastapi", "starlette", "uvicorn", "httptools", "prometheus-client", "orjson", "opentelemetry-api"),
    *("httpx", "httpcore", "sqlalchemy", "fugashi"),
}


def test_the_doctor_knows_every_extra_for_users() -> None:
    assert {*diagnosis.EXTRAS, "docs", "dev", "bench", "spark"} == EXTRAS.keys()


def test_every_import_of_the_source_is_declared() -> None:
    base = names(PROJECT["dependencies"])
    optional = names([each for name in diagnosis.EXTRAS for each in EXTRAS[name]])
    assert third_party_imports(SOURCE) - optional <= base
    assert third_party_imports(SOURCE) & optional == OPTIONAL


def test_nothing_is_declared_in_vain() -> None:
    assert names(PROJECT["dependencies"]) == third_party_imports(SOURCE) - OPTIONAL


@pytest.mark.parametrize("requirement", sorted(DECLARED))
def test_every_requirement_is_pinned_to_a_version_that_meets_it(requirement: str) -> None:
    wanted, pinned = Requirement(requirement), pins()
    if canonicalize_name(wanted.name) == "bertsmith":
        assert wanted.extras <= EXTRAS.keys()
        return
    assert pinned[canonicalize_name(wanted.name)] in SpecifierSet(str(wanted.specifier))


def test_tests_build_with_what_an_installation_builds_with() -> None:
    (backend,) = map(Requirement, PYPROJECT["build-system"]["requires"])
    assert str(backend.specifier) == f"=={pins()[backend.name]}"


def test_a_planted_import_is_found(tmp_path: Path) -> None:
    (tmp_path / "new.py").write_text("import json, numpy.random\n\ndef f():\n    from yaml import safe_load")
    assert third_party_imports(tmp_path) == {"numpy", "pyyaml"}


def names(requirements: list[str]) -> set[str]:
    return {canonicalize_name(Requirement(requirement).name) for requirement in requirements}


def pins() -> dict[str, str]:
    lines = (line.split("==") for line in CONSTRAINTS if line and not line.startswith("#"))
    return {canonicalize_name(name): version for name, version in lines}


@cache
def third_party_imports(root: Path) -> set[str]:
    """The distributions that the files below `root` import, those inside functions too."""
    distributions = packages_distributions()
    modules = {module for path in root.rglob("*.py") for module in imported_modules(path)}
    foreign = modules - sys.stdlib_module_names - {"bertsmith"}
    return {_distribution(distributions.get(module, [module])) for module in foreign}


def _distribution(candidates: list[str]) -> str:
    """Of several that share a module's name, as OpenTelemetry's do, the one that is declared for users."""
    found = [canonicalize_name(each) for each in candidates]
    for_users = names(
        [*PROJECT["dependencies"], *(each for name in diagnosis.EXTRAS for each in EXTRAS[name])]
    )
    return next((each for each in found if each in for_users), found[0])


def imported_modules(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return found
