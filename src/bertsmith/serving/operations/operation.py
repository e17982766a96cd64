"""The contract of an operation: a request's inputs → sequences to compute → the results.

E examples (sequences) of a request.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from bertsmith.data.batch import PackedBatch
from bertsmith.tasks.examples.encoding import EncodedExample, Layout
from bertsmith.tasks.forward_passes import forward_pass
from bertsmith.tasks.task import Outputs

LongText = Literal["error", "truncate", "windows"]


@dataclass(frozen=True, eq=False)
class ForwardPass:
    """Computes a batch with one model. Only sequences of the same pass are computed together.

    `per_row`: there is one output for each hidden state that the head reads, such as a word's, else one for
    each example.
    """

    compute: Callable[[PackedBatch, Layout], Tensor]
    device: torch.device
    model: str
    per_row: bool = False

    def compute_outputs(self, encoded: Sequence[EncodedExample]) -> list[Outputs]:
        """The outputs of each example. Raises NotFinite for a NaN or an infinity."""
        computed = forward_pass(self.compute, encoded, self.device)
        if not self.per_row:
            return list(computed.outputs)
        ends = np.cumsum(computed.layout.rows_of_example)[:-1]
        return list(np.split(computed.outputs, ends))


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
