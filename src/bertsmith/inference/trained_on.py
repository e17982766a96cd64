"""The rows that a model learnt from, found again: what its baselines are to learn from."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bertsmith.files import sha256
from bertsmith.model.manifest import read_manifest
from bertsmith.tasks.examples.folds import CROSS_VALIDATION
from bertsmith.tasks.examples.held_out import hold_out
from bertsmith.tasks.task import Task, reading_columns


@dataclass(frozen=True)
class TrainedOn:
    """What a folder's provenance says of its training file. `dev_share` of it was held out as dev, if any.
    `columns` are those that it was read from, where the task's settings name others.
    """

    path: Path
    sha256: str
    dev_share: float | None
    columns: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of_folder(cls, folder: Path) -> "TrainedOn | None":
        """None for a folder that tells of no training file."""
        manifest = read_manifest(folder)
        provenance = manifest.provenance if manifest is not None else {}
        recipe, hashes = provenance.get("recipe", {}), provenance.get("sha256", {})
        if "train" not in recipe or "train" not in hashes:
            return None
        held_out = recipe.get("dev") is None and provenance.get("judged_by") != CROSS_VALIDATION
        share = recipe.get("dev_share") if held_out else None
        columns = provenance.get("columns", {})
        return cls(Path(str(recipe["train"])), str(hashes["train"]), share, columns)

    def is_at(self, path: Path) -> bool:
        """Whether the file is there, unchanged."""
        return path.is_file() and sha256(path) == self.sha256

    def rows(self, task: Task[Any], path: Path) -> list[Any]:
        """What was trained on of the file, which may have moved: not the part that was held out."""
        examples = reading_columns(task, self.columns).read(path)
        return examples if self.dev_share is None else hold_out(task, examples, self.dev_share)[0]
