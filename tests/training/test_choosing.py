"""Few rows, no dev: methods are compared by cross-validation, and the final model learns from all rows."""

import io
import json
import re
import shlex
import shutil
import time
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from finetune_toys import SHORT_RUN, SMALL_RUN, run, tiny_encoder, write_rows
from rich.console import Console
from safetensors.torch import load_file

from bertsmith.errors import InputError, RecipeError, TrainingStopped
from bertsmith.inference.checking.check import check_model
from bertsmith.inference.predictor import Predictor
from bertsmith.inference.provenance import TrainedOn
from bertsmith.machine import Hardware
from bertsmith.model.checkpoint import read_checkpoint
from bertsmith.model.config import make_config
from bertsmith.reporting import formatting
from bertsmith.tasks.examples.encoding import EncodedExample
from bertsmith.tasks.examples.held_out import CROSS_VALIDATION, folds_of
from bertsmith.tasks.finetuning import EncodedExamples, FinetuningObjective, encode_examples
from bertsmith.tasks.heads.classifier_head import PooledHead
from bertsmith.tasks.heads.linear_start import FROZEN, LinearProbe, TextFeatures
from bertsmith.tasks.registry import find_task
from bertsmith.tasks.tagging import TaggingHead
from bertsmith.training import finetune_recipe
from bertsmith.training.finetune_recipe import FLOP_A_MINUTE, FinetuneRecipe, make_finetune_recipe
from bertsmith.training.finetuning import adaptation, choosing, finetune, finetune_session, restarts
from bertsmith.training.finetuning.choosing import (
    MethodChoice,
    MethodScore,
    MethodWork,
    describe_score,
    measure_gain,
    race_methods,
    read_choice,
    write_choice,
)
from bertsmith.training.finetuning.effort import count_epoch_work, count_pass_work, count_training_work
from bertsmith.training.finetuning.figures import method_table
from bertsmith.training.finetuning.finetune_session import FinetuneSession
from bertsmith.training.finetuning.labelled_data import LabelledData
from bertsmith.training.finetuning.measuring import measure_learning_curve
from bertsmith.training.finetuning.methods import (
    CLOZE,
    CONTRASTIVE,
    FULL,
    LINEAR,
    LORA,
    NAMES,
    NAMES_TEXTS,
    SELF_TRAINING,
    UNTRAINED,
    UPPER,
    SelfTraining,
    _align_and_sharpen,
    sample_texts,
)
from bertsmith.training.finetuning.report import format_command
from bertsmith.training.finetuning.task_run import BestWeights
from bertsmith.training.loop import Guard
from bertsmith.training.machine import Ranks, make_plain_machine
from bertsmith.training.settings import HardwareSettings

ENOUGH = 1e9

slow = pytest.mark.slow


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_encoder(tmp_path_factory.mktemp("toy") / "encoder")


@pytest.fixture(autouse=True, scope="module")
def _no_peak() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bertsmith.training.machine.matmul_flops", lambda *given, **named: 1e9)
        yield


@pytest.fixture(autouse=True)
def _no_report(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its pictures take longer than a run here."""
    if "all_judge" not in request.node.name:
        monkeypatch.setattr(finetune, "write_finetune_report", lambda *given: None)


def few_rows(
    encoder: Path,
    folder: Path,
    *overrides: str,
    task: str = "classification",
    usual: Sequence[str] = SHORT_RUN,
    **files: Any,
) -> Any:
    """Over 40 rows without a dev."""
    folder.mkdir(parents=True, exist_ok=True)
    train = files.pop("train", None) or write_rows(folder / "train.jsonl", task, 40)
    places = {"model": str(encoder), "train": str(train), "out": str(folder / "run")}
    return finetune.finetune(task, *usual, *overrides, **(places | files))


def results_of(result: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((result.model.parent / "results.json").read_text())
    return found


# -- choosing alone ------------------------------------------------------------------------------------------


def examples(tmp_path: Path, count: int) -> tuple[Any, EncodedExamples]:
    kind = find_task("classification")
    task = kind(kind.Settings())
    found = task.read(write_rows(tmp_path / "rows.jsonl", "classification", count))
    task.fit(found)
    return task, EncodedExamples(found, found)  # type: ignore[arg-type]


def choose_by(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    right: dict[str, float],
    budget: float = ENOUGH,
    look: float | None = None,
    diverging: tuple[str, int] | None = None,
) -> tuple[MethodChoice, list[tuple[str, int]], np.ndarray]:
    """Methods that are right on the first so many of a fold's rows; what each was trained on, by size. One
    may be `diverging` in a fold of its own count.
    """
    task, train = examples(tmp_path, 40)
    folds = folds_of(task, train.examples, 5)
    trained: list[tuple[str, int]] = []

    def train_part(method: str, rows: EncodedExamples) -> Any:
        trained.append((method, len(rows)))
        if diverging == (method, [each for each, _ in trained].count(method)):
            raise TrainingStopped("Step 7: the loss is nan. Lower the learning rate.")
        return method

    def outputs_of(method: Any, encoded: list[Any]) -> list[Any]:
        found = []
        for place, example in enumerate(encoded):
            target = task.target(example.label)
            answer = target if place < right[method] * len(encoded) else 1 - target
            found.append(np.eye(2, dtype=np.float32)[answer])
        return found

    monkeypatch.setattr(choosing, "outputs_of", outputs_of)
    work = MethodWork(dict.fromkeys(right, [1.0] * 5), dict.fromkeys(right, 1.0), budget, look or budget)
    return race_methods(task, work, train, folds, train_part), trained, folds


def test_the_best_on_rows_it_has_not_seen_is_chosen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    choice, trained, folds = choose_by(monkeypatch, tmp_path, {"a": 0.5, "b": 0.9, "c": 0.7})
    assert choice.method == "b"
    assert len(trained) == 15
    sizes = [40 - int((folds == fold).sum()) for fold in range(5)]
    assert [size for method, size in trained if method == "a"] == sizes
    assert choice.rows.tolist() == list(range(40))
    first, second, third = choice.tried
    assert first.gain is None
    assert second.gain == pytest.approx(second.score - first.score)  # type: ignore[operator]
    assert second.error is not None and second.error > 0
    assert third.rows == 40
    assert choice.simplest_score() == pytest.approx(first.score)


def test_the_simplest_stays_where_nothing_gains(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert choose_by(monkeypatch, tmp_path, {"a": 0.8, "b": 0.8, "c": 0.3})[0].method == "a"


def test_on_few_rows_what_is_usual_decides_and_on_many_what_is_measured() -> None:
    """One row more or less of a few says little; the simplest has a gain of 0 by definition."""

    def expected(gain: float, error: float) -> float:
        return choosing.estimate_gain(MethodScore("full", 0.7, gain, error, 20))

    assert expected(0.0, 0.2) == pytest.approx(0.01, abs=1e-3)
    assert expected(-0.05, 0.2) > 0 > expected(-0.05, 0.02)
    assert expected(0.05, 0.005) == pytest.approx(0.05, abs=2e-3)
    assert expected(0.0, 0.0) == 0
    assert choosing.estimate_gain(MethodScore("linear", 0.7, rows=20)) == 0
    assert choosing.estimate_gain(MethodScore("full")) < 0


def test_the_score_of_what_was_chosen_is_not_too_high() -> None:
    """Methods that gain 1 ± 3 points, measured with an error of two: the best is chosen a thousand times. Its
    score is that of a lucky draw; with the discount it is what other rows will give, within 0.3 points.
    """
    generator = np.random.default_rng(0)
    raw, discounted = list[float](), list[float]()
    for _ in range(4000):
        gains = generator.normal(0.01, 0.03, 2)
        tried = [MethodScore("linear", 0.7, rows=300)]
        for name, measured in zip(("contrastive", "full"), generator.normal(gains, 0.02), strict=True):
            tried.append(MethodScore(name, 0.7 + measured, measured, 0.02, 300))
        number = max(range(3), key=lambda number: choosing.estimate_gain(tried[number]))
        too_high = (tried[number].score or 0) - 0.7 - (gains[number - 1] if number else 0)
        raw.append(too_high)
        discounted.append(too_high + choosing.discount(tried[number]))
    assert np.mean(raw) > 0.006 and abs(np.mean(discounted)) < 0.003
    assert choosing.discount(MethodScore("full", 0.9, 0.3, 0.02, 300)) == pytest.approx(-0.01)
    assert choosing.discount(MethodScore("linear", 0.7, rows=300)) == 0


def test_what_is_clearly_worse_is_given_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    choice, trained, _ = choose_by(monkeypatch, tmp_path, {"a": 1.0, "b": 0.0, "c": 1.0})
    assert choice.method == "a"
    assert [method for method, _ in trained].count("b") == 1
    assert [method for method, _ in trained].count("c") == 5
    assert choice.tried[1].rows < choice.tried[2].rows == 40


def test_a_method_is_compared_once_after_each_fold(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A bootstrap over many rows takes longer than training on few."""
    compared: list[int] = []

    def counted(*given: Any) -> tuple[float, float, float]:
        compared.append(len(given[-1]))
        return measure_gain(*given)

    monkeypatch.setattr(choosing, "measure_gain", counted)
    choose_by(monkeypatch, tmp_path, {"a": 0.8, "b": 0.9})
    assert len(compared) == 5 and compared == sorted(set(compared))


def test_without_time_the_first_alone_is_tried(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    choice, trained, _ = choose_by(monkeypatch, tmp_path, {"a": 0.5, "b": 0.9}, budget=0)
    assert choice.method == "a"
    assert {method for method, _ in trained} == {"a"}
    assert choice.tried[1].score is None


@pytest.mark.parametrize("fold", [1, 3])
def test_what_diverges_is_left_out_and_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fold: int
) -> None:
    known = {"a": 0.5, "b": 1.0, "c": 0.9}
    choice, trained, _ = choose_by(monkeypatch, tmp_path, known, diverging=("b", fold))
    assert choice.method == "c"
    assert [method for method, _ in trained].count("b") == fold
    write_choice(tmp_path, choice)
    for each in (choice, read_choice(tmp_path)):
        assert each is not None
        assert [tried.score is None for tried in each.tried] == [False, True, False]
        said = describe_score(each.tried[1], "accuracy")
        assert said == f"b: diverged in fold {fold} and left out; try a lower learning rate"


def test_what_others_are_compared_with_may_not_diverge(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A named method is alone, and so the first."""
    with pytest.raises(TrainingStopped) as stopped:
        choose_by(monkeypatch, tmp_path, {"a": 0.5}, diverging=("a", 2))
    assert str(stopped.value) == (
        "a diverged in fold 2 of 5 of its cross-validation. Step 7: the loss is nan. To go on, begin again "
        "in another folder with a lower optimizer.learning_rate, or by another method."
    )


def test_a_longer_look_is_for_a_first_fold(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    known = {"a": 0.5, "b": 1.0}
    choice, trained, _ = choose_by(monkeypatch, tmp_path, known, budget=0, look=ENOUGH)
    assert [method for method, _ in trained] == ["a", "b", "a"]
    assert (choice.method, choice.tried[1].rows) == ("b", 8)


def test_a_choice_is_read_as_it_was_written(tmp_path: Path) -> None:
    outputs = [np.array([0.25, -1.5], np.float32), np.zeros((3, 2), np.float32)]
    tried = (MethodScore("linear", 0.5, rows=12, seconds=1.5), MethodScore("full"))
    bound = {3: {"transitions": np.full((2, 2), 0.5, np.float32), "end": np.ones(2, np.float32)}}
    choice = MethodChoice("linear", tried, np.array([2, 11]), outputs, bound)
    assert read_choice(tmp_path) is None
    write_choice(tmp_path, choice)
    found = read_choice(tmp_path)
    assert found is not None
    assert (found.method, found.tried, found.rows.tolist()) == ("linear", tried, [2, 11])
    for ours, theirs in zip(found.outputs, outputs, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert found.bound.keys() == bound.keys() and found.bound[3].keys() == bound[3].keys()
    for name, weights in bound[3].items():
        np.testing.assert_array_equal(found.bound[3][name], weights)
    for damage in (lambda path: path.write_bytes(b"damaged"), lambda path: path.unlink()):
        damage(tmp_path / "choice.safetensors")
        with pytest.raises(InputError, match=r"choice\.safetensors: expected what the chosen method said"):
            read_choice(tmp_path)


def test_a_fold_is_decoded_by_the_transitions_of_its_own_model(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each model says all words alike: its transitions alone answer, and the last model's are wrong."""
    kind = find_task("tagging")
    task = kind(kind.Settings(crf=True))
    rows = task.read(write_rows(tmp_path / "rows.jsonl", "tagging", 40))
    task.fit(rows)
    train, made = EncodedExamples(rows, [EncodedExample((), target=row) for row in rows]), list[str]()
    sizes = {"vocab_size": 9, "hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 1}
    config = make_config(sizes | {"intermediate_size": 4}, "test")
    folds = folds_of(task, rows, 5)

    def train_part(method: str, rows: EncodedExamples) -> Any:
        made.append(method)
        head = TaggingHead(config, task.labels, crf=True)
        assert head.crf is not None
        with torch.no_grad():  # of all folds but the last, that O follows whatever was before
            favourite = "B-BAD" if len(made) == 5 else "O"
            for weights in (head.crf.start, head.crf.transitions):
                weights[..., task.label_ids[favourite]] = 9.0
        task.bind(head)
        return method

    def outputs_of(method: str, encoded: list[Any]) -> list[Any]:
        return [np.zeros((len(each.target.words), len(task.labels)), np.float32) for each in encoded]

    monkeypatch.setattr(choosing, "outputs_of", outputs_of)
    choice = race_methods(
        task, MethodWork({FULL: [1.0] * 5}, {FULL: 1.0}, ENOUGH, ENOUGH), train, folds, train_part
    )
    write_choice(tmp_path, choice)
    for each in (choice, read_choice(tmp_path)):
        assert each is not None
        said = choosing.evaluate_choice(task, each, train, folds).predictions
        for row, prediction in zip(each.rows.tolist(), said, strict=True):
            assert set(prediction["tags"]) == {"B-BAD" if folds[row] == 4 else "O"}


@pytest.mark.parametrize("folds", [5, 40], ids=["five folds", "a fold for each row"])
@pytest.mark.parametrize(("name", "learned"), [("regression", "score"), ("similarity", "similarity")])
def test_numbers_that_are_no_better_than_their_mean_are_told(
    tmp_path: Path, name: str, learned: str, folds: int
) -> None:
    """The mean of the other folds is low where a fold is high, and yet it is worth no less than nothing."""
    kind = find_task(name)
    task = kind(kind.Settings())
    rows = task.read(write_rows(tmp_path / "rows.jsonl", name, 40))
    task.fit(rows)
    parts, train = np.arange(40) * folds // 40, EncodedExamples(rows, rows)
    outputs = [np.array([0.5 + 0.01 * (row % 2)], np.float32) for row in range(40)]
    gold = [example.label for example in rows]
    said = task.metrics([{learned: float(each[0])} for each in outputs], rows)["spearman"]
    if said > 0:
        outputs = [1 - each for each in outputs]
    choice = MethodChoice(FULL, (), np.arange(40), outputs)
    found = choosing.evaluate_choice(task, choice, train, parts)
    mean = found.baselines["mean"]
    assert (mean["spearman"], mean["pearson"]) == (0, 0)
    if name == "regression":
        expected = float(np.abs(np.array(gold) - np.mean(gold)).mean())
        assert mean["mean_absolute_error"] == pytest.approx(expected)
    assert found.model["spearman"] < 0
    assert any("it has learned nothing" in each for each in found.warnings(CROSS_VALIDATION, "spearman"))


def test_the_most_frequent_class_is_one_for_all_folds(tmp_path: Path) -> None:
    """The other folds have most of the class that a fold has least of: by theirs, it would be right in fewer
    rows than if it were always one.
    """
    task, train = examples(tmp_path, 24)
    folds = np.arange(24) // 8
    one, other = task.labels
    labels = [one] * 6 + [other] * 2 + ([one] * 3 + [other] * 5) * 2
    rows = [replace(row, label=label) for row, label in zip(train.examples, labels, strict=True)]
    train = EncodedExamples(rows, rows)
    outputs = [np.eye(2, dtype=np.float32)[0 if row % 2 else 1] for row in range(24)]
    found = choosing.evaluate_choice(task, MethodChoice(FULL, (), np.arange(24), outputs), train, folds)
    assert next(iter(found.baselines.values()))["accuracy"] == 0.5


# -- who judges ----------------------------------------------------------------------------------------------


def recipe_of(*overrides: str, **values: Any) -> FinetuneRecipe:
    given = {"task": "classification", "model": "m", "train": "t", "out": "o"}
    return make_finetune_recipe(given | values, list(overrides))


def test_few_rows_judge_in_turn_and_many_are_held_out() -> None:
    assert recipe_of().fold_count(100) == 5
    assert recipe_of("folds=10").fold_count(5000) == 10
    assert recipe_of().fold_count(2000) == 5
    assert recipe_of().fold_count(2001) == 0
    for held_out in ("dev=d", "restarts=3", "patience=1", "dev_share=0.2"):
        assert recipe_of(held_out).fold_count(100) == 0
    assert recipe_of("minutes=2").minutes_to_choose(10) == 2
    assert recipe_of().minutes_to_choose(100) == pytest.approx(20 / 60)
    assert recipe_of().minutes_to_look(100) == pytest.approx(20 / 60)
    tags = recipe_of(task="tagging")
    assert (tags.minutes_to_choose(100), tags.minutes_to_look(100)) == pytest.approx((20 / 60, 110 / 60))
    assert recipe_of("minutes=2", task="tagging").minutes_to_look(100) == 2


@pytest.mark.parametrize("other", ["dev=d", "restarts=2", "patience=1"])
def test_folds_and_a_dev_exclude_each_other(other: str) -> None:
    with pytest.raises(RecipeError, match="each row trains and judges"):
        recipe_of("folds=5", other)


@pytest.mark.parametrize(
    ("task", "settings", "processes", "message"),
    [
        ("question-answering", (), 1, "folds = 3 is not for this question-answering"),
        ("retrieval", (), 1, "folds = 3 is not for this retrieval"),
        ("reranking", (), 1, "folds = 3 is not for this reranking"),
        ("similarity", ("target=class",), 1, "of scores, not of classes"),
        ("classification", ("reinit_layers=1",), 1, "folds = 3 can't be used with reinit_layers"),
        ("classification", (), 2, "folds = 3 is for one process, and torchrun started 2"),
    ],
)
def test_folds_are_not_ignored_where_rows_cant_judge(
    task: str, settings: tuple[str, ...], processes: int, message: str
) -> None:
    machine: Any = SimpleNamespace(ranks=Ranks(0, processes))
    with pytest.raises(RecipeError, match=message) as refused:
        FinetuneSession.open(recipe_of("folds=3", *settings, task=task), machine, folds=processes == 1)
    assert "eave folds out" in str(refused.value)


@pytest.mark.parametrize(
    ("rows", "folds", "message"),
    [
        (9, 3, "folds = 3 takes 10 different texts or more, and .* has 9. Give more rows"),
        (12, 20, "folds = 20 takes 20 different texts or more, and .* has 12. Give folds=12 or fewer"),
    ],
)
def test_folds_are_not_ignored_where_texts_are_too_few(
    tmp_path: Path, rows: int, folds: int, message: str
) -> None:
    kind = find_task("classification")
    train = write_rows(tmp_path / "rows.jsonl", "classification", rows)
    with pytest.raises(RecipeError, match=message):
        LabelledData.read(kind(kind.Settings()), recipe_of(f"folds={folds}", train=str(train)), folds=True)


# -- whole runs ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "task",
    [
        "classification",
        *(pytest.param(each, marks=slow) for each in ("multi-label", "regression", "tagging")),
    ],
)
def test_all_rows_train_and_all_judge(encoder: Path, tmp_path: Path, task: str) -> None:
    test = write_rows(tmp_path / "test.jsonl", task, 30, seed=2)
    result = few_rows(encoder, tmp_path, "epochs=2", "minutes=1", task=task, test=str(test))
    found = results_of(result)
    assert found["train_rows"] == 40
    assert list(found["evaluations"]) == [CROSS_VALIDATION, "test"]
    assert found["evaluations"][CROSS_VALIDATION]["rows"] == 40
    labels = task in ("classification", "multi-label")
    methods = [LINEAR, *[NAMES] * (task == "classification"), *[CONTRASTIVE] * labels, FULL, UPPER, LORA]
    assert [each["method"] for each in found["tried"]] == methods
    metric, scores = found["main_metric"], {each["method"]: each["score"] for each in found["tried"]}
    best = scores[found["method"]]
    assert found["evaluations"][CROSS_VALIDATION]["model"][metric] == pytest.approx(best)
    baselines = found["evaluations"][CROSS_VALIDATION]["baselines"]
    if found["method"] != LINEAR:
        assert baselines[FROZEN][metric] == pytest.approx(scores[LINEAR])
    assert best > next(iter(baselines.values()))[metric]
    assert (
        len((tmp_path / "run" / "predictions" / f"{CROSS_VALIDATION}.jsonl").read_text().splitlines()) == 40
    )
    again = Predictor.load(result.model).evaluate(test, tmp_path / "train.jsonl").model[metric]
    assert again == pytest.approx(found["evaluations"]["test"]["model"][metric], abs=1e-6)
    trained_on = TrainedOn.of_folder(result.model)
    assert trained_on is not None
    assert trained_on.dev_share is None
    page = result.report.read_text()
    assert "The methods tried" in page
    assert "on dev" not in page


@pytest.mark.parametrize(
    "method",
    [LINEAR, *(pytest.param(method, marks=slow) for method in (LORA, CONTRASTIVE, FULL, UPPER))],
)
def test_a_method_that_is_named_is_taken_with_a_dev_too(encoder: Path, tmp_path: Path, method: str) -> None:
    """From the same rows by the same method: the dev judges, and the weights are as without one."""
    named = few_rows(encoder, tmp_path / "folds", f"method={method}", "epochs=2")
    assert [each["method"] for each in results_of(named)["tried"]] == [method]
    beside = results_of(named)["evaluations"][CROSS_VALIDATION]["baselines"]
    assert (FROZEN in beside) == (method != LINEAR)  # of which it is the model itself
    rows = tmp_path / "folds" / "train.jsonl"
    assert (FROZEN in Predictor.load(named.model).evaluate(rows).baselines) == (method != LINEAR)
    assert all({"accuracy", "macro_f1"} <= each.keys() for each in beside.values())
    judged = run("classification", encoder, tmp_path / "folds", f"method={method}", "epochs=2",
                 train=str(rows), out=str(tmp_path / "judged"))  # fmt: skip
    assert list(results_of(judged)["evaluations"]) == ["dev"]
    assert (FROZEN in results_of(judged)["evaluations"]["dev"]["baselines"]) == (method != LINEAR)
    assert results_of(judged)["evaluations"]["dev"]["model"]["accuracy"] > 0.5
    if method in (LINEAR, CONTRASTIVE):  # of the others a dev keeps the best epoch, and not the last
        ours, theirs = (load_file(each.model / "model.safetensors") for each in (named, judged))
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    untouched = load_file(encoder / "model.safetensors")
    name = next(name for name in untouched if "layer.1.output.dense.weight" in name)
    trained = load_file(named.model / "model.safetensors")
    same = next(each for key, each in trained.items() if key.endswith("encoder.layer.1.output.dense.weight"))
    assert torch.equal(same, untouched[name]) == (method in (LINEAR, LORA))  # which adds to query and value


def test_the_upper_layers_alone_are_trained(encoder: Path, tmp_path: Path) -> None:
    result = few_rows(encoder, tmp_path, f"method={UPPER}", "epochs=1")
    before, after = (load_file(folder / "model.safetensors") for folder in (encoder, result.model))
    changed = {
        name.removeprefix("bert.")
        for name, each in after.items()
        if not torch.equal(each, before[name.removeprefix("bert.")])
    }
    assert changed and all(name.startswith("encoder.layer.1.") for name in changed)


@pytest.mark.parametrize(("settings", "rank"), [pytest.param((), 8, marks=slow), (("lora.rank=2",), 2)])
def test_lora_as_a_method_has_its_usual_rank_or_yours_and_an_adapter(
    encoder: Path, tmp_path: Path, settings: tuple[str, ...], rank: int
) -> None:
    few_rows(encoder, tmp_path, f"method={LORA}", "epochs=1", *settings)
    adapter = json.loads((tmp_path / "run" / "adapter" / "adapter_config.json").read_text())
    assert adapter["r"] == rank
    assert check_model(tmp_path / "run" / "model").agrees
    texts = ["red cat", "the old dogs sleeps", "a b c"]
    merged, beside = (
        Predictor.load(tmp_path / "run" / name, compute_dtype=torch.float32).predict(texts)
        for name in ("model", "adapter")
    )
    for one, other in zip(merged, beside, strict=True):
        assert other["probabilities"] == pytest.approx(one["probabilities"], abs=1e-4)


@pytest.mark.slow
def test_the_upper_layers_are_half_of_all_or_what_you_leave(encoder: Path, tmp_path: Path) -> None:
    few_rows(encoder, tmp_path, f"method={UPPER}", "epochs=1", "freeze_embeddings=true")
    recipe = tomllib.loads((tmp_path / "run" / "recipe.toml").read_text())
    assert (recipe["freeze_embeddings"], recipe["freeze_layers"]) == (True, 0)


def test_no_process_reads_the_weights_of_an_encoder_before_the_first_one_wrote_them(
    encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, write, restore = list[str](), BestWeights.keep, BestWeights.restore

    def noted_write(self: BestWeights, *given: Any) -> None:
        calls.append("write")
        write(self, *given)

    def noted_restore(self: BestWeights, model: Any) -> None:
        calls.append("restore")
        restore(self, model)

    monkeypatch.setattr(BestWeights, "keep", noted_write)
    monkeypatch.setattr(BestWeights, "restore", noted_restore)
    monkeypatch.setattr(restarts, "wait_for_ranks", lambda: calls.append("wait"), raising=False)
    train = write_rows(tmp_path / "train.jsonl", "classification", 18)
    few_rows(encoder, tmp_path, f"method={CONTRASTIVE}", "epochs=1", train=train, dev=str(train))
    assert calls[:3] == ["write", "wait", "restore"]


def test_a_run_goes_on_without_methods_that_diverge(
    encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Guard, "find_problem", lambda *given: "the loss is nan")
    train = write_rows(tmp_path / "train.jsonl", "classification", 18)
    found = few_rows(encoder, tmp_path, "minutes=5", train=train, console=Console()).results
    assert found.method == LINEAR
    assert "full: diverged in fold 1 and left out" in capsys.readouterr().out
    cells = {row[0]: row[3] for row in method_table(found).rows}
    assert cells[FULL] == cells[CONTRASTIVE] == "diverged in fold 1: left out"
    with pytest.raises(
        TrainingStopped, match=r"full diverged in fold 1 of 5.* in another folder with a lower"
    ):
        few_rows(encoder, tmp_path / "named", "method=full", train=train)
    with pytest.raises(RecipeError, match="already holds a run"):
        few_rows(encoder, tmp_path / "named", "method=linear", train=train)


@pytest.mark.slow
def test_methods_that_seldom_win_wait_for_time(encoder: Path, tmp_path: Path) -> None:
    by_itself = few_rows(encoder, tmp_path, "epochs=1")
    assert [each.method for each in by_itself.results.tried] == [LINEAR, CONTRASTIVE, FULL]


@slow
@pytest.mark.parametrize("place", ["whole", "in training"])
def test_a_cloze_is_learned_from_an_encoder_that_fills_gaps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """It comes to the same model when it was killed on the way."""
    filler = tiny_encoder(tmp_path / "filler", masked_language=True)
    result = few_rows(filler, tmp_path / "whole", f"method={CLOZE}")
    assert results_of(result)["evaluations"][CROSS_VALIDATION]["model"]["accuracy"] > 0.6
    auto = few_rows(filler, tmp_path / "auto", "minutes=1", "epochs=1")
    assert CLOZE in [each.method for each in auto.results.tried]
    if place == "whole":
        return

    def killed(*given: Any) -> None:
        raise RuntimeError("killed")

    train = tmp_path / "whole" / "train.jsonl"
    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="killed"):
        patch.setattr(finetune, "keep_best_only", killed)
        few_rows(filler, tmp_path / "parts", f"method={CLOZE}", train=train)
    again = few_rows(filler, tmp_path / "parts", f"method={CLOZE}", train=train, resume=True)
    assert (again.model / "model.safetensors").read_bytes() == (
        result.model / "model.safetensors"
    ).read_bytes()


# -- the same run again --------------------------------------------------------------------------------------


def typed_again(format_command: str, out: Path) -> Any:
    """The run of a report's command, in another folder."""
    _, _, task, *words = shlex.split(format_command)
    files = {}
    while words[0].startswith("--"):
        name, path, *words = words
        files[name.removeprefix("--")] = path
    return finetune.finetune(task, *words, **(files | {"out": str(out)}))


@pytest.mark.parametrize(
    ("given", "method"),
    [
        ("method=contrastive", CONTRASTIVE),
        pytest.param("method=lora", LORA, marks=slow),
        pytest.param("minutes=5", UPPER, marks=slow),
    ],
)
def test_recipe_provenance_and_command_are_those_of_the_run(
    encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str, method: str
) -> None:
    """A method has its own epochs, rates and rank: those of full training would make another model."""
    reported: list[Any] = []
    monkeypatch.setattr(finetune, "write_finetune_report", lambda *given: reported.append(given))
    monkeypatch.setattr(choosing, "estimate_gain", lambda tried: float(tried.method == method))
    files = {"model": str(encoder), "train": str(write_rows(tmp_path / "train.jsonl", "classification", 18))}
    settings = ("max_length=32", "batch_size=9", "hardware.threads=1", "folds=2", "minutes=5", given)
    first = finetune.finetune("classification", *settings, **files, out=str(tmp_path / "first"))
    assert first.results.method == method
    _, trained, _, typed = reported.pop()
    again = typed_again(format_command(typed), tmp_path / "again")
    assert (
        again.results.evaluations[CROSS_VALIDATION].model == first.results.evaluations[CROSS_VALIDATION].model
    )
    for name in ("model/model.safetensors", "model/head.safetensors"):
        assert (tmp_path / "first" / name).read_bytes() == (tmp_path / "again" / name).read_bytes()
    for name in ("model/bertsmith.json", "recipe.toml"):
        ours, theirs = ((tmp_path / run / name).read_text() for run in ("first", "again"))
        assert ours.replace("/first", "/again") == theirs
    stored = tomllib.loads((tmp_path / "first" / "recipe.toml").read_text())
    provenance = json.loads((first.model / "bertsmith.json").read_text())["provenance"]["recipe"]
    for recipe in (stored, provenance, trained.model_dump()):
        assert recipe["method"] == method
        assert 2 * recipe["epochs"] == first.results.restarts[0].steps  # batches of an epoch
        assert recipe["lora"]["rank"] == (8 if method == LORA else 0)
        assert recipe["optimizer"]["layer_decay"] == (1.0 if method == LORA else 0.75)
        assert recipe["freeze_layers"] == (1 if method == UPPER else 0)


def test_where_nothing_is_left_to_train_few_rows_measure_the_encoder_as_it_is(
    encoder: Path, tmp_path: Path
) -> None:
    result = few_rows(encoder, tmp_path, "freeze_layers=2", task="similarity")
    assert [each.method for each in result.results.tried] == [LINEAR]
    assert result.results.method == LINEAR


def test_methods_that_train_the_encoder_alone_need_a_layer_that_is_not_frozen(
    encoder: Path, tmp_path: Path
) -> None:
    result = few_rows(encoder, tmp_path, "freeze_layers=2", "folds=2", "epochs=1", "minutes=100")
    assert [each.method for each in result.results.tried] == [LINEAR, NAMES, FULL]


def test_a_dev_share_that_is_given_is_typed_again(encoder: Path, tmp_path: Path) -> None:
    """It has the value of the default, and yet few rows would judge in turn without it."""
    assert "dev_share" not in format_command(recipe_of())
    assert "dev_share=0.1" in format_command(recipe_of("dev_share=0.1"))


# -- work, and not time --------------------------------------------------------------------------------------


@pytest.mark.parametrize("fills_gaps", [False, pytest.param(True, marks=slow)])
def test_a_machine_that_is_busy_chooses_the_same_to_the_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fills_gaps: bool
) -> None:
    """A clock that runs ten thousand times as fast is that of a machine with as much else to do. An encoder
    that fills gaps is pre-trained further first, which was by hours once.
    """
    encoder = tiny_encoder(tmp_path / "encoder", masked_language=fills_gaps)
    texts = str(unlabelled_rows(tmp_path, 60))
    train = write_rows(tmp_path / "train.jsonl", "classification", 18)
    settings = ("folds=2", "epochs=1", *(["minutes=5e-5"] if fills_gaps else []))
    calm = few_rows(encoder, tmp_path / "calm", *settings, train=train, unlabelled=texts)
    for clock in ("monotonic", "perf_counter"):
        real = getattr(time, clock)
        monkeypatch.setattr(time, clock, lambda real=real: 10_000 * real())
    busy = few_rows(encoder, tmp_path / "busy", *settings, train=train, unlabelled=texts)
    ours, theirs = ([replace(each, seconds=0) for each in run.results.tried] for run in (calm, busy))
    assert ours == theirs
    assert calm.results.method == busy.results.method
    for name in ("model.safetensors", "head.safetensors"):
        assert (calm.model / name).read_bytes() == (busy.model / name).read_bytes()


def test_counted_work_is_what_training_computes(
    encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop counts every step's batches for its log: from these, and not from the rows."""
    counted, flops = [0.0], FinetuningObjective.flops

    def count(*given: Any) -> float:
        counted[0] += flops(*given)
        return flops(*given)

    monkeypatch.setattr(FinetuningObjective, "flops", count)
    values = {"model": str(encoder), "out": "o"}
    values["train"] = str(write_rows(tmp_path / "train.jsonl", "classification", 20))
    recipe = make_finetune_recipe({"task": "classification", **values}, [*SMALL_RUN, "epochs=3"])
    machine = make_plain_machine(HardwareSettings(), None, Hardware.detect())
    bench = FinetuneSession.open(recipe, machine, folds=True)
    bench.learn(FULL, recipe, bench.train)
    once = count_pass_work(bench.config, bench.train.encoded)
    epoch = count_epoch_work(bench.config, bench.train.encoded, recipe)
    assert 3 * epoch == pytest.approx(counted[0])
    assert count_training_work(bench, FULL, recipe) == pytest.approx(counted[0] + once)
    halves = [recipe.model_copy(update=update) for update in ({"freeze_layers": 1}, {"freeze_layers": 2})]
    parts = [count_epoch_work(bench.config, bench.train.encoded, each) for each in (recipe, *halves)]
    assert parts == pytest.approx([3 * parts[2], 2 * parts[2], parts[2]])


@pytest.mark.slow
def test_what_is_not_tried_says_what_it_takes_and_which_setting_allows_it(
    encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("finetuning.finetune", "finetuning.effort"):
        monkeypatch.setattr(f"bertsmith.training.{module}.FLOP_A_MINUTE", 2.6e7)
    monkeypatch.setattr(finetune, "measure_training_speed", lambda *given: 1e6)
    train, out = write_rows(tmp_path / "train.jsonl", "classification", 18), io.StringIO()
    settings, console = ("folds=2", "epochs=1"), Console(file=out, width=200)
    result = few_rows(encoder, tmp_path / "few", *settings, train=train, console=console)
    full = next(each for each in result.results.tried if each.method == FULL)
    assert full.score is None and full.minutes is not None
    said = out.getvalue().splitlines()
    before = next(line for line in said if line.startswith("Expected time for 2 folds of cross-validation"))
    assert f"full {formatting.duration(full.seconds)} (not tried)" in before
    allowed = (
        f"not tried: it would take about {formatting.duration(full.seconds)}; minutes={full.minutes} allows"
    )
    assert f"full: {allowed} it" in said
    assert said.index(before) < said.index(f"full: {allowed} it")
    assert next(row[3] for row in method_table(result.results).rows if row[0] == FULL) == f"{allowed} it"
    more = few_rows(encoder, tmp_path / "more", *settings, f"minutes={full.minutes}", train=train).results
    assert next(each for each in more.tried if each.method == FULL).score is not None


@pytest.mark.parametrize("epoch", [1e11, 1e12, 1e13, 1e14])
def test_one_row_more_than_few_takes_no_more_work(epoch: float) -> None:
    """Of an epoch of any work: the training beside the one that rows which judge in turn may take."""
    recipe = recipe_of()
    few, many = recipe.minutes_to_choose(2000) * FLOP_A_MINUTE, recipe.epochs_on_many(10, 2001, epoch)
    assert many * epoch <= few + 0.01 * epoch  # which are rounded
    grown = [recipe.epochs_on_many(10, rows, epoch) for rows in range(2001, 5001, 100)]
    assert grown == sorted(grown) and max(np.diff(grown)) < 0.8
    assert recipe.epochs_on_many(10, 4000, epoch) >= 3
    assert recipe.epochs_on_many(3, 100_000, epoch) == 3
    more = recipe_of("minutes=1000")
    assert more.epochs_on_many(10, 2001, epoch) == min(10, round(1000 * FLOP_A_MINUTE / epoch, 2))


def test_rows_that_are_not_few_are_trained_within_the_same_work_and_it_says_so(
    encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finetune_recipe, "_FEW_ROWS", 35)
    monkeypatch.setattr(finetune_recipe, "FLOP_A_MINUTE", 3.9e7)
    monkeypatch.setattr(finetune, "FLOP_A_MINUTE", 3.9e7)
    monkeypatch.setattr(finetune, "measure_training_speed", lambda *given: 1e6)
    out = io.StringIO()
    result = few_rows(encoder, tmp_path / "many", usual=SMALL_RUN, console=Console(file=out, width=200))
    trained = tomllib.loads((tmp_path / "many" / "run" / "recipe.toml").read_text())["epochs"]
    assert list(result.results.evaluations) == ["dev"] and result.results.method == FULL
    assert 0.5 < trained < 10
    said = [line for line in out.getvalue().splitlines() if "take about" in line]
    assert said[0].startswith(f"{trained:g} epochs of ")
    minutes = re.fullmatch(
        r"The usual 10 epochs of \d+ rows take about [\d:]+(?: s| min| h): (minutes=\d+) allows them\.",
        said[1],
    )
    assert minutes is not None
    few_rows(encoder, tmp_path / "more", minutes[1], usual=SMALL_RUN)
    assert tomllib.loads((tmp_path / "more" / "run" / "recipe.toml").read_text())["epochs"] == 10
    none = few_rows(encoder, tmp_path / "none", "minutes=0", usual=SMALL_RUN).results
    assert none.method == LINEAR and list(none.evaluations) == ["dev"]
    few_rows(encoder, tmp_path / "asked", "dev_share=0.2", usual=SMALL_RUN)
    assert tomllib.loads((tmp_path / "asked" / "run" / "recipe.toml").read_text())["epochs"] == 10


@pytest.mark.parametrize("given", ["dev_share=0.1", "epochs=3", "optimizer.learning_rate=5e-5"])
def test_a_setting_that_was_given_with_its_default_is_not_forgotten_on_resume(
    encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    """Without it few rows would judge in turn, or epochs and rates be chosen."""
    train = str(write_rows(tmp_path / "train.jsonl", "classification", 40))
    files = {"model": str(encoder), "train": train, "out": str(tmp_path / "run")}
    begun: list[FinetuneRecipe] = []

    def stop(recipe: FinetuneRecipe, *others: Any, **named: Any) -> None:
        begun.append(recipe)
        raise RuntimeError("killed")

    settings = ("max_length=32", "batch_size=20", "hardware.threads=1", "minutes=0")
    with monkeypatch.context() as patch:
        patch.setattr(finetune, "wait_for_ranks", lambda: None)
        patch.setattr(finetune, "train_restart", stop)
        for resume, more in ((False, (given,)), (True, ())):
            with pytest.raises(RuntimeError, match="killed"):
                finetune.finetune("classification", *settings, *more, **files, resume=resume)
    monkeypatch.setattr(finetune.FinetuneSession, "open", stop)
    for resume, more in ((True, (given,)), (True, ())):
        with pytest.raises(RuntimeError, match="killed"):
            finetune.finetune("classification", *settings, *more, **files, resume=resume)
    first, second = begun[-2:]
    assert first.given == second.given == {given.partition("=")[0]}
    assert first.model_dump() == second.model_dump()
    for other in {"dev_share=0.1", "epochs=3"} - {given}:
        with pytest.raises(
            RecipeError, match=f"was begun without {other.partition('=')[0]}. Resume without it"
        ):
            finetune.finetune("classification", *settings, given, other, **files, resume=True)


# -- texts without labels ------------------------------------------------------------------------------------


def unlabelled_rows(folder: Path, count: int = 200) -> Path:
    rows = write_rows(folder / "labelled.jsonl", "classification", count, seed=7).read_text().splitlines()
    (folder / "unlabelled.txt").write_text("".join(json.loads(row)["text"] + "\n" for row in rows))
    return folder / "unlabelled.txt"


def test_unlabelled_texts_are_a_method_of_their_own(encoder: Path, tmp_path: Path) -> None:
    texts = str(unlabelled_rows(tmp_path))
    auto = few_rows(encoder, tmp_path / "auto", "epochs=1", unlabelled=texts)
    tried = [LINEAR, NAMES, SELF_TRAINING, NAMES_TEXTS, CONTRASTIVE, FULL]
    assert [each.method for each in auto.results.tried] == tried
    tried = {each.method: each for each in auto.results.tried}
    assert tried[SELF_TRAINING].rows == 40
    named = few_rows(encoder, tmp_path / "named", f"method={SELF_TRAINING}", unlabelled=texts)
    assert named.results.method == SELF_TRAINING
    before, after = (load_file(folder / "model.safetensors") for folder in (encoder, named.model))
    assert all(torch.equal(each, before[name.removeprefix("bert.")]) for name, each in after.items())
    linear = few_rows(encoder, tmp_path / "linear", f"method={LINEAR}", unlabelled=texts)
    heads = [load_file(each.model / "head.safetensors")["out.weight"] for each in (named, linear)]
    assert not torch.equal(*heads)
    assert "unlabelled" in json.loads((named.model / "bertsmith.json").read_text())["provenance"]["sha256"]


def test_further_pretraining_goes_on_in_a_moved_folder_as_the_hardware_was_given(tmp_path: Path) -> None:
    source = tiny_encoder(tmp_path / "encoder", masked_language=True)
    values = {"task": "classification", "model": str(source), "train": "rows.csv", "out": "out"}
    recipe = make_finetune_recipe(values, ["minutes=5e-5", "hardware.precision=float32"])
    bench: Any = SimpleNamespace(source=source, config=read_checkpoint(source).config, train=[None] * 60)
    texts = [f"bano happy elo{number}" for number in range(60)]
    model = adaptation._pretrain_encoder(recipe, bench, texts, 32, tmp_path / "adapted", None)
    shutil.rmtree(model)  # as if it had been stopped before
    (tmp_path / "adapted").rename(tmp_path / "moved")
    model = adaptation._pretrain_encoder(recipe, bench, texts, 32, tmp_path / "moved", None)
    assert read_checkpoint(model).parts >= {"encoder", "masked_language"}
    begun = tomllib.loads((tmp_path / "moved" / "run" / "recipe.toml").read_text())
    assert begun["corpus"] == str(tmp_path / "moved" / "corpus")
    assert begun["hardware"]["precision"] == "float32"


def test_unlabelled_texts_beside_a_dev_are_used_where_that_is_asked_for(
    encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts, dev = str(unlabelled_rows(tmp_path)), str(write_rows(tmp_path / "dev.jsonl", "classification", 40))
    with monkeypatch.context() as patch:
        patch.setattr(TextFeatures, "of", None)  # a pass over texts that nobody asked for
        plain = few_rows(encoder, tmp_path / "plain", "epochs=1", unlabelled=texts, dev=dev)
    assert any("were not learned from" in warning for warning in plain.results.data_warnings)
    asked = few_rows(encoder, tmp_path / "asked", f"method={SELF_TRAINING}", unlabelled=texts, dev=dev)
    assert asked.results.method == SELF_TRAINING
    assert not any("were not learned from" in warning for warning in asked.results.data_warnings)


def test_of_very_many_unlabelled_texts_those_alone_are_read_that_are_learned_from(
    encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A million would be tokenised, and kept so, to learn from five thousand."""
    assert sample_texts([*range(5000)]) == [*range(5000)]
    some = sample_texts(range(20_000))
    assert len(set(some)) == 5000 and list(some) == sorted(some) and max(some) > 15_000
    encoded: list[int] = []

    def counted(task: Any, examples: Any, tokenizer: Any) -> EncodedExamples:
        encoded.append(len(examples))
        return encode_examples(task, examples, tokenizer)

    monkeypatch.setattr(finetune_session, "encode_examples", counted)
    monkeypatch.setattr(finetune_session, "sample_texts", lambda texts: texts[:20])
    texts = str(unlabelled_rows(tmp_path))
    few_rows(encoder, tmp_path, f"method={SELF_TRAINING}", unlabelled=texts)
    assert max(encoded) == 40 and 20 in encoded


@pytest.mark.slow
def test_more_rows_in_folds_than_have_features_leave_unlabelled_texts_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filler = tiny_encoder(tmp_path / "filler", masked_language=True)
    for module in ("tasks.heads.linear_start", "training.finetuning.finetune_session"):
        monkeypatch.setattr(f"bertsmith.{module}.MOST_EXAMPLES", 20)
    texts = str(unlabelled_rows(tmp_path, 40))
    found = few_rows(filler, tmp_path, "folds=2", "epochs=1", "minutes=1e-4", unlabelled=texts).results
    assert SELF_TRAINING not in [each.method for each in found.tried]
    assert not (tmp_path / "run" / "adapted").exists()
    assert any("where over 20,000 rows judge in turn" in each for each in found.warnings)
    for method in (SELF_TRAINING, NAMES, NAMES_TEXTS):
        with pytest.raises(
            RecipeError, match=r"folds of more than 20 rows, and train has 40\. Leave out folds"
        ):
            few_rows(filler, tmp_path / "named", "folds=2", f"method={method}", unlabelled=texts)
    alone = few_rows(filler, tmp_path / "alone", "folds=2", "epochs=1", "minutes=1e-4").results
    assert NAMES not in [each.method for each in alone.tried]


def test_what_can_not_be_learned_from_unlabelled_texts(encoder: Path, tmp_path: Path) -> None:
    texts = str(unlabelled_rows(tmp_path))
    with pytest.raises(RecipeError, match="only classification learns from unlabelled texts, not tagging"):
        few_rows(encoder, tmp_path, task="tagging", unlabelled=texts)
    with pytest.raises(RecipeError, match="method = self-training is not for this classification"):
        few_rows(encoder, tmp_path, "method=self-training")
    rows = write_rows(tmp_path / "train.jsonl", "classification", 40)
    (tmp_path / "same.txt").write_text(
        "".join(json.loads(row)["text"] + "\n" for row in rows.read_text().splitlines())
    )
    with pytest.raises(InputError, match="no text that isn't among the labelled ones"):
        few_rows(encoder, tmp_path, unlabelled=str(tmp_path / "same.txt"))
    with pytest.raises(InputError, match=r"missing\.txt"):
        few_rows(encoder, tmp_path, unlabelled=str(tmp_path / "missing.txt"))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("better", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_an_encoder_that_fills_gaps_is_pre_trained_further_and_kept_where_that_helps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, better: bool
) -> None:
    gain = 0.2 if better else -0.2
    monkeypatch.setattr(adaptation, "measure_gain", lambda *given: (0.7, gain, 0.01))
    filler = tiny_encoder(tmp_path / "filler", masked_language=True)
    texts = str(unlabelled_rows(tmp_path))
    given = ("method=linear", "minutes=2e-4")
    result = few_rows(filler, tmp_path, *given, unlabelled=texts)
    run = tmp_path / "run"
    found = json.loads((run / "adapted.json").read_text())
    assert found == {"gain": gain, "error": 0.01, "kept": better}
    before, further, after = (
        load_file(folder / "model.safetensors")
        for folder in (filler, run / "adapted/run/model", result.model)
    )
    name = next(name for name in before if "layer.1.output.dense.weight" in name)
    ours = next(each for key, each in after.items() if key.endswith("encoder.layer.1.output.dense.weight"))
    assert not torch.equal(further[name], before[name])
    assert torch.equal(ours, (further if better else before)[name])
    # a run that is resumed begins from the same encoder, and pre-trains nothing
    monkeypatch.setattr(adaptation, "pretrain", None)
    monkeypatch.setattr(adaptation, "measure_gain", None)
    again = few_rows(filler, tmp_path, *given, unlabelled=texts, train=tmp_path / "train.jsonl", resume=True)
    assert load_file(again.model / "model.safetensors").keys() == after.keys()


def test_without_time_to_compare_nothing_is_pre_trained(tmp_path: Path) -> None:
    filler = tiny_encoder(tmp_path / "filler", masked_language=True)
    texts = str(unlabelled_rows(tmp_path))
    assert few_rows(filler, tmp_path, "minutes=0", unlabelled=texts).results.method in UNTRAINED
    assert not (tmp_path / "run" / "adapted").exists()


def test_no_fold_is_judged_by_its_own_labels(encoder: Path, tmp_path: Path) -> None:
    """Other labels on the held-out rows change nothing of what is said of them."""
    task, train = examples(tmp_path, 40)
    draw = np.random.default_rng(0)
    features = [torch.from_numpy(each) for each in draw.normal(size=(140, 8)).astype(np.float32)]
    head = PooledHead(read_checkpoint(encoder).config, 2, "mean")
    head.out = torch.nn.Linear(8, 2)
    folds = folds_of(task, train.examples, 5)
    said = []
    for swapped in (False, True):
        targets = [task.target(each.label) for each in train.examples]
        targets = [1 - each if swapped and folds[n] == 0 else each for n, each in enumerate(targets)]
        probe = LinearProbe(task, head, train.examples, features[:40], targets, 0.0)
        judged = SelfTraining(probe, 0.25, TextFeatures([], features[40:], 0.0)).judge(folds)
        said.append([each.tolist() for each, fold in zip(judged, folds.tolist(), strict=True) if fold == 0])
    assert said[0] == said[1]


# -- how alike two texts are ---------------------------------------------------------------------------------


def test_of_similarity_the_encoder_as_it_is_is_a_method(encoder: Path, tmp_path: Path) -> None:
    test = write_rows(tmp_path / "test.jsonl", "similarity", 30, seed=2)
    result = few_rows(encoder, tmp_path, "epochs=2", "minutes=1", task="similarity", test=str(test))
    assert [each.method for each in result.results.tried] == [LINEAR, FULL]
    assert "frozen encoder" in results_of(result)["evaluations"]["test"]["baselines"]
    named = few_rows(encoder, tmp_path / "named", "method=linear", task="similarity")
    before, after = (load_file(folder / "model.safetensors") for folder in (encoder, named.model))
    assert all(torch.equal(each, before[name]) for name, each in after.items())


def test_a_method_that_the_task_has_not_is_refused(encoder: Path, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="method = contrastive is not for this tagging"):
        few_rows(encoder, tmp_path, "method=contrastive", task="tagging")
    assert not (tmp_path / "run").exists()
    with pytest.raises(RecipeError, match="method"):
        few_rows(encoder, tmp_path, "method=magic")
    with pytest.raises(RecipeError, match="it takes a batch_size of 4 or more"):
        few_rows(encoder, tmp_path, "method=contrastive", "batch_size=1")


def test_batches_of_one_text_have_no_pairs_to_learn_from(encoder: Path, tmp_path: Path) -> None:
    result = few_rows(encoder, tmp_path, "epochs=0.1", "batch_size=1")
    assert [each.method for each in result.results.tried] == [LINEAR, NAMES, FULL]


def test_lora_is_trained_whatever_the_linear_model_reaches(encoder: Path, tmp_path: Path) -> None:
    result = few_rows(encoder, tmp_path, "lora.rank=2", "epochs=1")
    assert [each["method"] for each in results_of(result)["tried"]] == [FULL]
    assert (tmp_path / "run" / "adapter").is_dir()


@pytest.mark.parametrize(
    "place",
    ["while choosing", *(pytest.param(each, marks=slow) for each in ("after the choice", "in training"))],
)
def test_an_interrupted_run_comes_to_the_same_model(
    encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    whole = few_rows(encoder, tmp_path / "whole", "minutes=1", "epochs=3", "method=contrastive")
    functions = {
        "while choosing": (finetune, "write_choice"),
        "after the choice": (finetune, "train_restart"),
        "in training": (finetune, "keep_best_only"),
    }
    module, name = functions[place]

    def killed(*given: Any, **named: Any) -> None:
        raise RuntimeError("killed")

    train, out = tmp_path / "whole" / "train.jsonl", tmp_path / "parts"
    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="killed"):
        patch.setattr(module, name, killed)
        few_rows(encoder, out, "minutes=1", "epochs=3", "method=contrastive", train=train)
    if place != "while choosing":
        monkeypatch.setattr(finetune, "choose_method", killed)  # it was made
    again = few_rows(encoder, out, "minutes=1", "epochs=3", "method=contrastive", train=train, resume=True)
    for name in ("model.safetensors", "head.safetensors"):
        assert (again.model / name).read_bytes() == (whole.model / name).read_bytes()
    ours, theirs = results_of(again), results_of(whole)
    assert ours["evaluations"] == theirs["evaluations"]
    assert [replace(each, seconds=0) for each in again.results.tried] == [
        replace(each, seconds=0) for each in whole.results.tried
    ]


@pytest.mark.parametrize(
    "settings", [("method=contrastive",), pytest.param(("method=lora", "epochs=1"), marks=slow)]
)
def test_a_method_goes_on_by_its_own_epochs_and_rates(
    encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: tuple[str, ...]
) -> None:
    """And not by those of full training, where nobody gave any."""
    train = write_rows(tmp_path / "train.jsonl", "classification", 40)
    usual = [each for each in SMALL_RUN if not each.startswith("optimizer.")]

    def trained(name: str, *, resume: bool = False) -> Any:
        files = {"model": str(encoder), "train": str(train), "out": str(tmp_path / name)}
        return finetune.finetune("classification", *usual, *settings, "folds=2", **files, resume=resume)

    whole = trained("whole")

    def killed(*given: Any) -> None:
        raise RuntimeError("killed")

    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="killed"):
        patch.setattr(finetune, "write_choice", killed)
        trained("parts")
    again = trained("parts", resume=True)
    name = "model.safetensors"
    assert (again.model / name).read_bytes() == (whole.model / name).read_bytes()
    assert [each.steps for each in again.results.restarts] == [each.steps for each in whole.results.restarts]
    stored = (tmp_path / "whole" / "recipe.toml").read_text()
    assert (tmp_path / "parts" / "recipe.toml").read_text().replace("parts", "whole") == stored


@pytest.mark.parametrize(
    ("given", "killed_in"),
    [pytest.param((), "train_restart", marks=slow), (("method=upper",), "write_choice")],
)
def test_a_run_goes_on_by_the_method_that_it_has_settled_on(
    encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: tuple[str, ...], killed_in: str
) -> None:
    """Chosen or named when it began: it needn't be named again, and can't become another."""
    monkeypatch.setattr(choosing, "estimate_gain", lambda tried: float(tried.method == UPPER))
    train = write_rows(tmp_path / "train.jsonl", "classification", 18)
    settings = ("folds=2", "minutes=5", "epochs=2")
    few_rows(encoder, tmp_path / "whole", *settings, *given, train=train)

    def killed(*given: Any) -> None:
        raise RuntimeError("killed")

    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="killed"):
        patch.setattr(finetune, killed_in, killed)
        few_rows(encoder, tmp_path / "parts", *settings, *given, train=train)
    with pytest.raises(RecipeError, match="begun with other settings: method"):
        few_rows(encoder, tmp_path / "parts", *settings, "method=full", train=train, resume=True)
    if not given:
        monkeypatch.setattr(finetune, "choose_method", killed)  # it was made
    again = few_rows(encoder, tmp_path / "parts", *settings, train=train, resume=True)
    assert again.results.method == UPPER
    for name in ("model/model.safetensors", "recipe.toml", "model/bertsmith.json"):
        ours, theirs = ((tmp_path / each / "run" / name).read_bytes() for each in ("whole", "parts"))
        assert ours.replace(b"/whole", b"/parts") == theirs


def test_self_training_bears_a_class_that_no_unlabelled_text_may_have() -> None:
    probabilities = torch.tensor([[1.0, 0.0], [1.0, 0.0]])  # float32's, of logits that differ by over 104
    targets = _align_and_sharpen(probabilities, torch.tensor([0.5, 0.5]))
    assert targets.tolist() == [[1.0, 0.0], [1.0, 0.0]]


def test_equal_texts_are_judged_together(encoder: Path, tmp_path: Path) -> None:
    """Otherwise a text that is there twice would be judged by a model that has learned it."""
    rows = write_rows(tmp_path / "once.jsonl", "classification", 30).read_text().splitlines()
    (tmp_path / "twice.jsonl").write_text("\n".join([*rows, *rows]) + "\n")
    kind = find_task("classification")
    task = kind(kind.Settings())
    train = task.read(tmp_path / "twice.jsonl")
    folds = folds_of(task, train, 5)
    assert folds[:30].tolist() == folds[30:].tolist()
    result = few_rows(encoder, tmp_path, "method=linear", train=tmp_path / "twice.jsonl")
    assert results_of(result)["evaluations"][CROSS_VALIDATION]["rows"] == 60
    assert (
        FROZEN not in results_of(result)["evaluations"][CROSS_VALIDATION]["baselines"]
    )  # it is the model itself


def test_a_long_pass_before_training_says_how_far_it_is(
    encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finetune, "_SECONDS_BETWEEN_LINES", 0.0)
    console = Console(file=io.StringIO(), width=100)
    few_rows(encoder, tmp_path, "method=linear", console=console)
    assert "Encoding the rows for the start of the training: 40 / 40 texts" in console.file.getvalue()  # type: ignore[attr-defined]


# -- what more rows would bring ------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_learning_curve_of_all_judge(encoder: Path, tmp_path: Path) -> None:
    """A quarter, half and all of four fifths of the rows; the next doubling divides what is missing alike."""
    run = few_rows(encoder, tmp_path, "epochs=1")
    curve = run.results.learning_curve
    assert curve.rows == (8, 16, 32)
    linear = next(each for each in run.results.tried if each.method == LINEAR)
    assert curve.scores[-1] == pytest.approx(linear.score)
    missing = [1 - score for score in curve.scores]
    left = min(missing[2] / missing[1], 1.0)
    assert curve.gain == pytest.approx((missing[1] - missing[2]) * left)
    assert curve.error >= 0
    assert results_of(run)["learning_curve"]["rows"] == [8, 16, 32]
    page = run.report.read_text()
    assert "What more rows would bring" in page and "Twice the rows would bring" in page


@pytest.mark.parametrize(
    ("wrong", "gain"),
    [
        pytest.param({0.25: 0, 0.5: 0, 1.0: 4}, -0.1, id="a half that is always right is no measure"),
        pytest.param({0.25: 16, 0.5: 8, 1.0: 4}, 0.05, id="half of what is missing, and half of that"),
        pytest.param({0.25: 4, 0.5: 4, 1.0: 8}, -0.1, id="more missing than before"),
    ],
)
def test_doubling_once_more_divides_what_is_missing_as_before(
    wrong: dict[float, int], gain: float, tmp_path: Path
) -> None:
    task, train = examples(tmp_path, 40)

    def learn(folds: Any, share: float = 1.0) -> list[Any]:
        targets = [task.target(example.label) for example in train.examples]
        said = [1 - each for each in targets[: wrong[share]]] + targets[wrong[share] :]
        return [np.eye(2, dtype=np.float32)[each] for each in said]

    curve = measure_learning_curve(task, learn, train, folds_of(task, train.examples, 5))
    assert curve is not None
    assert curve.scores == pytest.approx([1 - each / 40 for each in wrong.values()])
    assert curve.gain == pytest.approx(gain)
    assert 0.01 < curve.error < 0.15
