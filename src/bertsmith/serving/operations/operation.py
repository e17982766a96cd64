"""The contract of an operation: a request's inputs → sequences to compute → the results.

E examples (sequences) of a request.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from bertsmith.data.batch import PackedBatch
from bertsmith.inference.engine import autocasting
from bertsmith.model.bert import Bert
from bertsmith.model.cpu.kernel_layer import KernelLayer
from bertsmith.model.static_table import StaticTable
from bertsmith.tasks.examples.encoding import EncodedExample, Layout
from bertsmith.tasks.forward_passes import HeadPass, answer_heads, forward_pass
from bertsmith.tasks.task import Outputs

LongText = Literal["error", "truncate", "windows"]


@dataclass(frozen=True, eq=False)
class ForwardPass:
    """Computes a batch with one model. Sequences of several passes are computed together only where these
    have the same `layers`, those of an encoder that several heads share.

    `per_row`: there is one output for each hidden state that the head reads, such as a word's, else one for
    each example. `head` is what is computed of the hidden states of `encoder`, if the encoder can be shared.
    """

    compute: Callable[[PackedBatch, Layout], Tensor]
    device: torch.device
    model: str
    per_row: bool = False
    encoder: Bert | None = None
    head: HeadPass | None = None

    @classmethod
    def of_encoder(
        cls,
        encoder: Bert | StaticTable,
        answer: Callable[[Tensor, Layout], Tensor],
        device: torch.device,
        compute_dtype: torch.dtype,
        model: str,
        *,
        per_row: bool = False,
        reads_all: bool = False,
    ) -> "ForwardPass":
        """The pass that makes `answer` of an encoder's hidden states, which are as in `HeadPass`. Heads share
        an encoder whose layers are the kernels', since these give the same bits in every batch.
        """

        def compute(batch: PackedBatch, layout: Layout) -> Tensor:
            with autocasting(encoder, device, compute_dtype):
                states = encoder(batch, None if reads_all else layout.rows)
            return answer(states, layout)

        if (
            isinstance(encoder, Bert)
            and encoder.layer_weights is None
            and all(isinstance(layer, KernelLayer) for layer in encoder.layers)
        ):
            head = HeadPass(answer, per_row, reads_all, encoder.adapter)
            return cls(compute, device, model, per_row, encoder, head)
        return cls(compute, device, model, per_row)

    @cached_property
    def layers(self) -> object:
        """What the passes of one batch have in common: the layers of their encoder, or the pass itself."""
        return self if self.encoder is None else self.encoder.layers

    def compute_outputs(self, encoded: Sequence[EncodedExample]) -> list[Outputs]:
        """The outputs of each example. Raises NotFinite for a NaN or an infinity."""
        computed = forward_pass(self.compute, encoded, self.device)
        if not self.per_row:
            return list(computed.outputs)
        ends = np.cumsum(computed.layout.rows_of_example)[:-1]
        return list(np.split(computed.outputs, ends))


def compute_together(passes: Sequence[ForwardPass], encoded: Sequence[EncodedExample]) -> list[Outputs]:
    """The outputs of each example by its pass; all passes have the same `layers`. Raises NotFinite."""
    first, heads = passes[0], [head for forward in passes if (head := forward.head) is not None]
    if first.encoder is None or all(forward is first for forward in passes):
        return first.compute_outputs(encoded)
    return answer_heads(first.encoder, heads, encoded)


@dataclass(frozen=True)
class PreparedRequest:
    """A tokenised request, ready to be computed.

    `forward` computes the sequences. `reduce` makes of a sequence's outputs what `finish` needs, so that less
    is held until all sequences are computed; a worker calls it. `finish` turns the E reduced outputs into the
    results, one for each input unless the operation documents otherwise. `is_slow`: `finish` takes so long
    that no worker should run it. `input_tokens` and `truncated` have one element for each input.
    """

    forward: ForwardPass
    encoded: Sequence[EncodedExample]
    finish: Callable[[list[Any]], Any]
    input_tokens: Sequence[int]
    truncated: Sequence[bool]
    reduce: Callable[[Outputs], Any] = lambda outputs: outputs
    is_slow: bool = False

    @property
    def tokens(self) -> int:
        """The number of tokens to compute, over all sequences."""
        return sum(encoded.tokens for encoded in self.encoded)

    def compute_answer(self) -> Any:
        """Computes and finishes the request in this thread, without a queue. Raises NotFinite."""
        return self.finish([self.reduce(output) for output in self.forward.compute_outputs(self.encoded)])


@dataclass(frozen=True)
class Options:
    """The options of a request. `long_text` is what becomes of a text that is longer than the model's
    maximum length; None: as the model was trained, in windows if its task has a stride, else truncated.

    `more` has the options of one operation: `top`, `kind`, `dimensions`, `normalise`, `query`, …

    `most_tokens` is the service's limit for a text: a longer one need not be tokenised to its end.
    """

    long_text: LongText | None = None
    more: Mapping[str, Any] = field(default_factory=dict)
    most_tokens: int | None = None


class Operation(Protocol):
    """Something that a model can compute for a request. `option_names` are the keys of `Options.more` that it
    reads.
    """

    option_names: frozenset[str]

    def prepare(self, inputs: Sequence[Any], options: Options) -> PreparedRequest:
        """Checks and tokenises the inputs. Raises InputError for inputs of another kind, TextTooLong."""
        ...
