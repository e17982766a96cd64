"""What a fine-tuning run reads and how it is set, before anything is trained."""

import json
from pathlib import Path

import pytest

from bertsmith.tasks.registry import find_task
from bertsmith.training.finetune_recipe import FinetuneRecipe, make_finetune_recipe
from bertsmith.training.labelled_data import read_labelled_data


def test_without_a_dev_file_a_share_is_held_out_that_stays_when_rows_are_added(tmp_path: Path) -> None:
    texts = [f"text number {number}" for number in range(400)]
    few, many = (held_out(tmp_path, f"{count}.jsonl", texts[:count]) for count in (300, 400))
    assert few == many & set(texts[:300])
    assert 15 <= len(few) <= 45
    doubled = held_out(tmp_path, "twice.jsonl", texts[:300] + texts[:300])
    assert doubled == few, "equal texts fell on both sides"


def held_out(folder: Path, name: str, texts: list[str]) -> set[str]:
    rows = [json.dumps({"text": text, "label": str(len(text) % 2)}) for text in texts]
    (folder / name).write_text("\n".join(rows))
    recipe = FinetuneRecipe(
        task="classification", model="m", train=str(folder / name), out="o", dev_share=0.1
    )
    kind = find_task("classification")
    data = read_labelled_data(kind(kind.Settings()), recipe)
    dev = {example.text for example in data.dev}
    assert dev.isdisjoint(example.text for example in data.train)
    assert len(data.train) + len(data.dev) == len(texts)
    return dev


def test_settings_of_the_task_stand_beside_those_of_the_run() -> None:
    values = {"task": "tagging", "model": "m", "train": "t", "out": "o"}
    recipe = make_finetune_recipe(values, ["crf=true", "optimizer.learning_rate=3e-5", "epochs=2"])
    assert (recipe.settings, recipe.epochs) == ({"crf": True}, 2)
    assert recipe.resolved(9 * 32 + 1, 7).steps == 20


@pytest.mark.parametrize(
    ("given", "width", "rows", "epochs", "rate"),
    [
        ([], 768, 100_000, 3, 5e-5),
        ([], 384, 100_000, 3, 1e-4),
        ([], 128, 100_000, 3, 3e-4),
        ([], 1024, 100_000, 3, 3.8e-5),
        ([], 384, 3576, 6, 1e-4),  # 112 steps an epoch
        ([], 384, 20, 10, 1e-4),
        (["batch_size=16"], 384, 3576, 3, 1e-4),
        (["lora.rank=8"], 384, 100_000, 3, 1e-3),
        (["epochs=3", "optimizer.learning_rate=5e-5"], 128, 20, 3, 5e-5),
        (["optimizer.weight_decay=0"], 384, 100_000, 3, 1e-4),
    ],
)
def test_what_nobody_gave_is_chosen_by_width_and_rows(
    given: list[str], width: int, rows: int, epochs: float, rate: float
) -> None:
    values = {"task": "classification", "model": "m", "train": "t", "out": "o"}
    recipe = make_finetune_recipe(values, given)
    completed = recipe.completed(width, rows)
    assert (completed.epochs, completed.optimizer.learning_rate) == (epochs, pytest.approx(rate))
    assert completed.optimizer.weight_decay == recipe.optimizer.weight_decay
    assert completed.completed(64, 7) == completed
    assert recipe.chosen_as(completed) == completed
