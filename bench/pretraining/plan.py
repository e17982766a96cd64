"""What `bertsmith plan` foretells of this machine, beside runs of the same recipe done on the spot.
Last answer (2026-11-24, Zen 4): foretold 1.10 (BERT-tiny) and 1.01 (BERT-mini) of the measured speed.

    python bench/pretraining/plan.py [--sizes tiny mini] [--rounds 5] [--seconds 60]

The text is --store with its --tokenizer, or what corpora.py finds. Each round plans a size (which measures
the matrix product and the memory's bandwidth) and then trains it for so many seconds by `bertsmith pretrain
budget`, measuring in turn, since a machine with other work has another speed in each minute. Compared are
tokens a second of the steps alone, and the tokens of a whole run, evaluations and checkpoints in it; medians
over the rounds, with the lowest and the highest ratio.
"""

import argparse
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).parents[1]))  # harness.py, and what else all folders share

import corpora
from harness import ratio, report, spread


def main() -> None:
    """Parses, and plans and trains each size."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    corpora.add_options(parser)
    parser.add_argument("--sizes", nargs="+", default=["tiny", "mini"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=60)
    options = parser.parse_args()
    options.store, options.tokenizer = corpora.find(options)
    rows = [_row(size, options) for size in options.sizes]
    method = " ".join((__doc__ or "").split("\n\n")[2].split())
    report("plan", "A plan and the run it foretells", rows, [method])


def _row(size: str, options: argparse.Namespace) -> dict[str, Any]:
    rounds = [_round(size, options) for _ in range(options.rounds)]
    columns = {name: [each[name] for each in rounds] for name in rounds[0]}
    speed = ratio(columns["planned speed"], columns["speed"])
    tokens = ratio(columns["planned tokens"], columns["tokens"])
    return {
        "model": f"BERT-{size}",
        "matrix product, GFLOP/s": f"{statistics.median(columns['peak']) / 1e9:.0f}",
        "foretold, tokens/s": f"{statistics.median(columns['planned speed']):,.0f}",
        "measured, tokens/s": f"{statistics.median(columns['speed']):,.0f}",
        "foretold / measured": spread(speed),
        "tokens of the run, foretold": f"{statistics.median(columns['planned tokens']):,.0f}",
        "measured": f"{statistics.median(columns['tokens']):,.0f}",
        "foretold / measured (run)": spread(tokens),
    }


def _round(size: str, options: argparse.Namespace) -> dict[str, float]:
    """A plan and a run, in a folder of their own."""
    from bertsmith.planning.plan import plan
    from bertsmith.training.log import RunLog
    from bertsmith.training.pretrain import pretrain

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
        planned = plan("budget", *settings)
        pretrain("budget", *settings)
        steps = [record for record in RunLog.read(Path(folder) / "run") if record["kind"] == "step"]
    return {
        "peak": planned.hardware.peak,
        "planned speed": planned.tokens_per_second,
        "speed": statistics.median(float(record["tokens_per_second"]) for record in steps),
        "planned tokens": planned.tokens,
        "tokens": float(steps[-1]["tokens"]),
    }


if __name__ == "__main__":
    main()
