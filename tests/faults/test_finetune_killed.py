"""A fine-tuning run killed wherever, and resumed until it ends: every bit is as without it."""

import random
import time
from pathlib import Path
from signal import SIGINT, SIGKILL
from typing import Any

import pytest
from finetune_attempt import (
    FinetuneAttempt,
    NewFinetuning,
    finetune_evidence,
    finish_finetuning,
    tiny_model,
    write_labelled,
)
from finetune_places import FINETUNE_PLACES, FinetuneFault
from nursery import Settings
from tiny_run import WORDS

# At which arrival at a place the first process of the run dies, and at which the second. A restart has 18
# steps and 6 evaluations; there are two.
DEATHS = {
    "before a micro-batch": (14, 9),
    "after the weights changed": (2, 20),
    "during evaluation": (2, 6),
    "before an evaluation counts": (1, 7),
    "after an evaluation counts": (3, 5),
    "in the middle of the best weights": (1, 1),
    "between the best weights and their history": (3, 5),
    "in the middle of a log line": (13, 9),
    "in the middle of a checkpoint": (3, 4),
    "in the middle of removing a checkpoint": (1, 3),
    "before a folder gets its name": (2, 3),
    "before a file gets its name": (4, 9),
    "before a restart is noted as finished": (1, 1),
    "between two restarts": (1, 2),
    "before the model is saved": (1, 1),
    "after the model was saved": (1, 1),
    "before the results are written": (1, 1),
    "while files are forced to disk": (5, 30),
}
RUN = (
    "epochs=3",
    "batch_size=8",
    "evaluations=2",
    "restarts=2",
    "optimizer.learning_rate=0.005",
    "hardware.threads=1",
    "hardware.device=cpu",
    "max_length=16",
)
STOPS_EARLY = ("optimizer.learning_rate=1e-12", "patience=3")


@pytest.fixture(scope="module")
def new_finetuning(tmp_path_factory: pytest.TempPathFactory) -> NewFinetuning:
    """Settings of a run in a folder of its own: dropout, two restarts, several evaluations."""
    folder = tmp_path_factory.mktemp("finetuning")
    given = {
        "task": "classification",
        "model": str(tiny_model(folder / "encoder", WORDS)),
        "train": str(write_labelled(folder / "train.jsonl", WORDS, 48)),
        "dev": str(write_labelled(folder / "dev.jsonl", WORDS[1:], 21)),
    }

    def settings(*overrides: str) -> Settings:
        changed = [*RUN, *overrides]
        return given | {"out": str(tmp_path_factory.mktemp("runs") / "run"), "changes": changed}

    return settings


@pytest.fixture(scope="module")
def whole(new_finetuning: NewFinetuning) -> dict[str, Any]:
    """What a run comes to when nothing happens to it."""
    return uninterrupted(new_finetuning())


@pytest.fixture(scope="module")
def stopped(new_finetuning: NewFinetuning) -> dict[str, Any]:
    """The same of a run that no longer gets better, and stops."""
    found = uninterrupted(new_finetuning(*STOPS_EARLY))
    assert [restart["steps"] for restart in found["results"]["restarts"]] == [9, 9]
    return found


def uninterrupted(settings: Settings) -> dict[str, Any]:
    finish_finetuning(settings)
    return finetune_evidence(Path(settings["out"]))


def assert_same(settings: Settings, expected: dict[str, Any]) -> None:
    """Part by part, steps first, so that a failure says where the runs differ."""
    found = finetune_evidence(Path(settings["out"]))
    for name, part in expected.items():
        assert found[name] == part, name


def test_every_place_is_tried() -> None:
    assert DEATHS.keys() == FINETUNE_PLACES.keys()


def test_the_run_is_worth_comparing(whole: dict[str, Any]) -> None:
    """It learns something, its restarts differ, and one of them is kept."""
    assert [len(steps) for steps in whole["steps"]] == [18, 18]
    assert [sorted(each) for each in whole["evaluations"]] == [[0, 3, 6, 9, 12, 15, 18]] * 2
    losses = [[step["loss"] for step in steps] for steps in whole["steps"]]
    assert losses[0] != losses[1]
    assert len(whole["kept"]) == 1 and whole["checkpoints"] == []


@pytest.mark.parametrize("place", DEATHS)
def test_killed_at_a_place(place: str, new_finetuning: NewFinetuning, whole: dict[str, Any]) -> None:
    settings = new_finetuning()
    for arrival in DEATHS[place]:
        assert FinetuneAttempt(settings, FinetuneFault(place, arrival)).wait() == [-SIGKILL]
    finish_finetuning(settings)
    assert_same(settings, whole)


@pytest.mark.parametrize(
    ("place", "arrival"),
    [
        ("between the best weights and their history", 3),
        pytest.param("after an evaluation counts", 3, marks=pytest.mark.slow),
        ("before a restart is noted as finished", 1),
        pytest.param("before the model is saved", 1, marks=pytest.mark.slow),
    ],
)
def test_killed_when_it_was_about_to_stop_early(
    place: str, arrival: int, new_finetuning: NewFinetuning, stopped: dict[str, Any]
) -> None:
    settings = new_finetuning(*STOPS_EARLY)
    assert FinetuneAttempt(settings, FinetuneFault(place, arrival)).wait() == [-SIGKILL]
    finish_finetuning(settings)
    assert_same(settings, stopped)


@pytest.mark.slow
def test_killed_at_random_moments(new_finetuning: NewFinetuning, whole: dict[str, Any]) -> None:
    settings, draw = new_finetuning(), random.Random(0)
    attempt = FinetuneAttempt(new_finetuning())
    attempt.began.poll(60)
    start = time.monotonic()
    assert attempt.wait() == [0]
    seconds = time.monotonic() - start
    for _ in range(3):
        FinetuneAttempt(settings).kill_after(draw.uniform(0, seconds / 2))
    finish_finetuning(settings)
    assert_same(settings, whole)


def test_ctrl_c_saves_a_checkpoint(new_finetuning: NewFinetuning, whole: dict[str, Any]) -> None:
    settings = new_finetuning()
    attempt = FinetuneAttempt(settings, FinetuneFault("before a micro-batch", 5, SIGINT))
    assert attempt.wait() == [1]
    assert attempt.complaint() == "KeyboardInterrupt: "
    checkpoints = Path(settings["out"]) / "restarts" / "1" / "checkpoints"
    assert [path.name for path in checkpoints.iterdir()] == ["step-00000005"]
    finish_finetuning(settings)
    assert_same(settings, whole)


def test_the_comparison_sees_another_seed(new_finetuning: NewFinetuning, whole: dict[str, Any]) -> None:
    other = uninterrupted(new_finetuning("seed=7"))
    assert all(other[name] != whole[name] for name in ("steps", "model", "histories"))
