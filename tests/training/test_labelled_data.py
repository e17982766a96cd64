"""What a fine-tuning run reads and how it is set, before anything is trained."""

import json
from pathlib import Path

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
