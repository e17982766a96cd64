"""The field's scores, one function per kind of answer, each a dict of name -> value; and how sure a score is,
or a difference of two.

Written out in numpy because a standard error scores a few hundred resamples, and scikit-learn spends
milliseconds a call on checking its input; the tests hold every value against scikit-learn and scipy.

An answer to a question is scored by the published rules of SQuAD v1.1 (Rajpurkar et al. 2016) and v2.0
(2018): its golds are the texts of the right answers, none when the question can't be answered; an empty
prediction says that it can't.

Is one system better than another, or were these queries kind to it? Tests over the queries that both answered
are paired, for queries differ more than systems do. A randomisation test gives the p-value, since it assumes
no distribution (Smucker, Allan and Carterette 2007); the bootstrap gives intervals (Efron 1979, Sakai 2006).

E examples, C classes, Q queries or questions, S systems, T trials.
"""

import re
import string
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bertsmith.arrays import Bools, Floats, Ints
from bertsmith.errors import InputError

# Differences this small beside the values themselves are rounding: such scores count as constant.
CONSTANT = 1e-13
Golds = Sequence[Sequence[str]]
_ARTICLES = re.compile(r"\b(a|an|the)\b")

# ASCII only, as officially: a typographic quote or a dash stays, and costs the match.
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)
TRIALS = 10_000  # p-values down to 0.0001; with another seed an interval's ends move by 1 % of its width
_AT_ONCE = 4_000_000  # random numbers in memory

# Sums of the same numbers in another order differ by this share at most.
_ROUNDING = 1e-12


@dataclass(frozen=True)
class ClassScore:
    """The scores of one class; `support` is how many examples have it."""

    label: str
    precision: float
    recall: float
    f1: float
    support: int


@dataclass(frozen=True)
class LengthScore:
    """The score of the `count` texts that are `shortest` to `longest` long, both included."""

    shortest: int
    longest: int
    count: int
    score: float


def classification(gold: npt.ArrayLike, predicted: npt.ArrayLike, labels: Sequence[str]) -> dict[str, float]:
    """accuracy, macro_f1 and matthews of class numbers (E,) in 0 … C-1; with two classes also f1, which is
    that of the second class, as MRPC and QQP are reported.

    macro_f1 is the mean over the classes that occur in gold or predictions; matthews is 0 when either side
    holds one class only (Gorodkin 2004 for more than two classes). Raises InputError when there is no
    example, ValueError when shapes or class numbers don't fit.
    """
    table = confusion(gold, predicted, len(labels))
    f1 = _f1(np.diag(table), table.sum(axis=1), table.sum(axis=0))
    occurring = table.sum(axis=0) + table.sum(axis=1) > 0
    scores = {
        "accuracy": float(np.trace(table) / table.sum()),
        "macro_f1": float(f1[occurring].mean()),
        "matthews": _matthews(table),
    }
    return scores | ({"f1": float(f1[1])} if len(labels) == 2 else {})


def multilabel(gold: npt.ArrayLike, predicted: npt.ArrayLike) -> dict[str, float]:
    """micro_f1, macro_f1 and subset_accuracy of label matrices (E, C) of truth values.

    macro_f1 is the mean over all C labels, and a label that occurs on neither side counts as 0, as in
    scikit-learn. Raises InputError when there is no example, ValueError when the shapes differ.
    """
    gold, predicted = _label_matrices(gold, predicted)
    hits, golds, guesses = (gold & predicted).sum(axis=0), gold.sum(axis=0), predicted.sum(axis=0)
    return {
        "micro_f1": float(_f1(hits.sum(), golds.sum(), guesses.sum())),
        "macro_f1": float(_f1(hits, golds, guesses).mean()),
        "subset_accuracy": float((gold == predicted).all(axis=1).mean()),
    }


def regression(gold: npt.ArrayLike, predicted: npt.ArrayLike) -> dict[str, float]:
    """spearman, pearson and mean_absolute_error of numbers (E,).

    A constant side has no correlation; it is given as 0.0, what a constant answer is worth. Raises
    InputError when there is no example or a number is not finite, ValueError when the shapes differ.
    """
    from scipy.stats import rankdata

    gold, predicted = _numbers(gold, "gold scores"), _numbers(predicted, "predictions")
    _check_alike(gold, predicted)
    return {
        "spearman": _correlation(rankdata(gold), rankdata(predicted)),
        "pearson": _correlation(gold, predicted),
        "mean_absolute_error": float(np.abs(gold - predicted).mean()),
    }


def per_class(gold: npt.ArrayLike, predicted: npt.ArrayLike, labels: Sequence[str]) -> list[ClassScore]:
    """Precision, recall, F1 and support of each class, in the order of `labels`.

    For class numbers (E,) or label matrices (E, C). What has no denominator is 0: the precision of a class
    never predicted, the recall of one that never occurs.
    """
    if np.ndim(gold) == 2:
        gold, predicted = _label_matrices(gold, predicted)
        if gold.shape[1] != len(labels):
            raise ValueError(f"expected {len(labels)} columns, one a label, found {gold.shape[1]}")
        hits, golds, guesses = (gold & predicted).sum(axis=0), gold.sum(axis=0), predicted.sum(axis=0)
    else:
        table = confusion(gold, predicted, len(labels))
        hits, golds, guesses = np.diag(table), table.sum(axis=1), table.sum(axis=0)
    columns = (_share(hits, guesses), _share(hits, golds), _f1(hits, golds, guesses), golds)
    return [
        ClassScore(label, float(precision), float(recall), float(f1), int(support))
        for label, precision, recall, f1, support in zip(labels, *columns, strict=True)
    ]


def confusion(gold: npt.ArrayLike, predicted: npt.ArrayLike, classes: int) -> Ints:
    """(C, C) counts: row = gold class, column = predicted class."""
    gold, predicted = np.asarray(gold), np.asarray(predicted)
    _check_alike(gold, predicted)
    for name, numbers in (("gold", gold), ("predicted", predicted)):
        if numbers.ndim != 1 or not np.issubdtype(numbers.dtype, np.integer):
            raise ValueError(f"{name}: expected class numbers (E,), found {numbers.dtype} {numbers.shape}")
        if numbers.min() < 0 or numbers.max() >= classes:
            raise ValueError(
                f"{name}: expected classes 0 to {classes - 1}, found {numbers.min()} to {numbers.max()}"
            )
    cells = gold.astype(np.int64) * classes + predicted
    return np.bincount(cells, minlength=classes * classes).reshape(classes, classes)


def by_length(lengths: npt.ArrayLike, score: Callable[[Ints], float], bins: int = 4) -> list[LengthScore]:
    """`score(rows)` of the texts of each quantile of length, shortest first.

    Texts of one length are never divided, so that there may be fewer than `bins`.
    """
    lengths = np.asarray(lengths)
    if not lengths.size:
        raise InputError("Nothing to score by length: there is no text. Give at least one labelled row.")
    inner = np.quantile(lengths, np.arange(1, bins) / bins, method="lower")
    bin_of_text = np.searchsorted(np.unique(inner), lengths, side="left")
    groups = (np.flatnonzero(bin_of_text == number) for number in range(bins))
    return [
        LengthScore(int(lengths[rows].min()), int(lengths[rows].max()), len(rows), float(score(rows)))
        for rows in groups
        if rows.size
    ]


def standard_errors(
    scores: Callable[[Ints], Mapping[str, float]], examples: int, resamples: int = 200, seed: int = 0
) -> dict[str, float]:
    """The bootstrap's standard error of each score (Efron 1979): `scores(rows)` gives the scores of some of
    the examples, rows of 0 … E-1 with repetitions.

    It says how far a score would move on other examples of the same kind. 200 resamples give it to about
    5 % of itself. Scores that a resample lacks are left out.
    """
    if examples < 1:
        raise InputError("There is no example to resample. Give at least one labelled row.")
    generator = np.random.default_rng(seed)
    values_by_name: dict[str, list[float]] = {}
    for _ in range(resamples):
        for name, value in scores(generator.integers(examples, size=examples)).items():
            values_by_name.setdefault(name, []).append(value)
    return {
        name: float(np.std(values, ddof=1))
        for name, values in values_by_name.items()
        if len(values) == resamples
    }


def _f1(hits: npt.ArrayLike, golds: npt.ArrayLike, guesses: npt.ArrayLike) -> Floats:
    return _share(2 * np.asarray(hits), np.asarray(golds) + np.asarray(guesses))


def _share(part: npt.ArrayLike, whole: npt.ArrayLike) -> Floats:
    """part / whole, and 0 where there is nothing."""
    part, whole = np.asarray(part, np.float64), np.asarray(whole, np.float64)
    quotients: Floats = np.divide(part, whole, out=np.zeros_like(part), where=whole > 0)
    return quotients


def _matthews(table: Ints) -> float:
    golds, guesses = table.sum(axis=1).astype(np.float64), table.sum(axis=0).astype(np.float64)
    examples = golds.sum()
    agreement = np.trace(table) * examples - golds @ guesses
    spread = (examples**2 - golds @ golds) * (examples**2 - guesses @ guesses)
    return float(agreement / np.sqrt(spread)) if spread > 0 else 0.0


def _correlation(left: Floats, right: Floats) -> float:
    left, right = _deviations(left), _deviations(right)
    spread = np.sqrt(left @ left) * np.sqrt(right @ right)
    return float(np.clip(left @ right / spread, -1.0, 1.0)) if spread > 0 else 0.0


def _deviations(numbers: Floats) -> Floats:
    """Deviations from the mean, scaled so that the largest is 1 and no square overflows; zeros if all are
    equal.
    """
    largest = np.abs(numbers).max()
    scaled = numbers / largest if largest > 0 else numbers
    deviations = scaled - scaled.mean()
    widest = np.abs(deviations).max()
    return deviations / widest if widest > CONSTANT else np.zeros_like(numbers)


def _label_matrices(gold: npt.ArrayLike, predicted: npt.ArrayLike) -> tuple[Bools, Bools]:
    gold, predicted = np.asarray(gold, np.bool_), np.asarray(predicted, np.bool_)
    _check_alike(gold, predicted)
    if gold.ndim != 2 or not gold.shape[1]:
        raise ValueError(f"expected a truth value for each example and label (E, C), found {gold.shape}")
    return gold, predicted


def _numbers(values: npt.ArrayLike, name: str) -> Floats:
    numbers = np.asarray(values, np.float64)
    wrong = np.flatnonzero(~np.isfinite(numbers))
    if wrong.size:
        raise InputError(
            f"Expected finite numbers as {name}, found {numbers.flat[wrong[0]]} in row {wrong[0] + 1} "
            f"({wrong.size:,} such rows). Mend the row, or train again with a lower learning rate."
        )
    return numbers


def _check_alike(gold: npt.NDArray[np.generic], predicted: npt.NDArray[np.generic]) -> None:
    if gold.shape != predicted.shape:
        raise ValueError(f"expected one prediction an example, found gold {gold.shape}, {predicted.shape}")
    if not len(gold):
        raise InputError("There is no example to score. Give at least one labelled row.")


def normalise(text: str) -> str:
    """Lower case, without punctuation and English articles, single blanks."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_WITHOUT_PUNCTUATION)).split())


def exact_match(prediction: str, gold: str) -> float:
    """1.0 when both normalise to the same text, else 0.0."""
    return float(normalise(prediction) == normalise(gold))


def token_f1(prediction: str, gold: str) -> float:
    """F1 of the words that both share, as often as they occur in both; 0.0 when they share none (v1.1)."""
    predicted, right = normalise(prediction).split(), normalise(gold).split()
    shared = (Counter(predicted) & Counter(right)).total()
    if shared == 0:
        return 0.0
    precision, recall = shared / len(predicted), shared / len(right)
    return 2 * precision * recall / (precision + recall)


def question_scores(predictions: Sequence[str], golds: Golds) -> tuple[Floats, Floats]:
    """Exact match (Q,) and F1 (Q,) by the rules of v2.0: without golds, saying nothing is right.

    A gold of which nothing is left after normalising is passed over, unless it is all there is.
    """
    if len(predictions) != len(golds):
        raise ValueError(
            f"expected one prediction for each of {len(golds)} questions, found {len(predictions)}"
        )
    if not len(golds):
        raise ValueError("there is no question to score")
    exact, f1 = [], []
    for prediction, texts in zip(predictions, golds, strict=True):
        counted = [gold for gold in texts if normalise(gold)]
        exact.append(max(exact_match(prediction, gold) for gold in counted or [""]))
        f1.append(max((token_f1(prediction, gold) for gold in counted), default=exact[-1]))
    return np.array(exact), np.array(f1)


class Interval(NamedTuple):
    """A confidence interval from `low` to `high`."""

    low: float
    high: float


def p_value(differences: npt.ArrayLike, trials: int = TRIALS, seed: int = 0) -> float:
    """How often the mean of differences (Q,) is as far from 0 when each keeps or changes its sign by chance.

    Two-sided. Exact where all 2^Q choices of signs are no more than `trials`; else of as many random ones,
    the observed one counted among them, so that the p-value is never 0 (Phipson and Smyth 2010).
    Raises InputError without queries.
    """
    values = _as_values(differences)
    observed = abs(values.sum()) - _ROUNDING * np.abs(values).sum()
    if 2 ** len(values) <= trials:
        choices = np.arange(2 ** len(values))[:, None] >> np.arange(len(values)) & 1
        all_signs = (2.0 * choices - 1).astype(np.float64)  # (2^Q, Q) of -1 and 1
        return float((np.abs(all_signs @ values) >= observed).mean())
    generator = np.random.default_rng(seed)
    extreme = 0
    for part in _divide_trials(trials, len(values)):
        signs = generator.integers(0, 2, (part, len(values)), dtype=np.int8) * 2 - 1
        extreme += int((np.abs(signs @ values) >= observed).sum())
    return (extreme + 1) / (trials + 1)


def intervals_of_means(
    values: npt.ArrayLike, confidence: float = 0.95, trials: int = TRIALS, seed: int = 0
) -> list[Interval]:
    """The bootstrap's percentile interval of the mean of each column of (Q, S), all from the same resamples
    of the queries: of systems' scores, or of the differences between two. Raises InputError without queries.
    """
    columns = np.asarray(values, np.float64)
    queries = len(_as_values(columns[:, 0]))
    generator = np.random.default_rng(seed)
    means = np.concatenate(
        [
            _draw_resamples(generator, part, queries) @ columns / queries
            for part in _divide_trials(trials, queries)
        ]
    )
    tail = (1 - confidence) / 2
    low, high = np.quantile(means, [tail, 1 - tail], axis=0)
    return [Interval(float(a), float(b)) for a, b in zip(low, high, strict=True)]


def _draw_resamples(generator: np.random.Generator, trials: int, queries: int) -> Floats:
    """(T, Q): how often each query occurs in a resample of Q queries, drawn with replacement."""
    drawn = generator.integers(0, queries, (trials, queries))
    drawn += np.arange(trials)[:, None] * queries
    counts = np.bincount(drawn.ravel(), minlength=trials * queries)
    return counts.reshape(trials, queries).astype(np.float64)


def _divide_trials(trials: int, queries: int) -> Iterator[int]:
    """Divides the trials into parts that bound the memory."""
    most = max(1, _AT_ONCE // queries)
    for start in range(0, trials, most):
        yield min(most, trials - start)


def _as_values(values: npt.ArrayLike) -> Floats:
    per_query = np.asarray(values, np.float64)
    if per_query.ndim != 1:
        raise ValueError(f"expected one value a query, (Q,), found the shape {per_query.shape}")
    if not len(per_query):
        raise InputError("There are no queries, so there is nothing to compare.")
    return per_query
