"""Builds a module on the meta device, with names and shapes but no memory, to check a checkpoint
and load it.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

Module = TypeVar("Module", bound=nn.Module)


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
