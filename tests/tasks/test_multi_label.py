"""Several labels for a text: targets, thresholds chosen on dev, and labels that training never showed."""

import numpy as np
import pytest
import torch

from bertsmith.errors import InputError
from bertsmith.model.config import make_config
from bertsmith.tasks.examples.encoding import EncodedExample
from bertsmith.tasks.examples.text_task import TextExample
from bertsmith.tasks.multi_label import MultiLabel, MultiLabelSettings


def example(*labels: str) -> TextExample:
    return TextExample("bano", None, labels, "rows, line 1")


def learnt(*rows: tuple[str, ...]) -> MultiLabel:
    task = MultiLabel(MultiLabelSettings())
    task.fit([example(*row) for row in rows])
    return task


def test_targets_are_the_labels_that_hold() -> None:
    task = learnt(("c", "a"), (), ("b",))
    assert task.labels == ("a", "b", "c")
    assert task.target(("c", "a")).tolist() == [True, False, True]
    assert task.target(()).tolist() == [False, False, False]


def test_the_loss_is_the_mean_over_labels() -> None:
    task = learnt(("a", "b", "c"))
    torch.manual_seed(0)
    outputs, gold = torch.randn(5, 3), torch.rand(5, 3) < 0.5
    likelihood = torch.where(gold, outputs.sigmoid(), 1 - outputs.sigmoid()).log()
    found = task.loss(outputs, list(gold.numpy())) / task.count(list(gold.numpy()))
    assert float(found) == pytest.approx(-float(likelihood.mean()), rel=1e-5)


def test_a_new_head_gives_labels_as_often_as_training_has_them() -> None:
    task = learnt(*[("usual",)] * 60, *[("usual", "rare")] * 2, *[()] * 38)
    torch.manual_seed(0)
    head = task.head(make_config({"vocab_size": 9, "hidden_size": 64, "num_attention_heads": 2}, "test"))
    probabilities = torch.sigmoid(head.out(torch.tanh(torch.randn(500, 64)))).mean(0)
    assert task.labels == ("rare", "usual")
    assert probabilities.tolist() == pytest.approx([0.02, 0.62], abs=0.01)


def test_a_rare_label_gets_a_threshold_that_finds_it() -> None:
    """Its outputs never reach one half, but order the texts rightly: with 0.5 it would never be given."""
    task = learnt(("rare", "usual"))
    draw = np.random.default_rng(1)
    gold = np.stack([draw.random(300) < 0.1, draw.random(300) < 0.6], axis=1)
    outputs = np.where(gold, [-1.0, 2.0], [-4.0, -2.0]) + draw.normal(0, 0.3, gold.shape)
    encoded = [EncodedExample((), row) for row in gold]
    examples = [example(*np.array(task.labels)[row]) for row in gold]
    rows = list(outputs.astype(np.float32))
    assert task.metrics(task.decode(rows, examples, encoded), examples)["macro_f1"] < 0.6
    task.calibrate(rows, examples, encoded)
    after = task.decode(rows, examples, encoded)
    assert task.metrics(after, examples)["macro_f1"] > 0.95
    assert MultiLabel.from_state(task.state(), "here").decode(rows, examples, encoded) == after


def test_a_label_that_training_never_showed_counts_as_missed() -> None:
    task = learnt(("a",), ("b",))
    task.check([example("a", "new")])
    found = task.metrics([{"labels": ["a"]}, {"labels": ["b"]}], [example("a", "new"), example("b")])
    assert found["micro_f1"] == pytest.approx(2 * 2 / (2 + 3))
    assert found["subset_accuracy"] == 0.5
    (told,) = task.warnings([example("a", "new"), example("A", "new"), example("b")])
    assert told.startswith("2 labels, on 3 occasions, never occur in the training data, such as 'new'")
    assert not task.warnings([example("a", "b"), example()])


@pytest.mark.parametrize("label", ["a; b c", "b c|a", "a b c", "a/b c"])
def test_labels_with_another_separator_than_in_training_are_not_measured(label: str) -> None:
    """Each would be one label, which nobody can predict: a score of 0.93 was 0.18."""
    task = learnt(("a",), ("b c",), ("b",), ("c",))
    with pytest.raises(InputError, match=r"none of the training data, but several of them with .* Write ','"):
        task.check([example("a"), example(label)])
    task.check([example("a", "a; new")])  # one of the parts is nothing that training showed
    task.check([example("a", "b"), example(label)])  # the separator is that of training: a name


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([("0 1 0",), ("1 1 0",)], "'0 1 0' look like a 0 or 1 for each"),
        ([("010",), ("110",)], "'010' look like a 0 or 1 for each"),
        ([("no",), ("yes", "no")], "are no and yes. Of multi-hot lists name the labels"),
    ],
)
def test_multi_hot_lists_without_names_are_refused(rows: list[tuple[str, ...]], said: str) -> None:
    with pytest.raises(InputError, match=said):
        learnt(*rows)
    assert learnt(("010", "111"), ("010",)).labels == ("010", "111")


def test_no_label_anywhere_is_nothing_to_learn() -> None:
    with pytest.raises(InputError, match="None of the 2 training texts has a label"):
        learnt((), ())
