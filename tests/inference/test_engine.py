"""One model in many threads gives each of them what it gives alone, and leaves the process as it was."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from test_predictor import saved_model

from bertsmith.inference.embedding.embedder import Embedder
from bertsmith.inference.predictor import Predictor
from bertsmith.model.cpu import kernels
from bertsmith.model.cpu.process import one_core_threads

THREADS = 16
Call = Callable[[int], Any]
needs_kernels = pytest.mark.skipif(not kernels.has_kernels(), reason="equal bits are the compiled kernels'")


@pytest.fixture(scope="module", autouse=True)
def _two_cores() -> Any:
    """As an application has them: the suite's single thread would hide what callers do to one another."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def texts() -> list[list[str]]:
    """200 calls' worth, of one text to a dozen, short and long."""
    draw = np.random.default_rng(0)
    words = ["bano", "delo", "firu", "guma", "kano", "lelo", "miru"]
    return [
        [" ".join(draw.choice(words, draw.integers(1, 14))) for _ in range(draw.integers(1, 12))]
        for _ in range(200)
    ]


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory, texts: list[list[str]]) -> dict[str, Call]:
    folder = tmp_path_factory.mktemp("models")
    wide = {"heads": 1}  # of 16, which the kernels take
    classifier = Predictor.load(saved_model(folder / "classes", "classification", ["a", "b", "c"], **wide))
    tagger = Predictor.load(saved_model(folder / "tags", "tagging", ["O", "B-X", "I-X"], crf=True, **wide))
    embedder = Embedder(saved_model(folder / "similar", "similarity", [1.0, 0.0], pair=True, **wide))
    return {
        "classification": lambda number: classifier.predict(texts[number]),
        "tagging": lambda number: tagger.predict([text.split() for text in texts[number]]),
        "vectors": lambda number: embedder.documents(texts[number]).tobytes(),
    }


@needs_kernels
@pytest.mark.parametrize(
    "task", ["classification", pytest.param("tagging", marks=pytest.mark.slow), "vectors"]
)
def test_sixteen_threads_get_the_same_bits_as_one_caller_alone(calls: dict[str, Call], task: str) -> None:
    call = calls[task]
    alone = [call(number) for number in range(200)]
    before = torch.get_num_threads()
    with ThreadPoolExecutor(THREADS) as callers:
        asked = [
            (number, callers.submit(call, number)) for _ in range(THREADS) for number in range(0, 200, 16)
        ]
        asked += [(number, callers.submit(call, number)) for number in range(200)]
        for number, answer in asked:
            assert answer.result() == alone[number]
    assert torch.get_num_threads() == before
    with ThreadPoolExecutor(1) as new:
        assert new.submit(torch.get_num_threads).result() == before


@needs_kernels
@pytest.mark.slow
@pytest.mark.parametrize("task", ["classification", "tagging", "vectors"])
def test_two_hundred_calls_of_each_of_sixteen_threads_are_those_of_one(
    calls: dict[str, Call], task: str
) -> None:
    call = calls[task]
    alone = [call(number) for number in range(200)]
    with ThreadPoolExecutor(THREADS) as callers:
        everyone = [callers.submit(lambda: [call(number) for number in range(200)]) for _ in range(THREADS)]
        assert all(each.result() == alone for each in everyone)


@pytest.mark.slow
def test_twenty_thousand_calls_take_no_memory(calls: dict[str, Call]) -> None:
    """Of each kind, alone and from two threads; the first 2,000 fill what is kept on purpose."""
    process = psutil.Process()
    with ThreadPoolExecutor(2) as callers:
        for number in range(2_000):
            list(callers.map(calls["vectors"], [number % 200, (number + 7) % 200]))
            calls["classification"](number % 200)
        before = process.memory_info().rss
        for number in range(20_000):
            list(callers.map(calls["vectors"], [number % 200, (number + 7) % 200]))
            calls["classification"](number % 200)
    assert process.memory_info().rss - before < 3_000_000


def test_threads_that_compute_are_the_same_from_call_to_call() -> None:
    with ThreadPoolExecutor(4) as callers:
        assert len(set(callers.map(lambda _: id(one_core_threads(2)), range(40)))) == 1
    assert one_core_threads(2).submit(torch.get_num_threads).result() == 1
    assert torch.get_num_threads() == 2


def test_a_model_that_is_loaded_is_not_in_training_mode(tiny_bert: Any, tmp_path: Any) -> None:
    """Else a call that ends would turn dropout on in one that is still at work."""
    predictor = Predictor.load(saved_model(tmp_path / "model", "classification", ["a", "b"]))
    assert not any(module.training for module in predictor.model.modules())
    assert not Embedder(tiny_bert).encoder.training
