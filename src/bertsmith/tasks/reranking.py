"""Cross-encoders: the relevance of a document to a query, both read together (Nogueira and Cho 2019).

The rows of one query are its candidates, of which the relevant ones should come first. Each row is labelled,
or holds a query, its document and its negatives, as `bertsmith mine` writes them. E examples, one candidate
each.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field
from torch import Tensor

from bertsmith.arrays import Ints
from bertsmith.data.batch import to_device
from bertsmith.errors import InputError, ModelError
from bertsmith.metrics.baselines import tfidf_cosine
from bertsmith.metrics.ranking_scores import tied_average_precision, tied_reciprocal_rank
from bertsmith.model.config import BertConfig
from bertsmith.tasks.evaluating.error_analysis import ErrorAnalysis, number_errors
from bertsmith.tasks.examples.encoding import EncodedExample
from bertsmith.tasks.examples.query_documents import (
    find_mined_columns,
    read_query_documents,
    text_number,
    together,
)
from bertsmith.tasks.examples.text_settings import RowSettings
from bertsmith.tasks.examples.text_task import TextExample, TextTask
from bertsmith.tasks.heads.classifier_head import PooledHead
from bertsmith.tasks.losses import contrastive
from bertsmith.tasks.saved_state import require_number
from bertsmith.tasks.task import AnswerNumber, Head, Metrics, Outputs, Prediction, TaskSettings
from bertsmith.text.files.values import as_number
from bertsmith.text.tokens.long_texts import TextEncoding
from bertsmith.text.tokens.tokenizer import Tokenizer


class RerankingSettings(RowSettings):
    """Settings of re-ranking. `loss`: each candidate by itself (pointwise), or the candidates of a query
    against each other (listwise). `positive_weight` is the weight of relevant candidates in a pointwise loss.
    """

    of_model: ClassVar[frozenset[str]] = RowSettings.of_model | {"loss", "positive_weight"}
    loss: Literal["pointwise", "listwise"] = "pointwise"
    """Or `listwise`."""
    positive_weight: float = Field(1.0, gt=0)
    """Weight of the relevant rows in a pointwise loss."""


@dataclass(frozen=True)
class RelevanceTarget:
    """The query's number (`text_number`), and the document's relevance in [0, 1]."""

    query: int
    relevance: float


@dataclass(frozen=True)
class MinedExample(TextExample):
    """A candidate from a row of a query, its answer and its negatives."""


class Reranking(TextTask):
    """Relevance scores in [0, 1], one for each pair of a query and a document."""

    name = "reranking"
    main_metric = "map"
    without_label = (
        " Queries with their answers alone have nothing to compare: `bertsmith mine` adds negatives."
    )
    Settings: ClassVar[type[TaskSettings]] = RerankingSettings
    settings: RerankingSettings
    activation = "sigmoid"
    gives_score = True
    relevance = "score"
    bounds = (0.0, 1.0)
    highest = 1.0

    # -- data ----------------------------------------------------------------------------------------------

    def read(self, path: Path | str, *, labelled: bool = True) -> list[TextExample]:
        """One example for each labelled row, or for each document of a row with negatives."""
        settings, columns = self.settings, None
        layout = settings.model_dump(include={"format", "header", "encoding"})
        if labelled and settings.label is None and settings.header and str(path) != "-":
            columns = find_mined_columns(path, settings.text, settings.text_pair, settings.group, **layout)
        if columns is None:
            return super().read(path, labelled=labelled)
        rows = read_query_documents(
            path, columns, **layout, group=settings.group, optional_group=self.optional_group
        )
        examples = _drop_duplicates(
            MinedExample(row.query, document, 0.0 if index else 1.0, row.where, group=row.group)
            for row in rows
            for index, document in enumerate(row.documents)
        )
        self.tell_lost_groups(examples, path)
        return self.complete(examples, self.gaps(examples), path)

    def read_files(self, paths: Sequence[Path | str]) -> list[TextExample]:
        """Reads several files; a mined negative may be the query's answer in another file."""
        return _drop_duplicates(super().read_files(paths))

    @property
    def reads_pairs(self) -> bool:
        return True

    def as_target(self, value: Any, where: str) -> float:
        grade = as_number(value, where)
        if grade < 0:
            raise InputError(
                f"{where}: expected a relevance of 0 or more, found {grade:g}. Is it the right column?"
            )
        return grade

    def fit(self, train: Sequence[TextExample]) -> None:
        """Takes the highest relevance, which becomes 1."""
        grades = [example.label for example in train]
        if min(grades) == max(grades):
            raise InputError(
                f"Every one of the {len(train):,} training rows has the relevance {grades[0]:g}, from "
                f"{train[0].where} on: there is nothing to learn. Is --label the right column?"
            )
        self.highest = max(grades)

    def check(self, examples: Sequence[TextExample]) -> None:
        for example in examples:
            if example.text_pair is None:
                raise InputError(
                    f"{example.where}: re-ranking needs a query and a document. Name the second: --text-pair."
                )
        if examples and not any(example.label for example in examples):
            raise InputError(
                f"None of the {len(examples):,} documents is relevant, a label above 0, from "
                f"{examples[0].where} on: there is nothing to measure by. Is --label the right column?"
            )

    def group_key(self, example: TextExample) -> Sequence[str]:
        """The query, so that all its candidates stay together."""
        return (example.text,) if example.group is None else super().group_key(example)

    def encode(
        self, example: TextExample, pieces: Sequence[TextEncoding], tokenizer: Tokenizer
    ) -> EncodedExample:
        encoded = super().encode(example, pieces, tokenizer)
        if example.label is None:
            return encoded
        target = RelevanceTarget(text_number(example.text), self._relevance(example))
        return EncodedExample(encoded.windows, target)

    def _relevance(self, example: TextExample) -> float:
        """The relevance in [0, 1]. A mined answer has 1, however high the grades of other files are."""
        grade: float = example.label
        return grade if isinstance(example, MinedExample) else min(grade / self.highest, 1.0)

    def make_batches(self, targets: Sequence[RelevanceTarget], order: Ints, batch_size: int) -> list[Ints]:
        """For a listwise loss, batches that hold all candidates of each query. Queries without a relevant
        candidate are left out, because they teach nothing.
        """
        if not self.needs_global_batch:
            return super().make_batches(targets, order, batch_size)
        _, queries = np.unique([target.query for target in targets], return_inverse=True)
        relevant = np.bincount(queries, [target.relevance for target in targets]) > 0
        return together(queries, order[relevant[queries[order]]], batch_size)

    # -- model ---------------------------------------------------------------------------------------------

    def head(self, config: BertConfig) -> Head:
        return PooledHead(config, 1)

    @property
    def needs_global_batch(self) -> bool:
        """True with a listwise loss, which compares the candidates of a query."""
        return self.settings.loss == "listwise"

    def loss(self, outputs: Tensor, targets: Sequence[RelevanceTarget]) -> Tensor:
        return self.losses(outputs, targets).sum()

    def losses(self, outputs: Tensor, targets: Sequence[RelevanceTarget]) -> Tensor:
        """Logits (E, 1) -> each candidate's loss (E,)."""
        scores = outputs.float().squeeze(1)
        relevance = to_device(np.array([target.relevance for target in targets], np.float32), scores.device)
        if not self.needs_global_batch:
            return contrastive.pointwise(scores, relevance, self.settings.positive_weight)
        _, numbers = np.unique([target.query for target in targets], return_inverse=True)
        query = to_device(numbers, scores.device)
        total = scores.new_zeros(len(scores)).index_add(0, query, relevance)[query]
        return contrastive.listwise(scores, relevance / total.where(total > 0, 1.0), query)

    def count(self, targets: Sequence[RelevanceTarget]) -> float:
        """The number of candidates; for a listwise loss that of queries with a relevant candidate, at least
        one.
        """
        if not self.needs_global_batch:
            return len(targets)
        return max(len({target.query for target in targets if target.relevance > 0}), 1)

    # -- predictions ---------------------------------------------------------------------------------------

    def answer_number(
        self, example: TextExample, encoded: EncodedExample, outputs: Outputs, target: str | int | None
    ) -> AnswerNumber:
        self.refuse_target(target)
        return "score", lambda logits: logits[:, 0].sigmoid()

    def decode(
        self, outputs: Sequence[Outputs], examples: Sequence[TextExample], encoded: Sequence[EncodedExample]
    ) -> list[Prediction]:
        """Predictions with a score in [0, 1] each."""
        logits = np.array([output[0] for output in outputs], np.float64)
        return [{"score": score} for score in np.exp(-np.logaddexp(0, -logits)).tolist()]

    def metrics(self, predictions: Sequence[Prediction], examples: Sequence[TextExample]) -> Metrics:
        """MAP and MRR over the queries that have a relevant candidate; NaN if there is none."""
        rows: dict[str, list[int]] = {}
        for row, example in enumerate(examples):
            rows.setdefault(example.text, []).append(row)
        values = []
        for candidate_rows in rows.values():
            relevant = [examples[row].label > 0 for row in candidate_rows]
            if any(relevant):
                scores = [predictions[row]["score"] for row in candidate_rows]
                values.append(
                    (tied_average_precision(scores, relevant), tied_reciprocal_rank(scores, relevant))
                )
        mean = np.mean(values, axis=0) if values else (np.nan, np.nan)
        return {"map": float(mean[0]), "mrr": float(mean[1])}

    def error_analysis(
        self, predictions: Sequence[Prediction], examples: Sequence[TextExample]
    ) -> ErrorAnalysis:
        """True and predicted relevance, candidate by candidate."""
        gold = [self._relevance(example) for example in examples]
        return number_errors(gold, [prediction["score"] for prediction in predictions])

    def baselines(
        self, train: Sequence[TextExample], dev: Sequence[TextExample]
    ) -> dict[str, list[Prediction]]:
        """One score for all candidates, which is worth the mean over all orders; and the cosine of TF-IDF
        vectors.
        """
        train_pairs, dev_pairs = (
            [(example.text, example.text_pair or "") for example in examples] for examples in (train, dev)
        )
        cosine = tfidf_cosine(train_pairs, dev_pairs)
        scores_by_name = {"random order": np.zeros(len(dev)), cosine.name: cosine.predictions}
        return {
            name: [{"score": score} for score in scores.tolist()] for name, scores in scores_by_name.items()
        }

    # -- state ---------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        return super().state() | {"highest": self.highest}

    @classmethod
    def from_state(cls, state: Mapping[str, Any], where: str) -> "Reranking":
        task = super().from_state(state, where)
        task.highest = require_number(state.get("highest"), "highest", where)
        if task.highest <= 0:
            raise ModelError(f"{where}: highest: expected a number above 0, found {task.highest:g}.")
        return task

    def config_labels(self) -> dict[str, Any]:
        return {"id2label": {"0": "score"}, "label2id": {"score": 0}}


def _drop_duplicates(examples: Iterable[TextExample]) -> list[TextExample]:
    """Keeps one of a query's mined candidates with the same text: an answer, if one of them is."""
    unique: dict[int | tuple[int, int], TextExample] = {}
    for index, example in enumerate(examples):
        key: int | tuple[int, int] = index
        if isinstance(example, MinedExample):
            key = text_number(example.text), text_number(example.text_pair or "")
        known = unique.get(key)
        if known is None or known.label < example.label:
            unique[key] = example
    return list(unique.values())
