"""Milliseconds of a mirror's own answers to a sentence, of `bertsmith mirror serve` in a process of its own.
Last answer (2026-11-26, Xeon): 3.9 ms asked at once, 7.4 after 20 ms of rest.

    python bench/mirror/mirror_latency.py [--calls 400] [--pauses 0 0.02] [--tiers encoder] [--epsilon 0.2]

First a mirror lives with banking77's texts until a student is live, as in mirror_life.py; that is kept under
runs/bench/mirror_latency/ for the next time. Then `bertsmith mirror serve` opens its store, and a client on
one kept connection asks for texts one after the other, with each of the --pauses between them: after some
milliseconds of rest a processor's caches are cold. Printed are p50 and p95 of what the student answered and
of what went on to the scripted LLM, which answers at once.
"""

import argparse
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(1, str(Path(__file__).parents[1]))  # harness.py, and what else all folders share

from harness import end_without, report
from mirror_life import (
    BLOCK,
    DATA,
    IN_STEP,
    PROMPTS,
    TESTS,
    Llm,
    RunningMirror,
    ask,
    banking77,
    connect,
    mode_of,
    running_mirror,
    upstream_of,
    wait_until,
)

sys.path.insert(0, str(TESTS))
from running_mirror import mirror_process

KEPT = Path("runs/bench/mirror_latency")
_WARM_UP = 50  # calls
_MOST = 4000  # calls before a student is live


def grow_up(mirror: RunningMirror, llm: Llm, texts: list[str]) -> int:
    """Calls until a student was live."""
    connection = connect(mirror.port)
    for number, text in enumerate(texts[:_MOST], 1):
        ask(connection, llm.asked, text, PROMPTS[0])
        wait_until(lambda: mirror.app.relay.audits.waiting == 0)
        if number % BLOCK == 0:
            connection.close()  # a training takes longer than a mirror keeps an idle one
            mirror.follow()
            if mode_of(mirror) == "live":
                return number
    sys.exit(f"No student was live after {_MOST} calls.")


def main() -> None:
    """Parses, grows up, measures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--calls", type=int, default=400)
    parser.add_argument("--pauses", nargs="+", type=float, default=[0.0, 0.02], help="seconds")
    parser.add_argument("--epsilon", type=float, default=0.2)
    parser.add_argument("--train-after", type=int, default=900)
    parser.add_argument("--tiers", default="encoder")
    options = parser.parse_args()
    if not DATA.is_dir():
        end_without("banking77")
    llm = Llm(banking77(), 0.05, 0)
    texts = [text for text, _ in llm.asked.rows]
    np.random.default_rng(0).shuffle(texts)
    folder = KEPT / f"{options.tiers}-{options.epsilon:g}-{options.train_after}"
    students = folder / "students"
    with upstream_of(llm.script) as upstream:
        if not (folder / "lived").exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            settings: dict[str, Any] = {
                "auto": True, "epsilon": options.epsilon, "train_after": options.train_after,
                "students": str(students), "train_options": ("--tiers", options.tiers),
            }  # fmt: skip
            with running_mirror(folder, upstream.url, IN_STEP, **settings) as mirror:
                (folder / "lived").write_text(str(grow_up(mirror, llm, texts)))
        lived = int((folder / "lived").read_text())
        serve = ("--upstream", upstream.url, "--store", folder / "mirror.sqlite", "--students", students)
        rows: list[dict[str, Any]] = []
        with mirror_process(*serve) as running:
            for pause in options.pauses:
                took = measure(running.port, llm, texts[lived:], options.calls, pause)
                rows += [
                    {
                        "pause": f"{pause * 1000:g} ms",
                        "who answered": who,
                        "calls": len(found),
                        "p50 ms": f"{np.median(found):.2f}",
                        "p95 ms": f"{np.percentile(found, 95):.2f}",
                    }
                    for who, found in took.items()
                ]
    report("mirror-latency", "A mirror's answers", rows)


def measure(port: int, llm: Llm, texts: list[str], calls: int, pause: float) -> dict[str, list[float]]:
    """Milliseconds by who answered, of calls after the first ones."""
    took: dict[str, list[float]] = {"the student": [], "the scripted LLM": []}
    connection = connect(port)
    for number, text in enumerate(texts[: calls + _WARM_UP]):
        answer, milliseconds = ask(connection, llm.asked, text, PROMPTS[0])
        is_own = answer.headers["x-bertsmith"].startswith("answered")
        if number >= _WARM_UP:
            took["the student" if is_own else "the scripted LLM"].append(milliseconds)
        time.sleep(pause)
    return {who: found for who, found in took.items() if found}


if __name__ == "__main__":
    main()
