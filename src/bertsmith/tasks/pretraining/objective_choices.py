"""What a recipe says of its objective: its name, and what is its own. Without torch, so that a recipe
is read at once.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator

ObjectiveName = Literal["masked-language", "sentence-order", "replaced-tokens"]


def _known(name: Any) -> Any:
    ours = get_args(ObjectiveName)
    if name in ours or (isinstance(name, str) and ":" in name):
        return name
    *others, last = map(repr, ours)
    raise ValueError(f"expected {', '.join(others)} or {last}")


Objective = Annotated[str, BeforeValidator(_known)]  # one of ours, or a user's `module:Class`


@dataclass(frozen=True)
class ObjectiveChoices:
    """Pairs or full segments; the generator's share of the width, or its folder; the weight of the
    discriminator's loss; whether there is general text beside the corpus.
    """

    next_sentence: bool
    generator_share: float = 0.25
    generator: Path | None = None
    replaced_weight: float = 50.0
    general: bool = False
