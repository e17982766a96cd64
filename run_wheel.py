"""Makes the wheel bertsmith-run: the room src/bertsmith/runtime and what it imports, as bertsmith_run.

    python run_wheel.py dist
    _PYTHON_HOST_PLATFORM=linux-aarch64 CC=aarch64-linux-gnu-gcc python run_wheel.py dist  # for ARM
    CC=false python run_wheel.py dist  # without libraries, for any system: NumPy computes

Each compiles anew: make those for elsewhere in a copy of the repository, which keeps its own libraries so.

The modules are found from the imports at the top of each, beginning at the room's door. Imports inside
functions aren't followed: these need torch or an extra, and aren't called here. Each file is copied with its
imports renamed, so that both packages can be installed side by side; pydantic's place is taken by
plain_models.py.
"""

import ast
import base64
import hashlib
import re
import sys
import zipfile
from pathlib import Path

from hatch_build import FOLDER, compile_kernels, platform_of

ROOT = Path(__file__).parent
SOURCE = ROOT / "src"
NAME, NEW_NAME, DISTRIBUTION = "bertsmith", "bertsmith_run", "bertsmith_run"
ROOM = f"{NAME}.runtime"
DOORS = (ROOM, f"{ROOM}.__main__", f"{ROOM}.server", f"{ROOM}.plain_models")
REQUIRES = ("numpy>=2.0", "tokenizers>=0.23")
EXTRAS = {"japanese": ("fugashi>=1.3", "unidic-lite>=1.0", "ipadic>=1.0")}
SCRIPTS = f"[console_scripts]\nbertsmith-run = {NEW_NAME}.runtime.__main__:main\n"
# What a pure import of the room must never reach.
NEVER = {"torch", "pydantic", "scipy", "sklearn", "pyarrow", "safetensors"}


def find_modules() -> dict[str, Path]:
    """The modules that the wheel has, by their names, and their files."""
    modules, waiting = dict[str, Path](), [*DOORS]
    while waiting:
        name = waiting.pop()
        path = _file_of(name)
        if path is None or name in modules or name == NAME:
            continue
        modules[name] = path
        waiting.append(name.rpartition(".")[0])
        for node in _imports_at_top(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                waiting += [alias.name for alias in node.names]
            elif node.module is not None:
                waiting += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return dict(sorted(modules.items()))


def _file_of(name: str) -> Path | None:
    """The file of a module of ours; None for other names."""
    if name.partition(".")[0] != NAME:
        return None
    path = SOURCE.joinpath(*name.split("."))
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)


def _imports_at_top(tree: ast.AST) -> list[ast.Import | ast.ImportFrom]:
    """The imports that run when a module is imported: those of no function, and not for a type checker."""
    imports = list[ast.Import | ast.ImportFrom]()
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            imports.append(node)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            imports += [found for part in node.orelse for found in _imports_at_top(part)]
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            imports += _imports_at_top(node)
    return imports


def renamed(text: str) -> str:
    """A module's text with the names of its imports changed, wherever in the file these stand."""
    lines = text.splitlines(keepends=True)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            line = lines[node.lineno - 1]
            line = re.sub(rf"from {NAME}(?=[. ])", f"from {NEW_NAME}", line, count=1)
            models = f"from {NEW_NAME}.runtime.plain_models import"
            lines[node.lineno - 1] = re.sub(r"from pydantic(\.fields)? import", models, line, count=1)
        elif isinstance(node, ast.Import):
            line = lines[node.lineno - 1]
            lines[node.lineno - 1] = re.sub(rf"import {NAME}$", f"import {NEW_NAME} as {NAME}", line)
    return "".join(lines)


def wheel_files() -> dict[str, bytes]:
    """The package's files by their paths in the wheel, without the libraries."""
    files, modules = dict[str, bytes](), find_modules()
    for path in modules.values():
        place = NEW_NAME / path.relative_to(SOURCE / NAME)
        files[place.as_posix()] = renamed(path.read_text(encoding="utf-8")).encode()
    about = ast.get_docstring(ast.parse(modules[ROOM].read_text(encoding="utf-8")), clean=False)
    room = f"{NEW_NAME}.runtime"
    door = (
        f'"""{about}"""',
        f'__version__ = "{version()}"',
        f"from {room} import *",
        f"from {room} import __all__",
    )
    files[f"{NEW_NAME}/__init__.py"] = "\n\n".join([*door, ""]).encode()
    files[f"{NEW_NAME}/py.typed"] = b""
    return files


def version() -> str:
    """The version of the whole package."""
    found = re.search(r'^__version__ = "(.+)"', (SOURCE / NAME / "__init__.py").read_text(), re.MULTILINE)
    assert found is not None
    return found[1]


def build(out: Path, *, compile_first: bool = True) -> Path:
    """Writes the wheel into the folder `out` and returns its path. With libraries for this processor's kind
    where GCC compiles them, or those that are there already.
    """
    folder = ROOT / FOLDER
    has_kernels = compile_kernels(folder, print) if compile_first else any(folder.glob("*.so"))
    files, tag = wheel_files(), f"py3-none-{platform_of(folder) if has_kernels else 'any'}"
    for library in sorted(folder.glob("*.so")) if has_kernels else ():
        files[f"{NEW_NAME}/{library.relative_to(SOURCE / NAME).as_posix()}"] = library.read_bytes()
    about = f"{DISTRIBUTION}-{version()}.dist-info"
    metadata = [
        *("Metadata-Version: 2.4", "Name: bertsmith-run", f"Version: {version()}"),
        "Summary: Answers of BERT models without torch: vectors and predictions of Bertsmith's folders.",
        *("License-Expression: Apache-2.0", "License-File: LICENSE", "Requires-Python: >=3.11"),
        *(f"Requires-Dist: {name}" for name in REQUIRES),
    ]
    for extra, names in EXTRAS.items():
        metadata.append(f"Provides-Extra: {extra}")
        metadata += [f'Requires-Dist: {name}; extra == "{extra}"' for name in names]
    wheel = ("Wheel-Version: 1.0", "Generator: run_wheel.py", f"Root-Is-Purelib: {not has_kernels}".lower())
    files |= {
        f"{about}/METADATA": "\n".join([*metadata, ""]).encode(),
        f"{about}/WHEEL": "\n".join([*wheel, f"Tag: {tag}", ""]).encode(),
        f"{about}/entry_points.txt": SCRIPTS.encode(),
        f"{about}/licenses/LICENSE": (ROOT / "LICENSE").read_bytes(),
    }
    record = [f"{path},sha256={_digest(content)},{len(content)}" for path, content in files.items()]
    files[f"{about}/RECORD"] = "\n".join([*record, f"{about}/RECORD,,", ""]).encode()
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{DISTRIBUTION}-{version()}-{tag}.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0)), content, zipfile.ZIP_DEFLATED)
    return path


def _digest(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


if __name__ == "__main__":
    print(build(Path(sys.argv[1] if len(sys.argv) > 1 else "dist")))
