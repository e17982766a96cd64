"""Memory is bounded: the size of the source does not show in it."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

BUILD = """
import sys
from pathlib import Path
from bertsmith.text.corpus.building import build_corpus

def peak():
    return 1024 * int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])

if __name__ == "__main__":
    corpus = build_corpus([sys.argv[1]], Path(sys.argv[2]), workers=1)
    for _ in corpus.documents("train"):
        pass
    print(corpus.manifest.kept.bytes, peak())
"""


def text_of(megabytes: int, blank_lines: bool) -> str:
    """Distinct documents of about 1 kB; without blank lines one endless document."""
    random = np.random.default_rng(0)
    words = np.array([f"word{n}" for n in range(10_000)])
    documents = []
    for _ in range(megabytes * 1000):
        picked = random.choice(words, 112)
        documents.append(" ".join(picked[:56]) + ".\n" + " ".join(picked[56:]) + ".\n")
    return ("\n" if blank_lines else "").join(documents)


def build(tmp_path: Path, text: str, name: str) -> tuple[int, int]:
    """(bytes of text kept, peak resident bytes), in a process of its own."""
    (tmp_path / "build.py").write_text(BUILD)
    (tmp_path / f"{name}.txt").write_text(text)
    command = [sys.executable, "build.py", f"{name}.txt", name]
    printed = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=120
    ).stdout
    kept, peak = map(int, printed.split())
    return kept, peak


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak from Linux's /proc")
@pytest.mark.slow
@pytest.mark.parametrize("blank_lines", [True, False])
def test_fifty_megabytes_take_no_more_memory_than_ten(tmp_path: Path, blank_lines: bool) -> None:
    text = text_of(50, blank_lines)
    small_kept, small = build(tmp_path, text[: len(text) // 5], "small")
    large_kept, large = build(tmp_path, text, "large")
    assert large_kept - small_kept > 39e6
    # Held as one string the difference would be 40 MB, as a list of sentences 70.
    # What is left is the memory that allocators keep back: 10 to 25 MB, differing from run to run.
    assert large - small < 36e6
    assert large < 300e6
