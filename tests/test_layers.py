"""The directions of imports, read from the source: the house keeps its shape only if a test says so."""

import ast
import re
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

from bertsmith.tasks.registry import TASKS

REPOSITORY = Path(__file__).parent.parent
SOURCE = REPOSITORY / "src" / "bertsmith"

# A file imports from its own layer and from those before it (see docs/how-it-works.md).
LAYERS = [
    "base",
    "text",
    "data",
    "model",
    "machine",
    "metrics",
    "tasks",
    "reporting",
    "training",
    "planning",
    "inference",
    "runtime",
    "compression",
    "benchmarks",
    "estimators",
    "serving",
    "mirror",
    "mirror/learning",  # what relays, records, answers and guards is below it, and apart
    "cli",
]
# One capital and an ending, or an irregular one. Nouns that look so are listed.
PARTICIPLE = re.compile(
    "Said|Heard|Taken|Taught|Known|Found|Kept|Seen|Drawn|Made|Read|Held|Lost|Done|Sent|Written|Given|Understood"
    "|[A-Z][a-z]+(?:ed|en|ing)"
)
NOUNS = {
    *(
        "Encoding",
        "Embedding",
        "Pooling",
        "Padding",
        "Masking",
        "Ranking",
        "Reranking",
        "Tagging",
        "Training",
    ),
    *("Setting", "String", "Streaming", "Ceiling"),
}
# Seen outside, so they stay: bodies that OpenAPI names, and sections of two kinds of settings.
NAMED_TWICE = {"Choice", "Score", "DataSettings", "ModelSettings"}
LONE_MODULES = {
    "arrays": "base",
    "argument_checks": "base",
    "errors": "base",
    "files": "base",
    "progress": "base",
    "validation": "base",
    "machine": "machine",
    "__main__": "cli",
}
# What must not reach what, not even through others: who predicts needs nothing of what trains.
APART = [
    ("training", "serving"),
    ("serving", "training"),
    ("serving", "estimators"),
    ("serving", "mirror"),
    ("serving", "compression"),
    ("mirror", "training"),
    ("mirror", "estimators"),
    ("mirror", "compression"),
    ("mirror", "mirror/learning"),
    ("inference", "training"),
    ("inference", "planning"),
]
ORACLES = {"transformers", "sentence_transformers", "datasets", "peft", "seqeval"}
# The one exception: `bertsmith check --against` imports them by name, when somebody asks for it, and no other
# module may import that one.
DOOR_TO_ORACLES = "bertsmith.inference.checking.oracles"
NAMES_THAT_SAY_NOTHING = {"util", "utils", "helper", "helpers", "common", "misc"}
MACHINE_PATH = re.compile(r"(?<![\w.~:/-])/(?:work|root|home|Users|mnt|scratch)/\w+")


class Import(NamedTuple):
    importer: str
    imported: str
    line: int

    def __str__(self) -> str:
        return f"{self.importer}, line {self.line}, imports {self.imported}"


def test_imports_point_down_the_layers() -> None:
    assert against_the_layers(SOURCE) == []


@pytest.mark.parametrize(("layer", "unreachable"), APART)
def test_a_layer_reaches_nothing_of_one_it_is_kept_apart_from(layer: str, unreachable: str) -> None:
    assert paths_between(SOURCE, layer, unreachable) == []


def test_no_module_imports_itself_by_a_detour() -> None:
    assert circle(SOURCE) is None


def test_the_library_never_imports_its_oracles() -> None:
    assert oracle_imports(SOURCE) == []


def test_only_the_check_against_other_tools_reaches_them_by_name() -> None:
    importers = {each.importer for each in own_imports(SOURCE) if each.imported == DOOR_TO_ORACLES}
    assert importers == {"bertsmith.inference.checking.check"}


def test_nobody_outside_the_tasks_asks_which_task_it_is() -> None:
    """What others want to know of a task it says itself: else one's own couldn't do what ours do."""
    assert questions_about_tasks(SOURCE) == []


@pytest.mark.parametrize(
    "code",
    [
        "from bertsmith.tasks.tagging import Tagging\nisinstance(task, Tagging)",
        "isinstance(task, int | Tagging)",
        "issubclass(kind, (int, Tagging))",
        "type(task) is Tagging",
        "match task:\n    case Tagging():\n        pass",
        "task.name == 'tagging'",
        "model.task in ('fill-mask', 'tagging')",
    ],
)
def test_a_planted_question_about_a_task_is_found(tmp_path: Path, code: str) -> None:
    house = model_house(tmp_path)
    assert questions_about_tasks(house) == []
    (house / "training/loop.py").write_text(code)
    assert len(questions_about_tasks(house)) == 1


def test_every_file_has_a_place_and_a_name_that_says_what_it_holds() -> None:
    assert misplaced_files(SOURCE) == []


def test_a_class_is_a_noun_and_its_name_stands_once() -> None:
    assert participles_and_doubles(SOURCE) == ([], NAMED_TWICE)


def test_a_planted_participle_and_a_planted_double_are_found(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("class _Judged: ...\nclass Padding: ...\nclass Row: ...")
    (tmp_path / "b.py").write_text("class Row:\n    class Said: ...")
    assert participles_and_doubles(tmp_path) == (["_Judged", "Said"], {"Row"})


def participles_and_doubles(root: Path) -> tuple[list[str], set[str]]:
    """Names of classes that are participles ("Judged" for "JudgedDocument"), and those of top-level classes
    that stand in several files.
    """
    participles, files = list[str](), dict[str, list[Path]]()
    for path in sorted(root.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                name = node.name.lstrip("_")
                if PARTICIPLE.fullmatch(name) and name not in NOUNS:
                    participles.append(node.name)
                if node in tree.body:
                    files.setdefault(name, []).append(path)
    return participles, {name for name, places in files.items() if len(places) > 1}


def test_no_path_of_someones_machine() -> None:
    pages = [*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/**/*.md"), *REPOSITORY.glob("bench/**/*.*")]
    assert machine_paths([*SOURCE.rglob("*.*"), *pages]) == []


@pytest.mark.parametrize(
    ("path", "code", "complaint"),
    [
        ("text/corpus.py", "import bertsmith.model.bert", "bertsmith.text.corpus, line 1, imports"),
        ("text/corpus.py", "from bertsmith.model import bert", "bertsmith.model.bert"),
        ("text/corpus.py", "from ..model.bert import Bert", "bertsmith.model.bert"),
        ("text/corpus.py", "def f():\n    from bertsmith import model", "line 2, imports bertsmith.model"),
        ("text/corpus.py", "import_module('bertsmith.model.bert')", "bertsmith.model.bert"),
        ("errors.py", "import bertsmith.text.corpus", "bertsmith.errors, line 1"),
        ("training/loop.py", "import bertsmith.serving.page", "bertsmith.serving.page"),
        ("mirror/relay.py", "import bertsmith.mirror.learning.train", "bertsmith.mirror.relay, line 1"),
    ],
)
def test_a_planted_import_upwards_is_found(tmp_path: Path, path: str, code: str, complaint: str) -> None:
    house = model_house(tmp_path)
    assert against_the_layers(house) == []
    (house / path).write_text(code)
    (found,) = against_the_layers(house)
    assert complaint in found


def test_a_planted_detour_to_a_layer_kept_apart_is_found(tmp_path: Path) -> None:
    house = model_house(tmp_path)
    (house / "inference/score.py").write_text("from bertsmith.tasks import heads")
    (house / "tasks/heads.py").touch()
    assert paths_between(house, "inference", "training") == []
    (house / "tasks/heads.py").write_text("def f():\n    import bertsmith.training.loop")
    assert paths_between(house, "inference", "training") == [
        "bertsmith.inference.score -> bertsmith.tasks.heads -> bertsmith.training.loop"
    ]


def test_a_planted_circle_is_found(tmp_path: Path) -> None:
    house = model_house(tmp_path)
    assert circle(house) is None
    (house / "text/corpus.py").write_text("from bertsmith.text import cleaning")
    (house / "text/cleaning.py").write_text("def f():\n    from bertsmith.text.corpus import Corpus")
    assert set(circle(house) or ()) == {"bertsmith.text.corpus", "bertsmith.text.cleaning"}


def test_a_planted_oracle_name_folder_and_machine_path_are_found(tmp_path: Path) -> None:
    house = model_house(tmp_path)
    (house / "text/corpus.py").write_text("def f():\n    from transformers.models import bert")
    (house / "text/utils.py").touch()
    (house / "extras").mkdir()
    (house / "extras/thing.py").write_text("DATA = '/home/somebody/data'  # but /proc/meminfo is everyone's")
    assert oracle_imports(house) == ["bertsmith.text.corpus, line 2, imports transformers.models"]
    assert misplaced_files(house) == [
        "extras/thing.py has no layer",
        "text/utils.py says nothing by its name",
    ]
    (house / "extras/__pycache__").mkdir()
    (house / "extras/__pycache__/thing.cpython-311.pyc").write_bytes(b"\xe3/home/somebody/extras/thing.py")
    assert machine_paths(house.rglob("*.*")) == ["thing.py: /home/somebody"]


def model_house(folder: Path) -> Path:
    """A small package in which all is well."""
    house = folder / "bertsmith"
    files = [
        "errors.py",
        "text/corpus.py",
        "text/cleaning.py",
        "model/bert.py",
        "training/loop.py",
        "serving/page.py",
        "mirror/relay.py",
        "mirror/learning/train.py",
    ]
    for path in [*files, "__init__.py", *(f"{layer}/__init__.py" for layer in LAYERS[1:])]:
        (house / path).parent.mkdir(parents=True, exist_ok=True)
        (house / path).touch()
    (house / "training/loop.py").write_text("import os\nfrom bertsmith.model.bert import Bert")
    return house


def against_the_layers(root: Path) -> list[str]:
    return [
        str(found) for found in own_imports(root) if not allowed(layer(found.importer), layer(found.imported))
    ]


def allowed(importer: str, imported: str) -> bool:
    return LAYERS.index(imported) <= LAYERS.index(importer)


def paths_between(root: Path, start: str, end: str) -> list[str]:
    """The shortest chain of imports from each module of one layer to each module of the other."""
    edges: dict[str, set[str]] = {}
    for found in own_imports(root):
        edges.setdefault(found.importer, set()).add(found.imported)
    chains = []
    for first in sorted(module for module in edges if layer(module) == start):
        before: dict[str, str | None] = {first: None}
        queue = deque([first])
        while queue:
            module = queue.popleft()
            if layer(module) == end:
                chains.append(" -> ".join(reversed(list(chain(module, before)))))
                continue
            for imported in sorted(edges.get(module, ())):
                if imported not in before:
                    before[imported] = module
                    queue.append(imported)
    return chains


def chain(module: str | None, before: Mapping[str, str | None]) -> Iterator[str]:
    """The module and those that led to it."""
    while module is not None:
        yield module
        module = before[module]


def circle(root: Path) -> list[str] | None:
    graph: dict[str, set[str]] = {}
    for found in own_imports(root):
        if found.importer != found.imported:
            graph.setdefault(found.importer, set()).add(found.imported)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return None


def oracle_imports(root: Path) -> list[str]:
    return [str(found) for found in all_imports(root) if found.imported.split(".")[0] in ORACLES]


def misplaced_files(root: Path) -> list[str]:
    complaints = []
    for path in sorted(root.rglob("*.py")):
        inside = path.relative_to(root)
        folder = inside.parts[0].removesuffix(".py")
        if inside.stem != "__init__" and folder not in {*LAYERS, *LONE_MODULES}:
            complaints.append(f"{inside} has no layer")
        if inside.stem in NAMES_THAT_SAY_NOTHING:
            complaints.append(f"{inside} says nothing by its name")
    return complaints


def questions_about_tasks(root: Path) -> list[str]:
    """Lines outside tasks/ that compare a task's class or its name."""
    classes = {*TASKS.values(), "Fields", "TextTask", "CalibratedTask"}
    found = []
    for path in sorted(root.rglob("*.py")):
        if path.relative_to(root).parts[0] == "tasks":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            asked: list[ast.AST] = []
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("isinstance", "issubclass"):
                asked = list(node.args[1:])
            elif isinstance(node, ast.Compare):
                asked = [node.left, *node.comparators]
            elif isinstance(node, ast.MatchClass):
                asked = [node.cls]
            inside = [part for each in asked for part in ast.walk(each)]
            names = {part.id for part in inside if isinstance(part, ast.Name)}
            words = {part.value for part in inside if isinstance(part, ast.Constant)}
            of_name = any(getattr(part, "attr", "") in ("name", "task") for part in inside)
            if names & classes or (of_name and words & TASKS.keys()):
                found.append(f"{path.relative_to(root)}, line {getattr(node, 'lineno', 0)}")
    return found


def machine_paths(paths: Iterator[Path] | list[Path]) -> list[str]:
    """Compiled files hold the path they were compiled at, and are nobody's work."""
    written = [path for path in paths if path.is_file() and "__pycache__" not in path.parts]
    texts = {path: path.read_text(encoding="utf-8", errors="replace") for path in written}
    return [f"{path.name}: {found}" for path, text in texts.items() for found in MACHINE_PATH.findall(text)]


def layer(module: str) -> str:
    """The package itself holds only the version and a lazy table of names, so it counts as base."""
    parts = module.split(".")
    if (inner := "/".join(parts[1:3])) in LAYERS:
        return inner
    return "base" if len(parts) == 1 else LONE_MODULES.get(parts[1], parts[1])


def own_imports(root: Path) -> Iterator[Import]:
    return (found for found in all_imports(root) if found.imported.split(".")[0] == root.name)


def all_imports(root: Path) -> Iterator[Import]:
    """Every import, those inside functions and those written as strings for import_module too."""
    modules = {module_name(path, root): path for path in sorted(root.rglob("*.py"))}
    for name, path in modules.items():
        if path == root / "__init__.py":
            continue
        package = name if path.stem == "__init__" else name.rpartition(".")[0]
        for node in telling_nodes(path.read_text(encoding="utf-8")):
            for imported in imported_by(node, package, modules.keys()):
                yield Import(name, imported, getattr(node, "lineno", 0))


@cache
def telling_nodes(code: str) -> list[ast.AST]:
    """Those that may import. Kept: ten tests read the whole package."""
    telling = ast.Import | ast.ImportFrom | ast.Constant
    return [node for node in ast.walk(ast.parse(code)) if isinstance(node, telling)]


def module_name(path: Path, root: Path) -> str:
    parts = path.relative_to(root.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported_by(node: ast.AST, package: str, modules: Collection[str]) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            above = package.split(".")[: len(package.split(".")) - node.level + 1]
            base = ".".join([*above, base] if base else above)
        # `from package import name`: the name may be a module of its own.
        whole = [f"{base}.{alias.name}" for alias in node.names]
        return sorted({name if name in modules else base for name in whole})
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        target = node.value.partition(":")[0]
        return [target] if target in modules and "." in target else []
    return []
