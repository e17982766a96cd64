"""A layer for inference in float32 on a processor, in C: kernels/layer.c says how and why.

N tokens in the packed batch, H hidden size, I feed-forward width, R rows that a head reads.
"""

from typing import Any

import torch
from torch import Tensor, nn

from bertsmith.data.batch import PackedBatch
from bertsmith.errors import ModelError
from bertsmith.model import bert, kernels
from bertsmith.model.attention import take
from bertsmith.model.kernels.attention import as_c

_PANEL = 16  # columns of a weight that lie together; D and I are multiples
_ACTIVATIONS = ("gelu", "gelu_new", "relu")


class KernelLayer(nn.Module):
    """A layer that gives the same, and is neither trained nor moved. Only its output is to be read.

    A sequence's values depend neither on the other sequences of a batch nor on the number of threads, to the
    bit. A pickled copy works on another processor that has the kernels.
    """

    precision = torch.float32

    def __init__(self, layer: bert.Layer) -> None:
        super().__init__()
        attention, feed_forward = layer.attention, layer.feed_forward
        self.heads, self.width = attention.heads, attention.output.in_features
        self.activation = _ACTIVATIONS.index(feed_forward.activation.name)
        self.linears = {
            "qkv": _panels(attention.qkv),
            "output": _panels(attention.output),
            "up": _panels(feed_forward.up),
            "down": _panels(feed_forward.down),
        }
        self.norms = {
            name: (norm.weight.detach(), norm.bias.detach(), norm.eps)
            for name, norm in (
                ("attention_norm", layer.attention_norm),
                ("feed_forward_norm", layer.feed_forward_norm),
            )
        }
        self.as_c = self._as_c()

    def forward(self, hidden_states: Tensor, batch: PackedBatch, rows: Tensor | None = None) -> Tensor:
        """As `bert.Layer`: (N, H) -> (N, H), with anything for spare tokens, or (R, H) for the given rows."""
        library = kernels.library(torch.backends.cpu.get_cpu_capability())
        threads, count = torch.get_num_threads(), len(batch.lengths)
        states = hidden_states.float().contiguous()
        if states.shape != (batch.spare + sum(batch.lengths), self.width):
            raise ValueError(f"expected (N, {self.width}) as in the batch, found {tuple(states.shape)}")
        mixed = torch.empty_like(states)
        given = states.data_ptr(), as_c(batch.lengths), count, threads, mixed.data_ptr()
        failed = library.self_attend(self.as_c, *given)
        mixed, states = take(mixed, rows), take(states, rows)
        found = torch.empty_like(states)
        real = len(states) - (batch.spare if rows is None else 0)
        given = mixed.data_ptr(), states.data_ptr(), real, threads, found.data_ptr()
        if failed or library.feed_forward(self.as_c, *given):
            raise MemoryError(f"no memory for a layer of {len(hidden_states):,} tokens")
        return found

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "as_c"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if not kernels.has_kernels():
            raise ModelError(
                "This copy of a model is for Bertsmith's compiled kernels, which are missing here: install "
                "Bertsmith where GCC is, as where the copy was made."
            )
        vars(self).update(state)
        self.as_c = self._as_c()

    def _as_c(self) -> Any:
        """Addresses: of this object's tensors in this process."""
        linears = {
            name: kernels.Linear(weight.shape[1], len(bias), weight.data_ptr(), bias.data_ptr())
            for name, (weight, bias) in self.linears.items()
        }
        norms = {
            name: kernels.Norm(gain.data_ptr(), shift.data_ptr(), epsilon)
            for name, (gain, shift, epsilon) in self.norms.items()
        }
        return kernels.Layer(**linears, **norms, heads=self.heads, activation=self.activation)


def takes_layer_kernel(layer: bert.Layer, precision: torch.dtype) -> bool:
    """Whether the kernel computes this layer in this precision here."""
    multiples = layer.attention.head_size, layer.feed_forward.up.out_features
    return (
        precision == torch.float32
        and layer.attention.qkv.weight.dtype == torch.float32
        and not any(each % _PANEL for each in multiples)
        and kernels.has_kernels()
    )


def _panels(linear: nn.Linear) -> tuple[Tensor, Tensor]:
    """(O, I) -> (O / 16, I, 16): of 16 columns of the product, row by row; and the bias."""
    panels = linear.weight.detach().view(-1, _PANEL, linear.in_features).transpose(1, 2)
    return panels.contiguous(), linear.bias.detach().contiguous()
