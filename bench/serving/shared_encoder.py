"""A hundred heads and twenty adapters of one encoder in one `bertsmith serve`: memory, speed and fairness.

    python bench/serving/shared_encoder.py [--heads 100] [--adapters 20] [--servers 8] [--rounds 5]
                                           [--seconds 8] [--folder FOLDER]

The heads are new ones on MiniLM, the adapters LoRA of rank 8, drawn at random: their answers don't matter
here. A head's folder has 90 MB, as `bertsmith finetune` saves it. With --folder they are kept.

Memory is the server's PSS when all are open, beside that of a server with one head. For throughput, a few
heads are asked at random by 16 clients, each of which waits for its answer; a server for all of them and a
server a head take turns. For fairness one head is asked by a single client, one request after the other,
alone and while 64 clients ask another head of the same server without a break; in turns, too.
"""

import argparse
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(1, str(Path(__file__).parents[1]))  # harness.py, and what else all folders share

from harness import ratio, report, spread
from load import Sample, Target, ask_without_break
from serving import Server, end_servers, minilm, mixed_texts, start_server

_CLIENTS, _FLOOD = 16, 64


def main() -> None:
    """Parses, makes the folders that aren't there, and measures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--heads", type=int, default=100)
    parser.add_argument("--adapters", type=int, default=20)
    parser.add_argument("--servers", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--quick", action="store_true", help="few and short; nothing is written")
    options = parser.parse_args()
    if options.quick:
        options.heads, options.adapters, options.servers, options.rounds, options.seconds = 3, 1, 2, 1, 1.0
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        heads = [_save_head(folder / f"head{number}", number) for number in range(options.heads)]
        adapters = [_save_adapter(folder / f"adapter{number}", number) for number in range(options.adapters)]
        rows = _measure(heads, adapters, options)
    notes = [" ".join(part.split()) for part in (__doc__ or "").split("\n\n")[2:]]
    report("shared-encoder", "Many heads on one encoder", rows, notes, write=not options.quick)


def _measure(
    heads: Sequence[Path], adapters: Sequence[Path], options: argparse.Namespace
) -> list[dict[str, Any]]:
    texts = [text[:400] for text in mixed_texts(200)]
    few = heads[: options.servers]
    one = start_server([heads[0]])
    alone = _proportional_set_size(one)
    end_servers({"one": one})
    began = time.perf_counter()
    servers = {"all": start_server([*heads, *adapters])}
    try:
        opening, names = time.perf_counter() - began, [path.name for path in few]
        memory = _proportional_set_size(servers["all"])
        servers |= {path.name: start_server([path]) for path in few}
        apart = sum(_proportional_set_size(servers[name]) for name in names)
        ports = {
            "all in one": dict.fromkeys(names, servers["all"].target.port),
            "a server a head": {name: servers[name].target.port for name in names},
        }
        rates: dict[str, list[float]] = {side: [] for side in ports}
        calm, flooded = list[float](), list[float]()
        for number in range(options.rounds):
            for side, port_of in ports.items():
                samples = _ask(port_of, texts, _CLIENTS, options.seconds, number)
                rates[side].append(len(samples) / options.seconds)
            port = servers["all"].target.port
            lone = {names[-1]: port}
            calm += [sample.seconds for sample in _ask(lone, texts, 1, options.seconds, number)]
            flooded += [
                sample.seconds for sample in _ask(lone, texts, 1, options.seconds, number, {names[0]: port})
            ]
    finally:
        end_servers(servers)
    sharing = ratio(rates["all in one"], rates["a server a head"])
    waits = [[1000 * float(np.percentile(times, share)) for share in (50, 95)] for times in (calm, flooded)]
    return [
        _row(f"a server with {len(heads)} heads and {len(adapters)} adapters",
             f"{memory:.0f} MB, opened in {opening:.0f} s",
             f"one head {alone:.0f} MB: {memory / alone:.2f} times"),
        _row(f"requests a second to {len(few)} heads",
             f"{statistics.median(rates['all in one']):.0f}",
             f"a server a head {statistics.median(rates['a server a head']):.0f} ({apart:.0f} MB): "
             f"{spread(sharing)} times"),
        _row(f"one client's requests while {_FLOOD} clients ask another head",
             f"p50 {waits[1][0]:.1f}, p95 {waits[1][1]:.1f} ms",
             f"without them p50 {waits[0][0]:.1f}, p95 {waits[0][1]:.1f} ms"),
    ]  # fmt: skip


def _row(what: str, ours: str, beside: str) -> dict[str, Any]:
    return {"what": what, "all on one encoder": ours, "beside it": beside}


def _ask(
    port_of: Mapping[str, int],
    texts: Sequence[str],
    clients: int,
    seconds: float,
    seed: int,
    flood: Mapping[str, int] | None = None,
) -> list[Sample]:
    """What these clients were answered. Raises RuntimeError for an answer that isn't one."""
    draw = random.Random(seed)
    requests = [
        (Target(port_of[name], f"/v1/{name}"), {"inputs": draw.choice(texts), "long_text": "truncate"})
        for name in (draw.choice(list(port_of)) for _ in range(2000))
    ]
    more = [
        (Target(port, f"/v1/{name}"), {"inputs": text, "long_text": "truncate"})
        for name, port in (flood or {}).items()
        for text in texts
    ]
    samples = ask_without_break(requests, clients, seconds, more, _FLOOD)
    if wrong := [sample for sample in samples if sample.status != 200]:
        raise RuntimeError(f"{len(wrong)} of {len(samples)} requests failed: {wrong[0]}")
    return samples


def _proportional_set_size(server: Server) -> float:
    """Megabytes: what processes share counts for each by its part."""
    lines = Path(f"/proc/{server.process.pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def _save_head(folder: Path, seed: int) -> Path:
    from bertsmith.tasks.checkpoints.task_checkpoint import save_task_model
    from bertsmith.text.tokens.tokenizer import Tokenizer

    if not folder.exists():
        model, task = _begin(seed)
        save_task_model(folder, model, task, Tokenizer.load(minilm()), {"made for": "bench/serving"})
    return folder


def _save_adapter(folder: Path, seed: int) -> Path:
    import torch

    from bertsmith.model.lora import add_lora, merge_lora
    from bertsmith.tasks.checkpoints.task_checkpoint import (
        complete_task_adapter,
        save_task_adapter,
        save_task_model,
    )
    from bertsmith.text.tokens.tokenizer import Tokenizer

    if folder.exists():
        return folder
    model, task = _begin(1000 + seed)
    add_lora(model.encoder, 8, alpha=16.0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.normal_(0, 0.02)
    save_task_adapter(folder, model, minilm())
    merge_lora(model.encoder)
    merged = folder.with_name(f"{folder.name}-merged")
    save_task_model(merged, model, task, Tokenizer.load(minilm()), {"made for": "bench/serving"})
    complete_task_adapter(folder, merged, Path(minilm()))
    shutil.rmtree(merged)
    return folder


def _begin(seed: int) -> Any:
    import torch

    from bertsmith.tasks.checkpoints.task_checkpoint import begin_task_model
    from bertsmith.tasks.registry import find_task

    torch.manual_seed(seed)
    kind = find_task("classification")
    labels = tuple(f"label {number}" for number in range(2 + seed % 30))
    task = kind(kind.Settings(max_length=256), labels)
    return begin_task_model(minilm(), task).model, task


if __name__ == "__main__":
    main()
