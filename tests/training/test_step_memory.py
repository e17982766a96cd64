"""Predicted bytes against those of a real model, its optimiser and its checkpoint on disk."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from bertsmith.data.batch import PackedBatch
from bertsmith.model.config import make_config
from bertsmith.model.layers.initialisation import meta_init
from bertsmith.planning.accelerators import Accelerator
from bertsmith.planning.plan import check_memory, find_largest_micro_batch
from bertsmith.tasks.pretraining.pretraining import PretrainingModel
from bertsmith.training.checkpoint import RunProgress, TrainingState, save_training_state
from bertsmith.training.machine import Machine, Ranks
from bertsmith.training.optimizer import collect_optimizer_tensors, make_optimizer
from bertsmith.training.recipe import Recipe, check_recipe
from bertsmith.training.resources import (
    count_checkpoint_bytes,
    estimate_activation_bytes,
    estimate_step_memory,
)

SHAPE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}


@pytest.fixture(params=["bert", "jina_bert", "roberta", "distilbert", "mpnet", "deberta-v2"])
def model(request: pytest.FixtureRequest) -> PretrainingModel:
    torch.manual_seed(0)
    dropped = {"attention_probs_dropout_prob": 0.1}  # jina's has none
    values = {"vocab_size": 300, "model_type": request.param, **SHAPE, **dropped}
    return PretrainingModel(make_config(values, "test"))


def recipe(length: int = 32, kind: str = "adamw") -> Recipe:
    data = {"batch_size": 64, "sequence_lengths": [length], "sequence_shares": [1.0]}
    return check_recipe({"steps": 10, "optimizer": {"warmup": 1, "kind": kind}, "data": data}, "test")


def one(micro_batch_tokens: int, of: int = 1, sharded: bool = False) -> Machine:
    """One of some processes."""
    return Machine(torch.device("cpu"), torch.float32, 1e9, Ranks(0, of), micro_batch_tokens, sharded)


def bytes_of(tensors: list[torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def stepped(model: PretrainingModel, kind: str = "adamw") -> dict[str, torch.Tensor]:
    """Gradients on every weight, and the optimiser's state after a step."""
    optimizer = make_optimizer(model, recipe(kind=kind).optimizer)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    return collect_optimizer_tensors(model, optimizer)


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_weights_gradients_and_moments_are_exactly_those_of_the_run(
    model: PretrainingModel, kind: str
) -> None:
    state = stepped(model, kind)
    predicted = estimate_step_memory(model, recipe(kind=kind), one(256))
    assert predicted.weights == bytes_of(list(model.parameters()))
    assert predicted.gradients == bytes_of([p.grad for p in model.parameters() if p.grad is not None])
    assert predicted.moments == bytes_of(list(state.values()))
    copied = bytes_of(list(model.state_dict().values())) + bytes_of(list(state.values()))
    assert predicted.copy == copied
    assert predicted.total == predicted.weights * 2 + predicted.moments + copied + predicted.activations


@pytest.mark.parametrize("length", [32, 512])
@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("family", ["bert", "deberta-v2"])
def test_what_a_forward_pass_keeps_is_at_most_what_is_said(
    family: str, dropout: float, precision: torch.dtype, length: int
) -> None:
    shape = {"hidden_size": 128, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 512}
    asked = {"vocab_size": 1000, "model_type": family, "attention_probs_dropout_prob": dropout, **shape}
    model = PretrainingModel(make_config(asked, "test")).train()
    machine = replace(one(1024), precision=precision)
    tokens = np.zeros(1024, np.int64)
    batch = PackedBatch.pack(tokens, tokens, np.full(1024 // length, length))
    labels = torch.zeros(1024 * 15 // 100, dtype=torch.long)
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in weights:
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with (
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
        torch.autocast("cpu", precision, enabled=precision != torch.float32),
    ):
        model.masked_language_loss(model.encoder(batch)[: len(labels)], labels)
    measured = sum(tensor.untyped_storage().nbytes() for tensor in kept.values())
    assert measured <= estimate_activation_bytes(model, recipe(length), machine) <= 2 * measured


def test_flash_attention_keeps_no_weights_of_attention(model: PretrainingModel) -> None:
    def activations(device: str, precision: torch.dtype, length: int) -> int:
        machine = replace(one(2048), device=torch.device(device), precision=precision)
        return estimate_activation_bytes(model, recipe(length), machine)

    half, single = torch.bfloat16, torch.float32
    keeps_none = activations("cuda", half, 512) == activations("cuda", half, 32)
    with_distances = ("jina_bert", "mpnet", "deberta-v2")  # flash attention takes no bias
    assert keeps_none == (model.config.model_type not in with_distances)
    for device, precision in (("cuda", single), ("cpu", half), ("cpu", single)):
        assert activations(device, precision, 512) > activations(device, precision, 32)


def test_a_blueprint_tells_the_same(model: PretrainingModel) -> None:
    plan = meta_init(lambda: PretrainingModel(model.config))
    assert estimate_step_memory(plan, recipe(), one(256)) == estimate_step_memory(model, recipe(), one(256))
    settings = recipe().optimizer
    assert count_checkpoint_bytes(plan, settings) == count_checkpoint_bytes(model, settings)


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_a_checkpoint_has_the_size_foretold(model: PretrainingModel, kind: str, tmp_path: Path) -> None:
    state = TrainingState(RunProgress(step=3), model.state_dict(), stepped(model, kind))
    path = save_training_state(tmp_path, state, keep=1)
    saved = sum(file.stat().st_size for file in path.iterdir())
    foretold = count_checkpoint_bytes(model, recipe(kind=kind).optimizer)
    assert foretold == pytest.approx(saved, rel=0.01)
    assert foretold == pytest.approx(saved, abs=500)  # of state.json, whose numbers vary


def gpu_with(memory: float) -> Accelerator:
    return Accelerator("test", "a small GPU", "", "", {32: 0.5}, memory=memory)


def test_what_fits_gets_no_warning(model: PretrainingModel) -> None:
    needed = estimate_step_memory(model, recipe(), one(512)).total
    assert check_memory(model, recipe(), one(512), gpu_with(needed)) == []
    assert len(check_memory(model, recipe(), one(512), gpu_with(needed - 1))) == 1


def test_the_micro_batch_advised_fits_and_twice_as_many_tokens_do_not(model: PretrainingModel) -> None:
    memory = estimate_step_memory(model, recipe(), one(512)).total - 1
    advised = find_largest_micro_batch(model, recipe(), one(0), memory)
    assert advised == 256
    assert (
        estimate_step_memory(model, recipe(), one(advised)).total
        <= memory
        < estimate_step_memory(model, recipe(), one(512)).total
    )
    (warning,) = check_memory(model, recipe(), one(2048), gpu_with(memory))
    assert "a small GPU has" in warning
    assert "data.micro_batch_tokens=256 would" in warning


def test_where_no_micro_batch_fits_larger_hardware_is_named(model: PretrainingModel) -> None:
    assert find_largest_micro_batch(model, recipe(), one(0), 1000) is None
    (warning,) = check_memory(model, recipe(), one(512), gpu_with(1000))
    assert "No micro-batch is small enough: --hardware l4 would hold it." in warning


def test_of_several_each_keeps_its_share_of_the_batch(model: PretrainingModel) -> None:
    alone, of_eight = (estimate_step_memory(model, recipe(), one(4096, of=count)) for count in (1, 8))
    if model.config.relative_attention:  # each keeps what is made of the table of distances
        assert of_eight.activations < alone.activations < of_eight.activations * 8
    else:
        assert of_eight.activations * 8 == alone.activations
    assert of_eight.total - of_eight.activations == alone.total - alone.activations
    assert check_memory(model, recipe(), one(4096, of=8), gpu_with(of_eight.total)) == []
    assert len(check_memory(model, recipe(), one(4096), gpu_with(of_eight.total))) == 1


def test_weights_that_are_divided_are_the_advice_where_they_fit(model: PretrainingModel) -> None:
    memory = estimate_step_memory(model, recipe(), one(32, of=8, sharded=True)).total
    assert memory < estimate_step_memory(model, recipe(), one(32, of=8)).total
    (warning,) = check_memory(model, recipe(), one(4096, of=8), gpu_with(memory))
    assert "hardware.shard=full would divide weights, gradients and moments between the GPUs" in warning
