"""A task made from a corpus itself: which source does this text come from? The quickstart fine-tunes on it.

Labels cost nothing here, so anyone can see on text of their own what pre-training is worth: the same head on
the same few rows, from a pre-trained start and from a random one, beside TF-IDF.
"""

import hashlib
import json
from collections import defaultdict
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from bertsmith.files import atomic_folder, read_json
from bertsmith.progress import Progress
from bertsmith.tasks.pretraining.pretraining import PretrainingModel
from bertsmith.tasks.pretraining.pretraining_checkpoint import load_pretraining_model, save_pretraining_model
from bertsmith.text.corpus.corpus import Corpus
from bertsmith.text.files.jsonl import write_jsonl
from bertsmith.text.tokens.tokenizer import Tokenizer
from bertsmith.training.finetuning.finetune import finetune

CLASSES = 8
ROWS = {"train": 64, "dev": 32, "test": 32}  # a class
_FEWEST_WORDS, _MOST_WORDS = 20, 60


@dataclass(frozen=True)
class Start:
    """A model to begin with, and how long it is trained: a larger one needs fewer passes."""

    name: str
    model: str
    settings: tuple[str, ...]


def write_origin_task(corpus: Corpus, folder: Path) -> int:
    """Writes train.jsonl, dev.jsonl and test.jsonl of texts from the sources that have most, unless they are
    there; returns how many sources.

    Which texts, and in which file, is decided by a hash of their names: stable when the corpus grows. With
    fewer than two sources of enough text nothing is written, and 0 returned.
    """
    if (folder / "test.jsonl").exists():
        lines = (folder / "test.jsonl").read_text(encoding="utf-8").splitlines()
        return len({json.loads(line)["label"] for line in lines})
    texts: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for document in corpus.documents("train"):
        words = " ".join(document.sentences).split()
        if len(words) >= _FEWEST_WORDS:
            order = hashlib.blake2b(document.id.encode(), digest_size=8).hexdigest()
            texts[document.source].append((order, " ".join(words[:_MOST_WORDS])))
    most = sorted((source for source in texts), key=lambda source: (-len(texts[source]), source))
    chosen = [source for source in most[:CLASSES] if len(texts[source]) >= sum(ROWS.values())]
    if len(chosen) < 2:
        return 0
    rows = {source: iter(sorted(texts[source])) for source in chosen}
    with atomic_folder(folder, overwrite=True) as partial:
        for name, count in ROWS.items():
            records = [
                {"text": text, "label": source}
                for source in chosen
                for _, text in islice(rows[source], count)
            ]
            write_jsonl(records, partial / f"{name}.jsonl")
    return len(chosen)


def write_random_start(model: Path, folder: Path) -> None:
    """The same shape and vocabulary as `model`, with weights that have seen no text; unless it is there."""
    if folder.exists():
        return
    trained, _ = load_pretraining_model(model)
    torch.manual_seed(0)
    fresh = PretrainingModel(trained.config, trained.next_sentence is not None)
    save_pretraining_model(folder, fresh, Tokenizer.load(model), {"weights": "random"})


def compare_starts(
    rows: Path, starts: list[Start], seeds: int, out: Path, progress: Progress | None = None
) -> dict[str, list[dict[str, Any]]]:
    """Fine-tunes every start on the same rows, by so many seeds: results.json of each, made once.

    Each seed keeps the epoch that is best on dev; test has no part in it.
    """
    runs = [(start, seed) for start in starts for seed in range(seeds)]
    found: dict[str, list[dict[str, Any]]] = {start.name: [] for start in starts}
    for number, (start, seed) in enumerate(runs):
        if progress is not None:
            progress(number, len(runs), "models")
        run = out / start.name.replace(" ", "-") / f"seed-{seed}"
        if not (run / "results.json").exists():
            finetune(
                "classification",
                f"seed={seed}",
                *start.settings,
                model=start.model,
                train=str(rows / "train.jsonl"),
                dev=str(rows / "dev.jsonl"),
                test=str(rows / "test.jsonl"),
                out=str(run),
                resume=True,
            )
        found[start.name].append(read_json(run / "results.json"))
    return found
