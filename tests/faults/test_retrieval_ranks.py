"""A dual encoder trained by several processes: the negatives are those of all of them, as in one process."""

import json
from pathlib import Path
from typing import Any

import pytest
from finetune_attempt import finish_finetuning, tiny_model
from safetensors.torch import load_file
from tiny_run import WORDS
from torch.testing import assert_close

from bertsmith.files import read_json
from bertsmith.training.log import RunLog

# 18 rows in batches of 8: the third batch of each epoch has two rows, and one of three processes none. Each
# batch is several micro-batches a process, so gradients are cached.
RUN = (
    "epochs=2",
    "batch_size=8",
    "evaluations=1",
    "optimizer.learning_rate=0.005",
    "hardware.threads=1",
    "hardware.device=cpu",
    "micro_batch_tokens=40",
    "max_length=16",
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """The same training by one, two and three processes."""
    folder = tmp_path_factory.mktemp("retrieval-by-processes")
    given: dict[str, Any] = {
        "task": "retrieval",
        "model": str(tiny_model(folder / "encoder", WORDS, dropout=0)),
        "train": str(write_rows(folder / "train.jsonl", WORDS, 18)),
        "dev": str(write_rows(folder / "dev.jsonl", WORDS[1:], 9)),
        "changes": list(RUN),
    }
    made = {ranks: folder / f"{ranks}-ranks" for ranks in (1, 2, 3)}
    for ranks, out in made.items():
        finish_finetuning(given | {"out": str(out)}, ranks=ranks)
    return made


@pytest.mark.parametrize("ranks", [2, 3])
def test_losses_and_gradients_are_those_of_one_process(runs: dict[int, Path], ranks: int) -> None:
    alone, shared = steps(runs[1]), steps(runs[ranks])
    assert [step["step"] for step in shared] == [1, 2, 3, 4, 5, 6]
    assert all(step["loss"] > 0.1 and step["gradient_norm"] > 0.1 for step in alone)
    for name in ("loss", "gradient_norm", "tokens"):
        # Rounding grows from step to step, and Adam's first steps are little more than signs.
        assert [step[name] for step in shared] == pytest.approx([step[name] for step in alone], rel=1e-3)


@pytest.mark.parametrize("ranks", [2, 3])
def test_the_model_and_its_figures_are_those_of_one_process(runs: dict[int, Path], ranks: int) -> None:
    alone, shared = (load_file(runs[count] / "model" / "model.safetensors") for count in (1, ranks))
    assert alone.keys() == shared.keys()
    for name, tensor in alone.items():
        assert_close(shared[name], tensor, rtol=0, atol=2e-3, msg=name)
    one, many = (read_json(runs[count] / "results.json")["sides"]["dev"]["model"] for count in (1, ranks))
    assert many == pytest.approx(one, abs=1e-6)


def write_rows(path: Path, words: list[str], count: int) -> Path:
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
