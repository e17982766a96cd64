"""A head begun as a linear model: against scikit-learn's, and what training and files make of it."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression, Ridge
from small_tasks import VALUES, WORDS, examples_of, make_task, random_model, split_of

from bertsmith.tasks.examples.held_out import folds_of
from bertsmith.tasks.heads import linear_start
from bertsmith.tasks.heads.classifier_head import ClassifierHead
from bertsmith.tasks.heads.linear_start import LinearProbe, LinearStart, compute_features, fit_linear_start
from bertsmith.tasks.tagging import TaggingHead
from bertsmith.tasks.task_model import TaskModel, outputs_of
from bertsmith.text.tokens.tokenizer import Tokenizer

LINEAR = ["classification", "multi-label", "regression", "tagging", "reranking"]
POOLED = ["classification", "multi-label", "regression"]


def start_of(
    name: str, tokenizer: Tokenizer, count: int = 60, **settings: Any
) -> tuple[Any, TaskModel, Any, LinearStart]:
    task = make_task(name, **settings)
    examples = examples_of(task, WORDS, count, longest=12)
    model = random_model(task, tokenizer)
    train = split_of(task, examples, tokenizer)
    start = fit_linear_start(task, model, train)
    assert start is not None
    return task, model, train, start


def mean_loss(task: Any, model: TaskModel, train: Any) -> float:
    outputs = [torch.from_numpy(each) for each in outputs_of(model, train.encoded)]
    joined = torch.cat(outputs) if model.head.per_row else torch.stack(outputs)
    targets = [each.target for each in train.encoded]
    return float(task.loss(joined, targets)) / task.count(targets)


@pytest.fixture
def fitted_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear_start.minimise, "__defaults__", (100,))


@pytest.mark.parametrize("name", LINEAR)
def test_it_beats_a_head_that_has_not_seen_the_rows(tokenizer: Tokenizer, name: str) -> None:
    task, model, train, start = start_of(name, tokenizer)
    assert isinstance(model.head, ClassifierHead)
    with torch.no_grad():
        model.head.out.weight.zero_()
    before = mean_loss(task, model, train)
    start.apply(model)
    assert mean_loss(task, model, train) < before


@pytest.mark.usefixtures("fitted_to_the_end")
@pytest.mark.parametrize("pooling", [None, "mean", "cls", "max"])
def test_classes_are_those_of_scikit_learns_logistic_regression(
    tokenizer: Tokenizer, pooling: str | None
) -> None:
    _, model, train, start = start_of("classification", tokenizer, pooling=pooling)
    features = torch.stack(compute_features(model, train.encoded)).numpy()
    scale = np.sqrt((features**2).sum(1).mean())
    gold = np.array([each.target for each in train.encoded])
    theirs = LogisticRegression(C=1 / start.strength, tol=1e-8, max_iter=5000).fit(features / scale, gold)
    start.apply(model)
    ours = np.stack(outputs_of(model, train.encoded))
    expected = theirs.predict_log_proba(features / scale)
    found = ours - np.logaddexp.reduce(ours, axis=1, keepdims=True)
    np.testing.assert_allclose(found, expected, atol=5e-3)


@pytest.mark.usefixtures("fitted_to_the_end")
def test_numbers_are_those_of_scikit_learns_ridge_regression(tokenizer: Tokenizer) -> None:
    _, model, train, start = start_of("regression", tokenizer, pooling="mean")
    features = torch.stack(compute_features(model, train.encoded)).numpy()
    gold = np.array([each.target for each in train.encoded])
    scale = np.sqrt((features**2).sum(1).mean())
    # half of the squares here, all of them there
    theirs = Ridge(alpha=start.strength / 2).fit(features / scale, gold)
    start.apply(model)
    found = np.stack(outputs_of(model, train.encoded))[:, 0]
    np.testing.assert_allclose(found, theirs.predict(features / scale), atol=5e-3)


@pytest.mark.parametrize("name", LINEAR)
def test_the_model_stays_as_it_is_and_the_start_is_the_same_again(tokenizer: Tokenizer, name: str) -> None:
    task, model, train, start = start_of(name, tokenizer)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    again = fit_linear_start(task, model, train)
    assert again is not None
    assert torch.equal(start.weight, again.weight)
    assert torch.equal(start.bias, again.bias)
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


@pytest.mark.parametrize("name", POOLED)
@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
def test_windows_of_a_long_text_are_pooled_together(tokenizer: Tokenizer, name: str, pooling: str) -> None:
    """However a text is cut into windows without an overlap, a mean is one of all its tokens."""
    task = make_task(name, pooling=pooling, max_length=16, stride=3)
    examples = examples_of(task, WORDS, 6)
    model = random_model(task, tokenizer)
    train = split_of(task, examples, tokenizer)
    assert any(len(each.windows) > 1 for each in train.encoded)
    for each, output in zip(train.encoded, outputs_of(model, train.encoded), strict=True):
        alone = outputs_of(model, [each])[0]
        np.testing.assert_allclose(output, alone, atol=1e-5)


def test_heads_that_are_not_linear_have_none(tokenizer: Tokenizer) -> None:
    for name in ("similarity", "retrieval"):
        task = make_task(name)
        examples = examples_of(task, WORDS)
        assert (
            fit_linear_start(task, random_model(task, tokenizer), split_of(task, examples, tokenizer)) is None
        )


def test_many_examples_are_sampled(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear_start, "MOST_EXAMPLES", 12)
    monkeypatch.setattr(linear_start, "_MOST_TO_CHOOSE_BY", 9)
    read: list[int] = []
    original = linear_start.compute_features
    monkeypatch.setattr(
        linear_start,
        "compute_features",
        lambda model, encoded, *given: read.append(len(encoded)) or original(model, encoded, *given),
    )
    start_of("classification", tokenizer)
    assert read == [12]


def test_of_a_head_that_answers_for_each_word_as_many_are_taken_as_fit_into_memory(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQuAD's passages have some two hundred rows each."""
    for name, expected in (("tagging", 20), ("classification", 60)):
        task = make_task(name)
        train = split_of(task, examples_of(task, WORDS, 60, longest=12), tokenizer)
        model = random_model(task, tokenizer)
        if name == "tagging":
            rows = sum(len(window.rows) for example in train.encoded for window in example.windows)
            room = rows * model.config.hidden_size // 3 + 1
            monkeypatch.setattr(linear_start, "_MOST_FEATURES", room)
        probe = LinearProbe.of(task, model, train)
        assert probe is not None and probe.examples is not None
        assert expected <= len(probe) == len(probe.examples) <= expected + 1
        judged, said = probe.predict_some_held_out(1.0)
        assert len(judged) == len(probe)
        for each, outputs in zip(probe.examples.some(judged).encoded, said, strict=True):
            assert name != "tagging" or len(outputs) == sum(len(window.rows) for window in each.windows)
        monkeypatch.setattr(linear_start, "_MOST_ROWS_TO_CHOOSE_BY", 60)
        judged, _ = probe.predict_some_held_out(1.0)
        assert (len(judged) < len(probe)) == (name == "tagging")
        monkeypatch.setattr(linear_start, "_MOST_ROWS_TO_CHOOSE_BY", 100_000)


def test_rare_labels_leave_no_fold_without_a_loss(tokenizer: Tokenizer) -> None:
    """A class of one example is in one fold; the others have none to measure, and nothing breaks."""
    task = make_task("classification")
    examples = examples_of(task, WORDS, 12)
    examples[0] = replace(examples[0], label="once")
    task.fit(examples)
    model = random_model(task, tokenizer)
    start = fit_linear_start(task, model, split_of(task, examples, tokenizer))
    assert start is not None
    assert start.weight.shape[0] == len(VALUES["classification"]) + 1
    assert start.weight.isfinite().all()


def test_a_trained_crf_changes_nothing_of_the_linear_model_beside_it(tokenizer: Tokenizer) -> None:
    """Folds are judged again after training, when the task decodes by the trained transitions."""
    task = make_task("tagging", crf=True)
    examples = examples_of(task, WORDS, 30, longest=12)
    model = random_model(task, tokenizer)
    probe = LinearProbe.of(task, model, split_of(task, examples, tokenizer))
    assert probe is not None
    folds = np.arange(30) % 3
    before = probe.predict_held_out(folds, 0.06)
    trained = random_model(task, tokenizer)
    assert isinstance(trained.head, TaggingHead) and trained.head.crf is not None
    with torch.no_grad():
        trained.head.crf.transitions.normal_(0, 5)
    task.bind(trained.head)
    for ours, theirs in zip(probe.predict_held_out(folds, 0.06), before, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert np.array_equal(task.bound_weights()["transitions"], trained.head.crf.transitions.detach().numpy())


def test_a_crf_has_no_gradient_of_the_linear_model_when_its_training_begins(tokenizer: Tokenizer) -> None:
    _, model, _, _ = start_of("tagging", tokenizer, count=12, crf=True)
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("name", ["multi-label", "tagging"])
def test_those_who_judge_some_learned_from_most(
    name: str, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However few are judged: thresholds of a model that knows less don't suit the final one."""
    monkeypatch.setattr(linear_start, "_MOST_TO_CHOOSE_BY", 20)
    task = make_task(name)
    examples = examples_of(task, WORDS, 60, longest=12)
    probe = LinearProbe.of(task, random_model(task, tokenizer), split_of(task, examples, tokenizer))
    assert probe is not None
    rows, said = probe.predict_some_held_out(0.25)
    whole = probe.predict_held_out(folds_of(task, examples, 5), 0.25)
    assert 20 <= len(rows) == len(said) < 60
    for row, each in zip(rows.tolist(), said, strict=True):
        np.testing.assert_allclose(each, whole[row], rtol=1e-4, atol=1e-5)
