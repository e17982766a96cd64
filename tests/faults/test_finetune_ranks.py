"""Fine-tuning by several processes, which divide the rows, or the weights too: the same losses, though an
epoch's last batch has too few rows.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from finetune_attempt import finish_finetuning, tiny_model, write_labelled
from safetensors.torch import load_file
from tiny_run import WORDS
from torch.testing import assert_close

from bertsmith.files import read_json
from bertsmith.training.log import RunLog

# 33 rows in batches of 8: the fifth batch of each epoch has one row.
RUN = (
    "epochs=2",
    "batch_size=8",
    "evaluations=2",
    "optimizer.learning_rate=0.005",
    "hardware.threads=1",
    "hardware.device=cpu",
    "micro_batch_tokens=40",
    "max_length=16",
)


# How many processes, and whether they divide the weights. Three leave some of them without a row.
WAYS = {"alone": (1, "none"), "two": (2, "none"), "three": (3, "none"), "three, sharded": (3, "full")}
OTHERS = list(WAYS)[1:]


Runs = Callable[[str], Path]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """The same training in one of the `WAYS`."""
    folder = tmp_path_factory.mktemp("finetuning-by-ranks")
    given: dict[str, Any] = {
        "task": "classification",
        "model": str(tiny_model(folder / "encoder", WORDS, dropout=0)),
        "train": str(write_labelled(folder / "train.jsonl", WORDS, 33)),
        "dev": str(write_labelled(folder / "dev.jsonl", WORDS[1:], 21)),
        "changes": list(RUN),
    }
    return lambda way: trained(folder / way, given, *WAYS[way])


@pytest.fixture(scope="module")
def retrieval_runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Of queries and documents, whose loss compares all rows of a batch: ranks run unequal numbers of forward
    passes before the first backward pass.
    """
    folder = tmp_path_factory.mktemp("retrieval-by-ranks")
    changes = [change for change in RUN if not change.startswith(("epochs", "evaluations"))]
    given: dict[str, Any] = {
        "task": "retrieval",
        "model": str(tiny_model(folder / "encoder", WORDS, dropout=0)),
        "train": str(write_pairs(folder / "train.jsonl", WORDS, 20)),
        "dev": str(write_pairs(folder / "dev.jsonl", WORDS[1:], 9)),
        "changes": [*changes, "epochs=1", "evaluations=1"],
    }
    return lambda way: trained(folder / way, given, *WAYS[way])


def trained(out: Path, given: dict[str, Any], ranks: int, shard: str) -> Path:
    """The run's folder; a run that stands is not repeated."""
    if not (out / "results.json").exists():
        changes = [*given["changes"], f"hardware.shard={shard}"]
        finish_finetuning(given | {"out": str(out), "changes": changes}, ranks=ranks)
    return out


@pytest.mark.parametrize("way", OTHERS)
def test_losses_and_gradients_are_those_of_one_process(runs: Runs, way: str) -> None:
    alone, shared = steps(runs("alone")), steps(runs(way))
    assert [step["step"] for step in shared] == list(range(1, 11))
    assert sum(step["loss"] for step in alone) > 1
    for name in ("loss", "gradient_norm", "tokens"):
        # Rounding grows from step to step, and Adam's first steps are little more than signs.
        assert [step[name] for step in shared] == pytest.approx([step[name] for step in alone], rel=1e-3)


@pytest.mark.parametrize("way", OTHERS)
def test_the_model_and_its_figures_are_those_of_one_process(runs: Runs, way: str) -> None:
    alone, shared = (load_file(runs(each) / "model" / "model.safetensors") for each in ("alone", way))
    assert alone.keys() == shared.keys()
    for name, tensor in alone.items():
        assert_close(shared[name], tensor, rtol=0, atol=2e-3, msg=name)
    one, many = (read_json(runs(each) / "results.json")["sides"]["dev"]["model"] for each in ("alone", way))
    assert many == pytest.approx(one, abs=1e-6)


def test_a_loss_over_the_whole_batch_is_that_of_one_process(retrieval_runs: Runs) -> None:
    alone, shared = (steps(retrieval_runs(way)) for way in ("alone", "three, sharded"))
    assert len(shared) == len(alone) == 3
    for name in ("loss", "gradient_norm"):
        assert [step[name] for step in shared] == pytest.approx([step[name] for step in alone], rel=1e-3)


def write_pairs(path: Path, words: list[str], count: int) -> Path:
    """Queries of two words and the documents that answer them, of one to nine words."""
    rows = [
        {
            "query": f"{words[number]} {words[-number]}",
            "positive": " ".join(words[number : 2 * number % 9 + number + 1]),
        }
        for number in range(1, count + 1)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def steps(run: Path) -> list[dict[str, float]]:
    return [record for record in RunLog.read(run / "restarts" / "1") if record["kind"] == "step"]
