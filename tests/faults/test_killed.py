"""A run killed with SIGKILL, wherever and whenever, and resumed until it ends: every bit is as without it."""

import random
import time
from collections.abc import Callable
from pathlib import Path
from signal import SIGKILL

import pytest
from defects import Defect
from evidence import Evidence, evidence
from nursery import Attempt, Settings, finish
from places import PLACES, Fault
from tiny_run import OPTIMIZERS, STEPS, NewRun, Uninterrupted

# At which arrival at a place the first process of the run dies, and at which the second.
DEATHS = {
    "before a micro-batch": (18, 40),
    "between forward and backward": (21, 33),
    "between two micro-batches": (11, 51),
    "before the weights change": (15, 19),
    "between AdamW's step and Muon's": (3, 26),
    "after the weights changed": (2, 24),
    "at the switch of the sequence length": (1, 1),
    "during evaluation": (2, 3),
    "in the middle of a log line": (13, 29),
    "before a checkpoint": (1, 4),
    "in the middle of a tensor file": (3, 8),
    "before a folder gets its name": (1, 5),
    "after a folder got its name": (1, 4),
    "in the middle of removing a checkpoint": (1, 3),
    "after the last step": (6, 1),
    "before the model is saved": (1, 1),
    "after the model was saved": (1, 1),
    "while files are forced to disk": (7, 40),
}

# Which rank dies where; the rank that waits for it is killed too.
DEATHS_OF_TWO = {
    "rank 0 between two micro-batches": ([Fault("between two micro-batches", 21)], []),
    "rank 1 before a micro-batch": ([], [Fault("before a micro-batch", 30)]),
    "rank 0 in the middle of a checkpoint": ([Fault("in the middle of a tensor file", 6)], []),
    "rank 1 while rank 0 goes on": ([], [Fault("after the weights changed", 8)]),
    "both at the switch": 2 * ([Fault("at the switch of the sequence length")],),
}

# The same where two ranks divide the weights and write a checkpoint together.
DEATHS_OF_TWO_SHARDED = {
    "rank 1 in the middle of its part": ([], [Fault("in the middle of a tensor file", 6)]),
    "rank 0 with half of the parts put together": ([Fault("before a folder gets its name", 7)], []),
    "rank 0 after a checkpoint got its name": ([Fault("after a folder got its name", 8)], []),
}


def test_every_place_is_tried() -> None:
    assert DEATHS.keys() == PLACES.keys()


# With Muon, what a kill can touch of the optimiser at every run of the tests, the rest where there is time.
MUONS = {
    "between two micro-batches",
    "before the weights change",
    "after the weights changed",
    "between AdamW's step and Muon's",
    "in the middle of a tensor file",
}


@pytest.mark.parametrize(
    ("kind", "place"),
    [
        *(("adamw", place) for place in DEATHS if "Muon" not in place),
        *(pytest.param("muon", place, marks=[pytest.mark.slow] * (place not in MUONS)) for place in DEATHS),
    ],
)
def test_killed_at_a_place(kind: str, place: str, new_run: NewRun, uninterrupted: Uninterrupted) -> None:
    settings = new_run(optimizer=OPTIMIZERS[kind])
    for arrival in DEATHS[place]:
        assert Attempt(settings, [Fault(place, arrival)]).wait() == [-SIGKILL]
    finish(settings)
    assert_same(evidence(Path(settings["out"])), uninterrupted(1, kind=kind))


@pytest.mark.parametrize(("ranks", "shard"), [(1, "none"), (2, "none"), (2, "full")])
def test_killed_with_general_text_mixed_in_and_measured(ranks: int, shard: str, new_run: NewRun) -> None:
    """The place in either text is a checkpoint's own, and what was measured before the first step stays."""

    def settings() -> Settings:
        made = new_run()
        made["data"] |= {"general_share": 0.3}
        made["hardware"] |= {"shard": shard}
        return made | {"general": made["corpus"]}

    expected, killed = settings(), settings()
    finish(expected, ranks=ranks)
    for place, arrival in (
        ("during evaluation", 1),
        ("before the weights change", 23),
        ("before a checkpoint", 2),
    ):
        assert -SIGKILL in Attempt(killed, *(ranks * [[Fault(place, arrival)]]), ranks=ranks).wait()
    finish(killed, ranks=ranks)
    found = evidence(Path(killed["out"]))
    assert_same(found, evidence(Path(expected["out"])))
    assert found.progress["cursor"]["mixed_in"]["offset"] > 0
    assert {0, STEPS} <= found.evaluations.keys()
    assert all("general_mlm_loss" in each for each in found.evaluations.values())


def test_killed_while_a_checkpoint_is_written_beside_the_training(
    new_run: NewRun, uninterrupted: Uninterrupted
) -> None:
    settings = new_run()
    dies = [Defect("saving takes a second"), Fault("after the weights changed", 6)]
    assert Attempt(settings, dies).wait() == [-SIGKILL]
    assert not list((Path(settings["out"]) / "checkpoints").glob("step-*"))  # though step 4 was over
    finish(settings)
    assert_same(evidence(Path(settings["out"])), uninterrupted(1))


@pytest.mark.parametrize(
    ("seed", "kind"),
    [(0, "adamw"), *(pytest.param(1, kind, marks=pytest.mark.slow) for kind in OPTIMIZERS)],
)
def test_killed_at_random_moments(
    seed: int, kind: str, new_run: NewRun, uninterrupted: Uninterrupted, seconds: Callable[[int], float]
) -> None:
    settings, draw = new_run(optimizer=OPTIMIZERS[kind]), random.Random(seed)
    for _ in range(4):
        Attempt(settings).kill_after(draw.uniform(0, seconds(1) / 2))
    finish(settings)
    assert_same(evidence(Path(settings["out"])), uninterrupted(1, kind=kind))


@pytest.mark.parametrize(
    ("deaths", "kind"),
    [
        *((deaths, "adamw") for deaths in DEATHS_OF_TWO),
        ("rank 1 while rank 0 goes on", "muon"),
        *(pytest.param(deaths, "muon", marks=pytest.mark.slow) for deaths in list(DEATHS_OF_TWO)[:3]),
    ],
)
def test_one_of_two_ranks_or_both_killed(
    deaths: str, kind: str, new_run: NewRun, uninterrupted: Uninterrupted
) -> None:
    settings, changes = new_run(optimizer=OPTIMIZERS[kind]), DEATHS_OF_TWO[deaths]
    statuses = Attempt(settings, *changes, ranks=2).wait()
    assert -SIGKILL in statuses and 0 not in statuses
    finish(settings, ranks=2)
    assert_same(evidence(Path(settings["out"])), uninterrupted(2, kind=kind))


@pytest.mark.parametrize("deaths", DEATHS_OF_TWO_SHARDED)
def test_one_of_two_ranks_that_divide_the_weights(
    deaths: str, new_run: NewRun, uninterrupted: Uninterrupted
) -> None:
    settings, changes = new_run(), DEATHS_OF_TWO_SHARDED[deaths]
    settings["hardware"] |= {"shard": "full"}
    statuses = Attempt(settings, *changes, ranks=2).wait()
    assert -SIGKILL in statuses and 0 not in statuses
    finish(settings, ranks=2)
    assert_same(evidence(Path(settings["out"])), uninterrupted(2, "full"))
    assert not list((Path(settings["out"]) / "checkpoints").glob(".*"))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_two_ranks_killed_at_random_moments(
    seed: int, new_run: NewRun, uninterrupted: Uninterrupted, seconds: Callable[[int], float]
) -> None:
    settings, draw = new_run(), random.Random(seed)
    for _ in range(3):
        Attempt(settings, ranks=2).kill_after(draw.uniform(0, seconds(2) / 2), rank=draw.randrange(2))
    finish(settings, ranks=2)
    assert_same(evidence(Path(settings["out"])), uninterrupted(2))


_RINGS = [(4, "none", "adamw"), (3, "full", "adamw"), (4, "none", "muon")]


@pytest.mark.parametrize(
    ("ranks", "shard", "kind"),
    [(3, "none", "adamw"), *(pytest.param(*ring, marks=pytest.mark.slow) for ring in _RINGS)],
)
def test_more_ranks_whose_gradients_add_up_in_a_ring(
    ranks: int, shard: str, kind: str, new_run: NewRun, uninterrupted: Uninterrupted
) -> None:
    settings = new_run(optimizer=OPTIMIZERS[kind])
    settings["hardware"] |= {"shard": shard}
    Attempt(settings, [Fault("before the weights change", 11)], ranks=ranks).wait()
    finish(settings, ranks=ranks)
    assert_same(evidence(Path(settings["out"])), uninterrupted(ranks, shard, kind))


def assert_same(found: Evidence, expected: Evidence) -> None:
    """Step by step first, so that a failure names the step where the runs part."""
    assert [step["step"] for step in found.steps] == list(range(1, STEPS + 1))
    for step, wanted in zip(found.steps, expected.steps, strict=True):
        assert step == wanted
    assert found == expected


@pytest.fixture(scope="module")
def seconds(new_run: NewRun, uninterrupted: Uninterrupted) -> Callable[[int], float]:
    """How long the training of so many ranks takes."""
    known: dict[int, float] = {}

    def measure(ranks: int) -> float:
        if ranks not in known:
            uninterrupted(ranks)  # the first of all is slower than the ones after it
            attempt = Attempt(new_run(), ranks=ranks)
            attempt.began.poll(60)
            start = time.monotonic()
            assert attempt.wait() == [0] * ranks
            known[ranks] = time.monotonic() - start
        return known[ranks]

    return measure
