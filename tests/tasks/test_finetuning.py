"""Every task as the loop sees it: one loss however a batch is divided, one rule in training and prediction,
and a checkpoint that predicts what the model did.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from small_tasks import (
    LONG,
    NAMES,
    WORDS,
    examples_of,
    first_batch,
    make_task,
    objective_of,
    random_model,
    split_of,
)
from torch import Tensor

from bertsmith.data.batch import PackedBatch, batches_by_length, split
from bertsmith.data.stream import Cursor
from bertsmith.errors import BertsmithError, InputError, ModelError
from bertsmith.tasks.checkpoints.task_checkpoint import load_task_model, save_task_model
from bertsmith.tasks.examples.encoding import Layout, pack_examples
from bertsmith.tasks.finetuning import FinetuningObjective, steps_of_epoch
from bertsmith.tasks.losses.gradient_cache import pad_and_concatenate
from bertsmith.tasks.registry import TASKS, find_task
from bertsmith.tasks.task import Task
from bertsmith.tasks.task_model import TaskModel, outputs_of
from bertsmith.text.tokens.tokenizer import Tokenizer

VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in NAMES),
    ("tagging", {"crf": True}),
    ("similarity", {"pooling": "max"}),
    ("similarity", {"pooling": "cls"}),
    ("classification", {"class_weights": "auto"}),
    ("reranking", {"loss": "listwise"}),
    ("retrieval", {"symmetric": True, "query_prefix": "bano ", "normalise": False, "scale": 1.0}),
]
every_task = pytest.mark.parametrize(("name", "settings"), VARIANTS, ids=lambda value: str(value)[:40])


def trained(
    name: str, settings: dict[str, Any], tokenizer: Tokenizer
) -> tuple[Task[Any], TaskModel, list[Any], FinetuningObjective]:
    """A task that knows its labels, a random model, examples of up to 40 words, and its objective."""
    task = make_task(name, **LONG | settings)
    examples = examples_of(task, WORDS)
    model = random_model(task, tokenizer)
    return task, model, examples, objective_of(task, model, split_of(task, examples, tokenizer))


def test_every_task_of_ours_is_tested_here() -> None:
    assert set(TASKS) == set(NAMES)


@every_task
def test_a_step_is_the_same_however_small_the_micro_batches(
    name: str, settings: dict[str, Any], tokenizer: Tokenizer
) -> None:
    """20 tokens are one or two windows: less than many an example."""
    _, model, _, objective = trained(name, settings, tokenizer)
    whole, gradients = step(objective, model, 1_000_000)
    parts, accumulated = step(objective, model, 20)
    assert parts == pytest.approx(whole, rel=1e-6)
    for parameter, (found, wanted) in zip(
        model.parameters(), zip(accumulated, gradients, strict=True), strict=True
    ):
        scale = max(1.0, float(wanted.abs().max()))
        assert float((found - wanted).abs().max()) <= 1e-5 * scale, tuple(parameter.shape)


def step(
    objective: FinetuningObjective, model: TaskModel, micro_batch_tokens: int
) -> tuple[float, list[Tensor]]:
    """Loss and gradients of a step, as the loop computes them."""
    sequences = first_batch(objective)
    count = objective.counts(sequences)["task"]
    model.zero_grad()
    total = 0.0
    parts = split(sequences, 1, micro_batch_tokens)
    objective.begin_step(parts, 0, lambda outputs: [outputs])
    for part in parts[0]:
        loss = objective.loss(part)["task"] / count
        loss.backward()
        total += float(loss.detach())
    return total, [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]


@every_task
def test_every_weight_of_the_model_is_trained(
    name: str, settings: dict[str, Any], tokenizer: Tokenizer
) -> None:
    _, model, _, objective = trained(name, settings, tokenizer)
    step(objective, model, 1_000_000)
    without = [name for name, parameter in model.named_parameters() if parameter.grad is None]
    assert without == []


@every_task
def test_outputs_in_training_are_those_of_prediction(
    name: str, settings: dict[str, Any], tokenizer: Tokenizer
) -> None:
    """Without dropout: the same windows, and the same pooling over them, example by example."""
    _, model, _, objective = trained(name, settings, tokenizer)
    encoded = objective.train.encoded
    assert any(len(each.windows) > 1 for each in encoded)
    model.train()
    together = model(PackedBatch.of(pack_examples(encoded, range(len(encoded)))), Layout(encoded))
    alone = outputs_of(model, encoded, batch_tokens=1)
    assert model.training, "outputs_of left the model in another mode"
    each_alone = [torch.from_numpy(each if model.head.per_row else each[None, :]) for each in alone]
    torch.testing.assert_close(together.detach(), pad_and_concatenate(each_alone), rtol=1e-5, atol=1e-5)


@every_task
def test_predictions_and_state_survive_a_checkpoint(
    name: str, settings: dict[str, Any], tokenizer: Tokenizer, tmp_path: Path
) -> None:
    task, model, examples, objective = trained(name, settings, tokenizer)
    encoded = objective.train.encoded
    model.head.finish()
    outputs = outputs_of(model, encoded)
    task.calibrate(outputs, examples, encoded)
    wanted = task.decode(outputs, examples, encoded)
    save_task_model(tmp_path / "model", model, task, tokenizer, {"steps": 3})
    again, opened = load_task_model(tmp_path / "model")
    assert (type(opened), opened.labels) == (type(task), task.labels)
    assert opened.state() == task.state()
    assert json.loads(json.dumps(task.state())) == task.state(), "not plain JSON"
    if name != "retrieval":  # whose ranks need labelled examples
        examples = [opened.example(given(task, example)) for example in examples]
    found = split_of(opened, examples, Tokenizer.load(tmp_path / "model"))
    assert opened.decode(outputs_of(again, found.encoded), examples, found.encoded) == wanted


def given(task: Task[Any], example: Any) -> Any:
    """What a user would give to have this example predicted."""
    if task.name == "tagging":
        return example.words
    texts = task.texts(example)
    return texts[0] if len(texts) == 1 else tuple(texts)


@every_task
def test_metrics_of_right_predictions_are_perfect(
    name: str, settings: dict[str, Any], tokenizer: Tokenizer
) -> None:
    task, _, examples, _ = trained(name, settings, tokenizer)
    right: dict[str, Callable[[Any], Any]] = {
        "classification": lambda example: {"label": example.label},
        "multi-label": lambda example: {"labels": list(example.label)},
        "regression": lambda example: {"score": example.label},
        "similarity": lambda example: {"similarity": example.label / 5},
        "tagging": lambda example: {"tags": list(example.tags)},
        "question-answering": lambda example: {"answer": example.answers[0][0] if example.answers else ""},
        "retrieval": lambda example: {"rank": 1},
        "reranking": lambda example: {"score": example.label / 2},
    }
    predictions = [right[name](example) for example in examples]
    assert task.metrics(predictions, examples)[task.main_metric] == pytest.approx(1.0)
    baselines = task.baselines(examples, examples)
    assert len(baselines) >= 2
    for guessed in baselines.values():
        assert len(guessed) == len(examples)
        assert task.metrics(guessed, examples)[task.main_metric] <= 1.0


# -- order of the examples ---------------------------------------------------------------------------------


def small_objective(tokenizer: Tokenizer, batch_size: int) -> FinetuningObjective:
    task = make_task("classification")
    examples = examples_of(task, WORDS, count=11, longest=4)
    model = random_model(task, tokenizer)
    return objective_of(task, model, split_of(task, examples, tokenizer), batch_size)


def test_an_epoch_shows_each_example_once_and_the_next_one_in_another_order(tokenizer: Tokenizer) -> None:
    objective = small_objective(tokenizer, 4)
    stream = objective.batches(Cursor())
    epochs = [[next(stream).sequences.keys.astype(int).tolist() for _ in range(3)] for _ in range(2)]
    for epoch in epochs:
        assert [len(batch) for batch in epoch] == [4, 4, 3]
        assert sorted(key for batch in epoch for key in batch) == list(range(11))
    assert epochs[0] != epochs[1]


def test_a_cursor_takes_up_the_stream_where_it_was_left(tokenizer: Tokenizer) -> None:
    objective = small_objective(tokenizer, 4)
    stream = objective.batches(Cursor())
    batches = [next(stream) for _ in range(7)]
    for number, batch in enumerate(batches[:-1]):
        assert batch.end == batches[number + 1].start
        following = next(objective.batches(batch.end))
        assert following.sequences.keys.tolist() == batches[number + 1].sequences.keys.tolist()


def test_prediction_batches_hold_every_example_once_within_their_budget(tokenizer: Tokenizer) -> None:
    task = make_task("classification", **LONG)
    encoded = split_of(task, examples_of(task, WORDS, count=30), tokenizer).encoded
    sizes = [sum(len(window.token_ids) for window in each.windows) for each in encoded]
    batches = list(batches_by_length([each.tokens for each in encoded], 60))
    assert sorted(number for batch in batches for number in batch) == list(range(30))
    assert all(len(batch) == 1 or sum(sizes[n] for n in batch) <= 60 for batch in batches)


# -- what a file may not do --------------------------------------------------------------------------------


def saved_model(tokenizer: Tokenizer, folder: Path, name: str = "classification", **settings: Any) -> Path:
    task, model, _, _ = trained(name, settings, tokenizer)
    save_task_model(folder, model, task, tokenizer, {})
    return folder


@pytest.mark.parametrize("named", ["os:system", "small_tasks:NAMES", "no-such-task", "pretraining"])
def test_a_file_that_names_a_strange_task_is_refused_and_imports_nothing(
    named: str, tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = saved_model(tokenizer, tmp_path / "model")
    rewrite(folder, task=named)

    def refuse(*arguments: Any) -> None:
        raise AssertionError(f"imports {arguments}")

    monkeypatch.setattr("bertsmith.tasks.registry.import_module", refuse)
    with pytest.raises(ModelError, match="none of Bertsmith's tasks"):
        load_task_model(folder)


def rewrite(folder: Path, **changes: Any) -> None:
    path = folder / "bertsmith.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"settings": {"max_length": 128, "surprise": 1}, "labels": ["a", "b"]},
        {"settings": {"max_length": "long"}, "labels": ["a", "b"]},
        {"settings": {}, "labels": None},
    ],
    ids=["empty", "unknown key", "wrong type", "no labels"],
)
@pytest.mark.parametrize("name", NAMES)
def test_altered_settings_are_refused_by_name(name: str, settings: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match=r"MODEL/bertsmith\.json"):
        find_task(name).from_state(settings, "MODEL/bertsmith.json")


def test_labels_that_dont_fit_the_head_are_refused(tokenizer: Tokenizer, tmp_path: Path) -> None:
    folder = saved_model(tokenizer, tmp_path / "model")
    _, task = load_task_model(folder)
    rewrite(folder, settings=task.state() | {"labels": ["one", "two"]})
    with pytest.raises(ModelError, match=r"weight must have the shape \(2, 16\), found \(3, 16\)"):
        load_task_model(folder)


def test_the_crf_lies_beside_the_weights_and_is_needed(tokenizer: Tokenizer, tmp_path: Path) -> None:
    folder = saved_model(tokenizer, tmp_path / "model", "tagging", crf=True)
    assert (folder / "head.safetensors").is_file()
    manifest = json.loads((folder / "bertsmith.json").read_text())
    (folder / "head.safetensors").unlink()
    with pytest.raises(ModelError, match=r"head\.safetensors"):
        load_task_model(folder)
    rewrite(folder, files={k: v for k, v in manifest["files"].items() if k != "head.safetensors"})
    with pytest.raises(ModelError, match=r"missing crf\."):
        load_task_model(folder)


def test_a_crf_swapped_for_another_is_refused(tokenizer: Tokenizer, tmp_path: Path) -> None:
    folder = saved_model(tokenizer, tmp_path / "model", "tagging", crf=True)
    data = bytearray((folder / "head.safetensors").read_bytes())
    data[-1] ^= 1
    (folder / "head.safetensors").write_bytes(data)
    with pytest.raises(ModelError, match=r"head\.safetensors has the SHA-256"):
        load_task_model(folder)


def test_a_bare_encoder_is_no_task(tokenizer: Tokenizer, tmp_path: Path) -> None:
    folder = saved_model(tokenizer, tmp_path / "model", "similarity")
    (folder / "bertsmith.json").unlink()
    with pytest.raises(ModelError, match="without a head for a task"):
        load_task_model(folder)


def test_an_unknown_task_of_the_users_has_a_suggestion() -> None:
    with pytest.raises(InputError, match="Did you mean 'classification'"):
        find_task("clasification")
    with pytest.raises(BertsmithError, match="is not a subclass"):
        find_task("os:system")


def test_an_epoch_of_whole_groups_has_as_many_steps_as_batches(tokenizer: Tokenizer) -> None:
    """Candidates of a query stay together: 20 queries of 10, and room for 8, are 20 batches and not 25."""
    task = make_task("reranking", loss="listwise")
    rows = [
        replace(task.example(("bano " * (query + 1), "kelo")), label=float(n == 0))
        for query in range(20)
        for n in range(10)
    ]
    task.fit(rows)
    train = split_of(task, rows, tokenizer)
    assert steps_of_epoch(task, train, 8) == 20
    assert steps_of_epoch(make_task("reranking"), train, 8) == 25


def test_an_evaluation_gives_no_answer_where_the_finished_model_will(tokenizer: Tokenizer) -> None:
    """By no threshold every question without an answer is wrong, and what learns to see them seems worse."""
    task, model, examples, objective = trained("question-answering", {}, tokenizer)
    assert objective.dev is not None
    found = objective.evaluate(0, 1, lambda *given: None)  # type: ignore[arg-type, return-value]
    assert task.threshold is None  # type: ignore[attr-defined]
    outputs = outputs_of(model, objective.dev.encoded)
    before = task.metrics(task.decode(outputs, examples, objective.dev.encoded), examples)
    task.calibrate(outputs, examples, objective.dev.encoded)
    after = task.metrics(task.decode(outputs, examples, objective.dev.encoded), examples)
    assert found == after
    assert before["f1_unanswerable"] == 0 and after["f1"] > before["f1"]
