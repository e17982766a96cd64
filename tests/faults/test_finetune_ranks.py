"""Fine-tuning by several processes: the same losses, though an epoch's last batch has too few rows."""

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


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """The same training by one, two and three processes."""
    folder = tmp_path_factory.mktemp("finetuning-by-ranks")
    given: dict[str, Any] = {
        "task": "classification",
        "model": str(tiny_model(folder / "encoder", WORDS, dropout=0)),
        "train": str(write_labelled(folder / "train.jsonl", WORDS, 33)),
        "dev": str(write_labelled(folder / "dev.jsonl", WORDS[1:], 21)),
        "changes": list(RUN),
    }
    made = {ranks: folder / f"{ranks}-ranks" for ranks in (1, 2, 3)}
    for ranks, out in made.items():
        finish_finetuning(given | {"out": str(out)}, ranks=ranks)
    return made


@pytest.mark.parametrize("ranks", [2, 3])
def test_losses_and_gradients_are_those_of_one_process(runs: dict[int, Path], ranks: int) -> None:
    alone, shared = steps(runs[1]), steps(runs[ranks])
    assert [step["step"] for step in shared] == list(range(1, 11))
    assert sum(step["loss"] for step in alone) > 1
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


def steps(run: Path) -> list[dict[str, float]]:
    return [record for record in RunLog.read(run / "restarts" / "1") if record["kind"] == "step"]
