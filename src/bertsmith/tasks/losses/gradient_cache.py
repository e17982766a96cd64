"""A loss that compares all examples of a global batch, with the memory of one micro-batch (Gao et al. 2021).

    first pass    the outputs of every micro-batch, without gradient, gathered from all ranks
    in between    the loss of them all, and its gradient with respect to each output
    second pass   each micro-batch once more: sum(outputs * their gradient) has the loss's own gradient

It costs a forward pass more, a third of a step. E examples.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from bertsmith.data.batch import Sequences
from bertsmith.tasks.objective import Gather


class RandomState(NamedTuple):
    """Torch's generators as dropout finds them: the host's, and the GPU's where there is one."""

    host: Tensor
    gpu: Tensor | None

    @classmethod
    def now(cls, device: torch.device) -> "RandomState":
        gpu = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
        return cls(torch.get_rng_state(), gpu)

    def restore(self, device: torch.device) -> None:
        """From here on the same numbers are drawn again."""
        torch.set_rng_state(self.host)
        if self.gpu is not None:
            torch.cuda.set_rng_state(self.gpu, device)


class _CachedGradient(NamedTuple):
    """What the second pass over a micro-batch needs; `value` is its examples' part of the loss."""

    before: RandomState
    gradient: Tensor
    value: Tensor


@dataclass
class GradientCache:
    """Filled at the beginning of a step, emptied by its micro-batches. `forward` gives (E, …) of one."""

    forward: Callable[[Sequences], Tensor]
    device: torch.device
    _kept: dict[int, _CachedGradient] = field(default_factory=dict)

    def fill(
        self,
        micro_batches: Sequence[Sequence[Sequences]],
        rank: int,
        gather: Gather,
        losses: Callable[[Tensor], Tensor],
    ) -> None:
        """The first pass over `micro_batches[rank]`; `losses` gives each example's part (E,) of the summed
        loss, of the outputs of all ranks' micro-batches end to end.
        """
        states, outputs = list[RandomState](), list[Tensor]()
        with torch.no_grad():
            for micro_batch in micro_batches[rank]:
                states.append(RandomState.now(self.device))
                outputs.append(self.forward(micro_batch))
            # a rank without examples gives (0, …), in the shape of the others' outputs
            own = joined(outputs) if outputs else self.forward(next(filter(None, micro_batches))[0])[:0]
        everything = joined(gather(own)).requires_grad_()
        with torch.enable_grad():
            parts = losses(everything)
            (gradients,) = torch.autograd.grad(parts.sum(), everything)
        start = sum(_examples(each) for each in chain(*micro_batches[:rank]))
        for micro_batch, state, output in zip(micro_batches[rank], states, outputs, strict=True):
            rows = slice(start, start + len(output))
            gradient = gradients[rows, : output.shape[1]].to(output.dtype)
            self._kept[_name(micro_batch)] = _CachedGradient(state, gradient, parts[rows].detach().sum())
            start += len(output)

    def loss(self, micro_batch: Sequences) -> Tensor | None:
        """The second pass: the micro-batch's part of the loss, with the whole loss's gradient in what it
        came of. None where there was no first pass.
        """
        kept = self._kept.pop(_name(micro_batch), None)
        if kept is None:
            return None
        kept.before.restore(self.device)
        surrogate = (self.forward(micro_batch) * kept.gradient).sum()
        return kept.value + (surrogate - surrogate.detach())


def joined(outputs: Sequence[Tensor]) -> Tensor:
    """(E, …) of each part -> (E, …) of all; examples that have fewer rows than others end in zeros."""
    if outputs[0].ndim < 3:
        return torch.cat(list(outputs))
    most = max(output.shape[1] for output in outputs)
    return torch.cat([F.pad(output, (0, 0, 0, most - output.shape[1])) for output in outputs])


def _examples(micro_batch: Sequences) -> int:
    keys = micro_batch.keys
    return int((keys[1:] != keys[:-1]).sum()) + 1


def _name(micro_batch: Sequences) -> int:
    """An example is in one micro-batch of a step only."""
    return int(micro_batch.keys[0])
