"""Which risk to prove, where the user knows prices instead: of a call to the teacher, and of an answer that
differs.

Answering costs at most epsilon times the error's price, and asking costs the call's. Up to epsilon = call /
error, answering is no dearer on average. A smaller epsilon saves more on each answer, and answers less.
"""

from dataclasses import dataclass

import numpy.typing as npt

from bertsmith.door import door
from bertsmith.errors import InputError
from bertsmith.metrics.guarantees.learn_then_test import Certificate, certify
from bertsmith.metrics.guarantees.levels import share

# Of the break-even risk. At the whole of it the proven saving would be nothing.
_PARTS = (0.75, 0.5, 0.25, 0.125)
CLAIMS = len(_PARTS)  # that are tested, each at its share of delta


@dataclass(frozen=True)
class Prices:
    """Of a `call` to the teacher, and what it costs that an answer differs (`error`), in one currency."""

    call: float
    error: float

    def __post_init__(self) -> None:
        if not 0 < self.call < self.error < float("inf"):
            raise InputError(
                f"Expected the price of a call above 0 and below that of an error, found {self.call} and "
                f"{self.error}: where an error costs no more than a call, answer everything, without a claim."
            )

    @property
    def break_even(self) -> float:
        """The risk at which an answer costs on average what a call does."""
        return self.call / self.error

    def saving(self, coverage: float, epsilon: float) -> float:
        """Of a call on average, at the least: what is answered saves a call and differs in `epsilon` of
        cases.
        """
        return coverage * (self.call - epsilon * self.error)


@dataclass(frozen=True)
class PricedCertificate:
    """The claim chosen, and what it saves of each call: `saving` at the observed coverage, `least_saving` at
    the lower end of its interval. Both reckon with a risk of epsilon, the most that the claim allows.
    """

    certificate: Certificate
    saving: float
    least_saving: float


@door(delta=share)
def certify_by_prices(
    confidence: npt.ArrayLike, losses: npt.ArrayLike, thresholds: npt.ArrayLike, prices: Prices, delta: float
) -> PricedCertificate | None:
    """Of the claims for an eighth, a quarter, a half and three quarters of the break-even risk the one that
    saves most; None where none is proven.

    Each is tested at delta / 4, so that all hold together with probability 1 - `delta` and choosing one by
    the same calls costs nothing more. Raises InputError as `certify` does.
    """
    claims = [
        certify(confidence, losses, thresholds, part * prices.break_even, delta / CLAIMS) for part in _PARTS
    ]
    proven = [claim for claim in claims if claim is not None]
    if not proven:
        return None
    best = max(proven, key=lambda claim: prices.saving(claim.coverage, claim.epsilon))
    return PricedCertificate(
        best,
        prices.saving(best.coverage, best.epsilon),
        prices.saving(best.coverage_interval.low, best.epsilon),
    )
