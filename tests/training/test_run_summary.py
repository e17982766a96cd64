"""A finished run's report is written whatever lies beside its corpus and its tokenizer."""

import json
from pathlib import Path

import pytest

from bertsmith.machine import Hardware
from bertsmith.model.families import FAMILIES
from bertsmith.model.layers.initialisation import meta_init
from bertsmith.tasks.pretraining.pretraining import PretrainingModel
from bertsmith.training import pretraining_report as run_summary
from bertsmith.training.log import RunLog
from bertsmith.training.recipe import check_recipe

SHAPE = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
FINE = '{"vocab_size": 1234, "most_broken": [{"word": "tort", "pieces": ["to", "##rt"]}]}'


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("report.json", FINE[:-9]),  # cut
        ("report.json", "[1, 2]"),
        ("report.json", r'{"word": "\ud800"}'),
        ("manifest.json", '{"sources": [3], "splits": 7}'),  # of another program
        ("manifest.json", b"\xff\xfe{"),
    ],
)
def test_a_file_of_another_kind_costs_its_section_alone(
    tmp_path: Path, name: str, content: str | bytes
) -> None:
    (tmp_path / "report.json").write_text(FINE)
    (tmp_path / "manifest.json").write_text('{"licence": "a licence"}')
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    places = {"corpus": str(tmp_path), "tokenizer": str(tmp_path), "model": SHAPE}
    recipe = check_recipe({"steps": 64, "optimizer": {"warmup": 0}, **places}, "the test")
    with RunLog(tmp_path / "run") as log:
        log.write("start", 0)
    (tmp_path / "run" / "fills.json").write_text(json.dumps([]))
    model = PretrainingModel(recipe.model.config(20, 0))
    page = run_summary.write_summary(tmp_path / "run", recipe, model, Hardware.detect()).read_text()
    sections = {"report.json": "<h2>Vocabulary</h2>", "manifest.json": "<h2>Data</h2>"}
    assert [section in page for section in sections.values()] == [each != name for each in sections]
    (complaint,) = run_summary.find_unreadable_reports(recipe)
    assert complaint.startswith(f"{tmp_path / name} is left out of the report")


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_the_parts_of_a_model_have_all_its_weights(family: str) -> None:
    size = next(iter(FAMILIES[family].sizes))
    recipe = check_recipe(
        {"steps": 100_000, "model": {"model_type": family, "size": size}, "data": {"next_sentence": False}},
        "the test",
    )
    config = recipe.model.config(1000, FAMILIES[family].published.get("pad_token_id", 0))
    model = meta_init(lambda: PretrainingModel(config, next_sentence=False))
    counts = run_summary.describe_model(model)["parameters"]
    assert sum(counts.values()) == sum(parameter.numel() for parameter in model.parameters())
