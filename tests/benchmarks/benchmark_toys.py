"""Benchmarks of seconds: a tiny random BERT, official layouts with a few rows, a collection in BEIR's."""

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from random_encoder import random_encoder

WORDS = [first + last for first in "bdfg" for last in ("ano", "elo", "iru")]
GOOD, BAD = "happy", "awful"
QUICK = ("epochs=2", "batch_size=8", "max_length=32", "dropout=0", "hardware.threads=1")
QUICK = (*QUICK, "optimizer.learning_rate=0.01")


def tiny_encoder(folder: Path) -> Path:
    """Of random weights."""
    return random_encoder(folder, [*WORDS, GOOD, BAD, "##s", "."])


def sentence(draw: np.random.Generator, good: bool) -> str:
    words = [str(word) for word in draw.choice(WORDS, draw.integers(2, 6))]
    words.insert(int(draw.integers(0, len(words) + 1)), GOOD if good else BAD)
    return " ".join(words)


Row = Callable[[int, str, str, int], Sequence[object]]  # (number, text, pair, which class) → cells


def _lines(path: Path, header: str | None, row: Row, rows: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    lines = [] if header is None else [header.replace(" ", "\t").replace("~", " ")]
    for number in range(rows):
        good = bool(draw.integers(0, 2))
        cells = row(number, sentence(draw, good), sentence(draw, good), int(good))
        lines.append("\t".join(map(str, cells)))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def write_sst2(folder: Path, rows: int = 48, test: int = 5) -> None:
    """As glue_data/SST-2 has it."""
    for seed, (part, count) in enumerate((("train", rows), ("dev", rows))):
        _lines(folder / f"SST-2/{part}.tsv", "sentence label", lambda n, a, b, c: (a, c), count, seed)
    _lines(folder / "SST-2/test.tsv", "index sentence", lambda n, a, b, c: (n, a), test, 9)


def write_mrpc(folder: Path, rows: int = 48) -> None:
    """With a byte-order mark and a labelled test, as the download script leaves it."""
    header = "Quality #1~ID #2~ID #1~String #2~String"
    for seed, part in enumerate(("train", "dev", "msr-para-test")):
        path = folder / f"MRPC/{part}.tsv"
        _lines(path, header, lambda n, a, b, c: (c, n, n, f'"{a}', b), rows, seed)
        path.write_text("\ufeff" + path.read_text(encoding="utf-8"), encoding="utf-8")


def write_stsb(folder: Path, rows: int = 48) -> None:
    """As glue_data/STS-B has it: ten columns."""
    columns = "index genre filename year old_index source1 source2 sentence1 sentence2"
    for seed, part in enumerate(("train", "dev", "test")):
        header = columns if part == "test" else f"{columns} score"

        def row(n: int, a: str, b: str, c: int, part: str = part) -> Sequence[object]:
            cells = (n, "g", "f", 2012, n, "s", "s", a, b)
            return cells if part == "test" else (*cells, 4.5 * c + (n % 5) / 10)

        _lines(folder / f"STS-B/{part}.tsv", header, row, rows if part != "test" else 6, seed)


def write_pairs(
    folder: Path, stem: str, header: str, labels: Sequence[str] | None, rows: int, seed: int
) -> None:
    """A row: its number, two texts, and a label where there are any; headers' underscores stay."""
    draw = np.random.default_rng(seed)
    lines = [header.replace(" ", "\t")]
    for number in range(rows):
        place = number % len(labels) if labels else 0
        label = [labels[place]] if labels else []
        lines.append("\t".join([str(number), sentence(draw, bool(place)), sentence(draw, True), *label]))
    (folder / f"{stem}.tsv").parent.mkdir(parents=True, exist_ok=True)
    (folder / f"{stem}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_beir(
    folder: Path,
    documents: Iterable[tuple[str, str]],
    queries: Iterable[tuple[str, str]],
    judged: Iterable[tuple[str, str, int]],
    split: str = "test",
) -> Path:
    """corpus.jsonl, queries.jsonl, qrels/SPLIT.tsv."""
    (folder / "qrels").mkdir(parents=True)
    for name, rows in (("corpus", documents), ("queries", queries)):
        lines = [json.dumps({"_id": id, "title": "", "text": text}) for id, text in rows]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    lines = ["query-id\tcorpus-id\tscore", *("\t".join(map(str, each)) for each in judged)]
    (folder / f"qrels/{split}.tsv").write_text("\n".join(lines) + "\n")
    return folder
