"""What training brings to a search: MiniLM as it comes, trained on pairs, then on mined negatives; and
cross-encoders beside it.
Last answer (2026-11-23): ReQA-SQuAD 71.3 to 75.7, mined 78.2; WikiQA's MAP 71.9 to 82.1.

    python bench/search/retrieval_training.py [--parts reqa] [--rows 500 --queries 100 --documents 1000]

reqa: trained on 10,000 questions and their sentences out of SQuAD's training articles, measured by the search
for the 10,539 questions of its dev articles among 10,246 sentences. wikiqa: cross-encoders trained on its
20,360 candidates, by row and by list, and by list after SQuAD's questions with three sentences each that
MiniLM takes for answers; measured by the order of each test question's candidates. Differences are to MiniLM
as it comes, paired by query, p-values by randomisation.

--rows, --queries and --documents cut it down for a quick look. Finished models stay in runs/bench and aren't
trained again, unless the settings differ or --again says so.
"""

import argparse
import hashlib
import json
import random
import shutil
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).parents[1]))  # harness.py, and what else all folders share

from harness import report
from labelled import DATA, KEPT, MODEL, find

PLACE = KEPT / "retrieval_training"
RERANKER = PLACE / "reranking-squad-None-0" / "model"  # of all rows and seed 0: retrieval.py re-ranks by it
ZERO_SHOT = "MiniLM as it comes"
# Batches of 64 questions: what two cores go through in half an hour at 10,000 pairs.
PAIRS = ("epochs=2", "batch_size=64", "max_length=128", "optimizer.learning_rate=5e-5")
MINED = ("epochs=1", "batch_size=64", "max_length=128", "optimizer.learning_rate=2e-5", "negatives=2")
CROSS = ("batch_size=32", "max_length=160", "optimizer.learning_rate=5e-5")


def main() -> None:
    """Parses, trains what isn't trained yet, and measures it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--parts", nargs="+", choices=("reqa", "wikiqa"), default=["reqa", "wikiqa"])
    parser.add_argument("--rows", type=int, help="training rows")
    parser.add_argument("--queries", type=int, help="test queries")
    parser.add_argument("--documents", type=int, help="test documents besides the relevant ones")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--again", action="store_true")
    options = parser.parse_args()
    PLACE.mkdir(parents=True, exist_ok=True)
    for name in options.parts:
        rows, notes = {"reqa": reqa, "wikiqa": wikiqa}[name](options)
        report(f"retrieval-training-{name}", f"Training for retrieval: {name}", rows, notes)


def reqa(options: argparse.Namespace) -> tuple[list[dict[str, Any]], list[str]]:
    """Zero-shot, trained on pairs, and on with mined negatives."""
    pairs = write_pairs(options.rows)
    trained, seconds = train("retrieval", f"pairs-{options.rows}", MODEL, pairs, PAIRS, options)
    mined = mine_once(trained, pairs, 2)
    further, more = train("retrieval", f"mined-{options.rows}", str(trained), mined, MINED, options)
    again, same = train("retrieval", f"longer-{options.rows}", str(trained), pairs, MINED, options)
    models = {
        ZERO_SHOT: MODEL,
        "trained on pairs": str(trained),
        "and an epoch more": str(again),
        "and an epoch with mined negatives": str(further),
    }
    data = read(DATA / "reqa_squad" / "squad_test.json", options)
    notes = [
        f"{len(pairs.read_text().splitlines()):,} pairs, trained in {seconds:.0f} s, an epoch more in "
        f"{same:.0f} s, with mined negatives in {more:.0f} s"
    ]
    return compared(data, {name: dense(data, model) for name, model in models.items()}), notes


def wikiqa(options: argparse.Namespace) -> tuple[list[dict[str, Any]], list[str]]:
    """The bi-encoder, and cross-encoders by row and by list, on the candidates of each question."""
    rows = None if options.rows is None else 10 * options.rows
    path, dev = (first_queries(find(f"wikiqa/{name}.tsv"), rows) for name in ("train", "dev"))
    files = {"dev": str(dev), "text": "1", "text_pair": "2", "label": "3", "header": False}
    mined = mine_once(MODEL, write_pairs(options.rows), 3)
    squad = (*CROSS, "epochs=1", "loss=listwise")
    first, seconds = train("reranking", f"squad-{options.rows}", MODEL, mined, squad, options)
    data = read(DATA / "wikiqa" / "test.tsv", options)
    systems, notes = {ZERO_SHOT: dense(data, MODEL)}, [f"SQuAD's sentences: trained in {seconds:.0f} s"]
    for name, model, loss in (
        ("pointwise", MODEL, "pointwise"),
        ("listwise", MODEL, "listwise"),
        ("listwise after SQuAD's", str(first), "listwise"),
    ):
        settings, place = (*CROSS, "epochs=2", f"loss={loss}"), name.split("'")[0].replace(" ", "-")
        trained, seconds = train("reranking", f"{place}-{rows}", model, path, settings, options, **files)
        systems[f"cross-encoder, {name}"] = reread(data, str(trained))
        notes.append(f"{name}: trained in {seconds:.0f} s")
    return compared(data, systems), notes


def write_pairs(rows: int | None) -> Path:
    """Questions and their sentences as JSON lines."""
    found = json.loads(find("reqa_squad/squad_train.json").read_text())
    pairs = list(zip(found["questions"], found["answers"], strict=True))
    if rows is not None:
        pairs = random.Random(0).sample(pairs, rows)
    path = PLACE / f"pairs-{rows}.jsonl"
    path.write_text("".join(json.dumps({"query": q, "positive": a}) + "\n" for q, a in pairs))
    return path


def first_queries(path: Path, rows: int | None) -> Path:
    """The file itself, or its first rows: a question's candidates stand together."""
    if rows is None:
        return path
    made = PLACE / f"{rows}-{path.name}"
    made.write_text("".join(path.read_text().splitlines(keepends=True)[:rows]))
    return made


def mine_once(model: Path | str, pairs: Path, negatives: int) -> Path:
    """So many negatives a question out of all training sentences."""
    from bertsmith.files import write_jsonl
    from bertsmith.inference.embedding.embedder import Embedder
    from bertsmith.inference.ranking.mining import mine
    from bertsmith.tasks.retrieval import Retrieval, RetrievalSettings

    rows = Retrieval(RetrievalSettings()).read(pairs)
    mined = mine(
        Embedder(model), rows, list(dict.fromkeys(row.documents[0] for row in rows)), negatives=negatives
    )
    path = pairs.with_name(f"mined-{negatives}-{pairs.name}")
    write_jsonl(mined.rows, path)
    return path


def train(
    task: str, name: str, model: str, path: Path, settings: tuple[str, ...], options: Any, **files: Any
) -> tuple[Path, float]:
    """The model's folder, and the seconds of its training; one that is there already is taken."""
    from bertsmith.training.finetuning.finetune import finetune

    out = PLACE / f"{task}-{name}-{options.seed}"
    asked = _asked(model, path, settings)
    kept = out / "asked.json"
    if options.again or not kept.exists() or json.loads(kept.read_text()) != asked:
        shutil.rmtree(out, ignore_errors=True)
        finetune(task, *settings, model=model, train=str(path), out=str(out), seed=options.seed, **files)
        kept.write_text(json.dumps(asked))
    results = json.loads((out / "results.json").read_text())
    return out / "model", sum(each["seconds"] for each in results["restarts"])


def _asked(model: str, path: Path, settings: tuple[str, ...]) -> dict[str, Any]:
    """What a training hangs on; of a model trained here, what that one was asked for as well."""
    parent = Path(model).parent / "asked.json"
    return {
        "model": json.loads(parent.read_text()) if parent.exists() else model,
        "settings": list(settings),
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
    }


def read(path: Path, options: Any) -> Any:
    """A test collection, or a part of it in which relevant documents stay."""
    from bertsmith.text.retrieval.layouts import read_retrieval_data

    data = read_retrieval_data(find(str(path.relative_to(DATA))))
    data = data.with_fewer_queries(options.queries) if options.queries else data
    if not options.documents or data.candidates is not None:
        return data
    kept = {document for grades in data.judgements.values() for document in grades}
    others = sorted(data.documents.keys() - kept)
    kept |= set(random.Random(0).sample(others, min(options.documents, len(others))))
    return replace(data, documents={id: text for id, text in data.documents.items() if id in kept})


def dense(data: Any, model: str) -> Any:
    """The exact search by a model's vectors."""
    from bertsmith.inference.embedding.embedder import Embedder
    from bertsmith.inference.ranking.ranking import DENSE, rank_by_all

    return next(each for each in rank_by_all(data, Embedder(model)) if each.name == DENSE)


def reread(data: Any, model: str) -> Any:
    """All candidates in a cross-encoder's order."""
    from bertsmith.inference.ranking.ranking import rerank
    from bertsmith.inference.ranking.reranker import open_reranker

    candidates = dense(data, MODEL)
    most = max(map(len, candidates.rankings.values()))
    return rerank(open_reranker(model), candidates, data, most)


def compared(data: Any, systems: dict[str, Any]) -> list[dict[str, Any]]:
    """Rows of the table; differences are to the first system."""
    from bertsmith.inference.ranking.report import figure_table
    from bertsmith.inference.ranking.results import compare, metrics_for

    named = [system._replace(name=name) for name, system in systems.items()]
    found = compare(named, data, metrics_for(data, 10, 100), {})
    columns, table = figure_table(found)
    return [dict(zip(["model", *columns[1:]], row, strict=True)) for row in table]


if __name__ == "__main__":
    started = time.perf_counter()
    main()
    print(f"{time.perf_counter() - started:.0f} s in all")
