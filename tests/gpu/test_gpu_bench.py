"""bench/gpu.py's clock, record, timings and groups, and all of it in miniature."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

from bertsmith.data.batch import PackedBatch
from bertsmith.model.bert import Bert
from bertsmith.model.layers import attention, layer
from bertsmith.model.layers.elementwise import Dropout
from on_gpu import ours, work
from on_gpu.clock import Clock, OutOfTime, at_most
from on_gpu.kernels import group_of
from on_gpu.record import Record
from on_gpu.scale import small
from on_gpu.timing import Contestant, Work, compare

SCRIPT = Path(__file__).parents[2] / "bench" / "gpu.py"
# What a machine with little more than torch and transformers lacks.
RARE = ("ftfy", "sentencex", "tensorboardX", "tomli_w", "cyclopts", "docstring_parser", "lancedb", "bm25s")
IMPORTED = (
    f"import sys; sys.modules.update(dict.fromkeys({RARE!r})); "
    f"sys.path.insert(0, {str(SCRIPT.parent)!r}); import gpu"
)


def test_a_part_that_overruns_is_stopped_even_where_exceptions_are_caught() -> None:
    started = time.monotonic()
    with pytest.raises(OutOfTime), at_most(0.2):
        while time.monotonic() < started + 10:
            try:
                time.sleep(0.01)
            except Exception:
                continue
    assert time.monotonic() - started < 5


def test_the_outer_limit_holds_after_an_inner_one() -> None:
    with pytest.raises(OutOfTime), at_most(0.6):
        with pytest.raises(OutOfTime), at_most(0.1):
            time.sleep(10)
        time.sleep(10)


def test_what_a_part_leaves_over_goes_to_those_after_it() -> None:
    clock = Clock(100, {"first": 1, "second": 3, "third": 1})
    assert clock.share("first") == pytest.approx(20, abs=1)
    assert clock.share("second") == pytest.approx(75, abs=1)
    assert clock.share("third") == pytest.approx(100, abs=1)


def test_after_every_row_the_files_are_whole(tmp_path: Path) -> None:
    record = Record(tmp_path, "gpu_test", "A test", {"gpu": "none"})
    record.begin("limits", "As measured.")
    for number in range(3):
        record.add("limits", {"limit": "a | b", "measured": number})
        (path,) = tmp_path.glob("*.json")
        assert len(json.loads(path.read_text())["parts"]["limits"]["rows"]) == number + 1
    record.end("limits", "cut short after 1 s")
    page = path.with_suffix(".md").read_text()
    assert "| a / b | 2 |" in page
    assert "*cut short after 1 s*" in page


class Sleeper:
    """Works for so many seconds, or cannot."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def prepare(self, work: Any) -> Any:
        return work

    def step(self, prepared: Any) -> None:
        if self.seconds < 0:
            raise ValueError("cannot\nwork")
        time.sleep(self.seconds)


def test_sides_are_compared_and_those_that_fail_say_why() -> None:
    sides = [
        Contestant("ours", lambda: Sleeper(0.02)),
        Contestant("half as fast", lambda: Sleeper(0.04)),
        Contestant("broken", lambda: Sleeper(-1)),
        Contestant("never ends", lambda: Sleeper(60)),
    ]
    works = [Work(None, tokens=100, flops=1e3)]
    rows = compare(sides, works, small(torch.device("cpu")), peak=1e5, seconds=6)
    ours, half, broken, endless = rows
    speed = float(ours["real tokens/s"].replace(",", ""))
    assert 500 < speed <= 5000  # a loaded machine may sleep longer, never shorter
    assert float(ours["share of peak"].rstrip("%")) / 100 == pytest.approx(speed * 10 / 1e5, rel=0.02)
    assert float(half["ours / this"].split()[0]) > 1
    assert broken["real tokens/s"] == "ValueError: cannot"
    assert endless["real tokens/s"] == "no time"


@pytest.mark.parametrize(
    ("kernel", "group"),
    [
        ("nvjet_tst_256x128_64x4_2x1_v_bz_coopA_TNT", "matrix products"),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_cublas", "matrix products"),
        ("void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16>", "matrix products"),
        ("void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<...>", "attention"),
        ("void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>", "LayerNorm"),
        ("void at::native::(anonymous namespace)::fused_dropout_kernel_vec<c10::BFloat16>", "dropout"),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl>", "activation"),
        ("void at::native::(anonymous namespace)::multi_tensor_apply_kernel<...>", "optimiser, clipping"),
        ("triton_per_fused_add_native_layer_norm_2", "fused by torch.compile"),
        ("Memcpy HtoD (Pinned -> Device)", "copies, casts, zeros"),
        ("void at::native::radixSortKVInPlace<...>", "lookups, masks, sorting"),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>",
         "other elementwise"),
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "exchange between GPUs"),
    ],
)  # fmt: skip
def test_kernels_are_grouped_by_their_names(kernel: str, group: str) -> None:
    assert group_of(kernel) == group


@pytest.mark.parametrize(("kind", "mean"), [("sst2", 13.3), ("texts", 67.5), ("pairs", 213.2)])
def test_made_up_lengths_have_the_mean_of_the_real_ones(kind: str, mean: float) -> None:
    """Straight lines between quantiles: within 5 %."""
    drawn = work.draw_lengths(kind, 100_000, np.random.default_rng(0), 512)
    assert drawn.mean() == pytest.approx(mean, rel=0.05)


def test_pairs_fill_the_budget_and_look_like_the_loaders() -> None:
    tokenizer = work.made_up_tokenizer(600)
    for kind in ("128", "mixed"):
        batch = work.pairs(kind, 32_768, 1, tokenizer)
        starts = batch.lengths.cumsum() - batch.lengths
        assert 32_768 - 512 <= batch.lengths.sum() <= 32_768
        assert set(batch.token_ids[starts]) == {tokenizer.cls_id}
        assert np.bincount(batch.token_ids)[tokenizer.sep_id] == 2 * len(batch)
        assert len(set(batch.keys.tolist())) == len(batch)


@pytest.mark.slow
def test_it_is_imported_without_rare_packages() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTED], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_all_of_it_runs_in_miniature_without_rare_packages(tmp_path: Path) -> None:
    start = f"{IMPORTED}; sys.argv = sys.argv[1:]; sys.exit(gpu.main())"
    options = ("--device", "cpu", "--small", "--minutes", "20", "--out", str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-c", start, str(SCRIPT), *options], capture_output=True, text=True, timeout=1500
    )
    assert done.returncode == 0, done.stdout + done.stderr
    parts = json.loads(next(tmp_path.glob("*.json")).read_text())["parts"]
    assert len(parts) == 7
    for name, part in parts.items():
        assert part["end"].startswith("finished"), name
        assert part["rows"], name
    assert not [row for part in parts.values() for row in part["rows"] if "Error" in str(row.values())]
    checked = [row for row in parts["checks"]["rows"] if "allowed" in row]
    assert len(checked) > 20
    assert {row["result"] for row in checked} == {"right"}
    sides = [row for row in parts["pre-training BERT-tiny"]["rows"] if row["side"] == "ours"]
    assert [row["pairs"] for row in sides] == ["16", "64", "mixed"]
    assert all(float(row["real tokens/s"].replace(",", "")) > 0 for row in sides)


def test_the_compiled_encoder_is_one_graph_for_batches_of_all_lengths(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Traced without data, by the branches that a GPU takes."""
    monkeypatch.setattr(attention, "supports_flash_attention", lambda *_: True)
    monkeypatch.setattr(ours, "supports_flash_attention", lambda *_: True)
    monkeypatch.setattr(layer, "can_fuse_gelu", lambda *_: False)
    monkeypatch.setattr(Dropout, "forward", lambda self, x: F.dropout(x, self.probability))
    monkeypatch.setattr(torch._dynamo.config, "recompile_limit", 1)
    graphs = []

    def count(graph: torch.fx.GraphModule, inputs: object) -> Any:
        graphs.append(graph)
        return graph.forward

    encoder = Bert(small(torch.device("cpu")).config("BERT-base")).train()
    ours.compile_encoder(encoder, backend=count)
    with FakeTensorMode(allow_non_fake_inputs=True), torch.autocast("cpu", torch.bfloat16):
        for lengths, rows in (((3, 9, 20), 7), ((1, 2, 3, 4, 30), 12), ((60, 50), 110)):
            batch = PackedBatch.pack(*np.zeros((2, sum(lengths)), np.int64), np.array(lengths))
            assert encoder(batch, torch.zeros(rows, dtype=torch.int64)).shape[0] == rows
    assert len(graphs) == 1
    attended = [node for node in graphs[0].graph.nodes if "varlen_attn" in str(node.target)]
    assert len(attended) == encoder.config.num_hidden_layers
