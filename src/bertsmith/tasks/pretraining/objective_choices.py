"""What a recipe says of its objective: its name, and what is its own. Without torch, so that a recipe
is read at once.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

ObjectiveName = Literal["masked-language", "sentence-order", "replaced-tokens"]


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
