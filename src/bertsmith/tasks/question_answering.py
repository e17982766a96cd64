"""The answer to a question as a span of a passage: a start and an end score for each piece of the passage
(Devlin et al. 2019, sections 4.2 and 4.3).

[CLS] question [SEP] passage [SEP]; [CLS] stands for "no answer in this window". R rows read: [CLS] and the
passage's pieces of each window, T.
"""

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from bertsmith.arrays import Bools, Float32s, Floats, Int32s, Ints
from bertsmith.data.batch import to_device
from bertsmith.metrics.baselines import lexical_answers
from bertsmith.metrics.scores import question_scores
from bertsmith.metrics.thresholds import no_answer_threshold
from bertsmith.model.config import BertConfig
from bertsmith.tasks.evaluating.error_analysis import ErrorAnalysis, span_errors
from bertsmith.tasks.examples.encoding import (
    EncodedExample,
    TokenRange,
    Window,
    join_segments,
    owner,
    special_tokens,
    windows,
)
from bertsmith.tasks.heads.classifier_head import RowHead
from bertsmith.tasks.losses.distillation import DistillationLoss, SpanLoss
from bertsmith.tasks.saved_state import require_number
from bertsmith.tasks.task import (
    UNBOUND,
    AnswerNumber,
    Bound,
    Head,
    Metrics,
    Outputs,
    Prediction,
    Task,
    TaskSettings,
)
from bertsmith.text.labelled.squad import QuestionKeys, SquadQuestion, read_squad
from bertsmith.text.tokens.long_texts import TextEncoding
from bertsmith.text.tokens.tokenizer import Tokenizer

_QUESTION_PIECES = 64  # as in BERT's published script
_LEAST_ROOM = 8  # for the passage, however long the question is
LONGEST_ANSWER = 30  # tokens, as in BERT's published script
N_BEST = 20  # as in BERT's published script
_CANDIDATES = 50  # times n_best: how many a passage of any length keeps at a time


class AnswerSettings(TaskSettings):
    """As in BERT's published script, except for the stride, which here is the overlap of two windows. `group`
    is a key (`title` in SQuAD's JSON): questions that share its value are never divided between train and
    dev.
    """

    of_model: ClassVar[frozenset[str]] = TaskSettings.of_model | {"longest_answer"}
    max_length: int = Field(384, ge=16)
    """Tokens of a window, question included."""
    stride: int | None = Field(128, ge=0)
    """Tokens that two windows share."""
    longest_answer: int = Field(30, ge=1)
    """In pieces."""
    group: str | int | None = None
    """A key, in SQuAD's JSON `title`: as for classification. By default the passage."""


@dataclass(frozen=True, slots=True)
class PassagePieces:
    """The passage's tokens in one window: their character offsets (T, 2), and whether this window owns them
    (T,).
    """

    offsets: Int32s
    owned: Bools


class SpanHead(RowHead):
    """A start and an end score for each row."""

    architecture: str | None = "ForQuestionAnswering"
    graph_outputs: ClassVar[tuple[str, ...]] = ("start_logits", "end_logits")

    def __init__(self, config: BertConfig) -> None:
        super().__init__(config, config.family.span_head, 2, dropout=0.0)


class QuestionAnswering(Task[SquadQuestion]):
    """Questions about passages, in SQuAD's files v1.1 and v2.0."""

    name = "question-answering"
    main_metric = "f1"
    Settings: ClassVar[type[TaskSettings]] = AnswerSettings
    baselines_learn = False
    activation = "softmax over the places of a window"
    decided = ("start", "end")
    answers_are_labels = True
    settings: AnswerSettings
    threshold: float | None = None  # None: every question has an answer (v1.1)

    @property
    def reads_pairs(self) -> bool:
        return True

    def read(self, path: Path | str, *, labelled: bool = True) -> list[SquadQuestion]:
        """Reads SQuAD's JSON, or JSON lines with the keys that --text, --text-pair and --label name."""
        settings = self.settings
        is_optional = self.optional_group is not None
        keys = QuestionKeys(
            settings.text, settings.text_pair, settings.label, settings.group, not is_optional
        )
        questions = read_squad(
            path, labelled=labelled, format=settings.format, keys=keys, encoding=settings.encoding
        )
        if labelled:
            self.tell_lost_groups(questions, path)
        return questions

    def example(self, text: Sequence[str], where: str = "the input") -> SquadQuestion:
        """An example from a question and a passage."""
        return SquadQuestion.of_input(text, where)

    def warnings(self, examples: Sequence[SquadQuestion]) -> list[str]:
        """Warns of answers that weren't found at the file's offsets."""
        moved = [example for example in examples if example.moved]
        if not moved:
            return []
        return [
            f"{sum(example.moved for example in moved):,} answers do not stand where the file says and were "
            f"taken from the nearest place that has them, the first in {moved[0].where}"
        ]

    def group_key(self, example: SquadQuestion) -> Sequence[str]:
        """The passage: if its questions were divided, its answers would be known from train."""
        return (example.passage,) if example.group is None else super().group_key(example)

    def texts(self, example: SquadQuestion) -> Sequence[str]:
        return example.question, example.passage

    def encode(
        self, example: SquadQuestion, pieces: Sequence[TextEncoding], tokenizer: Tokenizer
    ) -> EncodedExample:
        """Windows over the passage, each after the question, which is cut to leave room for at least eight
        tokens. The target is the row of the answer's start and of its end in each window; 0 is [CLS].
        """
        total_room = self.settings.max_length - special_tokens(tokenizer, 2)
        question_ids = pieces[0].ids[: min(_QUESTION_PIECES, total_room - _LEAST_ROOM)]
        room = total_room - len(question_ids)
        ids, offsets = pieces[1].ids, np.asarray(pieces[1].offsets, np.int32).reshape(-1, 2)
        stride = self.settings.stride
        if stride is not None and stride >= room:  # room - 1 would give each token a window of its own
            stride = room // 2
        ranges = windows(ids, room, stride, tokenizer.truncation)
        owners = owner(ranges)
        encoded_windows, targets, window_pieces = [], [], []
        segments, rows = np.zeros(0, np.int64), np.zeros(0, np.int64)
        for number, (start, end) in enumerate(ranges):
            token_ids, segment_ids = join_segments(tokenizer, question_ids, ids[start:end])
            if len(token_ids) != len(segments):  # all windows but the last are equally long, and share them
                first = len(token_ids) - len(tokenizer.template.behind) - (end - start)
                segments, rows = segment_ids, np.concatenate([[0], np.arange(first, first + end - start)])
            encoded_windows.append(Window(token_ids, segments, rows))
            targets.append(self._find_target(example, offsets, (start, end)))
            window_pieces.append(PassagePieces(offsets[start:end], owners[start:end] == number))
        target = targets if example.answers or example.impossible else None
        return EncodedExample(tuple(encoded_windows), target, tuple(window_pieces))

    def head(self, config: BertConfig) -> Head:
        return SpanHead(config)

    def loss(self, outputs: Tensor, targets: Sequence[Any]) -> Tensor:
        """Cross-entropy of start and of end over each window's rows, half of either."""
        flat = [window_target for target in targets for window_target in target]
        sizes = [size for size, _, _ in flat]
        padded = nn.utils.rnn.pad_sequence(
            list(outputs.float().split(sizes)), batch_first=True, padding_value=-torch.inf
        )
        loss = torch.zeros((), device=outputs.device)
        for side in (0, 1):  # start, end
            gold = to_device(np.array([target[1 + side] for target in flat]), outputs.device)
            loss = loss + nn.functional.cross_entropy(padded[..., side], gold, reduction="sum") / 2
        return loss

    def count(self, targets: Sequence[Any]) -> float:
        """The number of windows, each of which has a target."""
        return sum(len(target) for target in targets)

    def distillation_loss(self, temperature: float, head: Head) -> DistillationLoss:
        return SpanLoss(temperature)

    def probabilities(self, outputs: Outputs) -> Floats | None:
        """Logits (R, 2) of a window -> probabilities (2, R)."""
        return super().probabilities(outputs.T)

    def decoding(self, tokenizer: Tokenizer) -> dict[str, Any]:
        settings = self.settings
        return {
            "no_answer_threshold": self.threshold,
            "longest_answer": settings.longest_answer,
            "stride": settings.stride,
        }

    def average(self, teachers: Sequence[Task[SquadQuestion]], outputs: Sequence[Sequence[Outputs]]) -> None:
        own_teachers = [teacher for teacher in teachers if isinstance(teacher, QuestionAnswering)]
        thresholds = [teacher.threshold for teacher in own_teachers if teacher.threshold is not None]
        self.threshold = float(np.mean(thresholds)) if thresholds else None

    def as_label(self, example: SquadQuestion, prediction: Prediction) -> SquadQuestion:
        is_answered = prediction["start"] is not None
        answers = ((prediction["answer"], prediction["start"]),) if is_answered else ()
        return replace(example, answers=answers, impossible=not is_answered)

    def calibrate(
        self, outputs: Sequence[Outputs], examples: Sequence[SquadQuestion], encoded: Sequence[EncodedExample]
    ) -> Metrics:
        """Chooses the odds from which "no answer" is given, by the F1 on dev, if dev has questions without an
        answer.
        """
        self.threshold = None
        if not any(example.impossible for example in examples):
            return {}
        predictions = self.decode(outputs, examples, encoded)
        golds = [[text for text, _ in example.answers] for example in examples]
        _, f1 = question_scores([str(prediction["answer"]) for prediction in predictions], golds)
        odds = np.array([prediction["null_odds"] for prediction in predictions])
        answerable = np.array([not example.impossible for example in examples])
        self.threshold = no_answer_threshold(odds, f1, answerable)
        return {"null_threshold": self.threshold}

    def answer_number(
        self, example: SquadQuestion, encoded: EncodedExample, outputs: Outputs, target: str | int | None
    ) -> AnswerNumber:
        """The probability of both ends of the answer or, if there is none, of row 0, which is [CLS]. The
        other rows are the passage's tokens.
        """
        self.refuse_target(target)
        (prediction,) = self.decode([outputs], [example], [encoded])
        start = end = 0
        if prediction["answer"]:
            offsets = encoded.decoding[0].offsets  # (R - 1, 2)
            start = 1 + int(np.flatnonzero(offsets[:, 1] > prediction["start"])[0])
            end = 1 + int(np.flatnonzero(offsets[:, 0] < prediction["end"])[-1])

        def both_ends(scores: Tensor) -> Tensor:
            """Logits (S, R, 2) -> the product (S,) of the two probabilities."""
            probabilities = scores.softmax(1)
            return torch.mul(probabilities[:, start, 0], probabilities[:, end, 1])

        return prediction["answer"] or "no answer", both_ends

    def decode(
        self, outputs: Sequence[Outputs], examples: Sequence[SquadQuestion], encoded: Sequence[EncodedExample]
    ) -> list[Prediction]:
        """Predictions with the answer ("" for none), its offsets in characters, its confidence, and the odds
        of no answer.
        """
        return [
            self._predict(output, example, windows)
            for output, example, windows in zip(outputs, examples, encoded, strict=True)
        ]

    def decode_by_folds(
        self,
        outputs: Sequence[Outputs],
        examples: Sequence[SquadQuestion],
        encoded: Sequence[EncodedExample],
        folds: Ints,
        bound: Mapping[int, Bound] = UNBOUND,
    ) -> list[Prediction]:
        """The threshold that decides whether a question has an answer is chosen on the other folds."""
        predictions: list[Prediction] = [{}] * len(outputs)
        for judge, _, rows, own, others in self._judges(folds, outputs, examples, encoded):
            judge.threshold = None
            if others[0]:
                judge.calibrate(*others)
            for row, prediction in zip(rows, judge.decode(*own), strict=True):
                predictions[row] = prediction
        return predictions

    def metrics(self, predictions: Sequence[Prediction], examples: Sequence[SquadQuestion]) -> Metrics:
        """Exact match and F1 by the official rules, as shares."""
        golds = [[text for text, _ in example.answers] for example in examples]
        exact, f1 = question_scores([str(prediction["answer"]) for prediction in predictions], golds)
        metrics = {"f1": float(f1.mean()), "exact_match": float(exact.mean())}
        impossible = np.array([example.impossible for example in examples])
        if impossible.any() and not impossible.all():
            metrics |= {
                "f1_answerable": float(f1[~impossible].mean()),
                "f1_unanswerable": float(f1[impossible].mean()),
            }
        return metrics

    def error_analysis(
        self, predictions: Sequence[Prediction], examples: Sequence[SquadQuestion]
    ) -> ErrorAnalysis:
        """Each question's answers and their F1, and the confidence of predicted answers."""
        golds = [[text for text, _ in example.answers] for example in examples]
        predicted = [str(prediction["answer"]) for prediction in predictions]
        confidence = [prediction["confidence"] for prediction in predictions]
        return span_errors(golds, predicted, confidence, *question_scores(predicted, golds))

    def baselines(
        self, train: Sequence[SquadQuestion], dev: Sequence[SquadQuestion]
    ) -> dict[str, list[Prediction]]:
        """Never an answer, and a span of the sentence that shares most words with the question."""
        lexical = lexical_answers([(example.question, example.passage) for example in dev])
        return {
            "no answer": [{"answer": ""} for _ in dev],
            lexical.name: [{"answer": answer} for answer in lexical.predictions],
        }

    def line(self, example: SquadQuestion, prediction: Prediction) -> dict[str, Any]:
        gold = (
            {"gold": [text for text, _ in example.answers]} if example.answers or example.impossible else {}
        )
        return {"id": example.id, "question": example.question, **gold, **prediction}

    def state(self) -> dict[str, Any]:
        return super().state() | {"threshold": self.threshold}

    @classmethod
    def from_state(cls, state: Mapping[str, Any], where: str) -> "QuestionAnswering":
        task = super().from_state(state, where)
        threshold = state.get("threshold")
        task.threshold = None if threshold is None else require_number(threshold, "threshold", where)
        return task

    def config_labels(self) -> dict[str, Any]:
        return {}

    def _find_target(
        self, example: SquadQuestion, offsets: Int32s, window: tuple[int, int]
    ) -> tuple[int, int, int]:
        """(rows, start, end) of the first answer in this window, or of [CLS] if the window doesn't
        hold it.
        """
        rows = 1 + window[1] - window[0]
        if not example.answers:
            return rows, 0, 0
        text, at = example.answers[0]
        span = gold_span(offsets, at, at + len(text), window)
        return (rows, 0, 0) if span is None else (rows, span[0] + 1, span[1] + 1)

    def _predict(self, output: Outputs, example: SquadQuestion, encoded: EncodedExample) -> Prediction:
        sizes = np.cumsum([len(window.rows) for window in encoded.windows])[:-1]
        scores = (
            WindowScores(part[1:, 0], part[1:, 1], pieces.offsets, part[0, 0], part[0, 1], pieces.owned)
            for part, pieces in zip(np.split(output, sizes), encoded.decoding, strict=True)
        )
        ranked = decode(example.passage, scores, longest=self.settings.longest_answer)
        answer = ranked.choose(self.threshold)
        odds = float(min(ranked.null_odds, 1e9))
        if answer is None:
            return {"answer": "", "start": None, "end": None, "confidence": None, "null_odds": odds}
        return {
            "answer": answer.text,
            "start": answer.start,
            "end": answer.end,
            "confidence": round(answer.confidence, 6),
            "null_odds": odds,
        }


@dataclass(frozen=True)
class WindowScores:
    """A model's scores for one window, before any softmax.

    start (T,), end (T,): of the passage's tokens; offsets (T, 2): the first character of each in the passage,
    and one past its last; null_start and null_end: of [CLS], for "no answer in this window". With several
    windows, `owned` (T,) says which tokens belong to this window (see `owner`): an answer may start only
    there, so that each is judged once, where most of its context is seen.
    """

    start: Floats | Float32s
    end: Floats | Float32s
    offsets: Int32s | Ints
    null_start: float
    null_end: float
    owned: Bools | None = None


@dataclass(frozen=True)
class AnswerSpan:
    """passage[start:end], its score, and the softmax probabilities of its first and of its last token."""

    text: str
    start: int
    end: int
    score: float
    start_probability: float
    end_probability: float

    @property
    def confidence(self) -> float:
        """The product of both ends' probabilities; not calibrated."""
        return self.start_probability * self.end_probability


@dataclass(frozen=True)
class RankedAnswers:
    """The best answers to a question, best first, and the odds of no answer.

    `null_odds` is the score of "no answer" (the lowest of all windows) minus that of the best answer. It is
    infinite if the passage has no token that could be an answer.
    """

    answers: tuple[AnswerSpan, ...]
    null_odds: float

    def choose(self, threshold: float | None = None) -> AnswerSpan | None:
        """The best answer, or None if `null_odds` exceeds the threshold. Without a threshold (v1.1) an answer
        is given whenever there is one.
        """
        is_unanswerable = threshold is not None and self.null_odds > threshold
        return None if is_unanswerable or not self.answers else self.answers[0]


def decode(
    passage: str, windows: Iterable[WindowScores], *, n_best: int = N_BEST, longest: int = LONGEST_ANSWER
) -> RankedAnswers:
    """Ranks up to `n_best` answers over all windows of a question, no two with the same characters.

    Of equal scores the earlier and shorter comes first. Raises ValueError if there is no window, a shape is
    wrong or a score isn't finite.
    """
    if n_best < 1 or longest < 1:
        raise ValueError(f"expected n_best and longest of at least 1, found {n_best} and {longest}")
    candidates: dict[tuple[int, int], AnswerSpan] = {}
    null = float("inf")
    for window in windows:
        _require_scores(window)
        null = min(null, window.null_start + window.null_end)
        if len(candidates) > _CANDIDATES * n_best:
            candidates = {(answer.start, answer.end): answer for answer in _best(candidates, n_best)}
        for answer in _window_answers(passage, window, n_best, longest):
            span = answer.start, answer.end
            if span not in candidates or answer.score > candidates[span].score:
                candidates[span] = answer
    answers = _best(candidates, n_best)
    if not np.isfinite(null):
        raise ValueError("expected a window at least")
    return RankedAnswers(tuple(answers), null - answers[0].score if answers else float("inf"))


def _best(candidates: dict[tuple[int, int], AnswerSpan], n_best: int) -> list[AnswerSpan]:
    return sorted(candidates.values(), key=lambda answer: (-answer.score, answer.start, answer.end))[:n_best]


def best_pairs(
    start: Floats | Float32s, end: Floats | Float32s, longest: int, count: int
) -> list[tuple[int, int, float]]:
    """The `count` best (i, j, start[i] + end[j]) with i ≤ j < i + longest, out of all such pairs.

    The published script considers only pairs of the 20 best starts and the 20 best ends. Here all pairs are
    scored: a band of T × L sums, a few thousand numbers.
    """
    tokens = len(start)
    width = min(longest, tokens)
    if not tokens:
        return []
    padded = np.concatenate([end, np.full(width - 1, -np.inf, end.dtype)])
    band = (start[:, None] + np.lib.stride_tricks.sliding_window_view(padded, width)).ravel()  # (T × L,)
    count = min(count, int(np.isfinite(band).sum()))
    if not count:
        return []
    least = np.partition(band, band.size - count)[band.size - count]
    rows = np.flatnonzero(band >= least)
    rows = rows[np.argsort(-band[rows], kind="stable")][:count]
    return [(row // width, row // width + row % width, float(band[row])) for row in rows.tolist()]


def gold_span(offsets: Int32s | Ints, start: int, end: int, window: TokenRange) -> tuple[int, int] | None:
    """The first and last token of passage[start:end], counted from the window's first token.

    `offsets` (P, 2) are those of the whole passage's tokens. A token that is only partly in the answer
    belongs to it. None if the window doesn't hold the whole answer, or no token covers any of it.
    """
    first = int(np.searchsorted(offsets[:, 1], start, side="right"))
    last = int(np.searchsorted(offsets[:, 0], end, side="left")) - 1
    if first > last or first < window[0] or last >= window[1]:
        return None
    return first - window[0], last - window[0]


def _window_answers(passage: str, window: WindowScores, n_best: int, longest: int) -> list[AnswerSpan]:
    start = window.start if window.owned is None else np.where(window.owned, window.start, -np.inf)
    pairs = best_pairs(start, window.end, longest, n_best)
    start_probability = _softmax(window.start, window.null_start)
    end_probability = _softmax(window.end, window.null_end)
    answers = []
    for first, last, score in pairs:
        begin, stop = _align_to_characters(
            passage, int(window.offsets[first, 0]), int(window.offsets[last, 1])
        )
        if begin < stop:  # otherwise the token is nothing but blanks
            probabilities = float(start_probability[first]), float(end_probability[last])
            answers.append(AnswerSpan(passage[begin:stop], begin, stop, score, *probabilities))
    return answers


def _softmax(scores: Floats | Float32s, null: float) -> Floats:
    """Probabilities (T,) of the passage's tokens, with [CLS] as one more choice, as in training."""
    highest = float(scores.max(initial=null))
    weights: Floats = np.exp(scores.astype(np.float64) - highest)
    return np.asarray(weights / (weights.sum() + np.exp(null - highest)))


def _align_to_characters(passage: str, start: int, end: int) -> tuple[int, int]:
    """Drops blanks that belong to byte-level tokens, and adds marks that belong to the last letter.

    An uncased tokenizer drops combining accents, variation selectors and the tags of flags. Its tokens end
    before them, and the answer would read "cafe" for "café".
    """
    while start < end and passage[start].isspace():
        start += 1
    while start < end and passage[end - 1].isspace():
        end -= 1
    while end < len(passage):
        mark = passage[end]
        if not (unicodedata.category(mark).startswith("M") or "\U000e0020" <= mark <= "\U000e007f"):
            break
        end += 1
    return start, end


def _require_scores(window: WindowScores) -> None:
    tokens = len(window.start)
    owned = tokens if window.owned is None else len(window.owned)
    if not (len(window.end) == owned == tokens and window.offsets.shape == (tokens, 2)):
        raise ValueError(
            f"expected as many end scores, owned and offsets (T, 2) as start scores, {tokens}; found "
            f"{len(window.end)}, {owned} and {window.offsets.shape}"
        )
    null = np.array([window.null_start, window.null_end])
    if not all(np.isfinite(scores).all() for scores in (window.start, window.end, null)):
        raise ValueError("expected finite scores, found infinite ones or NaN: the model has diverged")
