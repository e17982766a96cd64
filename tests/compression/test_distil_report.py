"""report.html of a distillation."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from distil_rows import write_rows

from bertsmith.compression.distilling.distil import distil_task
from bertsmith.compression.distilling.recipes import make_distil_recipe
from bertsmith.compression.distilling.tasks.report import format_command
from bertsmith.training import machine


def test_the_page_shows_all_sides_and_escapes_what_it_is_given(
    make_teacher: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "matmul_flops", lambda *_, **__: 1e11)
    dev = write_rows(tmp_path / "dev.jsonl", "classification", 30, seed=1)
    rows = [json.loads(line) for line in dev.read_text().splitlines()]
    rows = [row | {"text": f"<script>{row['text']}"} for row in rows]
    dev.write_text("".join(json.dumps(row) + "\n" for row in rows))
    train = write_rows(tmp_path / "train.jsonl", "classification", 40)
    files = {"train": str(train), "dev": str(dev), "out": str(tmp_path / "small")}
    result = distil_task([str(make_teacher("classification"))], "epochs=1", layers=1, **files)
    page = result.report.read_text()
    for shown in (
        "its teacher",
        "without the teacher",
        "always the most frequent label",
        "Agreement",
        "time for a text, one at a time",
        "SHA-256",
    ):
        assert shown in page
    assert "begins with the teacher&#39;s own fine-tuned layers" in page.replace("\n", " ")
    assert "<script>b" not in page and "&lt;script&gt;" in page
    assert page.count("<svg") >= 3


def test_the_command_makes_the_same_recipe_again() -> None:
    words = ["temperature=4.0", "width=192", "epochs=2", "optimizer.learning_rate=0.001", "text=body"]
    words += ["settings.class_weights=auto", "max_length=64", "settings.stride=8"]
    values = {"teacher": ["a", "b"], "texts": ["t"], "train": ["x", "y"], "layers": [1, 3], "out": "o"}
    recipe = make_distil_recipe(values, words)
    found = format_command(recipe)
    assert found.startswith(
        "bertsmith distil a b --texts t --train x --train y --layers 1,3 --out runs/again "
    )
    given = [word for word in found.split() if "=" in word]
    assert make_distil_recipe(values, given) == recipe
