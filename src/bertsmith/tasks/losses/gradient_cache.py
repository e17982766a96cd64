"""GradCache (Gao et al. 2021): a loss that compares all examples of a global batch, with the memory of one
micro-batch.

    first pass    the outputs of every micro-batch, without gradients, gathered from all ranks
    in between    the loss of all outputs, and its gradient with respect to each of them
    second pass   each micro-batch again: sum(outputs * their gradient) has the same gradient as the loss

It costs one more forward pass, a third of a step. E examples.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from bertsmith.data.batch import Sequences
from bertsmith.tasks.objective import Gather


class RngState(NamedTuple):
    """The states of torch's generators before a forward pass: the host's, and the GPU's if there is one."""

    host: Tensor
    gpu: Tensor | None

    @classmethod
    def capture(cls, device: torch.device) -> "RngState":
        """Copies the states that the generators of the host and of `device` have now."""
        gpu = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
        gpu = torch.mps.get_rng_state() if device.type == "mps" else gpu
        return cls(torch.get_rng_state(), gpu)

    @classmethod
    @contextmanager
    def kept(cls, device: torch.device) -> Iterator[None]:
        """A block at whose end the generators of the host and of `device` have the states of its begin."""
        states = cls.capture(device)
        try:
            yield
        finally:
            states.restore(device)

    def restore(self, device: torch.device) -> None:
        """Restores the generators, so that dropout draws the same numbers again."""
        torch.set_rng_state(self.host)
        if self.gpu is not None and device.type == "mps":
            torch.mps.set_rng_state(self.gpu)
        elif self.gpu is not None:
            torch.cuda.set_rng_state(self.gpu, device)


class _CachedGradient(NamedTuple):
    """What the second pass over a micro-batch needs. `gradient` is that of the whole loss with respect to the
    micro-batch's outputs. `loss` is the summed loss of its examples, detached.
    """

    rng_state: RngState
    gradient: Tensor
    loss: Tensor


@dataclass
class GradientCache:
    """Filled at the beginning of a step and emptied by its micro-batches. `forward` gives the outputs (E, …)
    of one.
    """

    forward: Callable[[Sequences], Tensor]
    device: torch.device
    _cached: dict[int, _CachedGradient] = field(default_factory=dict)

    def fill(
        self,
        micro_batches: Sequence[Sequence[Sequences]],
        rank: int,
        gather: Gather,
        losses: Callable[[Tensor], Tensor],
    ) -> None:
        """Runs the first pass over `micro_batches[rank]`. `losses` maps the outputs of all ranks'
        micro-batches, concatenated, to each example's loss (E,). The step's loss is their sum.
        """
        states, outputs = list[RngState](), list[Tensor]()
        with torch.no_grad():
            for micro_batch in micro_batches[rank]:
                states.append(RngState.capture(self.device))
                outputs.append(self.forward(micro_batch))
            # a rank without examples gives (0, …), in the shape of the others' outputs
            rank_outputs = (
                pad_and_concatenate(outputs)
                if outputs
                else self.forward(next(filter(None, micro_batches))[0])[:0]
            )
        all_outputs = pad_and_concatenate(gather(rank_outputs)).requires_grad_()
        with torch.enable_grad():
            example_losses = losses(all_outputs)
            (gradients,) = torch.autograd.grad(example_losses.sum(), all_outputs)
        start = sum(map(_count_examples, chain(*micro_batches[:rank])))
        for micro_batch, state, output in zip(micro_batches[rank], states, outputs, strict=True):
            examples = slice(start, start + len(output))
            gradient = gradients[examples, : output.shape[1]].to(output.dtype)
            self._cached[_first_key(micro_batch)] = _CachedGradient(
                state, gradient, example_losses[examples].detach().sum()
            )
            start += len(output)

    def loss(self, micro_batch: Sequences) -> Tensor | None:
        """Runs the second pass. Returns the summed loss of the micro-batch's examples, whose backward pass
        gives the weights the whole loss's gradient through these examples' outputs. None if there was no
        first pass, as for a step of a single micro-batch.
        """
        cached = self._cached.pop(_first_key(micro_batch), None)
        if cached is None:
            return None
        cached.rng_state.restore(self.device)
        surrogate = (self.forward(micro_batch) * cached.gradient).sum()
        return cached.loss + (surrogate - surrogate.detach())


def pad_and_concatenate(outputs: Sequence[Tensor]) -> Tensor:
    """Concatenates outputs (E, …). Where an example has several texts (E, T, H), those with fewer than others
    are padded with zeros.
    """
    if outputs[0].ndim < 3:
        return torch.cat(list(outputs))
    longest = max(output.shape[1] for output in outputs)
    return torch.cat([F.pad(output, (0, 0, 0, longest - output.shape[1])) for output in outputs])


def _count_examples(micro_batch: Sequences) -> int:
    """Neighbouring sequences with the same key are one example's."""
    keys = micro_batch.keys
    return int((keys[1:] != keys[:-1]).sum()) + 1


def _first_key(micro_batch: Sequences) -> int:
    """Identifies a micro-batch, for an example is in only one micro-batch of a step."""
    return int(micro_batch.keys[0])
