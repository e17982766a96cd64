"""policy.toml: which labels of a model block a text or ask for a review, and what happens if it can't judge.

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
    """The costs of errors, in any one currency: of a harmful text that is let through (`missed`), of a
    harmless one that is blocked (`refused`), and of a `review`.
    """

    model_config = ConfigDict(allow_inf_nan=False)

    missed: float = Field(gt=0)
    refused: float = Field(gt=0)
    review: float | None = Field(None, gt=0)


class SidePolicy(Strict):
    """The policy for requests or for answers: labels to `block` and to `review`; all others are allowed.

    Without `costs` the predicted label decides. With them, the action of the lowest expected cost is taken,
    by the probabilities of the labels in `block`.
    """

    block: tuple[str, ...] = ()
    review: tuple[str, ...] = ()
    costs: Costs | None = None

    @model_validator(mode="after")
    def _check_labels(self) -> Self:
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
        """The action for one predicted label, without regard to costs."""
        return "block" if label in self.block else "review" if label in self.review else "allow"

    def decide(
        self, predicted: tuple[str, ...], probabilities: Mapping[str, float], *, several: bool
    ) -> Action:
        """The action for a text with these `predicted` labels and `probabilities` of all labels.

        `several`: a multi-label model, whose labels are independent of each other.
        """
        if self.costs is None:
            actions = [self.action_of(label) for label in predicted]
            return max(actions, key=ACTIONS.index, default="allow")
        shares = [share for label, share in probabilities.items() if label in self.block]
        # The probability that at least one of the blocked labels is right.
        harmful = 1 - math.prod(1 - share for share in shares) if several else min(sum(shares), 1.0)
        expected_costs: dict[Action, float] = {
            "allow": harmful * self.costs.missed,
            "block": (1 - harmful) * self.costs.refused,
        }
        if self.costs.review is not None:
            expected_costs["review"] = self.costs.review
        return min(expected_costs, key=lambda action: (expected_costs[action], ACTIONS.index(action)))


class GuardServerSettings(RelaySettings):
    """The guard's settings. `model` is a classifier's folder or name.

    `fail`: what can't be judged is let through (open) or blocked (closed). That includes texts that the model
    doesn't judge within `judge_seconds`, and bodies of more than `max_judged_bytes`. `log` gets a line for
    each decision, with the texts only if `log_texts` is set.
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
    def _check_sides(self) -> Self:
        if self.request is None and self.response is None:
            raise ValueError("expected a section [request], [response], or both")
        return self

    def require_labels(self, labels: list[str]) -> None:
        """Checks the policy's labels. Raises RecipeError for one that the model doesn't have: it would never
        act.
        """
        for side in ("request", "response"):
            policy: SidePolicy | None = getattr(self, side)
            for label in () if policy is None else (*policy.block, *policy.review):
                if label not in labels:
                    raise RecipeError(
                        f"The policy's [{side}] names the label {label!r}, which the model {self.model} "
                        f"doesn't have.{did_you_mean(label, labels)} It has: {', '.join(labels[:20])}."
                    )


def read_policy(
    path: Path, options: Mapping[str, Any], environment: Mapping[str, str] = os.environ
) -> GuardServerSettings:
    """Reads the settings: the command line's `options` override the environment's, and those override the
    file's.

    Raises RecipeError naming a wrong key, InputError for a file that can't be read.
    """
    return check(
        GuardServerSettings, gather(GuardServerSettings, ENVIRONMENT, path, options, environment), str(path)
    )
