"""Options that several commands share mean the same in each, and only what was said is handed on."""

import shlex
from pathlib import Path

import pytest

from bertsmith.cli.finetune import suggest
from bertsmith.cli.main import build_app, main
from bertsmith.cli.options import FileLayout, LabelledColumns, RunFiles, as_typed, collect_options

LABELLED = ["--text", "body", "--text-pair", "title", "--label", "kind", "--encoding", "latin-1"]


def test_only_what_was_said_is_given_and_paths_are_text() -> None:
    files = RunFiles("minilm", train=Path("train.csv"), out=Path("runs/a"), test=Path("test.csv"))
    said = {"model": "minilm", "train": "train.csv", "out": "runs/a", "test": "test.csv"}
    assert collect_options(files, None, FileLayout()) == said
    assert collect_options(LabelledColumns(label="kind"), FileLayout(header=False)) == {
        "label": "kind",
        "header": False,
    }


@pytest.mark.parametrize(
    "words",
    [
        ["finetune", "classification", "--model", "m", "--train", "t", "--out", "o", "epochs=3"],
        ["tune", "classification", "--model", "m", "--train", "t", "--out", "o", "trials=3"],
        ["evaluate", "m", "test.csv"],
    ],
    ids=lambda words: words[0],
)
def test_columns_and_layout_arrive_under_their_names(words: list[str]) -> None:
    app = build_app(words[0])
    _, bound, _ = app.parse_args([*words, *LABELLED, "--no-header"], exit_on_error=False, print_error=False)
    columns, layout = bound.arguments["columns"], bound.arguments["layout"]
    said = {"text": "body", "text_pair": "title", "label": "kind", "encoding": "latin-1", "header": False}
    assert collect_options(columns, layout) == said


def test_predict_takes_no_label(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "m", "new.csv", "--label", "kind"]) == 2
    assert "--label" in capsys.readouterr().err


@pytest.mark.parametrize("left_out", ["--model", "--train", "--out"])
def test_what_a_run_needs_is_named_when_it_is_left_out(
    left_out: str, capsys: pytest.CaptureFixture[str]
) -> None:
    needed = [word for name in ("--model", "--train", "--out") if name != left_out for word in (name, "x")]
    assert main(["finetune", "classification", *needed]) == 2
    complaint = capsys.readouterr().err
    assert left_out in complaint
    assert complaint.count("\n") == 1


@pytest.mark.parametrize("command", ["finetune", "tune", "predict", "evaluate"])
def test_how_rows_are_read_has_a_panel_of_its_own_in_the_help(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, "--help"]) == 0
    panel = capsys.readouterr().out.partition("How the rows are read")[2]
    options = ["--text ", "--text-pair", "--label", "--header", "--format", "--encoding"]
    places = [panel.index(option) for option in options if option != "--label" or command != "predict"]
    assert places == sorted(places)


@pytest.mark.parametrize("header", [True, False])
def test_the_command_on_a_page_can_be_typed_again(header: bool) -> None:
    typed = as_typed(suggest, "suggest", "m", "a b.csv", count=3, seed=0, header=header, text="the text")
    words = shlex.split(typed)[1:]
    _, bound, _ = build_app("suggest").parse_args(
        [*words, "--out", "o"], exit_on_error=False, print_error=False
    )
    assert (bound.arguments["file"], bound.arguments["count"]) == (Path("a b.csv"), 3)
    assert (bound.arguments["layout"].header, bound.arguments["columns"].text) == (header, "the text")
