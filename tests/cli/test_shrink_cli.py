"""`bertsmith shrink` and `bertsmith distil --static` as a user runs them."""

import json
from pathlib import Path

import pytest

from bertsmith.cli.main import main
from bertsmith.inference.embedding.embedder import Embedder


def test_an_encoder_becomes_a_table_that_embeds_a_file(
    desk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (desk / "running.txt").write_text(
        "\n\n".join(f"red cat {'dog ' * (n % 5)}runs {n}." for n in range(300)) + "\n"
    )
    command = ["distil", "model", "--static", "--texts", "running.txt", "--dimensions", "4", "--out", "table"]
    assert main(command) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "10 vectors of 4 dimensions" in said and "sentences held out" in said
    assert main(["embed", "table/model", "texts.jsonl", "--out", "vectors.parquet"]) == 0
    assert Embedder(desk / "table" / "model").documents(["red cat"]).shape == (1, 4)
    assert main(command) == 2
    assert "already exists" in capsys.readouterr().err
    assert main([*command, "--resume"]) == 0


def test_a_table_is_learned_from_a_column_in_another_encoding(
    desk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [f"red é cat {'dog ' * (n % 5)}runs {n}.\n" for n in range(300)]
    (desk / "rows.csv").write_text("body\n" + "".join(rows), encoding="latin-1")
    command = ["distil", "model", "--static", "--texts", "rows.csv", "--dimensions", "4", "--out", "table"]
    assert main([*command, "--encoding", "latin-1"]) == 2
    assert "(distil: --text)" in capsys.readouterr().err
    assert main([*command, "--text", "body", "--encoding", "latin-1", "--language", "fr"]) == 0
    assert "red é cat" in json.loads((desk / "table" / "texts.jsonl").read_text().splitlines()[0])["text"]


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (["--static", "--dimensions", "99"], "dimensions must be 1 to 16"),
        (["--static", "--layers", "1"], "Leave --layers out"),
        (["--static", "epochs=3"], "Leave epochs=3 out"),
        (["--static", "--label", "kind"], "Leave --label out"),
        (["--static", "--format", "csv"], "Leave --format out"),
        (
            ["--static", "--text", "body"],
            "--text says how --texts are read. Add --texts, or leave --text out",
        ),
        (["--static", "--language", "de"], "--language says how --texts are read"),
        (["--static", "--texts", "running.txt", "--language", "German"], "expected a language's code"),
        (["--dimensions", "4"], "--dimensions is for --static"),
        (["--language", "de"], "--language is for --static"),
        (["--static", "--texts", "nowhere.txt"], "does not exist"),
    ],
)
def test_what_does_not_go_with_a_table_is_one_sentence(
    desk: Path, capsys: pytest.CaptureFixture[str], more: list[str], why: str
) -> None:
    assert main(["distil", "model", *more, "--out", "table"]) == 2
    assert why in " ".join(capsys.readouterr().err.split())
    assert not (desk / "table").exists()


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (["--keep", "98"], "keep is a share"),
        (["--hours", "0"], "hours must be above 0"),
        ([], "Fine-tune it first"),
        (["colour=red"], "unknown key 'colour'"),
    ],
)
def test_what_can_not_be_shrunk_is_one_sentence(
    desk: Path, capsys: pytest.CaptureFixture[str], more: list[str], why: str
) -> None:
    files = ["--train", "texts.jsonl", "--dev", "texts.jsonl", "--out", "small"]
    assert main(["shrink", "model", *more, *files]) == 2
    assert why in " ".join(capsys.readouterr().err.split())
    assert not (desk / "small").exists()
