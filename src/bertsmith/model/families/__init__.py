"""The families of encoders: a record each. Importing this makes ours known."""

from bertsmith.model.families import bert, modernbert, nomic_bert
from bertsmith.model.families.family import (
    BERT_SIZES,
    FAMILIES,
    Family,
    HeadNames,
    Row,
    Size,
    find_family,
    layer_rows,
    register,
)

__all__ = [
    "BERT_SIZES",
    "FAMILIES",
    "Family",
    "HeadNames",
    "Row",
    "Size",
    "bert",
    "find_family",
    "layer_rows",
    "modernbert",
    "nomic_bert",
    "register",
]
