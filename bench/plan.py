"""What `bertsmith plan` foretells of this machine, beside a run of the same recipe done on the spot.

    python bench/plan.py [--sizes tiny mini] [--seconds 60]

The text is --store with its --tokenizer, or what material.py finds. Each size is planned (which measures the
matrix product and the memory's bandwidth), then trained for so many seconds by `bertsmith pretrain budget`,
and planned again, for the machine may have become faster or slower meanwhile: the prediction is the mean of
both. Compared are tokens a second of the steps alone, and the tokens of the whole run, evaluations and
checkpoints in it. Other work on the machine hits plan and run at different times, and shows as a miss.
"""

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any

import material
from harness import report


def main() -> None:
    """Parses, and plans and trains each size."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    material.add_options(parser)
    parser.add_argument("--sizes", nargs="+", default=["tiny", "mini"])
    parser.add_argument("--seconds", type=float, default=60)
    options = parser.parse_args()
    options.store, options.tokenizer = material.find(options)
    rows = [_row(size, options) for size in options.sizes]
    command = f"python bench/plan.py --sizes {' '.join(options.sizes)} --seconds {options.seconds:g}"
    report("plan", "A plan and the run it foretells", command, rows, [_method()])


def _row(size: str, options: argparse.Namespace) -> dict[str, Any]:
    from bertsmith.training.plan import plan

    with tempfile.TemporaryDirectory() as folder:
        settings = [
            f"corpus={options.store}",
            f"tokenizer={options.tokenizer}",
            f"out={folder}/run",
            f"model.size={size}",
            f"hours={options.seconds / 3600}",
            "evaluation.tokens=10000",
            "evaluation.every=0.5",
        ]
        before = plan("budget", *settings)
        measured = _train(settings, Path(folder) / "run")
        after = plan("budget", *settings)
    foretold = statistics.mean([before.tokens_per_second, after.tokens_per_second])
    tokens = statistics.mean([before.tokens, after.tokens])
    return {
        "model": f"BERT-{size}",
        "matrix product, GFLOP/s": f"{before.hardware.peak / 1e9:.0f}, then {after.hardware.peak / 1e9:.0f}",
        "foretold, tokens/s": f"{foretold:,.0f}",
        "measured, tokens/s": f"{measured['tokens_per_second']:,.0f}",
        "off by": f"{foretold / measured['tokens_per_second'] - 1:+.0%}",
        "foretold, tokens of the run": f"{tokens:,.0f}",
        "measured, tokens of the run": f"{measured['tokens']:,.0f}",
        "of the run, off by": f"{tokens / measured['tokens'] - 1:+.0%}",
    }


def _train(settings: list[str], out: Path) -> dict[str, float]:
    """Tokens of the run, and the median speed of its steps."""
    from bertsmith.training.log import RunLog
    from bertsmith.training.pretrain import pretrain

    pretrain("budget", *settings)
    steps = [record for record in RunLog.read(out) if record["kind"] == "step"]
    speed = statistics.median(float(record["tokens_per_second"]) for record in steps)
    return {"tokens": float(steps[-1]["tokens"]), "tokens_per_second": speed}


def _method() -> str:
    return " ".join((__doc__ or "").split("\n\n")[2].split())


if __name__ == "__main__":
    main()
