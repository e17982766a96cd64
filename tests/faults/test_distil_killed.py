"""A distillation killed wherever, and resumed until it ends: every bit is as without it."""

from pathlib import Path
from signal import SIGKILL
from typing import Any

import pytest
from distil_attempt import (
    DISTIL_PLACES,
    DistilAttempt,
    DistilFault,
    distil_evidence,
    finish_distilling,
    teacher_in,
)
from finetune_attempt import write_labelled
from nursery import Settings
from tiny_run import WORDS

# At which arrival at a place the first process of the run dies, and at which the second.
DEATHS = {
    "before some answers are kept": (2, 3),
    "after some answers were kept": (1, 2),
    "before a micro-batch": (5, 9),
    "after an evaluation counts": (2, 3),
    "in the middle of a checkpoint": (2, 2),
    "before a file gets its name": (6, 13),
    "before a run is noted as finished": (1, 1),
    "before the student is saved": (1, 1),
    "after the student was saved": (1, 1),
    "before the results are written": (1, 1),
}
RUN = ("epochs=2", "batch_size=8", "evaluations=2", "optimizer.learning_rate=0.005", "hardware.device=cpu")


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """Dropout, labelled rows and texts without labels, and the same student alone."""
    folder = tmp_path_factory.mktemp("distilling")
    texts = folder / "texts.jsonl"
    rows = write_labelled(folder / "more.jsonl", WORDS[2:], 40).read_text().splitlines()
    texts.write_text("".join(row.replace('"label"', '"other"') + "\n" for row in rows))
    return teacher_in(folder, WORDS) | {"texts": [str(texts)], "layers": 1, "changes": list(RUN)}


@pytest.fixture(scope="module")
def whole(given: Settings, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a distillation comes to when nothing happens to it."""
    settings = given | {"out": str(tmp_path_factory.mktemp("whole") / "run")}
    finish_distilling(settings)
    found = distil_evidence(Path(settings["out"]))
    assert len(found["answers"]) > 2 and all(len(steps) > 6 for steps in found["steps"])
    return found


def test_every_place_is_tried() -> None:
    assert DEATHS.keys() == DISTIL_PLACES.keys()


@pytest.mark.slow
@pytest.mark.parametrize("place", DEATHS)
def test_killed_at_a_place(place: str, given: Settings, whole: dict[str, Any], tmp_path: Path) -> None:
    check(place, given, whole, tmp_path)


@pytest.mark.slow
def test_killed_in_the_middle_of_its_training(given: Settings, whole: dict[str, Any], tmp_path: Path) -> None:
    check("before a micro-batch", given, whole, tmp_path)


def check(place: str, given: Settings, whole: dict[str, Any], folder: Path) -> None:
    settings = given | {"out": str(folder / "run")}
    for arrival in DEATHS[place]:
        assert DistilAttempt(settings, DistilFault(place, arrival)).wait() == [-SIGKILL]
    finish_distilling(settings)
    found = distil_evidence(Path(settings["out"]))
    for name, part in whole.items():
        assert found[name] == part, name


@pytest.mark.slow
def test_two_processes_learn_what_one_does(given: Settings, whole: dict[str, Any], tmp_path: Path) -> None:
    """The teacher is asked by the first alone, and the losses are those of one process, dropout aside."""
    settings = given | {
        "out": str(tmp_path / "run"),
        "changes": [*RUN, "dropout=0", "hardware.precision=float32"],
    }
    alone = settings | {"out": str(tmp_path / "one")}
    finish_distilling(settings, ranks=2)
    finish_distilling(alone)
    two, one = (distil_evidence(Path(each["out"])) for each in (settings, alone))
    assert two["answers"] == one["answers"]
    losses = [[step["loss"] for step in found["steps"][0]] for found in (two, one)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
