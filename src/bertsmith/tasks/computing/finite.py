"""What a model computed, before anybody believes it: finite weights can have values that are not.

Any shape.
"""

from torch import Tensor

from bertsmith.errors import NotFinite


def require_finite(values: Tensor) -> Tensor:
    """The values as they are. Raises NotFinite where one is infinite or NaN."""
    if not bool(values.isfinite().all()):
        raise NotFinite(
            "The model was expected to give finite values, but they overflow: its weights are too large or "
            "damaged. Take another copy of it or, if it was trained so, train again at a lower learning rate."
        )
    return values
