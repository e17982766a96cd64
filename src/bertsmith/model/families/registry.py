"""Which families there are: ours, those that a program registers, and those of installed packages.

A package names its records in the entry-point group `bertsmith.families`, by `model_type`. The record is
imported when a model of that family is met. So a folder or a recipe can choose among what its user has
installed, and can't say where code lies.
"""

import reprlib
from importlib.metadata import entry_points

from bertsmith.errors import ModelError, did_you_mean
from bertsmith.model.families.family import Family

GROUP = "bertsmith.families"
FAMILIES: dict[str, Family] = {}


def register(family: Family) -> Family:
    """Makes a family known by its `model_type`. Raises ValueError for one that is there already."""
    if FAMILIES.setdefault(family.model_type, family) != family:
        raise ValueError(f"there is a family {family.model_type!r} already")
    return family


def find_family(model_type: object) -> Family:
    """Raises ModelError naming the families there are, or what keeps an installed one from being used."""
    name = model_type if isinstance(model_type, str) else reprlib.repr(model_type)
    if name not in FAMILIES:
        installed = {point.name: point for point in entry_points(group=GROUP)}
        if name not in installed:
            there = list(dict.fromkeys((*FAMILIES, *installed)))
            raise ModelError(
                f"There is no family {reprlib.repr(name)}.{did_you_mean(name, there)} "
                f"There are: {', '.join(there)}. docs/add-a-variant.md tells how to add one."
            )
        origin = f"The family {name!r} ({installed[name].value})"
        try:
            family = installed[name].load()
        except (ImportError, AttributeError) as error:
            raise ModelError(f"{origin} can't be imported: {error}.") from error
        if not isinstance(family, Family) or family.model_type != name:
            raise ModelError(f"{origin} must be a Family whose model_type is {name!r}.")
        register(family)
    return FAMILIES[name]
