"""A model at home in a domain: pre-trained further for equal time, its vocabulary extended first or not.
Last answer (2026-11-26, Xeon): Reuters 1.316 to 0.882 nats a character by MiniLM, without its words 0.887.

    python bench/pretraining/domain.py [--domains cranfield reuters] [--minutes 30] [--head-minutes 60]
                                       [--words 2000]
    python bench/pretraining/domain.py --model runs/mine/model [--minutes 30]

MiniLM has no masked-language head: it gets one first, by --head-minutes on general text (Wikipedia), so that
what is forgotten of that can be told. A --model that has a head begins as it is. Then, each for --minutes:

    plain              bertsmith pretrain adapt on the domain, general text mixed in as the recipe has it
    extended           the same after bertsmith tokenizer extend
    extended alone     the same, of the domain's text alone

Sides take turns, --points each, so that a neighbour's load meets all of them; a side's clock counts its
training with its evaluations and checkpoints. All are measured on the same held-out documents, the domain's
and Wikipedia's: the loss in nats a character, of hidden pieces and of hidden whole words, which can be
compared between vocabularies. Turns are kept under runs/bench/domain/: an interrupted comparison goes on,
--again begins anew.
"""

import argparse
import hashlib
import json
import math
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).parents[1]))  # harness.py, and what else all folders share

import corpora
from harness import Worker, end_without, report, serve
from labelled import DATA, KEPT, MODEL, quiet
from pretraining_slice import interrupted_at

_PLACE = KEPT / Path(__file__).stem
_DOMAINS = {"cranfield": "ir_cranfield", "reuters": "reuters"}
_SIDES = {"plain": [], "extended": [], "extended alone": ["data.general_share=0.0"]}
_ALWAYS = ["evaluation.every=0.25"]  # of every run: what is measured comes after it
_MEASURED_TOKENS = 60_000
_HELD_OUT = 0.05  # of a corpus of a few megabytes


def main() -> None:
    """Parses, and is either the parent or a worker."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--domains", nargs="+", choices=tuple(_DOMAINS), default=list(_DOMAINS))
    parser.add_argument("--sides", nargs="+", choices=tuple(_SIDES), default=list(_SIDES))
    parser.add_argument(
        "--model", help="a model with a masked-language head; by default MiniLM with a new one"
    )
    parser.add_argument("--general", help="a corpus of general text, instead of Wikipedia")
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--head-minutes", type=float, default=60)
    parser.add_argument("--words", type=int, default=2_000)
    parser.add_argument("--points", type=int, default=4)
    parser.add_argument("--again", action="store_true", help="repeat runs that are kept")
    parser.add_argument("--worker", choices=("turn", "measure", "extend"))
    options = parser.parse_args()
    if options.worker:
        serve(quiet({"turn": _turn, "measure": _measure, "extend": _extend}[options.worker]))
    else:
        _compare(options)


def _compare(options: argparse.Namespace) -> None:
    if options.again:
        shutil.rmtree(_PLACE, ignore_errors=True)
    general = options.general or str(corpora.find_corpus())
    rows: list[dict[str, Any]] = []
    notes: list[str] = []
    base = options.model or str(_with_head(general, options).model)
    for domain in options.domains:
        corpus = str(domain_corpus(domain))
        answer = _ask("extend", base=base, corpus=corpus, words=options.words)
        runs = {
            side: Run(
                side,
                options.minutes,
                {
                    "init": base if side == "plain" else answer["folder"],
                    "corpus": corpus,
                    "general": general,
                    "settings": [*_ALWAYS, *_SIDES[side]],
                },
            )
            for side in options.sides
        }
        for _ in take_turns(list(runs.values()), options.points):
            print(
                f"{domain}: {', '.join(f'{run.side} {run.seconds:.0f} s' for run in runs.values())}",
                flush=True,
            )
        models = {"before": base} | {side: str(run.model) for side, run in runs.items()}
        for side, model in models.items():
            fit = answer["before"] if side in ("before", "plain") else answer["after"]
            rows.append(_row(domain, side, model, fit, corpus, general))
        notes.append(_note(domain, answer))
    report("domain", "A model at home in a domain", rows, [*notes, _conditions(options)])


def _row(
    domain: str, side: str, model: str, fit: dict[str, float], corpus: str, general: str
) -> dict[str, Any]:
    found = _ask("measure", model=model, corpora=[corpus, general], tokens=_MEASURED_TOKENS)
    own, other = found["figures"]
    return {
        "domain": domain,
        "model": side,
        "pieces a word": f"{fit['pieces_per_word']:.4f}",
        "tokens a character": f"{fit['tokens_per_character']:.4f}",
        "domain: nats a character": f"{own['mlm_loss_per_character']:.4f}",
        "of whole words": f"{own['whole_word_loss_per_character']:.4f}",
        "domain: accuracy": f"{own['mlm_accuracy']:.2%}",
        "general: nats a character": f"{other['mlm_loss_per_character']:.4f}",
        "general: accuracy": f"{other['mlm_accuracy']:.2%}",
    }


def _note(domain: str, answer: dict[str, Any]) -> str:
    before, after = answer["before"], answer["after"]
    changes = [
        f"{100 * (after[name] / before[name] - 1):+.1f} % {spoken}"
        for name, spoken in (
            ("pieces_per_word", "pieces a word"),
            ("tokens_per_character", "tokens a character"),
        )
    ]
    most = 100 * (1 / before["pieces_per_word"] - 1)
    return (
        f"{domain}: {answer['words']:,} words added, {' and '.join(changes)} on held-out text; if every "
        f"word were one piece, {most:+.1f} % pieces a word."
    )


def _conditions(options: argparse.Namespace) -> str:
    head = "" if options.model else f" after {options.head_minutes:g} minutes of its new head on Wikipedia"
    return (
        f"{options.model or MODEL}{head}; each side {options.minutes:g} minutes in {options.points} turns. "
        f"Load while the table was made: {os.getloadavg()[0]:.1f}."
    )


# -- runs ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """One side for so many minutes. `request` is all that it depends on beside them."""

    side: str
    minutes: float
    request: dict[str, Any]

    @property
    def folder(self) -> Path:
        asked = json.dumps(self.request | {"minutes": self.minutes}, sort_keys=True)
        return _PLACE / f"{self.side.replace(' ', '-')}-{hashlib.sha256(asked.encode()).hexdigest()[:8]}"

    @property
    def model(self) -> Path:
        return self.folder / "run" / "model"

    @property
    def seconds(self) -> float:
        """Of its clock that it has trained."""
        path = self.folder / "seconds.json"
        return float(json.loads(path.read_text())) if path.exists() else 0.0

    def take_turn(self, points: int) -> None:
        """Trains up to the next of so many points of its clock; the last turn goes on to its end."""
        done = round(points * self.seconds / (60 * self.minutes))
        until = 60 * self.minutes * (done + 1) / points if done + 1 < points else math.inf
        seconds = _ask("turn", **self.request, folder=str(self.folder), hours=self.minutes / 60, until=until)[
            "seconds"
        ]
        (self.folder / "seconds.json").write_text(json.dumps(seconds))
        if self.model.exists():
            shutil.rmtree(self.folder / "run" / "checkpoints", ignore_errors=True)


def take_turns(runs: Sequence[Run], points: int) -> Iterator[None]:
    """Round after round, a turn for each that isn't finished; yields after each round."""
    while waiting := [run for run in runs if not run.model.exists()]:
        for run in waiting:
            run.take_turn(points)
        yield


def _with_head(general: str, options: argparse.Namespace) -> Run:
    """MiniLM with a masked-language head that has learned from general text."""
    request = {"init": MODEL, "corpus": general, "general": None, "settings": _ALWAYS}
    run = Run("head", options.head_minutes, request)
    for _ in take_turns([run], 1):
        pass
    return run


def domain_corpus(domain: str) -> Path:
    """Made once: Cranfield's abstracts, or Reuters' news of both parts."""
    from bertsmith.files import write_jsonl
    from bertsmith.text.corpus.building import build_corpus
    from bertsmith.text.corpus_settings import CorpusSettings
    from bertsmith.text.retrieval.layouts import read_retrieval_data

    source, place = DATA / _DOMAINS[domain], _PLACE / f"{domain}-corpus"
    if not source.is_dir():
        end_without(_DOMAINS[domain])
    if place.exists():
        return place
    place.parent.mkdir(parents=True, exist_ok=True)
    sources = [str(source / "train.jsonl"), str(source / "test.jsonl")]
    if domain == "cranfield":
        documents = read_retrieval_data(source).documents
        sources = [str(place.with_suffix(".jsonl"))]
        write_jsonl(({"text": text} for text in documents.values() if text.strip()), Path(sources[0]))
    build_corpus(sources, place, settings=CorpusSettings(heldout=_HELD_OUT))
    return place


# -- workers -------------------------------------------------------------------------------------------------


def _ask(work: str, **request: Any) -> dict[str, Any]:
    worker = Worker(__file__, work)
    answer = worker.ask(**request)
    worker.close()
    return answer


def _turn(request: dict[str, Any]) -> dict[str, Any]:
    from bertsmith.training.log import RunLog
    from bertsmith.training.pretrain import pretrain

    run = Path(request["folder"]) / "run"
    given = {name: request[name] for name in ("init", "corpus", "general", "hours")}
    settings = [f"{name}={value}" for name, value in given.items() if value is not None]
    if request["general"] is None:
        settings.append("data.general_share=0.0")
    resume = (run / "recipe.toml").exists()
    with interrupted_at(run, request["until"]):
        pretrain("adapt", *settings, *request["settings"], f"out={run}", resume=resume)
    steps = [record for record in RunLog.read(run) if record["kind"] == "step"]
    return {"seconds": steps[-1]["elapsed"] if steps else 0.0}


def _extend(request: dict[str, Any]) -> dict[str, Any]:
    """The extended model, made once, and how well the vocabulary fits before and after."""
    from bertsmith.text.tokens.extension import Extension, ExtensionSettings
    from bertsmith.training.extending import extend_vocabulary, read_extension

    digest = hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()[:8]
    folder = _PLACE / f"vocabulary-{digest}"
    if not folder.exists():
        settings = ExtensionSettings(words=request["words"])
        extend_vocabulary(request["base"], request["corpus"], folder, settings)
    extension = read_extension(folder)
    assert isinstance(extension, Extension)
    fits = {
        name: {"pieces_per_word": fit.pieces_per_word, "tokens_per_character": fit.tokens_per_character}
        for name, fit in (("before", extension.before), ("after", extension.after))
    }
    return {"folder": str(folder), "words": len(extension.words), **fits}


def _measure(request: dict[str, Any]) -> dict[str, Any]:
    from bertsmith.inference.masked_language import MaskedLanguageModel

    model = MaskedLanguageModel.load(request["model"])
    return {"figures": [model.evaluate(corpus, request["tokens"]) for corpus in request["corpora"]]}


if __name__ == "__main__":
    main()
