"""Which class of transformers there is for a set of heads: what config.json names under `architectures`.

Names come from the families' records only, never from a file: a file's claim is taken when it fits the
tensors.
"""

from collections.abc import Set
from typing import NamedTuple

from bertsmith.model.families import FAMILIES, find_family


class Architecture(NamedTuple):
    """A class of transformers, and the heads it needs beside the encoder."""

    name: str
    heads: frozenset[str]

    @property
    def bare(self) -> bool:
        """True for a model without a head: its encoder's names carry no prefix."""
        return not self.heads


def architectures(family: str) -> list[Architecture]:
    """Of one family, in the order of its record."""
    known = find_family(family)
    return [
        Architecture(known.class_prefix + name, frozenset(heads)) for name, heads in known.classes.items()
    ]


def find_architecture(name: str) -> Architecture:
    """Raises ValueError for a class that no family has."""
    found = [each for family in FAMILIES for each in architectures(family) if each.name == name]
    if not found:
        raise ValueError(f"{name!r} is a class of no family")
    return found[0]


def choose_architecture(family: str, parts: Set[str], declared: str = "") -> Architecture:
    """The class that uses most of `parts`; of equals the declared one, else the first of the record.

    The tensors come before the claim: bert-base-uncased calls itself BertForMaskedLM and holds both heads.
    """
    fitting = [known for known in architectures(family) if known.heads <= parts]
    return max(fitting, key=lambda known: (len(known.heads), known.name == declared))
