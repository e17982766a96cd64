"""What `python -m build` makes of the checkout, installed where there is no compiler.

Built with what this environment has (the extra dev), so that no network is needed.
"""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path
from types import ModuleType

import lazy_loader
import pytest
import torch

import bertsmith

REPOSITORY = Path(__file__).parent.parent
KERNELS = "bertsmith/model/cpu/kernels"
LIBRARIES = {f"{KERNELS}/{name}.so" for name in ("avx2", "avx512", "avx512_vnni")}

# In an environment that has the wheel, and of this one the packages but not the checkout.
ANSWERS = """
import sys
import bertsmith, torch
from bertsmith.model.cpu import kernels
from bertsmith.model.cpu.activation import activate

assert bertsmith.__file__.startswith(sys.prefix), bertsmith.__file__
assert kernels.has_kernels() == (sys.argv[1] == "kernels")
if kernels.has_kernels():
    x, bias = torch.randn(70, 64), torch.randn(64)
    expected = torch.nn.functional.gelu(x + bias)
    torch.testing.assert_close(activate(x, bias, "gelu", gated=False), expected, rtol=1e-5, atol=1e-5)
print(bertsmith.__version__)
"""


def build(folder: Path, **environment: str) -> Path:
    pytest.importorskip("build", reason="needs the package build (extra: dev)")
    pytest.importorskip("hatchling", reason="needs the package hatchling (extra: dev)")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder)]
    done = subprocess.run(
        [*command, str(REPOSITORY)], env={**os.environ, **environment}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an sdist, and the wheel with kernels that was built from it."""
    if sysconfig.get_platform() != "linux-x86_64" or not shutil.which("gcc"):
        pytest.skip("kernels are compiled by GCC for x86-64 under Linux")
    return build(tmp_path_factory.mktemp("dist"), CC="gcc")


@pytest.fixture(scope="module")
def pure(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of a machine without a compiler, built from an sdist: the checkout keeps its libraries."""
    return build(tmp_path_factory.mktemp("pure"), CC=str(REPOSITORY / "no-such-compiler"))


def the_wheel(folder: Path) -> Path:
    (found,) = folder.glob("*.whl")
    return found


def installed(wheel: Path, folder: Path) -> dict[str, str]:
    """An environment in `folder` with that wheel, and what its programs see: no compiler and no checkout."""
    seen = {"PATH": str(folder / "bin"), "CC": "/no/compiler", "HOME": str(folder), "LC_ALL": "C.UTF-8"}
    venv.create(folder)
    install = ["install", "--quiet", "--no-deps", "--no-index", "--disable-pip-version-check", str(wheel)]
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), *install]
    subprocess.run(pip, env=seen, check=True)
    own = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    others = {str(Path(module.__file__).parent.parent) for module in (torch, lazy_loader)}
    (own / "of_the_tests.pth").write_text("\n".join(others))
    return seen


def run(folder: Path, environment: dict[str, str], *command: str) -> str:
    program = [str(folder / "bin" / command[0]), *command[1:]]
    done = subprocess.run(program, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.slow
def test_the_sdist_has_the_sources_and_the_wheel_what_was_compiled(distributions: Path) -> None:
    (sdist,) = distributions.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        sources = {name.partition("/")[2] for name in archive.getnames()}
    assert {"hatch_build.py", "constraints.txt", f"src/{KERNELS}/layer.c", "tests/test_wheel.py"} <= sources
    assert not [name for name in sources if name.endswith(".so")]
    with zipfile.ZipFile(the_wheel(distributions)) as archive:
        packed = set(archive.namelist())
    assert packed >= {
        *LIBRARIES,
        "bertsmith/py.typed",
        "bertsmith/__init__.pyi",
        "bertsmith/recipes/budget.toml",
    }
    assert not [name for name in packed if name.endswith((".c", ".h"))]


@pytest.mark.slow
def test_auditwheel_finds_the_tag_of_the_wheel_true(distributions: Path) -> None:
    pytest.importorskip("auditwheel", reason="needs the package auditwheel (extra: dev)")
    wheel = the_wheel(distributions)
    show = [sys.executable, "-m", "auditwheel", "show", str(wheel)]
    said = " ".join(subprocess.run(show, check=True, capture_output=True, text=True).stdout.split())
    found = re.search(r'following platform tag: "(\w+)"', said)
    assert found, said
    assert wheel.name == f"bertsmith-{bertsmith.__version__}-py3-none-{found[1]}.whl"


@pytest.mark.slow
def test_a_wheel_with_kernels_needs_no_compiler(distributions: Path, tmp_path: Path) -> None:
    environment = installed(the_wheel(distributions), tmp_path / "env")
    assert run(tmp_path / "env", environment, "python", "-c", ANSWERS, "kernels") == bertsmith.__version__
    assert run(tmp_path / "env", environment, "bertsmith", "--version") == bertsmith.__version__


@pytest.mark.slow
def test_without_a_compiler_the_wheel_is_pure_and_works_on_torch_alone(pure: Path, tmp_path: Path) -> None:
    assert the_wheel(pure).name == f"bertsmith-{bertsmith.__version__}-py3-none-any.whl"
    environment = installed(the_wheel(pure), tmp_path / "env")
    assert run(tmp_path / "env", environment, "python", "-c", ANSWERS, "torch") == bertsmith.__version__


@pytest.fixture
def build_hook() -> ModuleType:
    pytest.importorskip("hatchling", reason="needs the package hatchling (extra: dev)")
    spec = importlib.util.spec_from_file_location("hatch_build", REPOSITORY / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("names", "platform"),
    [
        (("GLIBC_2.2.5", "GLIBC_2.14"), "manylinux_2_17_x86_64"),
        (("GLIBC_2.2.5", "GLIBC_2.29"), "manylinux_2_29_x86_64"),
        ((), "linux_x86_64"),  # musl names no versions
    ],
)
def test_the_tag_is_of_the_newest_glibc_that_a_library_names(
    build_hook: ModuleType,
    tmp_path: Path,
    names: tuple[str, ...],
    platform: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "avx2.so").write_bytes(
        b"\x7fELF\0memset\0" + b"".join(f"{name}\0".encode() for name in names)
    )
    (tmp_path / "avx512.so").write_bytes(b"\x7fELF\0")
    for machine in ("x86_64", "aarch64"):
        monkeypatch.setattr("sysconfig.get_platform", lambda: f"linux-{machine}")  # noqa: B023
        assert build_hook.platform_of(tmp_path) == platform.replace("x86_64", machine)


def test_the_version_is_written_once() -> None:
    """Hatchling reads it where `bertsmith --version` does, and so does the changelog's last dated section."""
    released = re.findall(
        r"^## \[([\d.]+)\] - \d", (REPOSITORY / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE
    )
    assert released[0] == bertsmith.__version__
    assert '"version"' in (REPOSITORY / "pyproject.toml").read_text("utf-8")
