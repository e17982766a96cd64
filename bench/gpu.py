"""One GPU in eight minutes: every CUDA path against the processor, then speeds beside transformers.
Last answer (2026-11-25, H100): all right; BERT-base on mixed pairs 3.4 times transformers.

    python bench/gpu.py [--minutes 8] [--out FOLDER] [--parts checks pre-training ...]
    python bench/gpu.py --device cpu --small        # everything in miniature: does it run?

Needs no network and no data: token ids are made up, their lengths are those of SST-2, of texts and of
Wikipedia's pairs (on_gpu/work.py). Both sides train with float32 weights under bfloat16 autocast, clipping at
1, fused AdamW and dropout of 0.1, but none on attention weights on a GPU: our variable-length attention has
none there, and so transformers is given none (on the processor both have it). Ours is the real loop, masks
drawn and batches packed within the step; transformers has SDPA on padded batches that were made beforehand,
eager and under torch.compile. Ours under torch.compile is one graph from token ids to hidden states,
whatever the lengths; no command of the library does that yet. Sides take turns, figures are medians over the
rounds. Tokens are real ones, and the share of the peak counts only operations that no implementation can
avoid, over the speed of an 8192-wide bfloat16 product on the spot. Each part has a share of the time, and
every row is written as soon as it is known.
"""

import argparse
import gc
import re
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

sys.path.insert(1, str(Path(__file__).parents[1] / "src"))  # a lent machine has the checkout and no more

from harness import RESULTS, environment, hardware_name
from on_gpu.clock import Clock, OutOfTime, at_most
from on_gpu.parts import Parts, Rows
from on_gpu.record import Record
from on_gpu.scale import full, small


def main() -> int:
    """Parses, runs the parts within their time, and says how many checks failed."""
    parser = _parser()
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda, but torch finds no CUDA device here")
    device = torch.device(options.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if device.type == "cpu" and not options.small:
        print("No CUDA device: nothing to measure. For a dry run: python bench/gpu.py --device cpu --small")
        return 0
    scale = (small if options.small else full)(device)
    run = Parts(scale, compiled=options.compile or (device.type == "cuda" and not options.small))
    plan = _plan(run)
    if unknown := set(options.parts or ()) - plan.keys():
        parser.error(f"no part {' or '.join(sorted(unknown))}; there are: {', '.join(plan)}")
    chosen = {name: plan[name] for name in options.parts or plan}
    record = _record(options, device)
    clock = Clock(60 * options.minutes, {name: weight for name, (weight, _) in chosen.items()})
    for name, (_, rows) in chosen.items():
        seconds = clock.share(name)
        print(f"{name}: at most {seconds:.0f} s", flush=True)
        record.begin(name, getattr(rows, "func", rows).__doc__ or "")
        record.end(name, _do(rows, seconds, partial(record.add, name)))
    print(f"{run.failures} checks failed. Written to {record.path}.md and .json.")
    return 1 if run.failures else 0


def _do(rows: Callable[[float], Rows], seconds: float, add: Callable[[Any], None]) -> str:
    """A part's rows as they come; how it ended."""
    started, how = time.monotonic(), "finished"
    try:
        with at_most(seconds):
            for row in rows(seconds - 1):
                add(row)
    except OutOfTime:
        how = "cut short"
    except Exception as error:  # the next part may work
        traceback.print_exc()
        how = f"failed: {type(error).__name__}: {error}"[:300]
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return f"{how} after {time.monotonic() - started:.0f} s"


def _plan(run: Parts) -> dict[str, tuple[float, Callable[[float], Rows]]]:
    """In the order of what matters most: the weight of a part's share of the time, and its rows."""
    base, *larger = run.scale.pretrained
    plan: dict[str, tuple[float, Callable[[float], Rows]]] = {
        "limits": (2, run.limits),
        "checks": (7, run.checks),
        "waits": (2, run.host_waits),
        f"pre-training {base}": (24, partial(run.pretraining, size=base)),
        "profile": (4, run.profile),
        "fine-tuning": (7, run.finetuning),
        "embedding": (7, run.embedding),
        **{f"pre-training {size}": (18, partial(run.pretraining, size=size)) for size in larger},
    }
    return plan


def _record(options: argparse.Namespace, device: torch.device) -> Record:
    facts = environment()
    name = hardware_name()
    if device.type == "cuda":
        facts["gpu"] = torch.cuda.get_device_name(device)
        facts["cuda"] = torch.version.cuda
        words = facts["gpu"].lower().split()  # NVIDIA H100 80GB HBM3
        name = next((word for word in words if re.search(r"\d", word)), words[-1])
    title = "A GPU, beside transformers" if device.type == "cuda" else "Dry run without a GPU"
    folder = options.out or (RESULTS if not options.small else Path(__file__).parents[1] / "runs" / "bench")
    return Record(folder, f"{'gpu-dry-run' if options.small else 'gpu'}_{name}", title, facts)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), help="default: a GPU if there is one")
    parser.add_argument("--small", action="store_true", help="tiny sizes, only to see whether all runs")
    parser.add_argument("--minutes", type=float, default=8)
    parser.add_argument("--out", type=Path, help="folder of the results; default bench/results")
    parser.add_argument("--parts", nargs="+", help="of them only these, by name")
    parser.add_argument("--compile", action="store_true", help="compiled sides in a small run as well")
    return parser


if __name__ == "__main__":
    sys.exit(main())
