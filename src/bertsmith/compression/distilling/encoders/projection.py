"""A teacher's vectors in fewer dimensions: the directions in which they are longest.

B texts, H dimensions of the teacher's vectors, D of the student's.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from safetensors.torch import load_file, save
from torch import Tensor

from bertsmith.data.batch import Sequences
from bertsmith.data.stream import Cursor, PretrainingStream
from bertsmith.errors import ModelError
from bertsmith.files import atomic_write
from bertsmith.inference.embedding.vectors import Vectors

_VECTORS_A_DIMENSION = 16  # of a sample, so that no direction is chance
_SMALLEST = 4096


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
