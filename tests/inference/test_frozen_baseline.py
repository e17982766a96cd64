"""The encoder before its fine-tuning: found on this machine, or not at all."""

from pathlib import Path

import pytest

from bertsmith.inference import frozen_baseline
from bertsmith.inference.frozen_baseline import encoder_before
from bertsmith.model.manifest import Manifest


@pytest.mark.parametrize("named", ["somebody/bert", "", "missing/folder"])
def test_the_hub_is_never_asked_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str) -> None:
    def asked(name: str) -> None:
        raise AssertionError(f"asked for {name}")

    manifest = Manifest.model_construct(provenance={"recipe": {"model": named}})
    monkeypatch.setattr(frozen_baseline, "read_manifest", lambda folder: manifest)
    monkeypatch.setattr(frozen_baseline, "locate_model", asked)
    assert encoder_before(tmp_path) is None
