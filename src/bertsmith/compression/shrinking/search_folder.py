"""The folder of a search for a smaller model, begun once or again with the same settings.

out/settings.json    what was asked for
out/vocabulary.json  whether the candidates have the pruned vocabulary, once that is decided
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bertsmith.compression.distilling.distil_data import data_hashes
from bertsmith.compression.distilling.distil_recipe import DistilRecipe
from bertsmith.compression.distilling.teacher import Teacher
from bertsmith.errors import InputError
from bertsmith.files import make_folder, read_json, write_json

_SETTINGS, _VOCABULARY = "settings.json", "vocabulary.json"


def asked_for(
    whole: Teacher, recipe: DistilRecipe, overrides: Sequence[str], values: Mapping[str, Any], prune: bool
) -> dict[str, Any]:
    """What the candidates follow from."""
    return {
        "model": whole.sha256,
        "files": data_hashes(recipe),
        "settings": sorted(overrides),
        "values": {name: value for name, value in sorted(values.items()) if value is not None},
        "prune": prune,
    }


def begin_search(out: Path, asked: dict[str, Any]) -> None:
    """Raises InputError where the folder holds a search with other settings, or something else."""
    path = out / _SETTINGS
    if path.exists():
        begun = read_json(path)
        differ = [name for name, value in asked.items() if begun.get(name) != value]
        if differ:
            raise InputError(
                f"{out} was begun with another {', '.join(differ)}. Resume with the same, or choose another "
                "folder."
            )
        return
    if out.exists() and not all(each.name.startswith(f".{_SETTINGS}") for each in out.iterdir()):
        raise InputError(f"{out} holds something else than a search of this kind. Choose another folder.")
    make_folder(out)
    write_json(path, asked)


def decided_once(out: Path, pruned: bool) -> bool:
    """Whether candidates have the pruned vocabulary. A search that goes on keeps what was decided, though
    another share of the score be asked for now: half-trained candidates began with it.
    """
    path = out / _VOCABULARY
    if not path.exists():
        write_json(path, {"pruned": pruned})
    return bool(read_json(path)["pruned"])
