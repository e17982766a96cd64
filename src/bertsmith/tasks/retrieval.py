"""Dual encoders: a query and the documents that answer it, each encoded alone by the same encoder, so that a
query's vector is near theirs (Karpukhin et al. 2020; Reimers and Gurevych 2019).

    E   examples     T   texts of an example: the query, its document, its negatives     H   hidden size
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import numpy as np
from pydantic import Field
from torch import Tensor

from bertsmith.arrays import Ints
from bertsmith.errors import InputError, RecipeError
from bertsmith.metrics.baselines import tfidf_vectors
from bertsmith.metrics.ranking_scores import DEPTH, chance_metrics, rank_metrics, ranks_of
from bertsmith.model.config import BertConfig
from bertsmith.tasks.checkpoints.sentence_folder import write_sentence_folder
from bertsmith.tasks.evaluating.error_analysis import ErrorAnalysis, ScoredPrediction
from bertsmith.tasks.examples.encoding import EncodedExample, windows_apart
from bertsmith.tasks.examples.query_documents import (
    QueryExample,
    apart,
    find_query_columns,
    read_query_documents,
    require_answers,
    text_number,
)
from bertsmith.tasks.examples.text_settings import RowSettings
from bertsmith.tasks.heads.classifier_head import VectorHead
from bertsmith.tasks.heads.pooling import Pooling
from bertsmith.tasks.losses.contrastive import LossName, RetrievalLoss, RetrievalTarget
from bertsmith.tasks.losses.distillation import DistillationLoss, VectorLoss
from bertsmith.tasks.task import AnswerNumber, Head, Metrics, Outputs, Prediction, Task, TaskSettings
from bertsmith.text.files.rows import find_names_of_numbers, quoting_warnings
from bertsmith.text.files.values import ID, is_blank, shown
from bertsmith.text.tokens.long_texts import TextEncoding
from bertsmith.text.tokens.tokenizer import Tokenizer


class RetrievalSettings(RowSettings):
    """Settings of retrieval. `query`, `positive` and `negative` are columns. `scale` multiplies similarities
    before a softmax: the inverse of its temperature. `negatives` is the largest number of negatives taken
    from a row. `pooling`: when training starts, the one in the encoder's folder.
    """

    of_model: ClassVar[frozenset[str]] = RowSettings.of_model | {
        "loss",
        "scale",
        "symmetric",
        "margin",
        "pooling",
        "normalise",
    }
    loss: LossName = "softmax"
    """Or `margin`, `margin-mse`, `kl`: see the losses."""
    scale: float = Field(20.0, gt=0)
    """Similarities are multiplied by this before a softmax."""
    symmetric: bool = False
    """Whether documents look for their query too."""
    margin: float = Field(0.2, gt=0)
    """How far negatives should stay below the document, for `loss=margin`."""
    pooling: Pooling = "mean"
    """As for similarity."""
    normalise: bool = True
    """Vectors of length 1, compared by cosine; false: dot products; set `scale` to 1 then. `rank`, `mine` and
    indexes compare by cosine all the same, and say so."""
    query_prefix: str = ""
    """Stands before each query."""
    document_prefix: str = ""
    """Stands before each document."""
    query: str | int | None = None
    """Column of the query, or `--text`."""
    positive: str | int | None = None
    """Column of the document, or `--text-pair`."""
    negative: str | int | None = None
    """Column of negatives."""
    negatives: int | None = Field(None, ge=0)
    """The most negatives to use of a row; by default all."""


class Retrieval(Task[QueryExample]):
    """Search: which document answers a query?"""

    name = "retrieval"
    main_metric = f"mrr@{DEPTH}"
    Settings: ClassVar[type[TaskSettings]] = RetrievalSettings
    settings: RetrievalSettings
    makes_vectors = True
    bounds = (-1.0, 1.0)  # of the cosine

    def __init__(self, settings: TaskSettings, labels: Sequence[str] = ()) -> None:
        super().__init__(settings, labels)
        self._has_label = False
        self._known_documents: dict[int, tuple[int, ...]] = {}  # of each query, by `text_number`

    @property
    def reads_pairs(self) -> bool:
        return True

    # -- data ----------------------------------------------------------------------------------------------

    def example(self, text: Any, where: str = "the input") -> QueryExample:
        """An example from a query and a document."""
        match text:
            case [str() as query, str() as document]:
                return QueryExample(query, (document,), where, labelled=False)
        raise InputError(f"{where}: retrieval compares a query with a document, found {shown(text)}.")

    def read(self, path: Path | str, *, labelled: bool = True) -> list[QueryExample]:
        """One example a row. Raises InputError naming file and line."""
        settings = self.settings
        columns = find_query_columns(
            path,
            settings.query if settings.text is None else settings.text,
            settings.positive if settings.text_pair is None else settings.text_pair,
            settings.negative,
            format=settings.format,
            header=settings.header,
            encoding=settings.encoding,
            labelled=labelled,
        )
        if labelled:  # the columns found in the first file are used for the files that follow
            layout = settings.model_dump(include={"format", "header", "encoding"})
            has_label = require_answers(path, columns, settings.label, **layout)
            self._has_label |= has_label
            if not has_label and "label" in self.given_columns:
                self._refuse_label(path)
            fixed = {"query": columns.query, "positive": columns.positive, "text": None, "text_pair": None}
            self.settings = settings.model_copy(update=fixed)
        examples = read_query_documents(
            path,
            columns,
            format=settings.format,
            header=settings.header,
            encoding=settings.encoding,
            most_negatives=settings.negatives,
            labelled=labelled,
            group=settings.group if labelled else None,
            optional_group=self.optional_group if labelled else None,
        )
        texts = (text for example in examples for text in (example.query, *example.documents))
        self.left_out += quoting_warnings(path, texts, settings.format)
        if not labelled:
            return examples
        self.tell_lost_groups(examples, path)
        gaps = ["" if self._is_usable(example) else "text" for example in examples]
        return self.complete(examples, gaps, path)

    def read_files(self, paths: Sequence[Path | str]) -> list[QueryExample]:
        self._has_label = False
        examples = super().read_files(paths)
        if self.settings.label is not None and not (self._has_label or self.is_trained):
            self._refuse_label(paths[0])
        columns = self.settings.model_dump(include={"query", "positive", "negative"})
        layout = self.settings.model_dump(include={"format", "header", "encoding"})
        self.named_columns = find_names_of_numbers(paths, columns, **layout)
        return examples

    def _refuse_label(self, path: Path | str) -> NoReturn:
        raise InputError(
            f"{path} has no column {self.settings.label!r}, by which --label would tell answers from other "
            "documents. Name the column, or leave --label out."
        )

    def _is_usable(self, example: QueryExample) -> bool:
        return self.settings.missing == "keep" or self.has_text(example)

    def has_text(self, example: QueryExample) -> bool:
        """Whether no text is blank; prefixes don't count."""
        return not any(map(is_blank, (example.query, *example.documents)))

    def fit(self, train: Sequence[QueryExample]) -> None:
        """Takes note of all known documents of each query, so that none of them is used as its negative in a
        batch.
        """
        known: dict[int, dict[int, None]] = {}
        for example in train:
            known.setdefault(text_number(example.query), {})[text_number(example.documents[0])] = None
        self._known_documents = {query: tuple(documents) for query, documents in known.items()}
        if len(known) < 2 or len({document for documents in known.values() for document in documents}) < 2:
            raise InputError(
                f"Every one of the {len(train):,} training rows has the same query or the same document, "
                f"from {train[0].where} on: there is nothing to learn. Are the columns the right ones?"
            )
        self._require_negatives_and_scores(train)

    def _require_negatives_and_scores(self, train: Sequence[QueryExample]) -> None:
        """Raises InputError for a row without the negatives or scores that the loss needs. With loss=margin a
        row without a negative has a loss of 0, provided that other rows have one.
        """
        loss = self.settings.loss
        has_margin = loss == "margin" and any(len(example.documents) > 1 for example in train)
        for example in train:
            if loss != "softmax" and len(example.documents) < 2 and not has_margin:
                raise InputError(
                    f"{example.where}: loss={loss} needs a negative in each row, found none. Mine them first "
                    "(bertsmith mine), or train with loss=softmax."
                )
            if loss in ("margin-mse", "kl") and example.scores is None:
                raise InputError(
                    f"{example.where}: loss={loss} needs a column `scores`: a teacher's scores of the "
                    "positive and of each negative."
                )

    def check(self, examples: Sequence[QueryExample]) -> None:
        for example in examples:
            if not self._is_usable(example):
                raise InputError(
                    f"{example.where}: expected a query and a document that answers it, perhaps negatives, "
                    "found an empty text. Mend or remove the row."
                )

    def check_alone(self, train: Sequence[QueryExample]) -> None:
        """Raises RecipeError for a row without negatives if these come from the batch."""
        for example in train if self.needs_global_batch else ():
            if len(example.documents) < 2:
                raise RecipeError(
                    f"batch_size = 1 leaves {example.where} without a negative: loss=softmax takes them from "
                    "the other rows of the batch. Give batch_size=2 or more, or each row negatives. If "
                    "memory ran out, lower micro_batch_tokens instead."
                )

    def warnings(self, examples: Sequence[QueryExample]) -> list[str]:
        """Warns if some rows, not all, have no negative for a margin loss."""
        without = sum(len(example.documents) < 2 for example in examples)
        if self.settings.loss != "margin" or not 0 < without < len(examples):
            return []
        return [f"{without:,} of {len(examples):,} rows have no negative: loss=margin leaves them out"]

    def group_key(self, example: QueryExample) -> Sequence[str]:
        """The query: if its rows were divided, its answers would be known from train."""
        return (example.query,) if example.group is None else super().group_key(example)

    def texts(self, example: QueryExample) -> Sequence[str]:
        """The query, then the documents, each after its prefix."""
        document_prefix = self.settings.document_prefix
        documents = [document_prefix + document for document in example.documents]
        return (self.settings.query_prefix + example.query, *documents)

    def encode(
        self, example: QueryExample, pieces: Sequence[TextEncoding], tokenizer: Tokenizer
    ) -> EncodedExample:
        """Encodes each text in windows of its own."""
        text_windows = windows_apart(tokenizer, pieces, self.settings.max_length, self.settings.stride)
        query, documents = text_number(example.query), tuple(map(text_number, example.documents))
        known = (query, documents[0], *self._known_documents.get(query, ()))
        return EncodedExample(text_windows, RetrievalTarget(query, documents, known, example.scores))

    def make_batches(self, targets: Sequence[RetrievalTarget], order: Ints, batch_size: int) -> list[Ints]:
        """Batches without equal queries or documents, which would be each other's negatives."""
        if not self.needs_global_batch:
            return super().make_batches(targets, order, batch_size)
        texts = [(target.query, target.documents[0]) for target in targets]
        return apart(texts, order, batch_size)

    # -- model ---------------------------------------------------------------------------------------------

    def head(self, config: BertConfig) -> Head:
        projection = self.copy_projection(config.hidden_size)
        return VectorHead(self.settings.pooling, self.settings.normalise, projection)

    @property
    def needs_global_batch(self) -> bool:
        """True if negatives come from the batch: with loss=softmax."""
        return self.settings.loss == "softmax"

    def loss(self, outputs: Tensor, targets: Sequence[RetrievalTarget]) -> Tensor:
        return self.losses(outputs, targets).sum()

    def losses(self, outputs: Tensor, targets: Sequence[RetrievalTarget]) -> Tensor:
        """Vectors (E, T, H) -> the loss of each example (E,)."""
        settings = self.settings
        loss = RetrievalLoss(settings.loss, settings.scale, settings.symmetric, settings.margin)
        return loss(outputs, targets)

    def distillation_loss(self, temperature: float, head: Head) -> DistillationLoss:
        return VectorLoss(self.settings.scale)

    def decoding(self, tokenizer: Tokenizer) -> dict[str, Any]:
        settings = self.settings
        return {"query_prefix": settings.query_prefix, "document_prefix": settings.document_prefix}

    def know_labelled(self, labelled: Sequence[QueryExample]) -> None:
        self.fit(labelled)

    def identity(self, example: QueryExample) -> Sequence[str]:
        """The query and its document: only labelled rows have negatives."""
        return example.query, example.documents[0]

    # -- predictions ---------------------------------------------------------------------------------------

    def answer_number(
        self, example: QueryExample, encoded: EncodedExample, outputs: Outputs, target: str | int | None
    ) -> AnswerNumber:
        self.refuse_target(target)
        return "similarity", lambda vectors: (vectors[:, 0] * vectors[:, 1]).sum(1)

    def decode(
        self, outputs: Sequence[Outputs], examples: Sequence[QueryExample], encoded: Sequence[EncodedExample]
    ) -> list[Prediction]:
        """Predictions with the similarity of query and document. If all examples are labelled, also the rank
        of each document among all documents given.
        """
        similarities = [float(output[0] @ output[1]) for output in outputs]
        if not all(query_example.labelled for query_example in examples):
            return [{"similarity": similarity} for similarity in similarities]
        vectors: dict[int, Any] = {}  # of each document, by `text_number`
        for output, example in zip(outputs, encoded, strict=True):
            vectors |= dict(zip(example.target.documents, output[1:], strict=False))  # the rest is padding
        column = {number: index for index, number in enumerate(vectors)}
        positive = np.array([column[example.target.documents[0]] for example in encoded], np.int64)
        queries, documents = np.stack([output[0] for output in outputs]), np.stack(list(vectors.values())).T
        ranks = ranks_of(lambda start, end: queries[start:end] @ documents, positive, list(vectors)).tolist()
        return [
            {"similarity": similarity, "rank": rank}
            for similarity, rank in zip(similarities, ranks, strict=True)
        ]

    def metrics(self, predictions: Sequence[Prediction], examples: Sequence[QueryExample]) -> Metrics:
        """MRR@10, nDCG@10 and recall@10 of each query's document among all documents of the examples; for a
        random order the expected values.
        """
        queries = [text_number(example.query) for example in examples]
        documents = [text_number(example.documents[0]) for example in examples]
        if all("among" in prediction for prediction in predictions):
            return chance_metrics(queries, documents, [prediction["among"] for prediction in predictions])
        return rank_metrics(queries, documents, [prediction["rank"] for prediction in predictions])

    def error_analysis(
        self, predictions: Sequence[Prediction], examples: Sequence[QueryExample]
    ) -> ErrorAnalysis:
        """The rank of each document, scored by its reciprocal: its part in MRR@10."""
        ranks = [prediction["rank"] for prediction in predictions]
        answers = (
            ScoredPrediction("rank 1", f"rank {rank:,}", 1 / rank if rank <= DEPTH else 0.0) for rank in ranks
        )
        return ErrorAnalysis(tuple(answers))

    def line(self, example: QueryExample, prediction: Prediction) -> dict[str, Any]:
        """The id if there is one, query and document, then the prediction."""
        known = {} if example.id is None else {ID: example.id}
        return {**known, "query": example.query, "document": example.documents[0], **prediction}

    def baselines(
        self, train: Sequence[QueryExample], dev: Sequence[QueryExample]
    ) -> dict[str, list[Prediction]]:
        """Documents in random order, and sorted by the cosine of TF-IDF vectors."""
        numbers = [tuple(map(text_number, example.documents)) for example in dev]
        texts: dict[int, str] = {}
        for document_numbers, example in zip(numbers, dev, strict=True):
            texts.update(zip(document_numbers, example.documents, strict=True))
        column = {number: index for index, number in enumerate(texts)}
        positive = np.array([column[document_numbers[0]] for document_numbers in numbers], np.int64)
        pairs = [(example.query, example.documents[0]) for example in train]
        name, queries, documents = tfidf_vectors(
            pairs, [example.query for example in dev], list(texts.values())
        )
        ranks = ranks_of(
            lambda start, end: (queries[start:end] @ documents.T).toarray(), positive, list(texts)
        )
        return {
            "random order": [{"among": len(texts)}] * len(dev),
            name: [{"rank": rank} for rank in ranks.tolist()],
        }

    def config_labels(self) -> dict[str, Any]:
        return {}

    def write_extra_files(self, folder: Path, config: BertConfig) -> None:
        """Writes the files that sentence-transformers reads: pooling, normalisation, and the prefixes as
        prompts.
        """
        settings = self.settings
        write_sentence_folder(
            folder,
            config,
            settings.pooling,
            settings.max_length,
            normalise=settings.normalise,
            prompts={"query": settings.query_prefix, "document": settings.document_prefix},
            projection=self.trained_projection,
        )
