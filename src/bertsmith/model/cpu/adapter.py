"""LoRA's parts beside an encoder that several adapters share, computed by the kernels.

The product with the encoder's weights is made once for all rows of a batch; each adapter's products of low
rank are added for its own rows. A merged model rounds W + B A to int16, this one W alone: the two differ in
the last bits. N tokens in the packed batch, H hidden size.
"""

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bertsmith.model.bert import Bert
from bertsmith.model.config import BertConfig
from bertsmith.model.cpu.inference import usual_precision
from bertsmith.model.cpu.kernel_layer import PANEL, KernelLinear, supports_layer
from bertsmith.model.layers.initialisation import meta_init
from bertsmith.model.layers.layer import Layer
from bertsmith.model.lora import (
    LoraLinear,
    adaptable_modules,
    adapted_modules,
    merge_lora,
    read_adapter,
)


class KernelAdapter(nn.Module):
    """What LoRA adds to queries, keys and values of some layers. It can't be trained."""

    def __init__(self, layers: dict[int, LoraLinear]) -> None:
        super().__init__()
        self.downs, self.ups = nn.ModuleDict(), nn.ModuleDict()
        for number, linear in layers.items():
            with torch.no_grad():
                down, up = linear.stacked_a(), linear.settings.scaling * linear.stacked_b()
                missing = -len(down) % PANEL
                self.downs[str(number)] = _kernel_linear(F.pad(down, (0, 0, 0, missing)))
                self.ups[str(number)] = _kernel_linear(F.pad(up, (0, missing)))

    def forward(self, number: int, states: Tensor) -> Tensor | None:
        """What is added (N, 3 H) to the products of layer `number` for its input (N, H); None if nothing."""
        if str(number) not in self.downs:
            return None
        added: Tensor = self.ups[str(number)](self.downs[str(number)](states))
        return added


def detach_adapter(encoder: Bert, precision: torch.dtype | None = None) -> None:
    """Takes LoRA's parts off an encoder that isn't prepared yet, so that it can be shared, and lets it
    compute them beside its layers. They are merged instead where these adapt other products than queries,
    keys and values, and where the kernels don't compute the layers so.
    """
    adapted = dict(adapted_modules(encoder))
    layers = {int(path.split(".")[1]): linear for path, linear in adapted.items() if path.endswith(".qkv")}
    for path, linear in adapted.items():
        plain = nn.Linear(linear.in_features, linear.out_features, linear.bias is not None, device="meta")
        plain.weight, plain.bias = linear.weight, linear.bias
        encoder.set_submodule(path, plain)
    chosen = precision or usual_precision(encoder)
    if len(layers) == len(adapted) and all(
        isinstance(layer, Layer)
        and supports_layer(layer, chosen)
        and not layer.pre_norm
        and encoder.relative is None
        for layer in encoder.layers
    ):
        encoder.adapter = KernelAdapter(layers).eval()
        return
    for path, linear in adapted.items():
        encoder.set_submodule(path, linear)
    merge_lora(encoder)


def read_kernel_adapter(folder: Path, config: BertConfig) -> tuple[dict[str, Tensor], KernelAdapter | None]:
    """An adapter's parts for an encoder of this shape that is prepared already, and the folder's other
    tensors, as `read_adapter` gives them. None where the parts can only be merged into the weights.
    """
    frame = meta_init(lambda: Bert(config))
    for path in adaptable_modules(frame):
        linear = frame.get_submodule(path)
        assert isinstance(linear, nn.Linear)
        linear.weight = nn.Parameter(torch.zeros(1).expand(linear.weight.shape))  # takes no memory
    tensors = read_adapter(folder, frame)
    detach_adapter(frame)
    return tensors, frame.adapter if isinstance(frame.adapter, KernelAdapter) else None


def _kernel_linear(weight: Tensor) -> KernelLinear:
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    linear.weight = nn.Parameter(weight)
    return KernelLinear(linear)
