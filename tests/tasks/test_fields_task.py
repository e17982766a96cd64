"""Several fields by one encoder: the loss by a plain loop, decoding, metrics, and what a checkpoint keeps."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_tasks import random_model, split_of

from bertsmith.errors import InputError, ModelError
from bertsmith.tasks.examples.text_settings import PooledSettings
from bertsmith.tasks.examples.text_task import TextExample
from bertsmith.tasks.fields import Fields
from bertsmith.tasks.task_model import outputs_of
from bertsmith.text.tokens.tokenizer import Tokenizer

ROWS: list[dict[str, Any]] = [
    {"intent": "card", "topics": ["a", "b"], "level": 2},
    {"intent": {"card": 0.75, "cash": 0.25}, "topics": [], "level": 10},
    {"intent": "cash", "topics": ["b"]},
    {"topics": ["a"], "level": "2"},
]


def learnt(rows: list[dict[str, Any]] = ROWS) -> tuple[Fields, list[TextExample]]:
    task = Fields(PooledSettings(pooling="mean"))
    examples = [
        TextExample("bano delo", None, task.as_target(json.dumps(row), f"line {n}"), f"line {n}")
        for n, row in enumerate(rows, 1)
    ]
    task.fit(examples)
    return task, examples


def test_a_file_of_fields_is_read(tmp_path: Path) -> None:
    """Labels are objects, which no set holds."""
    rows = [{"text": "bano delo", "label": json.dumps(row)} for row in ROWS]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    examples = Fields(PooledSettings(pooling="mean")).read(tmp_path / "rows.jsonl")
    assert [example.label for example in examples] == [example.label for example in learnt()[1]]


def test_outputs_are_those_of_all_fields_side_by_side() -> None:
    task, examples = learnt()
    assert task.labels == ("intent=card", "intent=cash", "level=2", "level=10", "topics=a", "topics=b")
    np.testing.assert_allclose(task.target(examples[1].label), [0.75, 0.25, 0, 1, 0, 0])
    assert np.isnan(task.target(examples[2].label)[2:4]).all()
    assert np.isnan(task.target(examples[3].label)[:2]).all()
    assert task.labels_of(examples[1]) == ("intent=card", "level=10")


def test_the_loss_is_that_of_a_plain_loop() -> None:
    task, examples = learnt()
    torch.manual_seed(0)
    outputs = torch.randn(4, 6)
    targets = [task.target(example.label) for example in examples]
    expected = 0.0
    for row, wanted in zip(outputs.tolist(), targets, strict=True):
        for start, end in ((0, 2), (2, 4)):
            if not math.isnan(wanted[start]):
                total = math.log(sum(math.exp(each) for each in row[start:end]))
                expected -= sum(
                    w * (each - total) for w, each in zip(wanted[start:end], row[start:end], strict=True)
                )
        for w, each in zip(wanted[4:], row[4:], strict=True):
            share = 1 / (1 + math.exp(-each))
            expected -= (w * math.log(share) + (1 - w) * math.log(1 - share)) / 2
    assert float(task.loss(outputs, targets)) == pytest.approx(expected / 3, rel=1e-5)


def test_a_field_that_a_row_leaves_out_teaches_nothing() -> None:
    task, examples = learnt()
    outputs = torch.randn(1, 6, requires_grad=True)
    task.loss(outputs, [task.target(examples[2].label)]).backward()
    assert outputs.grad is not None
    assert (outputs.grad[0, 2:4] == 0).all() and (outputs.grad[0, [0, 1, 4, 5]] != 0).all()


def test_metrics_count_fields_and_whole_answers() -> None:
    task, examples = learnt()
    right = [
        {"fields": {"intent": "card", "topics": ["b", "a"], "level": "2"}},
        {"fields": {"intent": "card", "topics": [], "level": "2"}},
        {"fields": {"intent": "cash", "topics": ["b"], "level": "10"}},
        {"fields": {"intent": "card", "topics": ["b"], "level": "2"}},
    ]
    assert task.metrics(right, examples) == {
        "mean_accuracy": pytest.approx((3 / 3 + 3 / 4 + 2 / 3) / 3),
        "all_right": 0.5,
    }


def test_baselines_answer_every_field() -> None:
    task, examples = learnt(ROWS * 3)
    found = task.baselines(examples, examples)
    assert list(found) == ["majority", "TF-IDF + logistic regression"]
    for predictions in found.values():
        assert 0 < task.metrics(predictions, examples)["mean_accuracy"] <= 1


def test_a_task_from_its_state_decodes_alike(tokenizer: Tokenizer) -> None:
    task, examples = learnt()
    model = random_model(task, tokenizer)
    split = split_of(task, examples, tokenizer)
    outputs = outputs_of(model, split.encoded)
    again = Fields.from_state(json.loads(json.dumps(task.state())), "here")
    assert again.decode(outputs, examples, split.encoded) == task.decode(outputs, examples, split.encoded)
    with pytest.raises(ModelError, match="here: fields"):
        Fields.from_state(task.state() | {"fields": [{"name": "x"}]}, "here")
    with pytest.raises(ModelError, match="here: fields"):
        Fields.from_state({key: value for key, value in task.state().items() if key != "fields"}, "here")


@pytest.mark.parametrize(
    "label", ["card", "", "[]", "{}", '{"a": {"b": -1}}', '{"a": {"b": 0}}', '{"a": null}', '{"a": [""]}']
)
def test_labels_that_are_no_fields_are_one_sentence(label: str) -> None:
    with pytest.raises(InputError, match=r"^line 7"):
        Fields(PooledSettings()).as_target(label, "line 7")


def test_rows_that_contradict_each_other_and_rows_that_are_all_alike_are_refused() -> None:
    with pytest.raises(InputError, match=r"line 2: the field 'x' has a list of labels here"):
        learnt([{"x": "a"}, {"x": ["a"]}])
    with pytest.raises(InputError, match="nothing to tell apart"):
        learnt([{"x": "a", "y": []}] * 3)


def test_a_field_of_another_kind_than_in_training_is_refused_in_dev() -> None:
    """Nothing that the model says could be right; it counted as wrong."""
    task, examples = learnt()
    task.check(examples)
    unknown = TextExample("bano", None, task.as_target({"intent": "new", "other": "x"}, "line 8"), "line 8")
    task.check([unknown, TextExample("bano", None, None, "line 9")])
    for label, message in (
        ({"intent": ["card"]}, "line 5: the field 'intent' has a list of labels here and one class in"),
        ({"topics": "a"}, "line 5: the field 'topics' has one class here and a list of labels in"),
    ):
        with pytest.raises(InputError, match=message):
            task.check([TextExample("bano", None, task.as_target(label, "line 5"), "line 5")])
