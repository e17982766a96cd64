"""Linear modules for inference on a processor, by the kernels' product: the pooler and what a head has.

N rows.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bertsmith.model.cpu import kernels
from bertsmith.model.cpu.kernel_layer import PANEL, KernelLayer, panels


class KernelLinear(nn.Module):
    """One that gives the same, in float32, and is neither trained nor moved.

    A row's values depend neither on the other rows nor on the number of threads, to the bit. Those of torch's
    product do: another number of rows is summed in another order.
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.inputs, self.outputs = linear.in_features, linear.out_features
        missing = -self.outputs % PANEL
        weight = F.pad(linear.weight.detach().float(), (0, 0, 0, missing))
        bias = weight.new_zeros(self.outputs) if linear.bias is None else linear.bias.detach().float()
        self.panels, self.padded_bias = panels(weight), F.pad(bias, (0, missing)).contiguous()

    def forward(self, x: Tensor) -> Tensor:
        """(N, inputs) -> (N, outputs)."""
        if x.ndim != 2 or x.shape[1] != self.inputs:
            raise ValueError(f"expected (N, {self.inputs}), found {tuple(x.shape)}")
        x, padded = x.float().contiguous(), len(self.padded_bias)
        found = x.new_empty(len(x), padded)
        # addresses of now: torch's pickler moves tensors into shared memory
        memory = self.panels.data_ptr(), None, self.padded_bias.data_ptr()
        linear = kernels.Linear(self.inputs, padded, *memory)
        threads = min(torch.get_num_threads(), padded // PANEL)
        library = kernels.library(kernels.instructions())
        library.product(linear, x.data_ptr(), len(x), threads, found.data_ptr())
        return found[:, : self.outputs].contiguous()


def by_kernels(model: nn.Module) -> None:
    """Makes the linear modules of a model so, where its encoder's layers are the kernels' already."""
    if not _has_kernel_layers(model):
        return
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if type(child) is nn.Linear:
                setattr(parent, name, KernelLinear(child))


def as_kernel(linear: nn.Linear, model: nn.Module) -> nn.Module:
    """The same for one linear module that is used beside a model; itself where the model has no kernels."""
    return KernelLinear(linear) if _has_kernel_layers(model) else linear


def _has_kernel_layers(model: nn.Module) -> bool:
    layers = model.get_submodule("encoder.layers")
    return all(isinstance(layer, KernelLayer) for layer in layers.children())
