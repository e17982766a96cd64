"""Compiles what is in C when the package is installed or built, and leaves it out where that can't be done.

For x86-64 under Linux, by GCC, in tenths of a second: one library for AVX2 and one for AVX-512, of which
`bertsmith.model.attention_kernel` opens what the processor has.
"""

import os
import platform
import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE = Path("src/bertsmith/model/attention_kernel.c")
FLAGS = {"avx2": ["-march=haswell"], "avx512": ["-march=skylake-avx512", "-mprefer-vector-width=512"]}


class CustomBuildHook(BuildHookInterface[Any]):
    """Of the wheel, editable or not."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        compiler = shutil.which(os.environ.get("CC", "gcc"))
        if not (platform.system() == "Linux" and platform.machine() == "x86_64" and compiler):
            return self._left_out("GCC on x86-64 Linux is needed")
        source = Path(self.root) / SOURCE
        for name, flags in FLAGS.items():
            library = source.with_suffix(f".{name}.so")
            command = [
                compiler,
                "-O3",
                *flags,
                "-fPIC",
                "-shared",
                "-o",
                f"{library}.new",
                str(source),
                "-lm",
            ]
            found = subprocess.run(command, capture_output=True, text=True)
            if found.returncode:
                return self._left_out(found.stderr)
            Path(f"{library}.new").replace(library)  # a process may have the old one open
        build_data["artifacts"].append(str(SOURCE.with_suffix(".*.so")))
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
        return None

    def _left_out(self, why: str) -> None:
        self.app.display_warning(f"{SOURCE} is not compiled, attention will be slower: {why}")
