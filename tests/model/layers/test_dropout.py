"""Dropout: how much falls, where, and what decides it, by the kernel and by torch's operations."""

import math
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from bertsmith.model.cpu import kernels
from bertsmith.model.layers.elementwise import Dropout

COUNT = 1 << 20
LIBRARY = kernels.load_library.__wrapped__  # without what it keeps
each_way = pytest.mark.usefixtures("inference_way")


def kept(probability: float, count: int = COUNT, seed: int = 0) -> Tensor:
    torch.manual_seed(seed)
    return Dropout(probability).train()(torch.ones(count))


@each_way
@pytest.mark.parametrize("probability", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_as_many_fall_as_asked_and_the_mean_stays(probability: float, dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    found = Dropout(probability).train()(torch.ones(COUNT, dtype=dtype)).double()
    share = round(probability * 256) / 256
    error = math.sqrt(share * (1 - share) / COUNT)
    assert abs(float((found == 0).double().mean()) - share) < 5 * error
    (scale,) = found[found != 0].unique().tolist()
    assert scale == pytest.approx(1 / (1 - share), rel=1e-6 if dtype == torch.float32 else 2**-8)


@each_way
def test_values_fall_independently_of_each_other() -> None:
    """Of those beside them, a register, a word and a block away, and in another mask."""
    signs = kept(0.5).sign() * 2 - 1
    for distance in (1, 2, 4, 8, 15, 16, 17, 32, 48, 64, 256, 4096):
        correlation = float((signs[distance:] * signs[:-distance]).mean())
        assert abs(correlation) < 5 / math.sqrt(COUNT), distance
    for seed in (1, 2, 256):
        others = kept(0.5, seed=seed).sign() * 2 - 1
        assert abs(float((signs * others).mean())) < 5 / math.sqrt(COUNT)
    places = signs.view(-1, 64).mean(0)
    assert float(places.abs().max()) < 5 / math.sqrt(COUNT / 64)


@each_way
def test_torchs_seed_decides_and_each_call_differs() -> None:
    assert torch.equal(kept(0.5, seed=3), kept(0.5, seed=3))
    assert not torch.equal(kept(0.5, seed=3), kept(0.5, seed=4))
    torch.manual_seed(3)
    dropout = Dropout(0.5).train()
    assert not torch.equal(dropout.mask(torch.ones(1000)), dropout.mask(torch.ones(1000)))


@each_way
@pytest.mark.parametrize("count", [1, 15, 16, 63, 64, 65, 1000, (1 << 16) + 7])
def test_nothing_beyond_is_written_and_threads_change_nothing(count: int) -> None:
    alone = kept(0.5, count)
    for threads in (2, 5):
        with patch("torch.get_num_threads", return_value=threads):
            assert torch.equal(alone, kept(0.5, count))
    if kernels.has_kernels():  # a longer one's beginning, then, and what lies behind stays
        room = torch.full((count + 16,), 7.0)
        library = kernels.load_library("")
        library.dropout_mask(room.data_ptr(), count, 5, 128, 2.0, False, 1)
        assert (room[count:] == 7).all()
        longer = torch.empty(count + 100)
        library.dropout_mask(longer.data_ptr(), count + 100, 5, 128, 2.0, False, 1)
        assert torch.equal(room[:count], longer[:count])


def test_a_mask_does_not_depend_on_the_processors_registers() -> None:
    masks = []
    for name in {"avx2", "avx512", kernels.find_instruction_set()} if kernels.has_kernels() else ():
        if name == "avx2" or kernels.find_instruction_set().startswith("avx512"):
            masks.append(torch.empty(1000))
            LIBRARY(name).dropout_mask(masks[-1].data_ptr(), 1000, 5, 100, 2.0, False, 1)
    assert all(torch.equal(masks[0], other) for other in masks)


def test_without_training_nothing_falls() -> None:
    x = torch.randn(10)
    assert Dropout(0.5).eval()(x) is x
    assert Dropout(0.0).train()(x) is x
