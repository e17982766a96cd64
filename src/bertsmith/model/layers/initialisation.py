"""Draws the weights of modules before training, or makes modules on the meta device: with names and shapes
but no memory, to check a checkpoint and load it.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

Module = TypeVar("Module", bound=nn.Module)


def initialise(module: nn.Module, standard_deviation: float) -> None:
    """Initialises all parts of a module: weights from a normal distribution truncated at two deviations,
    biases zero, norms one (google-research/bert).
    """
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Embedding | nn.Conv1d):
            truncated_normal_(part.weight, standard_deviation)
        if isinstance(part, nn.LayerNorm | nn.RMSNorm):
            nn.init.ones_(part.weight)
        if isinstance(part, nn.Linear | nn.LayerNorm | nn.Conv1d) and part.bias is not None:
            nn.init.zeros_(part.bias)


@torch.no_grad()
def truncated_normal_(weight: Tensor, standard_deviation: float) -> None:
    """Fills `weight` from a normal distribution truncated at two deviations.

    Values beyond are drawn again: fifteen times as fast as torch's inverse of the error function.
    """
    if weight.is_meta:  # a blueprint has no values
        return
    weight.normal_(0, standard_deviation)
    outside = weight.abs() > 2 * standard_deviation
    while outside.any():
        weight[outside] = torch.empty(int(outside.sum())).normal_(0, standard_deviation)
        outside = weight.abs() > 2 * standard_deviation


def meta_init(build: Callable[[], Module]) -> Module:
    """The module that `build` makes, on the meta device: no memory is allocated, and no random number drawn.

    So a hostile config.json takes no memory, and initial weights that are replaced at once no time.
    """
    with torch.device("meta"), _WithoutNormalDraws():
        return build()


class _WithoutNormalDraws(TorchFunctionMode):
    """Skips `normal_`, for which torch would import its compiler on the meta device: that takes two
    seconds.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is nn.init.normal_ or func is torch.Tensor.normal_:
            return kwargs["tensor"] if kwargs and "tensor" in kwargs else args[0]
        return func(*args, **(kwargs or {}))
