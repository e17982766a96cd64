"""What a user gets wrong is one sentence and status 2, and leaves nothing behind."""

from pathlib import Path

import pytest

from bertsmith.cli.main import main
from bertsmith.cli.mirror_calls import _read_prompt

DIGITS = "9" * 5000
BUILD = ["corpus", "build", "texts.jsonl", "--out"]
INDEX = ["index", "build", "texts.jsonl", "--model", "model", "--out"]
TUNED = ["--model", "model", "--train", "rows.csv", "--out"]
ASKED = [
    "mirror",
    "label",
    "rows.csv",
    "--upstream",
    "http://127.0.0.1:9/v1",
    "--model",
    "m",
    "--schema",
    "s",
]
NO_FILE = "--prompt: there is no file "
REFUSED = [
    ([*BUILD, "c", "--encoding", "punycode"], "There is no encoding called 'punycode'"),
    ([*BUILD, "c", "--encoding", "idna"], "There is no encoding called 'idna'"),
    (
        [*BUILD, "c", "--language", "../../x"],
        "expected a language's code of ISO 639, such as en, de or zh-hant, found '../../x'.",
    ),
    (
        [*INDEX, "i", "--language", "../../x"],
        "expected a language's code of ISO 639, such as en, de or zh-hant, found '../../x'.",
    ),
    (["tokenizer", "train", "c", "--out", "t", "--vocab-size", "7"], "vocab_size: expected greater than"),
    (
        ["tokenizer", "train", "c", "--out", "t", "--vocab-size", "x"],
        "expected a whole number, found 'x'. See",
    ),
    ([*BUILD, "/proc/x"], "/proc/x cannot be written"),
    ([*INDEX, "/proc/x"], "/proc/x cannot be written"),
    ([*BUILD, "rows.csv/x"], "rows.csv can't be made"),
    ([*INDEX, "rows.csv/x"], "rows.csv can't be made"),
    ([*BUILD, ""], "--out is empty"),
    ([*INDEX, ""], "--out is empty"),
    (["finetune", "classification", *TUNED, ""], "--out is empty"),
    (["tune", "classification", *TUNED, ""], "--out is empty"),
    (
        ["embed", "model", "rows.csv", "--out", "-"],
        "This command can't write to standard output. Name a file",
    ),
    (["finetune", "classification", *TUNED, "-"], "This command can't write to standard output. Name a file"),
    ([*BUILD, "--licence"], "--out: expected a name, found --licence. Write ./--licence if it is one."),
    (["predict", "model", "rows.csv", "--out", "--overwrite"], "--out: expected a name, found --overwrite."),
    (
        ["embed", "model", "nowhere.csv", "--out", "v"],
        "Error: nowhere.csv does not exist. Name a file to read.",
    ),
    (["mine", "model", "~/nowhere", "--format", "csv", "--out", "m"], "Error: ~/nowhere does not exist."),
    (["finetune", "classification", *TUNED, "rows.csv"], "rows.csv is a file. Choose a folder for the run."),
    (["tune", "classification", *TUNED, "rows.csv"], "rows.csv is a file. Choose a folder for the search."),
    (["pretrain", "quickstart", "out=", "corpus=c", "tokenizer=t"], "The run needs a folder: out="),
    (["embed", "model", "rows.csv", "--out", "v", "--text", DIGITS], "rows.csv: no column '99999"),
    (["finetune", "classification", *TUNED, "r", "--text", DIGITS], "rows.csv: no column '99999"),
    (["finetune", "classification", *TUNED, "r", f"epochs={DIGITS}"], "epochs: expected a"),
    (
        ["finetune", "classification", *TUNED, "r", "optimizer.learning_rate=1e30"],
        "optimizer.learning_rate: expected less than or equal to 1, found 1e+30.",
    ),
    (["finetune", "regression", *TUNED, "r"], "rows.csv, line 2: expected a number within"),
    (
        ["evaluate", "model", "corpora/mistyped"],
        "corpora/mistyped does not exist. Name a file of labelled rows, or the folder of a corpus",
    ),
    (
        ["evaluate", "model", ".", "--train", "rows.csv", "--text-pair", "b", "--task", "m:T"],
        ". is a folder, so it is measured as a corpus or a token store: leave out --train and --task and "
        "--text-pair, for labelled rows alone.",
    ),
    (
        ["evaluate", "model", "rows.csv", "--sequence-length", "64"],
        "rows.csv is a file, so it is measured as labelled rows: leave out --sequence-length, for a corpus",
    ),
    (["rank", "model", "nowhere", "--out", "/proc/x"], "/proc/x cannot be written"),
    (["suggest", "model", "nowhere.csv", "--out", "/proc/new/x"], "/proc/new cannot be written"),
    ([*ASKED, "--prompt", "latin.txt"], "latin.txt isn't UTF-8. Save the prompt as UTF-8."),
    ([*ASKED[:-1], ".", "--prompt", "Which one?"], ". is a folder. Expected a file of JSON."),
    (["quickstart", "--source", "nowhere", "--out", "new/q"], "The source nowhere does not exist."),
    *(
        ([*ASKED, "--prompt", mistyped], f"{NO_FILE}'{mistyped}'")
        for mistyped in ("promt.txt", "my promt.txt", "prompts/intent", "promt", ".", "über.jinja", "")
    ),
]


@pytest.mark.parametrize(("words", "sentence"), REFUSED)
def test_a_mistake_is_one_sentence_and_leaves_nothing(
    desk: Path, words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (desk / "rows.csv").write_text(
        "text,label\n" + "".join(f"red cat {number},{number + 1}e299\n" for number in range(40))
    )
    (desk / "s").write_text('{"properties": {}}')
    (desk / "latin.txt").write_bytes("Schön?".encode("latin-1"))
    before = sorted(desk.rglob("*"))
    assert main(words) == 2
    complaint = capsys.readouterr().err
    assert sentence in " ".join(complaint.split())
    assert len(complaint) < 600
    assert "pydantic" not in complaint
    assert sorted(desk.rglob("*")) == before


# Whatever is read, as --out: with --overwrite too, where a command has it.
OUT_IS_AN_INPUT = [
    [*BUILD, "texts.jsonl"],
    ["tokenizer", "extend", "model", "c", "--out", "model"],
    ["finetune", "classification", *TUNED, "model"],
    ["finetune", "classification", *TUNED, "rows.csv"],
    ["tune", "classification", *TUNED, "model"],
    ["pretrain", "adapt", "init=model", "corpus=c", "out=model"],
    ["distil", "model", "--texts", "rows.csv", "--out", "model"],
    ["distil", "model", "--static", "--out", "model"],
    ["shrink", "model", "--train", "rows.csv", "--dev", "rows.csv", "--out", "model"],
    ["export", "model", "--gate", "rows.csv", "--out", "model", "--overwrite"],
    ["export", "model", "--gate", "rows.csv", "--out", "rows.csv", "--overwrite"],
    ["import", "model", "--out", "model"],
    *(
        [command, "model", "rows.csv", "--out", out, "--overwrite"]
        for command in ("embed", "predict", "mine")
        for out in ("rows.csv", "model", "model/config.json")
    ),
    *(["suggest", "model", "rows.csv", "--out", out, "--overwrite"] for out in ("rows.csv", "model")),
    *([*INDEX, out] for out in ("model", "texts.jsonl")),
]


@pytest.mark.parametrize("words", OUT_IS_AN_INPUT, ids=" ".join)
def test_what_a_command_reads_is_never_written_over(desk: Path, words: list[str]) -> None:
    (desk / "rows.csv").write_text("query,positive,text,label\nred cat,cat runs,cat,a\nblue,dog,dog,b\n")
    before = {path: path.read_bytes() for path in desk.rglob("*") if path.is_file()}
    assert main(words) == 2
    assert {path: path.read_bytes() for path in desk.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    "prompt", ["Which intent?", "positiv/negativ:{text}", "判断情感", "Be brief.\nSee a.txt"]
)
def test_an_instruction_is_no_name_of_a_file(prompt: str) -> None:
    assert _read_prompt(prompt) == prompt


def test_a_name_that_is_no_utf8_is_shown_by_its_bytes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The shell hands such a byte on as a lone surrogate, which UTF-8 can't print."""
    name = str(tmp_path / "caf\udce9.txt")
    assert main(["corpus", "build", name, "--out", str(tmp_path / "corpus")]) == 2
    assert r"caf\udce9.txt does not exist" in capsys.readouterr().err


def test_an_output_whose_name_is_no_utf8_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before the work: not every library that writes takes such a name."""
    (tmp_path / "text.txt").write_text("The cat sees a ship.")
    out = str(tmp_path / "caf\udce9")
    assert main(["corpus", "build", str(tmp_path / "text.txt"), "--out", out]) == 2
    assert "--out: expected a name in UTF-8, found" in capsys.readouterr().err
