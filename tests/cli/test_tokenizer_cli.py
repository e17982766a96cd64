"""`bertsmith tokenizer`: train, report and encode as a user runs them."""

import json
from pathlib import Path

import pytest

from bertsmith.cli.main import main
from bertsmith.data.store import TokenStore
from bertsmith.text.corpus.building import build_corpus
from bertsmith.text.corpus_settings import CorpusSettings
from bertsmith.text.tokens.tokenizer import Tokenizer


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    lines = [
        f"The {animal} sees [bold] {number} old ships.\n" for animal in ("cat", "dog") for number in range(40)
    ]
    (tmp_path / "text.txt").write_text("\n".join(lines))
    choice = CorpusSettings(format="blank-lines", heldout=0.2, near_duplicates=False)
    build_corpus([str(tmp_path / "text.txt")], tmp_path / "corpus", settings=choice, workers=1)
    return tmp_path / "corpus"


@pytest.fixture
def out(tmp_path: Path, corpus: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """The folder of a tokenizer of 80 pieces."""
    folder = tmp_path / "learnt"
    main(["tokenizer", "train", str(corpus), "--out", str(folder), "--vocab-size", "80"])
    capsys.readouterr()
    return folder


def test_train_writes_a_tokenizer_and_prints_how_it_fits(
    tmp_path: Path, corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "tokenizer"
    assert (
        main(["tokenizer", "train", str(corpus), "--out", str(out), "--vocab-size", "100", "--no-lowercase"])
        == 0
    )
    printed = capsys.readouterr().out
    tokenizer = Tokenizer.load(out)
    assert not tokenizer.lowercase
    assert tokenizer.encode("The cat").tokens == ["The", "cat"]
    assert f"{tokenizer.vocab_size} pieces" in printed
    assert "100 were asked for, but the corpus has no more" in printed
    assert "Vocabulary on the heldout split" in printed
    assert "[ bold ]" in printed  # text of the corpus is printed as it is, never as markup


@pytest.mark.parametrize(
    ("text", "options", "scripts"),
    [
        ("が ぎ か く {} です", [], "Chinese and kana"),
        ("ที่ นี่ {}", [], "Thai"),
        ("हिन्दी में {}", [], "Devanagari"),
        ("中文 很 好 {}", [], None),  # without kana
        ("é à {}", [], None),
        ("が ぎ か く {} です", ["--no-lowercase"], None),
        ("が ぎ か く {} です", ["--kind", "unigram"], None),
    ],
)
def test_train_warns_where_letters_would_be_stripped_as_accents(
    text: str, options: list[str], scripts: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text.txt").write_text("\n\n".join(text.format(n) for n in range(60)), encoding="utf-8")
    choice = CorpusSettings(format="blank-lines", heldout=0.2, near_duplicates=False)
    build_corpus([str(tmp_path / "text.txt")], tmp_path / "corpus", settings=choice, workers=1)
    out = str(tmp_path / "learnt")
    command = ["tokenizer", "train", str(tmp_path / "corpus"), "--out", out, "--vocab-size", "60", *options]
    assert main(command) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert ("Warning: An uncased WordPiece strips accents" in printed) == (scripts is not None)
    assert f"and in {scripts} these are letters" in printed or scripts is None


def test_report_as_json(corpus: Path, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tokenizer", "report", str(out), str(corpus), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads((out / "report.json").read_text()) | {"asked_for": printed["vocab_size"]}


def test_encode_shows_pieces_ids_and_places(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tokenizer", "encode", str(out), "Cat [MASK]", "--read-special-tokens"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["cat", str(Tokenizer.load(out).token_to_id("cat")), "0–3", "Cat"] in rows
    assert ["[MASK]", "4", "4–10", "[MASK]"] in rows
    assert main(["tokenizer", "encode", str(out), "Cat [MASK]", "--read-special-tokens", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["tokens"][0], facts["ids"][-1], facts["offsets"]) == ("cat", 4, [[0, 3], [4, 10]])


def test_a_mistake_is_one_sentence_and_status_2(
    tmp_path: Path, corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "tokenizer"
    assert main(["tokenizer", "train", str(corpus), "--out", str(out), "--vocab-size", "10"]) == 2
    assert "has no room for 5 special tokens" in " ".join(capsys.readouterr().err.split())
    assert main(["tokenizer", "train", str(corpus), "--out", str(out), "--vocab-size", "2"]) == 2
    assert main(["tokenizer", "encode", str(tmp_path), "x"]) == 2
    assert "holds no tokenizer" in capsys.readouterr().err
    assert not out.exists()


def test_a_models_short_name_is_its_tokenizer(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tokenizer", "encode", "minilm", "Cat"]) == 0
    assert ["cat", "4937", "0–3", "Cat"] in [line.split() for line in capsys.readouterr().out.splitlines()]
    assert main(["tokenizer", "report", "minilm", str(corpus), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["vocab_size"] == 30_522
    assert main(["corpus", "tokenize", str(corpus), "minilm", "--out", str(tmp_path / "store")]) == 0
    assert TokenStore.open(tmp_path / "store" / "train").vocab_size == 30_522


def test_extend_shows_words_and_fit_and_undo_takes_them_out(
    tmp_path: Path, corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, extended, undone = (tmp_path / name for name in ("tokenizer", "extended", "undone"))
    main(["tokenizer", "train", str(corpus), "--out", str(out), "--vocab-size", "64"])
    capsys.readouterr()
    assert main(["tokenizer", "extend", str(out), str(corpus), "--words", "3", "--out", str(extended)]) == 0
    printed = capsys.readouterr().out
    assert "3 words added" in printed
    word = Tokenizer.load(extended).pieces[-1]
    assert [line for line in printed.splitlines() if line.split()[:1] == [word]]
    assert "pieces per word" in printed
    assert "of the heldout split" in printed
    assert main(["tokenizer", "extend", str(extended), "--undo", "--out", str(undone)]) == 0
    assert "3 added words are gone" in capsys.readouterr().out
    assert Tokenizer.load(undone).sha256 == Tokenizer.load(out).sha256


def test_extend_says_what_is_missing_or_too_much(
    tmp_path: Path, corpus: Path, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = str(tmp_path / "made")
    refused = {
        "Name the CORPUS": [str(out)],
        "Leave CORPUS out": [str(out), str(corpus), "--undo"],
        "leave out --min-count, for": [str(out), "--undo", "--min-count", "20"],
        "was not extended": [str(out), "--undo"],
        "is not a corpus": [str(out), str(out)],
        "no model": ["nowhere", str(corpus)],
        "greater than or equal to 1": [str(out), str(corpus), "--words", "0"],
        "already exists": [str(out), str(corpus), "--out", str(out)],
    }
    for said, arguments in refused.items():
        ending = [] if "--out" in arguments else ["--out", made]
        assert main(["tokenizer", "extend", *arguments, *ending]) == 2, said
        assert said in " ".join(capsys.readouterr().err.split()), said
    assert not Path(made).exists()


def test_encode_takes_a_text_that_is_no_utf8(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tokenizer", "encode", str(out), "Ca\udce9t dog"]) == 0
    assert "Ca\ufffdt" in capsys.readouterr().out
