"""A model's answers to a column of texts, for jobs on a cluster: Ray Data's map_batches, Spark's mapInPandas
and pandas UDFs.

A column is pickled as the model's name and a few settings. A worker process opens the model at its first
batch and keeps it for all that follow, whichever job's copy of the column asks, until its files change. It
computes in one thread, since a cluster starts a worker for each core.

E rows    D width of a vector
"""

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import compress
from pathlib import Path
from typing import Any, Literal

from bertsmith.errors import InputError
from bertsmith.inference.embedding.vectors import Vectors
from bertsmith.runtime.predictor import ArrayEmbedder, ArrayPredictor
from bertsmith.text.files.values import as_text, is_blank

_MODELS = 4  # that a process keeps open


class VectorColumn:
    """Adds to a batch the vectors of its texts: those of `Embedder`, to the bit.

    >>> articles = ray.data.read_parquet("articles.parquet")
    >>> articles.map_batches(VectorColumn, fn_constructor_args=["minilm"]).write_parquet("vectors")

    In Spark, and with columns named by hand:

    >>> column = VectorColumn("minilm", text="body", out="meaning")
    >>> table.mapInPandas(lambda batches: map(column, batches), "body string, meaning array<float>")
    """

    def __init__(
        self,
        model: str,
        text: str = "text",
        out: str = "vector",
        *,
        kind: Literal["document", "query"] = "document",
        **settings: Any,
    ) -> None:
        """`settings` are those of `Embedder`; `kind` says which of the model's prefixes stands before a
        text. Raises InputError for another kind.
        """
        if kind not in ("document", "query"):
            raise InputError(f"kind must be query or document, found {kind!r}.")
        self.model, self.text, self.out, self.kind, self.settings = model, text, out, kind, settings

    def __call__(self, batch: Any) -> Any:
        """The batch, a mapping of arrays or a DataFrame of pandas, with the column `out`. Raises InputError
        for a column that isn't there.
        """
        return _with_column(batch, self.out, self.vectors(_column(batch, self.text)))

    def vectors(self, texts: Sequence[Any]) -> Vectors:
        """(E, D), as for a pandas UDF; null is read as an empty text. Raises InputError for a row that is no
        text, and ModelError.
        """
        embedder = _open(ArrayEmbedder, self.model, self.settings)
        rows = [_as_text(value, f"{self.text}, row {number}") for number, value in enumerate(texts, 1)]
        embed = embedder.queries if self.kind == "query" else embedder.documents
        vectors: Vectors = embed(rows)
        return vectors


class PredictionColumn:
    """Adds to a batch the predictions for its texts, as JSON: what `Predictor` answers, to the bit.

    >>> tickets.map_batches(PredictionColumn, fn_constructor_args=["runs/tickets/model"])

    `text_pair` is the column of second texts, if the model reads pairs; a tagger may also read lists of
    words. Spark's from_json, or json.loads, takes an answer apart.
    """

    def __init__(
        self,
        model: str,
        text: str = "text",
        out: str = "prediction",
        *,
        text_pair: str | None = None,
        **settings: Any,
    ) -> None:
        """`settings` are the keyword arguments of `Predictor`."""
        self.model, self.text, self.out, self.text_pair, self.settings = model, text, out, text_pair, settings

    def __call__(self, batch: Any) -> Any:
        """Answers a batch, as `VectorColumn.__call__` does."""
        pairs = None if self.text_pair is None else _column(batch, self.text_pair)
        return _with_column(batch, self.out, self.predictions(_column(batch, self.text), pairs))

    def predictions(self, texts: Sequence[Any], text_pairs: Sequence[Any] | None = None) -> list[str]:
        """A JSON object for each text, or each pair, as for a pandas UDF; {"error": "no text"} for a blank
        one, unless the model was trained with missing=keep. Raises InputError for a row that is no text, and
        ModelError.
        """
        predictor = _open(ArrayPredictor, self.model, self.settings)
        rows = [_read(value, f"{self.text}, row {number}") for number, value in enumerate(texts, 1)]
        if text_pairs is not None:
            seconds = [_read(value, f"{self.text_pair}, row {n}") for n, value in enumerate(text_pairs, 1)]
            rows = [*zip(rows, seconds, strict=True)]
        return [json.dumps(answer, ensure_ascii=False) for answer in predict_rows(predictor, rows)]


def predict_rows(predictor: ArrayPredictor, rows: Sequence[Any], first: int = 1) -> list[dict[str, Any]]:
    """A prediction for each row of a table, whose first one has the number `first`; {"error": "no text"} for
    one with a blank text, unless the model was trained with missing=keep, and for a tagger's without a word.
    Raises InputError as `ArrayPredictor.predict` does.
    """
    reads_blank = predictor.tagger is not None or predictor.state["settings"].get("missing") == "keep"
    has_text = [reads_blank or not any(map(is_blank, [row] if isinstance(row, str) else row)) for row in rows]
    numbers = compress(range(first, first + len(rows)), has_text)
    answers = iter(predictor.predict_numbered([*compress(rows, has_text)], [*numbers]))
    predictions = (next(answers) if is_answered else {"words": []} for is_answered in has_text)
    return [{"error": "no text"} if answer.get("words") == [] else answer for answer in predictions]


def _open(kind: Any, model: str, settings: Mapping[str, Any]) -> Any:
    """The embedder or predictor of this process; another one once the folder has other files: the process
    may outlive a job by many trainings.
    """
    states = [(path.name, path.stat()) for path in sorted(Path(model).glob("*"))]
    files = tuple((name, state.st_ino, state.st_size, state.st_mtime_ns) for name, state in states)
    return _open_files(kind, model, tuple(sorted(settings.items())), files)


@lru_cache(_MODELS)
def _open_files(kind: Any, model: str, settings: tuple[tuple[str, Any], ...], _: Any) -> Any:
    opened = kind(model, **dict(settings))
    opened.engine.cores = 1
    return opened


def _read(value: Any, where: str) -> Any:
    """A text, or a tagger's words."""
    words = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(words, list) and all(isinstance(word, str) for word in words):
        return words
    return _as_text(words, where)


def _as_text(value: Any, where: str) -> str:
    is_null = type(value).__name__ == "NAType"  # of pandas' columns of type string
    return as_text(None if is_null else value, where)


def _column(batch: Any, name: str) -> Sequence[Any]:
    names = [*batch] if isinstance(batch, Mapping) else [*getattr(batch, "columns", ())]
    if not isinstance(batch, Mapping) and not hasattr(batch, "assign"):
        raise InputError(
            f"Expected a mapping of arrays or a DataFrame of pandas, found {type(batch).__name__}. With Ray "
            'Data, choose batch_format="numpy" or "pandas".'
        )
    if name not in names:
        raise InputError(f"The table has no column {name!r}; it has {', '.join(map(str, names))}.")
    return list(batch[name])


def _with_column(batch: Any, name: str, values: Any) -> Any:
    """The batch with one more column, or another in its place."""
    if isinstance(batch, Mapping):
        return {**batch, name: values}
    return batch.assign(**{name: list(values)})
