"""An Embedder as a model of the package `mteb`, so that MTEB's own code computes its results.

    import mteb
    from bertsmith import MtebModel

    mteb.evaluate(MtebModel("runs/law/model"), mteb.get_tasks(tasks=["STSBenchmark"]))

It fulfils mteb's EncoderProtocol of version 2, with batches of a loader as inputs, and that of version 1,
with texts.

E texts, D width of a vector.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bertsmith.benchmarks.benchmark import hash_model
from bertsmith.errors import InputError, require
from bertsmith.inference.embedding.embedder import Embedder
from bertsmith.inference.embedding.vectors import Vectors

_QUERY = "query"
_DIGITS = 40  # of a revision, as a commit has

# Fields of mteb's record of a model that a folder of weights doesn't tell.
_UNKNOWN = (
    *("n_parameters", "memory_usage_mb", "release_date", "languages", "license", "open_weights"),
    *("public_training_code", "public_training_data", "training_datasets"),
)


class MtebModel:
    """A model for mteb. `name` is a folder, minilm or a hub name; `revision` is for mteb alone, by default a
    hash of the model's files and of the options that its vectors depend on; `options` are those of Embedder.
    Queries get the model's query prefix, all other texts that of documents.
    """

    def __init__(self, name: str | Path, revision: str | None = None, **options: Any) -> None:
        self.name, self.revision = str(name), revision
        # mteb passes device=None
        set_options = {option: value for option, value in options.items() if value is not None}
        self.embedder = Embedder(name, **set_options)
        # hashed now, since the folder may hold another model later
        self._files = hash_model(self.embedder.folder)

    def encode(self, inputs: Iterable[Any], *, prompt_type: Any = None, **_: Any) -> Vectors:
        """The vectors (E, D) float32 of texts, or of batches with lists of texts under `text`. `prompt_type`
        is mteb's: query, or document (passage in its first version).
        """
        prompt_name = str(getattr(prompt_type, "value", prompt_type))
        texts = list(_read_texts(inputs))
        return self.embedder.queries(texts) if prompt_name == _QUERY else self.embedder.documents(texts)

    def similarity(self, embeddings1: npt.ArrayLike, embeddings2: npt.ArrayLike) -> npt.NDArray[Any]:
        """The cosines (E, E') between all vectors of one list and all of the other."""
        first, second = _normalise(embeddings1), _normalise(embeddings2)
        return np.asarray(first @ second.T)

    def similarity_pairwise(self, embeddings1: npt.ArrayLike, embeddings2: npt.ArrayLike) -> npt.NDArray[Any]:
        """The cosines (E,) of the vectors with the same index in both lists."""
        return np.asarray((_normalise(embeddings1) * _normalise(embeddings2)).sum(axis=1))

    @property
    def mteb_model_meta(self) -> Any:
        """mteb's record of the model, under which it stores results. Raises MissingExtra without mteb."""
        require("mteb", "mteb", "mteb's record of a model")
        model_meta: Any = import_module("mteb.models.model_meta")
        folder = Path(self.name).expanduser()
        if folder.is_dir():  # the last two parts, since every run's folder is called model
            name = f"bertsmith/{'-'.join(folder.resolve().parts[1:][-2:])}"
        else:
            name = self.name if "/" in self.name else f"bertsmith/{self.name}"
        embedder = self.embedder
        # other vectors need another revision, since mteb reuses results of the same name and revision
        options = [
            *(str(embedder.compute_dtype), embedder.max_length, sorted(embedder.prefixes.items())),
            *(embedder.long_texts, embedder.dimensions, embedder.normalise),
        ]
        state = hashlib.sha256(json.dumps([self._files, options]).encode()).hexdigest()[:_DIGITS]
        return model_meta.ModelMeta(
            loader=None,
            name=name,
            revision=self.revision or state,
            max_tokens=embedder.max_length,
            embed_dim=embedder.width,
            framework=["PyTorch"],
            similarity_fn_name="cosine",
            use_instructions=any(embedder.prefixes.values()),
            **dict.fromkeys(_UNKNOWN),
        )


def _read_texts(inputs: Iterable[Any]) -> Iterator[str]:
    for item in inputs:
        if isinstance(item, str):
            yield item
        elif isinstance(item, Mapping) and isinstance(item.get("text"), list | tuple):
            yield from item["text"]
        else:
            raise InputError(
                f"Expected texts, or batches with a list of them under 'text' as mteb gives, found "
                f"{type(item).__name__}. The model reads text only: leave out tasks on images or sound."
            )


def _normalise(vectors: npt.ArrayLike) -> npt.NDArray[Any]:
    rows = np.atleast_2d(np.asarray(vectors, np.float32))
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows / np.maximum(lengths, 1e-12))
