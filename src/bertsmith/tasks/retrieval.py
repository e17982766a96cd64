"""Dual encoders: a query and the documents that answer it, each encoded alone by the same encoder, so that a
query's vector is near theirs (Karpukhin et al. 2020; Reimers and Gurevych 2019).

    E   examples     T   texts of an example: the query, its document, its negatives     H   hidden size
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

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
from bertsmith.tasks.losses.contrastive import LossName, RetrievalLoss, Sought
from bertsmith.tasks.losses.distillation import DistillationLoss, VectorLoss
from bertsmith.tasks.task import AnswerNumber, Head, Metrics, Outputs, Prediction, Task, TaskSettings
from bertsmith.text.files.rows import names_of_numbers, quoting_warnings
from bertsmith.text.files.values import ID, is_blank, shown
from bertsmith.text.tokens.long_texts import Pieces
from bertsmith.text.tokens.tokenizer import Tokenizer


class RetrievalSettings(RowSettings):
    """`query`, `positive` and `negative` are columns. `scale` multiplies similarities before a softmax: one
    over its temperature. `negatives`: at most so many of a row's. `pooling` is in training as the encoder's
    folder says.
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
    scale: float = Field(20.0, gt=0)
    symmetric: bool = False
    margin: float = Field(0.2, gt=0)
    pooling: Pooling = "mean"
    normalise: bool = True
    query_prefix: str = ""
    document_prefix: str = ""
    query: str | int | None = None
    positive: str | int | None = None
    negative: str | int | None = None
    negatives: int | None = Field(None, ge=0)


class Retrieval(Task[QueryExample]):
    """Fulfils the contract for search: which document answers a query?"""

    name = "retrieval"
    main_metric = f"mrr@{DEPTH}"
    Settings: ClassVar[type[TaskSettings]] = RetrievalSettings
    settings: RetrievalSettings
    makes_vectors = True
    bounds = (-1.0, 1.0)  # of the cosine

    def __init__(self, settings: TaskSettings, labels: Sequence[str] = ()) -> None:
        super().__init__(settings, labels)
        self._known: dict[int, tuple[int, ...]] = {}

    @property
    def reads_pairs(self) -> bool:
        return True

    # -- data ----------------------------------------------------------------------------------------------

    def example(self, text: Any, where: str = "the input") -> QueryExample:
        """From a query and a document."""
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
        if labelled:  # what the first file's names decided holds for the files that follow
            layout = settings.model_dump(include={"format", "header", "encoding"})
            require_answers(path, columns, settings.label, **layout)
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
        gaps = ["" if self._may_be_learned(example) else "text" for example in examples]
        return self.complete(examples, gaps, path)

    def read_files(self, paths: Sequence[Path | str]) -> list[QueryExample]:
        examples = super().read_files(paths)
        columns = self.settings.model_dump(include={"query", "positive", "negative"})
        layout = self.settings.model_dump(include={"format", "header", "encoding"})
        self.named_columns = names_of_numbers(paths, columns, **layout)
        return examples

    def _may_be_learned(self, example: QueryExample) -> bool:
        return self.settings.missing == "keep" or self.has_text(example)

    def has_text(self, example: QueryExample) -> bool:
        """Prefixes don't count."""
        return not any(map(is_blank, (example.query, *example.documents)))

    def fit(self, train: Sequence[QueryExample]) -> None:
        """All known documents of each query: in no batch is one of them a negative of it."""
        known: dict[int, dict[int, None]] = {}
        for example in train:
            known.setdefault(text_number(example.query), {})[text_number(example.documents[0])] = None
        self._known = {query: tuple(documents) for query, documents in known.items()}
        if len(known) < 2 or len({document for documents in known.values() for document in documents}) < 2:
            raise InputError(
                f"Every one of the {len(train):,} training rows has the same query or the same document, "
                f"from {train[0].where} on: there is nothing to learn. Are the columns the right ones?"
            )
        self._require_what_the_loss_needs(train)

    def _require_what_the_loss_needs(self, train: Sequence[QueryExample]) -> None:
        """With loss=margin rows without a negative give a loss of 0, where others have one."""
        loss = self.settings.loss
        some = loss == "margin" and any(len(example.documents) > 1 for example in train)
        for example in train:
            if loss != "softmax" and len(example.documents) < 2 and not some:
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
            if not self._may_be_learned(example):
                raise InputError(
                    f"{example.where}: expected a query and a document that answers it, perhaps negatives, "
                    "found an empty text. Mend or remove the row."
                )

    def check_alone(self, train: Sequence[QueryExample]) -> None:
        """Negatives from the batch: a row without its own has none."""
        for example in train if self.needs_global_batch else ():
            if len(example.documents) < 2:
                raise RecipeError(
                    f"batch_size = 1 leaves {example.where} without a negative: loss=softmax takes them from "
                    "the other rows of the batch. Give batch_size=2 or more, or each row negatives. If "
                    "memory ran out, lower micro_batch_tokens instead."
                )

    def warnings(self, examples: Sequence[QueryExample]) -> list[str]:
        """How many rows of some have no negative to learn a margin from."""
        without = sum(len(example.documents) < 2 for example in examples)
        if self.settings.loss != "margin" or not 0 < without < len(examples):
            return []
        return [f"{without:,} of {len(examples):,} rows have no negative: loss=margin leaves them out"]

    def group_key(self, example: QueryExample) -> Sequence[str]:
        """All rows of a query: its answers would be known from train."""
        return (example.query,) if example.group is None else super().group_key(example)

    def texts(self, example: QueryExample) -> Sequence[str]:
        """The query, then the documents, each behind its prefix."""
        prefix = self.settings.document_prefix
        documents = [prefix + document for document in example.documents]
        return (self.settings.query_prefix + example.query, *documents)

    def encode(self, example: QueryExample, pieces: Sequence[Pieces], tokenizer: Tokenizer) -> EncodedExample:
        """All texts are read apart."""
        made = windows_apart(tokenizer, pieces, self.settings.max_length, self.settings.stride)
        query, documents = text_number(example.query), tuple(map(text_number, example.documents))
        known = (query, documents[0], *self._known.get(query, ()))
        return EncodedExample(made, Sought(query, documents, known, example.scores))

    def make_batches(self, targets: Sequence[Sought], order: Ints, batch_size: int) -> list[Ints]:
        """Batches without two equal queries or documents: each would be the other's negative."""
        if not self.needs_global_batch:
            return super().make_batches(targets, order, batch_size)
        texts = [(target.query, target.documents[0]) for target in targets]
        return apart(texts, order, batch_size)

    # -- model ---------------------------------------------------------------------------------------------

    def head(self, config: BertConfig) -> Head:
        return VectorHead(self.settings.pooling, self.settings.normalise)

    @property
    def needs_global_batch(self) -> bool:
        """With negatives from the batch."""
        return self.settings.loss == "softmax"

    def loss(self, outputs: Tensor, targets: Sequence[Sought]) -> Tensor:
        return self.losses(outputs, targets).sum()

    def losses(self, outputs: Tensor, targets: Sequence[Sought]) -> Tensor:
        """(E, T, H) -> (E,)."""
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
        """Negatives are known of labelled rows alone."""
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
        """similarity of query and document; where documents are known to answer their queries, also the
        rank of each among all documents given.
        """
        similar = [float(output[0] @ output[1]) for output in outputs]
        if not all(example.labelled for example in examples):
            return [{"similarity": each} for each in similar]
        rows: dict[int, Any] = {}
        for output, each in zip(outputs, encoded, strict=True):
            rows |= dict(zip(each.target.documents, output[1:], strict=False))  # what fills it up is no text
        place = {number: row for row, number in enumerate(rows)}
        positive = np.array([place[each.target.documents[0]] for each in encoded], np.int64)
        queries, documents = np.stack([output[0] for output in outputs]), np.stack(list(rows.values())).T
        ranks = ranks_of(lambda start, end: queries[start:end] @ documents, positive, list(rows)).tolist()
        return [{"similarity": s, "rank": rank} for s, rank in zip(similar, ranks, strict=True)]

    def metrics(self, predictions: Sequence[Prediction], examples: Sequence[QueryExample]) -> Metrics:
        """MRR@10, nDCG@10 and recall@10 of each query's documents among all those of the examples; where the
        order is random, what is expected of it.
        """
        queries = [text_number(example.query) for example in examples]
        documents = [text_number(example.documents[0]) for example in examples]
        if all("among" in prediction for prediction in predictions):
            return chance_metrics(queries, documents, [prediction["among"] for prediction in predictions])
        return rank_metrics(queries, documents, [prediction["rank"] for prediction in predictions])

    def error_analysis(
        self, predictions: Sequence[Prediction], examples: Sequence[QueryExample]
    ) -> ErrorAnalysis:
        """How far down each document stands: its part in MRR@10."""
        ranks = [prediction["rank"] for prediction in predictions]
        answers = (
            ScoredPrediction("rank 1", f"rank {rank:,}", 1 / rank if rank <= DEPTH else 0.0) for rank in ranks
        )
        return ErrorAnalysis(tuple(answers))

    def line(self, example: QueryExample, prediction: Prediction) -> dict[str, Any]:
        """The id, where there is one, query and document, then the prediction."""
        known = {} if example.id is None else {ID: example.id}
        return {**known, "query": example.query, "document": example.documents[0], **prediction}

    def baselines(
        self, train: Sequence[QueryExample], dev: Sequence[QueryExample]
    ) -> dict[str, list[Prediction]]:
        """Documents in a random order, and by the cosine of their words' TF-IDF vectors."""
        numbers = [tuple(map(text_number, example.documents)) for example in dev]
        texts: dict[int, str] = {}
        for own, example in zip(numbers, dev, strict=True):
            texts.update(zip(own, example.documents, strict=True))
        place = {number: row for row, number in enumerate(texts)}
        positive = np.array([place[own[0]] for own in numbers], np.int64)
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
        """What sentence-transformers reads: pooling, normalisation, and the prefixes as prompts."""
        settings = self.settings
        write_sentence_folder(
            folder,
            config,
            settings.pooling,
            settings.max_length,
            normalise=settings.normalise,
            prompts={"query": settings.query_prefix, "document": settings.document_prefix},
        )
