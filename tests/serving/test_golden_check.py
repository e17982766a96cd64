"""A service asks a model's golden answers again before it serves it."""

from pathlib import Path
from typing import Any

import pytest
import torch

from bertsmith.errors import ModelError
from bertsmith.model.layers.embeddings import Embeddings
from bertsmith.serving.models import Models
from bertsmith.serving.settings import read_settings
from bertsmith.tasks.golden.records import write_golden
from served_models import MORE, TASKS, save_encoder, save_fine_tuned, save_pretrained


def open_all(folder: Path) -> None:
    Models(read_settings([f"m={folder}"], None, {}, {})).open_all()


def saved(place: Path, kind: str) -> Path:
    if kind == "embedding":
        return save_encoder(place)
    return save_pretrained(place) if kind == "masked-language" else save_fine_tuned(place, kind)


@pytest.mark.parametrize("kind", [*TASKS, *MORE, "embedding", "masked-language"])
def test_a_sound_model_is_served_and_one_computed_wrongly_is_refused(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = saved(tmp_path / "model", kind)
    assert write_golden(folder) == ""
    open_all(folder)
    forward = Embeddings.forward

    def wrong(self: Embeddings, batch: Any) -> torch.Tensor:
        return forward(self, batch) * 1.5

    monkeypatch.setattr(Embeddings, "forward", wrong)
    with pytest.raises(ModelError, match=r"doesn't answer on this machine.*embeddings of .*bertsmith check"):
        open_all(folder)
