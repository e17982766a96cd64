"""The frozen teacher beside its student: what it makes of a batch, as far as somebody learns from it; its
vectors in fewer dimensions, the directions in which they are longest; and its vectors on disk, each computed
when it is first needed.

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
from bertsmith.tasks.heads.pooling import Pooling, pool_sequences
from bertsmith.tasks.pretraining.pretraining import MaskedLanguageHead
from bertsmith.training.machine import Machine, wait

_VECTORS_A_DIMENSION = 16  # of a sample, so that no direction is chance
_SMALLEST = 4096
_SAMPLE_MICRO_BATCH = 4096  # tokens
_TOLERANCE = 0.01  # of a length; rounding D values to float16 changes it by 0.0005


class TeacherStates(NamedTuple):
    """Hidden states (N, H) of the last layer, and queries, keys and values (N, 3 H) of the chosen one."""

    states: Tensor
    products: Tensor | None


@dataclass
class RelationProbe:
    """The first part of a layer, as it was trained: what makes queries, keys and values of its input."""

    layer: int
    norm: nn.Module
    attention: SelfAttention

    def products(self, states: Tensor, batch: PackedBatch) -> Tensor:
        """(N, H) -> (N, 3 H), with the positions in them where they are rotations."""
        return with_positions(self.attention, self.attention.qkv(self.norm(states)), batch)


class EncoderTeacher:
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
        self.probe = None
        if layer is not None:  # preparing takes the layer's own weights apart
            chosen = encoder.layers[layer]
            assert isinstance(chosen, Layer)
            norm = deepcopy(chosen.attention_norm) if chosen.pre_norm else nn.Identity()
            self.probe = RelationProbe(layer, norm, deepcopy(chosen.attention))
        self.head = None if head is None else head.to(device).eval().requires_grad_(False)
        precision = usual_precision(encoder) if device.type == "cpu" else torch.float32
        self.encoder = prepare_for_inference(encoder, precision)

    @torch.no_grad()
    def __call__(self, batch: PackedBatch) -> TeacherStates:
        """Of every token of the batch."""
        states: Tensor = self.encoder.embeddings(batch)
        products = None
        for number, layer in enumerate(self.encoder.layers):
            if self.probe is not None and number == self.probe.layer:
                products = self.probe.products(states, batch)
            states = layer(states, batch)
        if self.encoder.final_norm is not None:
            states = self.encoder.final_norm(states)
        return TeacherStates(states, products)

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


def principal_directions(vectors: Vectors, dimensions: int) -> Tensor:
    """(B, H) -> (D, H), orthonormal rows: among all projections to D dimensions the one whose products of
    two vectors are nearest to those of the whole ones (Eckart and Young 1936), so nothing is centred.
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
    width: int,
    dimensions: int,
) -> Tensor:
    """(D, H) as kept in the run's folder, or learned by the first rank of the first texts of a stream, whose
    vectors by the teacher have `width` dimensions that are no zeros.

    Raises ModelError when there are fewer texts than dimensions, or the file is another run's.
    """
    if machine.ranks.is_first and not path.exists():
        vectors = _some_vectors(teacher, stream, machine, pooling)
        vectors[:, width:] = 0  # what the teacher cuts off is in no direction
        if len(vectors) < dimensions:
            raise ModelError(
                f"{dimensions} dimensions need as many texts to be learned from, and the corpus has "
                f"{len(vectors):,}. Give a larger corpus, or fewer dimensions."
            )
        atomic_write(path, save({"projection": principal_directions(vectors, dimensions)}))
    wait()
    projection = load_file(path)["projection"]
    if projection.shape != (dimensions, teacher.config.hidden_size):
        raise ModelError(f"{path} is of another run: its shape is {tuple(projection.shape)}. Remove it.")
    return projection


def _some_vectors(
    teacher: EncoderTeacher, stream: PretrainingStream, machine: Machine, pooling: Pooling
) -> Vectors:
    """(B, H) of so many texts as directions are learned from, or all there are."""
    width = teacher.config.hidden_size
    left = max(_SMALLEST, _VECTORS_A_DIMENSION * width)
    found = [np.zeros((0, width), np.float32)]
    for batch in stream.batches(Cursor(), last_epoch=0):
        for part in split(batch.sequences, 1, _SAMPLE_MICRO_BATCH)[0]:
            packed = PackedBatch.of(part, machine.device)
            with machine.autocast():
                states = teacher(packed).states
            pooled = pool_sequences(states.float(), packed, pooling)
            found.append(normalised(pooled.cpu().numpy()))
        left -= len(batch.sequences)
        if left <= 0:
            break
    return np.concatenate(found)


class VectorCache:
    """Vectors by the number of their text, below `rows`, in the file rank-0.f16: a row of float16 for each,
    of length 1, or zeros while nobody needed it.

    The file is mapped into memory, so that what a killed run has computed is there for the one that goes on.
    A row whose length isn't 1 was never written, or not to its end: it is computed again. What is handed out
    was rounded to float16, whether it is read or has just been computed, so that this run gets what it would
    have got.
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
        """(B,) -> (B, D) of length 1; `compute` gets places in `numbers`, and returns their vectors."""
        found = self._rows[numbers].astype(np.float32)
        whole = np.abs(np.einsum("bd,bd->b", found, found) - 1) <= _TOLERANCE  # what is no number isn't
        missing = np.flatnonzero(~whole)
        if len(missing):
            rounded = normalised(compute(missing)).astype(np.float16)
            self._rows[numbers[missing]] = rounded
            found[missing] = rounded
            self.computed += len(missing)
        return normalised(found)
