"""A machine that nothing is wrong with; tests replace what they are about. And Apple's GPU, simulated."""

from typing import Any, Self

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from bertsmith.machine import Hardware

PLAIN = Hardware(
    processor="test",
    visible_cores=8,
    cores=4,
    cpu_limit=None,
    instructions=("avx2",),
    memory=16 * 10**9,
    memory_available=8 * 10**9,
    gpus=(),
)


class AppleTensor(torch.Tensor):
    """A tensor of the host that says it is on "mps"; see `SimulatedAppleGpu`."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> Self:
        if held.dtype == torch.float64:
            raise TypeError("the MPS framework doesn't support float64")
        return torch.Tensor._make_wrapper_subclass(
            cls, held.shape, dtype=held.dtype, device=torch.device("mps", 0)
        )

    def __init__(self, held: Tensor) -> None:
        self.held = held

    @classmethod
    def __torch_dispatch__(cls, function: Any, *_: Any) -> Any:
        raise RuntimeError(f"{function}: there is no Apple GPU here")


class SimulatedAppleGpu(TorchFunctionMode):
    """Within it "mps" is a device, of which the host computes everything. As there, float64 is refused, and
    so are operations on tensors of both devices, and `numpy`. Gradients aren't computed.
    """

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, function.__name__
        values = tree_leaves((args, kwargs))
        is_there = any(isinstance(value, AppleTensor) for value in values)
        names_it = any(map(_names_mps, values))
        as_they_are = (torch.device, torch.Tensor.device.__get__, torch._C._nn._parse_to)
        if not (is_there or names_it) or function in as_they_are:
            return function(*args, **kwargs)
        if name == "_has_compatible_shallow_copy_type":  # a parameter that moves is replaced
            return False
        of_host = [
            part for part in values if isinstance(part, Tensor) and part.ndim and not hasattr(part, "held")
        ]
        if is_there and of_host and name not in ("copy_", "__getitem__"):  # an index may be the host's
            raise RuntimeError(f"{name}: expected all tensors on one device, found mps and cpu")
        if name == "numpy":
            raise TypeError("can't convert mps:0 device type tensor to numpy")
        made = function(*tree_map(_on_host, args), **tree_map(_on_host, kwargs))
        targets = [value for value in values if isinstance(value, str | torch.device)]
        if name == "cpu" or (name in ("to", "empty_like") and targets and not any(map(_names_mps, targets))):
            return made
        return tree_map(lambda part: AppleTensor(part) if isinstance(part, Tensor) else part, made)


def _names_mps(value: Any) -> bool:
    return str(value).partition(":")[0] == "mps" if isinstance(value, str | torch.device) else False


def _on_host(value: Any) -> Any:
    if isinstance(value, AppleTensor):
        return value.held
    return torch.device("cpu") if _names_mps(value) else value
