"""Held-out accuracy over minutes of training, beside plain loops on transformers.
Last answer (2026-11-25, Zen 4): 32.7 % after ten minutes, ModernBERT's tuned loop 24.4 %, in forty 31.6 %.

    python bench/pretraining/pretraining_quality.py [--minutes 10] [--longer 40]
                                                    [--rows ours modernbert-tuned ...]
    python bench/pretraining/pretraining_quality.py --choose modernbert-tuned [--minutes 10]

Every side trains for --minutes, on the same text under the same vocabulary, on this machine's cores:

    ours                bertsmith pretrain budget, as it comes
    transformers        BertForPreTraining as BERT was trained: pairs in random order padded to the longest of
                        a batch, 15 % masked anew for each, dropout 0.1, AdamW at 1e-4, warm-up over a tenth
                        of the time and linear decay, gradients clipped at 1
    transformers-tuned  the same loop, its settings chosen for the time given
    modernbert          ModernBertForMaskedLM as ModernBERT was trained: texts, 30 % masked, no dropout, AdamW
                        at 8e-4 with beta2 0.98, attention by SDPA
    modernbert-tuned    the same loop, its settings chosen for the time given
    minilm              bertsmith pretrain budget init=minilm: the encoder goes on (with --rows only)

The plain loops' models have our layers and width, and as many weights as ours. --longer has them, ours not,
run again for so many minutes, each time by a schedule of that length: when do they reach what ours had?

Sides take turns, --points each: trained for this part of its time, a side is measured and makes way for the
next, so that a neighbour's load meets all of them. A turn is a process of its own that goes on from the last
one; a side's clock counts its training alone (ours its own evaluations and checkpoints too). Turns are kept
under runs/bench/pretraining_quality/: an interrupted comparison goes on, --again begins anew.

All are measured on the same texts and masks (15 %, of single texts of at most 128 tokens) by one function, on
Wikipedia's articles of two files that none trains on and nothing is chosen by. --choose looks for a tuned
side's settings, one after the other, by the held-out articles of the other files; ours is tuned by those too.
"""

import argparse
import hashlib
import json
import math
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).parents[1]))  # harness.py, and what else all folders share

import accuracy_plot
import corpora
from harness import Worker, report, result_path, serve
from labelled import KEPT, quiet
from pretraining_sides import OURS, PLAIN, TRIED, Plain, shape_beside
from pretraining_slice import train_and_measure

_NAME, _TITLE = "pretraining-quality", "Held-out accuracy for equal time"
_ROWS = ["ours", *PLAIN]


def main() -> None:
    """Parses, and is either the parent or a worker."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    corpora.add_options(parser)
    parser.add_argument("--reported", help="one split of a token store of other documents, to measure on")
    parser.add_argument("--pieces", type=int, help="of a vocabulary made for this, instead of BERT's")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--longer", type=float, nargs="+", default=[], help="minutes of the plain loops")
    parser.add_argument("--rows", nargs="+", choices=(*OURS, *PLAIN), default=_ROWS)
    parser.add_argument("--points", type=int, default=10)
    parser.add_argument("--measured-tokens", type=int, default=150_000)
    parser.add_argument("--choose", choices=tuple(TRIED))
    parser.add_argument("--again", action="store_true", help="repeat runs that are kept")
    parser.add_argument("--worker", choices=("slice",))
    options = parser.parse_args()
    if options.worker:
        serve(quiet(train_and_measure))
    elif options.pieces and "minilm" in options.rows:
        parser.error("minilm has a vocabulary of its own: leave out --pieces, or minilm")
    elif options.choose:
        _choose(options.choose, options)
    else:
        _compare(options)


# -- runs ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """One side for so many minutes. `request` is all that its turns depend on, but the second they end at."""

    side: str
    minutes: float
    request: dict[str, Any]

    @property
    def folder(self) -> Path:
        digest = hashlib.sha256(json.dumps(self.request, sort_keys=True).encode()).hexdigest()[:8]
        return KEPT / Path(__file__).stem / f"{self.side}-{self.minutes:g}-{digest}"

    @property
    def curve(self) -> list[dict[str, Any]]:
        """The points so far."""
        path = self.folder / "curve.json"
        found: list[dict[str, Any]] = json.loads(path.read_text()) if path.exists() else []
        return found

    @property
    def finished(self) -> bool:
        curve = self.curve
        return bool(curve) and curve[-1]["finished"]

    def take_turn(self, points: int) -> None:
        """Trains up to the next of so many points, and keeps what is measured there."""
        curve = self.curve
        number, seconds = len(curve) + 1, self.request["seconds"]
        until = seconds * number / points if number < points else math.inf
        worker = Worker(__file__, "slice")
        point = worker.ask(**self.request, folder=str(self.folder), until=until)
        worker.close()
        curve.append(point | {"load": os.getloadavg()[0]})
        (self.folder / "curve.json").write_text(json.dumps(curve, indent=1) + "\n")
        if point["finished"]:
            (self.folder / "state.pt").unlink(missing_ok=True)
            shutil.rmtree(self.folder / "run" / "checkpoints", ignore_errors=True)


def take_turns(runs: Sequence[Run], points: int) -> Iterator[None]:
    """Round after round, a turn for each that isn't finished; yields between rounds."""
    while waiting := [run for run in runs if not run.finished]:
        fewest = min(len(run.curve) for run in waiting)
        for run in waiting:
            if len(run.curve) == fewest:  # those that an interrupted round has left out
                run.take_turn(points)
        if not all(run.finished for run in runs):
            yield


def make_run(
    side: str, minutes: float, measured: str, parts: corpora.Parts, settings: Plain | None, tokens: int
) -> Run:
    """`settings` of a plain loop; None for ours."""
    import torch

    from bertsmith.files import sha256
    from bertsmith.text.tokens.tokenizer import Tokenizer
    from bertsmith.training.recipe import read_recipe

    tokenizer = Tokenizer.load(Path(parts.tokenizer))
    recipe = read_recipe("budget", [f"hours={minutes / 60}", *OURS["ours"]])
    shape = recipe.model.config(tokenizer.vocab_size, tokenizer.pad_id)
    request: dict[str, Any] = {
        "plain": asdict(settings) if settings else None,
        "seconds": 60 * minutes,
        "store": parts.store,
        "tokenizer": parts.tokenizer,
        "measured": measured,
        "measured_tokens": tokens,
        # Not to be told from the above:
        "corpus": sha256(Path(parts.store) / "manifest.json"),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }
    if settings:
        request["shape"] = shape_beside(shape, settings).model_dump(mode="json")
    else:
        given = [f"hours={minutes / 60}", f"corpus={parts.store}", f"tokenizer={parts.tokenizer}"]
        request["ours"] = [*given, *OURS[side]]
        request["recipe"] = read_recipe("budget", request["ours"]).model_dump(mode="json")
    return Run(side, minutes, request)


def _again(runs: Sequence[Run]) -> None:
    for run in runs:
        shutil.rmtree(run.folder, ignore_errors=True)


# -- the comparison ------------------------------------------------------------------------------------------


def _compare(options: argparse.Namespace) -> None:
    parts = corpora.parts(options)
    runs: list[Run] = []
    for minutes in (options.minutes, *options.longer):
        sides = [side for side in options.rows if side in PLAIN or minutes == options.minutes]
        new = [
            make_run(side, minutes, parts.reported, parts, PLAIN.get(side), options.measured_tokens)
            for side in sides
        ]
        if options.again:
            _again(new)
        runs += new
        for _ in take_turns(new, options.points):
            _write(runs, options)
        _write(runs, options)


def _write(runs: Sequence[Run], options: argparse.Namespace) -> None:
    """What is known so far."""
    begun = [run for run in runs if run.curve]
    ours = next((run for run in begun if run.side == "ours" and run.finished), None)
    mark = ours.curve[-1]["accuracy"] if ours else None
    curves = {(run.side, run.minutes): minutes_and_accuracy(run.curve) for run in begun}
    picture = result_path(_NAME, ".svg")
    picture.write_text(accuracy_plot.draw(curves, mark), encoding="utf-8")
    loads = [point["load"] for run in begun for point in run.curve]
    notes = [
        f"![accuracy over minutes]({picture.name})",
        f"Always the most frequent piece: {begun[0].curve[-1]['most_frequent']:.2%}.",
        f"The machine's load behind the turns, theirs included: {min(loads):.1f} to {max(loads):.1f}.",
        *(f"{run.side}, {run.minutes:g} minutes: {_curve_in_words(run)}" for run in begun),
        *(f"{run.side}: {_settings_in_words(run)}" for run in begun if run.minutes == options.minutes),
        *(" ".join(part.split()) for part in (__doc__ or "").split("\n\n")[-2:]),
    ]
    report(_NAME, _TITLE, [_row(run, mark, options.minutes) for run in begun], notes)


def _row(run: Run, mark: float | None, minutes: float) -> dict[str, Any]:
    curve = run.curve
    last = curve[-1]
    when = None if mark is None else reached(minutes_and_accuracy(curve), mark)
    never = f"not in {run.minutes:g}" if run.finished else "not yet"
    has = "" if mark is None else f": {mark:.2%}"
    return {
        "row": run.side,
        "minutes": f"{run.minutes:g}" if run.finished else f"{last['seconds'] / 60:.1f} of {run.minutes:g}",
        "million tokens": f"{last['tokens'] / 1e6:.2f}",
        "held-out accuracy": f"{last['accuracy']:.2%}",
        "perplexity": f"{last['perplexity']:,.0f}",
        f"minutes to what ours has at {minutes:g}{has}": never if when is None else f"{when:.1f}",
    }


def minutes_and_accuracy(curve: Sequence[dict[str, Any]]) -> list[tuple[float, float]]:
    """The points of a picture."""
    return [(point["seconds"] / 60, point["accuracy"]) for point in curve]


def reached(points: Sequence[tuple[float, float]], accuracy: float) -> float | None:
    """The minute at which a curve first has this accuracy, on the straight line between two points."""
    before = (0.0, 0.0)
    for minute, found in points:
        if found >= accuracy:
            share = (accuracy - before[1]) / (found - before[1])
            return before[0] + share * (minute - before[0])
        before = (minute, found)
    return None


def _curve_in_words(run: Run) -> str:
    return ", ".join(
        f"{minute:.1f} min {accuracy:.2%}" for minute, accuracy in minutes_and_accuracy(run.curve)
    )


def _settings_in_words(run: Run) -> str:
    plain = run.request["plain"]
    if plain is None:
        return " ".join(["pretrain budget", *OURS[run.side]])
    shape = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    values = plain | {name: run.request["shape"][name] for name in shape}
    return ", ".join(f"{name} {value}" for name, value in values.items())


# -- the choice of a tuned side's settings -------------------------------------------------------------------


def _choose(side: str, options: argparse.Namespace) -> None:
    parts = corpora.parts(options)
    best, rows = PLAIN[side], []
    for name, values in TRIED[side].items():
        tried = [replace(best, **{name: value}) for value in values]
        runs = [
            make_run(side, options.minutes, parts.development, parts, each, options.measured_tokens)
            for each in tried
        ]
        if options.again:
            _again(runs)
        for _ in take_turns(runs, options.points):
            pass
        scores = [run.curve[-1]["accuracy"] for run in runs]
        best = tried[scores.index(max(scores))]
        for value, score, run, settings in zip(values, scores, runs, tried, strict=True):
            rows.append(
                {
                    "setting": f"{name} {value}",
                    "million tokens": f"{run.curve[-1]['tokens'] / 1e6:.2f}",
                    "accuracy on development": f"{score:.2%}",
                    "kept": "yes" if settings == best else "",
                }
            )
        report(f"{_NAME}-choice", f"Settings tried for {side}", rows, [f"Best: {best}"])


if __name__ == "__main__":
    main()
