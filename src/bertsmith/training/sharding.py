"""A model on several ranks, in one of two ways behind the same few functions.

    none    every rank holds the whole model; gradients are averaged (DistributedDataParallel)
    full    every rank holds its rows of each weight, gradient and AdamW moment; the weights of a layer are
            gathered when it is computed and let go behind it (FSDP2; Rajbhandari et al. 2020, stage 3)

A divided tensor is torch's DTensor. Gathering takes all ranks: one that gathers more often than the others
would wait for ever.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, TypeGuard, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from bertsmith.model.layers.layer import Layer
from bertsmith.training.checkpoint import WHOLE, Shard
from bertsmith.training.machine import Machine, gathering_of_texts

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor

T = TypeVar("T")


class Computation(nn.Module):
    """A model as DDP and FSDP want it: whatever is computed with it is the `forward` of one module."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, compute: Callable[[], T]) -> T:
        """`compute()`, with the model's weights in place."""
        return compute()


def distribute(model: nn.Module, machine: Machine) -> nn.Module:
    """The model as a `Computation` over the machine's ranks. Sharding replaces its parameters: an optimiser
    has to be made afterwards.
    """
    computation = Computation(model)
    if machine.sharded:
        _divide(computation, machine)
    elif machine.ranks.count > 1:
        return DistributedDataParallel(computation, gradient_as_bucket_view=True)
    return computation


def _divide(computation: Computation, machine: Machine) -> None:
    """The products of a layer are gathered together, in the precision they are computed in; LayerNorms,
    embeddings and heads in float32 at once, as autocast has them: the numbers are those of `none`.
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
    for part in _divided_modules(computation):
        part.set_force_sum_reduction_for_comms(True)  # and divide: gloo has no mean
    for name, parameter in computation.named_parameters():
        vars(parameter).update(attributes[name])  # a learning rate of its own, which torch drops


def exchange(computation: nn.Module, wanted: bool) -> AbstractContextManager[None]:
    """Whether ranks exchange gradients after the next backward pass, or each adds up its own.

    Those that divide the model always do: a rank that adds up its own holds gradients of the whole model.
    """
    if isinstance(computation, DistributedDataParallel) and not wanted:
        context: AbstractContextManager[None] = computation.no_sync()
        return context
    return nullcontext()


def with_whole_weights(computation: nn.Module, compute: Callable[[], T]) -> T:
    """`compute()`, for which every rank meanwhile has all weights: it may take ranks different numbers of
    forward passes. None of them may be followed by a backward pass.
    """
    if not _is_divided_module(computation):
        return compute()
    whole = cast("FSDPModule", computation)
    parts = [part for part in _divided_modules(computation) if part is not whole]

    def gathered() -> T:
        for part in parts:
            part.set_reshard_after_forward(False)
            part.unshard()
        result = compute()
        for part in parts:
            part.reshard()
            part.set_reshard_after_forward(True)
        return result

    result: T = computation(gathered)
    whole.reshard()  # torch keeps the outermost for a backward pass
    return result


def _divided_modules(computation: nn.Module) -> "Iterator[FSDPModule]":
    return (cast("FSDPModule", each) for each in computation.modules() if _is_divided_module(each))


def _is_divided_module(module: nn.Module) -> bool:
    fsdp = sys.modules.get("torch.distributed.fsdp")  # half a second to import, and seldom needed
    return fsdp is not None and isinstance(module, fsdp.FSDPModule)


def _is_divided(tensor: Tensor) -> "TypeGuard[DTensor]":
    distributed = sys.modules.get("torch.distributed.tensor")  # as above
    return distributed is not None and isinstance(tensor, distributed.DTensor)


def own_part(machine: Machine) -> Shard:
    """Which part of every tensor this rank holds."""
    if not machine.sharded:
        return WHOLE
    ranks = machine.ranks
    return Shard(ranks.rank, ranks.count, gathering_of_texts())


def own_rows(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Of each tensor what this rank holds; the same memory, not a copy."""
    return {name: tensor.to_local() if _is_divided(tensor) else tensor for name, tensor in tensors.items()}


def divided_like(tensor: Tensor, rows: Tensor) -> Tensor:
    """The inverse of `own_rows`: this rank's rows as part of a tensor that is divided as `tensor` is."""
    rows = rows.to(tensor.device)
    if not _is_divided(tensor):
        return rows
    from torch.distributed.tensor import DTensor

    mesh, placements = tensor.device_mesh, tensor.placements
    divided: Tensor = DTensor.from_local(rows, mesh, placements, shape=tensor.shape, stride=tensor.stride())
    return divided


def load_own_rows(model: nn.Module, rows: Mapping[str, Tensor]) -> None:
    """Puts weights into a model, as `own_rows` of its state_dict gave them."""
    known = model.state_dict()
    model.load_state_dict({name: divided_like(known[name], tensor) for name, tensor in rows.items()})


def whole_tensors(tensors: Mapping[str, Tensor], keep: bool = True) -> dict[str, Tensor]:
    """Every row of each tensor, which takes all ranks; those that don't `keep` them get nothing.

    Gathered one after the other and kept on the host, so that a GPU never holds more than one of them.
    """
    kept: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        whole = tensor.full_tensor().cpu() if _is_divided(tensor) else tensor
        if keep:
            kept[name] = whole
    return kept


def clip_gradients(model: nn.Module, longest: float) -> Tensor:
    """Shortens the gradient of all weights to `longest`; returns its norm before, over all ranks' rows."""
    parameters = list(model.parameters())
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norm = nn.utils.get_total_norm(gradients, foreach=True)
    norm = norm.full_tensor() if _is_divided(norm) else norm
    nn.utils.clip_grads_with_norm_(parameters, longest, norm, foreach=True)
    return norm
