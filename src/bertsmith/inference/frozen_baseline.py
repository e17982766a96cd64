"""The oldest use of BERT, to be beaten by a fine-tuned model: the encoder as it was before it saw any label,
under a linear model that learns from the same rows.
"""

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from bertsmith.files import sha256
from bertsmith.model.checkpoint import WEIGHTS
from bertsmith.model.locate import ALIASES, locate_model
from bertsmith.model.manifest import stated_manifest
from bertsmith.model.own_tokenizer import load_own_tokenizer
from bertsmith.tasks.checkpoints.task_checkpoint import begin_task_model
from bertsmith.tasks.finetuning import EncodedExamples, encode_examples
from bertsmith.tasks.heads.linear_start import FROZEN, FROZEN_ALONE, LinearProbe
from bertsmith.tasks.task import Prediction, Task
from bertsmith.tasks.task_model import outputs_of


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
    found, known = locate_model(named).folder, provenance.get("encoder_sha256")  # older models have none
    return found if known is None or _has_weights(found, known) else None


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


def _has_weights(folder: Path, known: str) -> bool:
    path = folder / WEIGHTS
    return path.is_file() and sha256(path) == known


def _provenance(folder: Path) -> Mapping[str, Any]:
    """Of a model whose files are hashed where it is opened."""
    manifest = stated_manifest(folder)
    return {} if manifest is None else manifest.provenance
