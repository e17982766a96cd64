"""The cheapest student: a linear model of a text's words and pairs of words, weighed by TF-IDF.

words.json          words and pairs of them, in the order of the weights' rows, and what counts as a word
words.safetensors   how rare each is, and the weights of each field's outputs

E texts, F features, C outputs.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from bertsmith.arrays import Floats
from bertsmith.errors import ModelError
from bertsmith.files import read_json, tensors_written_to, write_json
from bertsmith.metrics.baselines import TOKEN

_WORDS, _WEIGHTS = "words.json", "words.safetensors"
# What a word is, by the name that words.json has for it. A student answers by those it was proven by.
_TOKENS = {"without marks": re.compile(r"\w+|[^\w\s]"), "with marks": re.compile(TOKEN)}
_NOW, _UNNAMED = "with marks", "without marks"  # unnamed: words.json was a list
_Weights = npt.NDArray[np.float32]


class WordModel:
    """`rarity` (F,) is each feature's IDF. `weights` has (F + 1, C) a field, in float32, the last row for
    what all texts have.
    """

    def __init__(
        self,
        features: Sequence[str],
        rarity: npt.ArrayLike,
        weights: Mapping[str, _Weights],
        token: str = _NOW,
    ) -> None:
        self.places = {feature: place for place, feature in enumerate(features)}
        self.rarity = np.asarray(rarity, np.float32)
        self.weights = dict(weights)
        self.token = token

    def logits(self, texts: Sequence[str]) -> dict[str, Floats]:
        """(E, C) by the field's path. A text without a known word gets what all texts have."""
        found = {path: np.empty((len(texts), each.shape[1])) for path, each in self.weights.items()}
        for number, text in enumerate(texts):
            places, values = self._vector(text)
            for path, weights in self.weights.items():
                found[path][number] = values @ weights[places] + weights[-1]
        return found

    def _vector(self, text: str) -> tuple[list[int], _Weights]:
        """Which features a text has, and their weights: 1 + log of how often, by rarity, of length 1."""
        words = _TOKENS[self.token].findall(text.lower())
        pairs = (f"{first} {second}" for first, second in pairwise(words))
        counts = Counter(place for each in (*words, *pairs) if (place := self.places.get(each)) is not None)
        if not counts:
            return [], np.zeros(0, np.float32)
        places = list(counts)
        values = (1 + np.log(np.array(list(counts.values()), np.float32))) * self.rarity[places]
        return places, np.asarray(values / np.linalg.norm(values))

    def save(self, folder: Path) -> None:
        """Two files."""
        write_json(folder / _WORDS, {"token": self.token, "features": list(self.places)})
        tensors = {f"weights:{path}": np.ascontiguousarray(each) for path, each in self.weights.items()}
        with tensors_written_to(folder / _WEIGHTS):
            save_file({"rarity": self.rarity} | tensors, folder / _WEIGHTS)

    @classmethod
    def load(cls, folder: Path) -> "WordModel":
        """Raises ModelError for files that are missing or don't fit each other."""
        found = read_json(folder / _WORDS)
        if not isinstance(found, dict):
            found = {"token": _UNNAMED, "features": found}
        token, features = str(found.get("token")), found.get("features")
        try:
            tensors = load_file(folder / _WEIGHTS)
        except (OSError, SafetensorError) as error:
            raise ModelError(
                f"{folder / _WEIGHTS} can't be read: {error}. Train the student again."
            ) from error
        weights = {
            name.removeprefix("weights:"): tensor
            for name, tensor in tensors.items()
            if name.startswith("weights:")
        }
        rows = {len(each) for each in weights.values()}
        if (
            token not in _TOKENS
            or not isinstance(features, list)
            or not all(isinstance(each, str) for each in features)
            or tensors.get("rarity", np.empty(0)).shape != (len(features),)
            or rows != {len(features) + 1}
        ):
            raise ModelError(f"{folder}: the words and their weights don't fit. Train the student again.")
        return cls(features, tensors["rarity"], weights, token)
