"""Trains a model on several ranks, in one of two ways (hardware.shard) behind the same few functions.

    none    every rank holds the full model; gradients are averaged (DistributedDataParallel)
    full    every rank holds its rows of each weight, gradient and AdamW moment; the weights of a layer are
            gathered to compute it and freed afterwards (FSDP2; Rajbhandari et al. 2020, stage 3)

A sharded tensor is torch's DTensor. All ranks take part in gathering: a rank that gathers more often than the
others would wait for ever.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, TypeGuard, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from bertsmith.model.layers.layer import Layer
from bertsmith.training.checkpoint import SINGLE_SHARD, Shard
from bertsmith.training.machine import Machine, make_text_gatherer

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor

T = TypeVar("T")


class Computation(nn.Module):
    """Wraps a model for DDP and FSDP, which need everything that is computed with it in one `forward`."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, compute: Callable[[], T]) -> T:
        """Returns `compute()`, called while the model's weights are available on this rank."""
        return compute()


def distribute(model: nn.Module, machine: Machine) -> nn.Module:
    """Wraps the model as a `Computation` over the machine's ranks. Sharding replaces the model's parameters:
    make the optimiser afterwards.
    """
    computation = Computation(model)
    if machine.sharded:
        _shard(computation, machine)
    elif machine.ranks.count > 1:
        return DistributedDataParallel(computation, gradient_as_bucket_view=True)
    return computation


def _shard(computation: Computation, machine: Machine) -> None:
    """Shards the model by FSDP2. The matrices of a layer are gathered together, in the precision of its
    products; LayerNorms, embeddings and heads all at once in float32, as autocast computes them, so that
    results equal those without sharding.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    attributes = {name: dict(vars(parameter)) for name, parameter in computation.named_parameters()}
    mesh = init_device_mesh(machine.device.type, (machine.ranks.count,))
    policy = MixedPrecisionPolicy(
        param_dtype=machine.precision, reduce_dtype=torch.float32, cast_forward_inputs=False
    )
    for layer in list(computation.modules()):
        if isinstance(layer, Layer):
            fully_shard([layer.attention, layer.feed_forward], mesh=mesh, mp_policy=policy)
    fully_shard(computation, mesh=mesh)
    for module in _find_sharded_modules(computation):
        module.set_force_sum_reduction_for_comms(True)  # then divides: gloo has no mean
    for name, parameter in computation.named_parameters():
        vars(parameter).update(attributes[name])  # such as a learning rate of its own, which torch drops


def gradient_exchange(computation: nn.Module, enabled: bool) -> AbstractContextManager[None]:
    """A context for one backward pass, after which ranks exchange gradients if `enabled`, or else add up
    their own.

    Ranks of a sharded model always exchange: adding up its own, each would hold gradients of the full model.
    """
    if isinstance(computation, DistributedDataParallel) and not enabled:
        context: AbstractContextManager[None] = computation.no_sync()
        return context
    return nullcontext()


def with_whole_weights(computation: nn.Module, compute: Callable[[], T]) -> T:
    """Returns `compute()`, called while every rank holds all weights, so that ranks may run different numbers
    of forward passes in it. No backward pass may follow.
    """
    if not _is_sharded_module(computation):
        return compute()
    root = cast("FSDPModule", computation)
    modules = [module for module in _find_sharded_modules(computation) if module is not root]

    def compute_gathered() -> T:
        for module in modules:
            module.set_reshard_after_forward(False)
            module.unshard()
        result = compute()
        for module in modules:
            module.reshard()
            module.set_reshard_after_forward(True)
        return result

    result: T = computation(compute_gathered)
    root.reshard()  # torch keeps the root's weights for a backward pass
    return result


def _find_sharded_modules(computation: nn.Module) -> "Iterator[FSDPModule]":
    return (cast("FSDPModule", module) for module in computation.modules() if _is_sharded_module(module))


def _is_sharded_module(module: nn.Module) -> bool:
    fsdp = sys.modules.get("torch.distributed.fsdp")  # half a second to import, and seldom needed
    return fsdp is not None and isinstance(module, fsdp.FSDPModule)


def _is_sharded(tensor: Tensor) -> "TypeGuard[DTensor]":
    distributed = sys.modules.get("torch.distributed.tensor")  # as above
    return distributed is not None and isinstance(tensor, distributed.DTensor)


def own_shard(machine: Machine) -> Shard:
    """The shard that this rank holds of every tensor; the only one where the model isn't sharded."""
    if not machine.sharded:
        return SINGLE_SHARD
    ranks = machine.ranks
    return Shard(ranks.rank, ranks.count, make_text_gatherer())


def own_rows(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """This rank's rows of each tensor, in the same memory and not copied."""
    return {name: tensor.to_local() if _is_sharded(tensor) else tensor for name, tensor in tensors.items()}


def shard_like(tensor: Tensor, rows: Tensor) -> Tensor:
    """The inverse of `own_rows`: a tensor that is sharded as `tensor` is and has this rank's `rows`."""
    rows = rows.to(tensor.device)
    if not _is_sharded(tensor):
        return rows
    from torch.distributed.tensor import DTensor

    mesh, placements = tensor.device_mesh, tensor.placements
    sharded: Tensor = DTensor.from_local(rows, mesh, placements, shape=tensor.shape, stride=tensor.stride())
    return sharded


def load_own_rows(model: nn.Module, rows: Mapping[str, Tensor]) -> None:
    """Loads weights into a model that were taken by `own_rows` from its state_dict."""
    own = model.state_dict()
    model.load_state_dict({name: shard_like(own[name], tensor) for name, tensor in rows.items()})


def gather_tensors(tensors: Mapping[str, Tensor], keep: bool = True) -> dict[str, Tensor]:
    """Gathers the full tensors; every rank has to call this. Ranks with `keep=False` get an empty dictionary.

    Tensors are gathered one by one onto the host, so that a GPU never holds more than one of them.
    """
    gathered: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        full = tensor.full_tensor().cpu() if _is_sharded(tensor) else tensor
        if keep:
            gathered[name] = full
    return gathered


def clip_gradients(model: nn.Module, max_norm: float) -> Tensor:
    """Scales the gradient of all weights down to the norm `max_norm` if it is longer. Returns the norm
    before, over the rows of all ranks (a tensor without dimensions).
    """
    parameters = list(model.parameters())
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norm = nn.utils.get_total_norm(gradients, foreach=True)
    norm = norm.full_tensor() if _is_sharded(norm) else norm
    nn.utils.clip_grads_with_norm_(parameters, max_norm, norm, foreach=True)
    return norm
