"""The encoder before its fine-tuning: found on this machine, or not at all; under a linear model."""

import shutil
from pathlib import Path

import pytest
import torch

from bertsmith.files import sha256
from bertsmith.inference import provenance
from bertsmith.inference.provenance import encoder_before, encoder_of_baseline, frozen_predictions
from bertsmith.model.manifest import Manifest
from bertsmith.tasks.examples.text_task import TextExample
from bertsmith.tasks.finetuning import EncodedExamples
from bertsmith.tasks.heads import linear_start
from bertsmith.tasks.heads.linear_start import FROZEN
from bertsmith.tasks.multi_label import MultiLabel, MultiLabelSettings
from random_encoder import random_encoder

pytestmark = pytest.mark.thorough


@pytest.mark.parametrize("named", ["somebody/bert", "", "missing/folder"])
def test_the_hub_is_never_asked_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str) -> None:
    def asked(name: str) -> None:
        raise AssertionError(f"asked for {name}")

    manifest = Manifest.model_construct(provenance={"recipe": {"model": named}})
    monkeypatch.setattr(provenance, "read_unverified_manifest", lambda folder: manifest)
    monkeypatch.setattr(provenance, "locate_model", asked)
    assert encoder_before(tmp_path) is None


def test_it_is_taken_only_with_the_weights_that_it_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Models of older versions don't say which these were."""
    encoder = random_encoder(tmp_path / "encoder", ["tin", "zinc"])
    manifest = Manifest.model_construct(provenance={"recipe": {"model": str(encoder)}})
    monkeypatch.setattr(provenance, "read_unverified_manifest", lambda folder: manifest)
    assert encoder_before(tmp_path) == encoder
    manifest.provenance["encoder_sha256"] = sha256(encoder / "model.safetensors")
    assert encoder_before(tmp_path) == encoder == encoder_of_baseline(tmp_path)
    shutil.rmtree(encoder)
    random_encoder(encoder, ["tin", "zinc", "lead"])  # trained anew, in the same place
    assert encoder_before(tmp_path) is None is encoder_of_baseline(tmp_path)
    (encoder / "model.safetensors").unlink()
    assert encoder_before(tmp_path) is None


def test_a_linear_model_of_it_is_not_compared_with_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = random_encoder(tmp_path / "encoder", ["tin", "zinc"])
    stated = {"recipe": {"model": str(encoder)}, "method": "linear"}
    manifest = Manifest.model_construct(provenance=stated)
    monkeypatch.setattr(provenance, "read_unverified_manifest", lambda folder: manifest)
    assert encoder_of_baseline(tmp_path) is None
    assert encoder_before(tmp_path) == encoder
    stated["method"] = "contrastive"
    assert encoder_of_baseline(tmp_path) == encoder


def test_thresholds_are_chosen_for_it_as_for_a_model(tmp_path: Path) -> None:
    """By rows that the linear model hasn't seen: a rare label's probability seldom reaches a half."""
    words = ["tin", "zinc", "lead", "iron", "fell", "rose"]
    encoder = random_encoder(tmp_path / "encoder", words)
    rows = [
        TextExample(f"{word} {how}", None, (word,), "here")
        for _ in range(3)
        for word in words[:4]
        for how in words[4:]
    ]
    task = MultiLabel(MultiLabelSettings())
    task.fit(rows)
    found = frozen_predictions(task, encoder, rows, EncodedExamples(rows[:4], []), torch.device("cpu"))
    assert len(found[FROZEN]) == 4
    assert task.confidence is not None
    assert task.confidence.label_thresholds is not None


def test_of_many_rows_no_label_is_given_to_every_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thresholds are those of a model that learned from as many rows: with Reuters' 8,572 they came from one
    of 1,600, which was far surer that rare labels aren't there, and micro F1 was 6.
    """
    monkeypatch.setattr(linear_start, "_MOST_TO_CHOOSE_BY", 20)
    metals = ["tin", "zinc", "lead", "iron", "gold", "silver", "copper", "nickel", "cobalt", "chrome"]
    verbs = ["fell", "rose", "held", "sank", "grew"]
    encoder = random_encoder(tmp_path / "encoder", [*metals, *verbs])
    rows = [
        TextExample(f"{metal} {verb}", None, (metal,), "here")
        for _ in range(4)
        for metal in metals
        for verb in verbs
    ]
    task = MultiLabel(MultiLabelSettings())
    task.fit(rows)
    found = frozen_predictions(task, encoder, rows, EncodedExamples(rows[:50], []), torch.device("cpu"))
    assert sum(len(each["labels"]) for each in found[FROZEN]) < 100
    assert task.metrics(found[FROZEN], rows[:50])["micro_f1"] > 0.5
