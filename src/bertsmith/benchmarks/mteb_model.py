"""An Embedder as the package `mteb` wants its models, so that MTEB's results are its own.

    import mteb
    from bertsmith import MtebModel

    mteb.evaluate(MtebModel("runs/law/model"), mteb.get_tasks(tasks=["STSBenchmark"]))

Fulfils mteb's EncoderProtocol of version 2, whose inputs are batches of a loader, and that of version 1,
whose inputs are texts.

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

from bertsmith.benchmarks.benchmark import model_hash
from bertsmith.errors import InputError, require
from bertsmith.inference.embedding.embedder import Embedder
from bertsmith.inference.embedding.vectors import Vectors

_QUERY = "query"
_DIGITS = 40  # of a revision, as a commit has

# What mteb's record of a model asks for, and a folder of weights doesn't say.
_UNKNOWN = (
    *("n_parameters", "memory_usage_mb", "release_date", "languages", "license", "open_weights"),
    *("public_training_code", "public_training_data", "training_datasets"),
)


class MtebModel:
    """`name` is a folder, minilm or a hub name; `revision` is for mteb alone, by default a hash of the
    model's files and of the options that decide its vectors, and more options are those of Embedder. Queries
    get the model's query prefix, everything else that of documents.
    """

    def __init__(self, name: str | Path, revision: str | None = None, **options: Any) -> None:
        self.name, self.revision = str(name), revision
        given = {
            option: value for option, value in options.items() if value is not None
        }  # mteb's device=None
        self.embedder = Embedder(name, **given)
        self._files = model_hash(self.embedder.folder)  # now, for the folder may hold another model later

    def encode(self, inputs: Iterable[Any], *, prompt_type: Any = None, **_: Any) -> Vectors:
        """(E, D) float32 of texts, or of batches with a list of them under `text`. `prompt_type` is mteb's:
        query, or document (passage in its first version).
        """
        kind = str(getattr(prompt_type, "value", prompt_type))
        texts = list(_texts(inputs))
        return self.embedder.queries(texts) if kind == _QUERY else self.embedder.documents(texts)

    def similarity(self, embeddings1: npt.ArrayLike, embeddings2: npt.ArrayLike) -> npt.NDArray[Any]:
        """The cosines (E, E') between all vectors of one list and all of the other."""
        first, second = _unit(embeddings1), _unit(embeddings2)
        return np.asarray(first @ second.T)

    def similarity_pairwise(self, embeddings1: npt.ArrayLike, embeddings2: npt.ArrayLike) -> npt.NDArray[Any]:
        """(E,) cosines of each with the one in its place."""
        return np.asarray((_unit(embeddings1) * _unit(embeddings2)).sum(axis=1))

    @property
    def mteb_model_meta(self) -> Any:
        """What mteb files the results under. Raises MissingExtra without mteb."""
        require("mteb", "mteb", "mteb's record of a model")
        model_meta: Any = import_module("mteb.models.model_meta")
        folder = Path(self.name).expanduser()
        if folder.is_dir():  # the last two parts, for every run's is called model
            name = f"bertsmith/{'-'.join(folder.resolve().parts[1:][-2:])}"
        else:
            name = self.name if "/" in self.name else f"bertsmith/{self.name}"
        embedder = self.embedder
        # another one for other vectors: mteb takes results of the same name and revision for the same
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


def _texts(inputs: Iterable[Any]) -> Iterator[str]:
    for each in inputs:
        if isinstance(each, str):
            yield each
        elif isinstance(each, Mapping) and isinstance(each.get("text"), list | tuple):
            yield from each["text"]
        else:
            raise InputError(
                f"Expected texts, or batches with a list of them under 'text' as mteb gives, found "
                f"{type(each).__name__}. The model reads text only: leave out tasks on images or sound."
            )


def _unit(vectors: npt.ArrayLike) -> npt.NDArray[Any]:
    found = np.atleast_2d(np.asarray(vectors, np.float32))
    lengths = np.linalg.norm(found, axis=1, keepdims=True)
    return np.asarray(found / np.maximum(lengths, 1e-12))
