"""Which classes of transformers there are for a set of parts: what config.json names under `architectures`.

Names come from this table only, never from a file: a file's claim is taken when it fits the tensors.
"""

from collections.abc import Set
from typing import NamedTuple


class Architecture(NamedTuple):
    """A class of transformers, its family, and the heads it needs beside the encoder."""

    name: str
    family: str
    heads: frozenset[str]

    @property
    def bare(self) -> bool:
        """True for a model without a head: its encoder's names carry no prefix."""
        return not self.heads


def _architecture(name: str, family: str, *heads: str) -> Architecture:
    return Architecture(name, family, frozenset(heads))


ARCHITECTURES = (
    _architecture("BertModel", "bert"),
    _architecture("BertForPreTraining", "bert", "masked_language", "next_sentence"),
    _architecture("BertForMaskedLM", "bert", "masked_language"),
    _architecture("BertForNextSentencePrediction", "bert", "next_sentence"),
    _architecture("BertForSequenceClassification", "bert", "classifier"),
    _architecture("BertForTokenClassification", "bert", "classifier"),
    _architecture("BertForMultipleChoice", "bert", "classifier"),
    _architecture("BertForQuestionAnswering", "bert", "qa_outputs"),
    _architecture("RobertaModel", "roberta"),
    _architecture("RobertaForMaskedLM", "roberta", "masked_language"),
    _architecture("RobertaForSequenceClassification", "roberta", "classifier"),
    _architecture("RobertaForTokenClassification", "roberta", "classifier"),
    _architecture("RobertaForMultipleChoice", "roberta", "classifier"),
    _architecture("RobertaForQuestionAnswering", "roberta", "qa_outputs"),
    _architecture("DistilBertModel", "distilbert"),
    _architecture("DistilBertForMaskedLM", "distilbert", "masked_language"),
    _architecture("DistilBertForSequenceClassification", "distilbert", "pre_classifier", "classifier"),
    _architecture("DistilBertForMultipleChoice", "distilbert", "pre_classifier", "classifier"),
    _architecture("DistilBertForTokenClassification", "distilbert", "classifier"),
    _architecture("DistilBertForQuestionAnswering", "distilbert", "qa_outputs"),
)


def find_architecture(name: str) -> Architecture:
    """Raises ValueError for a class that is not in the table."""
    for architecture in ARCHITECTURES:
        if architecture.name == name:
            return architecture
    raise ValueError(f"{name!r} is not in the table of architectures")


def choose_architecture(family: str, parts: Set[str], declared: str = "") -> Architecture:
    """The class that uses most of `parts`; of equals the declared one, else the first of the table.

    The tensors come before the claim: bert-base-uncased calls itself BertForMaskedLM and holds both heads.
    """
    fitting = [known for known in ARCHITECTURES if known.family == family and known.heads <= parts]
    return max(fitting, key=lambda known: (len(known.heads), known.name == declared))
