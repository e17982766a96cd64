"""Finds what a fine-tuned model came from, for its baselines: the rows that it learned from, and the encoder
as it was before fine-tuning, on whose features a linear model learns from the same rows.
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
from bertsmith.model.manifest import read_unverified_manifest, read_verified_manifest
from bertsmith.model.own_tokenizer import load_own_tokenizer
from bertsmith.tasks.checkpoints.task_checkpoint import begin_task_model
from bertsmith.tasks.examples.held_out import CROSS_VALIDATION, hold_out
from bertsmith.tasks.finetuning import EncodedExamples, encode_examples
from bertsmith.tasks.heads.linear_start import FROZEN, FROZEN_ALONE, LinearProbe
from bertsmith.tasks.task import Prediction, Task, reading_columns
from bertsmith.tasks.task_model import outputs_of
from bertsmith.text.labelled.labelled_files import describe_files, list_labelled_files


@dataclass(frozen=True)
class TrainedOn:
    """A model's training files, from its folder's provenance.

    `paths` are as they were given, with the SHA-256 of each file. `dev_share` of their rows were held out, if
    any. `columns` are their columns, where these differ from the task's settings, and their encoding.
    `besides` are files in the same folder that weren't learned from; `format` is the format of a folder's
    files.
    """

    paths: tuple[Path, ...]
    sha256: tuple[str, ...]
    dev_share: float | None
    columns: Mapping[str, Any] = field(default_factory=dict)
    besides: tuple[str, ...] = ()
    format: str | None = None

    @classmethod
    def of_folder(cls, folder: Path) -> "TrainedOn | None":
        """Reads a folder's provenance. None if it names no training file."""
        manifest = read_verified_manifest(folder)
        provenance = manifest.provenance if manifest is not None else {}
        recipe, hashes = provenance.get("recipe", {}), provenance.get("sha256", {})
        train_hashes = tuple(
            str(hashes[name]) for name in hashes if name == "train" or name.startswith("train ")
        )
        if "train" not in recipe or not train_hashes:
            return None
        held_out = recipe.get("dev") is None and provenance.get("judged_by") != CROSS_VALIDATION
        share = recipe.get("dev_share") if held_out else None
        train_paths = [recipe["train"]] if isinstance(recipe["train"], str) else recipe["train"]
        besides = tuple(str(recipe[name]) for name in ("dev", "test", "unlabelled") if recipe.get(name))
        besides += tuple(map(str, recipe.get("texts", ())))  # of a distillation
        settings = recipe.get("settings", {})
        columns = {"encoding": settings.get("encoding")} | provenance.get("columns", {})
        return cls(
            tuple(map(Path, train_paths)), train_hashes, share, columns, besides, settings.get("format")
        )

    @property
    def name(self) -> str:
        """The files as messages name them: the first one, and the number of others."""
        return describe_files(self.paths)

    def are_at(self, paths: Sequence[Path]) -> bool:
        """Whether these files exist and have the hashes of the training files."""
        try:
            files = self._files(paths)
        except InputError:
            return False
        return all(file.is_file() for file in files) and tuple(map(sha256, files)) == self.sha256

    def rows(self, task: Task[Any], paths: Sequence[Path]) -> list[Any]:
        """Reads the rows that the model learned from, without those held out. The files may have moved."""
        examples = self.all_rows(task, paths)
        return examples if self.dev_share is None else hold_out(task, examples, self.dev_share)[0]

    def all_rows(self, task: Task[Any], paths: Sequence[Path]) -> list[Any]:
        """Reads the rows of the training files, with those held out of them. The files may have moved."""
        return reading_columns(task, self.columns).read_files(self._files(paths))

    def _files(self, paths: Sequence[Path]) -> list[Path]:
        return [Path(file) for file in list_labelled_files(paths, besides=self.besides, format=self.format)]


def encoder_before(folder: Path) -> Path | None:
    """The folder of the encoder that a model was fine-tuned from; None if that is unknown, or isn't on this
    machine with the same weights. Never downloads: whoever loads a model didn't ask for another one.
    """
    provenance = _provenance(folder)
    named = str(provenance.get("recipe", {}).get("model", ""))
    alias = ALIASES.get(named)
    installed = alias is not None and find_spec(alias.module) is not None
    if not named or not (installed or Path(named).is_dir()):
        return None
    encoder, expected = locate_model(named).folder, provenance.get("encoder_sha256")
    if expected is None:  # an older model, whose folder has no hash of its encoder
        return encoder
    weights = encoder / WEIGHTS
    return encoder if weights.is_file() and sha256(weights) == expected else None


def encoder_of_baseline(folder: Path) -> Path | None:
    """The encoder before fine-tuning, as a baseline of the model in `folder`. None, as in training, if the
    model is this baseline itself, or if layers were reinitialised: then the model didn't start from that
    encoder.
    """
    provenance = _provenance(folder)
    is_itself = provenance.get("method") == "linear"
    reinitialised = provenance.get("recipe", {}).get("reinit_layers")
    return None if is_itself or reinitialised else encoder_before(folder)


def frozen_predictions(
    task: Task[Any], source: Path, train: Sequence[Any], split: EncodedExamples, device: torch.device
) -> dict[str, list[Prediction]]:
    """Predictions of the frozen encoder with a linear head for the split's examples, by the baseline's name.
    Empty for a head that isn't linear in features. For tasks that compare vectors the encoder needs no head.

    `task` is changed and can't be used afterwards: it is calibrated for this baseline.
    """
    model = begin_task_model(source, task).model.eval().to(device)
    task.bind(model.head)
    tokenizer = load_own_tokenizer(source, model.config)
    probe = LinearProbe.of(task, model, encode_examples(task, train, tokenizer))
    if probe is None and not task.compares_vectors:
        return {}
    if probe is not None:
        start = probe.fit_best()
        start.apply(model)
        rows, outputs = probe.predict_some_held_out(start.strength)
        assert probe.examples is not None
        examples = probe.examples.some(rows)
        task.calibrate(outputs, examples.examples, examples.encoded)
    encoded = encode_examples(task, split.examples, tokenizer).encoded
    name = FROZEN if probe is not None else FROZEN_ALONE
    return {name: task.decode(outputs_of(model, encoded), split.examples, encoded)}


def _provenance(folder: Path) -> Mapping[str, Any]:
    """The provenance in a folder's manifest, without hashing its files, which is done when the model is
    opened.
    """
    manifest = read_unverified_manifest(folder)
    return {} if manifest is None else manifest.provenance
