"""A module's names and shapes without its memory: what a checkpoint is checked against and put into."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

Module = TypeVar("Module", bound=nn.Module)


def meta_init(build: Callable[[], Module]) -> Module:
    """What `build` makes, on the meta device: nothing allocated, no random number drawn.

    A hostile config.json thus costs no memory, and weights that are about to be replaced no time.
    """
    with torch.device("meta"), _WithoutNormalDraws():
        return build()


class _WithoutNormalDraws(TorchFunctionMode):
    """On the meta device torch answers `normal_` by importing its compiler, which takes two seconds."""

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
