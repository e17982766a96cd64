"""A table's rows are read whole: what would lose or move their cells is refused before it begins."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from bertsmith.compression.distilling.distil import distil_encoder
from bertsmith.compression.distilling.recipes import EncoderDistilRecipe
from bertsmith.data.sequences.building import SequenceSettings, build_sequences
from bertsmith.data.sequences.codec import table_row_length
from bertsmith.data.sequences.encoding import encode_sequences
from bertsmith.errors import RecipeError
from bertsmith.inference.masked_language import MaskedLanguageModel
from bertsmith.model.card import learned_row_length, rows_provenance
from bertsmith.model.config import preset
from bertsmith.model.manifest import Manifest, write_manifest
from bertsmith.planning.plan import plan
from bertsmith.training.finetuning.adaptation import _sequence_length
from bertsmith.training.finetuning.finetune import finetune
from bertsmith.training.inputs import note_fixed_positions
from bertsmith.training.log import RunLog
from bertsmith.training.loop import Loop
from bertsmith.training.pretrain import pretrain
from bertsmith.training.recipe import read_recipe

COLUMNS = 14
WHOLE = COLUMNS + 2  # with [CLS] and [SEP]
CHEAP = ("method=linear", "hardware.device=cpu", "hardware.threads=1")
SHORT = (
    *("steps=4", "data.batch_size=8", "evaluation.every=4", "checkpoint.every=4", "hardware.threads=1"),
    *("model.hidden_size=32", "model.intermediate_size=64", "hardware.device=cpu"),
)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store of rows of 14 cells, and labelled rows."""
    folder, draw = tmp_path_factory.mktemp("table"), random.Random(0)
    rows = [
        {**{f"c{n}": draw.choice("ab") for n in range(COLUMNS)}, "label": draw.choice("xy")}
        for _ in range(60)
    ]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = SequenceSettings(kind="table", leave_out=("label",), heldout=0.2)
    build_sequences([folder / "rows.jsonl"], folder / "store", settings)
    encode_sequences(folder / "rows.jsonl", folder / "store", folder / "train.jsonl")
    return folder


@pytest.fixture(scope="module")
def model(table: Path) -> Path:
    """Pre-trained on the table."""
    given = *SHORT, f"corpus={table / 'store'}", f"out={table / 'run'}"
    return pretrain("quickstart", *given, f"data.sequence_lengths=[{WHOLE}]").model


def run(model: Path, table: Path, out: Path, *overrides: str) -> Path:
    files = {"model": str(model), "train": str(table / "train.jsonl"), "dev": str(table / "train.jsonl")}
    return finetune("classification", *CHEAP, *overrides, out=str(out), **files).model


def test_only_rows_of_a_table_have_one_length(table: Path, tmp_path: Path) -> None:
    assert table_row_length(table / "store") == WHOLE
    assert table_row_length(table) is None
    (tmp_path / "rows.jsonl").write_text('{"events": ["a", "b"]}\n')
    build_sequences([tmp_path / "rows.jsonl"], tmp_path / "store", SequenceSettings(heldout=0))
    assert table_row_length(tmp_path / "store") is None


def test_positions_that_only_tell_distances_are_warned_of_where_places_are_columns(
    model: Path, table: Path, tmp_path: Path
) -> None:
    warnings = [each["message"] for each in RunLog.read(model.parent) if each["kind"] == "warning"]
    assert any("tell only distances: model.model_type=bert learns more" in each for each in warnings)
    rotary, learned = (preset("tiny", model_type=family) for family in ("nomic_bert", "bert"))
    assert note_fixed_positions(table / "store", rotary) and not note_fixed_positions(
        table / "store", learned
    )
    (tmp_path / "rows.jsonl").write_text('{"events": ["a", "b"]}\n')
    build_sequences([tmp_path / "rows.jsonl"], tmp_path / "store", SequenceSettings(heldout=0))
    assert not note_fixed_positions(tmp_path / "store", rotary)


@pytest.mark.parametrize(("numbers", "factor"), [("bins", 3.0), ("continuous", 30.0)])
def test_a_loss_of_far_numbers_has_room_before_it_is_a_spike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, numbers: str, factor: float
) -> None:
    rows = "".join(json.dumps({"a": n, "b": 2 * n}) + "\n" for n in range(40))
    (tmp_path / "rows.jsonl").write_text(rows)
    settings = SequenceSettings.model_validate({"kind": "table", "numbers": numbers, "heldout": 0.2})
    build_sequences([tmp_path / "rows.jsonl"], tmp_path / "store", settings)
    made: list[Loop] = []
    begun = Loop.run
    monkeypatch.setattr(Loop, "run", lambda loop: (made.append(loop), begun(loop))[1])
    given = *SHORT, f"corpus={tmp_path / 'store'}", f"out={tmp_path / 'run'}", "model.model_type=bert"
    pretrain("quickstart", *given, "data.sequence_lengths=[8]")
    assert made[0].guard.spike_factor == factor
    assert read_recipe(str(tmp_path / "run" / "recipe.toml"), []).guard.spike_factor == 3.0


@pytest.mark.parametrize(
    "lengths", [f"[{WHOLE - 1}]", f"[{WHOLE},{WHOLE - 1}] data.sequence_shares=[0.5,0.5]"]
)
def test_pre_training_that_would_divide_rows_is_refused_and_planned_no_more(
    table: Path, tmp_path: Path, lengths: str
) -> None:
    given = (
        f"corpus={table / 'store'}",
        f"out={tmp_path / 'run'}",
        *f"data.sequence_lengths={lengths}".split(),
    )
    for begin in (
        lambda: pretrain("quickstart", *SHORT, *given),
        lambda: plan(read_recipe("quickstart", [*given])),
    ):
        with pytest.raises(
            RecipeError, match=rf"data\.sequence_lengths: {WHOLE - 1} tokens.*Give {WHOLE} or"
        ):
            begin()
    assert not (tmp_path / "run/model").exists()


def test_fine_tuning_that_would_cut_rows_is_refused_and_so_is_going_on_from_it(
    table: Path, model: Path, tmp_path: Path
) -> None:
    """By windows too: the second one begins at position 0."""
    for number, settings in enumerate(([], ["stride=4"])):
        with pytest.raises(RecipeError, match=rf"max_length: {WHOLE - 1} tokens.*Give {WHOLE} or more"):
            run(model, table, tmp_path / f"short-{number}", f"max_length={WHOLE - 1}", *settings)
        assert not (tmp_path / f"short-{number}/model").exists()
    tuned = run(model, table, tmp_path / "whole", f"max_length={WHOLE}")
    with pytest.raises(RecipeError, match=rf"Give {WHOLE} or more"):
        run(tuned, table, tmp_path / "again", f"max_length={WHOLE - 1}")


def test_figures_are_of_whole_rows(table: Path, model: Path) -> None:
    opened = MaskedLanguageModel.load(model, device="cpu")
    assert opened.evaluate(table / "store", sequence_length=8) == opened.evaluate(table / "store")


def test_an_encoder_is_not_distilled_on_parts_of_rows(table: Path, model: Path, tmp_path: Path) -> None:
    given: dict[str, Any] = {
        "teacher": str(model),
        "corpus": str(table / "store"),
        "out": str(tmp_path / "out"),
    }
    recipe = EncoderDistilRecipe(**given, steps=1, data={"sequence_length": WHOLE - 1})
    with pytest.raises(
        RecipeError, match=rf"data\.sequence_length: {WHOLE - 1} tokens.*Give {WHOLE} or more"
    ):
        distil_encoder(recipe)


def test_pre_training_before_a_task_has_room_for_a_row(tmp_path: Path) -> None:
    assert _sequence_length(tmp_path, 512) == 128
    of_table = Manifest(architecture="BertModel", task="pretraining", provenance=rows_provenance(302))
    write_manifest(tmp_path, of_table)
    assert learned_row_length(tmp_path) == 302
    assert _sequence_length(tmp_path, 512) == 302
