"""Reading files that someone else made: sizes before parsing, plain files only, no code.

Names and sizes are checked before a byte is parsed, so that a small hostile file can't cost much memory.
"""

import contextlib
import stat
import tomllib
from collections.abc import Iterable
from math import prod
from pathlib import Path
from typing import Any

import safetensors
from torch import Tensor

from bertsmith.errors import ModelError
from bertsmith.files import parse_json

MAX_SETTINGS_BYTES = 4 << 20  # a config.json with 100,000 labels has 3 MB
LARGE = 1 << 18  # values of a tensor that is worth a mapping of its own
MAX_HEADER_BYTES = 16 << 20  # names and shapes of BERT-large's tensors take 0.1 MB


def unfinished_run(folder: Path) -> str:
    """Behind a message: how to go on, where `folder` is that of a run that has no model yet; else empty."""
    recipe = folder / "recipe.toml"
    if not recipe.is_file() or (folder / "model").exists():
        return ""
    again = "repeat the command that began it with --resume"
    with contextlib.suppress(OSError, ValueError):
        if "objective" in tomllib.loads(recipe.read_text(encoding="utf-8")):
            again = f"bertsmith pretrain {recipe} --resume"
    return f" The run in {folder} was interrupted, or still goes on. To go on with it: {again}."


def plain_file(folder: Path, name: str) -> Path:
    """The path of a regular file in a model folder.

    Raises ModelError when it is missing, not a file, or a link. A link would let a downloaded folder read
    any file of this machine; those of the hub's own cache, from snapshots to blobs beside them, are its
    way to store a file once, and are followed.
    """
    path = folder / name
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        inside = folder / "model"
        meant = f" Did you mean {inside}?" if (inside / name).is_file() else unfinished_run(folder)
        raise ModelError(
            f"{folder} has no {name}: it is not a model folder, or not a whole one.{meant}"
        ) from None
    except OSError as error:
        raise ModelError(f"{path} can't be read: {error.strerror}.") from error
    linked = stat.S_ISLNK(mode) or not path.resolve().is_relative_to(folder.resolve())
    if linked and not _is_hub_link(path):
        raise ModelError(
            f"{path} is a symbolic link, which a model folder must not hold. Copy the file itself."
        )
    if not path.is_file():
        raise ModelError(f"{path} is not a regular file.")
    return path


def read_settings(path: Path) -> dict[str, Any]:
    """The JSON object in a file of a model folder. Raises ModelError when it is too large or isn't one."""
    settings = read_small_json(path)
    if not isinstance(settings, dict):
        raise ModelError(f"{path} must hold a JSON object; found {type(settings).__name__}.")
    return settings


def read_small_json(path: Path) -> Any:
    """As `read_settings`, of any JSON."""
    size = path.stat().st_size
    if size > MAX_SETTINGS_BYTES:
        raise ModelError(
            f"{path} has {size:,} bytes; settings of a model have at most {MAX_SETTINGS_BYTES:,}."
        )
    try:
        return parse_json(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path} is not valid JSON ({error}). It may have been cut or altered.") from error


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Every tensor of a safetensors file, copied into memory: the file may then be replaced or removed.

    Opened anew for each large one, the largest first: what is mapped counts as memory until it is closed, and
    so the peak is hardly above the tensors themselves instead of twice that. The small ones come together,
    or a hostile header of 100,000 names would be parsed as often. Raises ModelError when the header is too
    large or the file is cut, altered or in another format.
    """
    _check_header_size(path)
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            sizes = {name: prod(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
        large = sorted((name for name in sizes if sizes[name] >= LARGE), key=lambda name: -sizes[name])
        copies = {name: tensor for one in large for name, tensor in _copies(path, [one])}
        copies |= _copies(path, [name for name in sizes if sizes[name] < LARGE])
    except safetensors.SafetensorError as error:
        raise ModelError(
            f"{path} is not a whole safetensors file ({error}). It may have been cut or altered."
        ) from error
    return {name: copies[name] for name in sizes}


def _copies(path: Path, names: Iterable[str]) -> list[tuple[str, Tensor]]:
    with safetensors.safe_open(path, framework="pt") as file:
        return [(name, file.get_tensor(name).clone()) for name in names]


def _check_header_size(path: Path) -> None:
    """A safetensors file begins with the length of its JSON header, 8 bytes little-endian."""
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
    length = int.from_bytes(start, "little")
    if len(start) < 8 or length > size - 8:
        raise ModelError(
            f"{path} ({size:,} bytes) is not a whole safetensors file. It may have been cut or altered."
        )
    if length > MAX_HEADER_BYTES:
        raise ModelError(f"{path} has a header of {length:,} bytes; at most {MAX_HEADER_BYTES:,} are read.")


def _is_hub_link(path: Path) -> bool:
    """models--org--name/snapshots/COMMIT/file -> models--org--name/blobs/HASH, and nowhere else.

    The file may lie one folder deeper, as 1_Pooling/config.json does.
    """
    place = path.absolute()
    try:
        target = path.resolve(strict=True)
    except (OSError, RuntimeError):
        return False
    return any(
        snapshots.name == "snapshots"
        and snapshots.parent.name.startswith("models--")
        and target.parent == (snapshots.parent / "blobs").resolve()
        for snapshots in (place.parent.parent, place.parent.parent.parent)
    )
