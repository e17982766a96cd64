"""policy.toml: which labels of which model block or call for a review, and what happens when nobody can say.

model = "runs/injection/model"
fail = "closed"

[request]
block = ["injection"]
review = ["unclear"]
"""

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from bertsmith.errors import RecipeError, did_you_mean
from bertsmith.mirror.settings import RelaySettings
from bertsmith.serving.settings import gather
from bertsmith.validation import Strict, check

ALLOW, REVIEW, BLOCK = ACTIONS = ("allow", "review", "block")  # the most severe last
Action = Literal["allow", "review", "block"]
ENVIRONMENT = "BERTSMITH_GUARD_"


class Costs(Strict):
    """In one currency: what should be blocked and is `missed`, what should be allowed and is `refused`, and a
    `review`.
    """

    model_config = ConfigDict(allow_inf_nan=False)

    missed: float = Field(gt=0)
    refused: float = Field(gt=0)
    review: float | None = Field(None, gt=0)


class SidePolicy(Strict):
    """Labels that are blocked, and that are reviewed; all others are allowed. With `costs` the action is the
    one that costs least by the probabilities of the labels in `block`, else that of the label given.
    """

    block: tuple[str, ...] = ()
    review: tuple[str, ...] = ()
    costs: Costs | None = None

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if both := set(self.block) & set(self.review):
            raise ValueError(f"the label {min(both)!r} stands in block and in review: expected one of them")
        if not self.block and not self.review:
            raise ValueError("expected at least one label in block or review")
        if self.costs is not None and self.review:
            raise ValueError(
                "expected review or costs, found both: costs go by the labels of block alone. Take the "
                "labels out of review, or leave the costs out"
            )
        return self

    def action_of(self, label: str) -> Action:
        """Of one label."""
        return "block" if label in self.block else "review" if label in self.review else "allow"

    def decide(self, given: tuple[str, ...], probabilities: Mapping[str, float], *, several: bool) -> Action:
        """For the labels `given` to a text. `several`: labels that hold independently of each other."""
        if self.costs is None:
            actions = [self.action_of(label) for label in given]
            return max(actions, key=ACTIONS.index, default="allow")
        shares = [share for label, share in probabilities.items() if label in self.block]
        # The probability that one of these labels holds.
        bad = 1 - math.prod(1 - each for each in shares) if several else min(sum(shares), 1.0)
        prices: dict[Action, float] = {
            "allow": bad * self.costs.missed,
            "block": (1 - bad) * self.costs.refused,
        }
        if self.costs.review is not None:
            prices["review"] = self.costs.review
        return min(prices, key=lambda action: (prices[action], ACTIONS.index(action)))


class GuardServerSettings(RelaySettings):
    """`model` is a classifier's folder or name. `fail`: what can't be judged is let through (open) or refused
    (closed). A model that says nothing for `judge_seconds` can't judge; nor can it a body of more than
    `max_judged_bytes`. `log` has a line for each decision, with the text only where `log_texts` says so.
    """

    port: int = Field(8200, ge=0, le=65535)
    model: str = Field(min_length=1)
    fail: Literal["open", "closed"]
    request: SidePolicy | None = None
    response: SidePolicy | None = None
    judge_seconds: float = Field(1.0, gt=0)
    max_judged_bytes: int = Field(4_000_000, ge=1024)
    log: str = Field("guard.jsonl", min_length=1)
    log_texts: bool = False

    @model_validator(mode="after")
    def _has_a_side(self) -> Self:
        if self.request is None and self.response is None:
            raise ValueError("expected a section [request], [response], or both")
        return self

    def require_labels(self, labels: list[str]) -> None:
        """Raises RecipeError for a label that the model doesn't know: it would never be blocked."""
        for side in ("request", "response"):
            policy: SidePolicy | None = getattr(self, side)
            for label in () if policy is None else (*policy.block, *policy.review):
                if label not in labels:
                    raise RecipeError(
                        f"The policy's [{side}] names the label {label!r}, which the model {self.model} "
                        f"doesn't have.{did_you_mean(label, labels)} It has: {', '.join(labels[:20])}."
                    )


def read_policy(
    path: Path, given: Mapping[str, Any], environment: Mapping[str, str] = os.environ
) -> GuardServerSettings:
    """What the command line gives goes before the environment, and that before the file. Raises RecipeError
    naming the key, InputError for a file that can't be read.
    """
    return check(
        GuardServerSettings, gather(GuardServerSettings, ENVIRONMENT, path, given, environment), str(path)
    )
