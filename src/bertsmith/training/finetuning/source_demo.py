"""Makes a classification task from a corpus: which source does a text come from? The quickstart fine-tunes on
it.

Its labels cost nothing, so that anyone can see on their own text what pre-training is worth: the same head is
trained on the same few rows from a pre-trained model and from a random one, beside TF-IDF.
"""

import hashlib
import json
from collections import defaultdict
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from bertsmith.files import atomic_folder, read_json, write_jsonl
from bertsmith.progress import Progress
from bertsmith.tasks.pretraining.pretraining import PretrainingModel
from bertsmith.tasks.pretraining.pretraining_checkpoint import load_pretraining_model, save_pretraining_model
from bertsmith.text.corpus.corpus import Corpus
from bertsmith.text.tokens.tokenizer import Tokenizer
from bertsmith.training.finetuning.finetune import finetune

MAX_CLASSES = 8
ROWS = {"train": 64, "dev": 32, "test": 32}  # of each class, in each file
_FEWEST_WORDS, _MOST_WORDS = 20, 60


@dataclass(frozen=True)
class InitialModel:
    """A model to fine-tune: its name in the results, its path or alias (such as minilm), and the settings of
    the fine-tuning, as `dotted.key=value`. A larger model needs fewer epochs.
    """

    name: str
    model: str
    settings: tuple[str, ...]


def write_source_task(corpus: Corpus, folder: Path) -> int:
    """Writes train.jsonl, dev.jsonl and test.jsonl with texts from the largest sources, unless the files are
    there already. Returns the number of sources, which are the labels.

    A hash of the documents' ids decides which texts are taken and for which file, so that few change when the
    corpus grows. If fewer than two sources have enough texts, nothing is written and 0 is returned.
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
    largest = sorted(texts, key=lambda source: (-len(texts[source]), source))[:MAX_CLASSES]
    chosen = [source for source in largest if len(texts[source]) >= sum(ROWS.values())]
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


def write_random_model(model: Path, folder: Path) -> None:
    """Writes a model with the architecture and vocabulary of `model`, but random weights, to `folder`, unless
    that exists.
    """
    if folder.exists():
        return
    trained, _ = load_pretraining_model(model)
    torch.manual_seed(0)
    fresh = PretrainingModel(trained.config, trained.next_sentence is not None)
    save_pretraining_model(folder, fresh, Tokenizer.load(model), {"weights": "random"})


def compare_initial_models(
    data_folder: Path,
    initial_models: list[InitialModel],
    seeds: int,
    out: Path,
    progress: Progress | None = None,
) -> dict[str, list[dict[str, Any]]]:
    """Fine-tunes each initial model on the files of `write_source_task` in `data_folder`, with the seeds 0 to
    `seeds` - 1. Returns the content of each seed's results.json by the model's name. Runs in `out` that are
    finished aren't repeated.

    Each run keeps the weights of the epoch that is best on dev. Test isn't used to choose.
    """
    runs = [(initial, seed) for initial in initial_models for seed in range(seeds)]
    results: dict[str, list[dict[str, Any]]] = {initial.name: [] for initial in initial_models}
    for number, (initial, seed) in enumerate(runs):
        if progress is not None:
            progress(number, len(runs), "models")
        run = out / initial.name.replace(" ", "-") / f"seed-{seed}"
        if not (run / "results.json").exists():
            finetune(
                "classification",
                f"seed={seed}",
                *initial.settings,
                model=initial.model,
                train=str(data_folder / "train.jsonl"),
                dev=str(data_folder / "dev.jsonl"),
                test=str(data_folder / "test.jsonl"),
                out=str(run),
                resume=True,
            )
        results[initial.name].append(read_json(run / "results.json"))
    return results
