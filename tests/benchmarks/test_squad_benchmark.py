"""SQuAD as a benchmark: official files, official rules, the file that the official scripts take."""

import json
from pathlib import Path
from typing import Any

import pytest
from benchmark_toys import GOOD, QUICK, WORDS

from bertsmith.benchmarks.squad import SquadTask, squad_suite
from bertsmith.cli.main import main
from bertsmith.errors import InputError


def write_squad(path: Path, questions: int, version: str = "1.1") -> None:
    paragraphs = []
    for number in range(questions):
        context = f"{WORDS[number % 12]} {GOOD} {WORDS[(number + 5) % 12]}"
        answers = [{"text": GOOD, "answer_start": context.index(GOOD)}]
        asked: dict[str, Any] = {"id": f"q{number}", "question": "bano?", "answers": answers}
        if version == "2.0":
            asked |= {"is_impossible": number % 3 == 0, "answers": [] if number % 3 == 0 else answers}
        paragraphs.append({"context": context, "qas": [asked]})
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"version": version, "data": [{"title": "T", "paragraphs": paragraphs}]}))


def test_figures_are_those_of_the_official_rules(tmp_path: Path) -> None:
    context = "The Denver Broncos won in 2016."
    right = [{"text": "Denver Broncos", "answer_start": 4}, {"text": "The Denver Broncos", "answer_start": 0}]
    when = [{"text": "2016", "answer_start": 26}]
    qas = [
        {"id": "who", "question": "Who?", "answers": right, "is_impossible": False},
        {"id": "when", "question": "When?", "answers": when, "is_impossible": False},
        {"id": "why", "question": "Why?", "answers": [], "is_impossible": True},
    ]
    data = {"version": "v2.0", "data": [{"title": "T", "paragraphs": [{"context": context, "qas": qas}]}]}
    rows, said = tmp_path / "dev-v2.0.json", tmp_path / "dev.jsonl"
    rows.write_text(json.dumps(data))
    answers = {"who": "the Denver Broncos!", "when": "in 2016", "why": ""}
    said.write_text("".join(json.dumps({"id": id, "answer": text}) + "\n" for id, text in answers.items()))
    found = SquadTask("2.0").figures(rows, said)
    # by hand: who is exact; of "in 2016" one of two words is right, F1 2/3; saying nothing is right
    assert found == pytest.approx({"score": 8 / 9, "f1": 8 / 9, "exact_match": 2 / 3})
    said.write_text(json.dumps({"id": "who", "answer": "x"}) + "\n")
    with pytest.raises(InputError, match="no answer to 2 questions, such as when"):
        SquadTask("2.0").figures(rows, said)


@pytest.mark.parametrize(("version", "exact"), [("1.1", 1.0), ("2.0", 0.0)])
def test_punctuation_alone_is_an_answer_of_version_1_only(version: str, exact: float, tmp_path: Path) -> None:
    """One of v1.1's dev: its script compares what normalising leaves, nothing with nothing."""
    right = [{"text": "war", "answer_start": 4}, {"text": ".", "answer_start": 7}]
    asked = {"id": "q", "question": "What?", "answers": right}
    paragraphs = [{"context": "The war.", "qas": [asked]}]
    rows, said = tmp_path / "dev.json", tmp_path / "said.jsonl"
    rows.write_text(json.dumps({"version": version, "data": [{"title": "T", "paragraphs": paragraphs}]}))
    said.write_text(json.dumps({"id": "q", "answer": "."}) + "\n")
    found = SquadTask(version).figures(rows, said)
    assert found == {"score": 0.0, "f1": 0.0, "exact_match": exact}


def test_versions_are_known_by_their_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"has no SQuAD. Expected train-v1.1.json and dev-v1.1.json"):
        squad_suite(tmp_path)
    for part in ("train", "dev"):
        write_squad(tmp_path / f"{part}-v2.0.json", 3, "2.0")
    assert squad_suite(tmp_path).name == "SQuAD v2.0"


def test_pieces_of_the_official_files_are_said_to_be_pieces(shared_data: Path, tmp_path: Path) -> None:
    files = SquadTask("1.1").prepare(shared_data / "squad", tmp_path, None)
    assert files.dev.name == "dev-v1.1.json"
    assert files.notes == (
        "train-pieces-assembled.json is a part of the official file: figures are not those of the whole",
    )


@pytest.mark.parametrize("version", ["1.1", "2.0"])
def test_the_command_runs_it_whole(
    version: str, model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for part, count in (("train", 60), ("dev", 70)):
        write_squad(tmp_path / f"squad/{part}-v{version}.json", count, version)
    out = tmp_path / "out"
    words = [*QUICK, "stride=2", "--rows", "50", "--seeds", "1", "--model", model, "--out", str(out)]
    assert main(["benchmark", "squad", str(tmp_path / "squad"), *words]) == 0
    page = capsys.readouterr().out
    handed_in = json.loads((out / "submission/predictions.json").read_text())
    assert len(handed_in) == 50  # the questions that were drawn of dev
    record = json.loads((out / "results.json").read_text())["tasks"][f"SQuAD v{version}"]
    assert record["seeds"][0]["rows"] == {"train": 50, "dev": 50}
    assert f"{100 * record['seeds'][0]['figures']['dev']['exact_match']:.1f}" in page
    assert "a trial on 50 rows of each part" in page
    assert "BERT-large" in page


def test_it_runs_on_all_rows_too(model: str, tmp_path: Path) -> None:
    """The official files are then read where they lie."""
    for part in ("train", "dev"):
        write_squad(tmp_path / f"squad/{part}-v1.1.json", 30)
    out = tmp_path / "out"
    words = [*QUICK, "stride=2", "--seeds", "1", "--model", model, "--out", str(out)]
    assert main(["benchmark", "squad", str(tmp_path / "squad"), *words]) == 0
    assert len(json.loads((out / "submission/predictions.json").read_text())) == 30


def test_an_unknown_version_is_refused(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--version", "3", "--model", model, "--out", str(tmp_path / "out")]
    assert main(["benchmark", "squad", str(tmp_path), *words]) == 2
    assert "The versions are 1.1 and 2.0" in capsys.readouterr().err
