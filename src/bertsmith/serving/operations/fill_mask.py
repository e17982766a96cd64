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
from bertsmith.model.cpu.kernel_layer import as_kernel
from bertsmith.serving.operations.operation import Options, Pass, PreparedRequest
from bertsmith.serving.refusals import TooLarge, TooLong
from bertsmith.tasks.examples.encoding import EncodedExample, Layout
from bertsmith.tasks.pretraining.fill_mask import masked_window
from bertsmith.tasks.pretraining.pretraining import PretrainingModel
from bertsmith.tasks.task import Outputs

_MOST = 1000  # candidates
_MOST_OF_ALL = 100_000  # candidates of all masks of a request: each is an object in the answer
_MOST_NUMBERS = 1 << 27  # masks × V of a text, which a worker has at a time: 512 MB
_Best = tuple[Tensor, Tensor]  # (K, top) probabilities and ids


class FillMaskOperation:
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

    def prepare(self, inputs: Sequence[Any], options: Options) -> PreparedRequest:
        if options.long_text in ("truncate", "windows"):
            raise InputError("A text with masks is read whole: leave long_text away.")
        top = options.more.get("top", 5)
        if type(top) is not int or not 1 <= top <= _MOST:
            raise InputError(f"top must be 1 to {_MOST}, found {top!r}.")
        targets = self._targets(options.more.get("targets"))
        tokenizer, longest = self.engine.tokenizer, self.engine.model.config.max_length
        encoded = list[EncodedExample]()
        for number, text in enumerate(inputs, 1):
            where = f"input {number}"
            if not isinstance(text, str):
                raise InputError(f"{where}: expected a text, found {type(text).__name__}.")
            window = masked_window(tokenizer, text, where)
            if (length := len(window.token_ids)) > longest:
                raise TooLong(f"{where} has {length:,} tokens; this model reads at most {longest:,}.")
            encoded.append(EncodedExample((window,)))
        self._require_few(encoded, top if targets is None else min(top, len(targets)))

        def keep(logits: Outputs) -> _Best:
            return _best(logits[:, : tokenizer.vocab_size], top, targets)  # rows without a piece

        def finish(outputs: Sequence[_Best]) -> list[list[list[dict[str, Any]]]]:
            return [self._shown(*each) for each in outputs]

        tokens = [each.tokens for each in encoded]
        return PreparedRequest(self.run, encoded, finish, tokens, [False] * len(encoded), keep)

    def _require_few(self, encoded: Sequence[EncodedExample], top: int) -> None:
        """Raises TooLarge for more masks than are computed, or candidates than are sent, at a time."""
        masks = [len(window.rows) for each in encoded for window in each.windows]
        pieces = self.engine.tokenizer.vocab_size
        most = min(_MOST_OF_ALL // top, _MOST_NUMBERS // pieces)
        if sum(masks) * top > _MOST_OF_ALL:
            raise TooLarge(
                f"The request has {sum(masks):,} masks with {top:,} candidates each; at most "
                f"{_MOST_OF_ALL:,} candidates are sent at a time. Send fewer texts, or a smaller top."
            )
        if max(masks) > most:
            raise TooLarge(f"A text has {max(masks):,} masks; at most {most:,} are filled at a time.")

    def _targets(self, given: Any) -> torch.Tensor | None:
        """The ids of the pieces that alone are candidates; None for all."""
        if given is None:
            return None
        if not isinstance(given, list) or not given or not all(isinstance(each, str) for each in given):
            raise InputError(f"targets must be a list of pieces of the vocabulary, found {given!r}.")
        numbers = {each: self.engine.tokenizer.backend.token_to_id(each) for each in given}
        if strange := [each for each, number in numbers.items() if number is None]:
            raise InputError(f"{strange[0][:80]!r} is no piece of the vocabulary: it can't be a target.")
        return torch.tensor(sorted(set(numbers.values())))

    def _shown(self, probabilities: Tensor, best: Tensor) -> list[list[dict[str, Any]]]:
        """(K, top) of an input -> for each mask the likeliest, best first."""
        name = self.engine.tokenizer.id_to_token
        return [
            [
                {"token": name(number), "token_id": number, "probability": each}
                for number, each in zip(numbers, shares, strict=True)
            ]
            for numbers, shares in zip(best.tolist(), probabilities.tolist(), strict=True)
        ]


def _best(logits: Outputs, top: int, targets: Tensor | None) -> _Best:
    """(K, V) -> (K, top), best first: what is kept while other texts of the request are still computed."""
    found = []
    for row in logits:  # one at a time: the probabilities of all would be as much again
        among = torch.from_numpy(row).softmax(0)
        if targets is not None:
            among = among[targets]
        found.append(among.topk(min(top, len(among))))
    probabilities, best = (torch.stack(each) for each in zip(*found, strict=True))
    return probabilities, best if targets is None else targets[best]
