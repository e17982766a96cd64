"""pretraining_worth.py and cutting.py: rows are cut by the seed, dev chooses, test is stated."""

import csv
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bench_runs import RunScript

import cutting
import labelled
import pretraining_worth
from bertsmith.model.checkpoint import load_encoder
from bertsmith.tasks.pretraining.pretraining import PretrainingModel
from bertsmith.tasks.pretraining.pretraining_checkpoint import save_pretraining_model
from bertsmith.text.tokens.tokenizer import Tokenizer
from bertsmith.training import machine

SENTENCES = [f"w{number} NN B-NP O\nend . O O" for number in range(20)]


def read_csv(path: Path) -> list[list[str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.reader(file))


def test_rows_are_drawn_by_the_seed_and_stay_in_their_order(tmp_path: Path) -> None:
    rows = [f"text {number:02}\t{number % 2}" for number in range(50)]
    whole = tmp_path / "whole.tsv"
    whole.write_text("\n".join(["text\tlabel", *rows]) + "\n")

    def part(seed: int) -> list[str]:
        return cutting.cut(whole, tmp_path / "part.tsv", 10, seed).read_text().splitlines()

    assert part(0) == part(0) != part(1)
    header, *kept = part(0)
    assert header == "text\tlabel"
    assert len(kept) == 10 and kept == sorted(kept) and set(kept) < set(rows)
    assert cutting.cut(whole, tmp_path / "all.tsv", 999, 0).read_text() == whole.read_text()


def test_sentences_are_counted_without_what_begins_a_document(tmp_path: Path) -> None:
    whole = tmp_path / "whole.txt"
    document = "-DOCSTART- -X- -X- O"
    whole.write_text("\n\n".join([document, *SENTENCES[:10], document, *SENTENCES[10:]]) + "\n\n")
    text = cutting.cut(whole, tmp_path / "part.txt", 20, 0).read_text()
    assert text.strip("\n").split("\n\n") == SENTENCES
    assert cutting.cut(whole, tmp_path / "part.txt", 7, 0).read_text().count("w") == 7


def test_classes_keep_as_many_rows_each_and_dev_is_the_same_for_every_seed(tmp_path: Path) -> None:
    whole = tmp_path / "whole.csv"
    rows = [[f'"quoted", and\nbroken {n}' if n % 3 else f"plain {n}", f"class {n % 4}"] for n in range(80)]
    with whole.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([["text", "category"], *rows])

    def divide(rows_a_class: int | None, seed: int) -> tuple[list[list[str]], list[list[str]]]:
        train, dev = tmp_path / "train.csv", tmp_path / "dev.csv"
        cutting.divide_classes(whole, train, dev, "category", 2, rows_a_class, seed)
        return read_csv(train), read_csv(dev)

    (header, *train), (_, *dev) = divide(5, 0)
    assert header == ["text", "category"]
    assert Counter(label for _, label in train) == {f"class {n}": 5 for n in range(4)}
    assert Counter(label for _, label in dev) == {f"class {n}": 2 for n in range(4)}
    (_, *other), (_, *same) = divide(5, 1)
    assert same == dev
    assert other != train
    (_, *everything), _ = divide(None, 0)
    assert sorted(everything + dev) == sorted(rows)
    with pytest.raises(ValueError, match="class 0 has 18 rows left, and 19 are wanted"):
        divide(19, 0)


def results(dev: float, test: float, seconds: float) -> dict[str, Any]:
    baselines = {"majority": {"f1": 0.1}, "TF-IDF": {"f1": 0.4}, pretraining_worth.FROZEN: {"f1": 0.45}}
    return {
        "evaluations": {
            "dev": {"model": {"f1": dev}},
            "test": {"rows": 300, "model": {"f1": test}, "baselines": baselines},
        },
        "restarts": [{"seconds": seconds}],
        "train_rows": 1000,
    }


def test_dev_chooses_though_test_would_not() -> None:
    found = pretraining_worth.chosen_by_dev(
        [results(0.6, 0.7, 10), results(0.65, 0.5, 20)], [{}, {"epochs": 10, "optimizer.beta2": 0.9}], "f1"
    )
    assert (found["score"], found["seconds"]) == (0.5, 20)
    assert (found["baseline"], found["without"]) == ("TF-IDF", 0.4)
    assert found["tried"] == [
        {"settings": "as it comes", "dev": 0.6},
        {"settings": "epochs=10 beta2=0.9", "dev": 0.65},
    ]


def test_a_row_has_every_side_and_the_baseline_once_a_seed() -> None:
    def answer(seed: int, score: float) -> dict[str, Any]:
        chosen = pretraining_worth.chosen_by_dev([results(0.6, score, 10 + seed)], [{}], "f1")
        return chosen | {"seed": seed}

    sides = {"pre-trained": [answer(0, 0.5), answer(1, 0.6)], "MiniLM": [answer(0, 0.8)]}
    assert pretraining_worth.row_of("conll", "f1", sides | {"random weights": []}) == {
        "data": "conll",
        "trained on": "1,000",
        "tested on": "300",
        "metric": "f1",
        "without a model": "40.00 ± 0.00 (TF-IDF)",
        "pre-trained": "55.00 ± 5.00 (10 s)",
        "MiniLM": "80.00 (10 s)",
        "random weights": "not yet",
    }


class Worker:
    """Answers within the test, by way of JSON."""

    def __init__(self, script: str, side: str) -> None:
        assert side == "finetune"

    def ask(self, **request: Any) -> Any:
        return json.loads(json.dumps(pretraining_worth.fine_tune(json.loads(json.dumps(request)))))

    def close(self) -> None:
        """Nothing to end."""


@pytest.mark.slow
def test_sides_are_fine_tuned_and_kept(
    run_script: RunScript,
    tiny_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(machine, "matmul_flops", lambda *_, **__: 1.0)  # takes longer than the steps
    monkeypatch.setattr(labelled, "DATA", tmp_path / "data")
    monkeypatch.setattr(labelled, "KEPT", tmp_path / "kept")
    monkeypatch.setattr(labelled, "Worker", Worker)
    data = pretraining_worth.DATA["sst2"]
    short = replace(data, columns=data.columns | {"max_length": 32})  # of what the tiny model has room for
    monkeypatch.setitem(pretraining_worth.DATA, "sst2", short)
    monkeypatch.setattr(pretraining_worth, "MODEL", str(tiny_model))
    (tmp_path / "data" / "sst2").mkdir(parents=True)
    for name in ("train", "dev", "test-labeled"):
        rows = [f"{'a good cat' if n % 2 else 'the bad dog'} {n}\t{n % 2}" for n in range(40)]
        file = tmp_path / "data" / "sst2" / f"{name}.tsv"
        file.write_text("\n".join(["sentence\tlabel", *rows]) + "\n")
    model = PretrainingModel(load_encoder(tiny_model).config)
    save_pretraining_model(tmp_path / "model", model, Tokenizer.load(tiny_model), {"steps": 7})
    options = ("--model", str(tmp_path / "model"), "--data", "sst2", "--sizes", "few", "--few-rows", "12")
    run_script(pretraining_worth, *options)
    printed = capsys.readouterr().out
    (*_, row) = (line for line in printed.splitlines() if line.startswith("| sst2"))
    cells = row.strip("| ").split(" | ")
    assert cells[:4] == ["sst2", "12", "40", "accuracy"]
    assert cells[4].endswith("(TF-IDF + logistic regression)")
    assert all(cell.endswith(" s)") and 0 <= float(cell.split(" ")[0]) <= 100 for cell in cells[5:])
    assert "The pre-trained model: 7 steps." in printed
    kept = tmp_path / "kept" / "pretraining_worth"
    names = {"MiniLM": 1, "pre-trained": 2, "random-weights": 2}
    for name, tried in names.items():
        assert len(json.loads((kept / f"sst2-few-{name}-0.json").read_text())["tried"]) == tried
    assert len(list(kept.iterdir())) == 3  # folders of finished runs are gone
