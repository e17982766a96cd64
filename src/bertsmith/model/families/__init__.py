"""The families of encoders: a record each. Importing this makes ours known."""

from bertsmith.model.families import bert, electra, modernbert, nomic_bert
from bertsmith.model.families.family import (
    BERT_SIZES,
    CLASSIFIER,
    MASKED_LANGUAGE,
    TOKENS,
    Family,
    HeadNames,
    ModuleNames,
    Size,
    layer_rows,
)
from bertsmith.model.families.registry import FAMILIES, find_family, register

__all__ = [
    "BERT_SIZES",
    "CLASSIFIER",
    "FAMILIES",
    "MASKED_LANGUAGE",
    "TOKENS",
    "Family",
    "HeadNames",
    "ModuleNames",
    "Size",
    "bert",
    "electra",
    "find_family",
    "layer_rows",
    "modernbert",
    "nomic_bert",
    "register",
]
