"""The frozen teacher of an encoder distillation: its outputs for a batch, the projection of its vectors to
fewer dimensions (principal directions), and the cache of its vectors on disk.

N tokens in the packed batch, K masked positions, H hidden size, V vocabulary, B texts, D dimensions.
"""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from safetensors.torch import load_file, save
from torch import Tensor, nn

from bertsmith.arrays import Ints
from bertsmith.data.batch import PackedBatch, split
from bertsmith.data.stream import Cursor, PretrainingStream
from bertsmith.errors import ModelError
from bertsmith.files import atomic_write, make_folder, require_free_space
from bertsmith.inference.embedding.vectors import Vectors, normalised
from bertsmith.model.bert import Bert
from bertsmith.model.cpu.inference import prepare_for_inference, usual_precision
from bertsmith.model.layers.attention import SelfAttention
from bertsmith.model.layers.layer import Layer
from bertsmith.tasks.heads.pooling import Pooling, Projection, pool_sequences
from bertsmith.tasks.pretraining.pretraining import MaskedLanguageHead
from bertsmith.training.machine import Machine, wait_for_ranks

_VECTORS_A_DIMENSION = 16  # sampled vectors for each dimension, so that no direction is due to chance
_SMALLEST_SAMPLE = 4096  # vectors
_SAMPLE_MICRO_BATCH = 4096  # tokens
_TOLERANCE = 0.01  # of a vector's length; rounding to float16 changes it by 0.0005


class TeacherStates(NamedTuple):
    """The last hidden states (N, H), and the queries, keys and values (N, 3 H) of the layer whose relations
    are taught, None without one.
    """

    states: Tensor
    products: Tensor | None


@dataclass
class RelationProbe:
    """A copy of the modules of layer number `layer` that compute queries, keys and values from its input."""

    layer: int
    norm: nn.Module
    attention: SelfAttention

    def products(self, states: Tensor, batch: PackedBatch) -> Tensor:
        """The queries, keys and values (N, 3 H) of the layer's input (N, H), with rotary positions
        applied.
        """
        return rotate_products(self.attention, self.attention.qkv(self.norm(states)), batch)


class EncoderTeacher:
    """The teacher, prepared for inference. On a CPU the kernels compute in int16, which keeps cosines to 1e-5
    and gives a sequence the same values in any batch; a GPU computes in autocast's precision.

    Its weights have no gradient and are in no checkpoint of the run.
    """

    def __init__(
        self, encoder: Bert, device: torch.device, layer: int | None = None, head: nn.Module | None = None
    ) -> None:
        """`layer` is the index of the layer whose relations are taught, None for none; `head` predicts masked
        words. The encoder is changed in place: don't use it elsewhere.
        """
        self.config = encoder.config
        encoder = encoder.to(device).eval().requires_grad_(False)
        self.probe = None
        if layer is not None:  # copied first, since preparing for inference takes the layer's weights apart
            chosen = encoder.layer_sequence[layer]
            assert isinstance(chosen, Layer)
            norm = deepcopy(chosen.attention_norm) if chosen.pre_norm else nn.Identity()
            self.probe = RelationProbe(layer, norm, deepcopy(chosen.attention))
        self.head = None if head is None else head.to(device).eval().requires_grad_(False)
        precision = usual_precision(encoder) if device.type == "cpu" else torch.float32
        self.encoder = prepare_for_inference(encoder, precision)

    @torch.no_grad()
    def __call__(self, batch: PackedBatch) -> TeacherStates:
        """The teacher's states for every token of the batch."""
        states: Tensor = self.encoder.embeddings(batch)
        products, relative = None, self.encoder.relative_table()
        for index in range(len(self.encoder.layer_sequence)):
            if self.probe is not None and index == self.probe.layer:
                products = self.probe.products(states, batch)
            states = self.encoder.apply_layer(index, states, batch, relative=relative)
        if self.encoder.final_norm is not None:
            states = self.encoder.final_norm(states)
        return TeacherStates(states, products)

    @torch.no_grad()
    def logits(self, states: Tensor) -> Tensor:
        """The logits (K, V) over the vocabulary of the hidden states (K, H) of masked positions."""
        assert isinstance(self.head, MaskedLanguageHead)
        weight = self.encoder.embeddings.token.weight
        return nn.functional.linear(self.head(states), weight, self.head.bias)


def rotate_products(attention: SelfAttention, products: Tensor, batch: PackedBatch) -> Tensor:
    """Queries, keys and values (N, 3 H), the queries and keys rotated where the layer has rotary
    positions.
    """
    if attention.rotary is None:
        return products
    rotated: Tensor = attention.rotary(products.view(-1, 3, attention.heads, attention.head_size), batch)
    return rotated.flatten(1)


def principal_directions(vectors: Vectors, dimensions: int) -> Tensor:
    """The D principal directions of vectors (B, H) as orthonormal rows (D, H): of all projections to D
    dimensions the one that best keeps the vectors' dot products (Eckart and Young 1936), so nothing is
    centred.
    """
    products = torch.from_numpy(vectors.T @ vectors).double()
    directions = torch.linalg.eigh(products).eigenvectors  # columns, the weakest first
    strongest: Tensor = directions.flip(1)[:, :dimensions].T.float().contiguous()
    return strongest


def learn_projection(
    path: Path,
    teacher: EncoderTeacher,
    stream: PretrainingStream,
    machine: Machine,
    pooling: Pooling,
    layers: Projection | None,
    width: int,
    dimensions: int,
) -> Tensor:
    """The projection (D, H) stored in `path`; where there is none, the first rank learns it from the
    teacher's vectors of the stream's first texts, as `pooling` and the `layers` behind it make them. Only the
    first `width` dimensions of the teacher's vectors are used.

    Raises ModelError where there are fewer texts than dimensions, or the file is another run's.
    """
    if machine.ranks.is_first and not path.exists():
        vectors = _sample_vectors(teacher, stream, machine, pooling, layers)
        vectors[:, width:] = 0  # dimensions that the teacher truncates take no part
        if len(vectors) < dimensions:
            raise ModelError(
                f"{dimensions} dimensions need as many texts to be learned from, and the corpus has "
                f"{len(vectors):,}. Give a larger corpus, or fewer dimensions."
            )
        atomic_write(path, save({"projection": principal_directions(vectors, dimensions)}))
    wait_for_ranks()
    projection = load_file(path)["projection"]
    hidden_size = teacher.config.hidden_size
    full_width = hidden_size if layers is None else layers.width(hidden_size)
    if projection.shape != (dimensions, full_width):
        raise ModelError(f"{path} is of another run: its shape is {tuple(projection.shape)}. Remove it.")
    return projection


def _sample_vectors(
    teacher: EncoderTeacher,
    stream: PretrainingStream,
    machine: Machine,
    pooling: Pooling,
    layers: Projection | None,
) -> Vectors:
    """The teacher's vectors (B, H) of length 1 of the stream's first texts, as many as directions need, or of
    all there are.
    """
    width = teacher.config.hidden_size
    left = max(_SMALLEST_SAMPLE, _VECTORS_A_DIMENSION * width)
    vectors = list[Vectors]()
    for batch in stream.batches(Cursor(), last_epoch=0):
        for part in split(batch.sequences, 1, _SAMPLE_MICRO_BATCH)[0]:
            packed = PackedBatch.of(part, machine.device)
            with machine.autocast():
                states = teacher(packed).states
            pooled = pool_sequences(states.float(), packed, pooling).cpu()
            projected = pooled if layers is None else layers.cpu()(pooled)
            vectors.append(normalised(projected.numpy()))
        left -= len(batch.sequences)
        if left <= 0:
            break
    return np.concatenate(vectors) if vectors else np.zeros((0, width), np.float32)


class VectorCache:
    """The teacher's vectors of texts, by the text's number, in the file rank-N.f16: a float16 row of length 1
    for each of `rows` texts, or zeros until it is first needed.

    The file is mapped into memory, so that a resumed run finds what a killed one computed. A row whose length
    isn't 1 was never or only partly written, and is computed again. Vectors are rounded to float16 before
    they are returned, whether read or just computed, so that a resumed run gets the same values.
    """

    def __init__(self, folder: Path, rank: int, rows: int, dimensions: int) -> None:
        """Raises ResourceError when the disk has no room for all of them."""
        path = folder / f"rank-{rank}.f16"
        size = rows * dimensions * 2
        if not path.exists() or path.stat().st_size != size:
            require_free_space(folder, size, "Keeping the teacher's vectors")
            make_folder(folder)
            with path.open("wb") as file:
                file.truncate(size)  # zeros that take no room until they are written
        self._rows = np.memmap(path, np.float16, mode="r+", shape=(rows, dimensions)).view(np.ndarray)
        self.computed = 0

    def get(self, numbers: Ints, compute: Callable[[Ints], Vectors]) -> Vectors:
        """The vectors (B, D) of length 1 of the texts with these numbers (B,). `compute` gets the indices of
        missing ones in `numbers`, and returns their vectors.
        """
        vectors = self._rows[numbers].astype(np.float32)
        is_written = np.abs(np.einsum("bd,bd->b", vectors, vectors) - 1) <= _TOLERANCE  # false for NaN too
        missing = np.flatnonzero(~is_written)
        if len(missing):
            rounded = normalised(compute(missing)).astype(np.float16)
            self._rows[numbers[missing]] = rounded
            vectors[missing] = rounded
            self.computed += len(missing)
        return normalised(vectors)
