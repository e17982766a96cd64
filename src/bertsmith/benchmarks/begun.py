"""The folder of a benchmark: begun once, or gone on with by the same settings."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertsmith.errors import RecipeError
from bertsmith.files import make_folder, read_json, sha256, write_json
from bertsmith.model.locate import locate_model

BEGUN = "benchmark.json"
_OPENED = (".safetensors", ".bin", ".json", ".txt")  # weights, settings, vocabularies


def model_hash(model: str | Path) -> str:
    """SHA-256 of all that a model is opened from, its parts such as 1_Pooling too: its path may hold other
    files tomorrow.
    """
    folder = locate_model(model).folder
    parts = sorted(path.parent for path in folder.glob("*/config.json"))
    paths = [path for part in (folder, *parts) for path in sorted(part.iterdir())]
    opened = [path for path in paths if path.suffix in _OPENED and path.is_file()]
    lines = "".join(f"{path.relative_to(folder).as_posix()} {sha256(path)}\n" for path in opened)
    return hashlib.sha256(lines.encode()).hexdigest()


def begin(
    out: Path, settings: dict[str, Any], resume: bool, at_first: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Makes the folder and notes what was begun there, and beside it `at_first`, which need not be the same
    when it goes on. Returns what was noted when it was begun. Raises RecipeError where the folder holds
    something else, other settings, or the same unasked.
    """
    stored = out / BEGUN
    if stored.exists():
        if not resume:
            raise RecipeError(
                f"{out} already holds a benchmark. Go on with it by --resume, or take another folder."
            )
        begun: dict[str, Any] = read_json(stored)
        if differing := [name for name in settings if begun.get(name) != settings[name]]:
            raise RecipeError(
                f"{out} was begun with other settings: {', '.join(differing)}. Resume with the same ones, or "
                "choose another folder."
            )
        return begun
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise RecipeError(f"{out} exists and holds no benchmark. Choose another folder.")
    make_folder(out)
    begun = {**settings, **(at_first or {})}
    write_json(stored, begun)
    return begun
