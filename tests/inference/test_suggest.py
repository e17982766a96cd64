"""Suggestions end to end: mixed files, an encoder or a fine-tuned model, and what a slip is answered with."""

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertsmith.cli.main import main
from bertsmith.errors import InputError, ModelError
from bertsmith.files import read_json, write_json
from bertsmith.inference.suggesting import label_doubts
from bertsmith.inference.suggesting import suggest as module_of_suggest
from bertsmith.inference.suggesting.folder import write_suggestions
from bertsmith.inference.suggesting.suggest import NextRow, Suggestions, suggest
from bertsmith.metrics.calibration import Confidence
from bertsmith.tasks.examples.held_out import folds_of
from bertsmith.tasks.examples.text_task import TextExample
from bertsmith.tasks.heads.linear_start import compute_features
from bertsmith.tasks.multi_label import MultiLabel, MultiLabelSettings
from bertsmith.tasks.registry import find_task
from bertsmith.text.files.rows import stream_rows
from bertsmith.training.finetuning.finetune import finetune
from sentence_folders import save_foreign

COLOURS, SIZES, ANIMALS = ("red", "blue", "green"), ("small", "large", "old", "new"), ("cat", "dog", "bird")
TEXTS = [f"{size} {colour} {animal}" for size in SIZES for animal in ANIMALS for colour in COLOURS]


def colour(text: str) -> str:
    return text.split()[1]


def write(path: Path, rows: Sequence[tuple[str, ...]], names: tuple[str, ...] = ("text", "label")) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([names, *rows])
    return path


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """Eighteen rows with a label, one of them wrong, and as many without."""
    labelled = [(text, colour(text)) for text in TEXTS[:18]]
    labelled[4] = (labelled[4][0], "red")  # it is blue
    return write(tmp_path / "mixed.csv", [*labelled, *((text, "") for text in TEXTS[18:])])


def test_an_encoder_suggests_rows_without_a_label_and_doubts_those_with_one(
    tiny_bert: Path, mixed: Path
) -> None:
    found = suggest(tiny_bert, mixed, count=5)
    assert found.without_label == 18 and len(found.rows) == 5
    assert {row.example.text for row in found.rows} <= set(TEXTS[18:])
    assert {row.guess for row in found.rows} <= set(COLOURS)
    assert len({row.example.text for row in found.rows}) == 5
    assert len(found.doubts) == 18
    assert {doubt.example.text for doubt in found.doubts} == set(TEXTS[:18])
    assert suggest(tiny_bert, mixed, count=5) == found


def test_a_fine_tuned_model_doubts_what_it_was_trained_on_by_the_encoder_before(
    tiny_bert: Path, tmp_path: Path
) -> None:
    rows = write(tmp_path / "rows.csv", [(text, colour(text)) for text in TEXTS[:24]])
    run = finetune(
        "classification",
        *("method=linear", "max_length=16", "hardware.threads=1"),
        model=str(tiny_bert),
        train=str(rows),
        out=str(tmp_path / "run"),
    )
    pool = tmp_path / "pool.txt"
    pool.write_text("\n".join(TEXTS[24:]))
    found = suggest(run.model, pool, count=4)
    assert found.columns == ("text", "label") and len(found.rows) == 4 and len(found.doubts) == 24
    assert found.notes == []
    rows.write_text("text,label\nsmall red cat,red\n")
    later = suggest(run.model, pool, count=4)
    assert later.doubts == [] and len(later.rows) == 4
    assert "which the model was fine-tuned on, is not there, or was changed" in later.notes[0]
    pool.write_text("old green bird\n" * 12)
    assert [row.example.text for row in suggest(run.model, pool, count=4).rows] == ["old green bird"]
    alike = write(tmp_path / "alike.csv", [("old green bird", colour) for colour in ("red", "green") * 6])
    found = suggest(run.model, pool, labelled=alike)
    assert found.rows == [] and found.doubts == [] and "too few texts to doubt any" in found.notes[1]


def test_the_rows_trained_on_are_read_by_their_own_columns(tiny_bert: Path, tmp_path: Path) -> None:
    rows = write(tmp_path / "rows.csv", [(text, colour(text)) for text in TEXTS[:24]])
    given = ("method=linear", "max_length=16", "hardware.threads=1")
    files = {"model": str(tiny_bert), "train": str(rows), "out": str(tmp_path / "run")}
    run = finetune("classification", *given, **files)
    pool = tmp_path / "pool.csv"
    pool.write_text("body\n" + "\n".join(TEXTS[24:]) + "\n")
    found = suggest(run.model, pool, count=4, text="body")
    assert len(found.rows) == 4 and len(found.doubts) == 24
    manifest = read_json(run.model / "bertsmith.json")
    manifest["settings"]["settings"]["label"] = "kind"
    write_json(run.model / "bertsmith.json", manifest)
    found = suggest(run.model, pool, count=4, text="body")
    assert len(found.rows) == 4 and found.doubts == []
    assert "can't be read as it was" in found.notes[0] and "'kind'" in found.notes[0]
    manifest["settings"] |= {"pairs": False}  # as the estimators write it: single texts, of no column
    manifest["settings"]["settings"]["text"] = None
    write_json(run.model / "bertsmith.json", manifest)
    pool.write_text("question,answer\n" + "\n".join(f"{text},yes" for text in TEXTS))
    with pytest.raises(InputError, match=r"pool\.csv, line 2: the model reads a text; found"):
        suggest(run.model, pool)


def test_rows_held_out_of_the_training_file_have_a_label(tiny_bert: Path, tmp_path: Path) -> None:
    """They were suggested for labelling, and their labels were never doubted."""
    rows = write(tmp_path / "rows.csv", [(text, colour(text)) for text in TEXTS[:30]])
    given = ("method=linear", "max_length=16", "hardware.threads=1", "dev_share=0.3")
    files = {"model": str(tiny_bert), "train": str(rows), "out": str(tmp_path / "run")}
    run = finetune("classification", *given, **files)
    (tmp_path / "all.txt").write_text("\n".join(TEXTS))
    found = suggest(run.model, tmp_path / "all.txt", count=36)
    assert {row.example.text for row in found.rows} == set(TEXTS[30:])
    assert found.without_label == 6 and len(found.doubts) == 30


def test_a_column_that_may_be_the_label_under_another_name_is_told(tiny_bert: Path, tmp_path: Path) -> None:
    rows = write(tmp_path / "rows.csv", [(text, colour(text)) for text in TEXTS[:24]])
    given = ("method=linear", "max_length=16", "hardware.threads=1")
    files = {"model": str(tiny_bert), "train": str(rows), "out": str(tmp_path / "run")}
    run = finetune("classification", *given, **files)
    pool = [(text, colour(text) if number < 6 else "") for number, text in enumerate(TEXTS[24:])]
    path = write(tmp_path / "pool.csv", pool, ("text", "category"))
    found = suggest(run.model, path)
    assert found.without_label == 12
    assert found.notes == [
        f"{path} has no column 'label', so none of its rows has a label. If one is in category, name it with "
        "--label"
    ]
    found = suggest(run.model, path, label="category")
    assert found.without_label == 6 and found.notes == []


@pytest.mark.parametrize("names", [("0", "1"), ("0", "1", "2"), COLOURS])
def test_a_pool_of_minus_ones_beside_labelled_rows_has_no_labels(
    names: tuple[str, ...], tiny_bert: Path, tmp_path: Path
) -> None:
    """A test split of Hugging Face has them; they were a class, and no row was suggested."""
    known = [(text, names[COLOURS.index(colour(text)) % len(names)]) for text in TEXTS[:24]]
    labelled = write(tmp_path / "rows.csv", known)
    pool = write(tmp_path / "pool.csv", [(text, "-1") for text in TEXTS[24:]])
    found = suggest(tiny_bert, pool, labelled=labelled)
    assert found.without_label == 12 and {row.guess for row in found.rows} <= set(names)
    assert len(found.doubts) == 24


@pytest.mark.parametrize(
    ("names", "stand_in"), [(("0", "1", "0"), "-1"), (COLOURS, "NULL"), (COLOURS, "nan")]
)
def test_a_label_that_may_stand_for_none_is_told(
    names: tuple[str, ...], stand_in: str, tiny_bert: Path, tmp_path: Path
) -> None:
    """Such rows were taken for labelled ones, none was suggested, and nothing was said."""
    known = [(text, names[COLOURS.index(colour(text))]) for text in TEXTS[:24]]
    path = write(tmp_path / "rows.csv", [*known, *((text, stand_in) for text in TEXTS[24:])])
    (note,) = suggest(tiny_bert, path).notes
    assert f"the label '{stand_in}' (12 rows) is taken for a label" in note
    assert suggest(tiny_bert, write(tmp_path / "all.csv", known)).notes == []


def test_minus_one_among_sets_of_labels_is_told(tiny_bert: Path, tmp_path: Path) -> None:
    """It was a label like others, and nothing was said."""
    known = [(text, ",".join(text.split()[1:])) for text in TEXTS[:24]]
    path = write(tmp_path / "rows.csv", [*known, *((text, "-1") for text in TEXTS[24:])])
    (note,) = suggest(tiny_bert, path, task="multi-label").notes
    assert "the label '-1' (12 rows) is taken for a label" in note


def test_a_row_of_which_all_cells_are_blank_is_not_suggested(tiny_bert: Path, tmp_path: Path) -> None:
    """Spreadsheets end with such rows."""
    rows = [(text, str(number), colour(text)) for number, text in enumerate(TEXTS[:24])]
    pool = [(text, "", "") for text in TEXTS[24:]] + [("", "7", "")] + [("", "", "")] * 3
    path = write(tmp_path / "rows.csv", [*rows, *pool], ("text", "age", "label"))  # type: ignore[arg-type]
    found = suggest(tiny_bert, path, features=("age",))
    assert found.without_label == 13 and "" in {row.example.text for row in found.rows}
    assert (None,) not in {row.example.columns for row in found.rows if not row.example.text}
    assert found.notes == ["3 rows without a label have no text, and were left out"]


@pytest.mark.parametrize("missing", ["refuse", "keep"])
def test_a_pair_without_one_text_is_suggested_where_training_keeps_it(
    missing: str, tiny_bert: Path, tmp_path: Path
) -> None:
    pairs = [(text, text.split()[2], colour(text)) for text in TEXTS[:24]]
    pairs += [(TEXTS[24], "", ""), ("", TEXTS[25], ""), ("", "", ""), (TEXTS[26], "cat", "")]
    path = write(tmp_path / "rows.csv", pairs, ("text", "text_pair", "label"))  # type: ignore[arg-type]
    found = suggest(tiny_bert, path, missing=missing)
    texts = {(row.example.text, row.example.text_pair) for row in found.rows}
    kept = {(TEXTS[24], ""), ("", TEXTS[25])} if missing == "keep" else set()
    assert texts == {(TEXTS[26], "cat")} | kept
    assert found.notes == [f"{3 - len(kept)} rows without a label lack a text, and were left out"]


def test_a_label_holds_from_the_threshold_of_the_model() -> None:
    task = MultiLabel(MultiLabelSettings(), ("a", "b"))
    probabilities = np.array([[0.3, 0.6], [0.1, 0.9]])
    assert task.likeliest(probabilities)[0].tolist() == [[0, 1], [0, 1]]
    figures = dict.fromkeys(("ece_before", "ece_after", "threshold", "coverage", "risk"), 0.0)
    task.confidence = Confidence(**figures, temperature=1.0, examples=40, label_thresholds=(0.2, 0.7))
    assert task.likeliest(probabilities)[0].tolist() == [[1, 0], [0, 1]]


def test_several_labels(tiny_bert: Path, tmp_path: Path) -> None:
    rows = [(text, ";".join(text.split()[1:])) for text in TEXTS]
    path = write(tmp_path / "sets.csv", [*rows[:30], *((text, "") for text, _ in rows[30:])])
    found = suggest(tiny_bert, path, task="multi-label", count=3, separator=";")
    assert len(found.rows) == 3 and len(found.doubts) == 30
    assert all(set(row.guess.split(";")) <= {"", *COLOURS, *ANIMALS} for row in found.rows)
    for doubt in found.doubts:  # a label more or a label less
        names = set(doubt.guess.split(";")) - {""}
        assert len(names ^ set(doubt.example.label)) == 1


def test_files_of_several_labels_are_read_as_the_rows_were(
    tiny_bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [(text, ";".join(text.split()[1:])) for text in TEXTS]
    rows.append((TEXTS[0].upper(), "large"))
    path, out = write(tmp_path / "sets.csv", rows), tmp_path / "next"
    command = ["suggest", str(tiny_bert), str(path), "--task", "multi-label", "--separator", ";"]
    if main([*command, "--out", str(out)]):
        pytest.fail(capsys.readouterr().err)
    with (out / "labels.csv").open(encoding="utf-8") as file:
        labels = {row["text"]: row["label"] for row in csv.DictReader(file)}
    assert labels == dict(rows)
    assert "red;cat" in (out / "report.html").read_text(encoding="utf-8")
    assert "('" not in capsys.readouterr().out


@pytest.mark.slow
def test_rows_to_label_keep_the_columns_beside_the_text(tiny_bert: Path, tmp_path: Path) -> None:
    """Or they couldn't stand beside the rows that the model was trained on."""
    names = ("text", "age", "plan", "label")
    rows = [(text, str(number), "free", colour(text)) for number, text in enumerate(TEXTS[:24])]
    train = write(tmp_path / "rows.csv", rows, names)  # type: ignore[arg-type]
    given = ("method=linear", "max_length=16", "hardware.threads=1", "features=age,plan:category")
    run = finetune(
        "classification", *given, model=str(tiny_bert), train=str(train), out=str(tmp_path / "run")
    )
    pool = [(text, str(50 + number), "", "") for number, text in enumerate(TEXTS[24:])]
    path, out = write(tmp_path / "pool.csv", pool, names), tmp_path / "next"  # type: ignore[arg-type]
    assert main(["suggest", str(run.model), str(path), "--count", "4", "--out", str(out)]) == 0
    with (out / "rows.csv").open(encoding="utf-8") as file:
        found = list(csv.DictReader(file))
    assert [*found[0]] == ["text", "age", "plan", "label", "guess", "confidence"]
    ages = {text: age for text, age, *_ in pool}
    assert all((float(row["age"]), row["plan"]) == (float(ages[row["text"]]), "") for row in found)
    with (out / "labels.csv").open(encoding="utf-8") as file:
        assert {(row["text"], row["plan"]) for row in csv.DictReader(file)} == {
            (row[0], "free") for row in rows
        }


def test_of_very_many_rows_some_are_read_and_that_is_told(
    tiny_bert: Path, mixed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module_of_suggest, "MOST_READ", 6)
    read: list[int] = []

    def counted(model: Any, encoded: Any, progress: Any = None) -> Any:
        read.append(len(encoded))
        return compute_features(model, encoded, progress)

    monkeypatch.setattr(label_doubts, "compute_features", counted)
    found = suggest(tiny_bert, mixed, count=5)
    assert read == [6] and found.without_label == 18
    assert found.notes == ["of 18 rows without a label 6 were drawn by chance, and read"]
    assert suggest(tiny_bert, mixed, count=5) == found != suggest(tiny_bert, mixed, count=5, seed=1)


def test_labelled_rows_that_are_not_searched_for_copies_are_told(
    tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copies behind them were missing, and nothing said so."""
    rows = [*((text, colour(text)) for text in TEXTS[:20]), (TEXTS[0], "blue")]
    assert len(suggest(tiny_bert, write(tmp_path / "a.csv", rows), count=3).contradictions) == 1
    for module in (label_doubts, module_of_suggest):
        monkeypatch.setattr(module, "MOST_COMPARED", 20)
    found = suggest(tiny_bert, tmp_path / "a.csv", count=3)
    assert found.contradictions == []
    assert "of 21 labelled rows the first 20 were searched for near copies" in found.notes


def test_texts_that_come_twice_with_different_labels(tiny_bert: Path, tmp_path: Path) -> None:
    rows = [(text, colour(text)) for text in TEXTS[:18]] + [("small red cat", "blue"), ("old red dog", "")]
    found = suggest(tiny_bert, write(tmp_path / "rows.csv", rows))
    (pair,) = found.contradictions
    assert (pair.first.label, pair.second.label) == ("red", "blue")
    assert pair.first.text == pair.second.text == "small red cat"


def test_a_copy_of_a_labelled_row_is_not_suggested(tiny_bert: Path, tmp_path: Path) -> None:
    rows = [(text, colour(text)) for text in TEXTS[:18]]
    copies = [(text.upper(), "") for text in TEXTS[:9]]
    found = suggest(tiny_bert, write(tmp_path / "rows.csv", [*rows, *copies, (TEXTS[30], "")]))
    assert [row.example.text for row in found.rows] == [TEXTS[30]]
    assert found.copies > 0


def test_rows_labelled_in_another_file_are_not_drawn_instead_of_others(
    tiny_bert: Path, tmp_path: Path
) -> None:
    """Of the rows drawn, those labelled in the round before were passed over as copies."""
    more = write(tmp_path / "more.csv", [(text, colour(text)) for text in TEXTS[:30]])
    (tmp_path / "all.txt").write_text("\n".join(TEXTS))
    found = suggest(tiny_bert, tmp_path / "all.txt", labelled=more, count=6)
    assert sorted(row.example.text for row in found.rows) == sorted(TEXTS[30:])
    assert (found.without_label, found.copies) == (6, 0)
    assert found.notes == ["30 rows without a label are labelled in another row, and were left out"]


def test_near_copies_of_labelled_rows_are_not_drawn_instead_of_others(
    tiny_bert: Path, tmp_path: Path
) -> None:
    """As many rows were drawn as half again were asked for, and what was left of them was all there was."""
    more = write(tmp_path / "more.csv", [(text, colour(text)) for text in TEXTS[:24]])
    (tmp_path / "all.txt").write_text("\n".join([*(f"{text}!" for text in TEXTS[:24]), *TEXTS[24:]]))
    found = suggest(tiny_bert, tmp_path / "all.txt", labelled=more, count=12)
    assert sorted(row.example.text for row in found.rows) == sorted(TEXTS[24:])


def test_near_copies_behind_the_last_row_chosen_were_not_passed_over(
    tiny_bert: Path, mixed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = np.array([0, 1, 2, 3, 4, 5])
    monkeypatch.setattr(module_of_suggest, "choose_rows", lambda *_: drawn)
    texts = ["one", "one!", "another", "a third", "another!", "A third."]
    more = write(mixed.parent / "more.csv", [(text, "") for text in texts])
    found = suggest(
        tiny_bert, more, labelled=write(mixed.parent / "all.csv", [(t, colour(t)) for t in TEXTS]), count=2
    )
    assert [row.example.text for row in found.rows] == ["one", "another"] and found.copies == 1


def test_a_row_with_another_category_is_not_taken_for_a_labelled_one(tiny_bert: Path, tmp_path: Path) -> None:
    names = ("text", "branch", "label")
    rows = [*((text, "7", colour(text)) for text in TEXTS[:20]), *((text, "007", "") for text in TEXTS[:3])]
    path = write(tmp_path / "rows.csv", rows, names)  # type: ignore[arg-type]
    found = suggest(tiny_bert, path, features=("branch:category",))
    assert sorted(row.example.text for row in found.rows) == sorted(TEXTS[:3]) and found.notes == []
    found = suggest(tiny_bert, path, features=("branch:number",))
    assert found.rows == [] and "3 rows without a label are labelled" in found.notes[0]


def test_a_label_that_has_the_separator_in_it_would_be_two_in_the_files(
    tiny_bert: Path, tmp_path: Path
) -> None:
    rows = [{"text": text, "label": [f"{colour(text)}, light", text.split()[2]]} for text in TEXTS]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(InputError, match="light' has ',' in it"):
        suggest(tiny_bert, path, task="multi-label")
    found = suggest(tiny_bert, path, task="multi-label", separator=";")
    assert {found.label_of(doubt.example) for doubt in found.doubts} == {
        ";".join(row["label"]) for row in rows
    }


def test_a_guess_is_joined_as_the_labels_are_and_training_stays(tiny_bert: Path, tmp_path: Path) -> None:
    rows = write(tmp_path / "rows.csv", [(text, f"seen,known,{colour(text)}") for text in TEXTS])
    given = ("method=linear", "max_length=16", "hardware.threads=1")
    files = {"model": str(tiny_bert), "train": str(rows), "out": str(tmp_path / "run")}
    run = finetune("multi-label", *given, **files)
    pool = tmp_path / "pool.txt"
    pool.write_text("a new house\nred shoes\nsome words\n")
    found = suggest(run.model, pool, separator="|")
    assert not any("," in row.guess for row in found.rows) and any("|" in row.guess for row in found.rows)
    for setting in ({"max_length": 8}, {"features": ("age",)}):
        with pytest.raises(InputError, match="is a setting of training"):
            suggest(run.model, pool, **setting)


def test_the_folder_can_be_filled_in_and_trained_on(tiny_bert: Path, mixed: Path, tmp_path: Path) -> None:
    out = tmp_path / "next"
    assert main(["suggest", str(tiny_bert), str(mixed), "--count", "4", "--out", str(out)]) == 0
    with (out / "rows.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [*rows[0]] == ["text", "label", "guess", "confidence"]
    assert len(rows) == 4 and all(row["label"] == "" for row in rows)
    with (out / "labels.csv").open(encoding="utf-8") as file:
        labels = list(csv.DictReader(file))
    assert len(labels) == 18 and {row["doubtful"] for row in labels} <= {"yes", "no"}
    assert labels[0]["where"].startswith(f"{mixed}, line ")
    page = (out / "report.html").read_text(encoding="utf-8")
    assert rows[0]["text"] in page and "bertsmith suggest" in page
    filled = write(tmp_path / "filled.csv", [(row["text"], colour(row["text"])) for row in rows])
    known = suggest(tiny_bert, filled, labelled=write(tmp_path / "more.csv", [(t, colour(t)) for t in TEXTS]))
    assert len(known.doubts) == len(TEXTS), "rows in both files count once"


def test_suggestions_replace_earlier_ones_alone_and_when_asked_to(
    tiny_bert: Path, mixed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "next"
    out.mkdir()
    command = ["suggest", str(tiny_bert), str(mixed), "--count", "2", "--out", str(out)]
    assert main(command) == 0  # an empty folder is free
    (out / "rows.csv").write_text("text,label\nfilled in,red\n")
    capsys.readouterr()
    assert main(command) == 2
    assert "replace it with --overwrite" in capsys.readouterr().err
    assert main([*command, "--overwrite", "--labelled", str(out / "rows.csv")]) == 2
    assert "rows.csv lies in" in capsys.readouterr().err
    assert (out / "rows.csv").read_text() == "text,label\nfilled in,red\n"
    assert main([*command, "--overwrite"]) == 0
    assert len(read_csv(out / "rows.csv")) == 3
    (out / "letter.txt").touch()
    assert main([*command, "--overwrite"]) == 2
    assert "so it is not replaced" in " ".join(capsys.readouterr().err.split())
    assert (out / "letter.txt").exists()


def test_line_ends_of_any_kind_in_a_text_are_read_back(tmp_path: Path) -> None:
    texts = ("a\rb", "c\nd", "e\r\nf")
    rows = [NextRow(TextExample(text, None, None, ""), "red", 0.5) for text in texts]
    write_suggestions(tmp_path / "next", Suggestions("t", ("text", "label"), rows, 3, 0, [], [], []), "")
    found = stream_rows(tmp_path / "next" / "rows.csv", ["text", "label", "guess"])
    assert [row.values for row in found] == [(text, "", "red") for text in texts]


def test_markup_in_texts_and_labels_is_escaped(tiny_bert: Path, tmp_path: Path) -> None:
    rows = [(f"{text} <b>", f"<i>{colour(text)}") for text in TEXTS[:18]]
    path, out = write(tmp_path / "rows.csv", [*rows, ("<script>alert(1)</script>", "")]), tmp_path / "next"
    assert main(["suggest", str(tiny_bert), str(path), "--out", str(out)]) == 0
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "<script>alert" not in page and "&lt;script&gt;alert" in page


def test_slips_get_a_sentence(tiny_bert: Path, mixed: Path, tmp_path: Path) -> None:
    few = write(tmp_path / "few.csv", [("red", "red"), ("blue", "blue"), ("green", "")])
    with pytest.raises(InputError, match="a linear model has to learn from labelled rows: at least 10"):
        suggest(tiny_bert, few)
    for texts in (("red", "red"), ("red", "blue")):
        rows = [*zip(texts, ("red", "blue"), strict=True)] * 6
        with pytest.raises(InputError, match="two different labels, each of several texts; found 12 rows"):
            suggest(tiny_bert, write(tmp_path / "alike.csv", rows))
    with pytest.raises(InputError, match="classification or multi-label, found tagging"):
        suggest(tiny_bert, mixed, task="tagging")
    regression = tmp_path / "numbers.csv"
    write(regression, [(text, str(number)) for number, text in enumerate(TEXTS)])
    run = finetune(
        "regression",
        *("method=linear", "max_length=16", "hardware.threads=1"),
        model=str(tiny_bert),
        train=str(regression),
        out=str(tmp_path / "run"),
    )
    with pytest.raises(InputError, match="is a model of regression"):
        suggest(run.model, mixed)
    other = save_foreign(tmp_path / "other", outputs=2, id2label={"0": "red", "1": "blue", "2": "green"})
    with pytest.raises(ModelError, match="the head has 2 outputs"):  # and was left away for another
        suggest(other, mixed)
    command = ["suggest", str(tiny_bert), str(mixed)]
    assert main([*command, "--count", "0", "--out", str(tmp_path / "next")]) == 2
    assert main([*command, "--out", str(tmp_path)]) == 2
    assert main(["suggest", str(tiny_bert), str(tmp_path / "none.csv"), "--out", str(tmp_path / "next")]) == 2
    assert not (tmp_path / "next").exists()


@pytest.mark.parametrize("name", ["rows.csv", "rows.jsonl", "rows.txt"])
def test_a_label_that_is_named_is_in_one_of_the_files(name: str, tiny_bert: Path, tmp_path: Path) -> None:
    """A slip would take labelled rows for rows without a label."""
    rows = write(tmp_path / "rows.csv", [(text, colour(text)) for text in TEXTS])
    objects = [json.dumps({"text": text, "label": colour(text)}) for text in TEXTS]
    (tmp_path / "rows.jsonl").write_text("\n".join(objects))
    (tmp_path / "rows.txt").write_text("\n".join(TEXTS))
    with pytest.raises(InputError, match=f"{name}: no column 'lable'. There are: text"):
        suggest(tiny_bert, tmp_path / name, label="lable")
    with pytest.raises(InputError, match=r"no column 'lable'"):
        suggest(tiny_bert, tmp_path / name, label="lable", labelled=rows)


def test_a_text_that_is_blank_is_not_suggested(
    tiny_bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = write(tmp_path / "rows.csv", [(text, colour(text)) for text in TEXTS[:18]])
    (tmp_path / "pool.txt").write_text("\n  \n" + "\n\n".join(TEXTS[18:22]))
    command = ["suggest", str(tiny_bert), str(tmp_path / "pool.txt"), "--labelled", str(rows)]
    assert main([*command, "--out", str(tmp_path / "next")]) == 0
    assert {row[0] for row in read_csv(tmp_path / "next/rows.csv")[1:]} == set(TEXTS[18:22])
    shown = " ".join(capsys.readouterr().out.split())
    assert "5 rows without a label have no text, and were left out" in shown
    assert "4 of 4 rows to label next" in shown


def test_json_lines_with_null_for_no_label(tiny_bert: Path, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    rows = [
        {"text": text, "label": colour(text) if number % 2 else None} for number, text in enumerate(TEXTS)
    ]
    path.write_text("\n".join(json.dumps(row) for row in rows))
    found = suggest(tiny_bert, path, count=3)
    assert len(found.rows) == 3 and found.without_label == len(found.doubts) == 18


def read_csv(path: Path) -> list[list[str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return [*csv.reader(file)]


def test_the_columns_of_an_encoder_are_called_as_in_the_file(tiny_bert: Path, tmp_path: Path) -> None:
    """Of pairs each value stands under its own name."""
    labels = [*map(colour, TEXTS[:18]), *[""] * 18]
    pairs = [(text, f"a {text}", label) for text, label in zip(TEXTS, labels, strict=True)]
    named = ("sentence1", "sentence2", "label")
    path, out = write(tmp_path / "pairs.csv", pairs, named), tmp_path / "next"  # type: ignore[arg-type]
    assert main(["suggest", str(tiny_bert), str(path), "--count", "3", "--out", str(out)]) == 0
    header, *rows = read_csv(out / "rows.csv")
    assert header == ["sentence1", "sentence2", "label", "guess", "confidence"]
    assert len(rows) == 3 and {(row[0], row[1], row[2]) for row in rows} <= set(pairs)
    header, *rows = read_csv(out / "labels.csv")
    assert header == ["sentence1", "sentence2", "label", "guess", "confidence", "doubtful", "where"]
    assert {(row[0], row[1], row[2]) for row in rows} == set(pairs[:18])
    single = write(tmp_path / "single.csv", [*zip(TEXTS, labels, strict=True)], ("sentence", "intent"))
    assert suggest(tiny_bert, single, count=3).columns == ("sentence", "intent")


def test_more_labelled_rows_may_have_columns_of_other_names(tiny_bert: Path, tmp_path: Path) -> None:
    """What is filled in is to stand beside them."""
    more = write(tmp_path / "more.csv", [(text, colour(text)) for text in TEXTS[:18]], ("sentence", "intent"))
    own = [(text, colour(text) if number % 2 else "") for number, text in enumerate(TEXTS[18:])]
    found = suggest(tiny_bert, write(tmp_path / "rows.csv", own, ("review", "class")), labelled=more, count=3)
    assert found.columns == ("sentence", "intent")
    assert (found.without_label, len(found.doubts)) == (9, 27)
    pairs = write(tmp_path / "pairs.csv", own, ("sentence1", "sentence2"))
    with pytest.raises(
        InputError, match=r"pairs\.csv, line 2 is a pair of texts, but .*more\.csv, line 2 is one"
    ):
        suggest(tiny_bert, pairs, labelled=more)


@pytest.mark.parametrize("ending", ["jsonl", "json"])
@pytest.mark.parametrize("labelled_first", [False, True])
def test_an_object_without_the_labels_key_has_no_label(
    ending: str, labelled_first: bool, tiny_bert: Path, tmp_path: Path
) -> None:
    rows = [{"text": text} for text in TEXTS[24:]]
    labelled = [{"text": text, "label": colour(text)} for text in TEXTS[:24]]
    rows = [*labelled, *rows] if labelled_first else [*rows, *labelled]
    path = tmp_path / f"rows.{ending}"
    path.write_text(json.dumps(rows) if ending == "json" else "\n".join(map(json.dumps, rows)))
    found = suggest(tiny_bert, path, count=3)
    assert (found.without_label, len(found.doubts), found.columns) == (12, 24, ("text", "label"))
    with pytest.raises(InputError, match="no column '2'"):  # objects have no numbers
        suggest(tiny_bert, path, label="2")
    rows = [row | {"topic": "t"} for row in rows]  # is the label of none, though the first has no other
    path.write_text(json.dumps(rows) if ending == "json" else "\n".join(map(json.dumps, rows)))
    with pytest.raises(InputError, match="label, topic could all be the label"):
        suggest(tiny_bert, path, count=3)


def test_a_row_trained_on_counts_once_with_the_label_of_the_file(tiny_bert: Path, tmp_path: Path) -> None:
    rows = [(text, colour(text)) for text in TEXTS[:24]]
    rows[3] = (rows[3][0], "green")  # it is red
    train = write(tmp_path / "rows.csv", rows)
    run = finetune(
        "classification",
        *("method=linear", "max_length=16", "hardware.threads=1"),
        model=str(tiny_bert),
        train=str(train),
        out=str(tmp_path / "run"),
    )
    assert colour(rows[3][0]) == "red"
    corrected = [(rows[3][0], "red"), rows[0], *((text, "") for text in TEXTS[24:])]
    found = suggest(run.model, write(tmp_path / "pool.csv", corrected), count=3)
    assert found.contradictions == []
    assert sorted((doubt.example.text, doubt.example.label) for doubt in found.doubts) == sorted(
        (text, colour(text)) for text in TEXTS[:24]
    )
    objects = [{"text": text} for text in TEXTS[24:]] + [{"text": "a new red cat", "label": "red"}]
    path = tmp_path / "pool.jsonl"
    path.write_text("\n".join(map(json.dumps, objects)))
    assert len(suggest(run.model, path, count=3).doubts) == 25


def test_a_row_of_the_labelled_file_counts_once_with_the_label_of_the_file(
    tiny_bert: Path, tmp_path: Path
) -> None:
    """It was learned from and doubted twice, and contradicted itself."""
    rows = [(text, colour(text)) for text in TEXTS[:24]]
    labelled = write(tmp_path / "labelled.csv", [(rows[0][0], "green"), *rows[1:]])  # the first one is red
    file = write(tmp_path / "file.csv", [rows[0], *((text, "") for text in TEXTS[24:])])
    found = suggest(tiny_bert, file, labelled=labelled, count=3)
    assert found.contradictions == []
    assert sorted((doubt.example.text, doubt.example.label) for doubt in found.doubts) == sorted(rows)


def test_a_column_for_each_label_says_which_rows_have_labels(tmp_path: Path) -> None:
    """They were all taken for rows without a label, to be labelled again."""
    path = write(tmp_path / "rows.csv", [("x", "1", "0"), ("y", "", ""), ("z", "0", "0")], ("text", "a", "b"))
    task = MultiLabel(MultiLabelSettings(labels=("a", "b")))
    found = [(row.text, row.label) for row in task.read_partly_labelled(path)]
    assert found == [("x", ("a",)), ("y", None), ("z", ())]


def test_what_stands_for_no_label_is_none(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("text,label\none,yes\ntwo,no\nthree,-\n")
    kind: Any = find_task("classification")
    found = kind(kind.Settings()).read_partly_labelled(tmp_path / "rows.csv")
    assert [row.label for row in found] == ["yes", "no", None]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("rows.csv", "doc,text,label\n7,one,yes\n7,two,\n,three,no\n"),
        (
            "rows.jsonl",
            '{"doc": 7, "text": "one", "label": "yes"}\n{"doc": 7, "text": "two"}\n'
            '{"text": "three", "label": "no"}\n',
        ),
    ],
)
def test_rows_of_one_source_are_known_as_in_training(name: str, content: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    kind: Any = find_task("classification")
    task = kind(kind.Settings(group="doc"), ("no", "yes"))
    task.is_trained = True
    found = [(row.text, row.label, row.group) for row in task.read_partly_labelled(tmp_path / name)]
    assert found == [("one", "yes", "7"), ("two", None, "7"), ("three", "no", None)]


def test_rows_of_one_source_are_judged_together_by_an_encoder(
    tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group named was read from labelled files alone."""
    groups = list[list[str | None]]()

    def divide(task: Any, rows: Sequence[Any], count: int) -> Any:
        groups.append([row.group for row in rows])
        return folds_of(task, rows, count)

    monkeypatch.setattr(label_doubts, "folds_of", divide)
    rows = [(text, str(number // 6), colour(text)) for number, text in enumerate(TEXTS[:24])]
    path = write(tmp_path / "rows.csv", rows, ("text", "doc", "label"))  # type: ignore[arg-type]
    suggest(tiny_bert, path, group="doc")
    assert groups == [[group for _, group, _ in rows]]


def test_a_labelled_row_without_a_text_is_refused_or_dropped(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("text,label\none,a\n,b\ntwo,\n,\nthree,b\n")
    kind: Any = find_task("classification")
    with pytest.raises(InputError, match=r"of 5 rows 1 has no text \(the first: line 3\)"):
        kind(kind.Settings()).read_partly_labelled(tmp_path / "rows.csv")
    task = kind(kind.Settings(missing="drop"))
    found = [(row.text, row.label) for row in task.read_partly_labelled(tmp_path / "rows.csv")]
    assert found == [("one", "a"), ("two", None), ("", None), ("three", "b")]
