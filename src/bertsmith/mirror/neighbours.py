"""What the LLM answered to the nearest of the learned texts, which a student weighs beside its own outputs.

A linear head is sure of a text between two classes, or of one that is like nothing it has learned, more often
than its neighbours are: weighing both puts the answers in a better order of confidence (as kNN-LM does it for
words: Khandelwal et al. 2020). Each text's ten nearest neighbours count by their cosine.

neighbours.safetensors      the vectors of the learned texts in float16, and of each field the output that
                            stands for the LLM's answer; no texts

Shapes: T learned texts, E texts, F features, C outputs of one field.
"""

import heapq
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file
from scipy.sparse import csr_array
from scipy.special import log_softmax

from bertsmith.arrays import Float32s, Floats, Ints
from bertsmith.errors import ModelError
from bertsmith.files import tensors_written_to

NEIGHBOURS = "neighbours.safetensors"
MOST_NEIGHBOURS = 5000  # learned texts: comparing with so many takes half a millisecond
_NEAREST, _TEMPERATURE = 10, 0.05  # of the cosine
_WEIGHT = 0.4  # of the neighbours, beside the student's own outputs
_MOST_ORDERED = 4000  # texts that are ordered together: their cosines take 64 MB
_USUAL = 0.9  # of the pairs of texts are so little alike that one tells nothing of the other
_FLOOR = 0.01  # share of a class that no neighbour has


class NeighbourMemory:
    """`vectors` (T, F) of learned texts. By each field's path `outputs` (T,) has the number of the output
    that stands for the LLM's answer, -1 for none, and `temperatures` the temperature of the student's own
    outputs.
    """

    def __init__(
        self, vectors: Floats | Float32s, outputs: Mapping[str, Ints], temperatures: Mapping[str, float]
    ) -> None:
        """`vectors` needn't have unit length; they are rounded as they are saved."""
        vectors = np.asarray(vectors, np.float32)
        lengths = np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)
        self.vectors = (vectors / lengths).astype(np.float16).astype(np.float32)
        self.outputs = {path: np.asarray(numbers, np.int64) for path, numbers in outputs.items()}
        self.temperatures = dict(temperatures)

    def weigh(self, vectors: npt.NDArray[np.float32], logits: Mapping[str, Floats]) -> dict[str, Floats]:
        """Logits (E, C) by path of texts with these `vectors` (E, F) and own `logits` (E, C). Those of a path
        that the memory doesn't know stay.
        """
        weighed = {path: np.array(of_field, np.float64) for path, of_field in logits.items()}
        own = {path: log_softmax(weighed[path] / self.temperatures[path], axis=1) for path in self.outputs}
        for row, vector in enumerate(vectors):  # each alone: a text's answer doesn't depend on the others
            cosines, nearest = self.find_nearest(vector)
            weights = np.exp((cosines.astype(np.float64) - 1) / _TEMPERATURE)
            for path, numbers in self.outputs.items():
                answered = numbers[nearest] >= 0
                shares = np.full(own[path].shape[1], _FLOOR)
                total = weights[answered].sum()
                np.add.at(shares, numbers[nearest][answered], weights[answered] / max(total, 1e-30))
                weighed[path][row] = (1 - _WEIGHT) * own[path][row] + _WEIGHT * np.log(shares)
        return weighed

    def find_nearest(self, vector: npt.NDArray[Any], besides: int = -1) -> tuple[Float32s, Ints]:
        """The cosines of the ten learned texts nearest to a vector (F,), and their numbers, in no order; all
        of fewer. `besides` is the number of a learned text that is left out.
        """
        cosines = self.vectors @ (vector / max(float(np.linalg.norm(vector)), 1e-9))
        if besides >= 0:
            cosines[besides] = -np.inf
        nearest = np.argpartition(-cosines, min(_NEAREST, len(cosines)) - 1)[:_NEAREST]
        return cosines[nearest], nearest

    def save(self, folder: Path) -> None:
        """Writes neighbours.safetensors into the folder, without any text."""
        tensors: dict[str, npt.NDArray[np.generic]] = {"vectors": self.vectors.astype(np.float16)}
        for path, numbers in self.outputs.items():
            tensors[f"outputs:{path}"] = numbers
            tensors[f"temperature:{path}"] = np.array([self.temperatures[path]])
        with tensors_written_to(folder / NEIGHBOURS):
            save_file(tensors, folder / NEIGHBOURS)

    @classmethod
    def load(cls, folder: Path) -> "NeighbourMemory | None":
        """Reads what `save` wrote; None where there is no such file. Raises ModelError for a damaged one."""
        path = folder / NEIGHBOURS
        if not path.exists():
            return None
        try:
            tensors = load_file(path)
            names = [name.removeprefix("outputs:") for name in tensors if name.startswith("outputs:")]
            memory = cls(
                tensors["vectors"],
                {name: tensors[f"outputs:{name}"] for name in names},
                {name: float(tensors[f"temperature:{name}"][0]) for name in names},
            )
        except (OSError, SafetensorError, KeyError) as error:
            raise ModelError(f"{path} can't be read: {error}. Train the student again.") from error
        # The saved vectors have length 1 but for their rounding, which dividing again would change.
        memory.vectors = tensors["vectors"].astype(np.float32)
        return memory


def order_by_gain(vectors: Floats | Float32s | csr_array, worth: Floats, seed: int = 0) -> Ints:
    """The numbers of E texts in the order in which they are to be asked about. Each tells most of what those
    before leave open: an answer tells of a text with the square of how near their `vectors` (E, F) are,
    beyond a nearness that nine in ten pairs don't reach, and counts by the text's `worth` (E,). It is
    facility location, searched greedily (Minoux 1978). Very many texts are divided by lot into parts, of
    which one text each is taken in turn.
    """
    lot = np.random.default_rng(seed).permutation(len(worth))
    parts = np.array_split(lot, max(1, math.ceil(len(worth) / _MOST_ORDERED)))
    orders = [part[_order_part(vectors[part], worth[part])] for part in parts]
    ranks = range(max(map(len, orders)))
    return np.array([order[rank] for rank in ranks for order in orders if rank < len(order)], np.int64)


def _order_part(vectors: Floats | Float32s | csr_array, worth: Floats) -> Ints:
    if not isinstance(vectors, np.ndarray):
        cosines = (vectors @ vectors.T).toarray()
    else:
        units = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)
        cosines = units @ units.T
    usual = min(float(np.quantile(cosines[:: max(1, len(cosines) // 500)], _USUAL)), 1 - 1e-6)
    tells = np.square(np.clip((cosines - usual) / (1 - usual), 0.0, 1.0))  # (E, E)
    told = np.zeros(len(worth))
    # A text's gain only falls: the one that is largest when reckoned anew is the largest of all.
    heap = [(-gain, number) for number, gain in enumerate((tells @ worth).tolist())]
    heapq.heapify(heap)
    order = list[int]()
    while heap:
        _, number = heapq.heappop(heap)
        gain = float(np.maximum(tells[number] - told, 0.0) @ worth)
        if heap and gain < -heap[0][0]:
            heapq.heappush(heap, (-gain, number))
            continue
        order.append(number)
        np.maximum(told, tells[number], out=told)
    return np.array(order, np.int64)
