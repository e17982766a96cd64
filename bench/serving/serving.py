"""`bertsmith serve` beside what people run today: how many requests a second each answers in time.
Last answer (2026-11-26, Xeon): vectors 82 a second, FastAPI 19.8, infinity 14.5.

    python bench/serving/serving.py [--work embedding classification tagging] [--sides ours app infinity]
                            [--seconds 15] [--rounds 3] [--within 100] [--capacity 80]

Texts of 8 to 400 pieces (uniform, from Wikipedia; the models read 256, for tags 512, so that no side reads
windows) come one a request, at moments of a Poisson process, to a server on the same two cores as the
client. A side's capacity is the highest rate at which 95 % of all requests are answered within so many
milliseconds of the moment they were due: found by doubling, then by halving the gap four times; a rate is too
high if it fails twice. Sides take turns at every step; of several rounds the ratios of capacities are given.

    ours       `bertsmith serve`, every setting as it comes
    app        FastAPI around sentence-transformers, or a pipeline of transformers (serving_app.py)
    infinity   infinity_emb v2, torch, its defaults (`make peers`); embedding only

Then ours alone: requests one after the other beside the same texts with the engine in Python; at twice the
capacity, with x-timeout-ms of the same bound, how many are answered in time, how long a refusal takes, and
whether any answer differs from the one the same text has alone. With --capacity none is looked for: two
versions of ours are compared at the same rates.
"""

import argparse
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

sys.path.insert(1, str(Path(__file__).parents[1]))  # harness.py, and what else all folders share

from harness import Worker, report, serve
from labelled import MODEL, find, quiet
from load import Sample, Target, in_turn, poisson
from peers import PLACE, interpreter

_SIDES = ("ours", "app", "infinity")
_NAMES = {"ours": "bertsmith serve", "app": "FastAPI and", "infinity": "infinity"}
_WORK = ("embedding", "classification", "tagging")
_FIRST_RATE, _HALVINGS, _LONGEST = 8.0, 4, 400
_PATIENCE = 600.0  # seconds for a server to begin


def main() -> None:
    """Parses, and measures each kind of work."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--work", nargs="+", choices=_WORK, default=list(_WORK))
    parser.add_argument("--sides", nargs="+", choices=_SIDES, default=list(_SIDES))
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--within", type=float, default=100, help="milliseconds")
    parser.add_argument("--capacity", type=float, help="requests a second, instead of looking for it")
    parser.add_argument("--texts", type=int, default=300)
    parser.add_argument("--peers", type=Path, default=PLACE, help="the folder of their environments")
    parser.add_argument("--quick", action="store_true", help="a second a step; nothing is written")
    parser.add_argument("--worker", help="the engine's own worker: a model")
    parser.add_argument("--kind", choices=_WORK)
    options = parser.parse_args()
    if options.worker:
        serve(quiet(_engine(options.kind, options.worker)))
        return
    if options.quick:
        options.seconds, options.rounds, options.texts = 1.0, 1, 20
    texts = mixed_texts(options.texts)
    with tempfile.TemporaryDirectory() as folder:
        rows = [row for work in options.work for row in _rows(work, texts, Path(folder), options)]
    notes = [" ".join(part.split()) for part in (__doc__ or "").split("\n\n")[2:]]
    report("serving", "Requests a second that are answered in time", rows, notes, write=not options.quick)


def mixed_texts(count: int) -> list[str]:
    """Of 8 to 400 pieces each, drawn with seed 0."""
    from bertsmith.text.tokens.tokenizer import Tokenizer

    tokenizer, draw = Tokenizer.load(minilm()), random.Random(0)
    text = find("wikipedia_2014/AA/wiki_01").read_text(encoding="utf-8")
    words = [word for line in text.splitlines() if not line.startswith("<") for word in line.split()]
    found = []
    for _ in range(count):
        start, length = draw.randrange(len(words) - _LONGEST), draw.randint(8, _LONGEST)
        ids = tokenizer.encode(" ".join(words[start : start + length])).ids[:length]
        found.append(tokenizer.decode(ids))
    return found


class Server(NamedTuple):
    """A process, and where it is asked."""

    target: Target
    process: "subprocess.Popen[bytes]"


def _rows(work: str, texts: Sequence[str], folder: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    model = minilm() if work == "embedding" else _with_head(work, folder)
    infinity = interpreter("infinity", options.peers) if "infinity" in options.sides else None
    sides = [side for side in options.sides if side != "infinity" or (work == "embedding" and infinity)]
    capacities: dict[str, list[float]] = {side: [] for side in sides}
    if options.capacity:
        sides, capacities = ["ours"], {"ours": [options.capacity]}
    for number in range(0 if options.capacity else options.rounds):
        servers = {}
        try:
            for side in sides:
                servers[side] = _start(side, work, model, infinity)
                in_turn(servers[side].target, [_body(side, work, text) for text in texts[:20]])
            for side, found in _capacities(servers, work, texts, options, number).items():
                capacities[side].append(found)
        finally:
            end_servers(servers)
    rows = [] if options.capacity else [_row(work, side, capacities) for side in sides]
    if "ours" in sides:
        rows.append(_alone(work, model, texts))
        rows.append(_overload(work, model, texts, statistics.median(capacities["ours"]), options))
    return rows


def _row(work: str, side: str, capacities: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    ours, mine = capacities.get("ours", ()), capacities[side]
    ratios = sorted(a / b for a, b in zip(ours, mine, strict=True)) if ours and side != "ours" else []
    library = "sentence-transformers" if work == "embedding" else "a pipeline"
    name = f"{_NAMES[side]} {library}" if side == "app" else _NAMES[side]
    spread = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} – {ratios[-1]:.2f})" if ratios else ""
    return _line(work, name, f"{statistics.median(mine):.1f} requests/s in time", spread)


def _line(work: str, side: str, found: str, ratio: str) -> dict[str, Any]:
    return {"work": work, "side": side, "found": found, "ours / this": ratio}


def _capacities(
    servers: Mapping[str, Server], work: str, texts: Sequence[str], options: argparse.Namespace, seed: int
) -> dict[str, float]:
    """Of each side, by turns."""
    low, high = dict.fromkeys(servers, 0.0), dict.fromkeys(servers, 0.0)
    left = dict.fromkeys(servers, _HALVINGS)
    while any(left.values()):
        for side, server in servers.items():
            if not left[side]:
                continue
            rate = (low[side] + high[side]) / 2 if high[side] else (2 * low[side] or _FIRST_RATE)
            bodies = [_body(side, work, text) for text in texts]
            holds = _holds(server, bodies, rate, seed, options) or _holds(
                server, bodies, rate, seed + 100, options
            )
            print(
                f"  {work} {side}: {rate:.1f}/s {'held' if holds else 'too much'}",
                file=sys.stderr,
                flush=True,
            )
            if high[side]:
                left[side] -= 1
            (low if holds else high)[side] = rate
    return {side: low[side] or high[side] / 2 for side in servers}


def _holds(
    server: Server, bodies: Sequence[Mapping[str, Any]], rate: float, seed: int, options: argparse.Namespace
) -> bool:
    """Whether 95 % are answered in time."""
    samples = poisson(server.target, bodies, rate, options.seconds, seed)
    good = sum(each.status == 200 and each.seconds * 1000 <= options.within for each in samples)
    if good >= 0.95 * len(samples):
        return True
    time.sleep(2)  # what it still has to do is not the next step's
    return False


def _alone(work: str, model: str, texts: Sequence[str]) -> dict[str, Any]:
    """Requests one after the other, beside the engine's own: in turns of fifty."""
    engine, server = Worker(__file__, model, "--kind", work), _start("ours", work, model, None)
    served, own = list[float](), list[float]()
    try:
        for start in range(0, len(texts), 50):
            some = texts[start : start + 50]
            samples = in_turn(server.target, [_body("ours", work, text) for text in some])
            served += [each.seconds * 1000 for each in samples]
            own += engine.ask(texts=some)["milliseconds"]
    finally:
        engine.close()
        end_servers({"ours": server})
    p50 = np.percentile(served, 50), np.percentile(own, 50)
    more = statistics.median(a - b for a, b in zip(served, own, strict=True))
    found = f"p50 {p50[0]:.2f} ms, the engine's own {p50[1]:.2f} ms: {more:+.2f} ms, a request's median"
    return _line(work, "ours, one request at a time", found, "")


def _overload(
    work: str, model: str, texts: Sequence[str], capacity: float, options: argparse.Namespace
) -> dict[str, Any]:
    server = _start("ours", work, model, None)
    bodies = [_body("ours", work, text) for text in texts]
    target = server.target._replace(headers={"x-timeout-ms": f"{options.within:g}"})
    try:
        right = {each.number: _results(each) for each in in_turn(server.target, bodies)}
        poisson(target, bodies, capacity, min(options.seconds, 5.0), 1)
        samples = poisson(target, bodies, 2 * capacity, 2 * options.seconds, 2)
    finally:
        end_servers({"ours": server})
    good = [each for each in samples if each.status == 200 and each.seconds * 1000 <= options.within]
    refused = [each.seconds * 1000 for each in samples if each.status in (429, 503)]
    wrong = sum(_results(each) != right[each.number] for each in samples if each.status == 200)
    others = sum(each.status not in (200, 429, 503) for each in samples)
    share = len(good) / (2 * options.seconds) / capacity
    waits = (
        f"p50 {np.percentile(refused, 50):.1f}, p95 {np.percentile(refused, 95):.1f} ms"
        if refused
        else "none"
    )
    found = (
        f"{share:.0%} of the capacity's in time; {len(refused)} of {len(samples)} refused ({waits}); "
        f"{others} expired; {wrong} wrong answers"
    )
    return _line(work, "ours, at twice its capacity", found, "")


def _results(sample: Sample) -> Any:
    return json.loads(sample.body)["results"]


def _body(side: str, work: str, text: str) -> dict[str, Any]:
    if side != "ours":
        return {"input": text, "model": "minilm"}
    return {"inputs": text, "long_text": "truncate"} if work != "tagging" else {"inputs": text}


def _start(side: str, work: str, model: str, infinity: str | None) -> Server:
    if side == "ours":
        return start_server([f"served={model}"])
    port, path = _free_port(), "/v1/embeddings"
    if side == "app":
        command = [sys.executable, str(Path(__file__).parent / "serving_app.py"), work, model, str(port)]
    else:
        assert infinity is not None
        path = "/embeddings"
        command = [
            *(str(Path(infinity).parent / "infinity_emb"), "v2", "--no-bettertransformer"),
            *("--model-id", model, "--served-model-name", "minilm", "--engine", "torch"),
            *("--device", "cpu", "--host", "127.0.0.1", "--port", str(port)),
        ]
    return _begin(command, Target(port, path))


def start_server(models: Sequence[Path | str]) -> Server:
    """`bertsmith serve` of these models, once it is ready. Raises RuntimeError if it ends before."""
    port = _free_port()
    command = [str(Path(sys.executable).parent / "bertsmith"), "serve", *map(str, models)]
    return _begin([*command, "--port", str(port), "--no-log-requests"], Target(port, "/v1/served"))


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def _begin(command: Sequence[str], target: Target) -> Server:
    quiet = subprocess.DEVNULL
    offline = os.environ | {"HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1", "INFINITY_ANONYMOUS_USAGE_STATS": "0"}
    server = Server(target, subprocess.Popen(command, stdout=quiet, stderr=quiet, env=offline))
    _wait_for(server)
    return server


def _wait_for(server: Server) -> None:
    end = time.monotonic() + _PATIENCE
    while time.monotonic() < end:
        if server.process.poll() is not None:
            raise RuntimeError(f"a server ended with status {server.process.returncode} before it began")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{server.target.port}/openapi.json", timeout=1):
                return
        except OSError:
            time.sleep(0.1)
    raise RuntimeError("a server did not begin")


def end_servers(servers: Mapping[str, Server]) -> None:
    """Tells all to end, and waits for them."""
    for server in servers.values():
        server.process.terminate()
    for server in servers.values():
        server.process.wait(60)


def _engine(work: str, model: str) -> Any:
    import torch

    from bertsmith import Embedder, Predictor

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    opened: Any = Embedder(model) if work == "embedding" else Predictor.load(model)
    answer = opened.documents if work == "embedding" else opened.predict

    def times(request: dict[str, Any]) -> dict[str, Any]:
        found = []
        for text in request["texts"]:
            began = time.perf_counter()
            answer([text])
            found.append(1000 * (time.perf_counter() - began))
        return {"milliseconds": found}

    return times


def minilm() -> str:
    """The folder of the model."""
    from bertsmith.model.locate import locate_model

    return str(locate_model(MODEL).folder)


def _with_head(work: str, folder: Path) -> str:
    """MiniLM with a new head, as `bertsmith finetune` would save it."""
    import torch

    from bertsmith.tasks.checkpoints.task_checkpoint import begin_task_model, save_task_model
    from bertsmith.tasks.registry import find_task
    from bertsmith.text.tokens.tokenizer import Tokenizer

    torch.manual_seed(0)
    kind, labels = find_task(work), ("no", "yes")
    if work == "tagging":
        labels = ("O", *(f"{letter}-{name}" for name in ("PER", "ORG", "LOC", "MISC") for letter in "BI"))
    task = kind(kind.Settings(max_length=512 if work == "tagging" else 256), labels)
    made = folder / work
    model = begin_task_model(minilm(), task).model
    save_task_model(made, model, task, Tokenizer.load(minilm()), {"made for": "bench/serving/serving.py"})
    return str(made)


if __name__ == "__main__":
    main()
