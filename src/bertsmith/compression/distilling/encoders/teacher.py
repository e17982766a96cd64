"""The frozen teacher beside its student: what it makes of a batch, as far as somebody learns from it; and its
vectors in fewer dimensions, the directions in which they are longest.

N tokens in the packed batch, K masked positions, H hidden size, V vocabulary.
"""

from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import load_file, save
from torch import Tensor, nn

from bertsmith.data.batch import PackedBatch, Sequences
from bertsmith.data.stream import Cursor, PretrainingStream
from bertsmith.errors import ModelError
from bertsmith.files import atomic_write
from bertsmith.inference.embedding.vectors import Vectors
from bertsmith.model.bert import Bert
from bertsmith.model.cpu.inference import prepare_for_inference, usual_precision
from bertsmith.model.layers.attention import SelfAttention
from bertsmith.model.layers.layer import Layer
from bertsmith.tasks.pretraining.pretraining import MaskedLanguageHead

_VECTORS_A_DIMENSION = 16  # of a sample, so that no direction is chance
_SMALLEST = 4096


class Taught(NamedTuple):
    """Hidden states (N, H) of the last layer, and queries, keys and values (N, 3 H) of the chosen one."""

    states: Tensor
    products: Tensor | None


@dataclass
class Probe:
    """The first part of a layer, as it was trained: what makes queries, keys and values of its input."""

    layer: int
    norm: nn.Module
    attention: SelfAttention

    def products(self, states: Tensor, batch: PackedBatch) -> Tensor:
        """(N, H) -> (N, 3 H), with the positions in them where they are rotations."""
        return with_positions(self.attention, self.attention.qkv(self.norm(states)), batch)


class Teacher:
    """Computes as inference does: by the kernels on a processor, in int16, which keeps cosines to 1e-5 and
    gives a sequence the same values in any company; with autocast's precision on a GPU.

    Its weights are no part of the trained model: they have no gradient, and no checkpoint holds them.
    """

    def __init__(
        self, encoder: Bert, device: torch.device, layer: int | None = None, head: nn.Module | None = None
    ) -> None:
        """`layer` is the one whose relations are taught, counted from 0, None for none; `head` predicts
        masked words. Takes the encoder over.
        """
        self.config = encoder.config
        encoder = encoder.to(device).eval().requires_grad_(False)
        self.probe = None if layer is None else _probe(encoder, layer)
        self.head = None if head is None else head.to(device).eval().requires_grad_(False)
        precision = usual_precision(encoder) if device.type == "cpu" else torch.float32
        self.encoder = prepare_for_inference(encoder, precision)

    @torch.no_grad()
    def __call__(self, batch: PackedBatch) -> Taught:
        """Of every token of the batch."""
        states: Tensor = self.encoder.embeddings(batch)
        products = None
        for number, layer in enumerate(self.encoder.layers):
            if self.probe is not None and number == self.probe.layer:
                products = self.probe.products(states, batch)
            states = layer(states, batch)
        if self.encoder.final_norm is not None:
            states = self.encoder.final_norm(states)
        return Taught(states, products)

    @torch.no_grad()
    def logits(self, states: Tensor) -> Tensor:
        """(K, H) hidden states of masked positions -> (K, V)."""
        assert isinstance(self.head, MaskedLanguageHead)
        weight = self.encoder.embeddings.token.weight
        return nn.functional.linear(self.head(states), weight, self.head.bias)


def with_positions(attention: SelfAttention, products: Tensor, batch: PackedBatch) -> Tensor:
    """(N, 3 H) of queries, keys and values: the former two turned where a layer has rotary positions."""
    if attention.rotary is None:
        return products
    turned: Tensor = attention.rotary(products.view(-1, 3, attention.heads, attention.head_size), batch)
    return turned.flatten(1)


def _probe(encoder: Bert, layer: int) -> Probe:
    chosen = encoder.layers[layer]
    assert isinstance(chosen, Layer)
    norm = deepcopy(chosen.attention_norm) if chosen.pre_norm else nn.Identity()
    return Probe(layer, norm, deepcopy(chosen.attention))  # preparing takes the layer's own weights apart


def principal_directions(vectors: Vectors, dimensions: int) -> Tensor:
    """(B, H) -> (D, H), orthonormal rows: among all projections to D dimensions the one whose products of
    two vectors are nearest to those of the whole ones (Eckart and Young 1936), so nothing is centred.
    """
    products = torch.from_numpy(vectors.T @ vectors).double()
    directions = torch.linalg.eigh(products).eigenvectors  # columns, the weakest first
    strongest: Tensor = directions.flip(1)[:, :dimensions].T.float().contiguous()
    return strongest


def sample_size(width: int) -> int:
    """How many vectors directions are learned from."""
    return max(_SMALLEST, _VECTORS_A_DIMENSION * width)


def sampled(stream: PretrainingStream, count: int) -> Iterator[Sequences]:
    """The first texts of a stream, batch by batch."""
    for batch in stream.batches(Cursor(), last_epoch=0):
        yield batch.sequences
        count -= len(batch.sequences)
        if count <= 0:
            return


def learned_once(path: Path, width: int, dimensions: int, learn: Callable[[], Vectors]) -> Tensor:
    """(D, H) as kept in the run's folder, or of vectors (B, H) that `learn` computes, and then kept.

    Raises ModelError when there are fewer texts than dimensions, or the file is another run's.
    """
    if not path.exists():
        vectors = learn()
        if len(vectors) < dimensions:
            raise ModelError(
                f"{dimensions} dimensions need as many texts to be learned from, and the corpus has "
                f"{len(vectors):,}. Give a larger corpus, or fewer dimensions."
            )
        atomic_write(path, save({"projection": principal_directions(vectors, dimensions)}))
    projection = load_file(path)["projection"]
    if projection.shape != (dimensions, width):
        raise ModelError(f"{path} is of another run: its shape is {tuple(projection.shape)}. Remove it.")
    return projection
