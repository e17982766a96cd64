"""The operation of a masked language model: candidates for each [MASK].

K masks of an input, V vocabulary.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bertsmith.errors import InputError
from bertsmith.inference.engine import Engine
from bertsmith.model.cpu.kernel_layer import as_kernel_linear
from bertsmith.serving.operations.operation import ForwardPass, Options, PreparedRequest
from bertsmith.serving.refusals import RequestTooLarge, TextTooLong
from bertsmith.tasks.examples.encoding import EncodedExample, Layout
from bertsmith.tasks.pretraining.fill_mask import masked_window
from bertsmith.tasks.pretraining.pretraining import PretrainingModel
from bertsmith.tasks.task import Outputs

_MOST_CANDIDATES = 1000  # of a mask
_MOST_IN_ANSWER = 100_000  # candidates of all masks of a request: each is an object in the answer
_MOST_NUMBERS = 1 << 27  # masks × V of a text, the logits that a worker holds at a time: 512 MB
_Candidates = tuple[Tensor, Tensor]  # (K, top) probabilities and ids


class FillMaskOperation:
    """The `top` candidates for each mask, by default 5, while the other masks stay masked. With `targets`, a
    list of tokens, only these are candidates; their probabilities remain those among all tokens.
    """

    option_names: frozenset[str] = frozenset({"top", "targets"})

    def __init__(self, name: str, engine: Engine[PretrainingModel]) -> None:
        self.engine = engine
        model = engine.model
        decoder = nn.Linear(1, 1)  # (H) -> (V), with the weights of the token embeddings
        decoder.weight, decoder.bias = model.encoder.embeddings.token.weight, model.masked_language.bias
        decoder.out_features, decoder.in_features = decoder.weight.shape
        decode = as_kernel_linear(decoder, model)

        def find_logits(states: Tensor, layout: Layout) -> Tensor:
            logits: Tensor = decode(model.masked_language(states))
            return logits.float()

        self.forward = ForwardPass.of_encoder(
            model.encoder, find_logits, engine.device, engine.compute_dtype, name, per_row=True
        )

    def prepare(self, inputs: Sequence[Any], options: Options) -> PreparedRequest:
        if options.long_text in ("truncate", "windows"):
            raise InputError("A text with masks is read whole: leave long_text away.")
        top = options.more.get("top", 5)
        if type(top) is not int or not 1 <= top <= _MOST_CANDIDATES:
            raise InputError(f"top must be 1 to {_MOST_CANDIDATES}, found {top!r}.")
        targets = self._read_targets(options.more.get("targets"))
        tokenizer, longest = self.engine.tokenizer, self.engine.model.config.max_length
        encoded = list[EncodedExample]()
        for number, text in enumerate(inputs, 1):
            where = f"input {number}"
            if not isinstance(text, str):
                raise InputError(f"{where}: expected a text, found {type(text).__name__}.")
            window = masked_window(tokenizer, text, where)
            if (length := len(window.token_ids)) > longest:
                raise TextTooLong(f"{where} has {length:,} tokens; this model reads at most {longest:,}.")
            encoded.append(EncodedExample((window,)))
        self._check_mask_count(encoded, top if targets is None else min(top, len(targets)))

        def reduce_logits(logits: Outputs) -> _Candidates:
            return _pick_candidates(logits[:, : tokenizer.vocab_size], top, targets)  # not its padding

        def finish(outputs: Sequence[_Candidates]) -> list[list[list[dict[str, Any]]]]:
            return [self._format_candidates(*candidates) for candidates in outputs]

        tokens = [sequence.tokens for sequence in encoded]
        return PreparedRequest(self.forward, encoded, finish, tokens, [False] * len(encoded), reduce_logits)

    def _check_mask_count(self, encoded: Sequence[EncodedExample], top: int) -> None:
        """Raises RequestTooLarge for more masks or candidates than are computed or sent at a time."""
        masks = [len(window.rows) for sequence in encoded for window in sequence.windows]
        vocab_size = self.engine.tokenizer.vocab_size
        most = min(_MOST_IN_ANSWER // top, _MOST_NUMBERS // vocab_size)
        if sum(masks) * top > _MOST_IN_ANSWER:
            raise RequestTooLarge(
                f"The request has {sum(masks):,} masks with {top:,} candidates each; at most "
                f"{_MOST_IN_ANSWER:,} candidates are sent at a time. Send fewer texts, or a smaller top."
            )
        if max(masks) > most:
            raise RequestTooLarge(f"A text has {max(masks):,} masks; at most {most:,} are filled at a time.")

    def _read_targets(self, targets: Any) -> torch.Tensor | None:
        """The token ids of the only candidates; None if every token is one."""
        if targets is None:
            return None
        if (
            not isinstance(targets, list)
            or not targets
            or not all(isinstance(piece, str) for piece in targets)
        ):
            raise InputError(f"targets must be a list of pieces of the vocabulary, found {targets!r}.")
        ids = {piece: self.engine.tokenizer.backend.token_to_id(piece) for piece in targets}
        if unknown := [piece for piece, id_ in ids.items() if id_ is None]:
            raise InputError(f"{unknown[0][:80]!r} is no piece of the vocabulary: it can't be a target.")
        return torch.tensor(sorted(set(ids.values())))

    def _format_candidates(self, probabilities: Tensor, ids: Tensor) -> list[list[dict[str, Any]]]:
        """(K, top) probabilities and ids of an input -> a list of candidates for each mask, best first."""
        id_to_token = self.engine.tokenizer.id_to_token
        return [
            [
                {"token": id_to_token(token_id), "token_id": token_id, "probability": probability}
                for token_id, probability in zip(ids_of_mask, probabilities_of_mask, strict=True)
            ]
            for ids_of_mask, probabilities_of_mask in zip(ids.tolist(), probabilities.tolist(), strict=True)
        ]


def _pick_candidates(logits: Outputs, top: int, targets: Tensor | None) -> _Candidates:
    """(K, V) logits -> (K, top) probabilities and ids, best first, which take far less room than the
    logits.
    """
    best_of_masks = []
    for row in logits:  # one at a time: all probabilities would take as much memory as the logits
        probabilities_of_mask = torch.from_numpy(row).softmax(0)
        if targets is not None:
            probabilities_of_mask = probabilities_of_mask[targets]
        best_of_masks.append(probabilities_of_mask.topk(min(top, len(probabilities_of_mask))))
    probabilities, ids = (torch.stack(rows) for rows in zip(*best_of_masks, strict=True))
    return probabilities, ids if targets is None else targets[ids]
