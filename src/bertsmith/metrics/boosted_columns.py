"""What a small gradient boosting makes of columns alone (scikit-learn's, by histograms): unlike a linear
model it finds thresholds, and what two columns mean together.

E examples, F features, C outputs.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from bertsmith.arrays import Float32s

_TREES, _FEWEST_ROUNDS, _MOST_ROUNDS = 4000, 10, 60  # of all folds and classes together: some seconds
_NEVER = 1e-6  # the probability of a class that the rows learned from don't have


def boosted_rounds(outputs: int, folds: int) -> int:
    """How many rounds there is time for, with a tree an output in each; 0 where they would be too few."""
    rounds = _TREES // (max(outputs, 1) * folds)
    return min(rounds, _MOST_ROUNDS) if rounds >= _FEWEST_ROUNDS else 0


def boosted_classes(
    train: Float32s, gold: npt.ArrayLike, dev: Float32s, classes: int, rounds: int
) -> Float32s:
    """(E, C) logits for `dev`, of class numbers (E,) for `train`."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    gold = np.asarray(gold, np.int64)
    found = np.full((len(dev), classes), _NEVER)
    known = np.unique(gold)
    if len(known) == 1:
        found[:, known] = 1.0
    else:
        learner = HistGradientBoostingClassifier(**_settings(len(train), rounds)).fit(train, gold)
        found[:, learner.classes_] = learner.predict_proba(dev).clip(_NEVER)
    logits: Float32s = np.log(found).astype(np.float32)
    return logits


def boosted_labels(train: Float32s, gold: npt.ArrayLike, dev: Float32s, rounds: int) -> Float32s:
    """(E, C) log-odds for `dev`, of truth values (E, C) for `train`."""
    columns = [boosted_classes(train, each, dev, 2, rounds) for each in np.asarray(gold, np.int64).T]
    odds: Float32s = np.stack([each[:, 1] - each[:, 0] for each in columns], axis=1)
    return odds


def boosted_numbers(train: Float32s, gold: npt.ArrayLike, dev: Float32s, rounds: int) -> Float32s:
    """(E, 1) numbers for `dev`, of numbers (E,) for `train`."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    learner = HistGradientBoostingRegressor(**_settings(len(train), rounds))
    found: Float32s = (
        learner.fit(train, np.asarray(gold, np.float64)).predict(dev)[:, None].astype(np.float32)
    )
    return found


def _settings(rows: int, rounds: int) -> dict[str, Any]:
    """Leaves of few rows only where there are few."""
    return {
        "max_iter": rounds,
        "learning_rate": 0.2,
        "max_leaf_nodes": 8,
        "min_samples_leaf": min(20, max(2, rows // 50)),
        "early_stopping": False,
        "random_state": 0,
    }
