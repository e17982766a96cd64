"""The settings of a pre-training objective in a recipe: its name, and its own choices. Imports no torch, so
that a recipe is read quickly.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator

ObjectiveName = Literal["masked-language", "sentence-order", "replaced-tokens"]


def _check_name(name: Any) -> Any:
    ours = get_args(ObjectiveName)
    if name in ours or (isinstance(name, str) and ":" in name):
        return name
    *others, last = map(repr, ours)
    raise ValueError(f"expected {', '.join(others)} or {last}")


Objective = Annotated[str, BeforeValidator(_check_name)]  # one of ours, or a user's `module:Class`


@dataclass(frozen=True)
class ObjectiveChoices:
    """The choices of an objective: pairs of segments or single ones (`next_sentence`); the generator's share
    of the width, or its folder; the weight of the discriminator's loss; whether general text is measured
    beside the corpus (`general`).
    """

    next_sentence: bool
    generator_share: float = 0.25
    generator: Path | None = None
    replaced_weight: float = 50.0
    general: bool = False
