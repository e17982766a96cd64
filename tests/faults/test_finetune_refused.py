"""Rows and settings that fine-tuning can't work with: one sentence, exit status 2, nothing written."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from finetune_attempt import tiny_model
from tiny_run import WORDS

from bertsmith.cli.main import main
from bertsmith.training import machine

GOOD = [
    {"text": "balen cirom", "label": "a"},
    {"text": "dum fal", "label": "b"},
    {"text": "balen dum", "label": "a"},
]


class Case(NamedTuple):
    """What is changed about a run that would work, and words of the sentence that must come of it."""

    sentence: str
    task: str = "classification"
    train: str | list[dict[str, Any]] = GOOD  # type: ignore[assignment]
    dev: str | list[dict[str, Any]] = GOOD  # type: ignore[assignment]
    ending: str = "jsonl"
    more: tuple[str, ...] = ()


SCORES = [{"text": "balen", "score": 1.5}, {"text": "dum", "score": 2.5}]
ROWS = {
    "a label that is missing": Case("train.jsonl, line 2", train=[GOOD[0], {"text": "dum"}]),
    "a label that is empty": Case(
        "train.jsonl: of 2 rows 1 has no label (the first: line 2). Mend them",
        train=[GOOD[0], {"text": "dum", "label": ""}]
    ),
    "a label that is a list": Case(
        "train.jsonl, line 1: expected a label", train=[{"text": "dum", "label": ["a"]}]
    ),
    "a label that training never showed": Case(
        "dev.jsonl, line 2: the label 'c' does not occur in the training data, which has a, b",
        dev=[GOOD[0], {"text": "dum", "label": "c"}],
    ),
    "one class only": Case("there is nothing to tell apart", train=[GOOD[0], GOOD[2]]),
    "texts that are all empty": Case(
        "train.jsonl, line 1 on. Is --text the right column?",
        train=[{"text": "", "label": "a"}, {"text": " ", "label": "b"}],
    ),
    "a number where the text should be": Case(
        "train.jsonl, line 1: expected a text, found 3", train=[{"text": 3, "label": "a"}]
    ),
    "no rows at all": Case("train.jsonl has no rows. Expected at least one, as jsonl", train=""),
    "a line that is not JSON": Case(
        "train.jsonl, line 2", train='{"text": "dum", "label": "a"}\n{"text": \n'
    ),
    "a score that is NaN": Case(
        "train.jsonl: of 2 rows 1 has no label (the first: line 2)",
        task="regression",
        train=[SCORES[0], {"text": "dum", "score": float("nan")}],
        dev=SCORES,
    ),
    "a score that is a word": Case(
        "dev.jsonl, line 1: expected a finite number such as 4.25, found 'high'",
        task="regression",
        train=SCORES,
        dev=[{"text": "dum", "score": "high"}],
    ),
    "scores that are all the same": Case(
        "there is nothing to learn", task="regression", train=[SCORES[0], SCORES[0]], dev=SCORES
    ),
    "columns that differ between the files": Case(
        "dev.csv: ", ending="csv", train="text,label\nbalen,a\ndum,b\n", dev="sentence,kind\nbalen,a\n",
        more=("--text", "text", "--label", "label"),
    ),
    "a row that is too short": Case(
        "train.csv, line 3: expected 2 columns or more, found 1",
        ending="csv",
        train="text,label\nbalen,a\ndum\n",
        dev="text,label\nbalen,a\n",
    ),
    "a column of no such name": Case("no column 'lable'", more=("--text", "text", "--label", "lable")),
    "a CoNLL line without its tag": Case(
        "train.conll, line 2: expected 2 columns, found 1: 'dum'",
        task="tagging",
        ending="conll",
        train="balen B-X\ndum\nfal O\n",
        dev="balen B-X\n",
    ),
    "a tag that training never showed": Case(
        "dev.conll, line 1: the tag 'B-Y' does not occur",
        task="tagging",
        ending="conll",
        train="balen B-X\ndum O\n",
        dev="balen B-Y\n",
    ),
    "tags that are fewer than the words": Case(
        "train.jsonl, line 1: expected a tag for each word, found 2 words and 1 tags",
        task="tagging",
        train=[{"words": ["balen", "dum"], "tags": ["O"]}],
    ),
}  # fmt: skip
SETTINGS = {
    "an unknown task": Case(
        "There is no task 'clasification'. Did you mean 'classification'?", "clasification"
    ),
    "a misspelt key": Case("unknown key 'epoch'. Did you mean 'epochs'?", more=("epoch=3",)),
    "a misspelt key of a section": Case(
        "unknown key 'optimizer.learning_rat'. Did you mean 'optimizer.learning_rate'?",
        more=("optimizer.learning_rat=1e-4",),
    ),
    "a misspelt key of the task": Case(
        "unknown key 'class_weight'. Did you mean 'class_weights'?", more=("class_weight=auto",)
    ),
    "no key at all": Case("Expected dotted.key=value, found 'epochs'", more=("epochs",)),
    "a value below its bound": Case("epochs: ", more=("epochs=0",)),
    "a value of the wrong kind": Case("batch_size: ", more=("batch_size=many",)),
    "a class that weighs nothing": Case(
        "class_weights.good: expected greater than 0, found 0", more=("class_weights={good=0, bad=1}",)
    ),
    "a stride as long as its window": Case("stride", more=("max_length=16", "stride=14")),
    "windows longer than the model reads": Case("has positions for 32 tokens", more=("max_length=64",)),
    "more frozen layers than there are": Case("the model has 2", more=("freeze_layers=3",)),
    "more new layers than there are": Case("the model has 2", more=("reinit_layers=3",)),
    "LoRA and frozen layers": Case("lora.rank", more=("lora.rank=4", "freeze_layers=1")),
    "a length in steps": Case("given by epochs", more=("steps=10",)),
    "a file that isn't there": Case("nowhere.jsonl does not exist", more=("--train", "nowhere.jsonl")),
    "a model that isn't there": Case("nowhere", more=("--model", "./nowhere")),
    "a format that isn't one": Case("There is no format 'xml'", more=("--format", "xml")),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("refused") / "encoder", WORDS)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine whose speed needs no measuring; the command line's handler of SIGTERM taken back."""
    monkeypatch.setattr(machine, "matmul_flops", lambda *_, **__: 1e11)
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def finetune(case: Case, model: Path, folder: Path, command: str = "finetune") -> int:
    """The command line's exit status; an option given twice counts as the later one says."""
    options = {"--model": str(model), "--out": str(folder / "run")}
    for name, rows in (("train", case.train), ("dev", case.dev)):
        path = folder / f"{name}.{case.ending}"
        path.write_text(rows if isinstance(rows, str) else "".join(json.dumps(row) + "\n" for row in rows))
        options[f"--{name}"] = str(path)
    words = list(case.more)
    settings = ["max_length=16"]  # the model reads 32
    if words and words[0].startswith("--"):
        options |= dict(zip(words[::2], words[1::2], strict=True))
    else:
        settings += words
    named = [word for pair in options.items() for word in pair]
    return main([command, case.task, *settings, *named])


def assert_refused(case: Case, status: int, folder: Path, complaint: str) -> None:
    assert status == 2, complaint
    assert case.sentence in complaint
    assert complaint.startswith("Error: ") and complaint.count("\n") == 1, complaint
    assert sorted(path.name for path in folder.iterdir()) == [f"dev.{case.ending}", f"train.{case.ending}"]


@pytest.mark.parametrize("name", ROWS)
def test_rows(name: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert_refused(ROWS[name], finetune(ROWS[name], model, tmp_path), tmp_path, capsys.readouterr().err)


@pytest.mark.parametrize("name", SETTINGS)
def test_settings(name: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status = finetune(SETTINGS[name], model, tmp_path)
    assert_refused(SETTINGS[name], status, tmp_path, capsys.readouterr().err)


def test_a_search_with_a_misspelt_key(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("optuna")
    case = Case("unknown key 'trails'. Did you mean 'trials'?", more=("trails=5",))
    status = finetune(case, model, tmp_path, "tune")
    assert_refused(case, status, tmp_path, capsys.readouterr().err)


def test_an_out_that_is_a_file(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run").write_text("mine")
    assert finetune(Case(""), model, tmp_path) == 2
    assert "run is a file" in capsys.readouterr().err
    assert (tmp_path / "run").read_text() == "mine"


def test_an_out_that_holds_a_run(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.toml").write_text("mine")
    assert finetune(Case(""), model, tmp_path) == 2
    assert "already holds a run. Go on with it by --resume" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["recipe.toml"]


def test_some_empty_texts_and_texts_longer_than_any_window_are_trained_on(
    model: Path, tmp_path: Path
) -> None:
    """An empty text that is kept is its special tokens; a long one is cut, or read as windows."""
    rows = [*GOOD, {"text": "", "label": "b"}, {"text": "balen dum " * 300, "label": "a"}]
    for number, stride in enumerate(((), ("stride=4",))):
        more = ("max_length=16", "missing=keep", *stride)
        folder = tmp_path / str(number)
        folder.mkdir()
        assert finetune(Case("", train=rows, dev=rows, more=("epochs=1", *more)), model, folder) == 0
        predictions = (folder / "run" / "predictions" / "dev.jsonl").read_text().splitlines()
        assert len(predictions) == len(rows)


def test_files_and_folders_are_trained_on_and_found_again(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--train` is repeated; `evaluate` knows what was learned from, and the report's command names it."""
    rows = [
        {"message": f"{'balen' if n % 2 else 'dum'} {WORDS[n % len(WORDS)]}", "intent": "ab"[n % 2]}
        for n in range(60)
    ]
    (tmp_path / "more").mkdir()
    parts = {"one.jsonl": rows[:20], "more/a.jsonl": rows[20:40], "more/b.jsonl": rows[40:]}
    for name, part in parts.items():
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in part))
    train = ["--train", str(tmp_path / "one.jsonl"), "--train", str(tmp_path / "more")]
    options = [
        "--model",
        str(model),
        "--out",
        str(tmp_path / "run"),
        "max_length=16",
        "method=linear",
        "minutes=0",
    ]
    assert main(["finetune", "classification", *train, *options]) == 0
    report = (tmp_path / "run" / "report.html").read_text()
    assert f"--train {tmp_path}/one.jsonl --train {tmp_path}/more" in report
    capsys.readouterr()
    gap = [*rows[:10], {"message": None, "intent": "a"}]
    (tmp_path / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in gap))
    evaluate = ["evaluate", str(tmp_path / "run" / "model"), str(tmp_path / "test.jsonl")]
    assert main(evaluate) == 2
    assert "of 11 rows 1 has no text (the first: line 11)" in capsys.readouterr().err
    assert main([*evaluate, "--missing", "drop"]) == 0
    said = capsys.readouterr().out
    assert "no baselines" not in said
    assert "they were left out" in " ".join(said.split())
    (tmp_path / "more" / "b.jsonl").write_text("")
    assert main([*evaluate, "--missing", "drop"]) == 0
    assert "is not there, or was changed" in " ".join(capsys.readouterr().out.split())
    (tmp_path / "more" / "b.jsonl").unlink()
    named = [*evaluate, "--missing", "drop", *train]
    assert main([*named, "--train", str(tmp_path / "one.jsonl")]) == 2
    assert f"{tmp_path}/one.jsonl is given twice" in capsys.readouterr().err
    assert main(named) == 0  # and the baselines learn from what is named
    assert "10 of the 10 test.jsonl texts occur in" in (said := " ".join(capsys.readouterr().out.split()))
    assert f"{tmp_path}/one.jsonl and 1 more too" in said


def test_a_column_that_nobody_knows_is_refused_before_a_model_is_looked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case = Case(
        "no column has a name that says it holds the text. There are: foo, bar",
        train=[{"foo": "a", "bar": "b"}],
    )
    assert_refused(case, finetune(case, tmp_path / "nowhere", tmp_path), tmp_path, capsys.readouterr().err)
