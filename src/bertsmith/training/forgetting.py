"""What continued pre-training gains on its own text, and what it loses on general text."""

from collections.abc import Sequence
from typing import Any

from bertsmith.tasks.pretraining.masked_task import GENERAL
from bertsmith.training.log import Record

#: A head that is no better than the most frequent piece knew nothing that could be forgotten.
_NOTHING_KNOWN = 0.01


def first_evaluation(records: Sequence[Record]) -> Record | None:
    """The evaluation before the first step, where there was one."""
    return next((r for r in records if r["kind"] == "evaluation" and r["step"] == 0), None)


def gains_and_losses(before: Record | None, after: dict[str, float]) -> list[dict[str, Any]]:
    """A row for each kind of text: its figures before and after; none where nothing was measured before."""
    if before is None or f"{GENERAL}mlm_loss" not in after:
        return []
    return [
        {
            "held-out text": text,
            "MLM loss before": round(before[f"{kind}mlm_loss"], 4),
            "after": round(after[f"{kind}mlm_loss"], 4),
            "MLM accuracy before": f"{before[f'{kind}mlm_accuracy']:.2%}",
            "accuracy after": f"{after[f'{kind}mlm_accuracy']:.2%}",
        }
        for text, kind in (("of the corpus", ""), ("general", GENERAL))
        if before.get(f"{kind}mlm_loss") is not None and f"{kind}mlm_loss" in after
    ]


def forgetting_warnings(before: Record | None, after: dict[str, float]) -> list[str]:
    """A sentence where the general text's loss rose by more than the corpus's fell, and one where that can't
    be told.
    """
    if before is None or "mlm_loss" not in after or f"{GENERAL}mlm_loss" not in after:
        return []
    if before["mlm_loss"] is None or before[f"{GENERAL}mlm_loss"] is None:  # not finite, read from the log
        return []
    known = before[f"{GENERAL}mlm_accuracy"] - before[f"{GENERAL}mlm_majority"]
    if known < _NOTHING_KNOWN:
        return [
            "the masked-language head began untrained: what the encoder has forgotten can't be told from its "
            "loss on general text, which says only what the head has learned there"
        ]
    gained = before["mlm_loss"] - after["mlm_loss"]
    lost = after[f"{GENERAL}mlm_loss"] - before[f"{GENERAL}mlm_loss"]
    if lost <= max(gained, 0.0):
        return []
    return [
        f"the loss on general text rose by {lost:.3f}, that on the corpus's own fell by {gained:.3f}: more "
        "is forgotten than gained. Raise data.general_share, or lower optimizer.learning_rate"
    ]
