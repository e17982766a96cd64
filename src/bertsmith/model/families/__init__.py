"""The families of encoders, one record each. Importing this registers ours. Read first: family.py."""

from bertsmith.model.families import bert, deberta, electra, gte, modernbert, nomic_bert
from bertsmith.model.families.family import (
    BERT_SIZES,
    CLASSIFIER,
    FAMILIES,
    MASKED_LANGUAGE,
    TOKENS,
    AuthorsFiles,
    Family,
    HeadNames,
    ModuleNames,
    Size,
    find_family,
    layer_rows,
    register,
)

__all__ = [
    "BERT_SIZES",
    "CLASSIFIER",
    "FAMILIES",
    "MASKED_LANGUAGE",
    "TOKENS",
    "AuthorsFiles",
    "Family",
    "HeadNames",
    "ModuleNames",
    "Size",
    "bert",
    "deberta",
    "electra",
    "find_family",
    "gte",
    "layer_rows",
    "modernbert",
    "nomic_bert",
    "register",
]
