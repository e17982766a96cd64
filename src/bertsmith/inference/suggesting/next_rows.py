"""Which rows to label next? Those the model is unsure of, unlike each other (BADGE: Ash et al. 2020).

E rows, F features, C outputs.
"""

import numpy as np

from bertsmith.arrays import Floats, Ints


def choose_rows(features: Floats, residuals: Floats, count: int, seed: int = 0) -> Ints:
    """Up to `count` rows, in the order in which they were drawn.

    A row's place is the gradient that its likeliest answer would have on the last layer: `residuals` (E, C),
    probabilities less that answer, times `features` (E, F). It is long where the model is unsure, and points
    where the row differs. Rows are drawn by k-means++ (Arthur and Vassilvitskii 2007): the longest first,
    each next with a chance as the square of its distance to the nearest one drawn. The products are never
    made: distances follow from those of features and of residuals.
    """
    squares = np.square(features).sum(1) * np.square(residuals).sum(1)
    nearest = np.full(len(features), np.inf)
    draw = np.random.default_rng(seed)
    chosen: list[int] = []
    while len(chosen) < min(count, len(features)):
        if not chosen:
            row = int(squares.argmax())
        else:
            total = nearest.sum()
            if total <= 0:  # no other row tells anything new
                break
            row = int(draw.choice(len(nearest), p=nearest / total))
        chosen.append(row)
        products = (features @ features[row]) * (residuals @ residuals[row])
        nearest = np.minimum(nearest, np.maximum(squares + squares[row] - 2 * products, 0.0))
        nearest[chosen] = 0.0
    return np.array(chosen, np.int64)
