"""What dividing a model must not lose, in a group of a single process. What several do is in tests/faults."""

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from bertsmith.data.batch import PackedBatch
from bertsmith.model.bert import Bert
from bertsmith.model.config import make_config
from bertsmith.training.machine import Machine, Ranks
from bertsmith.training.sharding import (
    Computation,
    distribute,
    gather_tensors,
    load_own_rows,
    own_shard,
    shard_like,
    with_whole_weights,
)

SHAPE = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
BATCH = PackedBatch.pack(
    torch.arange(1, 10).numpy(), torch.zeros(9).long().numpy(), torch.tensor([4, 5]).numpy()
)


def machine(precision: torch.dtype = torch.float32, sharded: bool = True) -> Machine:
    return Machine(torch.device("cpu"), precision, 1e9, Ranks(), 4096, sharded)


@pytest.fixture(autouse=True, scope="module")
def _a_group_of_one() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def new_model(**changes: object) -> Bert:
    torch.manual_seed(3)
    shape = SHAPE | {"vocab_size": 12, "max_position_embeddings": 8}
    return Bert(make_config(shape | changes, "test")).eval()


def test_a_single_process_is_left_alone() -> None:
    model = new_model()
    computation = distribute(model, machine(sharded=False))
    assert type(computation) is Computation
    assert not any(isinstance(parameter, DTensor) for parameter in model.parameters())
    assert own_shard(machine(sharded=False)).count == 1


def test_every_weight_is_divided_under_its_old_name() -> None:
    names = list(new_model().state_dict())
    model = new_model()
    distribute(model, machine())
    assert list(model.state_dict()) == names
    assert all(isinstance(parameter, DTensor) for parameter in model.parameters())


def test_a_learning_rate_of_its_own_and_freezing_survive() -> None:
    model = new_model()
    model.layers[0].attention.qkv.weight.learning_rate_factor = 20.0
    model.embeddings.token.weight.requires_grad_(False)
    distribute(model, machine())
    assert model.layers[0].attention.qkv.weight.learning_rate_factor == 20.0
    assert not hasattr(model.layers[1].attention.qkv.weight, "learning_rate_factor")
    assert not model.embeddings.token.weight.requires_grad
    assert model.embeddings.position.weight.requires_grad


def test_products_are_in_bfloat16_and_all_else_in_float32_as_autocast_has_them() -> None:
    model, other = new_model(), new_model()
    here = machine(torch.bfloat16)
    computation = distribute(model, here)
    kinds: dict[str, torch.dtype] = {}

    def look() -> Tensor:
        kinds.update({name: parameter.dtype for name, parameter in model.named_parameters()})
        return model(BATCH)

    with torch.no_grad(), here.autocast():
        divided, plain = with_whole_weights(computation, look), other(BATCH)
    assert torch.equal(divided, plain)
    products = {name for name, kind in kinds.items() if kind == torch.bfloat16}
    assert products == {name for name in kinds if ".attention." in name or ".feed_forward." in name}
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


def test_after_an_evaluation_every_weight_is_divided_again() -> None:
    model, other = new_model(), new_model()
    computation = distribute(model, machine())
    with torch.no_grad():
        inside, outputs = with_whole_weights(computation, lambda: (divided(model), model(BATCH)))
        assert torch.equal(outputs, other(BATCH))
    assert not any(inside)
    assert all(divided(model))


@pytest.mark.parametrize(
    "family", [{}, {"model_type": "albert", "embedding_size": 4}], ids=["bert", "albert"]
)
def test_gradients_are_those_of_the_whole_model(family: dict[str, object]) -> None:
    """Also where a layer's weights are gathered for each time that it is computed (ALBERT)."""
    model, other = (new_model(**family, num_hidden_layers=3, initializer_range=0.3) for _ in range(2))
    computation = distribute(model, machine())
    for _ in range(2):  # in the second pass gradients are added to those there are
        computation(lambda: model(BATCH).square().sum()).backward()
        other(BATCH).square().sum().backward()
    gradients = {name: p.grad.full_tensor() for name, p in model.named_parameters() if p.grad is not None}
    wanted = {name: p.grad for name, p in other.named_parameters() if p.grad is not None}
    assert gradients.keys() == wanted.keys() and len(wanted) > 10
    for name, gradient in wanted.items():
        torch.testing.assert_close(gradients[name], gradient)


def divided(model: nn.Module) -> list[bool]:
    return [isinstance(parameter, DTensor) for parameter in model.parameters()]


def test_own_rows_are_put_back_and_gathered() -> None:
    model, other = new_model(), new_model()
    distribute(model, machine())
    nn.init.normal_(other.embeddings.token.weight)
    load_own_rows(model, other.state_dict())
    gathered = gather_tensors(model.state_dict())
    assert gathered.keys() == other.state_dict().keys()
    assert all(torch.equal(gathered[name], tensor) for name, tensor in other.state_dict().items())
    assert gather_tensors(model.state_dict(), keep=False) == {}
    weight = model.embeddings.token.weight
    assert torch.equal(shard_like(weight, torch.ones(12, 8)).full_tensor(), torch.ones(12, 8))
