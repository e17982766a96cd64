"""Reads files from untrusted sources: plain files only, and no code.

Names and sizes are checked before anything is parsed, so that a small hostile file can't take much memory.
"""

import contextlib
import stat
import tomllib
from collections.abc import Collection, Iterable
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertsmith.errors import ModelError
from bertsmith.files import parse_json

if TYPE_CHECKING:
    from torch import Tensor

WEIGHTS = "model.safetensors"
MAX_SETTINGS_BYTES = 4 << 20  # a config.json with 100,000 labels has 3 MB
LARGE = 1 << 18  # values from which a tensor is read through a mapping of its own
MAX_HEADER_BYTES = 16 << 20  # names and shapes of BERT-large's tensors take 0.1 MB


def unfinished_run(folder: Path) -> str:
    """The end of a message that tells how to resume a run, where `folder` is a run's without a model; else
    empty.
    """
    recipe = folder / "recipe.toml"
    if not recipe.is_file() or (folder / "model").exists():
        return ""
    again = "repeat the command that began it with --resume"
    with contextlib.suppress(OSError, ValueError):
        if "objective" in tomllib.loads(recipe.read_text(encoding="utf-8")):
            again = f"bertsmith pretrain {recipe} --resume"
    return (
        f" The run in {folder} was interrupted, or is still running. To continue where it stopped: {again}."
    )


def plain_file(folder: Path, name: str) -> Path:
    """The path of a regular file in a model folder.

    Raises ModelError where it is missing, not a file, or a link: by a link a downloaded folder could read any
    file of this machine. Links from snapshots to blobs in the hub's own cache are followed.
    """
    path = folder / name
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        subfolder = folder / "model"
        meant = f" Did you mean {subfolder}?" if (subfolder / name).is_file() else unfinished_run(folder)
        raise ModelError(
            f"{folder} has no {name}: it is not a model folder, or not a whole one.{meant}"
        ) from None
    except OSError as error:
        raise ModelError(f"{path} can't be read: {error.strerror}.") from error
    is_link = stat.S_ISLNK(mode) or not path.resolve().is_relative_to(folder.resolve())
    if is_link and not _is_hub_link(path):
        raise ModelError(
            f"{path} is a symbolic link, which a model folder must not hold. Copy the file itself."
        )
    if not path.is_file():
        raise ModelError(f"{path} is not a regular file.")
    return path


def read_settings(path: Path) -> dict[str, Any]:
    """The JSON object in a file of a model folder. Raises ModelError for a file that is too large or isn't
    one.
    """
    settings = read_small_json(path)
    if not isinstance(settings, dict):
        raise ModelError(f"{path} must hold a JSON object; found {type(settings).__name__}.")
    return settings


def read_small_json(path: Path) -> Any:
    """The JSON value, of any type, in a file of a model folder. Raises ModelError as `read_settings` does."""
    size = path.stat().st_size
    if size > MAX_SETTINGS_BYTES:
        raise ModelError(
            f"{path} has {size:,} bytes; settings of a model have at most {MAX_SETTINGS_BYTES:,}."
        )
    try:
        return parse_json(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path} is not valid JSON ({error}). It may have been cut or altered.") from error


def read_tensors(path: Path, *, without: Collection[str] = ()) -> "dict[str, Tensor]":
    """Copies every tensor of a safetensors file into memory, but for those named in `without`; the file may
    then be replaced or removed.

    The file is opened anew for each large tensor, the largest first. A mapping counts as memory until it is
    closed: so the peak is little more than the tensors' size, in place of twice that. Small tensors are read
    together, since a hostile header of 100,000 names would be parsed for each. Raises ModelError where the
    header is too large, and for a file that is truncated, altered or in another format.
    """
    import safetensors

    check_header_size(path)
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            names = [name for name in file.keys() if name not in without]  # noqa: SIM118
            sizes = {name: prod(file.get_slice(name).get_shape()) for name in names}
        large = sorted((name for name in sizes if sizes[name] >= LARGE), key=lambda name: -sizes[name])
        copies = {name: tensor for large_name in large for name, tensor in _copy_tensors(path, [large_name])}
        copies |= _copy_tensors(path, [name for name in sizes if sizes[name] < LARGE])
    except safetensors.SafetensorError as error:
        raise ModelError(
            f"{path} is not a whole safetensors file ({error}). It may have been cut or altered."
        ) from error
    return {name: copies[name] for name in sizes}


def _copy_tensors(path: Path, names: Iterable[str]) -> "list[tuple[str, Tensor]]":
    import safetensors

    with safetensors.safe_open(path, framework="pt") as file:
        return [(name, file.get_tensor(name).clone()) for name in names]


def check_header_size(path: Path) -> None:
    """Raises ModelError for a truncated file or a large header. A safetensors file begins with the length of
    its JSON header, 8 bytes little-endian.
    """
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
    """Whether a link leads from models--org--name/snapshots/COMMIT/file to models--org--name/blobs/HASH.

    The file may be one folder deeper, as 1_Pooling/config.json.
    """
    link = path.absolute()
    try:
        target = path.resolve(strict=True)
    except (OSError, RuntimeError):
        return False
    return any(
        snapshots.name == "snapshots"
        and snapshots.parent.name.startswith("models--")
        and target.parent == (snapshots.parent / "blobs").resolve()
        for snapshots in (link.parent.parent, link.parent.parent.parent)
    )
