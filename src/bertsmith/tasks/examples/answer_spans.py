"""The answer to a question in the windows of a passage: which windows there are, and which spans of them
score best (Devlin et al. 2019, sections 4.2 and 4.3).

T tokens of the passage in a window, P tokens of the passage, L the longest answer.
"""

import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from bertsmith.arrays import Bools, Float32s, Floats, Int32s, Ints
from bertsmith.tasks.examples.encoding import (
    EncodedExample,
    TokenRange,
    Window,
    join_segments,
    owner,
    special_tokens,
    windows,
)
from bertsmith.text.tokens.long_texts import TextEncoding
from bertsmith.text.tokens.tokenizer import Tokenizer

_QUESTION_PIECES = 64  # as in BERT's published script
_LEAST_ROOM = 8  # for the passage, however long the question is
LONGEST_ANSWER = 30  # tokens, as in BERT's published script
N_BEST = 20  # as in BERT's published script
_CANDIDATES = 50  # times n_best: how many a passage of any length keeps at a time


@dataclass(frozen=True, slots=True)
class PassagePieces:
    """The passage's tokens in one window: their character offsets (T, 2), and whether this window owns them
    (T,).
    """

    offsets: Int32s
    owned: Bools


class EncodedPassage(NamedTuple):
    """The windows of a question's passage, its pieces in each, and where each begins and ends."""

    windows: tuple[Window, ...]
    pieces: tuple[PassagePieces, ...]
    ranges: tuple[TokenRange, ...]


def encode_passage(
    pieces: Sequence[TextEncoding], tokenizer: Tokenizer, max_length: int, stride: int | None
) -> EncodedPassage:
    """Windows over the passage, each after the question, which is cut to leave room for at least eight
    tokens. `pieces` are those of the question and of the passage.
    """
    total_room = max_length - special_tokens(tokenizer, 2)
    question_ids = pieces[0].ids[: min(_QUESTION_PIECES, total_room - _LEAST_ROOM)]
    room = total_room - len(question_ids)
    ids, offsets = pieces[1].ids, np.asarray(pieces[1].offsets, np.int32).reshape(-1, 2)
    if stride is not None and stride >= room:  # room - 1 would give each token a window of its own
        stride = room // 2
    ranges = windows(ids, room, stride, tokenizer.truncation)
    owners = owner(ranges)
    encoded_windows, window_pieces = list[Window](), list[PassagePieces]()
    segments, rows = np.zeros(0, np.int64), np.zeros(0, np.int64)
    for number, (start, end) in enumerate(ranges):
        token_ids, segment_ids = join_segments(tokenizer, question_ids, ids[start:end])
        if len(token_ids) != len(segments):  # all windows but the last are equally long, and share them
            first = len(token_ids) - len(tokenizer.template.behind) - (end - start)
            segments, rows = segment_ids, np.concatenate([[0], np.arange(first, first + end - start)])
        encoded_windows.append(Window(token_ids, segments, rows))
        window_pieces.append(PassagePieces(offsets[start:end], owners[start:end] == number))
    return EncodedPassage(tuple(encoded_windows), tuple(window_pieces), tuple(ranges))


def predict_span(
    output: Float32s, passage: str, encoded: EncodedExample, *, longest: int, threshold: float | None
) -> dict[str, Any]:
    """The prediction for the scores (R, 2) of all windows' rows: the answer ("" for none), its offsets in
    characters, its confidence, and the odds of no answer. `encoded.decoding` has the pieces of each window.
    """
    sizes = np.cumsum([len(window.rows) for window in encoded.windows])[:-1]
    scores = (
        WindowScores(part[1:, 0], part[1:, 1], pieces.offsets, part[0, 0], part[0, 1], pieces.owned)
        for part, pieces in zip(np.split(output, sizes), encoded.decoding, strict=True)
    )
    ranked = decode(passage, scores, longest=longest)
    answer = ranked.choose(threshold)
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
