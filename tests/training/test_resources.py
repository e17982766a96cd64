"""The memory and disk a run is said to need, against sums by hand."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from bertsmith.errors import ResourceError
from bertsmith.machine import Gpu, Hardware
from bertsmith.tasks.pretraining.pretraining import PretrainingModel
from bertsmith.training.machine import Machine, Ranks
from bertsmith.training.recipe import Recipe, check_recipe
from bertsmith.training.resources import estimate_activation_bytes, require_resources

DATA = {"batch_size": 16, "sequence_lengths": [32], "sequence_shares": [1.0]}
MACHINE = Machine(torch.device("cpu"), torch.float32, 1e9, Ranks(), micro_batch_tokens=256)


def recipe_of(**data: Any) -> Recipe:
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    settings = {"steps": 10, "optimizer": {"warmup": 1}, "model": shape, "data": DATA | data}
    return check_recipe(settings, "the test")


@pytest.fixture(scope="module")
def model() -> PretrainingModel:
    return PretrainingModel(recipe_of().model.config(1000, 0))


def hardware_with(memory: int) -> Hardware:
    return replace(Hardware.detect(), memory_available=memory, gpus=())


def needed(model: PretrainingModel, machine: Machine = MACHINE) -> int:
    """Weight, gradient and two moments of four bytes each, AdamW's counts of steps, what a micro-batch keeps,
    and the copy of weight, moments and counts that a checkpoint is written from.
    """
    sizes = [parameter.numel() for parameter in model.parameters()]
    return (16 + 12) * sum(sizes) + 8 * len(sizes) + estimate_activation_bytes(model, recipe_of(), machine)


def test_a_steps_memory_grows_with_the_micro_batch_up_to_the_batch(model: PretrainingModel) -> None:
    def bytes_of(tokens: int) -> int:
        return estimate_activation_bytes(model, recipe_of(), replace(MACHINE, micro_batch_tokens=tokens))

    heads, longest = model.config.num_attention_heads, 32
    wide = model.config.intermediate_size
    layers = 256 * 2 * (16 * 32 + 2 * wide + 2 * heads * longest)
    assert bytes_of(256) == int(4 * (layers + 256 * 0.15 * 1000))
    assert bytes_of(512) == 2 * bytes_of(256)
    assert bytes_of(100_000) == bytes_of(512)  # there are no more tokens in a batch
    assert bytes_of(8) == bytes_of(32)  # a sequence is not divided


def test_a_rank_keeps_its_share_of_the_batch(model: PretrainingModel) -> None:
    whole = replace(MACHINE, micro_batch_tokens=100_000)
    four = replace(whole, ranks=Ranks(0, 4))
    assert 4 * estimate_activation_bytes(model, recipe_of(), four) == estimate_activation_bytes(
        model, recipe_of(), whole
    )


def test_just_enough_memory_is_enough(model: PretrainingModel, tmp_path: Path) -> None:
    enough = needed(model)
    require_resources(model, recipe_of(), MACHINE, hardware_with(enough), tmp_path)
    with pytest.raises(ResourceError, match="this machine has free"):
        require_resources(model, recipe_of(), MACHINE, hardware_with(enough - 1), tmp_path)


def test_ranks_of_one_machine_share_its_memory(model: PretrainingModel, tmp_path: Path) -> None:
    machine = replace(MACHINE, ranks=Ranks(0, 2, 0, 2))
    enough = 2 * needed(model, machine)
    require_resources(model, recipe_of(), machine, hardware_with(enough), tmp_path)
    with pytest.raises(ResourceError):
        require_resources(model, recipe_of(), machine, hardware_with(enough - 2), tmp_path)
    on_two_machines = replace(machine, ranks=Ranks(0, 2, 0, 1))
    require_resources(model, recipe_of(), on_two_machines, hardware_with(enough // 2), tmp_path)


def test_ranks_that_divide_the_weights_need_less_each(model: PretrainingModel, tmp_path: Path) -> None:
    """A quarter of everything, and all weights while they are gathered."""
    four = replace(MACHINE, ranks=Ranks(0, 4, 0, 4), sharded=True)
    sizes = [parameter.numel() for parameter in model.parameters()]
    divided, whole = (16 + 12) * sum(sizes) // 4, 4 * sum(sizes) + 8 * len(sizes)
    enough = 4 * (divided + whole + estimate_activation_bytes(model, recipe_of(), four))
    require_resources(model, recipe_of(), four, hardware_with(enough), tmp_path)
    with pytest.raises(ResourceError):
        require_resources(model, recipe_of(), four, hardware_with(enough - 4), tmp_path)
    with pytest.raises(ResourceError):
        require_resources(model, recipe_of(), replace(four, sharded=False), hardware_with(enough), tmp_path)


def test_on_a_gpu_its_own_memory_counts(model: PretrainingModel, tmp_path: Path) -> None:
    machine = replace(MACHINE, device=torch.device("cuda"))
    small = replace(hardware_with(10**12), gpus=(Gpu("small", 1000, (8, 0)), Gpu("large", 10**12, (8, 0))))
    with pytest.raises(ResourceError, match="the GPU has"):
        require_resources(model, recipe_of(), machine, small, tmp_path)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes that were asked to be free."""
    found: list[int] = []
    monkeypatch.setattr(
        "bertsmith.training.resources.require_free_space",
        lambda _, bytes_needed, __: found.append(bytes_needed),
    )
    return found


def test_the_disk_must_hold_one_checkpoint_more_than_are_kept(
    model: PretrainingModel, tmp_path: Path, asked: list[int]
) -> None:
    require_resources(model, recipe_of(), MACHINE, hardware_with(10**12), tmp_path)
    weights = sum(parameter.numel() for parameter in model.parameters())
    assert asked == [3 * 12 * weights + 4 * weights]  # weights and two moments, and the model


def test_checkpoints_that_stand_already_need_no_more_room(
    model: PretrainingModel, tmp_path: Path, asked: list[int]
) -> None:
    """A resumed run fits where it was begun; at least one more is written before an older one goes."""
    weights = sum(parameter.numel() for parameter in model.parameters())
    for number in range(3):
        (tmp_path / "checkpoints" / f"step-{number}").mkdir(parents=True)
        (tmp_path / "checkpoints" / f"step-{number}" / "weights.safetensors").write_bytes(b"x" * 12 * weights)
        require_resources(model, recipe_of(), MACHINE, hardware_with(10**12), tmp_path)
    assert asked == [2 * 12 * weights + 4 * weights, *[12 * weights + 4 * weights] * 2]
