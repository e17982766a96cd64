"""Batches computed side by side: what comes out, in which order, and what is left behind."""

import threading
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

from bertsmith.data.batch import PackedBatch, batches_by_length
from bertsmith.model.bert import Bert
from bertsmith.model.config import make_config
from bertsmith.model.cpu import onednn_matmul
from bertsmith.model.cpu.onednn_matmul import MIN_TOKENS
from bertsmith.tasks.examples.encoding import EncodedExample, Layout, Window
from bertsmith.tasks.forward_passes import forward_passes
from bertsmith.tasks.heads.pooling import pool_examples

CPU = torch.device("cpu")
LENGTHS = [300, 7, 120, 33, 256, 64, 150, 20, 90, 41, 5, 77]
TOKENS = 256


@pytest.fixture(params=[1, 2, 3])
def cores(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def encoder() -> Bert:
    torch.manual_seed(0)
    values = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    return Bert(
        make_config(values | {"intermediate_size": 32, "max_position_embeddings": 300}, "test")
    ).eval()


def examples() -> list[EncodedExample]:
    draw = np.random.default_rng(0)
    windows = [Window(draw.integers(5, 50, n), np.zeros(n, np.int64), np.arange(n)) for n in LENGTHS]
    return [EncodedExample((window,)) for window in windows]


def test_every_example_has_the_vector_that_it_has_alone(encoder: Bert, cores: int) -> None:
    def pooled(batch: PackedBatch, layout: Layout) -> Tensor:
        assert not torch.is_grad_enabled()
        return pool_examples(encoder(batch, layout.rows), layout, "mean")

    encoded = examples()
    alone = {
        batch.numbers[0]: batch.outputs[0] for batch in forward_passes(pooled, encoded, CPU, batch_tokens=1)
    }
    together = list(forward_passes(pooled, encoded, CPU, TOKENS))
    assert [batch.numbers for batch in together] == list(
        batches_by_length([each.tokens for each in encoded], TOKENS)
    )
    for batch in together:
        for number, vector in zip(batch.numbers, batch.outputs, strict=True):
            np.testing.assert_allclose(vector, alone[number], atol=1e-6)


def test_what_is_little_for_all_cores_is_shared_out_evenly(cores: int) -> None:
    """What is one batch stays one, and the more there is, the less smaller batches would help."""

    def compute(batch: PackedBatch, layout: Layout) -> Tensor:
        return torch.tensor([len(batch.token_ids)] * layout.examples)

    def largest(examples: int) -> int:
        tokens = np.zeros(50, np.int64)
        encoded = [EncodedExample((Window(tokens, tokens, tokens),))] * examples
        return max(int(batch.outputs.max()) for batch in forward_passes(compute, encoded, CPU, 2000))

    assert largest(40) == 2000
    assert 240 <= largest(48) <= max(256, 2400 / 4 / cores) + 8  # filled up
    assert 1960 <= largest(4000) <= 2000


def test_batches_are_computed_at_the_same_time_each_by_one_core(cores: int) -> None:
    """A meeting that too few threads would wait for in vain."""
    together, found = threading.Barrier(cores, timeout=20), list[int]()

    def compute(batch: PackedBatch, layout: Layout) -> Tensor:
        found.append(torch.get_num_threads())
        if len(found) <= cores:
            together.wait()
        return torch.zeros(layout.examples)

    assert sum(len(each.numbers) for each in forward_passes(compute, examples(), CPU, TOKENS)) == len(LENGTHS)
    assert set(found) == {1}
    assert torch.get_num_threads() == cores
    assert from_a_new_thread() == cores, "what new threads begin with was changed"


def from_a_new_thread() -> int:
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    return found[0]


@pytest.mark.parametrize("batch_tokens", [1, 100, 10_000], ids=["a text", "few tokens", "one batch"])
def test_few_tokens_at_a_time_are_computed_by_all_cores(batch_tokens: int, cores: int) -> None:
    def compute(batch: PackedBatch, layout: Layout) -> Tensor:
        assert torch.get_num_threads() == cores
        return torch.zeros(layout.examples)

    assert list(forward_passes(compute, examples(), CPU, batch_tokens))


def test_an_error_comes_where_its_batch_would_have_come(cores: int) -> None:
    def compute(batch: PackedBatch, layout: Layout) -> Tensor:
        if max(batch.lengths) < 256:
            raise RuntimeError("too short")
        return torch.zeros(layout.examples)

    passes = forward_passes(compute, examples(), CPU, TOKENS)
    assert next(passes).numbers == [0]
    assert next(passes).numbers == [4]
    with pytest.raises(RuntimeError, match="too short"):
        next(passes)
    assert torch.get_num_threads() == cores


def test_whoever_stops_early_leaves_no_batch_behind(cores: int) -> None:
    computed = 0

    def compute(batch: PackedBatch, layout: Layout) -> Tensor:
        nonlocal computed
        computed += 1
        return torch.zeros(layout.examples)

    encoded = examples() * 50
    passes = forward_passes(compute, encoded, CPU, TOKENS)
    next(passes)
    passes.close()  # type: ignore[attr-defined]
    assert computed < len(list(batches_by_length([each.tokens for each in encoded], TOKENS))) // 2
    assert torch.get_num_threads() == cores


def test_batches_side_by_side_are_all_multiplied_in_one_way(
    cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last ones, of few tokens, too: whether a large one is at work beside them is chance."""
    monkeypatch.setattr(onednn_matmul, "onednn_is_faster", lambda: True)
    found = dict[int, str]()

    def compute(batch: PackedBatch, layout: Layout) -> Tensor:
        found[len(batch.token_ids)] = torch.backends.mkldnn.matmul.fp32_precision  # type: ignore[attr-defined]
        return torch.zeros(layout.examples)

    for each in forward_passes(compute, examples(), CPU, TOKENS):
        del each
    assert max(found) >= MIN_TOKENS > min(found)
    large = {way for tokens, way in found.items() if tokens >= MIN_TOKENS}
    assert large == {"bf16"}
    assert set(found.values()) == large or cores == 1
