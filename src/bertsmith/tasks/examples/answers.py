"""Scores of tokens → the answer as it stands in the passage, or none: the one decoder of question answering.

    T   passage tokens of a window      L   longest answer in tokens      Q   questions

An answer is a pair of tokens i ≤ j < i + L; its score is start[i] + end[j]. It speaks in characters of the
passage: passage[answer.start:answer.end] is the answer, whatever the tokenizer lower-cased or dropped.
"""

import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bertsmith.arrays import Int32s, Ints
from bertsmith.data.windows import TokenRange

FloatArray = npt.NDArray[np.floating]

LONGEST_ANSWER = 30  # tokens, as in BERT's published script
N_BEST = 20  # as there
_HELD = 50  # times as many candidates of a passage, however long it is


@dataclass(frozen=True)
class WindowScores:
    """What a model says about one window: its scores before any softmax.

    start (T,), end (T,) of the passage's tokens; offsets (T, 2) their first character in the passage and the
    one after their last; null_start and null_end those of [CLS], which mean that this window holds no answer.
    With several windows, `owned` (T,) says which tokens are this window's to read (windows.owner): only there
    an answer may start, so that each is judged once, where most of its surroundings are seen.
    """

    start: FloatArray
    end: FloatArray
    offsets: Int32s | Ints
    null_start: float
    null_end: float
    owned: npt.NDArray[np.bool_] | None = None


@dataclass(frozen=True)
class Answer:
    """passage[start:end], its score, and the softmax probability of its first and of its last token."""

    text: str
    start: int
    end: int
    score: float
    start_probability: float
    end_probability: float

    @property
    def confidence(self) -> float:
        """How probable the model holds both ends to be; not calibrated."""
        return self.start_probability * self.end_probability


@dataclass(frozen=True)
class Decoded:
    """The best answers of a question, best first, and what speaks against the first.

    `null_odds` is the score of "no answer" (the lowest of the windows') less that of the best answer, and
    infinite when the passage has no token that could answer.
    """

    answers: tuple[Answer, ...]
    null_odds: float

    def choose(self, threshold: float | None = None) -> Answer | None:
        """The best answer, or None when null_odds exceed the threshold; without one (v1.1) never for that."""
        withheld = threshold is not None and self.null_odds > threshold
        return None if withheld or not self.answers else self.answers[0]


def decode(
    passage: str, windows: Iterable[WindowScores], *, n_best: int = N_BEST, longest: int = LONGEST_ANSWER
) -> Decoded:
    """The up to `n_best` best answers over all windows of a question, no two of them the same characters.

    Of equal scores the earlier and shorter comes first. Raises ValueError when there is no window, a shape is
    wrong or a score isn't finite.
    """
    if n_best < 1 or longest < 1:
        raise ValueError(f"expected n_best and longest of at least 1, found {n_best} and {longest}")
    found: dict[tuple[int, int], Answer] = {}
    null = float("inf")
    for window in windows:
        _check(window)
        null = min(null, window.null_start + window.null_end)
        if len(found) > _HELD * n_best:
            found = {(each.start, each.end): each for each in _best(found, n_best)}
        for answer in _answers(passage, window, n_best, longest):
            place = answer.start, answer.end
            if place not in found or answer.score > found[place].score:
                found[place] = answer
    answers = _best(found, n_best)
    if not np.isfinite(null):
        raise ValueError("expected a window at least")
    return Decoded(tuple(answers), null - answers[0].score if answers else float("inf"))


def _best(found: dict[tuple[int, int], Answer], n_best: int) -> list[Answer]:
    return sorted(found.values(), key=lambda answer: (-answer.score, answer.start, answer.end))[:n_best]


def best_pairs(start: FloatArray, end: FloatArray, longest: int, count: int) -> list[tuple[int, int, float]]:
    """The `count` best (i, j, start[i] + end[j]) with i ≤ j < i + longest, all pairs considered.

    The published script considers only pairs of the 20 best starts and the 20 best ends. Here the pairs are a
    band of T × L sums, a few thousand numbers.
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
    """The first and the last token of passage[start:end], counted from the window's first.

    `offsets` (P, 2) are those of the whole passage's tokens. A token that lies only partly in the answer
    belongs to it. None when the window doesn't hold all of the answer, or no token covers any of it.
    """
    first = int(np.searchsorted(offsets[:, 1], start, side="right"))
    last = int(np.searchsorted(offsets[:, 0], end, side="left")) - 1
    if first > last or first < window[0] or last >= window[1]:
        return None
    return first - window[0], last - window[0]


def _answers(passage: str, window: WindowScores, n_best: int, longest: int) -> list[Answer]:
    start = window.start if window.owned is None else np.where(window.owned, window.start, -np.inf)
    pairs = best_pairs(start, window.end, longest, n_best)
    start_probability = _softmax(window.start, window.null_start)
    end_probability = _softmax(window.end, window.null_end)
    answers = []
    for first, last, score in pairs:
        at, until = _whole_characters(passage, int(window.offsets[first, 0]), int(window.offsets[last, 1]))
        if at < until:  # else a token of nothing but blanks
            probabilities = float(start_probability[first]), float(end_probability[last])
            answers.append(Answer(passage[at:until], at, until, score, *probabilities))
    return answers


def _softmax(scores: FloatArray, null: float) -> npt.NDArray[np.float64]:
    """(T,) the probabilities of the passage's tokens, [CLS] being one more choice, as in training."""
    highest = float(scores.max(initial=null))
    weights: npt.NDArray[np.float64] = np.exp(scores.astype(np.float64) - highest)
    return np.asarray(weights / (weights.sum() + np.exp(null - highest)))


def _whole_characters(passage: str, start: int, end: int) -> tuple[int, int]:
    """Without the blanks that belong to byte-level tokens; with the marks that belong to the last letter.

    An uncased tokenizer drops combining accents, variation selectors and the tags of flags: it ends its token
    before them, and the reader would see "cafe" for "café".
    """
    while start < end and passage[start].isspace():
        start += 1
    while start < end and passage[end - 1].isspace():
        end -= 1
    while end < len(passage) and _continues_character(passage[end]):
        end += 1
    return start, end


def _continues_character(character: str) -> bool:
    return unicodedata.category(character).startswith("M") or "\U000e0020" <= character <= "\U000e007f"


def _check(window: WindowScores) -> None:
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
