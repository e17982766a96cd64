"""What bertsmith.json and config.json say of a task is believed only where it could have been written."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from small_tasks import LONG, WORDS, examples_of, make_task, random_model

from bertsmith.errors import ModelError
from bertsmith.tasks.checkpoints.task_checkpoint import load_task_model, save_task_model
from bertsmith.tasks.registry import find_task
from bertsmith.text.tokens.tokenizer import Tokenizer

CONFIDENCE = {
    "temperature": 1.5,
    "ece_before": 0.1,
    "ece_after": 0.1,
    "threshold": 0.0,
    "coverage": 1.0,
    "risk": 0.0,
    "examples": 10,
}


@pytest.fixture
def altered(tokenizer: Tokenizer, tmp_path: Path) -> Callable[..., Path]:
    """A saved model whose state says something else."""

    def make(name: str = "classification", settings: dict[str, Any] | None = None, **state: Any) -> Path:
        task = make_task(name, **LONG)
        examples_of(task, WORDS)
        save_task_model(tmp_path / "model", random_model(task, tokenizer), task, tokenizer, {})
        path = tmp_path / "model" / "bertsmith.json"
        manifest = json.loads(path.read_text())
        manifest["settings"] |= state
        manifest["settings"]["settings"] |= settings or {}
        path.write_text(json.dumps(manifest))
        return tmp_path / "model"

    return make


@pytest.mark.parametrize("temperature", [0, -1, float("nan"), float("inf"), None, "1"])
def test_an_impossible_temperature_is_refused(altered: Callable[..., Path], temperature: Any) -> None:
    folder = altered(confidence=CONFIDENCE | {"temperature": temperature})
    with pytest.raises(ModelError, match=r"bertsmith\.json: confidence: temperature: expected"):
        load_task_model(folder)


@pytest.mark.parametrize("pairs", [None, 1, "yes"])
def test_whether_it_reads_pairs_is_true_or_false(altered: Callable[..., Path], pairs: Any) -> None:
    with pytest.raises(ModelError, match=r"bertsmith\.json: pairs: expected true or false, found"):
        load_task_model(altered(pairs=pairs))


def test_thresholds_are_as_many_as_labels(altered: Callable[..., Path]) -> None:
    folder = altered("multi-label", confidence=CONFIDENCE | {"label_thresholds": [0.5, 0.5]})
    with pytest.raises(ModelError, match="2 thresholds for 3 labels"):
        load_task_model(folder)


@pytest.mark.parametrize(
    ("labels", "complaint"),
    [
        (["no", "no", "yes"], "the label 'no' stands twice"),
        (["no", "", "yes"], "one of the 3 labels is empty"),
        (["no", " ", "yes"], "one of the 3 labels is empty"),
        (["no", 3, "yes"], "labels.1: expected text, found 3"),
        ("abc", "labels: expected a list"),
        ({"no": 0, "yes": 1, "perhaps": 2}, "labels: expected a list"),
        (None, "labels: expected a list"),
    ],
)
def test_labels_are_names_and_each_stands_once(
    altered: Callable[..., Path], labels: Any, complaint: str
) -> None:
    folder = altered(labels=labels)
    with pytest.raises(ModelError, match=rf"bertsmith\.json: {complaint}"):
        load_task_model(folder)


def test_labels_of_another_tool_s_folder_are_checked_too(altered: Callable[..., Path]) -> None:
    folder = altered()
    (folder / "bertsmith.json").unlink()
    config = json.loads((folder / "config.json").read_text())
    config["id2label"] = {"0": "no", "1": "yes", "2": "no"}
    del config["label2id"]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=r"config\.json: the label 'no' stands twice"):
        load_task_model(folder)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"max_length": 32, "stride": 31}, "stride = 31, but with max_length = 32 there is room for 30"),
        ({"max_length": 32, "stride": 30}, "stride = 30"),
        ({"max_length": 65}, "max_length = 65, but the model has positions for 64"),
        ({"max_length": "32"}, "max_length: expected a whole number"),
        ({"header": "no"}, "header: expected"),
        ({"surprise": 1}, "unknown key 'surprise'"),
    ],
)
@pytest.mark.parametrize("name", ["classification", "tagging"])
def test_settings_are_checked_as_strictly_as_those_of_a_training(
    altered: Callable[..., Path], name: str, settings: dict[str, Any], complaint: str
) -> None:
    folder = altered(name, settings)
    with pytest.raises(ModelError, match=rf"bertsmith\.json: {complaint}"):
        load_task_model(folder)


@pytest.mark.parametrize(
    ("name", "state"),
    [
        ("reranking", {"highest": 0}),
        ("reranking", {"highest": float("nan")}),
        ("similarity", {"range": [1, 1]}),
        ("similarity", {"range": [0, float("inf")]}),
        ("question-answering", {"threshold": float("nan")}),
        ("question-answering", {"threshold": True}),
    ],
)
def test_numbers_that_can_t_be_reckoned_with_are_refused(name: str, state: dict[str, Any]) -> None:
    task = make_task(name)
    with pytest.raises(ModelError, match=f"here: {next(iter(state))}: expected"):
        find_task(name).from_state(task.state() | state, "here")
