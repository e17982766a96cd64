"""Fine-tuning by several processes, which divide the rows, or the weights too: the same losses, though an
epoch's last batch has too few rows.
"""

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from finetune_attempt import finish_finetuning, tiny_model, write_labelled
from safetensors.torch import load_file
from tiny_run import WORDS
from torch.testing import assert_close

from bertsmith.files import read_json
from bertsmith.tasks.finetuning import FinetuningObjective
from bertsmith.training.finetuning.task_run import BestWeights
from bertsmith.training.log import RunLog

RUN = (
    "batch_size=8",
    "epochs=2",
    "evaluations=2",
    "optimizer.learning_rate=0.005",
    "hardware.threads=1",
    "hardware.device=cpu",
    "hardware.precision=float32",  # processes add in another order, which bfloat16 shows
    "micro_batch_tokens=40",
    "max_length=16",
    "reinit_layers=1",  # else the head begins with what there is to learn here
)
# How many processes, and whether they divide the weights. Three leave some of them without a row.
WAYS = {"alone": (1, "none"), "two": (2, "none"), "three": (3, "none"), "three, sharded": (3, "full")}
OTHERS = list(WAYS)[1:]
# The fifth batch of each epoch has one of 33 rows; the third has two of 18. Retrieval compares all rows of a
# batch: gradients are cached, and processes run unequal numbers of forward passes before the first backward.
STEPS = {"classification": 10, "retrieval": 6}

Runs = Callable[[str, str], Path]
Given = Callable[..., dict[str, Any]]
each_task = pytest.mark.parametrize("task", STEPS)
each_way = pytest.mark.parametrize("way", OTHERS)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """The folder of the same training of a task in one of the `WAYS`; none is run twice."""
    folder = tmp_path_factory.mktemp("finetuning-by-ranks")
    model = tiny_model(folder / "encoder", WORDS, dropout=0)
    rows = {"classification": (write_labelled, 33, 21), "retrieval": (write_triplets, 18, 9)}

    def trained(task: str, way: str) -> Path:
        out, (ranks, shard) = folder / task / way, WAYS[way]
        if not (out / "results.json").exists():
            write, train, dev = rows[task]
            out.parent.mkdir(exist_ok=True)
            given: dict[str, Any] = {
                "task": task,
                "model": str(model),
                "train": str(write(out.parent / "train.jsonl", WORDS, train)),
                "dev": str(write(out.parent / "dev.jsonl", WORDS[1:], dev)),
                "out": str(out),
                "changes": [*RUN, f"hardware.shard={shard}"],
            }
            finish_finetuning(given, ranks=ranks)
        return out

    return trained


@pytest.fixture
def labelled(tmp_path: Path) -> Given:
    """A run of classification over few rows in the folder of that name, with more settings."""
    model = tiny_model(tmp_path / "encoder", WORDS, dropout=0)
    files = {name: write_labelled(tmp_path / f"{name}.jsonl", WORDS, 16) for name in ("train", "dev")}

    def given(out: str, *more: str) -> dict[str, Any]:
        paths = {"model": model, **files, "out": tmp_path / out}
        named = {name: str(path) for name, path in paths.items()}
        return {"task": "classification", "changes": ["batch_size=8", *RUN[3:], *more], **named}

    return given


@each_task
@each_way
def test_losses_and_gradients_are_those_of_one_process(runs: Runs, task: str, way: str) -> None:
    alone, shared = steps(runs(task, "alone")), steps(runs(task, way))
    assert [step["step"] for step in shared] == list(range(1, STEPS[task] + 1))
    assert all(step["loss"] > 0.1 and step["gradient_norm"] > 0.1 for step in alone)
    for name in ("loss", "gradient_norm", "tokens"):
        # Rounding grows from step to step, and Adam's first steps are little more than signs.
        assert [step[name] for step in shared] == pytest.approx([step[name] for step in alone], rel=1e-3)


@each_task
@each_way
def test_the_model_and_its_figures_are_those_of_one_process(runs: Runs, task: str, way: str) -> None:
    alone, shared = (load_file(runs(task, each) / "model" / "model.safetensors") for each in ("alone", way))
    assert alone.keys() == shared.keys()
    for name, tensor in alone.items():
        assert_close(shared[name], tensor, rtol=0, atol=2e-3, msg=name)
    found = (read_json(runs(task, each) / "results.json") for each in ("alone", way))
    one, many = (results["evaluations"]["dev"]["model"] for results in found)
    assert many == pytest.approx(one, abs=1e-6)


@pytest.mark.slow
def test_the_best_weights_are_read_when_they_stand(labelled: Given) -> None:
    """Whoever did not write them would be there first. The second start finds the restart finished."""
    given = labelled("run", "epochs=1")
    best = Path(given["out"]) / "restarts" / "1" / "best" / "history.json"
    finish_finetuning(given, SlowBest(), ranks=2)
    written = best.read_bytes()
    finish_finetuning(labelled("run", "epochs=1"), SlowBest(), ranks=2)
    assert best.read_bytes() == written


def test_all_ranks_stop_by_the_score_of_the_first(labelled: Given) -> None:
    """One alone would leave the others waiting for its gradients."""
    given = labelled("run", "epochs=4", "patience=1")
    finish_finetuning(given, ScoreOfOnesOwn(), ranks=2)
    history = read_json(Path(given["out"]) / "restarts" / "1" / "best" / "history.json")["history"]
    assert [score for _, score in history] == [0.1, 0.2, 0.3, 0.4]


@dataclass(frozen=True)
class ScoreOfOnesOwn:
    """It rises from evaluation to evaluation on the first rank, and falls on the others."""

    def install(self) -> None:
        scores = iter([0.1, 0.2, 0.3, 0.4] if os.environ["RANK"] == "0" else [0.4, 0.3, 0.2, 0.1])
        FinetuningObjective.evaluate = lambda *_: {"accuracy": next(scores)}


@dataclass(frozen=True)
class SlowBest:
    """Writing the best weights takes a second."""

    def install(self) -> None:
        write = BestWeights._write_weights

        def slowly(*arguments: Any) -> None:
            time.sleep(1)
            write(*arguments)

        BestWeights._write_weights = slowly


def write_triplets(path: Path, words: list[str], count: int) -> Path:
    """A query, a document of one to seven words and a negative, no two rows alike."""
    rows = [
        {
            "query": f"{words[number]} {words[-number]}",
            "positive": " ".join(words[number : number + 1 + number % 7]),
            "negative": " ".join(words[2 * number : 2 * number + 2]),
        }
        for number in range(1, count + 1)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def steps(run: Path) -> list[dict[str, float]]:
    return [record for record in RunLog.read(run / "restarts" / "1") if record["kind"] == "step"]
