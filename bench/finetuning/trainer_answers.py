"""Question answering as transformers' run_qa.py has it: windows with offsets, and the best answer over them.

A feature is a window of a question's passage; several features may belong to one question.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from transformers import DataCollatorWithPadding

from bertsmith.metrics.scores import question_scores
from bertsmith.metrics.thresholds import no_answer_threshold
from bertsmith.text.labelled.squad import SquadQuestion
from trainer import INPUTS, Row, outputs_of

_N_BEST = 20


class Answers:
    """Encoding and post-processing of run_qa.py and utils_qa.py."""

    def __init__(self, tokenizer: Any, max_length: int, stride: int, longest: int) -> None:
        self.tokenizer, self.longest = tokenizer, longest
        self._windows = {"max_length": max_length, "stride": stride}
        self.collate: Any = DataCollatorWithPadding(tokenizer)

    def encode(self, questions: Sequence[SquadQuestion]) -> list[Row]:
        """Features with the first answer's place, or [CLS] where a window doesn't hold it."""
        rows, offsets, owners = self._features(questions)
        for row, places, number in zip(rows, offsets, owners, strict=True):
            start, end = _span(places, questions[number])
            row |= {"start_positions": start, "end_positions": end}
        return rows

    def threshold(self, model: Any, questions: Sequence[SquadQuestion]) -> float:
        """By how much "no answer" must lead for the best F1 on these questions."""
        texts, leads = self._answers(model, questions)
        _, f1 = question_scores(texts, _golds(questions))
        answerable = np.array([not question.impossible for question in questions])
        return no_answer_threshold(leads, f1, answerable)

    def metrics(
        self, model: Any, questions: Sequence[SquadQuestion], threshold: float | None
    ) -> dict[str, float]:
        """Exact match and F1 as shares; with a threshold also those of its parts."""
        texts, leads = self._answers(model, questions)
        golds = _golds(questions)
        _, always = question_scores(texts, golds)
        if threshold is not None:
            texts = ["" if lead > threshold else text for text, lead in zip(texts, leads, strict=True)]
        exact, f1 = question_scores(texts, golds)
        found = {"exact_match": float(exact.mean()), "f1": float(f1.mean())}
        if threshold is None:
            return found
        impossible = np.array([question.impossible for question in questions])
        return found | {
            "f1_always": float(always.mean()),
            "f1_answerable": float(f1[~impossible].mean()),
            "f1_unanswerable": float(f1[impossible].mean()),
            "f1_never": float(impossible.mean()),
        }

    def _features(self, questions: Sequence[SquadQuestion]) -> tuple[list[Row], list[Any], list[int]]:
        """Rows, their (start, end) characters with None outside the passage, and whose they are."""
        encoded = self.tokenizer(
            [question.question.lstrip() for question in questions],
            [question.passage for question in questions],
            truncation="only_second",
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
            **self._windows,
        )
        rows, offsets = [], []
        for feature, places in enumerate(encoded["offset_mapping"]):
            rows.append({name: encoded[name][feature] for name in INPUTS})
            of_passage = encoded.sequence_ids(feature)
            offsets.append([p if s == 1 else None for p, s in zip(places, of_passage, strict=True)])
        return rows, offsets, list(encoded["overflow_to_sample_mapping"])

    def _answers(self, model: Any, questions: Sequence[SquadQuestion]) -> tuple[list[str], Any]:
        """The best text of each question, and by how much "no answer" leads before it."""
        rows, offsets, owners = self._features(questions)
        outputs = outputs_of(model, self.collate, rows, ["start_logits", "end_logits"])
        best = [(-np.inf, "")] * len(questions)
        null = np.full(len(questions), np.inf)
        for (start, end), places, number in zip(outputs, offsets, owners, strict=True):
            null[number] = min(null[number], start[0] + end[0])
            for i, j in self._pairs(start, end, places):
                score = float(start[i] + end[j])
                if score > best[number][0]:
                    best[number] = score, questions[number].passage[places[i][0] : places[j][1]]
        return [text for _, text in best], null - np.array([score for score, _ in best])

    def _pairs(self, start: Any, end: Any, places: Any) -> list[tuple[int, int]]:
        """Pieces of the passage among the best starts and the best ends."""

        def likely(logits: Any) -> list[int]:
            order = np.argsort(-logits[: len(places)])[:_N_BEST].tolist()
            return [piece for piece in order if places[piece] is not None]

        return [(i, j) for i in likely(start) for j in likely(end) if i <= j < i + self.longest]


def _span(places: Sequence[Any], question: SquadQuestion) -> tuple[int, int]:
    """The pieces where the first answer begins and ends; (0, 0) unless this window shows all of it."""
    if not question.answers:
        return 0, 0
    text, first = question.answers[0]
    after = first + len(text)
    shown = [piece for piece, place in enumerate(places) if place is not None]
    if not shown or places[shown[0]][0] > first or places[shown[-1]][1] < after:
        return 0, 0
    start = max(piece for piece in shown if places[piece][0] <= first)
    end = min(piece for piece in shown if places[piece][1] >= after)
    return start, end


def _golds(questions: Sequence[SquadQuestion]) -> list[list[str]]:
    return [[text for text, _ in question.answers] for question in questions]
