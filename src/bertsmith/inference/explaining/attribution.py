"""What a model's answer rests on: each token's part of it by integrated gradients, and where attention looks.

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

from bertsmith.arrays import Floats
from bertsmith.data.batch import PackedBatch, to_device
from bertsmith.door import door, flag, function, kind, number, one_of, optional, whole
from bertsmith.inference.explaining.explained_model import (
    ExplainedInput,
    ExplainedModel,
    open_explained_model,
)
from bertsmith.model.bert import Bert
from bertsmith.model.layers.attention import SelfAttention
from bertsmith.model.layers.layer import Layer
from bertsmith.progress import Progress
from bertsmith.tasks.examples.encoding import EncodedExample, Layout, pack_examples
from bertsmith.tasks.forward_passes import require_finite
from bertsmith.tasks.task import Task

Baseline = Literal["mask", "pad"]
_AT_A_TIME = 2048  # tokens of a batch of points, at least one point
_FIRST_STEPS = 16
_SMALL = 32  # tokens of a small picture at most
_TINY = 1e-4  # a difference of which nothing can be a share


@dataclass(frozen=True)
class TokenAttributions:
    """`scores` (N,) of `tokens` (N,), special ones included, whose score is 0. They add up to `value` -
    `baseline_value`, the number named `target` for the input and for the baseline, but for the error of an
    integral by `steps` points.
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
        """How far the scores' sum is from the difference, as a share of it."""
        difference = self.value - self.baseline_value
        return float(abs(self.scores.sum() - difference) / max(abs(difference), _TINY))


@dataclass(frozen=True)
class AttentionWeights:
    """`weights` (L, A, N, N): how much of what token i (third axis) receives is of token j (fourth); each row
    adds up to 1. `tokens` (N,) with special ones.
    """

    tokens: tuple[str, ...]
    token_ids: tuple[int, ...]
    weights: npt.NDArray[np.float32]

    def in_two_bytes(self) -> npt.NDArray[np.uint16]:
        """(L, A, N, N), little-endian, 65535 for 1: what pages are given."""
        return np.asarray(np.round(self.weights * 65535).astype("<u2"))

    def thumbnails(self) -> npt.NDArray[np.uint8]:
        """(L, A, G, G), 255 for 1: a small picture of each head. G is N, or 32 where there are more tokens:
        of weights that fall together the largest.
        """
        small, tokens = self.weights, self.weights.shape[-1]
        if tokens > _SMALL:
            starts = np.arange(_SMALL) * tokens // _SMALL
            rows = np.maximum.reduceat(small, starts, axis=2)
            small = np.maximum.reduceat(rows, starts, axis=3)
        return np.asarray(np.round(small * 255).astype(np.uint8))


class Explainer:
    """A model opened a second time, in float32 and with gradients, to ask what its answers rest on.

    >>> explainer = Explainer("runs/clauses/model")
    >>> found = explainer.attributions("The court granted the motion.")
    >>> found.target, found.value  # the class, and its probability as the model predicts it
    >>> dict(zip(found.tokens, found.scores))  # what each token adds to it, or takes from it
    >>> explainer.attention("The court granted the motion.").weights.shape  # (L, A, N, N)

    For every task, a masked language model (the probability of a piece in place of the first mask) and an
    encoder of vectors (the cosine of a query and a document, by the document's tokens). An input is read in
    one window of at most 512 tokens. Several threads may call it; one computes at a time.
    """

    @door(as_vectors=flag)
    def __init__(
        self,
        name: str | Path,
        device: torch.device | str = "auto",
        *,
        as_vectors: bool = False,
        task: type[Task[Any]] | None = None,
    ) -> None:
        """By path, alias or hub name; `as_vectors` explains the cosines of a model that has a head too,
        `task` is for a model of a task of your own. Raises ModelError when there is no such model.
        """
        self.model: ExplainedModel = open_explained_model(name, device, as_vectors, task)
        self._lock = Lock()

    @door(
        target=optional(kind(str, int)),
        baseline=one_of("mask", "pad"),
        tolerance=number,
        most_steps=whole(1),
        progress=optional(function),
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
        """Integrated gradients (Sundararajan et al. 2017, arXiv 1703.01365) of what the model answers with:
        its calibrated probability, its score or its cosine.

        `given` is what the model's task reads: a text, a pair, (question, passage), a sentence or its words;
        a text with a mask; (query, document). `target`: a class, a piece of the vocabulary, or the number of
        a word; None explains what the model answers. The baseline is the input with [PAD] or [MASK] in place
        of each token: [PAD], whose embedding says nothing, or [MASK], which a model that has not filled masks
        for long reads as a word. Points are doubled from 16 to `most_steps` until the scores add up to within
        `tolerance` of the difference; `progress` counts those of each round. Raises InputError for what the
        model doesn't read, a target that it doesn't have, and for longer inputs; NotFinite.
        """
        with self._lock:
            explained = self.model.read(given, target)
            tokenizer = self.model.tokenizer
            path = _Path.of(
                self.model, explained, tokenizer.mask_id if baseline == "mask" else tokenizer.pad_id
            )
            ids = tuple(int(id) for window in explained.encoded.windows for id in window.token_ids)
            tokens = tuple(map(tokenizer.id_to_token, ids))
            ends = path.numbers([0.0, 1.0])
            steps = min(_FIRST_STEPS, most_steps)
            while True:
                scores = path.integral(steps, progress)
                found = TokenAttributions(tokens, ids, scores, explained.target, ends[1], ends[0], steps)
                if found.error <= tolerance or steps == most_steps:
                    return found
                steps = min(2 * steps, most_steps)

    def attention(self, given: Any) -> AttentionWeights:
        """The weights of every layer and head for an input that is read in one window; of two texts that the
        model encodes apart, for the second. Raises as `attributions` does.
        """
        with self._lock:
            window = self.model.read(given).encoded.windows[-1]
            batch = PackedBatch.of(pack_examples([EncodedExample((window,))], [0]), self.model.device)
            weights = require_finite(attention_weights(self.model.encoder, batch).cpu()).numpy()
        ids = tuple(map(int, window.token_ids))
        return AttentionWeights(tuple(map(self.model.tokenizer.id_to_token, ids)), ids, weights)


class _Path(NamedTuple):
    """The straight line from a baseline's embeddings to the input's."""

    model: ExplainedModel
    explained: ExplainedInput
    start: Tensor  # (N, H)
    end: Tensor  # (N, H)

    @classmethod
    def of(cls, model: ExplainedModel, explained: ExplainedInput, baseline: int) -> "_Path":
        ids = np.concatenate([window.token_ids for window in explained.encoded.windows])
        rows = model.encoder.embeddings.token.weight
        other = np.where(explained.replaced, baseline, ids)
        return cls(model, explained, *(rows[to_device(each, rows.device)] for each in (other, ids)))

    def numbers(self, places: list[float]) -> tuple[float, ...]:
        """The explained number at places from 0, the baseline, to 1, the input."""
        with torch.no_grad():
            return tuple(self._computed(self._points(places), len(places)).tolist())

    def integral(self, steps: int, progress: Progress | None) -> Floats:
        """(N,): the gradient's mean along the path by Gauss and Legendre's rule, times the way. Raises
        NotFinite.
        """
        places, weights = np.polynomial.legendre.leggauss(steps)
        size = max(1, _AT_A_TIME // len(self.end))
        total = torch.zeros_like(self.end, dtype=torch.float64)
        for first in range(0, steps, size):
            part = slice(first, first + size)
            shares = ((places[part] + 1) / 2).tolist()
            with torch.enable_grad():
                points = self._points(shares).requires_grad_()
                (found,) = torch.autograd.grad(self._computed(points, len(shares)).sum(), points)
            gradients = found.view(len(shares), *self.end.shape)  # (S, N, H)
            of_points = to_device(weights[part] / 2, gradients.device)
            total += torch.einsum("s,snh->nh", of_points, gradients.double())
            if progress is not None:
                progress(min(first + size, steps), steps, "points")
        scores: Floats = require_finite((total * (self.end - self.start)).sum(1).cpu()).numpy()
        return scores

    def _points(self, places: list[float]) -> Tensor:
        """(S N, H)."""
        shares = torch.tensor(places, dtype=self.end.dtype, device=self.end.device)[:, None, None]
        return (self.start + shares * (self.end - self.start)).flatten(0, 1)

    def _computed(self, points: Tensor, copies: int) -> Tensor:
        """(S N, H) in place of the tokens' embeddings -> (S,)."""
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
    """(L, A, N, N) in float32 of a batch of one sequence, by an explicit softmax, for the fused kernels never
    write them down: how much of what token i (third axis) receives is
    of token j (fourth). Each row adds up to 1. The encoder isn't prepared for inference.
    """
    found: list[Tensor] = []

    def note(attention: Any, given: tuple[Any, ...]) -> None:
        found.append(weights_of(attention, given[0], batch))

    layers = [layer for layer in encoder.layers if isinstance(layer, Layer)]
    hooks = [layer.attention.register_forward_pre_hook(note) for layer in layers]
    try:
        encoder(batch)
    finally:
        for hook in hooks:
            hook.remove()
    return torch.stack(found)


def weights_of(attention: SelfAttention, hidden_states: Tensor, batch: PackedBatch) -> Tensor:
    """softmax(q k^T / sqrt(D)) of what a layer's attention is given: (N, H) -> (A, N, N)."""
    qkv: Tensor = attention.qkv(hidden_states)
    qkv = qkv.view(-1, 3, attention.heads, attention.head_size)  # (N, 3, A, D)
    if attention.rotary is not None:
        qkv = attention.rotary(qkv, batch)
    query, key, _ = qkv.transpose(0, 2).unbind(1)  # each (A, N, D)
    scores = query @ key.mT / math.sqrt(attention.head_size)
    if attention.window is not None:
        places = batch.position_ids
        far = (places[:, None] - places).abs() > attention.window
        scores = scores.masked_fill(far, -torch.inf)
    return scores.float().softmax(-1)
