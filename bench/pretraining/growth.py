"""How time and memory grow with a step's tokens, sequence length, width, ranks, and the size of a corpus.
Last answer (2026-11-24, Zen 4): a step with its tokens to the power of 0.90, with width 1.35; memory of a
corpus flat.

    python bench/pretraining/growth.py [--axes tokens length width ranks corpus] [--rounds 5]
                                       [--megabytes 50 100 ...]

Each axis has a handful of sizes; time and memory are taken to be a power of the size, whose exponent is
fitted by least squares on logarithms, over all sizes and between the last two (constant costs hide less
there). 1 is proportional, 0 flat. The targets: nothing above 1 but width, whose matrix products grow with its
square; memory of the corpus and of the vocabulary flat between 50 MB and 1 GB of text.

Steps are those of pre-training by the real loop, 4 layers of 256, pairs of 128 tokens, 30,522 made-up pieces,
unless that is what grows: 1,024 to 16,384 tokens of 128 a sequence; 8,192 tokens in sequences of 32 to 512;
2,048 tokens at widths of 128 to 1,024; 4,096 tokens divided between 1 to 4 processes, which share the cores.
Every size is in processes of its own, asked in turn, after a round that isn't counted; seconds a step are
medians. Memory of a step is the peak less what the libraries take before there is a model, all ranks
together. The corpus is what corpora.py finds, copied with variation (varied_text.py) to each size: `corpus
build`, `tokenizer train` and `corpus tokenize`, once each, with the peak of a command and its workers, in
which the libraries are.
"""

import argparse
import socket
import statistics
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

sys.path.insert(1, str(Path(__file__).parents[1]))  # harness.py, and what else all folders share
sys.path.insert(2, str(Path(__file__).parents[1] / "text"))  # corpus.py

import corpora
import growth_plot
from corpus import measure
from harness import Worker, interleave, report, result_path, serve

SIZES = {
    "tokens": (1024, 2048, 4096, 8192, 16_384),
    "length": (32, 64, 128, 256, 512),
    "width": (128, 256, 512, 1024),
    "ranks": (1, 2, 4),
}
_QUICK = {"tokens": (64, 128), "length": (16, 32), "width": (64, 128), "ranks": (1, 2)}
_NAMES = {
    "tokens": "tokens of a step",
    "length": "tokens of a sequence",
    "width": "hidden size",
    "ranks": "processes",
}
_MEGABYTES = (50, 100, 250, 500, 1000)
_FILE = 10  # megabytes


class Growth(NamedTuple):
    """What was measured along one axis: sizes, and at each the seconds and the bytes."""

    what: str
    over: str
    sizes: Sequence[float]
    seconds: Sequence[float]
    memory: Sequence[float]


def main() -> None:
    """Parses, and is either the parent or a worker."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    axes = [*SIZES, "corpus"]
    parser.add_argument("--axes", nargs="+", choices=axes, default=axes)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=3, help="in a round")
    parser.add_argument("--corpus", help="a corpus, to be copied")
    parser.add_argument("--megabytes", nargs="+", type=float, default=_MEGABYTES)
    parser.add_argument("--quick", action="store_true", help="tiny sizes, one step; nothing is written")
    parser.add_argument("--worker", choices=tuple(SIZES))
    parser.add_argument("--as", nargs=4, type=int, dest="place", metavar=("SIZE", "RANK", "RANKS", "PORT"))
    options = parser.parse_args()
    if options.worker:
        _serve_steps(options)
        return
    if options.quick:
        options.rounds = options.steps = 1
    found: list[Growth] = []
    for axis in options.axes:
        found += _measured(axis, options)
        _write(found, _variant(options.axes), write=not options.quick)


def _variant(axes: Sequence[str]) -> str:
    """In words: the corpus takes hours, and so is often measured alone."""
    return "corpus" if axes == ["corpus"] else "" if "corpus" in axes else "step"


def _write(found: Sequence[Growth], variant: str, *, write: bool) -> None:
    """What is known so far: the axes take hours."""
    notes = [" ".join(part.split()) for part in (__doc__ or "").split("\n\n")[2:]]
    if write:
        picture = result_path("growth", ".svg", variant)
        picture.write_text(growth_plot.draw(found), encoding="utf-8")
        notes.insert(0, f"![the same as curves]({picture.name})")
    report("growth", "How time and memory grow", map(_row, found), notes, variant=variant, write=write)


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """k of the nearest a · size^k, by least squares on logarithms."""
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def _row(growth: Growth) -> dict[str, Any]:
    sizes = growth.sizes
    columns = {"measured": growth.what, "grows": f"{growth.over}, {sizes[0]:,g} – {sizes[-1]:,g}"}
    for name, values, text in (
        ("seconds", growth.seconds, "{:.3g}"),
        ("MB", [bytes_ / 1e6 for bytes_ in growth.memory], "{:,.0f}"),
    ):
        columns[name] = ", ".join(text.format(value) for value in values)
        columns[f"{name}: exponent"] = f"{exponent(sizes, values):.2f}"
        columns[f"{name}: of the last two"] = f"{exponent(sizes[-2:], values[-2:]):.2f}"
    return columns


def _measured(axis: str, options: argparse.Namespace) -> list[Growth]:
    return _of_text(options) if axis == "corpus" else [_of_steps(axis, options)]


# -- steps ---------------------------------------------------------------------------------------------------


class _Together:
    """The processes of one training, one a rank, which have to be asked at once."""

    def __init__(self, axis: str, size: int, small: bool) -> None:
        ranks = size if axis == "ranks" else 1
        port, quick = _free_port(), ["--quick"] if small else []
        places = [map(str, (size, rank, ranks, port)) for rank in range(ranks)]
        self.workers = [Worker(__file__, axis, *quick, "--as", *place) for place in places]

    def ask(self, **request: Any) -> dict[str, Any]:
        """The slowest one's time, and the memory of all."""
        with ThreadPoolExecutor(len(self.workers)) as threads:
            answers = list(threads.map(lambda worker: worker.ask(**request), self.workers))
        return {
            "seconds": max(answer["seconds"] for answer in answers),
            "memory": sum(answer["memory"] for answer in answers),
        }

    def close(self) -> None:
        """Ends them, together too."""
        with ThreadPoolExecutor(len(self.workers)) as threads:
            list(threads.map(Worker.close, self.workers))


def _of_steps(axis: str, options: argparse.Namespace) -> Growth:
    sizes = (_QUICK if options.quick else SIZES)[axis]
    sides: dict[str, Any] = {str(size): _Together(axis, size, options.quick) for size in sizes}
    answers = interleave(sides, options.rounds, steps=options.steps)
    for side in sides.values():
        side.close()
    seconds = [statistics.median(each["seconds"] for each in answers[str(size)]) for size in sizes]
    memory = [max(each["memory"] for each in answers[str(size)]) for size in sizes]
    return Growth("step", _NAMES[axis], sizes, [each / options.steps for each in seconds], memory)


def _serve_steps(options: argparse.Namespace) -> None:
    from growing_step import Steps, shape

    size, rank, ranks, port = options.place
    steps = Steps(shape(options.worker, size, small=options.quick), rank, ranks, port)
    serve(steps)
    steps.close()


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


# -- text ----------------------------------------------------------------------------------------------------


def _of_text(options: argparse.Namespace) -> list[Growth]:
    """Of the three commands between text and tokens."""
    from bertsmith.text.corpus.corpus import Corpus
    from varied_text import write_parts

    sizes = (0.2, 0.4) if options.quick else sorted(options.megabytes)
    corpus = Corpus.open(options.corpus or corpora.find_corpus())
    with tempfile.TemporaryDirectory() as folder:
        part = min(_FILE, sizes[0])
        files = write_parts(corpus, Path(folder), int(sizes[-1] * 1e6), int(part * 1e6))
        found = [_commands(files[: round(size / part)]) for size in sizes]
    return [
        Growth(command, "MB of text", sizes, *zip(*(each[command] for each in found), strict=True))
        for command in found[0]
    ]


def _commands(files: Sequence[Path]) -> dict[str, tuple[float, int]]:
    """Seconds and peak bytes of each."""
    with tempfile.TemporaryDirectory() as folder:
        corpus, tokenizer, store = (f"{folder}/{name}" for name in ("corpus", "tokenizer", "store"))
        return {
            "corpus build": measure("corpus build", *map(str, files), "--out", corpus),
            "tokenizer train": measure("tokenizer train", corpus, "--out", tokenizer),
            "corpus tokenize": measure("corpus tokenize", corpus, tokenizer, "--out", store),
        }


if __name__ == "__main__":
    main()
