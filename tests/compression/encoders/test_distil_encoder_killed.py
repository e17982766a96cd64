"""A distillation killed with SIGKILL and resumed comes to the same student, to the bit."""

import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from encoder_samples import recipe_of
from safetensors.torch import load_file

from bertsmith.compression.distilling.distil import distil_encoder
from bertsmith.compression.distilling.encoders import teacher as vector_cache
from bertsmith.compression.distilling.encoders.objective import EncoderDistillation
from bertsmith.compression.distilling.recipes import EncoderDistilRecipe
from bertsmith.training import checkpoint as training_checkpoint
from bertsmith.training.log import RunLog
from bertsmith.training.loop import Loop

CONTEXT = multiprocessing.get_context("forkserver")
PATIENCE = 240.0
PLACES: dict[str, tuple[Any, str]] = {
    "before a micro-batch": (EncoderDistillation, "loss"),
    "before a step": (Loop, "advance"),
    "before a checkpoint": (training_checkpoint, "write_tensors"),
    "when vectors are kept": (vector_cache.VectorCache, "get"),
}
KINDS = {
    "embedder": ["dimensions=8"],
    "word_model": ["width=16"],
    "encoder": ["family=modernbert", "dropout=0.1"],
}


def die_at(place: str, arrival: int, recipe: EncoderDistilRecipe) -> None:
    torch.set_num_threads(1)
    owner, name = PLACES[place]
    original = getattr(owner, name)
    left = arrival

    def struck(*given: Any, **named: Any) -> Any:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*given, **named)

    setattr(owner, name, struck)
    distil_encoder(recipe, resume=True)


def killed(place: str, arrival: int, recipe: EncoderDistilRecipe) -> None:
    process = CONTEXT.Process(target=die_at, args=(place, arrival, recipe))
    process.start()
    process.join(PATIENCE)
    assert process.exitcode == -signal.SIGKILL


def losses_of(out: Path) -> list[tuple[int, float]]:
    return [(each["step"], each["loss"]) for each in RunLog.read(out) if each["kind"] == "step"]


def require_same(one: Path, other: Path) -> None:
    assert losses_of(one) == losses_of(other)
    weights, others = (load_file(out / "model" / "model.safetensors") for out in (one, other))
    assert weights.keys() == others.keys()
    assert all(torch.equal(tensor, others[name]) for name, tensor in weights.items())


@pytest.mark.parametrize(
    "kind", ["encoder", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("embedder", "word_model"))]
)
@pytest.mark.slow
def test_every_kind_goes_on_where_it_was_killed(
    kind: str, store: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    teacher: Path = request.getfixturevalue(kind)
    distil_encoder(recipe_of(teacher, store, tmp_path / "whole", *KINDS[kind]))
    recipe = recipe_of(teacher, store, tmp_path / "killed", *KINDS[kind])
    killed("before a micro-batch", 20, recipe)
    killed("before a step", 4, recipe)
    result = distil_encoder(recipe, resume=True)
    require_same(tmp_path / "whole", tmp_path / "killed")
    assert result.before["loss"] > result.metrics["loss"]


@pytest.mark.slow
@pytest.mark.parametrize(("place", "arrival"), [("before a checkpoint", 4), ("when vectors are kept", 17)])
def test_with_kept_vectors_too(place: str, arrival: int, embedder: Path, store: Path, tmp_path: Path) -> None:
    changes = ["loss.states=0", "dimensions=8"]
    distil_encoder(recipe_of(embedder, store, tmp_path / "whole", *changes, steps=24))
    recipe = recipe_of(embedder, store, tmp_path / "killed", *changes, steps=24)
    killed(place, arrival, recipe)
    distil_encoder(recipe, resume=True)
    require_same(tmp_path / "whole", tmp_path / "killed")
