"""GELU without gradients: block by block, with nothing changed but the memory."""

import subprocess
import sys

import pytest
import torch
from torch.nn import functional as F

from bertsmith.model.layers.elementwise import Activation

_GROWTH = """
import random
from pathlib import Path

import numpy as np
import torch

from bertsmith.data.batch import PackedBatch
from bertsmith.model.cpu import kernels
from bertsmith.model.bert import Bert
from bertsmith.model.config import BertConfig


def resident():
    return 1024 * int(Path("/proc/self/status").read_text().split("VmRSS:")[1].split()[0])


torch.set_num_threads(1)
kernels.load_library = lambda instructions: None  # where there are none
config = BertConfig(vocab_size=64, hidden_size=64, num_hidden_layers=1, num_attention_heads=1,
                    intermediate_size=1536, max_position_embeddings=1024)
model = Bert(config).eval()
drawn = random.Random(0)
begun = None
with torch.inference_mode():
    for step in range(120):
        length = drawn.randint(600, 1000)
        zeros = np.zeros(length, np.int64)
        model(PackedBatch.pack(zeros, zeros, np.array([length])))
        begun = begun or resident()
print((resident() - begun) >> 20)
"""


@pytest.mark.parametrize("name", ["gelu", "gelu_new", "relu"])
@pytest.mark.parametrize("rows", [1, 127, 128, 129, 300, 512])
def test_blocks_give_the_same_bits(name: str, rows: int) -> None:
    x = torch.randn(rows, 24, generator=torch.Generator().manual_seed(rows)) * 3
    expected = {
        "gelu": F.gelu(x),
        "gelu_new": F.gelu(x, approximate="tanh"),
        "relu": F.relu(x),
    }[name]
    with torch.inference_mode():
        assert torch.equal(Activation(name)(x), expected)


def test_with_gradients_it_is_torchs_own() -> None:
    x = torch.randn(300, 8, requires_grad=True)
    Activation("gelu")(x).sum().backward()
    y = x.detach().clone().requires_grad_()
    F.gelu(y).sum().backward()
    torch.testing.assert_close(x.grad, y.grad, rtol=0, atol=0)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's account of memory")
def test_batches_of_many_lengths_do_not_make_the_process_grow() -> None:
    found = subprocess.run([sys.executable, "-c", _GROWTH], capture_output=True, text=True, check=True)
    assert int(found.stdout) < 40
