"""Classes from their names: which class a text belongs to, from the vectors of the class names, of texts
without labels, and of a few labelled rows.

Each text is joined to its ten nearest neighbours. A class has a prototype: the mean of its texts, pulled
towards its name. Ten rounds share the texts out softly over the classes, by what is known beforehand, by
their nearness to the prototypes, and by what their neighbours are taken for, and place the prototypes anew
(label propagation: Zhu and Ghahramani 2002; with prototypes and names as TransCLIP has them: Zanella, Gérin
and Ben Ayed 2024).

Texts also fall into groups that have nothing to do with the names, such as the subjects of film reviews whose
opinion is asked for, and prototypes may drift there. So this is done twice, boldly and cautiously, and signs
that need no labels say which to take, or whether to stay with the nearest name. Read `classify_by_names`
first. Its constants were measured on 25 sets with three encoders, each set by the others (LOG.md, "From names
alone").

U unlabelled texts, E labelled rows, C classes, P phrasings of a name, F features.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_array
from scipy.special import log_softmax, softmax

from bertsmith.arrays import Bools, Float32s, Floats, Ints

PHRASINGS = (
    "{}",
    "a text about {}",
    "the topic is {}",
    "it was {}",
    "this text is {}",
    "I feel {}",
    "a {} review",
    "news about {}",
    "a question about {}",
    "the answer is {}",
    "someone wants to {}",
    "the customer asks about {}",
)
# Where the texts are questions, a name says what the answer is, or what is asked about.
QUESTION_PHRASINGS = (
    "{}",
    "the answer is {}",
    "the answer is a {}",
    "asking for a {}",
    "what {}?",
    "which {}?",
    "what is the {}?",
    "what is the name of the {}?",
    "a question about {}",
    "the question asks for {}",
    "a question that asks for a {}",
    "it is a {}",
)
_PHRASING_SETS = ((0,), (0, 1, 2, 3), tuple(range(len(PHRASINGS))))  # the mean of each is a vector of a name
NEAREST = "the nearest name"
CAUTIOUS, BOLD = "the names and, cautiously, the texts", "the names and, boldly, the texts"
ROWS, ROWS_TEXTS = "the names and the labelled rows", "the names, the labelled rows and the texts"
_NEIGHBOURS, _CHUNK = 10, 1024
_ROUNDS, _INNER_ROUNDS = 10, 3
TEMPERATURE = 0.02  # of a cosine
_NEIGHBOUR_WEIGHT = 3.0
_BALANCE = 0.5  # exponent of a step towards class shares that are half as uneven
_SURE = {CAUTIOUS: 0.5, BOLD: 0.8, ROWS_TEXTS: 0.6}  # the share of a class's texts that are learned from
_WIDEST = 0.3  # of the texts, by the margin between the nearest name and the second
# The guard: the least share of the widest that keep their class, the least agreement of neighbours if there
# are few texts, by how much less even the classes may become; and what it takes to be bold.
_FEWEST_KEPT, _FEW_TEXTS, _FEWEST_ALIKE, _LARGEST_DROP = 0.7, 700, 0.33, 0.12
_BOLD_CLASSES, _BOLD_AGREEMENT, _BOLD_ALIKE = 4, 0.9, 0.3
_CONFUSED = 0.15
# With rows: how sharp their classifier is made, the names' pull, a row's weight in its prototype, the least
# share of what the names are surest of that it keeps, and the rows that halve the weight of the names if not.
_SHARPENING, _PULL, _ROW_WEIGHT, _FEWEST_KEPT_OF_NAMES, _ROWS_AS_NAMES = 2.0, 0.4, 3.0, 0.995, 40


@dataclass(frozen=True)
class NameStart:
    """Classes of the unlabelled texts: probabilities (U, C), the `way` they were found by, and the `reason`
    why it was taken. `sure` (U,) are the texts to learn from: none where only names and rows are trusted.

    `disagreement` has for each other way the share of texts that it classes otherwise. `expected` is the
    accuracy with an interval that held in nine of ten sets. `confused` are pairs of classes whose texts
    change from one to the other when their names are worded otherwise, the most confused first.
    """

    probabilities: Float32s
    sure: Bools
    way: str
    reason: str
    disagreement: dict[str, float]
    expected: tuple[float, float, float] | None  # accuracy, lower and upper end; None with labelled rows
    confused: tuple[tuple[int, int], ...]


class _Prior(NamedTuple):
    """How far prototypes and texts may go from the names: the weight of a name in its prototype, and of the
    nearness to the names.
    """

    pull: float
    names: float


_PRIORS = {CAUTIOUS: _Prior(0.5, 1.0), BOLD: _Prior(0.3, 0.5)}


class TextGraph:
    """The vectors (U, F) of texts, of length 1, each text joined to its nearest neighbours."""

    def __init__(self, vectors: Floats | Float32s) -> None:
        """`vectors` (U, F) needn't have unit length."""
        self.vectors = normalise(vectors)

    @cached_property
    def neighbours(self) -> Ints:
        """(U, 10) the nearest other texts of each, in no order; all others if there are fewer."""
        return self._joined[0]

    @cached_property
    def links(self) -> csr_array:
        """(U, U) the weights of the neighbours, 1 in sum for a text: the cosine's third power."""
        neighbours, cosines = self._joined
        weights = np.maximum(cosines, 0) ** 3
        weights /= np.maximum(weights.sum(1, keepdims=True), 1e-9)
        size, count = neighbours.shape
        return csr_array((weights.ravel(), neighbours.ravel(), count * np.arange(size + 1)), (size, size))

    @cached_property
    def _joined(self) -> tuple[Ints, Float32s]:
        size = len(self.vectors)
        count = min(_NEIGHBOURS, max(size - 1, 0))
        neighbours, cosines = np.zeros((size, count), np.int64), np.zeros((size, count), np.float32)
        for start in range(0, size if count else 0, _CHUNK):
            part = self.vectors[start : start + _CHUNK] @ self.vectors.T
            part[np.arange(len(part)), np.arange(start, start + len(part))] = -2
            nearest = np.sort(np.argpartition(-part, count - 1, axis=1)[:, :count], axis=1)
            neighbours[start : start + _CHUNK] = nearest
            cosines[start : start + _CHUNK] = np.take_along_axis(part, nearest, 1)
        return neighbours, cosines

    def spread(self, prior: Float32s, names: Float32s, pull: float, known: Ints | None = None) -> Float32s:
        """Probabilities (U, C) of the classes, from log probabilities `prior` (U, C) and the vectors of the
        `names` (C, F), which pull the prototypes. `known` (U,) has the class of a text that is labelled, else
        -1.
        """
        classes = names.shape[0]
        labelled = np.zeros(len(prior), np.bool_) if known is None else known >= 0
        truth = np.eye(classes, dtype=np.float32)[[] if known is None else known[labelled]]
        shares = softmax(prior, axis=1)
        shares[labelled] = truth
        row_weights = np.where(labelled, np.float32(_ROW_WEIGHT), np.float32(1))[:, None]
        for _ in range(_ROUNDS):
            weighted = row_weights * shares
            means = weighted.T @ self.vectors / np.maximum(weighted.sum(0), 1e-9)[:, None]
            nearness = self.vectors @ normalise(means + pull * names).T / TEMPERATURE + prior
            for _ in range(_INNER_ROUNDS):
                shares = softmax(nearness + _NEIGHBOUR_WEIGHT * (self.links @ shares), axis=1)
                shares[labelled] = truth
            sizes = shares.mean(0)
            shares *= ((0.5 / classes + 0.5 * sizes) / np.maximum(sizes, 1e-9)) ** _BALANCE
            shares /= shares.sum(1, keepdims=True)
            shares[labelled] = truth
        return np.asarray(shares, np.float32)

    def agreement_of_neighbours(self, labels: Ints, classes: int) -> float:
        """How often neighbours have the same label, by Cohen's kappa: 0 is as often as chance, 1 always."""
        if not self.neighbours.shape[1]:
            return 0.0
        chance = float(np.square(np.bincount(labels, minlength=classes) / len(labels)).sum())
        same = float((labels[self.neighbours] == labels[:, None]).mean())
        return (same - chance) / max(1 - chance, 1e-9)


def classify_by_names(names: Floats | Float32s, graph: TextGraph) -> NameStart:
    """Classes for the texts of the `graph` from the vectors of `names` (P, C, F) in the order of PHRASINGS.
    Vectors needn't have unit length. Deterministic.
    """
    phrasings = normalise(names)
    classes, texts = phrasings.shape[1], graph.vectors
    cosines = texts @ phrasings[0].T
    by_phrasing = [cosines.argmax(1), *((texts @ vectors.T).argmax(1) for vectors in phrasings[1:])]
    by_way = {NEAREST: softmax(cosines / TEMPERATURE, axis=1)}
    for way, prior in _PRIORS.items():
        by_way[way] = np.zeros_like(cosines)
        for vectors in mean_names(phrasings):
            before = prior.names * _log_nearness(texts, vectors)
            by_way[way] += graph.spread(before, vectors, prior.pull) / len(_PHRASING_SETS)
    labels = {way: probabilities.argmax(1) for way, probabilities in by_way.items()}
    way, reason = _guard(graph, cosines, labels)
    mean_nearest = (texts @ normalise(phrasings.mean(0)).T).argmax(1)
    alike = graph.agreement_of_neighbours(mean_nearest, classes)
    return NameStart(
        by_way[way],
        np.zeros(len(texts), np.bool_) if way == NEAREST else choose_sure(by_way[way], _SURE[way]),
        way,
        reason,
        {other: float((labels[other] != labels[way]).mean()) for other in by_way if other != way},
        _forecast(alike, _count_moves(by_phrasing, classes), way != NEAREST),
        _find_confused(by_phrasing, by_way[CAUTIOUS]),
    )


def classify_with_rows(
    names: Floats | Float32s,
    graph: TextGraph,
    logits: Floats | Float32s,
    known: Ints,
    by_names: NameStart,
) -> NameStart:
    """The same with labelled rows among the texts of the `graph`: `known` (U,) has their classes, -1 for the
    others. `logits` (U, C) are those of a linear model of the rows and the names. `by_names` is what names
    say of the same texts, which come first, without rows. Texts are used if they are there: few rows tell
    less of that than the guard does. Where the rows change classes that the names are sure of, nearness to
    the names counts beside them, the more the fewer the rows: of 350 trials with 1 to 8 rows a class few rows
    then lost 0.4 points on average of what none had given, and 1.3 without this.
    """
    phrasings = normalise(names)
    texts, is_row = graph.vectors, known >= 0
    by_rows = _SHARPENING * log_softmax(np.asarray(logits, np.float32), axis=1)
    vectors = mean_names(phrasings)
    spread = graph.spread(by_rows, vectors[1], _PULL, known)
    if share_that_stays(by_names.probabilities, spread[~is_row].argmax(1)) < _FEWEST_KEPT_OF_NAMES:
        weight, spread = 1 / (1 + (int(is_row.sum()) / _ROWS_AS_NAMES) ** 2), np.zeros_like(by_rows)
        for part in vectors:
            prior = weight * _log_nearness(texts, part) + by_rows
            spread += graph.spread(prior, part, _PULL, known) / len(vectors)
    takes_texts = by_names.way != NEAREST
    way, other = (ROWS_TEXTS, ROWS) if takes_texts else (ROWS, ROWS_TEXTS)
    sure = choose_sure(spread, _SURE[ROWS_TEXTS]) & ~is_row
    by_phrasing = [(texts @ part.T).argmax(1) for part in phrasings]
    return NameStart(
        spread if takes_texts else softmax(by_rows, axis=1),
        sure if takes_texts else np.zeros_like(sure),
        way,
        by_names.reason,
        {other: float((spread.argmax(1) != by_rows.argmax(1))[~is_row].mean())},
        None,
        _find_confused(by_phrasing, spread),
    )


def _guard(graph: TextGraph, cosines: Float32s, labels: dict[str, Ints]) -> tuple[str, str]:
    """The way to take, and why. Where it isn't the nearest name, spreading brought 9.9 points on average and
    lost more than one in none of 54 sets and encoders.
    """
    size, classes = cosines.shape
    nearest = labels[NEAREST]
    kept = share_that_stays(cosines, labels[BOLD])
    alike = graph.agreement_of_neighbours(nearest, classes)
    drop = (_evenness(nearest, classes) - _evenness(labels[CAUTIOUS], classes)) if size else 0.0
    agreement = float((labels[CAUTIOUS] == labels[BOLD]).mean()) if size else 0.0
    if size <= classes:
        texts = "1 text is" if size == 1 else f"{size:,} texts are"
        return NEAREST, f"{texts} too few for {classes:,} classes"
    if kept < _FEWEST_KEPT:
        return NEAREST, f"of the texts that are nearest to a name, only {kept:.0%} would keep their class"
    if size < _FEW_TEXTS and alike < _FEWEST_ALIKE:
        return (
            NEAREST,
            f"{size:,} texts are few, and texts that are alike are often nearest to different names",
        )
    if drop > _LARGEST_DROP:
        return NEAREST, "a few classes would take nearly all texts"
    if classes >= _BOLD_CLASSES and agreement >= _BOLD_AGREEMENT and alike >= _BOLD_ALIKE:
        return BOLD, "the texts lie in groups that agree with the names"
    return CAUTIOUS, f"{kept:.0%} of the texts that are nearest to a name keep their class"


def share_that_stays(cosines: Float32s, labels: Ints) -> float:
    """Of the texts whose nearest name leads by the widest margins, the share with that class in `labels`."""
    if not len(cosines):
        return 0.0
    margins = _margins(cosines)
    widest = margins >= np.quantile(margins, 1 - _WIDEST)
    return float((labels == cosines.argmax(1))[widest].mean())


def choose_sure(probabilities: Float32s, share: float) -> Bools:
    """Which texts (U,) are among the `share` of their class with the widest margins, at least one of it."""
    labels, margins = probabilities.argmax(1), _margins(probabilities)
    sure = np.zeros(len(labels), np.bool_)
    for number in np.unique(labels).tolist():
        rows = np.flatnonzero(labels == number)
        order = np.argsort(-margins[rows], kind="stable")
        sure[rows[order[: int(np.ceil(share * len(rows)))]]] = True
    return sure


def mean_names(phrasings: Float32s) -> list[Float32s]:
    """Three vectors (C, F) of each name: the name alone, and the means of four and of all `phrasings`."""
    return [normalise(phrasings[list(numbers)].mean(0)) for numbers in _PHRASING_SETS]


def _log_nearness(texts: Float32s, names: Float32s) -> Float32s:
    """Log probabilities (U, C) by the nearness to the `names` (C, F), none below log 1e-6."""
    return np.asarray(np.log(softmax(texts @ names.T / TEMPERATURE, axis=1) + 1e-6), np.float32)


def normalise(vectors: Floats | Float32s) -> Float32s:
    """The vectors (…, F) with length 1; those without length stay."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return np.asarray(vectors / np.where(lengths > 0, lengths, 1), np.float32)


def _forecast(alike: float, moves: float, spreads: bool) -> tuple[float, float, float]:
    """The expected accuracy and its interval, from how often neighbours have the same nearest name, how much
    the classes' sizes change with the wording, and whether the texts helped. Logistic regression over sets.
    """
    expected = 1 / (1 + np.exp(-(0.085 + 2.932 * alike - 5.747 * moves + 0.392 * spreads)))
    half = float(np.clip(np.exp(-1.152 - 0.985 * alike + 0.135 * spreads), 0.154, 0.287))
    return float(expected), max(0.0, float(expected) - half), min(1.0, float(expected) + half)


def _count_moves(by_phrasing: Sequence[Ints], classes: int) -> float:
    """How much the shares of the classes differ between the name and its other wordings: total variation."""
    size = max(len(by_phrasing[0]), 1)
    shares = [np.bincount(labels, minlength=classes) / size for labels in by_phrasing]
    others = [float(np.abs(part - shares[0]).sum()) / 2 for part in shares[1:]]
    return float(np.mean(others)) if others else 0.0


def _find_confused(by_phrasing: Sequence[Ints], probabilities: Float32s) -> tuple[tuple[int, int], ...]:
    """Pairs of classes of which many texts change from one to the other with the wording, or lie between
    both. Seven of ten such pairs were confused; with two or three classes nearly all are flagged, so none is.
    """
    classes = probabilities.shape[1]
    if classes < _BOLD_CLASSES or len(by_phrasing) < 2:
        return ()
    changes = np.zeros((classes, classes))
    for labels in by_phrasing[1:]:
        np.add.at(changes, (by_phrasing[0], labels), 1 / (len(by_phrasing) - 1))
    counts = np.bincount(by_phrasing[0], minlength=classes)
    sizes = probabilities.sum(0)
    score = (changes + changes.T) / np.maximum(counts[:, None] + counts, 10)
    score += 2 * (probabilities.T @ probabilities) / np.maximum(sizes[:, None] + sizes, 10)
    score = np.triu(score, 1)
    order = np.argsort(-score, axis=None, kind="stable")[: int((score >= _CONFUSED).sum())]
    return tuple((int(index) // classes, int(index) % classes) for index in order)


def _margins(scores: Float32s) -> Float32s:
    """By how much the highest score of each text leads the second."""
    highest = np.partition(scores, -2, axis=1)[:, -2:]
    return np.asarray(highest[:, 1] - highest[:, 0])


def _evenness(labels: Ints, classes: int) -> float:
    """The entropy of the classes' shares: 1 if all are equal, 0 if one has all."""
    shares = np.bincount(labels, minlength=classes) / len(labels)
    shares = shares[shares > 0]
    return float(-(shares * np.log(shares)).sum() / np.log(classes))
