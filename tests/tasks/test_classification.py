"""Classes: labels and their weights, the weighted loss, probabilities, and what is refused."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from bertsmith.errors import InputError, ModelError, RecipeError
from bertsmith.tasks.classification import Classification, ClassificationSettings
from bertsmith.tasks.examples.text_task import TextExample
from bertsmith.text.tokens.tokenizer import Tokenizer


def task_of(labels: list[str], **settings: Any) -> Classification:
    task = Classification(ClassificationSettings(**settings))
    task.fit(examples_of(labels))
    return task


def examples_of(labels: list[str]) -> list[TextExample]:
    return [TextExample("bano", None, label, f"rows, line {n}") for n, label in enumerate(labels, 1)]


def test_labels_that_are_numbers_stand_by_value() -> None:
    assert task_of(["10", "2", "b", "a", "2"]).labels == ("2", "10", "a", "b")


@pytest.mark.parametrize("labels", [["nan", "1", "2"], ["2", "nan", "1"], ["1", "2", "nan"]])
def test_labels_that_only_look_like_numbers_stand_the_same_in_every_order(labels: list[str]) -> None:
    assert task_of(labels).labels == ("1", "2", "nan")


def test_automatic_weights_make_each_class_count_the_same() -> None:
    labels = ["a"] * 6 + ["b"] * 3 + ["c"]
    task = task_of(labels, class_weights="auto")
    weights = [task.count([task.target(label)]) for label in ("a", "b", "c")]
    shares = [weight * Counter(labels)[label] for weight, label in zip(weights, "abc", strict=True)]
    assert shares == pytest.approx([10 / 3] * 3)
    assert task.count([task.target(label) for label in labels]) == pytest.approx(len(labels))


def test_the_weighted_loss_is_the_weighted_mean() -> None:
    task = task_of(["a", "b", "c"], class_weights={"a": 1.0, "b": 5.0, "c": 0.5})
    torch.manual_seed(0)
    outputs, targets = torch.randn(20, 3), torch.randint(0, 3, (20,))
    wanted = F.cross_entropy(outputs, targets, torch.tensor([1.0, 5.0, 0.5]))
    found = task.loss(outputs, targets.tolist()) / task.count(targets.tolist())
    assert float(found) == pytest.approx(float(wanted), rel=1e-6)


def test_weights_for_other_labels_are_refused() -> None:
    with pytest.raises(InputError, match=r"weights for a, d, but the labels are a, b\."):
        task_of(["a", "b"], class_weights={"a": 1.0, "d": 2.0})


def test_one_class_is_nothing_to_learn() -> None:
    with pytest.raises(InputError, match=r"3 training texts has the label 'a', from rows, line 1"):
        task_of(["a", "a", "a"])


def test_predictions_are_softmax_with_the_chosen_temperature() -> None:
    """Overconfident outputs: the temperature rises, the labels stay, the threshold abstains."""
    task = task_of(["a", "b"], coverage=0.5)
    draw = np.random.default_rng(0)
    gold = draw.integers(0, 2, 400)
    margin = np.where(draw.random(400) < 0.75, 1, -1) * np.abs(draw.normal(6, 2, 400))
    outputs = [np.array([-m, m] if g else [m, -m], np.float32) / 2 for m, g in zip(margin, gold, strict=True)]
    encoded = [_Target(int(number)) for number in gold]
    before = task.decode(outputs, [], [])
    figures = task.calibrate(outputs, [], encoded)  # type: ignore[arg-type]
    after = task.decode(outputs, [], [])
    assert task.confidence is not None
    assert task.confidence.temperature > 2
    assert figures["ece_after"] < figures["ece_before"] / 2
    assert [p["label"] for p in after] == [p["label"] for p in before]
    assert np.mean([p["confidence"] for p in after]) == pytest.approx(0.75, abs=0.03)
    assert np.mean([p["abstain"] for p in after]) == pytest.approx(0.5, abs=0.01)
    again = Classification.from_state(task.state(), "here")
    assert again.decode(outputs, [], []) == after


@pytest.mark.parametrize("rule", [{"coverage": 1.0}, {"error_cost": 1.0, "abstain_cost": 2.0}])
def test_a_rule_that_answers_everything_still_says_so(rule: dict[str, float]) -> None:
    task = task_of(["a", "b"], **rule)
    gold = [0, 1] * 10
    outputs = [np.array([1.0, -1.0] if label == 0 else [-1.0, 1.0], np.float32) for label in gold]
    task.calibrate(outputs, [], [_Target(label) for label in gold])  # type: ignore[arg-type]
    assert [prediction["abstain"] for prediction in task.decode(outputs, [], [])] == [False] * 20


@pytest.mark.parametrize("weight", [0.0, -1.0, np.nan, np.inf])
def test_a_weight_of_nothing_is_refused(weight: float) -> None:
    with pytest.raises(RecipeError, match="class_weights"):
        ClassificationSettings(class_weights={"a": 1.0, "b": weight})


def test_costs_set_the_threshold_by_chows_rule() -> None:
    settings = ClassificationSettings(error_cost=4, abstain_cost=1)
    assert settings.threshold([0.1, 0.9]) == 0.75


@pytest.mark.parametrize(
    "rule",
    [{"error_cost": 1.0}, {"abstain_cost": 1.0}, {"coverage": 0.9, "error_cost": 1, "abstain_cost": 1}],
)
def test_half_a_rule_or_two_are_refused_before_anything_is_trained(rule: dict[str, float]) -> None:
    with pytest.raises(RecipeError, match="expected coverage, or error_cost and abstain_cost together"):
        ClassificationSettings(**rule)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("key", "value"),
    [("coverage", 0.0), ("coverage", 90), ("error_cost", 0.0), ("error_cost", np.inf), ("abstain_cost", -1)],
)
def test_rules_that_are_none_are_refused_before_anything_is_trained(key: str, value: float) -> None:
    with pytest.raises(RecipeError, match=key):
        ClassificationSettings(**{"error_cost": 1, "abstain_cost": 1} | {key: value})  # type: ignore[arg-type]


class _Target:
    def __init__(self, target: int) -> None:
        self.target = target


def test_altered_confidence_is_refused() -> None:
    state = task_of(["a", "b"]).state() | {"confidence": {"temperature": -1}}
    with pytest.raises(ModelError, match="here"):
        Classification.from_state(state, "here")


def test_columns_named_once_hold_for_the_files_that_follow(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("label,premise,hypothesis\nyes,a b,c\nno,d,e f\n")
    (tmp_path / "dev.csv").write_text("hypothesis,label,text,premise\nx,no,wrong,y\n")
    task = Classification(ClassificationSettings())
    first = task.read(tmp_path / "train.csv")
    assert [(e.text, e.text_pair, e.label) for e in first] == [("a b", "c", "yes"), ("d", "e f", "no")]
    (other,) = task.read(tmp_path / "dev.csv")
    assert (other.text, other.text_pair, other.label) == ("y", "x", "no")
    assert other.where.endswith("dev.csv, line 2")


def test_a_named_text_means_no_pair(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("text1,text2,label\na,b,yes\n")
    (example,) = Classification(ClassificationSettings(text="text1")).read(tmp_path / "train.csv")
    assert (example.text, example.text_pair) == ("a", None)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"label": "text"}, r"the column 'text' is the label: it can't be the text too"),
        ({"text": "text", "label": "text"}, r"the column 'text' is the label: it can't be the text too"),
        ({"text_pair": "text", "text": "text"}, r"is the second text: it can't be the text too"),
        ({"text": "text", "label": "score", "features": ("score",)}, r"it can't be one of the features too"),
        (
            {"features": ("2",)},
            r"'score' is the label: it can't be one of the features too\. '2' is the same",
        ),
        ({"text": 1, "label": 2, "features": ("score",)}, r"2 is the label: it can't be one of the features"),
        (
            {"text": 1, "label": "2", "features": ("02",)},
            r"'2' is the label: it can't be one of the features",
        ),
        (
            {"text": "text", "label": "score", "features": ("1",)},
            r"the text: it can't be one of the features",
        ),
        ({"text": "text", "label": 1}, r"1 is the label: it can't be the text too\. 'text' is the same"),
        ({"text": 1, "text_pair": "text", "label": 2}, r"is the second text: it can't be the text too"),
        ({"features": ("plan", "3")}, r"'3' is one of the features: it can't be one of the features too"),
        (
            {"header": False, "text": 1, "label": 2, "features": ("2",)},
            r"it can't be one of the features too",
        ),
    ],
)
def test_a_column_plays_one_role(tmp_path: Path, settings: dict[str, Any], complaint: str) -> None:
    (tmp_path / "train.csv").write_text("text,score,plan\na,1,x\nb,2,y\n")
    with pytest.raises(InputError, match=complaint + r"|no column has a name that says it holds the text"):
        Classification(ClassificationSettings(**settings)).read(tmp_path / "train.csv")


def test_a_column_whose_name_is_a_number_is_not_taken_for_that_column(tmp_path: Path) -> None:
    """As pandas names them: "1" is the second one."""
    (tmp_path / "train.csv").write_text("0,1,2\na,5,yes\nb,6,no\n")
    settings = ClassificationSettings(text="0", label="2", features=("1",))
    read = Classification(settings).read(tmp_path / "train.csv")
    assert [(each.text, each.columns, each.label) for each in read] == [
        ("a", ("5",), "yes"),
        ("b", ("6",), "no"),
    ]
    settings = ClassificationSettings(text=1, label=2, features=("1",))
    with pytest.raises(InputError, match=r"2 is the label: it can't be one of the features too\. '1' is"):
        Classification(settings).read(tmp_path / "train.csv")


@pytest.mark.parametrize("label", [2, "2", "answer", None])
def test_a_label_given_by_its_number_is_known_among_rows_without(tmp_path: Path, label: Any) -> None:
    name = "label" if label is None else "answer"
    (tmp_path / "some.csv").write_text(f"text,{name}\na,yes\nb,\n")
    settings = ClassificationSettings(text="text", label=label)
    rows = Classification(settings).read_partly_labelled(tmp_path / "some.csv")
    assert [(row.text, row.label) for row in rows] == [("a", "yes"), ("b", None)]


def test_a_file_without_a_label_column_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("text,other\na,b\n")
    with pytest.raises(InputError, match=r"train\.csv: no column .* Name it with --label"):
        Classification(ClassificationSettings()).read(tmp_path / "train.csv")


def test_an_empty_text_is_encoded_as_special_tokens_alone(tokenizer: Tokenizer) -> None:
    task = task_of(["a", "b"])
    (pieces,) = tokenizer.encode_pieces([""])
    encoded = task.encode(TextExample("", None, "b", "here"), [pieces], tokenizer)
    assert [w.token_ids.tolist() for w in encoded.windows] == [[tokenizer.cls_id, tokenizer.sep_id]]
    assert encoded.target == 1


def test_a_stride_that_fits_a_single_text_only_does_for_a_pair(tokenizer: Tokenizer) -> None:
    """Three special tokens leave a pair of texts less room than two leave one text."""
    task = task_of(["a", "b"], max_length=32, stride=29)
    pieces = tokenizer.encode_pieces(["bano", "delo " * 60])
    encoded = task.encode(TextExample("bano", "delo " * 60, "b", "here"), pieces, tokenizer)
    assert max(len(window.token_ids) for window in encoded.windows) == 32


def test_a_pooling_that_there_is_not_is_refused_with_all_that_there_are() -> None:
    with pytest.raises(RecipeError, match="'mean', 'cls', 'max' or 'published'"):
        ClassificationSettings(pooling="median")  # type: ignore[arg-type]
