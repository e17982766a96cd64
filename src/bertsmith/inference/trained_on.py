"""The rows that a model learnt from, found again: what its baselines are to learn from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bertsmith.errors import InputError
from bertsmith.files import sha256
from bertsmith.model.manifest import read_manifest
from bertsmith.tasks.examples.held_out import CROSS_VALIDATION, hold_out
from bertsmith.tasks.task import Task, reading_columns
from bertsmith.text.labelled.labelled_files import labelled_files, named_files


@dataclass(frozen=True)
class TrainedOn:
    """What a folder's provenance says of its training files: `paths` as they were given, and the SHA-256 of
    each file. `dev_share` of them was held out as dev, if any. `columns` are those that they were read from,
    where the task's settings name others, and their encoding; `besides` are files that stand in a folder and
    weren't learned from, and `format` is what those of a folder have.
    """

    paths: tuple[Path, ...]
    sha256: tuple[str, ...]
    dev_share: float | None
    columns: Mapping[str, Any] = field(default_factory=dict)
    besides: tuple[str, ...] = ()
    format: str | None = None

    @classmethod
    def of_folder(cls, folder: Path) -> "TrainedOn | None":
        """None for a folder that tells of no training file."""
        manifest = read_manifest(folder)
        provenance = manifest.provenance if manifest is not None else {}
        recipe, hashes = provenance.get("recipe", {}), provenance.get("sha256", {})
        own = tuple(str(hashes[name]) for name in hashes if name == "train" or name.startswith("train "))
        if "train" not in recipe or not own:
            return None
        held_out = recipe.get("dev") is None and provenance.get("judged_by") != CROSS_VALIDATION
        share = recipe.get("dev_share") if held_out else None
        given = [recipe["train"]] if isinstance(recipe["train"], str) else recipe["train"]
        besides = tuple(str(recipe[name]) for name in ("dev", "test", "unlabelled") if recipe.get(name))
        besides += tuple(map(str, recipe.get("texts", ())))  # of a distillation
        settings = recipe.get("settings", {})
        columns = {"encoding": settings.get("encoding")} | provenance.get("columns", {})
        return cls(tuple(map(Path, given)), own, share, columns, besides, settings.get("format"))

    @property
    def name(self) -> str:
        """What messages call the rows by."""
        return named_files(self.paths)

    def are_at(self, paths: Sequence[Path]) -> bool:
        """Whether the files are there, unchanged."""
        try:
            files = self._files(paths)
        except InputError:
            return False
        return all(file.is_file() for file in files) and tuple(map(sha256, files)) == self.sha256

    def rows(self, task: Task[Any], paths: Sequence[Path]) -> list[Any]:
        """What was trained on of the files, which may have moved: not the part that was held out."""
        reader = reading_columns(task, self.columns)
        examples = reader.read_files(self._files(paths))
        return examples if self.dev_share is None else hold_out(task, examples, self.dev_share)[0]

    def _files(self, paths: Sequence[Path]) -> list[Path]:
        return [Path(file) for file in labelled_files(paths, besides=self.besides, format=self.format)]
