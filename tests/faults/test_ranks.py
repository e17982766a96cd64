"""The number of ranks changes who computes what, and nothing else: not the order, the masks, or the loss."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from nursery import finish
from recording import Recording, Step
from safetensors.torch import load_file
from tiny_run import NewRun

from bertsmith.training.log import RunLog

COUNTS = [1, 2, 4]
Recorded = Callable[[int], tuple[Path, list[Recording]]]


@pytest.fixture(scope="module")
def recorded(new_run: NewRun, tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """The folder of a run of so many ranks without dropout, and what each rank was given."""
    known: dict[int, tuple[Path, list[Recording]]] = {}

    def run(ranks: int) -> tuple[Path, list[Recording]]:
        if ranks not in known:
            # Clipping would hide a gradient of the wrong size.
            settings = new_run(steps=12, optimizer={"learning_rate": 1e-2, "warmup": 4, "clip": 1e6})
            settings["model"] |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
            folder = tmp_path_factory.mktemp("recordings")
            recordings = [Recording(folder / f"rank-{rank}") for rank in range(ranks)]
            finish(settings, *([recording] for recording in recordings), ranks=ranks)
            known[ranks] = Path(settings["out"]), recordings
        return known[ranks]

    return run


def test_every_rank_of_every_count_sees_the_same_batches_in_the_same_order(recorded: Recorded) -> None:
    batches = [
        [step["batch"] for step in recording.steps()] for ranks in COUNTS for recording in recorded(ranks)[1]
    ]
    assert len(batches) == sum(COUNTS)
    assert len(batches[0]) == 12
    assert all(others == batches[0] for others in batches)
    every_key = [key for batch in batches[0] for key in batch]
    assert len(set(every_key)) == len(every_key) > 12 * 16


@pytest.mark.parametrize("ranks", COUNTS)
def test_each_sequence_of_a_batch_is_given_to_one_rank(recorded: Recorded, ranks: int) -> None:
    for step in together(recorded(ranks)[1]):
        assert sorted(key for key, _ in step["given"]) == sorted(step["batch"])


@pytest.mark.parametrize("ranks", COUNTS[1:])
def test_masks_are_the_same_for_every_count(recorded: Recorded, ranks: int) -> None:
    alone, shared = together(recorded(1)[1]), together(recorded(ranks)[1])
    for one, many in zip(alone, shared, strict=True):
        assert dict(one["given"]) == dict(many["given"])
    assert any(label >= 0 for _, (_, labels) in alone[0]["given"] for label in labels)


@pytest.mark.parametrize("ranks", COUNTS[1:])
def test_gradients_are_the_same_for_every_count(recorded: Recorded, ranks: int) -> None:
    alone = load_file(recorded(1)[1][0].path.with_suffix(".gradients"))
    for recording in recorded(ranks)[1]:
        shared = load_file(recording.path.with_suffix(".gradients"))
        assert alone.keys() == shared.keys()
        for name, gradient in alone.items():
            torch.testing.assert_close(shared[name], gradient, rtol=0, atol=1e-6, msg=name)


@pytest.mark.parametrize("ranks", COUNTS[1:])
def test_losses_are_the_same_for_every_count(recorded: Recorded, ranks: int) -> None:
    alone, shared = (steps(recorded(count)[0]) for count in (1, ranks))
    for name in ("loss", "mlm_loss", "nsp_loss", "gradient_norm"):
        assert shared[0][name] == pytest.approx(alone[0][name], rel=1e-6)
        # Rounding grows from step to step, and Adam's first steps are little more than signs.
        assert [step[name] for step in shared] == pytest.approx([step[name] for step in alone], rel=1e-3)
    assert [step["tokens"] for step in shared] == [step["tokens"] for step in alone]


@pytest.mark.parametrize("ranks", COUNTS[1:])
def test_evaluation_is_the_same_for_every_count(recorded: Recorded, ranks: int) -> None:
    alone, shared = (evaluations(recorded(count)[0]) for count in (1, ranks))
    for one, many in zip(alone, shared, strict=True):
        assert many == pytest.approx(one, rel=1e-3, abs=5e-3)


def together(recordings: list[Recording]) -> list[Step]:
    """The ranks' recordings as one."""
    return [
        {"batch": ranks[0]["batch"], "given": [each for rank in ranks for each in rank["given"]]}
        for ranks in zip(*(recording.steps() for recording in recordings), strict=True)
    ]


def steps(out: Path) -> list[dict[str, float]]:
    return [record for record in RunLog.read(out) if record["kind"] == "step"]


def evaluations(out: Path) -> list[dict[str, float]]:
    return [
        {key: value for key, value in record.items() if key not in {"kind", "elapsed"}}
        for record in RunLog.read(out)
        if record["kind"] == "evaluation"
    ]
