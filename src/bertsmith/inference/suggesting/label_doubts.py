"""Which labels are probably wrong? Confident learning (Northcutt et al. 2021, sections 3.1 and 3.2).

E examples, C classes. Probabilities are those of a model that hasn't learned from the example.
"""

from typing import NamedTuple

import numpy as np

from bertsmith.arrays import Bools, Floats, Ints


class Doubts(NamedTuple):
    """`order` (E,): the examples' numbers, the most doubtful label first. The first `wrong` of them are
    probably wrong.
    """

    order: Ints
    wrong: int


def find_doubts(probabilities: Floats, labels: Ints) -> Doubts:
    """(E, C) and (E,) -> the labels to look at.

    Doubtful is a label of little probability, measured by what its class usually has. How many are wrong is
    counted off the diagonal; which, this order knows better: of 500 planted among 10,003 of banking77 the
    first 500 hold 91 %, those off the diagonal 77 %.
    """
    usual = np.maximum(class_thresholds(probabilities, labels)[labels], np.finfo(np.float64).tiny)
    order = np.argsort(_of_labels(probabilities, labels) / usual, kind="stable")
    return Doubts(order, int(off_diagonal(probabilities, labels).sum()))


def off_diagonal(probabilities: Floats, labels: Ints) -> Bools:
    """(E,) whether an example counts for another class than its label in the confident joint.

    A class's threshold is its mean probability among the examples that bear it, so that a class of which the
    model is never sure isn't doubted for that. An example counts for the likeliest of the classes that reach
    their threshold, and for its label where that is the likeliest of all.
    """
    reached = probabilities >= class_thresholds(probabilities, labels)
    confident = np.where(reached, probabilities, -1.0)
    counted = np.where(reached.any(1), confident.argmax(1), labels)
    return np.asarray((counted != labels) & (probabilities.argmax(1) != labels))


def class_thresholds(probabilities: Floats, labels: Ints) -> Floats:
    """(C,) the mean probability of each class where it is the label; 1 where it never is."""
    counts = np.bincount(labels, minlength=probabilities.shape[1])
    sums = np.bincount(labels, _of_labels(probabilities, labels), minlength=probabilities.shape[1])
    return np.where(counts > 0, sums / np.maximum(counts, 1), 1.0)


def _of_labels(values: Floats, labels: Ints) -> Floats:
    return np.asarray(values[np.arange(len(labels)), labels])
