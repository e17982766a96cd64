"""What a masked language model would put in place of each [MASK].

K masks of an input, V vocabulary.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bertsmith.data.batch import PackedBatch
from bertsmith.errors import InputError
from bertsmith.inference.engine import Engine
from bertsmith.model.cpu.kernel_linear import as_kernel
from bertsmith.serving.operations.operation import Options, Pass, Prepared
from bertsmith.serving.refusals import TooLong
from bertsmith.tasks.examples.encoding import Encoded, Layout
from bertsmith.tasks.pretraining.fill_mask import masked_window
from bertsmith.tasks.pretraining.pretraining import PretrainingModel
from bertsmith.tasks.task import Outputs

_MOST = 1000  # candidates


class FillMask:
    """`top` candidates for each mask, 5 unless said, given that the others stay masked. With `targets`, a
    list of pieces, only these are candidates, each as probable as among all.
    """

    options: frozenset[str] = frozenset({"top", "targets"})

    def __init__(self, name: str, engine: Engine[PretrainingModel]) -> None:
        self.engine = engine
        model = engine.model
        vocabulary = nn.Linear(1, 1)  # the token embeddings transposed
        vocabulary.weight, vocabulary.bias = model.encoder.embeddings.token.weight, model.masked_language.bias
        vocabulary.out_features, vocabulary.in_features = vocabulary.weight.shape
        product = as_kernel(vocabulary, model)

        def compute(batch: PackedBatch, layout: Layout) -> Tensor:
            states = model.encoder(batch, layout.rows)
            logits: Tensor = product(model.masked_language(states))
            return logits.float()

        self.run = Pass(compute, engine.device, name, per_row=True)

    def prepare(self, inputs: Sequence[Any], options: Options) -> Prepared:
        if options.long_text in ("truncate", "windows"):
            raise InputError("A text with masks is read whole: leave long_text away.")
        top = options.more.get("top", 5)
        if type(top) is not int or not 1 <= top <= _MOST:
            raise InputError(f"top must be 1 to {_MOST}, found {top!r}.")
        targets = self._targets(options.more.get("targets"))
        encoded = [self._encoded(each, f"input {number}") for number, each in enumerate(inputs, 1)]

        def finish(outputs: Sequence[Outputs]) -> list[list[list[dict[str, Any]]]]:
            return [[self._best(logits, top, targets) for logits in each] for each in outputs]

        return Prepared(self.run, encoded, finish, [each.tokens for each in encoded], [False] * len(encoded))

    def _encoded(self, text: Any, where: str) -> Encoded:
        tokenizer, longest = self.engine.tokenizer, self.engine.model.config.max_length
        if not isinstance(text, str):
            raise InputError(f"{where}: expected a text, found {type(text).__name__}.")
        window = masked_window(tokenizer, text, where)
        if (length := len(window.token_ids)) > longest:
            raise TooLong(f"{where} has {length:,} tokens; this model reads at most {longest:,}.")
        return Encoded((window,))

    def _targets(self, given: Any) -> torch.Tensor | None:
        """The ids of the pieces that alone are candidates; None for all."""
        if given is None:
            return None
        known = {piece: number for number, piece in enumerate(self.engine.tokenizer.pieces)}
        if not isinstance(given, list) or not given or not all(isinstance(each, str) for each in given):
            raise InputError(f"targets must be a list of pieces of the vocabulary, found {given!r}.")
        if strange := [each for each in given if each not in known]:
            raise InputError(f"{strange[0][:80]!r} is no piece of the vocabulary: it can't be a target.")
        return torch.tensor(sorted({known[each] for each in given}))

    def _best(self, logits: Any, top: int, targets: torch.Tensor | None) -> list[dict[str, Any]]:
        """(V,) -> the likeliest, best first."""
        among = torch.from_numpy(logits).softmax(0)
        if targets is not None:
            among = among[targets]
        probabilities, best = among.topk(min(top, len(among)))
        if targets is not None:
            best = targets[best]
        return [
            {"token": self.engine.tokenizer.id_to_token(number), "token_id": number, "probability": each}
            for number, each in zip(best.tolist(), probabilities.tolist(), strict=True)
        ]
