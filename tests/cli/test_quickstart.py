"""The whole flow in one command: five stages in turn, and the second time nothing is made again."""

import json
import random
import re
from pathlib import Path

import pytest

from bertsmith.cli import quickstart
from bertsmith.cli.main import main
from bertsmith.text.corpus.building import build_corpus
from bertsmith.text.corpus_settings import CorpusSettings
from bertsmith.training.finetuning.source_demo import ROWS

SUBJECTS = ("court", "judge", "witness", "clerk", "lawyer", "jury", "tenant", "bank")


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "articles").mkdir()
    for number in range(150):
        sentences = (
            f"The {subject} of case {number} kept part {number * place % 13} and filed the rest of it again."
            for place, subject in enumerate(SUBJECTS)
        )
        (tmp_path / "articles" / f"{number}.txt").write_text("\n".join(sentences))
    return "articles"


def test_from_text_to_filled_masks_and_again(source: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = f"quickstart --source {source} --minutes 0.02 --vocab-size 120 --out made".split()
    assert main(command) == 0
    first = capsys.readouterr().out
    assert re.findall(r"^(\d)  ", first, re.MULTILINE) == ["1", "2", "3", "4", "5"]
    assert "used again" not in first
    assert first.count("[MASK]") >= 4, "sentences of one's own text, and how to ask on"
    made = {path: path.stat().st_mtime_ns for path in Path("made").rglob("*") if path.is_file()}
    assert Path("made/run/report.html") in made

    command[command.index("--source") + 1] = f"{source}/"  # as a shell completes it
    assert main(command) == 0
    second = capsys.readouterr().out
    assert second.count("made earlier, used again") == 3
    assert {path: path.stat().st_mtime_ns for path in Path("made").rglob("*") if path.is_file()} == made
    assert figures(second) == figures(first)

    for name, value in (("--source", "other"), ("--minutes", "0.5"), ("--vocab-size", "130")):
        changed = list(command)
        changed[command.index(name) + 1] = value
        assert main(changed) == 2, "an earlier call made something else"
        assert f"but now {name} is {value}." in " ".join(capsys.readouterr().err.split())


def _sentence(draw: random.Random, name: str) -> str:
    """Words that no other text has: near-duplicates would be dropped."""
    words = ("".join(draw.choices("abcdeinorst", k=5)) for _ in range(9))
    return f"The {name} has {' '.join(words)}."


def figures(screen: str) -> str:
    """What was measured: the same model on the same masks."""
    return screen.partition("\n4  ")[2]


@pytest.mark.parametrize("minutes", ["0", "-1", "nan"])
def test_no_time_is_refused_before_anything_is_read(
    minutes: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["quickstart", "--minutes", minutes, "--out", str(tmp_path / "made")]) == 2
    assert f"--minutes: expected more than 0, found {minutes}." in capsys.readouterr().err
    assert not (tmp_path / "made").exists()


def test_an_empty_source_is_a_sentence_and_leaves_nothing(
    source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    assert main(["quickstart", "--source", "empty", "--out", "made"]) == 2
    assert "empty" in capsys.readouterr().err
    assert not list(Path().glob("made/*"))


@pytest.mark.slow
def test_its_model_is_put_to_use_where_texts_have_several_sources(
    source: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quickstart, "_SMALL", ("epochs=1", "batch_size=64"))
    monkeypatch.setattr(quickstart, "find_spec", lambda _: None)
    draw = random.Random(0)
    for name in ("north", "south"):
        texts = [" ".join(_sentence(draw, name) for _ in range(3)) for _ in range(150)]
        lines = "\n".join(json.dumps({"text": text}) for text in texts)
        Path("sides").mkdir(exist_ok=True)
        Path(f"sides/{name}.jsonl").write_text(lines)
    command = ["quickstart", "--source", "sides", "--minutes", "0.02", "--vocab-size", "120", "--out", "made"]
    corpus = build_corpus(["sides"], Path("made/corpus"), settings=CorpusSettings())
    assert corpus.manifest.kept.documents == 300
    assert main(command) == 0
    screen = capsys.readouterr().out
    assert "which of 2 sources" in screen
    for start in ("pre-trained above", "random weights", "always the most frequent label", "TF-IDF"):
        assert start in screen
    rows = {name: set(Path(f"made/origin/rows/{name}.jsonl").read_text().splitlines()) for name in ROWS}
    assert {name: len(found) for name, found in rows.items()} == {"train": 128, "dev": 64, "test": 64}
    assert len(set.union(*rows.values())) == 256, "a text in two files"
    made = {path: path.stat().st_mtime_ns for path in Path("made").rglob("*") if path.is_file()}
    assert main(command) == 0
    assert {path: path.stat().st_mtime_ns for path in Path("made").rglob("*") if path.is_file()} == made


@pytest.mark.parametrize(
    ("source", "own"), [("pydocs:", False), ("pydocs:numpy", False), ("pydocs-mine", True)]
)
def test_sentences_to_fill_are_of_the_text_itself(source: str, own: bool, tmp_path: Path) -> None:
    """A folder may be called like the source of Python's documentation."""
    fills = tmp_path / "fills.json"
    fills.write_text('[{"text": "The [MASK] of the tenant."}]')
    assert (quickstart._choose_questions(source, fills) == ["The [MASK] of the tenant."]) is own
