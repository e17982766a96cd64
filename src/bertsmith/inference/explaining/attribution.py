"""Explainer: explains a model's answer by integrated gradients, each token's share of it, and by attention
weights.

N tokens of an input, S points between baseline and input, H hidden size, L layers, A heads.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bertsmith.argument_checks import (
    check_arguments,
    check_flag,
    check_function,
    check_number,
    instance_of,
    integer_from,
    one_of,
    optional,
)
from bertsmith.arrays import Floats
from bertsmith.data.batch import PackedBatch, to_device, widest_float
from bertsmith.inference.explaining.explained_model import (
    ExplainedInput,
    ExplainedModel,
    open_explained_model,
)
from bertsmith.model.bert import Bert
from bertsmith.model.cpu.grouped_attention import bias_square
from bertsmith.model.layers.attention import SelfAttention
from bertsmith.model.layers.disentangled import disentangled_scores
from bertsmith.model.layers.layer import Layer
from bertsmith.progress import Progress
from bertsmith.tasks.examples.encoding import EncodedExample, Layout, pack_examples
from bertsmith.tasks.forward_passes import require_finite
from bertsmith.tasks.task import Task

Baseline = Literal["mask", "pad"]
_AT_A_TIME = 2048  # tokens of a batch of points, at least one point
_FIRST_STEPS = 16
_SMALL = 32  # pixels of a thumbnail's side at most
_TINY = 1e-4  # smaller differences are too small to be a denominator


@dataclass(frozen=True)
class TokenAttributions:
    """The `scores` (N,) of an input's `tokens` (N,), which include special tokens with score 0.

    `value` and `baseline_value` are the explained number, named `target`, for the input and for the baseline.
    The scores add up to their difference, except for the error of an integral by `steps` points.
    """

    tokens: tuple[str, ...]
    token_ids: tuple[int, ...]
    scores: Floats
    target: str
    value: float
    baseline_value: float
    steps: int

    @property
    def error(self) -> float:
        """The relative error of the scores' sum: its distance from the difference, as a share of that."""
        difference = self.value - self.baseline_value
        return float(abs(self.scores.sum() - difference) / max(abs(difference), _TINY))


@dataclass(frozen=True)
class AttentionWeights:
    """Attention `weights` (L, A, N, N): how much token i (third axis) attends to token j (fourth). Each row
    adds up to 1. `tokens` (N,) include special ones.
    """

    tokens: tuple[str, ...]
    token_ids: tuple[int, ...]
    weights: npt.NDArray[np.float32]

    def in_two_bytes(self) -> npt.NDArray[np.uint16]:
        """The weights as little-endian uint16 (L, A, N, N), where 65535 is 1, for pages."""
        return np.asarray(np.round(self.weights * 65535).astype("<u2"))

    def thumbnails(self) -> npt.NDArray[np.uint8]:
        """A small picture of each head, (L, A, G, G), where 255 is 1. G is N, or 32 if there are more tokens;
        then each pixel is the largest of its weights.
        """
        small, tokens = self.weights, self.weights.shape[-1]
        if tokens > _SMALL:
            starts = np.arange(_SMALL) * tokens // _SMALL
            rows = np.maximum.reduceat(small, starts, axis=2)
            small = np.maximum.reduceat(rows, starts, axis=3)
        return np.asarray(np.round(small * 255).astype(np.uint8))


class Explainer:
    """Explains a model's answers. Opens a copy of the model in float32, with gradients.

    >>> explainer = Explainer("runs/clauses/model")
    >>> found = explainer.attributions("The court granted the motion.")
    >>> found.target, found.value  # the class, and its probability as the model predicts it
    >>> dict(zip(found.tokens, found.scores))  # what each token adds to it, or takes from it
    >>> explainer.attention("The court granted the motion.").weights.shape  # (L, A, N, N)

    Works for every task, for masked language models (the probability of a token in place of the first mask)
    and for embedding models (the cosine of a query and a document, by the document's tokens). An input must
    fit into one window of at most 512 tokens. Several threads may call it; one computes at a time.
    """

    @check_arguments(as_vectors=check_flag)
    def __init__(
        self,
        name: str | Path,
        device: torch.device | str = "auto",
        *,
        as_vectors: bool = False,
        task: type[Task[Any]] | None = None,
    ) -> None:
        """Opens a model by path, alias or hub name. `as_vectors` explains cosines even if the model has a
        head. `task` is the task's class if you wrote it yourself. Raises ModelError when there is no such
        model.
        """
        self.model: ExplainedModel = open_explained_model(name, device, as_vectors, task)
        self._lock = Lock()

    @check_arguments(
        target=optional(instance_of(str, int)),
        baseline=one_of("mask", "pad"),
        tolerance=check_number,
        most_steps=integer_from(1),
        progress=optional(check_function),
    )
    def attributions(
        self,
        given: Any,
        target: str | int | None = None,
        *,
        baseline: Baseline = "pad",
        tolerance: float = 0.01,
        most_steps: int = 256,
        progress: Progress | None = None,
    ) -> TokenAttributions:
        """Attributes the model's answer to tokens by integrated gradients (Sundararajan et al. 2017, arXiv
        1703.01365). The explained number is its calibrated probability, its score or its cosine.

        `given` is what the model reads: a text, a pair, (question, passage), a sentence or its words; a text
        with a mask; (query, document). `target` is a class, a token of the vocabulary, or the number of a
        word; None explains the model's own answer. The baseline is the input with each token replaced by
        [PAD], whose embedding says nothing, or by [MASK], which a fine-tuned model may read as a word. The
        number of points doubles from 16 to `most_steps` until the scores' sum is within `tolerance` of the
        difference; `progress` counts the points of each round.

        Raises InputError for an input that the model doesn't read or that is too long, and for a target that
        it doesn't have; NotFinite.
        """
        with self._lock:
            explained_input = self.model.read(given, target)
            tokenizer = self.model.tokenizer
            path = _Path.of(
                self.model, explained_input, tokenizer.mask_id if baseline == "mask" else tokenizer.pad_id
            )
            ids = tuple(int(id) for window in explained_input.encoded.windows for id in window.token_ids)
            tokens = tuple(map(tokenizer.id_to_token, ids))
            ends = path.numbers([0.0, 1.0])
            steps = min(_FIRST_STEPS, most_steps)
            while True:
                scores = path.integral(steps, progress)
                attributions = TokenAttributions(
                    tokens, ids, scores, explained_input.target, ends[1], ends[0], steps
                )
                if attributions.error <= tolerance or steps == most_steps:
                    return attributions
                steps = min(2 * steps, most_steps)

    def attention(self, given: Any) -> AttentionWeights:
        """The attention weights of every layer and head, for an input that fits into one window. If the model
        encodes two texts apart, the second one's. Raises as `attributions` does.
        """
        with self._lock:
            window = self.model.read(given).encoded.windows[-1]
            batch = PackedBatch.of(pack_examples([EncodedExample((window,))], [0]), self.model.device)
            weights = require_finite(attention_weights(self.model.encoder, batch).cpu()).numpy()
        ids = tuple(map(int, window.token_ids))
        return AttentionWeights(tuple(map(self.model.tokenizer.id_to_token, ids)), ids, weights)


class _Path(NamedTuple):
    """The straight line in embedding space from a baseline to the input."""

    model: ExplainedModel
    explained: ExplainedInput
    start: Tensor  # (N, H)
    end: Tensor  # (N, H)

    @classmethod
    def of(cls, model: ExplainedModel, explained: ExplainedInput, baseline: int) -> "_Path":
        ids = np.concatenate([window.token_ids for window in explained.encoded.windows])
        rows = model.encoder.embeddings.token.weight
        baseline_ids = np.where(explained.replaced, baseline, ids)
        return cls(
            model,
            explained,
            *(rows[to_device(token_ids, rows.device)].float() for token_ids in (baseline_ids, ids)),
        )

    def numbers(self, shares: list[float]) -> tuple[float, ...]:
        """The explained number at points of the path, from 0, the baseline, to 1, the input."""
        with torch.no_grad():
            return tuple(self._compute(self._points(shares), len(shares)).tolist())

    def integral(self, steps: int, progress: Progress | None) -> Floats:
        """The attributions (N,): the gradient's mean along the path, by Gauss-Legendre quadrature, times the
        difference of input and baseline. Raises NotFinite.
        """
        nodes, weights = np.polynomial.legendre.leggauss(steps)
        size = max(1, _AT_A_TIME // len(self.end))
        total = torch.zeros_like(self.end, dtype=widest_float(self.end.device))
        for first in range(0, steps, size):
            chunk = slice(first, first + size)
            shares = ((nodes[chunk] + 1) / 2).tolist()
            with torch.enable_grad():
                points = self._points(shares).requires_grad_()
                (gradient,) = torch.autograd.grad(self._compute(points, len(shares)).sum(), points)
            gradients = gradient.view(len(shares), *self.end.shape)  # (S, N, H)
            point_weights = to_device(weights[chunk] / 2, gradients.device)
            total += torch.einsum("s,snh->nh", point_weights, gradients.to(total))
            if progress is not None:
                progress(min(first + size, steps), steps, "points")
        scores: Floats = require_finite((total * (self.end - self.start)).sum(1).cpu()).numpy()
        return scores

    def _points(self, shares: list[float]) -> Tensor:
        """The embeddings at points of the path: (S N, H)."""
        fractions = torch.tensor(shares, dtype=self.end.dtype, device=self.end.device)[:, None, None]
        return (self.start + fractions * (self.end - self.start)).flatten(0, 1)

    def _compute(self, points: Tensor, copies: int) -> Tensor:
        """The explained number with `points` (S N, H) in place of the tokens' embeddings: (S,)."""
        encoded, device = [self.explained.encoded] * copies, self.end.device
        batch = PackedBatch.of(pack_examples(encoded, range(copies)), device)
        token = self.model.encoder.embeddings.token
        hook = token.register_forward_hook(lambda *_: points)
        try:
            return self.explained.compute(batch, Layout(encoded, device))
        finally:
            hook.remove()


@torch.no_grad()
def attention_weights(encoder: Bert, batch: PackedBatch) -> Tensor:
    """The attention weights of a batch of one sequence, (L, A, N, N) in float32: how much token i (third
    axis) attends to token j (fourth). Computed by an explicit softmax, because fused kernels never store the
    weights. The encoder must not be prepared for inference.
    """
    weights: list[Tensor] = []

    def record(attention: Any, inputs: tuple[Any, ...]) -> None:
        weights.append(weights_of(attention, inputs[0], batch, inputs[3]))

    # one that is computed several times records each time
    layers = [layer for layer in encoder.layers if isinstance(layer, Layer)]
    hooks = [layer.attention.register_forward_pre_hook(record) for layer in layers]
    try:
        encoder(batch)
    finally:
        for hook in hooks:
            hook.remove()
    return torch.stack(weights)


def weights_of(
    attention: SelfAttention, hidden_states: Tensor, batch: PackedBatch, relative: Tensor | None = None
) -> Tensor:
    """softmax(q k^T / sqrt(D)), or that of disentangled scores, for a layer's input: (N, H) -> (A, N, N).
    `relative` is the encoder's `relative_table`.
    """
    qkv: Tensor = attention.qkv(hidden_states)
    qkv = qkv.view(-1, 3, attention.heads, attention.head_size)  # (N, 3, A, D)
    if attention.rotary is not None:
        qkv = attention.rotary(qkv, batch)
    query, key, _ = qkv.transpose(0, 2).unbind(1)  # each (A, N, D)
    if attention.distances is not None and relative is not None:
        products = attention.distances(relative, attention.qkv)
        return disentangled_scores(query[:, None], key[:, None], products)[:, 0].float().softmax(-1)
    scores = query @ key.mT / math.sqrt(attention.head_size)
    if relative is not None:
        scores = scores + bias_square(relative, len(hidden_states))
    if attention.window is not None:
        positions = batch.position_ids
        is_far = (positions[:, None] - positions).abs() > attention.window
        scores = scores.masked_fill(is_far, -torch.inf)
    return scores.float().softmax(-1)
