"""Few labelled rows: `bertsmith finetune` as it comes beside baselines, setfit and transformers' Trainer.
Last answer (2026-11-29, Zen 3): banking77 at 8 rows a class 84.3, frozen 83.7, setfit 79.1, TF-IDF 63.6.

    python bench/finetuning/few_rows.py [--data sst2 ...] [--sizes 8 16 64 all] [--sides ours setfit ...]
                                        [--draws 3] [--models NAME=FOLDER ...]

    banking77   77 intents, a class each                      rows a class
    sst2        sentiment, 2 classes                          rows a class
    rte         does the first text entail the second?        rows a class
    reuters     news with any of 114 topics                   rows a topic, where it has so many
    stsb        how alike two sentences are, 0 to 5           rows for each whole number
    conll       names in sentences                            50, 200 and 1,000 sentences

Every side begins with the MiniLM weights and has the same rows:

    ours        `bertsmith finetune` with its defaults, and the baselines that it reports: the most frequent
                answer, TF-IDF with a linear model, and a linear model of the frozen encoder's vectors. For
                stsb it is `finetune similarity`, and the last two are cosines
    setfit      SetFitModel and its Trainer, 20 iterations as in its paper, one epoch, batches of 16 pairs;
                pairs of texts are joined. Classes and topics only, up to --setfit-rows rows
    trainer     AutoModelFor… and Trainer: three epochs, batches of 32, 5e-5

With --models, other encoders stand beside them under `finetune`'s defaults: adapted ones, distilled ones.

A draw takes the rows of each class by its seed; test is looked at once. Seconds are those from rows to
model, with all that is chosen on the way. As balanced rows are unlike test's, whether the stated intervals
hold is judged by further rows of train too, drawn as those to learn from were. Each data set has a file of
results. Runs are kept under runs/bench/few_rows/, and an interrupted table goes on; --again repeats them. A
run that fails is named at the end, and tried again the next time.
"""

import argparse
import itertools
import json
import random
import shutil
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).parents[1]))  # harness.py, and what else all folders share

from cutting import cut, read_rows, write_rows
from harness import report, serve
from labelled import MODEL, find, mean_and_error, quiet, run_folder, run_once, when_run

SIZES = ("8", "16", "64", "all")
SIDES = ("ours", "setfit", "trainer")
_TRAINER = {
    "epochs": 3,
    "batch_size": 32,
    "optimizer.learning_rate": 5e-5,
    "optimizer.weight_decay": 0.0,
    "optimizer.warmup": 0.0,
}
_SETFIT_ITERATIONS = 20


@dataclass(frozen=True)
class _Data:
    task: str
    metric: str
    train: str
    test: str
    columns: dict[str, Any] = field(default_factory=dict)


DATA = {
    "banking77": _Data(
        *("classification", "accuracy", "banking77/train.csv", "banking77/test.csv"),
        {"text": "text", "label": "category"},
    ),
    "sst2": _Data(
        *("classification", "accuracy", "sst2/train.tsv", "sst2/test-labeled.tsv"),
        {"text": "sentence", "label": "label"},
    ),
    "rte": _Data(
        *("classification", "accuracy", "glue_rte/train.tsv", "glue_rte/dev.tsv"),
        {"text": "sentence1", "text_pair": "sentence2", "label": "label"},
    ),
    "reuters": _Data(
        *("multi-label", "micro_f1", "reuters/train.jsonl", "reuters/test.jsonl"),
        {"text": "title", "text_pair": "text", "label": "topics"},
    ),
    "stsb": _Data(
        *("similarity", "spearman", "stsb/sts-train.csv", "stsb/sts-test.csv"),
        {"text": 6, "text_pair": 7, "label": 5, "header": False, "format": "tsv"},
    ),
    "conll": _Data("tagging", "f1", "conll2003/iob2_train.txt", "conll2003/iob2_test.txt"),
}
_ALIKE = 2000  # rows
_SENTENCES = {"8": 50, "16": 200, "64": 1000}


def main() -> None:
    """Parses, and is either the parent or a worker."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", nargs="+", choices=tuple(DATA), default=list(DATA))
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--setfit-rows", type=int, default=1300)
    parser.add_argument("--models", nargs="*", default=[], help="NAME=FOLDER: others that ours begins with")
    parser.add_argument("--measured-rows", type=int, help="of test at most, for a quick look")
    parser.add_argument("--again", action="store_true", help="repeat runs that are kept")
    parser.add_argument("--worker", choices=SIDES)
    options = parser.parse_args()
    if options.worker:
        serve(quiet({"ours": train_ours, "setfit": train_setfit, "trainer": train_trainer}[options.worker]))
        return
    others = dict(each.split("=", 1) for each in options.models)
    answers: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    failed = []
    for size, name, draw in itertools.product(options.sizes, options.data, range(options.draws)):
        if size == "all" and draw > 0:
            continue
        for side in [*options.sides, *others]:
            request = {"name": name, "size": size, "draw": draw, "measured_rows": options.measured_rows}
            if side in others:
                request["model"] = str(Path(others[side]).resolve())
            if side == "setfit" and not _suits_setfit(name, size, options.setfit_rows):
                continue
            run = f"{name}-{size}-{side}-{draw}"
            try:
                worker = "ours" if side in others else side
                answer = run_once(__file__, worker, run, request, options.again)
            except RuntimeError as error:  # a table of hours doesn't end for one run
                failed.append(f"{run}: {error}")
                continue
            answers.setdefault((name, size, side), []).append(answer)
            of_data = {key: found for key, found in answers.items() if key[0] == name}
            _write(name, of_data, tuple(others))
    if failed:
        raise SystemExit("\n".join(["Runs that failed:", *failed]))


def _suits_setfit(name: str, size: str, most: int) -> bool:
    if DATA[name].task not in ("classification", "multi-label") or size == "all":
        return False
    classes = {"banking77": 77, "reuters": 114}.get(name, 2)
    return classes * int(size) <= most


# -- the table -----------------------------------------------------------------------------------------------


def _write(
    data: str, answers: dict[tuple[str, str, str], list[dict[str, Any]]], others: Sequence[str]
) -> None:
    """What is known so far of one data set."""
    begun = list(dict.fromkeys((name, size) for name, size, _ in answers))
    notes = [
        "Test, in percent, the mean over draws and its standard error; seconds of training, the mean.",
        *(
            f"{name}, {size}{'' if side == 'ours' else f', {side}'}: {_chosen(found)}"
            for (name, size, side), found in answers.items()
            if side not in ("setfit", "trainer")
        ),
        when_run(itertools.chain.from_iterable(answers.values())),
    ]
    title = f"Few labelled rows: {data}"
    report(f"few-rows-{data}", title, [_row(*each, answers, others) for each in begun], notes)


def _row(
    name: str,
    size: str,
    answers: dict[tuple[str, str, str], list[dict[str, Any]]],
    others: Sequence[str],
) -> dict[str, str]:
    of_side = {side: answers.get((name, size, side), []) for side in (*SIDES, *others)}
    first = next(found for found in of_side.values() if found)
    row = {
        "data": name,
        "size": size,
        "trained on": f"{first[0]['train_rows']:,}",
        "tested on": f"{first[0]['test_rows']:,}",
        "metric": DATA[name].metric,
        "ours": _cell(of_side["ours"]),
    }
    for number, baseline in enumerate(("majority", "TF-IDF", "frozen + linear")):
        scores = [answer["baselines"][number] for answer in of_side["ours"]]
        known = [score for score in scores if score is not None]
        row[baseline] = mean_and_error(known) if known else "–"
    return row | {side: _cell(of_side[side]) for side in ("setfit", "trainer", *others)}


def _cell(answers: Sequence[dict[str, Any]]) -> str:
    if not answers:
        return "–"
    seconds = sum(answer["seconds"] for answer in answers) / len(answers)
    return f"{mean_and_error([answer['score'] for answer in answers])} ({seconds:,.0f} s)"


def _chosen(answers: Sequence[dict[str, Any]]) -> str:
    """Which methods won by how much, and how near the estimate came."""
    counts = Counter(answer["method"] for answer in answers)
    said = ", ".join(f"{method} {times}" for method, times in counts.most_common())
    stated = [each for each in answers if each["expected"]]
    shown = ", ".join("{:.2%} ({:.2%} – {:.2%})".format(*each["expected"]) for each in stated)
    parts = [f"{said}; without test it expects {shown}"]
    for kind, name in (("score", "test"), ("alike", "other rows drawn alike")):
        known = [(each[kind], *each["expected"][1:]) for each in stated if each.get(kind) is not None]
        inside = sum(low <= score <= high for score, low, high in known)
        if known:
            reached = mean_and_error([each[0] for each in known])
            parts.append(f"{name}: {reached}, inside in {inside} of {len(known)}")
    return "; ".join(parts)


# -- the rows ------------------------------------------------------------------------------------------------


def draw_rows(request: dict[str, Any], folder: Path) -> dict[str, str]:
    """train, test and `alike`, as files: JSON lines of text, text_pair and label, or sentences."""
    size, draw, measured = request["size"], request["draw"], request["measured_rows"]
    data = DATA[request["name"]]
    train, test = find(data.train), find(data.test)
    if data.task == "tagging":
        files = {"train": train, "test": test}
        if size != "all":
            files["train"] = cut(train, folder / "train.txt", _SENTENCES[size], draw)
            files["alike"] = _other_sentences(train, files["train"], folder / "alike.txt")
        if measured is not None:
            files["test"] = cut(test, folder / "test.txt", measured, 0)
        return {kind: str(path) for kind, path in files.items()}
    rows, tested = _read(data, train), _read(data, test)
    if measured is not None and measured < len(tested):
        tested = random.Random(0).sample(tested, measured)
    parts = {"train": rows, "test": tested}
    if size != "all":
        parts["train"] = a_class(rows, int(size), draw)
        parts["alike"] = _drawn_alike(rows, parts["train"], int(size))
    for kind, found in parts.items():
        (folder / f"{kind}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in found))
    return {kind: str(folder / f"{kind}.jsonl") for kind in parts}


def _other_sentences(whole: Path, chosen: Path, out: Path) -> Path:
    head, rows = read_rows(whole)
    taken = set(read_rows(chosen)[1])
    others = [row for row in rows if row not in taken]
    write_rows(out, head, random.Random(0).sample(others, min(_ALIKE, len(others))))
    return out


def _drawn_alike(
    rows: Sequence[dict[str, Any]], chosen: Sequence[dict[str, Any]], count: int
) -> list[dict[str, Any]]:
    """Draw after draw of the rows left, until there are enough: each has up to `count` of a label."""
    taken = {id(row) for row in chosen}
    left, found = [row for row in rows if id(row) not in taken], list[dict[str, Any]]()
    while left and len(found) < _ALIKE:
        drawn = a_class(left, count, draw=0)
        taken = {id(row) for row in drawn}
        left, found = [row for row in left if id(row) not in taken], [*found, *drawn]
    return found


def _read(data: _Data, path: Path) -> list[dict[str, Any]]:
    from bertsmith.tasks.registry import find_task

    kind = find_task(data.task)
    found = kind(kind.Settings(**data.columns)).read(path)
    return [
        {"text": row.text}
        | ({} if row.text_pair is None else {"text_pair": row.text_pair})
        | {"label": list(row.label) if isinstance(row.label, tuple) else row.label}
        for row in found
    ]


def a_class(rows: Sequence[dict[str, Any]], count: int, draw: int) -> list[dict[str, Any]]:
    """Up to `count` rows of each label, or of each whole number, in their order."""
    having = defaultdict(list)
    for number, row in enumerate(rows):
        label = row["label"]
        names = label if isinstance(label, list) else [round(label) if isinstance(label, float) else label]
        for each in names:
            having[each].append(number)
    generator, chosen = random.Random(draw), set[int]()
    for label in sorted(having, key=str):
        left = [number for number in having[label] if number not in chosen]
        have = len(having[label]) - len(left)
        chosen.update(generator.sample(left, max(min(count - have, len(left)), 0)))
    return [rows[number] for number in sorted(chosen)]


# -- the sides -----------------------------------------------------------------------------------------------


def train_ours(request: dict[str, Any]) -> dict[str, Any]:
    """As it comes: the method, the epochs and all else are chosen. Its baselines, in the table's order."""
    from bertsmith.tasks.heads.linear_start import FROZEN, FROZEN_ALONE

    data = DATA[request["name"]]
    with run_folder(__file__, "ours", request) as folder:
        files = draw_rows(request, folder)
        run, seconds, measured = _finetune(data, files, folder, request)
    results, test = run.results, measured["test"]
    known = {name: metrics.get(data.metric) for name, metrics in test.baselines.items()}
    frozen = [known.pop(name) for name in (FROZEN, FROZEN_ALONE) if name in known]
    without = list(known.values())
    score = test.model[data.metric]
    return {
        "score": score,
        "alike": measured["alike"].model[data.metric] if "alike" in measured else None,
        "baselines": [without[0], without[-1] if len(without) > 1 else None, *(frozen or [score])],
        "seconds": seconds,
        "method": results.method,
        "expected": [results.expected.score, results.expected.low, results.expected.high]
        if results.expected
        else None,
        "train_rows": results.train_rows,
        "test_rows": test.rows,
    }


def _finetune(
    data: _Data, files: dict[str, str], folder: Path, request: dict[str, Any]
) -> tuple[Any, float, dict[str, Any]]:
    """The run, its seconds, and its figures on test and on what is alike."""
    from bertsmith.inference.predictor import Predictor
    from bertsmith.training.finetuning.finetune import finetune

    settings, out = [f"seed={request['draw']}"], folder / "run"
    shutil.rmtree(out, ignore_errors=True)  # of a run that was interrupted: seconds are those of a whole one
    begun = time.perf_counter()
    model = request.get("model", MODEL)
    run = finetune(data.task, *settings, model=model, train=files["train"], out=str(out))
    seconds = time.perf_counter() - begun
    predictor = Predictor.load(run.model)
    return run, seconds, {kind: predictor.evaluate(files[kind]) for kind in files if kind != "train"}


def train_setfit(request: dict[str, Any]) -> dict[str, Any]:
    """As its documentation has it."""
    import torch
    from datasets import Dataset
    from setfit import SetFitModel, Trainer, TrainingArguments

    from bertsmith.model.locate import locate_model

    data = DATA[request["name"]]
    with run_folder(__file__, "setfit", request) as folder:
        files = draw_rows(request, folder)
        train, test = (_joined(Path(files[kind])) for kind in ("train", "test"))
        torch.manual_seed(request["draw"])
        several = data.task == "multi-label"
        names = sorted({name for _, labels in train for name in labels})

        def as_targets(labels: list[str]) -> Any:
            return [int(name in labels) for name in names] if several else names.index(labels[0])

        begun = time.perf_counter()
        options = {"multi_target_strategy": "one-vs-rest"} if several else {}
        model = SetFitModel.from_pretrained(str(locate_model(MODEL).folder), device="cpu", **options)
        rows = Dataset.from_dict(
            {"text": [text for text, _ in train], "label": [as_targets(labels) for _, labels in train]}
        )
        arguments = TrainingArguments(
            output_dir=str(folder / "setfit"),
            num_iterations=_SETFIT_ITERATIONS,
            num_epochs=1,
            batch_size=16,
            seed=request["draw"],
            show_progress_bar=False,
            report_to="none",
            save_strategy="no",
        )
        Trainer(model=model, args=arguments, train_dataset=rows).train()
        seconds = time.perf_counter() - begun
        guessed = model.predict([text for text, _ in test], show_progress_bar=False).tolist()
    if several:
        given = [[name for name, there in zip(names, row, strict=True) if there] for row in guessed]
    else:
        given = [[names[number]] for number in guessed]
    score = _score(given, [labels for _, labels in test])
    return {"score": score, "seconds": seconds, "train_rows": len(train), "test_rows": len(test)}


def _joined(path: Path) -> list[tuple[str, list[str]]]:
    """Texts, pairs in one, and their labels."""
    found = []
    for line in path.read_text().splitlines():
        row = json.loads(line)
        text = f"{row['text']} {row['text_pair']}" if "text_pair" in row else row["text"]
        found.append((text, row["label"] if isinstance(row["label"], list) else [row["label"]]))
    return found


def _score(guessed: Sequence[Sequence[str]], gold: Sequence[Sequence[str]]) -> float:
    """Micro F1 of sets of labels: of one label each it is accuracy."""
    right = sum(len({*a} & {*b}) for a, b in zip(guessed, gold, strict=True))
    both = sum(map(len, guessed)) + sum(map(len, gold))
    return 2 * right / both


def train_trainer(request: dict[str, Any]) -> dict[str, Any]:
    """As its documentation has it."""
    from bertsmith.tasks.registry import find_task
    from trainer import fit, load_model, load_tokenizer
    from trainer_tasks import USUAL

    data = DATA[request["name"]]
    kind = find_task(data.task)
    with run_folder(__file__, "trainer", request) as folder:
        files = draw_rows(request, folder)
        task = kind(kind.Settings())
        train, test = task.read(files["train"]), task.read(files["test"])
        task.fit(train)
        kind_of_trainer = "regression" if data.task == "similarity" else data.task
        usual = USUAL[kind_of_trainer](load_tokenizer(), list(task.labels), 128)
        begun = time.perf_counter()
        model = load_model(kind_of_trainer, task.labels, request["draw"])
        fit(model, usual.collate, usual.encode(train), _TRAINER, request["draw"])
        seconds = time.perf_counter() - begun
        known = [row for row in test if set(task.labels_of(row)) <= set(task.labels)]
        if data.task == "tagging":  # tags that training hasn't shown are missed
            known = test
        score = usual.metrics(model, usual.encode(known), known)[data.metric] * len(known) / len(test)
    return {"score": score, "seconds": seconds, "train_rows": len(train), "test_rows": len(test)}


if __name__ == "__main__":
    main()
