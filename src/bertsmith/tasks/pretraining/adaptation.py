"""Continued pre-training: text of a domain, other text mixed in, and on both what the model knows of them.

What a model forgets shows in its figures on held-out text of the kind that it was trained on before.
"""

from dataclasses import dataclass

from bertsmith.data.stream import PretrainingStream
from bertsmith.tasks.objective import Add
from bertsmith.tasks.pretraining.pretraining import PretrainingTask

GENERAL = "general_"  # before the names of figures on general text
_MEASURED = ("mlm_loss", "mlm_accuracy", "mlm_majority")


@dataclass
class AdaptationTask(PretrainingTask):
    """Pre-training that measures held-out text of another kind beside its own: `general_heldout`."""

    general_heldout: PretrainingStream | None = None

    def evaluate(self, rank: int, ranks: int, add: Add) -> dict[str, float]:
        """As that of pre-training, with general_mlm_loss, general_mlm_accuracy and general_mlm_majority."""
        metrics = super().evaluate(rank, ranks, add)
        if self.general_heldout is None:
            return metrics
        general = self.metrics(add(self.sums(rank, ranks, self.general_heldout)))
        return metrics | {f"{GENERAL}{name}": general[name] for name in _MEASURED if name in general}
