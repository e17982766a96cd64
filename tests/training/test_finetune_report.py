"""The report of a fine-tuning run: figures beside what they have to beat, errors, how sure the model is."""

import json
import math
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertsmith.metrics.calibration import Confidence
from bertsmith.metrics.scores import ClassScore
from bertsmith.tasks.classification import Classification
from bertsmith.tasks.evaluating.error_analysis import ConfusionMatrix, ErrorAnalysis
from bertsmith.tasks.evaluating.evaluation import Evaluation, score_of, standard_error
from bertsmith.tasks.examples.text_task import TextExample
from bertsmith.tasks.finetuning import EncodedExamples
from bertsmith.tasks.multi_label import MultiLabel
from bertsmith.tasks.question_answering import QuestionAnswering
from bertsmith.tasks.regression import Regression
from bertsmith.tasks.similarity import Similarity
from bertsmith.tasks.tagging import TaggedExample, Tagging
from bertsmith.tasks.task import Prediction, Task
from bertsmith.text.labelled.squad import SquadQuestion
from bertsmith.training.finetune_recipe import FinetuneRecipe, make_finetune_recipe
from bertsmith.training.finetuning.choosing import measure_gain
from bertsmith.training.finetuning.figures import (
    NO_BREAK,
    baselines_to_beat,
    class_table,
    confusion_table,
    coverage_table,
    format_figure,
    metric_name,
    score_by_length,
    worst_errors,
)
from bertsmith.training.finetuning.report import (
    format_command,
    format_override,
    render_finetune,
    risk_points,
    write_finetune_report,
)
from bertsmith.training.finetuning.restarts import Restart
from bertsmith.training.finetuning.results import Results
from bertsmith.training.settings import override

ATTACK = "</style><script>alert(1)</script><img src=x onerror=alert(1)>"
SIGNS = ("bad", "fair", ATTACK)


def texts(count: int, seed: int = 0) -> list[str]:
    generator = np.random.default_rng(seed)
    return [f"text {number} " + "word " * int(generator.integers(1, 40)) for number in range(count)]


def evaluation(
    task: Task[Any], predictions: list[Prediction], examples: list[Any], **baselines: float
) -> Evaluation:
    found = {name: {task.main_metric: score} for name, score in baselines.items()}
    return Evaluation(task.metrics(predictions, examples), found, predictions, EncodedExamples(examples, []))


def classified(count: int = 60, seed: int = 0, confident: bool = True) -> tuple[Classification, Evaluation]:
    """Three classes, four of five answers right, the text of an attack in each."""
    task = Classification(Classification.Settings(), SIGNS)
    if confident:
        task.confidence = Confidence(
            temperature=1.6,
            ece_before=0.11,
            ece_after=0.03,
            threshold=0.5,
            coverage=0.9,
            risk=0.1,
            examples=count,
        )
    generator = np.random.default_rng(seed)
    examples, predictions = [], []
    for number, text in enumerate(texts(count, seed)):
        chances = generator.dirichlet(np.ones(3) * 0.6)
        given = int(chances.argmax())
        gold = given if generator.random() < 0.8 else (given + 1) % 3
        examples.append(TextExample(text + ATTACK, None, SIGNS[gold], f"dev.tsv, line {number + 2}"))
        predictions.append(task._prediction(chances))
    return task, evaluation(task, predictions, examples, majority=0.4, words=0.6)


def tagged() -> tuple[Task[Any], Evaluation]:
    task = Tagging(Tagging.Settings(), ("O", "B-LOC", "I-LOC", "B-PER", "I-PER"))
    generator = np.random.default_rng(1)
    examples, predictions = [], []
    for number in range(40):
        words = tuple(texts(1, number)[0].split())
        tags = ["B-PER", "I-PER", *["O"] * (len(words) - 3), "B-LOC"]
        given = [
            tag if generator.random() < 0.9 else str(generator.choice(["O", "B-LOC", "B-PER"]))
            for tag in tags
        ]
        sure = generator.uniform(0.4, 1, len(words)).round(6).tolist()
        examples.append(TaggedExample(words, tuple(tags), f"dev.conll, line {number}"))
        predictions.append({"words": list(words), "tags": given, "confidence": sure, "entities": []})
    return task, evaluation(task, predictions, examples, majority=0.0, words=0.5)


def labelled() -> tuple[Task[Any], Evaluation]:
    task = MultiLabel(MultiLabel.Settings(), ("grain", "trade", "wheat"))
    chances = np.random.default_rng(2).random((40, 3)).round(6)
    predictions = [
        {
            "labels": [label for label, chance in zip(task.labels, row, strict=True) if chance >= 0.5],
            "probabilities": dict(zip(task.labels, row.tolist(), strict=True)),
        }
        for row in chances
    ]
    gold = [("grain", "wheat"), ("trade",), ()]
    examples = [TextExample(text, None, gold[n % 3], f"line {n}") for n, text in enumerate(texts(40))]
    return task, evaluation(task, predictions, examples, majority=0.1, words=0.2)


def scored(kind: type[Task[Any]]) -> tuple[Task[Any], Evaluation]:
    task = kind(kind.Settings())
    generator = np.random.default_rng(3)
    gold = generator.uniform(0, 5, 200)
    given = gold + generator.normal(0, 1, 200)
    examples = [TextExample(t, "other", float(g), "line 1") for t, g in zip(texts(200), gold, strict=True)]
    predictions = [{"score": float(p), "similarity": float(p) / 5} for p in given]
    return task, evaluation(task, predictions, examples, mean=0.0, words=0.3)


def answered() -> tuple[Task[Any], Evaluation]:
    task = QuestionAnswering(QuestionAnswering.Settings())
    examples = [
        SquadQuestion(str(n), "who slept?", "a dog slept", (("a dog", 0),), where=f"question {n}")
        for n in range(9)
    ]
    examples.append(SquadQuestion("9", "who sang?", "a dog slept", (), impossible=True, where="question 9"))
    given = ["dog", "dog", "dog slept", "slept", "a dog", "", "dog", "dog", "dog", ""]
    predictions = [
        {"answer": answer, "confidence": 0.5 + n / 20 if answer else None, "null_odds": 0.0}
        for n, answer in enumerate(given)
    ]
    return task, evaluation(task, predictions, examples, nothing=0.1, words=0.3)


@pytest.fixture
def run(tmp_path: Path) -> FinetuneRecipe:
    for name in ("train.tsv", "dev.tsv"):
        (tmp_path / name).write_text(name)
    return make_finetune_recipe(
        {
            "task": "classification",
            "model": "minilm",
            "train": str(tmp_path / "train.tsv"),
            "dev": str(tmp_path / "dev.tsv"),
            "out": str(tmp_path / "run"),
        },
        [
            "optimizer.learning_rate=3e-5",
            "restarts=3",
            "text=my column",
            'lora.targets=["query"]',
            "stride=16",
        ],
    ).complete(384, 12, 100)


def results_of(task: Task[Any], dev: Evaluation, restarts: int = 1, **evaluations: Evaluation) -> Results:
    score = dev.model[task.main_metric]
    made = tuple(Restart(number, score - 0.01 * number, 40, 60, 75.0) for number in range(restarts))
    figures = getattr(task, "confidence", None)
    return Results(
        task,
        made,
        0,
        {"dev": dev, **evaluations},
        figures.figures() if figures else {},
        ("rows are shared",),
        500,
    )


def write_logs(out: Path, restarts: int, metric: str = "accuracy") -> None:
    for number in range(1, restarts + 1):
        folder = out / "restarts" / str(number)
        folder.mkdir(parents=True)
        records = [{"kind": "start", "step": 0, "machine": {"device": "cpu", "precision": "float32"}}]
        records += [{"kind": "step", "step": n, "loss": 1 / n + number / 10} for n in range(1, 61)]
        records += [{"kind": "evaluation", "step": n, metric: n / 100} for n in (20, 40, 60)]
        records += [{"kind": "warning", "step": 7, "message": f"gradient <b>jumped</b> in {number}"}]
        (folder / "log.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))


def headings(html: str) -> list[str]:
    return re.findall(r"<h2>(.*?)</h2>", html)


def captions(html: str) -> list[str]:
    return re.findall(r"<figcaption>(.*?)</figcaption>", html)


def test_a_classifiers_page_has_every_section_and_escapes_all_that_is_data(
    tmp_path: Path, run: FinetuneRecipe
) -> None:
    task, dev = classified()
    write_logs(Path(run.out), 3)
    path = write_finetune_report(Path(run.out), run, results_of(task, dev, 3))
    html = path.read_text(encoding="utf-8")
    assert headings(html) == [
        "Warnings",
        "The model and what it has to beat",
        "Restarts",
        "Learning curves",
        "Where it errs on dev",
        "How sure it is on dev",
        "Worst errors on dev",
        "Settings",
        "Do it again",
    ]
    assert path == Path(run.out) / "report.html"
    assert "<script" not in html and "<img" not in html
    assert "gradient &lt;b&gt;jumped&lt;/b&gt; in 2" in html
    assert "rows are shared" in html
    assert html.count("<svg") == 6  # restarts, loss, accuracy, length, reliability, risk
    assert not re.findall(r"""(?:src|href)\s*=\s*["'](?!#)""", html)
    assert render_finetune(Path(run.out), run, results_of(task, dev, 3)) == html


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (tagged, {"Where it errs on dev", "How sure it is on dev", "Worst errors on dev"}),
        (labelled, {"Where it errs on dev", "How sure it is on dev", "Worst errors on dev"}),
        (lambda: scored(Regression), {"Where it errs on dev", "Worst errors on dev"}),
        (lambda: scored(Similarity), {"Where it errs on dev", "Worst errors on dev"}),
        (answered, {"How sure it is on dev", "Worst errors on dev"}),
    ],
    ids=["tagging", "multi-label", "regression", "similarity", "question-answering"],
)
def test_every_task_shows_what_makes_sense_for_it(made: Any, expected: set[str], run: FinetuneRecipe) -> None:
    task, dev = made()
    html = render_finetune(Path(run.out), run, results_of(task, dev))
    parts = {"Where it errs on dev", "How sure it is on dev", "Worst errors on dev"}
    assert parts & set(headings(html)) == expected
    assert ("Right and predicted scores" in captions(html)) == task.name.startswith(("regr", "simil"))
    assert ("Restarts" in headings(html)) is False


def test_a_task_that_tells_no_details_still_has_a_page(run: FinetuneRecipe) -> None:
    class Silent(Classification):
        def error_analysis(self, predictions: Any, examples: Any) -> ErrorAnalysis:
            return ErrorAnalysis()

    _, dev = classified()
    html = render_finetune(Path(run.out), run, results_of(Silent(Silent.Settings(), SIGNS), dev))
    assert "Worst errors on dev" not in headings(html)
    assert captions(html)[:2] == ["dev: 60 rows", "accuracy by length"]


def of_page(text: str) -> str:
    """Figures never break across lines."""
    return text.replace(" ", NO_BREAK)


def test_the_main_figures_stand_on_top_beside_what_they_have_to_beat(run: FinetuneRecipe) -> None:
    task, dev = classified(60)
    _, test = classified(40, seed=5)
    html = render_finetune(Path(run.out), run, results_of(task, dev, 2, test=test))
    tiles = re.findall(r'<div class="card tile"><b>(.*?)</b><span>(.*?)</span>', html)
    accuracy = dev.model["accuracy"]
    error = math.sqrt(accuracy * (1 - accuracy) / 59)
    assert tiles[0] == (
        of_page(f"{100 * accuracy:.1f} ± {100 * error:.1f} %"),
        "accuracy on dev, ± standard error",
    )
    assert tiles[1][1] == "accuracy on test, ± standard error"
    assert tiles[2:4] == [
        (of_page("40.0 %"), "always the most frequent label, on dev"),
        (of_page("60.0 %"), "words, on dev"),
    ]
    assert tiles[4][1] == "mean of 2 restarts on dev, ± spread"
    assert tiles[4][0] == of_page(f"{100 * (accuracy - 0.005):.1f} ± 0.7 %")
    assert tiles[5:] == [
        ("3.0 %", "calibration error on dev"),
        ("500", "training rows"),
        ("2:30 min", "of training"),
    ]


def test_the_best_baseline_is_the_best_of_those_that_look_at_the_text() -> None:
    task, dev = classified()
    dev.baselines.update({"letters": {"accuracy": 0.7}, "chance": {"accuracy": 0.2}})
    assert baselines_to_beat(results_of(task, dev)) == {"majority": 0.4, "letters": 0.7}
    dev.baselines.clear()
    assert baselines_to_beat(results_of(task, dev)) == {}


def test_a_baseline_without_a_number_hides_no_better_one() -> None:
    task, dev = classified()
    scores = {"majority": 0.4, "constant": math.nan, "letters": 0.7}
    dev.baselines.clear()
    dev.baselines.update({name: {"accuracy": score} for name, score in scores.items()})
    assert baselines_to_beat(results_of(task, dev)) == {"majority": 0.4, "letters": 0.7}


def test_the_standard_error_of_a_mean_agrees_with_the_bootstrap() -> None:
    task, dev = classified(300)
    of_mean = standard_error(task, dev, task.error_analysis(dev.predictions, dev.split.examples).answers)
    by_bootstrap = standard_error(task, dev, ())
    assert of_mean is not None
    assert by_bootstrap == pytest.approx(of_mean, rel=0.25)


def test_the_standard_error_of_a_correlation_agrees_with_its_theory() -> None:
    task, dev = scored(Regression)
    rho = dev.model["spearman"]
    theory = (1 - rho**2) * math.sqrt(1 + rho**2 / 2) / math.sqrt(200 - 3)  # Bonett and Wright 2000
    found = standard_error(task, dev, task.error_analysis(dev.predictions, dev.split.examples).answers)
    assert found == pytest.approx(theory, rel=0.4)


@pytest.mark.parametrize(
    ("made", "tolerance"), [(lambda: classified(40), 1e-9), (labelled, 0.3)], ids=["accuracy", "micro_f1"]
)
def test_rows_of_one_source_count_once_in_standard_errors(made: Any, tolerance: float) -> None:
    """Three copies of each row say no more than it alone does."""
    task, once = made()
    answers = task.error_analysis(once.predictions, once.split.examples).answers
    of_rows = standard_error(task, once, answers)
    by_chance = [once.predictions[row] for row in np.random.default_rng(4).permutation(once.rows)]
    _, _, gain_of_rows = measure_gain(task, once.predictions, by_chance, once.split.examples)

    copies = [replace(each, group=each.text) for each in once.split.examples for _ in range(3)]
    said, others = ([each for each in some for _ in range(3)] for some in (once.predictions, by_chance))
    grouped = type(task)(task.settings.model_copy(update={"group": "document"}), task.labels)
    repeated = evaluation(grouped, said, copies)
    assert standard_error(grouped, repeated, answers * 3) == pytest.approx(of_rows, rel=tolerance)
    assert measure_gain(grouped, said, others, copies)[2] == pytest.approx(gain_of_rows)


def test_the_standard_error_is_kept_among_the_results() -> None:
    task, dev = classified(300)
    wanted = standard_error(task, dev, task.error_analysis(dev.predictions, dev.split.examples).answers)
    assert wanted is not None and wanted > 0
    assert results_of(task, dev).record()["evaluations"]["dev"]["standard_error"] == wanted


def test_one_example_has_no_standard_error() -> None:
    task, dev = classified(1)
    assert standard_error(task, dev, ()) is None


def test_rows_that_are_all_wrong_have_no_standard_error_rather_than_none_at_all() -> None:
    """Four wrong answers out of four don't say that the accuracy is 0, give or take nothing."""
    task, dev = classified(4)
    examples = list(dev.split.examples)
    other = [SIGNS[(SIGNS.index(example.label) + 1) % 3] for example in examples]
    wrong = [{**given, "label": label} for given, label in zip(dev.predictions, other, strict=True)]
    all_wrong = evaluation(task, wrong, examples, majority=0.4)
    assert all_wrong.model["accuracy"] == 0
    for answers in (task.error_analysis(wrong, examples).answers, ()):
        assert standard_error(task, all_wrong, answers) is None


def test_a_score_without_a_standard_error_claims_none(run: FinetuneRecipe) -> None:
    task, dev = classified(60)
    results = results_of(task, dev)
    results.__dict__["standard_errors"] = {"dev": None}  # all rows right: their spread says nothing
    html = render_finetune(Path(run.out), run, results)
    assert "<span>accuracy on dev</span>" in html


def test_classes_without_a_row_are_counted_and_not_listed() -> None:
    found = [ClassScore(f"c{n}", 0.0, 0.0, 0.0, 0) for n in range(30)]
    found += [ClassScore("rare", 0.5, 0.5, 0.5, 2), ClassScore("missed", 0.0, 0.0, 0.0, 1)]
    table = class_table(found)
    assert [row[0] for row in table.rows] == ["missed", "rare"]
    assert (table.more, table.title) == (0, "Left out: 30 labels without a row")
    assert class_table(found[30:]).title == ""


def test_the_worst_errors_are_the_surest_wrong_answers() -> None:
    task, dev = classified(200)
    found = worst_errors(task, dev, task.error_analysis(dev.predictions, dev.split.examples))
    wrong = [
        float(prediction["confidence"])
        for prediction, example in zip(dev.predictions, dev.split.examples, strict=True)
        if prediction["label"] != example.label
    ]
    assert [error.answer.confidence for error in found] == sorted(wrong, reverse=True)[:20]
    assert all(len(error.text) <= 240 for error in found)
    assert all(error.answer.gold != error.answer.given for error in found)
    assert found[0].where.startswith("dev.tsv, line ")


def test_the_worst_answers_to_questions_come_first() -> None:
    task, dev = answered()
    found = worst_errors(task, dev, task.error_analysis(dev.predictions, dev.split.examples))
    assert [(error.answer.given, round(error.answer.score, 2)) for error in found] == [
        ("slept", 0),
        ("no answer", 0),
        ("dog slept", 0.67),
    ]
    assert found[0].text == "who slept? ▸ a dog slept"


def test_of_many_classes_those_confused_most_are_shown() -> None:
    counts = np.eye(30, dtype=np.int64) * 8
    counts[25, 28] = 2
    table = confusion_table(ConfusionMatrix(tuple(f"c{n}" for n in range(30)), counts))
    assert len(table.labels) == 20
    assert table.more == 10
    assert table.labels[-2:] == ["c25", "c28"]
    row = dict(table.rows)["c25"]
    assert [(cell.count, cell.right) for cell in row[-2:]] == [(8, True), (2, False)]
    assert row[-1].tint == pytest.approx(math.sqrt(0.2))


def test_classes_that_never_occur_leave_an_empty_row() -> None:
    table = confusion_table(ConfusionMatrix(("a", "b"), np.array([[3, 1], [0, 0]])))
    assert [[cell.tint for cell in cells] for _, cells in table.rows][1] == [0, 0]


def test_risk_is_that_of_answering_from_each_confidence_on() -> None:
    generator = np.random.default_rng(4)
    confidence = generator.integers(0, 20, 100) / 20
    error = generator.random(100)
    expected = []
    for threshold in sorted(set(confidence.tolist()), reverse=True):
        kept = confidence >= threshold
        expected.append((kept.mean(), error[kept].mean()))
    np.testing.assert_allclose(risk_points(confidence, error), expected)
    assert coverage_table(confidence, error).rows[0][:2] == ["100.0 %", f"{100 * error.mean():.1f} %"]


def test_each_length_has_the_score_of_its_own_texts() -> None:
    task, dev = classified(100)
    lengths = np.array([len(example.text.split()) for example in dev.split.examples])
    found = score_by_length(task, dev)
    assert sum(each.count for each in found) == 100
    for each in found:
        rows = np.flatnonzero((lengths >= each.shortest) & (lengths <= each.longest))
        assert each.score == score_of(task, dev, rows)


def test_a_chinese_text_is_as_long_as_its_characters() -> None:
    """All of them were one word long."""
    task, dev = classified(100)
    english = score_by_length(task, dev)
    for example in dev.split.examples:
        object.__setattr__(example, "text", "天" * len(example.text.split()))
    assert score_by_length(task, dev) == english
    assert len(english) > 1


@pytest.mark.parametrize(
    ("name", "value", "error", "expected"),
    [
        ("accuracy", 0.9132, 0.0095, "91.3 ± 0.9 %"),
        ("micro_f1", 0.5, None, "50.0 %"),
        ("spearman", 0.8765, 0.01, "0.876 ± 0.010"),
        ("mean_absolute_error", 12.3456, None, "12.346"),
    ],
)
def test_figures_are_written_as_the_field_writes_them(
    name: str, value: float, error: float | None, expected: str
) -> None:
    assert format_figure(name, value, error) == of_page(expected)


def test_metrics_have_names_that_people_read() -> None:
    assert [metric_name(name) for name in ("macro_f1", "matthews", "exact_match")] == [
        "macro F1",
        "Matthews correlation",
        "exact match",
    ]


def test_the_command_gives_the_same_recipe_again(run: FinetuneRecipe) -> None:
    program, verb, task, *words = shlex.split(format_command(run))
    assert (program, verb, task) == ("bertsmith", "finetune", "classification")
    values: dict[str, Any] = {"task": task}
    while words and words[0].startswith("--"):
        values[words[0][2:]] = words[1]
        words = words[2:]
    assert values.pop("out") == "runs/again"
    again = make_finetune_recipe(values | {"out": run.out}, words)
    assert again == run
    assert again.complete(64, 2, 100) == run  # what would be chosen otherwise is given


def test_the_command_keeps_weights_of_classes_with_dots_in_their_names(run: FinetuneRecipe) -> None:
    weights = {"v. 1.0": 2.0, 'said "no"': 0.5}
    weighted = run.model_copy(update={"settings": run.settings | {"class_weights": weights}})
    words = [word for word in shlex.split(format_command(weighted)) if word.startswith("class_weights")]
    values = {"task": run.task, "model": run.model, "train": run.train, "out": run.out}
    assert make_finetune_recipe(values, words).settings["class_weights"] == weights


@pytest.mark.parametrize("text", ["2024", "1e5", "true", "[a]", "a b", "inf", "07", "'q'", "2024-11-28"])
def test_a_text_comes_back_from_the_command_as_the_same_text(text: str) -> None:
    read: dict[str, Any] = {}
    override(read, f"text={format_override(text)}")
    assert read == {"text": text}


def test_settings_that_were_changed_are_marked_with_their_defaults(run: FinetuneRecipe) -> None:
    task, dev = classified()
    html = render_finetune(Path(run.out), run, results_of(task, dev))
    changed = re.findall(r'class="changed">\s*<dt>(.*?)</dt>\s*<dd>(.*?)<small>default (.*?)</small>', html)
    assert ("optimizer.learning_rate", "3e-05", "5e-05") in changed
    assert ("restarts", "3", "1") in changed
    assert not any(name in ("steps", "evaluation.every", "seed") for name, _, _ in changed)


def test_the_data_is_named_by_its_hash(run: FinetuneRecipe) -> None:
    import hashlib

    task, dev = classified()
    html = render_finetune(Path(run.out), run, results_of(task, dev))
    assert hashlib.sha256(b"train.tsv").hexdigest() in html
    assert hashlib.sha256(b"dev.tsv").hexdigest() in html
