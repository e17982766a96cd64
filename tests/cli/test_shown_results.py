"""What `finetune` and `evaluate` print: texts of the user's data are shown, never obeyed."""

import pytest

from bertsmith.cli.results import show_results
from bertsmith.tasks.classification import Classification
from bertsmith.tasks.evaluating.evaluation import Evaluation
from bertsmith.tasks.examples.text_task import TextExample
from bertsmith.tasks.finetuning import EncodedExamples
from bertsmith.training.finetuning.results import Restart, Results


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
