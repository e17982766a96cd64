"""Compiles what is in C when a wheel is built or installed, and leaves it out where that can't be done.

Under Linux, by GCC 9 or newer, in a few seconds: for x86-64 libraries for AVX2, for AVX-512 and for its VNNI,
for 64-bit ARM one for NEON. `bertsmith.model.cpu.kernels` opens the one for what the processor has. $CC names
another GCC.

They know nothing of Python, so that one wheel serves all versions: py3-none-manylinux_2_X_x86_64 or _aarch64,
where 2.X is the oldest glibc that has every function they call. Without them the wheel is py3-none-any.
"""

import os
import re
import shlex
import subprocess
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FOLDER = Path("src/bertsmith/model/cpu/kernels")
# What torch asks a processor for before it calls it so, and nothing else: machines may hide the rest.
AVX512 = [
    *("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mfma"),
    *("-mtune=skylake-avx512", "-mprefer-vector-width=512"),
]
FLAGS = {
    "linux-x86_64": {
        "avx2": ["-mavx2", "-mfma", "-mtune=haswell"],
        "avx512": AVX512,
        "avx512_vnni": [*AVX512, "-mavx512vnni"],
    },
    "linux-aarch64": {"neon": []},  # which every such processor has
}
OLDEST_GLIBC = 17  # of 2.17, the first that manylinux has for every wheel of today


class CustomBuildHook(BuildHookInterface[Any]):
    """Of the wheel, editable or not."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        folder = Path(self.root) / FOLDER
        if not compile_kernels(folder, self.app.display_warning):
            return
        build_data["artifacts"].append(str(FOLDER / "*.so"))
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform_of(folder)}"


def compile_kernels(folder: Path, warn: Callable[[str], Any]) -> bool:
    """Compiles the folder's C files into a library for each instruction set. Returns whether it could."""
    for library in folder.glob("*.so"):
        library.unlink()  # of another version, maybe
    if sysconfig.get_platform() not in FLAGS:
        return False
    compiler = shlex.split(os.environ.get("CC") or "gcc")
    sources = sorted(map(str, folder.glob("*.c")))
    for name, flags in FLAGS[sysconfig.get_platform()].items():
        made = ["-O3", *flags, "-fPIC", "-shared", "-o", str(folder / f"{name}.so"), *sources, "-lm"]
        try:
            subprocess.run([*compiler, *made], check=True, capture_output=True, text=True)
        except (OSError, subprocess.CalledProcessError) as error:
            why = getattr(error, "stderr", None) or error
            warn(f"{FOLDER} is not compiled, Bertsmith will be slower: {why}")
            return False
    return True


def platform_of(folder: Path) -> str:
    """Where the libraries run: with that glibc or newer, or, for another C library, on machines like this."""
    named = b"".join(library.read_bytes() for library in folder.glob("*.so"))
    needed = [int(minor) for minor in re.findall(rb"\0GLIBC_2\.(\d+)", named)]
    machine = sysconfig.get_platform().removeprefix("linux-")
    return f"manylinux_2_{max(OLDEST_GLIBC, *needed)}_{machine}" if needed else f"linux_{machine}"
