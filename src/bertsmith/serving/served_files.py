"""The files that a served model is read from: which they were, and whether they are there still."""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from bertsmith.errors import ModelError
from bertsmith.inference.index.manifest import MANIFEST as INDEX
from bertsmith.inference.index.manifest import read_index_manifest
from bertsmith.model.locate import locate_model

_State = tuple[tuple[object, ...], ...]
_TELLING = (".safetensors", ".json", ".txt", ".model")  # files that decide what a model answers


@dataclass(frozen=True)
class ServedFiles:
    """`folder` is the model's or the index's; `weights` the model's in both cases. `written`: when the folder
    was, in seconds since 1970.
    """

    folder: Path
    weights: Path
    written: float
    _opened: _State
    _index: _State

    @classmethod
    def at(cls, path: str) -> "ServedFiles":
        """As they are now. Raises ModelError where there is no such model, InputError for a damaged index."""
        folder = Path(path)
        index = _state_of_index(folder)
        if index:
            weights = _model_of_index(folder)
        else:
            folder = weights = locate_model(path).folder
        return cls(folder, weights, folder.stat().st_mtime, _state(weights), index)

    @property
    def is_index(self) -> bool:
        return bool(self._index)

    @property
    def are_still_there(self) -> bool:
        """Whether the folder has the weights still. What is committed to an index is seen by each search."""
        return self._opened == _state(self.weights)

    def are_at(self, path: str) -> bool:
        """Whether opening the path again would give the same: a link may lead elsewhere by now. Raises as
        `at`.
        """
        now = ServedFiles.at(path)
        return (self._opened, self._index) == (now._opened, now._index)


def _model_of_index(folder: Path) -> Path:
    name = read_index_manifest(folder).model.name
    try:
        return locate_model(name).folder
    except ModelError as error:
        raise ModelError(
            f"{folder} was built by {name!r}, which can't be opened; an index of an embedder of your own "
            f"can't be served. {error}"
        ) from error


def _state(folder: Path) -> _State:
    """Of the files with weights, settings and vocabulary."""
    return _seen(path for path in folder.rglob("*") if path.suffix in _TELLING)


def _state_of_index(folder: Path) -> _State:
    """() where it is none."""
    return _seen(folder.glob(INDEX))


def _seen(paths: Iterable[Path]) -> _State:
    """Another file of the same name is told apart. One that goes meanwhile isn't there."""
    found = list[tuple[object, ...]]()
    for path in sorted(paths):
        with suppress(FileNotFoundError):
            each = path.stat()
            found.append((path.name, each.st_ino, each.st_size, each.st_mtime_ns))
    return tuple(found)
