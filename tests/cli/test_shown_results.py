"""What `finetune` and `evaluate` print: texts of the user's data are shown, never obeyed."""

import io
import math
import re
from collections import Counter

import numpy as np
import pytest
from sklearn.metrics import classification_report

from bertsmith.cli import results, screen
from bertsmith.cli.results import show_classes, show_evaluation, show_results
from bertsmith.tasks.classification import Classification
from bertsmith.tasks.evaluating.error_analysis import ErrorAnalysis
from bertsmith.tasks.evaluating.evaluation import Evaluation
from bertsmith.tasks.examples.text_task import TextExample
from bertsmith.tasks.finetuning import EncodedExamples
from bertsmith.training.finetuning.figures import confusions_table, evaluation_table
from bertsmith.training.finetuning.restarts import Restart
from bertsmith.training.finetuning.results import Results


def test_marks_in_a_text_are_printed_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    task = Classification(Classification.Settings(), ("a", "b"))
    examples = [TextExample("see [/b] here", None, label, "rows") for label in ("a", "b")]
    predictions = [{"label": "a", "confidence": 0.9, "probabilities": {"a": 0.9, "b": 0.1}}] * 2
    dev = Evaluation(task.metrics(predictions, examples), {}, predictions, EncodedExamples(examples, []))
    warnings = ("1 dev text occurs in train: 'see [/b] here'", "and '[red]this[/red]'")
    evaluations = {"dev": dev, "test [/i]": dev}
    show_results(Results(task, (Restart(0, 0.5, 1, 1, 1.0),), 0, evaluations, {}, warnings, 2))
    screen = capsys.readouterr().out
    assert "see [/b] here" in screen
    assert "[red]this[/red]" in screen
    assert "test [/i]: 2 rows" in screen


LABELS = ("card_payment_wrong_exchange_rate", "transfer_not_received_by_recipient", "top_up_failed", "unused")


def evaluated(seed: int = 0) -> tuple[list[str], list[str], Evaluation, ErrorAnalysis]:
    """Sixty rows of three of four classes, some of them taken for another."""
    draw = np.random.default_rng(seed)
    gold = [LABELS[number] for number in draw.integers(0, 3, 60)]
    given = [label if draw.random() < 0.6 else LABELS[draw.integers(0, 4)] for label in gold]
    task = Classification(Classification.Settings(), LABELS)
    examples = [TextExample("a text", None, label, "rows") for label in gold]
    predictions = [
        {"label": label, "confidence": 0.9, "probabilities": dict.fromkeys(LABELS, 0.25)} for label in given
    ]
    baselines = {"frozen encoder + linear model": {"accuracy": 1.0, "macro_f1": 0.5, "matthews": 0.5}}
    split = EncodedExamples(examples, [])
    evaluation = Evaluation(task.metrics(predictions, examples), baselines, predictions, split)
    return gold, given, evaluation, task.error_analysis(predictions, examples)


def test_classes_are_shown_as_scikit_learn_has_them_and_lines_stay_whole_at_80_columns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gold, given, evaluation, analysis = evaluated()
    written = io.StringIO()
    for module in (results, screen):
        monkeypatch.setattr(module, "console", screen.PrintableConsole(file=written, width=80))
    name = "runs/intents/model on /a/long/path/to/a/folder/of/labelled/rows/test.csv"
    show_evaluation(evaluation, name, "accuracy", 0.05)
    show_classes(analysis)
    lines = written.getvalue().splitlines()
    assert f"{name}: {len(gold)} rows, accuracy ± 0.0500" in lines
    assert any("frozen encoder + linear model (best)" in line for line in lines)
    report = classification_report(gold, given, output_dict=True, zero_division=0)
    for label in LABELS[:3]:
        row = next(line for line in lines if line.strip().startswith(label)).split()
        expected = [report[label][name] for name in ("precision", "recall", "f1-score")]
        assert row == [label, *(f"{each:.3f}" for each in expected), str(int(report[label]["support"]))]
    wrong = Counter(pair for pair in zip(gold, given, strict=True) if pair[0] != pair[1])
    order = sorted(wrong, key=lambda pair: (-wrong[pair], *map(LABELS.index, pair)))
    assert analysis.confusion is not None
    assert analysis.confusion.most_frequent() == [(*pair, wrong[pair]) for pair in order]
    assert confusions_table(analysis.confusion).rows == [
        [*pair, str(wrong[pair]), f"{100 * wrong[pair] / gold.count(pair[0]):.1f} %"] for pair in order
    ]


def test_figures_are_never_folded_and_texts_between_words(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.StringIO()
    monkeypatch.setattr(screen, "console", screen.PrintableConsole(file=written, width=50))
    screen.print_table(
        ("system", "accuracy", "time"),
        [("a baseline of words that is very long", "0.9187 ± 0.0123", "1:05:09")],
    )
    said = written.getvalue()
    assert "0.9187 ± 0.0123" in said and "1:05:09" in said
    words = "a baseline of words that is very long system accuracy time"
    assert set(re.findall(r"[a-z]+", said)) == set(re.findall("[a-z]+", words))


@pytest.mark.parametrize(
    ("model", "best"), [(0.7, ["the model"]), (0.6, ["the model", "TF-IDF"]), (0.5, ["TF-IDF"])]
)
def test_the_best_row_of_a_comparison_is_the_one_marked(model: float, best: list[str]) -> None:
    baselines = {
        "majority": {"accuracy": 0.2},
        "TF-IDF": {"accuracy": 0.6},
        "unknown": {"accuracy": math.nan},
    }
    evaluation = Evaluation({"accuracy": model}, baselines, [], EncodedExamples([], []))
    table = evaluation_table("test", evaluation, "accuracy", 0.01)
    assert [row[0] for row in table.rows if "(best)" in row[0]] == [f"{name} (best)" for name in best]


@pytest.mark.parametrize("width", [40, 80, 120])
def test_a_table_that_does_not_fit_loses_no_word(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Names of systems vanished beside many columns of figures."""
    monkeypatch.setattr(screen.console, "_width", width)
    header = ["", "nDCG@10", "95 % interval", "MRR@10", "recall@100", "above BM25", "ms/query"]
    rows = [
        ["BM25", "0.6", "0.5 to 0.7", "0.61", "0.62", "", "1.2"],
        ["dense", *["+0.01 (-0.01 to +0.03)"] * 6],
    ]
    screen.print_table(header, rows)
    shown = capsys.readouterr().out
    assert sorted(shown.replace("─", "").split()) == sorted(" ".join(map(" ".join, [header, *rows])).split())
