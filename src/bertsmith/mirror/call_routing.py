"""Who answers a call, and why, decided before the LLM is asked; and what the LLM said, where it was."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bertsmith.mirror.call import Asked, Json


@dataclass(frozen=True)
class CallRouting:
    """`reason` says why the LLM answers; with none, the student does, by `answer`. `values` and `confidence`
    are the student's, None and NaN where it was not asked. Of a call that it `is_sure` of, the LLM is asked
    with `probability`, and of any call at that moment with `least` or more, of any version of the site with
    `site_least`. `audit` names the audit, where the LLM is asked although the student answered.
    """

    version: str
    student: str
    reason: str = ""
    confidence: float = float("nan")
    values: Mapping[str, Any] | None = None
    answer: Any = None
    probabilities: Mapping[str, list[tuple[Any, float]]] | None = None
    is_sure: bool = False
    probability: float = 1.0
    least: float = 1.0
    site_least: float = 1.0
    audit: str = ""

    @property
    def weight(self) -> float:
        """What the call counts for among all that the LLM was asked at that moment: those that were sure to
        be asked are more than their share of the traffic.
        """
        return self.least / self.probability

    @property
    def site_weight(self) -> float:
        """The same among the calls of all versions of the site, as if they had been merged."""
        return self.site_least / self.probability

    @property
    def is_ours(self) -> bool:
        """The student answers."""
        return not self.reason


@dataclass(frozen=True)
class Outcome:
    """A call whose answer is known: the LLM's `taught`, or None with the `reason` why there is none. `cause`
    is why nobody knows, of an audit that is void.
    """

    version: str
    asked: Asked | None
    routing: CallRouting | None
    taught: Json = None
    reason: str = ""
    cause: str = ""
