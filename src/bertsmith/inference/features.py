"""Features: vectors of texts, tokens or words from a frozen encoder, from any layer or several layers
combined (Devlin et al. 2019, section 5.3 and table 7).

E texts, N tokens in the packed batch, R rows that are read, H hidden size, D width of a vector.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, cast, get_args

import numpy as np
import torch
from torch import Tensor

from bertsmith.argument_checks import check_arguments, integer_from, optional
from bertsmith.data.batch import PackedBatch
from bertsmith.errors import InputError
from bertsmith.inference.embedding.vectors import Vectors
from bertsmith.inference.engine import require_list, start_engine
from bertsmith.model.checkpoint import load_encoder
from bertsmith.model.layers.attention import select_rows
from bertsmith.model.locate import locate_model
from bertsmith.progress import Progress
from bertsmith.tasks.checkpoints.sentence_folder import find_encoder_folder
from bertsmith.tasks.classification import Classification
from bertsmith.tasks.examples.encoding import (
    EncodedExample,
    Layout,
    Window,
    every_row,
    join_segments,
    owner,
    special_tokens,
    windows,
)
from bertsmith.tasks.finetuning import encode_examples
from bertsmith.tasks.forward_passes import forward_passes
from bertsmith.tasks.heads.pooling import Pooling, pool_examples
from bertsmith.tasks.tagging import Tagging
from bertsmith.text.tokens.long_texts import TextEncoding

LayerChoice = Literal["last", "last4-sum", "last4-concat"] | int | Sequence[int]
FeaturePooling = Literal["mean", "cls", "max", "tokens", "words"]
Text = str | Sequence[str]  # a text or a pair of texts; the words of a sentence for pooling="words"

_USUAL_LENGTH = 256  # longer texts are windows: attention's cost grows with the square
USUAL_STRIDE = 32


@dataclass(frozen=True)
class LayerMix:
    """Layers by number, where 0 is the embeddings. Several layers are summed, or else concatenated."""

    numbers: tuple[int, ...]
    summed: bool = False

    @classmethod
    def parse(cls, layers: LayerChoice, last: int) -> "LayerMix":
        """Parses a choice of layers of an encoder with `last` layers; negative numbers count from the end.
        Raises InputError for unknown layers.
        """
        top = tuple(range(max(last - 3, 0), last + 1))
        named = {"last": cls((last,)), "last4-sum": cls(top, True), "last4-concat": cls(top)}
        if isinstance(layers, str):
            if layers not in named:
                raise InputError(f"layers must be {', '.join(named)} or numbers, found {layers!r}.")
            return named[layers]
        numbers = tuple(layers) if isinstance(layers, Sequence | np.ndarray) else (layers,)
        are_layers = [isinstance(n, int | np.integer) and -last - 1 <= int(n) <= last for n in numbers]
        if not numbers or not all(are_layers):
            raise InputError(f"layers are numbers from 0 (the embeddings) to {last}, found {layers!r}.")
        return cls(tuple(int(number) % (last + 1) for number in numbers))  # type: ignore[call-overload]

    def of(self, states: Sequence[Tensor]) -> Tensor:
        """Combines the chosen ones of all layers' hidden states, (N, H) each -> (N, D)."""
        chosen = [states[number] for number in self.numbers]
        return torch.stack(chosen).sum(0) if self.summed else torch.cat(chosen, 1)

    def width(self, hidden_size: int) -> int:
        """D, the width of the combined vector."""
        return hidden_size if self.summed else hidden_size * len(self.numbers)


class Features:
    """A frozen encoder that turns texts into vectors, without gradients and without padding.

    >>> Features("minilm").encode(["The court granted the motion.", "Denied."]).shape
    (2, 384)

    pooling: mean or max over all tokens of a text, including special ones, as in sentence-transformers; cls;
    tokens, a vector for each token; words, for each word the vector of its first token. max_length counts
    tokens, including special ones; the default is 256, or the model's longest input if that is less. Longer
    texts are read in windows that overlap by `stride` tokens (32, or a quarter of a window too short for
    that); with stride None they are truncated.
    """

    @check_arguments(
        max_length=optional(integer_from(1)),
        stride=optional(integer_from(0)),
        batch_tokens=optional(integer_from(1)),
    )
    def __init__(
        self,
        model: str | Path,
        layers: LayerChoice = "last",
        pooling: FeaturePooling = "mean",
        *,
        max_length: int | None = None,
        stride: int | None = USUAL_STRIDE,
        batch_tokens: int | None = None,
        device: torch.device | str = "auto",
    ) -> None:
        """Opens an encoder by path, alias or hub name. Raises ModelError when there is no such model,
        InputError for layers, pooling or lengths that it doesn't have.
        """
        if pooling not in get_args(FeaturePooling):
            raise InputError(f"pooling must be {', '.join(get_args(FeaturePooling))}, found {pooling!r}.")
        folder = find_encoder_folder(locate_model(model).folder)
        self.encoder, self.tokenizer, self.device, _ = start_engine(
            load_encoder(folder), folder, device, torch.float32
        )
        self.pooling = pooling
        self.mix = LayerMix.parse(layers, self.encoder.config.num_hidden_layers)
        longest = self.encoder.config.max_length
        if max_length is not None and not 8 <= max_length <= longest:
            raise InputError(
                f"max_length must be 8 to {longest}, what the model has positions for; found {max_length}."
            )
        self.max_length = max_length or min(_USUAL_LENGTH, longest)
        room = self.max_length - special_tokens(self.tokenizer, 1)
        if stride is not None and not 0 <= stride < room:
            if stride != USUAL_STRIDE:
                raise InputError(
                    f"stride must be 0 to {room - 1}, below the {room} tokens of a window without special "
                    f"ones; found {stride}."
                )
            stride = room // 4
        self.stride = stride
        self.batch_tokens = batch_tokens

    @property
    def width(self) -> int:
        """D, the width of the vectors that `encode` returns."""
        return self.mix.width(self.encoder.config.hidden_size)

    def encode(self, texts: Sequence[Text], progress: Progress | None = None) -> Vectors | list[Vectors]:
        """Encodes texts: (E, D), or with pooling tokens or words a list of (tokens, D) or (words, D) each.

        A text is a string or a pair of strings; for words, a string or a list of words. A vector depends on
        its text alone, except that other texts in the batch change the last bits.
        """
        return self._compute_mixes(texts, [self.mix], progress)[0]

    def layer_by_layer(
        self, texts: Sequence[Text], progress: Progress | None = None
    ) -> list[Vectors | list[Vectors]]:
        """As `encode`, for each layer by itself, the embeddings first, in one pass over the texts."""
        count = self.encoder.config.num_hidden_layers + 1
        return self._compute_mixes(texts, [LayerMix((number,)) for number in range(count)], progress)

    def _compute_mixes(
        self, texts: Sequence[Text], mixes: Sequence[LayerMix], progress: Progress | None
    ) -> list[Vectors | list[Vectors]]:
        """Encodes texts once for several mixes of layers, all of one width."""

        def compute(batch: PackedBatch, layout: Layout) -> Tensor:
            states = self.encoder.all_hidden_states(batch)
            mixed = [select_rows(mix.of(states), layout.rows) for mix in mixes]
            if not self._by_row:  # (R, D) -> (E, D)
                mixed = [
                    pool_examples(states_of_mix, layout, cast(Pooling, self.pooling))
                    for states_of_mix in mixed
                ]
            return torch.stack(mixed)

        encoded = self._encode_texts(texts)
        results_of_mixes: list[list[Vectors]] = [[np.empty(0, np.float32)] * len(encoded) for _ in mixes]
        done = 0
        for indices, layout, vectors in forward_passes(compute, encoded, self.device, self.batch_tokens):
            ends = np.cumsum(layout.rows_of_example)[:-1]
            for vectors_of_mix, results in zip(vectors, results_of_mixes, strict=True):
                parts = np.split(vectors_of_mix, ends) if self._by_row else vectors_of_mix
                for index, vector in zip(indices, parts, strict=True):
                    # The row of each word, because several words may share one.
                    first_rows = encoded[index].decoding
                    results[index] = vector if first_rows is None else vector[first_rows]
            done += len(indices)
            if progress is not None:
                progress(done, len(encoded), "texts")
        if self._by_row:
            return list(results_of_mixes)
        hidden_size = self.encoder.config.hidden_size
        return [
            np.stack(results) if results else np.empty((0, mix.width(hidden_size)), np.float32)
            for mix, results in zip(mixes, results_of_mixes, strict=True)
        ]

    @property
    def _by_row(self) -> bool:
        return self.pooling in ("tokens", "words")

    def _encode_texts(self, texts: Sequence[Text]) -> list[EncodedExample]:
        """Encodes texts as windows, with the rows that the pooling reads."""
        require_list(texts)
        if self.pooling == "tokens":
            for number, text in enumerate(texts, 1):
                if not isinstance(text, str):
                    raise InputError(
                        f"text {number}: vectors of pieces are made for single texts, found "
                        f"{type(text).__name__}. Give pairs one by one, or words with pooling='words'."
                    )
            return [
                self._encode_tokens(pieces) for pieces in self.tokenizer.encode_pieces(list(map(str, texts)))
            ]
        task_class = Tagging if self.pooling == "words" else Classification
        task = task_class(task_class.Settings(max_length=self.max_length, stride=self.stride))
        examples = [task.example(text, f"text {number}") for number, text in enumerate(texts, 1)]
        encoded = list(encode_examples(task, examples, self.tokenizer).encoded)
        if self.pooling in ("words", "cls"):
            return encoded
        with_all_rows = []
        for example in encoded:
            wide = [replace(window, rows=every_row(len(window.token_ids))) for window in example.windows]
            with_all_rows.append(EncodedExample(tuple(wide)))
        return with_all_rows

    def _encode_tokens(self, tokens: TextEncoding) -> EncodedExample:
        """Encodes a text's tokens as windows. Each token is read in the window with most of its context."""
        room = self.max_length - special_tokens(self.tokenizer, 1)
        before = len(self.tokenizer.template.before)  # [CLS]
        ranges = windows(tokens.ids, room, self.stride, self.tokenizer.truncation)
        owners = owner(ranges)
        windows_of_text = []
        for number, (start, end) in enumerate(ranges):
            rows = np.flatnonzero(owners[start:end] == number) + before
            windows_of_text.append(Window(*join_segments(self.tokenizer, tokens.ids[start:end]), rows))
        return EncodedExample(tuple(windows_of_text))
