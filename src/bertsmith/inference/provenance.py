"""What a fine-tuned model came from, found again for its baselines: the rows that it learned from, and the
encoder as it was before it saw any label, under a linear model of the same rows (the oldest use of BERT).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from bertsmith.errors import InputError
from bertsmith.files import sha256
from bertsmith.model.checkpoint import WEIGHTS
from bertsmith.model.locate import ALIASES, locate_model
from bertsmith.model.manifest import read_manifest, stated_manifest
from bertsmith.model.own_tokenizer import load_own_tokenizer
from bertsmith.tasks.checkpoints.task_checkpoint import begin_task_model
from bertsmith.tasks.examples.held_out import CROSS_VALIDATION, hold_out
from bertsmith.tasks.finetuning import EncodedExamples, encode_examples
from bertsmith.tasks.heads.linear_start import FROZEN, FROZEN_ALONE, LinearProbe
from bertsmith.tasks.task import Prediction, Task, reading_columns
from bertsmith.tasks.task_model import outputs_of
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


def encoder_before(folder: Path) -> Path | None:
    """The folder of the encoder that a model was fine-tuned from; None where that isn't known, or isn't here
    with the weights that it had then. The hub is never asked: whoever loads a model hasn't named another.
    """
    provenance = _provenance(folder)
    named = str(provenance.get("recipe", {}).get("model", ""))
    alias = ALIASES.get(named)
    installed = alias is not None and find_spec(alias.module) is not None
    if not named or not (installed or Path(named).is_dir()):
        return None
    found, known = locate_model(named).folder, provenance.get("encoder_sha256")
    if known is None:  # of older models
        return found
    weights = found / WEIGHTS
    return found if weights.is_file() and sha256(weights) == known else None


def encoder_of_baseline(folder: Path) -> Path | None:
    """That encoder, as a baseline of the model in `folder`. None, as in training, where the model is this
    baseline itself, and where layers began anew: features of random layers say little, and those of the
    layers that went aren't the model's beginning.
    """
    provenance = _provenance(folder)
    is_itself = provenance.get("method") == "linear"
    reinitialised = provenance.get("recipe", {}).get("reinit_layers")
    return None if is_itself or reinitialised else encoder_before(folder)


def frozen_predictions(
    task: Task[Any], source: Path, train: Sequence[Any], split: EncodedExamples, device: torch.device
) -> dict[str, list[Prediction]]:
    """By the baseline's name, of the split's examples; empty for a head that isn't linear in features. How
    alike two texts are the encoder says without one.

    `task` is used up: its confidence isn't to be the fine-tuned model's.
    """
    model = begin_task_model(source, task).model.eval().to(device)
    task.bind(model.head)
    tokenizer = load_own_tokenizer(source, model.config)
    probe = LinearProbe.of(task, model, encode_examples(task, train, tokenizer))
    if probe is None and not task.compares_vectors:
        return {}
    if probe is not None:
        start = probe.best()
        start.apply(model)
        rows, said = probe.judge_some(start.strength)
        assert probe.examples is not None
        judged = probe.examples.some(rows)
        task.calibrate(said, judged.examples, judged.encoded)
    encoded = encode_examples(task, split.examples, tokenizer).encoded
    name = FROZEN if probe is not None else FROZEN_ALONE
    return {name: task.decode(outputs_of(model, encoded), split.examples, encoded)}


def _provenance(folder: Path) -> Mapping[str, Any]:
    """Of a model whose files are hashed where it is opened."""
    manifest = stated_manifest(folder)
    return {} if manifest is None else manifest.provenance
