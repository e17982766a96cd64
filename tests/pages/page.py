"""Does what a page of docs/ says: writes its files, runs its commands and its Python, in their order.

A block of a page is, by its first line:

    ```csv tickets.csv      a file of this name, which is written
    ```python               Python; all blocks of a page share their names
    ``` (no language)       commands: `bertsmith …` in this process, `bertsmith serve`, `mirror serve` and
                            `mirror guard` as servers of their own, any other line by bash
    ```text, ```json …      shown, and not executed

Every command has to end with status 0. Ports 8000, 8100 and 8200 are replaced by free ones.
"""

import re
import shlex
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from bertsmith.cli.main import main

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"^```(\w*)(?: (\S+))?\n(.*?)^```", re.DOTALL | re.MULTILINE)
SERVERS = ("bertsmith serve ", "bertsmith mirror serve ", "bertsmith mirror guard ")
BY_BASH = re.compile(r"[|<>&;$*`]")
START = 120.0  # seconds in which a server answers, on a busy machine


class Block(NamedTuple):
    """A block that was done: the `names` of the page's Python so far, and the `output` of bash."""

    language: str
    file: str
    text: str
    names: dict[str, Any]
    output: str = ""


class Page:
    """A page to be followed in the current folder; a context manager, which ends the page's servers.

    `instead` maps texts of the page to shorter ones, such as `hours=4` to `hours=0.001`. `until` is a heading
    at which to stop.
    """

    def __init__(self, name: str, instead: Mapping[str, str] | None = None) -> None:
        self.name = name
        self.text = (DOCS / name).read_text(encoding="utf-8")
        self.instead = {**ports(), **(instead or {})}
        self.servers: list[subprocess.Popen[str]] = []

    def __enter__(self) -> "Page":
        return self

    def __exit__(self, *_: object) -> None:
        for server in self.servers:
            server.terminate()
            server.communicate(timeout=START)

    def follow(self) -> Iterator[Block]:
        """Yields each block when it is done. Raises AssertionError with the command that failed."""
        names: dict[str, Any] = {}
        for language, file, block in BLOCK.findall(self.text):
            text, output = self.shortened(block), ""
            if file:
                Path(file).parent.mkdir(parents=True, exist_ok=True)
                Path(file).write_text(text, encoding="utf-8")
            elif language == "python":
                exec(compile(text, self.name, "exec"), names)
            elif not language:
                output = "".join(self.run(line) for line in command_lines(text))
            yield Block(language, file, text, names, output)

    def follow_all(self) -> dict[str, Any]:
        """Follows the page to its end; what its Python has defined."""
        names: dict[str, Any] = {}
        for block in self.follow():
            names = block.names
        return names

    def shortened(self, text: str) -> str:
        for words, shorter in self.instead.items():
            text = text.replace(words, shorter)
        return text

    def run(self, line: str) -> str:
        """What bash printed; what `main` prints goes to capsys."""
        if line.startswith(SERVERS):
            self.serve(line)
            return ""
        if line.startswith("bertsmith ") and not BY_BASH.search(line):
            assert main(shlex.split(line)[1:]) == 0, line
            return ""
        path = f'PATH="{Path(sys.executable).parent}:$PATH"; '
        done = subprocess.run(["bash", "-c", path + line], capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        return done.stdout

    def serve(self, line: str) -> None:
        """Starts a server on the page's port, and waits until it answers."""
        port = self.instead["8200" if "mirror guard" in line else "8100" if "mirror" in line else "8000"]
        command = [sys.executable, "-m", "bertsmith", *shlex.split(line.partition(" &")[0])[1:]]
        if "--port" not in command:
            command += ["--port", port]
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True)
        self.servers.append(server)
        end = time.monotonic() + START
        while time.monotonic() < end:
            assert server.poll() is None, f"{line} ended with {server.returncode}"
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/health/ready", timeout=5) as answer:
                    if answer.status == 200:
                        return
            except urllib.error.HTTPError as error:
                if error.code == 404:  # a relay, which has another path for it
                    return
            except OSError:
                pass
            time.sleep(0.05)
        raise AssertionError(f"{line} does not answer")


def ports() -> dict[str, str]:
    """A free port for each that the pages name."""
    free = []
    for _ in range(3):
        with socket.socket() as listening:
            listening.bind(("127.0.0.1", 0))
            free.append(str(listening.getsockname()[1]))
    return dict(zip(("8000", "8100", "8200"), free, strict=True))


def command_lines(text: str) -> Iterator[str]:
    """The commands of a block: continued lines joined, remarks (two blanks and #) cut off."""
    for line in re.sub(r" *\\\n *", " ", text).splitlines():
        if command := re.split(r"\s{2,}#|^#", line)[0].strip():
            yield command
