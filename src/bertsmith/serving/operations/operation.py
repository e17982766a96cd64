"""The contract of an operation: a request's inputs → sequences to compute → the answer.

E examples of a request.
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
class Pass:
    """What computes a batch of one model. Only sequences of the same pass are computed together.

    `per_row`: the outputs are of the rows read, else of the examples.
    """

    compute: Callable[[PackedBatch, Layout], Tensor]
    device: torch.device
    model: str
    per_row: bool = False

    def outputs(self, encoded: Sequence[EncodedExample]) -> list[Outputs]:
        """Of each example. Raises NotFinite."""
        computed = forward_pass(self.compute, encoded, self.device)
        if not self.per_row:
            return list(computed.outputs)
        ends = np.cumsum(computed.layout.rows_of_example)[:-1]
        return list(np.split(computed.outputs, ends))


@dataclass(frozen=True)
class PreparedRequest:
    """A request ready to be computed.

    `keep` makes of a sequence's outputs what has to wait for the others; a worker calls it. `finish` makes of
    the E that were kept what is answered: one result an input, or what the operation says; `is_slow` where
    that takes as long as computing, so that no worker should do it. `input_tokens` and `truncated` are of the
    inputs, in their order.
    """

    run: Pass
    encoded: Sequence[EncodedExample]
    finish: Callable[[list[Any]], Any]
    input_tokens: Sequence[int]
    truncated: Sequence[bool]
    keep: Callable[[Outputs], Any] = lambda outputs: outputs
    is_slow: bool = False

    @property
    def tokens(self) -> int:
        """That have to be computed."""
        return sum(each.tokens for each in self.encoded)

    def answer(self) -> Any:
        """Computes and finishes it in this thread, past any queue. Raises NotFinite."""
        return self.finish([self.keep(each) for each in self.run.outputs(self.encoded)])


@dataclass(frozen=True)
class Options:
    """What a request says beside its inputs. `long_text` None: as the model was trained to read.

    `more` is what one operation alone knows: `top`, `kind`, `dimensions`, `normalise`, `query`, …

    `most_tokens` of a text are taken, says the service: a longer one need not be tokenised to its end.
    """

    long_text: LongText | None = None
    more: Mapping[str, Any] = field(default_factory=dict)
    most_tokens: int | None = None


class Operation(Protocol):
    """One thing that a model can be asked for. `options` names what it reads of `Options.more`."""

    options: frozenset[str]

    def prepare(self, inputs: Sequence[Any], options: Options) -> PreparedRequest:
        """Reads and tokenises. Raises InputError for inputs of another kind, TooLong."""
        ...
