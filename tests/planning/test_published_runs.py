"""The cost model against what others published. No run has a number of its own; see published_runs.toml."""

import re
from pathlib import Path

import pytest
from published_runs import Published, PublishedRun, published

from bertsmith.model.config import preset
from bertsmith.planning.cost import Implementation, flops_by_part
from bertsmith.planning.plan import ERROR, plan
from bertsmith.planning.workload import StepAmounts

REPOSITORY = Path(__file__).parents[2]
PAGE = REPOSITORY / "bench" / "results" / "published-runs.md"
RUNS = list(published())
CHECKS = [(runs, check) for runs in RUNS for check in runs.checks]


@pytest.mark.parametrize(
    ("runs", "check"), CHECKS, ids=[f"{runs.name}: {check.title}" for runs, check in CHECKS]
)
def test_a_published_run_takes_the_hours_it_took(runs: Published, check: PublishedRun) -> None:
    assert runs.hours(check, runs.share) == pytest.approx(check.hours, rel=ERROR)


def test_a_share_is_what_makes_its_own_run_take_its_hours() -> None:
    for runs in RUNS:
        assert 0.05 < runs.share < 0.7
        assert runs.hours(runs.measured, runs.share) == pytest.approx(runs.measured.hours, rel=1e-6)


def test_the_table_of_published_runs_is_what_the_model_says() -> None:
    rows = re.findall(
        r"^\| (.+?) \| ([\d.,]+) h \| ([\d.,]+) h \| ([−+][\d.]+) % \|$", PAGE.read_text(), re.M
    )
    expected = []
    for runs, check in CHECKS:
        hours = runs.hours(check, runs.share)
        miss = f"{hours / check.hours - 1:+.0%}".replace("-", "−").removesuffix("%")
        expected.append((f"{runs.name}: {check.title}", _hours(check.hours), _hours(hours), miss))
    assert rows == expected
    largest = max(abs(runs.hours(check, runs.share) / check.hours - 1) for runs, check in CHECKS)
    for page in (PAGE, REPOSITORY / "docs" / "plan.md"):
        assert f"largest error is {largest:.0%}".replace("%", " %") in " ".join(page.read_text().split())


def _hours(hours: float) -> str:
    return f"{hours:.4g}"


def test_the_shares_of_the_table_are_those_of_the_model() -> None:
    rows = dict(re.findall(r"^\| `([\w-]+)` \| .+ \| (\d+) % \|$", PAGE.read_text(), re.M))
    assert rows == {runs.name: f"{100 * runs.share:.0f}" for runs in RUNS}


def test_hugging_faces_bert_reached_a_quarter_of_an_a100() -> None:
    """111,000 tokens a second on each, all vocabulary products counted: 24 % of the peak."""
    (runs,) = [runs for runs in RUNS if runs.name == "transformers-2023"]
    ((length, sequences, steps),) = runs.measured.phases
    speed = length * sequences * steps / (runs.measured.hours * 3600) / runs.measured.gpus
    assert speed == pytest.approx(111_000, rel=0.01)
    step = StepAmounts(1, length, length**2, 19)
    flops = sum(flops_by_part(preset("base"), step, False, runs.how).values())
    assert flops / length * speed / runs.hardware.peak == pytest.approx(0.24, abs=0.01)


@pytest.mark.parametrize(
    ("name", "length", "measured"),
    [("bert-base", 128, 476_504), ("bert-base", 512, 432_130), ("bert-large", 128, 172_496)],
)
def test_an_h100_is_as_fast_as_bench_gpu_found_it(name: str, length: int, measured: float) -> None:
    """Tokens a second of full pairs (bench/results/gpu_h100.md); no share is from those of 512 tokens."""
    data = {"sequence_lengths": [length], "sequence_shares": [1.0], "batch_size": 32_768 // length}
    made = plan(name, *(f"data.{key}={value}" for key, value in data.items()), hardware="h100")
    assert made.tokens_per_second == pytest.approx(measured, rel=0.03)


def test_berts_own_recipe_is_25_hours_of_an_h100() -> None:
    """Devlin et al. 2019: 42.6 G tokens of slots, 2.4e19 FLOP, at a quarter of the peak 25 hours."""
    made = plan("bert-base", hardware="h100")
    assert made.tokens == 900_000 * 256 * 128 + 100_000 * 256 * 512 == pytest.approx(42.6e9, rel=0.001)
    assert made.share == 0.256
    assert made.hours == pytest.approx(25.3, rel=0.01)
    as_published = sum(
        phase.steps * sum(flops_by_part(preset("base"), phase.step, True, FULL_LAST_LAYER).values())
        for phase in made.phases
    )
    assert as_published == pytest.approx(2.4e19, rel=0.02)


FULL_LAST_LAYER = Implementation(full_last_layer=True)
