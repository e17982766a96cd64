"""How well tags of words are told: of entities by what they mark, of others (parts of speech) by the word.

Tags of entities are in IOB2.
"""

from collections.abc import Sequence

from bertsmith.metrics.entities import entity_scores
from bertsmith.tasks.task import Metrics


def tag_metrics(gold: Sequence[Sequence[str]], guessed: Sequence[Sequence[str]], entities: bool) -> Metrics:
    """Precision, recall and F1 of entities by conlleval's rules, and the words' accuracy; of other tags this
    alone.
    """
    pairs = [pair for tags, others in zip(gold, guessed, strict=True) for pair in zip(tags, others)]
    accuracy = sum(tag == other for tag, other in pairs) / max(len(pairs), 1)
    if not entities:
        return {"accuracy": accuracy}
    micro = entity_scores(gold, guessed).micro
    return {"f1": micro.f1, "precision": micro.precision, "recall": micro.recall, "accuracy": accuracy}


def tag_counts(gold: Sequence[str], guessed: Sequence[str], entities: bool) -> tuple[int, int]:
    """Of one sentence, what F1, or accuracy, is the quotient of."""
    if not entities:
        return sum(tag == other for tag, other in zip(gold, guessed, strict=False)), len(gold)
    micro = entity_scores([gold], [guessed]).micro
    return 2 * micro.correct, micro.predicted + micro.support
