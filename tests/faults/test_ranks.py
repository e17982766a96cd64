"""The number of ranks, and what they divide, changes who computes what, and nothing else: not the order, the
masks, or the loss.
"""

from collections.abc import Callable
from pathlib import Path
from signal import SIGKILL
from typing import NamedTuple

import pytest
import torch
from defects import Defect
from evidence import evidence
from nursery import Attempt, Settings, finish
from places import Fault
from recording import Holdings, Recording, Step
from safetensors.torch import load_file
from tiny_run import OPTIMIZERS, STEPS, NewRun

from bertsmith.training.log import RunLog

# How many ranks, whether they divide the weights, and how many tokens each computes at a time.
WAYS = {
    "alone": (1, "none", 128),
    "alone, each batch at once": (1, "none", 4096),
    "two": (2, "none", 128),
    "four": (4, "none", 128),
    "two, sharded": (2, "full", 128),
    "four, sharded": (4, "full", 40),
}
OTHERS = list(WAYS)[1:]
ROUNDED, MUONS = "in bfloat16", "with Muon"  # behind the name of a way


class Run(NamedTuple):
    """A finished run's folder, and for each rank what it was given and what it held."""

    out: Path
    recordings: list[Recording]
    holdings: list[Holdings]


Recorded = Callable[[str], Run]
WithoutDropout = Callable[[str], Settings]


@pytest.fixture(scope="module")
def without_dropout(new_run: NewRun) -> WithoutDropout:
    """Twelve steps; dropout depends on the rank."""

    def settings(way: str) -> Settings:
        _, shard, tokens = WAYS[plain(way)]
        # Clipping would hide a gradient of the wrong size.
        optimizer = OPTIMIZERS["muon" if MUONS in way else "adamw"] | {"max_grad_norm": 1e6}
        made = new_run(steps=12, optimizer=optimizer, checkpoint={"every": 6})
        made["model"] |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        made["data"] |= {"micro_batch_tokens": tokens}
        if MUONS in way:
            made["masking"] = {"mask_rate": 0.4, "final_mask_rate": 0.1}
            made["loss"] = {"sampled_pieces": 12}
        made["hardware"] |= {"shard": shard, "precision": "bfloat16" if ROUNDED in way else "float32"}
        return made

    return settings


@pytest.fixture(scope="module")
def recorded(without_dropout: WithoutDropout, tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """A run in one of the `WAYS`."""
    known: dict[str, Run] = {}

    def run(way: str) -> Run:
        if way not in known:
            ranks, settings = WAYS[plain(way)][0], without_dropout(way)
            folder = tmp_path_factory.mktemp("recordings")
            recordings = [Recording(folder / f"rank-{rank}") for rank in range(ranks)]
            holdings = [Holdings(folder / f"held-{rank}") for rank in range(ranks)]
            finish(settings, *zip(recordings, holdings, strict=True), ranks=ranks)
            known[way] = Run(Path(settings["out"]), recordings, holdings)
        return known[way]

    return run


@pytest.mark.parametrize("way", WAYS)
def test_every_rank_sees_the_same_batches_in_the_same_order(recorded: Recorded, way: str) -> None:
    expected = [step["batch"] for step in recorded("alone").recordings[0].steps()]
    for recording in recorded(way).recordings:
        assert [step["batch"] for step in recording.steps()] == expected
    assert len(recorded(way).recordings) == WAYS[way][0]
    every_key = [key for batch in expected for key in batch]
    assert len(expected) == 12
    assert len(set(every_key)) == len(every_key) > 12 * 16


@pytest.mark.parametrize("way", ["alone", "two", "four"])
def test_each_sequence_of_a_batch_is_given_to_one_rank(recorded: Recorded, way: str) -> None:
    for step in together(recorded(way).recordings):
        assert sorted(key for key, _ in step["given"]) == sorted(step["batch"])


def test_ranks_that_gather_weights_have_equally_many_micro_batches(recorded: Recorded) -> None:
    """Some were given a sequence that another one was given too, which must not count twice."""
    repeated = [
        len(step["given"]) - len(step["batch"]) for step in together(recorded("four, sharded").recordings)
    ]
    assert min(repeated) >= 0
    assert max(repeated) > 0


@pytest.mark.parametrize("way", OTHERS)
def test_masks_are_the_same_in_every_way(recorded: Recorded, way: str) -> None:
    alone, shared = together(recorded("alone").recordings), together(recorded(way).recordings)
    for one, many in zip(alone, shared, strict=True):
        assert dict(one["given"]) == dict(many["given"])
    assert any(label >= 0 for _, (_, labels) in alone[0]["given"] for label in labels)


@pytest.mark.parametrize("way", OTHERS)
def test_gradients_are_the_same_in_every_way(recorded: Recorded, way: str) -> None:
    alone = load_file(recorded("alone").recordings[0].path.with_suffix(".gradients"))
    for recording in recorded(way).recordings:
        shared = load_file(recording.path.with_suffix(".gradients"))
        assert alone.keys() == shared.keys()
        for name, gradient in alone.items():
            torch.testing.assert_close(shared[name], gradient, rtol=0, atol=1e-6, msg=name)


@pytest.mark.parametrize("way", ["alone", "two", "two, sharded"])
def test_half_precision_rounds_gradients_by_the_same_little_in_every_way(
    recorded: Recorded, way: str
) -> None:
    exact = load_file(recorded("alone").recordings[0].path.with_suffix(".gradients"))
    rounded = load_file(recorded(f"{way} {ROUNDED}").recordings[0].path.with_suffix(".gradients"))
    assert exact.keys() == rounded.keys()
    apart = torch.cat([(rounded[name] - exact[name]).flatten() for name in exact]).norm()
    size = torch.cat([gradient.flatten() for gradient in exact.values()]).norm()
    assert 1e-4 < apart / size < 2e-2
    assert {gradient.dtype for gradient in rounded.values()} == {torch.float32}


@pytest.mark.parametrize("way", OTHERS)
def test_losses_are_the_same_in_every_way(recorded: Recorded, way: str) -> None:
    assert_same_losses(recorded(way).out, recorded("alone").out)


@pytest.mark.parametrize(
    "way", ["alone, each batch at once", "two", pytest.param("four", marks=pytest.mark.slow)]
)
def test_with_muon_and_fewer_masks_from_step_to_step_all_is_the_same_in_every_way(
    recorded: Recorded, way: str
) -> None:
    alone, shared = recorded(f"alone {MUONS}"), recorded(f"{way} {MUONS}")
    assert_same_losses(shared.out, alone.out)
    assert steps(alone.out)[-1]["loss"] != steps(recorded("alone").out)[-1]["loss"]
    for one, many in zip(together(alone.recordings), together(shared.recordings), strict=True):
        assert dict(one["given"]) == dict(many["given"])
    expected = load_file(alone.recordings[0].path.with_suffix(".gradients"))
    for recording in shared.recordings:
        for name, gradient in load_file(recording.path.with_suffix(".gradients")).items():
            torch.testing.assert_close(gradient, expected[name], rtol=0, atol=1e-6, msg=name)


@pytest.mark.parametrize("way", OTHERS)
def test_evaluation_is_the_same_in_every_way(recorded: Recorded, way: str) -> None:
    alone, shared = (evaluations(recorded(each).out) for each in ("alone", way))
    for one, many in zip(alone, shared, strict=True):
        assert many == pytest.approx(one, rel=1e-3, abs=5e-3)


@pytest.mark.parametrize("kind", ["weights", "moments"])
def test_each_of_four_ranks_holds_a_quarter(recorded: Recorded, kind: str) -> None:
    whole = recorded("alone").holdings[0].bytes()[kind]
    for holdings in recorded("four, sharded").holdings:
        assert holdings.bytes()[kind] < 0.27 * whole  # a little padding
    for holdings in recorded("four").holdings:
        assert holdings.bytes()[kind] == whole


def test_the_saved_model_is_whole_and_the_same(recorded: Recorded) -> None:
    alone, shared = (
        load_file(recorded(way).out / "model" / "model.safetensors") for way in ("alone", "four, sharded")
    )
    assert alone.keys() == shared.keys()
    for name, tensor in alone.items():
        torch.testing.assert_close(shared[name], tensor, rtol=0, atol=2e-3, msg=name)


@pytest.mark.slow
def test_a_run_goes_on_with_other_numbers_of_ranks(
    recorded: Recorded, without_dropout: WithoutDropout
) -> None:
    """Four, two, one and four again, each killed in its third step: by then the first one's stands."""
    settings = without_dropout("four, sharded") | {"checkpoint": {"every": 1}}
    for way, files in (("four, sharded", 4), ("two, sharded", 2), ("alone", 1)):
        settings["hardware"] |= {"shard": WAYS[way][1]}
        fault = Fault("before the weights change", 3)
        assert -SIGKILL in Attempt(settings, [fault], ranks=WAYS[way][0]).wait()
        last = max((Path(settings["out"]) / "checkpoints").glob("step-*"))
        assert len(list(last.glob("weights*"))) == len(list(last.glob("optimizer*"))) == files
    finish(settings | {"hardware": settings["hardware"] | {"shard": "full"}}, ranks=4)
    assert_same_losses(Path(settings["out"]), recorded("alone").out)


@pytest.mark.parametrize("shard", ["none", pytest.param("full", marks=pytest.mark.slow)])
def test_all_ranks_go_back_to_the_same_checkpoint(shard: str, new_run: NewRun) -> None:
    """Past a batch without a finite loss, while the first rank still writes what they go back to."""
    bad, slow = Defect("a batch is bad"), Defect("saving takes a second")
    runs = [new_run() | {"guard": {"action": "skip"}, "checkpoint": {"every": 18}} for _ in range(2)]
    for settings, first in zip(runs, ([bad, slow], [bad]), strict=True):
        settings["hardware"] |= {"shard": shard}
        finish(settings, first, [bad], ranks=2)
    slowly, quickly = (evidence(Path(settings["out"])) for settings in runs)
    assert slowly == quickly
    assert [step["step"] for step in slowly.steps] == list(range(1, STEPS + 1))


def assert_same_losses(found: Path, expected: Path) -> None:
    alone, shared = steps(expected), steps(found)
    assert len(alone) == len(shared) == 12
    for name in ("loss", "mlm_loss", "nsp_loss", "gradient_norm"):
        assert shared[0][name] == pytest.approx(alone[0][name], rel=1e-6)
        # Rounding grows from step to step, and Adam's first steps are little more than signs.
        assert [step[name] for step in shared] == pytest.approx([step[name] for step in alone], rel=1e-3)
    assert [step["tokens"] for step in shared] == [step["tokens"] for step in alone]


def plain(way: str) -> str:
    """A key of `WAYS`."""
    return way.removesuffix(ROUNDED).removesuffix(MUONS).strip()


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
