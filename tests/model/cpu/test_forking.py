"""Children of os.fork compute what their parent does: servers load a model, use it, and fork."""

import os
import subprocess
import sys

import pytest

# Each use is of enough rows for torch to divide them among its threads.
FORKS = """
import os, pickle, signal, sys
import numpy as np, torch
from bertsmith.data.batch import PackedBatch
from bertsmith.model.bert import Bert
from bertsmith.model.config import make_config
from bertsmith.model.cpu.inference import prepare_for_inference

torch.set_num_threads(2)
shape = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 512}
encoder = Bert(make_config({"vocab_size": 500, "max_position_embeddings": 512, **shape}, "test")).eval()
if "packed" in sys.argv:
    encoder = prepare_for_inference(encoder)
if "pickled" in sys.argv:
    encoder = pickle.loads(pickle.dumps(encoder))
ids = np.arange(400) % 500
batch = PackedBatch.pack(ids, ids * 0, np.array([200, 200]))
with torch.inference_mode():
    here = encoder(batch)
    if child := os.fork():
        print(torch.get_num_threads(), os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    else:
        signal.alarm(30)
        there = encoder(batch)
        close = torch.allclose(here, there, rtol=0, atol=1e-5)
        os._exit(0 if close and torch.get_num_threads() == 1 else 1)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing forks here")
@pytest.mark.parametrize(
    "how",
    [
        ["packed"],
        pytest.param(["plain"], marks=pytest.mark.slow),
        pytest.param(["packed", "pickled"], marks=pytest.mark.slow),
    ],
)
def test_a_child_computes_what_its_parent_does(how: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKS, *how],
        capture_output=True,
        text=True,
        timeout=60,
        env={name: value for name, value in os.environ.items() if not name.startswith("OMP_")},
    )
    assert done.stderr == ""
    assert done.stdout.split() == ["2", "0"]
