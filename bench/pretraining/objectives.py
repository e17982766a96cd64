"""Objectives of pre-training at equal time: one shape, text, vocabulary, seed and schedule for all.
Last answer (2026-11-27, Zen 4, eight minutes each): masked words 14.0 %, pieces 13.8 %, all on the plateau.

    python bench/pretraining/objectives.py [--minutes 60] [--ways mlm rtd] [--data sst2 rte] [--seeds 3]

    mlm     masked pieces of full segments (RoBERTa)
    nsp     the same of pairs, and whether the second text is the next one (BERT)
    sop     the same of pairs, and whether they are swapped (ALBERT)
    words   whole words masked
    spans   spans of words masked (SpanBERT, without its boundary objective)
    rtd     tokens found that a generator of a third of the width has put in (ELECTRA); the generator's time
            is part of the minutes

Then each model is fine-tuned alike on some rows of SST-2 (sentiment), CoNLL-2003 (names) and RTE (pairs of
texts), and so are random weights of the same shape. Scores are of dev, which chooses the epoch too.

Held-out accuracy of masked pieces is measured on full segments with the published masks for all; of `rtd` it
is the generator's, since its discriminator fills no masks.

Runs are kept under runs/bench/objectives/, and an interrupted table goes on; --again repeats them.
"""

import argparse
import itertools
import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).parents[1]))  # harness.py, and what else all folders share

import corpora
from cutting import cut
from harness import report, serve
from labelled import (
    DATA_SETS,
    KEPT,
    Labelled,
    find,
    finetune_in,
    mean_and_error,
    quiet,
    run_folder,
    run_once,
    when_run,
)

_PLACE = KEPT / "objectives"
_LENGTH = 128
_FULL = {"data.next_sentence": False}
WAYS: dict[str, dict[str, Any]] = {
    "mlm": _FULL,
    "nsp": {"data.next_sentence": True},
    "sop": {"data.next_sentence": True, "objective": "sentence-order"},
    "words": {**_FULL, "masking.whole_words": True},
    "spans": {**_FULL, "masking.spans": True},
    "rtd": {
        **_FULL,
        "objective": "replaced-tokens",
        "model.model_type": "electra",
        "model.size": "base",  # embeddings as wide as the layers, as BERT's: the shape below is for all
        "replaced.generator_share": 1 / 3,
        "masking.masked": 0.85,
        "masking.random": 0.0,
    },
}
_SHAPE = {"num_hidden_layers": 4, "hidden_size": 192, "num_attention_heads": 3, "intermediate_size": 768}
_RECIPE = {
    "model.model_type": "bert",
    "model.size": "tiny",
    "masking.mask_rate": 0.15,
    "loss.sampled_pieces": 1500,
    "evaluation.every": 0.5,  # its time is the run's
    "evaluation.tokens": 20_000,
}
_FINETUNING: dict[str, Any] = {
    "method": "full",
    "epochs": 5,
    "batch_size": 16,
    "optimizer.learning_rate": 5e-4,
}
RANDOM = "random weights"
DATA = {
    "sst2": DATA_SETS["sst2"],
    "conll": DATA_SETS["conll"],
    "rte": Labelled(
        "classification",
        "glue_rte/train.tsv",
        "glue_rte/dev.tsv",
        ("accuracy",),
        {"text": "sentence1", "text_pair": "sentence2", "label": "label"},
    ),
}


def main() -> None:
    """Parses, and is either the parent or a worker."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    corpora.add_options(parser)
    parser.add_argument("--minutes", type=float, default=60.0, help="of pre-training, each")
    parser.add_argument("--ways", nargs="+", choices=tuple(WAYS), default=list(WAYS))
    parser.add_argument("--data", nargs="+", choices=tuple(DATA), default=list(DATA))
    parser.add_argument("--rows", type=int, default=2000, help="of each data set at most")
    parser.add_argument(
        "--seeds", type=int, default=1, help="of fine-tuning: rows, their order, the new head"
    )
    parser.add_argument("--again", action="store_true", help="repeat runs that are kept")
    parser.add_argument("--worker", choices=("pretrain", "finetune"))
    options = parser.parse_args()
    if options.worker:
        serve(quiet({"pretrain": pre_train, "finetune": fine_tune}[options.worker]))
        return
    _compare(options)


# -- the table -----------------------------------------------------------------------------------------------


def _compare(options: argparse.Namespace) -> None:
    store, tokenizer = (str(Path(each).absolute()) for each in corpora.find(options))
    trained: dict[str, dict[str, Any]] = {}
    scores: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for way in options.ways:
        request = {"way": way, "minutes": options.minutes, "store": store, "tokenizer": tokenizer}
        kept = f"{way}-{options.minutes:g}-minutes"
        trained[way] = run_once(__file__, "pretrain", kept, request | {"kept": kept}, options.again)
        _write(trained, scores, options)
    for seed, name in itertools.product(range(options.seeds), options.data):
        for way in (*options.ways, RANDOM):
            first = trained[options.ways[0]]
            start = {"random": first["model"]} if way == RANDOM else {"model": trained[way]["model"]}
            request = {"name": name, "rows": options.rows, "seed": seed, "start": start}
            weights = trained.get(way, first)["weights"]
            request |= {"settings": _FINETUNING, "weights": weights}
            kept = f"{name}-{way.replace(' ', '-')}-{options.minutes:g}-minutes-{seed}"
            answer = run_once(__file__, "finetune", kept, request, options.again)
            scores.setdefault((way, name), []).append(answer)
            _write(trained, scores, options)


def _write(
    trained: dict[str, dict[str, Any]],
    scores: dict[tuple[str, str], list[dict[str, Any]]],
    options: argparse.Namespace,
) -> None:
    """What is known so far."""
    rows = [row_of(way, trained.get(way), scores, options.data) for way in (*options.ways, RANDOM)]
    about = [" ".join(part.split()) for part in (__doc__ or "").split("\n\n")[3:5]]
    shape = ", ".join(f"{name} {value}" for name, value in _SHAPE.items())
    of_tuning = ", ".join(f"{name.split('.')[-1]} {value}" for name, value in _FINETUNING.items())
    notes = [
        f"{options.minutes:g} minutes each by the recipe budget, its schedule and its optimiser; {shape}; "
        "15 % of the pieces masked.",
        *about,
        f"Fine-tuning: at most {options.rows:,} rows, {of_tuning}; in percent, over several seeds the mean "
        "and its standard error.",
        when_run([*trained.values(), *itertools.chain.from_iterable(scores.values())]),
    ]
    report("objectives", f"Objectives, {options.minutes:g} minutes each", rows, notes)


def row_of(
    way: str,
    trained: dict[str, Any] | None,
    scores: dict[tuple[str, str], list[dict[str, Any]]],
    data: Sequence[str],
) -> dict[str, str]:
    """One objective: what it has learnt, and what that is worth."""
    figures = (trained or {}).get("figures", {})
    masked = f"{figures['mlm_accuracy']:.2%}" if figures else ("–" if way == RANDOM else "not yet")
    masked += " (generator)" if "rtd_recall" in figures else ""
    own = [
        f"{name}: {figures[key]:.1%} (always the same answer: {figures[base]:.1%})"
        for name, key, base in (
            ("next sentence", "nsp_accuracy", "nsp_majority"),
            ("order", "sop_accuracy", "sop_majority"),
        )
        if key in figures
    ]
    if "rtd_recall" in figures:
        found, right = figures["rtd_recall"], figures["rtd_precision"]
        own.append(f"replaced tokens: {found:.1%} found, {right:.1%} of those called are")
    cells = {}
    for name in data:
        metric, found = DATA[name].metrics[0], scores.get((way, name), [])
        cells[f"{name}, {metric}"] = mean_and_error([each["score"] for each in found]) if found else "not yet"
    return {
        "objective": way,
        "steps": f"{trained['steps']:,}" if trained else "–",
        "tokens": f"{trained['tokens'] / 1e6:.1f} M" if trained else "–",
        "held-out masked pieces": masked,
        "its own question": "; ".join(own) or "–",
        **cells,
    }


# -- runs ----------------------------------------------------------------------------------------------------


def pre_train(request: dict[str, Any]) -> dict[str, Any]:
    """`bertsmith pretrain budget` with the objective, or the rest of it; the model stays for fine-tuning."""
    from bertsmith.files import sha256
    from bertsmith.training.log import RunLog
    from bertsmith.training.pretrain import pretrain

    way = request["way"]
    settings = {**{f"model.{name}": value for name, value in _SHAPE.items()}, **_RECIPE, **WAYS[way]}
    run = _PLACE / f"run-{request['kept']}"
    given = [f"{name}={json.dumps(value)}" for name, value in settings.items()]
    given += [f"hours={request['minutes'] / 60}", f"data.sequence_lengths=[{_LENGTH}]"]
    given += [f"corpus={request['store']}", f"tokenizer={request['tokenizer']}", f"out={run}"]
    result = pretrain("budget", *given, resume=(run / "recipe.toml").exists())
    steps = [record for record in RunLog.read(run) if record["kind"] == "step"]
    shutil.rmtree(run / "checkpoints")
    filling = run / "generator" if (run / "generator").exists() else result.model
    figures = {name: value for name, value in result.metrics.items() if not name.startswith("mlm_")}
    return {
        "model": str(result.model),
        "weights": sha256(result.model / "model.safetensors"),
        "steps": steps[-1]["step"],
        "tokens": steps[-1]["tokens"],
        "figures": figures | masked_figures(filling, request["store"]),
    }


def masked_figures(folder: Path, store: str) -> dict[str, float]:
    """Of full segments of the store's held-out part, whatever the model was trained on."""
    import torch

    from bertsmith.data.masking import Masker, MaskingRates
    from bertsmith.data.store import TokenStore
    from bertsmith.data.stream import PretrainingStream
    from bertsmith.model.own_tokenizer import read_own_tokenizer
    from bertsmith.tasks.pretraining.pretraining import PretrainingTask
    from bertsmith.tasks.pretraining.pretraining_checkpoint import load_pretraining_model

    model, _ = load_pretraining_model(folder, next_sentence=False)
    tokenizer = read_own_tokenizer(folder)
    text = TokenStore.open(Path(store) / "heldout", tokenizer)
    stream = PretrainingStream(text, tokenizer, 0, False, _LENGTH, 16 * _LENGTH)
    masker, cpu = Masker(tokenizer, MaskingRates()), torch.device("cpu")
    task = PretrainingTask(model, [stream], masker, stream, 500_000, cpu)
    return task.metrics(task.sum_heldout(0, 1))


def fine_tune(request: dict[str, Any]) -> dict[str, Any]:
    """A model, or random weights of its shape, on some rows by one fixed recipe."""
    data = DATA[request["name"]]
    with run_folder(__file__, "finetune", request) as folder:
        train = find(data.train)
        part = cut(train, folder / f"train{train.suffix}", request["rows"], request["seed"])
        model = request["start"].get("model")
        if model is None:
            model = str(folder / "random-weights")
            write_random_model(Path(request["start"]["random"]), Path(model))
        settings = data.columns | request["settings"]
        files = {"train": str(part), "dev": str(find(data.dev))}
        results = finetune_in(folder / "run", data.task, settings, model, seed=request["seed"], **files)
    score = results["evaluations"]["dev"]["model"][data.metrics[0]]
    return {"score": score, "seed": request["seed"], "train_rows": results["train_rows"]}


def write_random_model(trained: Path, folder: Path) -> None:
    """An encoder of the same shape and vocabulary, of any objective, with weights that have seen no text."""
    import torch

    from bertsmith.model.bert import Bert
    from bertsmith.model.checkpoint import load_encoder, save_checkpoint
    from bertsmith.model.own_tokenizer import read_own_tokenizer

    if folder.exists():
        return
    config = load_encoder(trained).config
    torch.manual_seed(0)
    tensors = {f"encoder.{name}": tensor for name, tensor in Bert(config).state_dict().items()}
    architecture = config.family.class_prefix + "Model"
    tokenizer = read_own_tokenizer(trained)
    save_checkpoint(folder, tensors, config, architecture, task="encoder", tokenizer=tokenizer)


if __name__ == "__main__":
    main()
