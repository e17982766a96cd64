"""Other ways of pre-training: killed and resumed to the bit, and the same whatever the number of ranks."""

from collections.abc import Callable
from pathlib import Path
from signal import SIGKILL
from typing import Any

import pytest
from evidence import evidence
from nursery import Attempt, Settings, finish
from places import Fault
from safetensors.torch import load_file
from tiny_run import NewRun

from bertsmith.files import sha256
from bertsmith.training.log import RunLog

_ELECTRA = {"model_type": "electra", "size": "small", "embedding_size": 16}
WAYS: dict[str, dict[str, Any]] = {
    "sentence order": {"objective": "sentence-order"},
    "replaced tokens": {
        "objective": "replaced-tokens",
        "model": _ELECTRA,
        "replaced": {"generator_share": 0.5},
        "data": {"next_sentence": False},
        "loss": {"sampled_pieces": 40},
    },
    "spans": {"masking": {"spans": True}, "data": {"next_sentence": False}},
}
LOSSES = {
    "sentence order": {"mlm_loss", "sop_loss"},
    "replaced tokens": {"mlm_loss", "weighted_rtd_loss"},
    "spans": {"mlm_loss"},
}
ways = pytest.mark.parametrize("way", WAYS)
Begin = Callable[[str], Settings]


@pytest.fixture(scope="module")
def begin(new_run: NewRun) -> Begin:
    """A tiny run of that way, in a new folder."""

    def settings(way: str) -> Settings:
        made = new_run(steps=18)
        for section, values in WAYS[way].items():
            made[section] = made.get(section, {}) | values if isinstance(values, dict) else values
        return made

    return settings


def steps(settings: Settings) -> list[dict[str, Any]]:
    return [record for record in RunLog.read(Path(settings["out"])) if record["kind"] == "step"]


@ways
def test_killed_and_resumed_every_bit_is_as_without_it(way: str, begin: Begin) -> None:
    """In a micro-batch, while a checkpoint is written, and before the model is saved."""
    whole, killed = begin(way), begin(way)
    finish(whole)
    for fault in (
        Fault("between forward and backward", 15),
        Fault("in the middle of a tensor file", 3),
        Fault("before the model is saved", 1),
    ):
        assert Attempt(killed, [fault]).wait() == [-SIGKILL]
    finish(killed)
    assert evidence(Path(killed["out"])) == evidence(Path(whole["out"]))
    assert {name for name in steps(whole)[0] if name.endswith("_loss")} == LOSSES[way]
    if way == "replaced tokens":
        generators = [Path(each["out"], "generator", "model.safetensors") for each in (whole, killed)]
        assert sha256(generators[0]) == sha256(generators[1])


@ways
@pytest.mark.parametrize(("ranks", "shard"), [(2, "none"), (2, "full")], ids=["two", "two, sharded"])
def test_the_number_of_ranks_changes_neither_losses_nor_what_was_put_in(
    way: str, ranks: int, shard: str, begin: Begin
) -> None:
    alone, shared = begin(way), begin(way)
    for settings in (alone, shared):
        settings["model"] = settings["model"] | {
            "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0,
        }
    shared["hardware"] = shared["hardware"] | {"shard": shard}
    finish(alone)
    finish(shared, ranks=ranks)
    for one, many in zip(steps(alone), steps(shared), strict=True):
        for name in LOSSES[way]:
            assert many[name] == pytest.approx(one[name], rel=1e-6 if one["step"] == 1 else 1e-3)
    first, second = (load_file(Path(each["out"], "model", "model.safetensors")) for each in (alone, shared))
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        assert float((tensor - second[name]).abs().max()) < 2e-3, name
