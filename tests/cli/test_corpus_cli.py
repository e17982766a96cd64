"""`bertsmith corpus`: what it prints, its exit status, and one sentence for what is wrong."""

import gzip
import json
import re
from pathlib import Path

import pytest

from bertsmith.cli.main import main
from bertsmith.data.store import TokenStore
from bertsmith.text.corpus.corpus import Corpus

DOCUMENTS = [f"Document {n} speaks of matter {n}.\nIt ends with the word number {n * n}." for n in range(30)]
PIECES = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "document",
    "speaks",
    "of",
    "matter",
    "it",
    "ends",
    ".",
]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "texts.txt.gz"
    path.write_bytes(gzip.compress("\n\n".join(DOCUMENTS).encode()))
    return path


@pytest.fixture
def corpus(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert main(["corpus", "build", str(source), "--out", str(tmp_path / "corpus"), "--licence", "CC0"]) == 0
    return tmp_path / "corpus"


def test_build_prints_what_it_made(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert Corpus.open(corpus).manifest.kept.documents == 30
    assert Corpus.open(corpus).manifest.licence == "CC0"


def test_little_held_out_text_is_warned_of(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    build = ["corpus", "build", str(source), "--format", "blank-lines", "--out"]
    for share, warned in (("0.2", True), ("0", False)):
        assert main([*build, str(tmp_path / share), "--heldout", share]) == 0
        assert ("words are held out: too few" in capsys.readouterr().out) is warned


def test_a_corpus_may_lie_among_its_sources(tmp_path: Path) -> None:
    """And so may a token store, an index and a model: none of their files is text to read."""
    folder = tmp_path / "texts"
    (folder / "model").mkdir(parents=True)
    (folder / "a.txt").write_text("\n\n".join(DOCUMENTS))
    (folder / "model/bertsmith.json").write_text("{}")
    (folder / "model/README.md").write_text("A card that says what the model does.")
    (folder / "manifest.json").write_text('{"text": "A sentence of somebody else\'s file of that name."}')
    for out in (folder / "first", folder / "deeper/second"):
        out.parent.mkdir(exist_ok=True)
        assert main(["corpus", "build", str(folder), "--out", str(out)]) == 0
        sources = [source.name for source in Corpus.open(out).manifest.sources]
        assert sources == ["texts/a.txt", "texts/manifest.json"]


def test_info_shows_counts_sources_and_examples(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["corpus", "info", str(corpus)]) == 0
    first = capsys.readouterr().out
    assert main(["corpus", "info", str(corpus)]) == 0
    assert capsys.readouterr().out == first
    assert "30" in first and "texts.txt.gz" in first and "lines" in first and "CC0" in first
    assert sum(DOCUMENTS[n].replace("\n", " ") in first for n in range(30)) == 3
    assert main(["corpus", "info", str(corpus), "--seed", "1"]) == 0
    assert capsys.readouterr().out != first
    assert main(["corpus", "info", str(corpus), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["licence"], facts["splits"]["train"]["counts"]["documents"]) == ("CC0", 29)


def test_settings_on_the_command_line_reach_the_manifest(source: Path, tmp_path: Path) -> None:
    out = str(tmp_path / "corpus")
    options = ["--no-near-duplicates", "--heldout", "0.5", "--format", "blank-lines", "--min-words", "2"]
    assert main(["corpus", "build", str(source), "--out", out, "--workers", "1", *options]) == 0
    manifest = Corpus.open(out).manifest
    settings = manifest.settings
    assert (settings.near_duplicates, settings.heldout, settings.format, settings.min_words) == (
        False,
        0.5,
        "blank-lines",
        2,
    )
    assert manifest.splits["heldout"].counts.documents > 5


def test_a_single_file_read_as_one_document_gets_a_hint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.txt").write_text("A paragraph with no stop\n\nAnother one with no stop\n")
    assert main(["corpus", "build", str(tmp_path / "a.txt"), "--out", str(tmp_path / "corpus")]) == 0
    assert "--format blank-lines" in capsys.readouterr().out


def test_the_layout_that_was_taken_for_files_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, text in (("a.txt", "One.\nTwo.\n\nThree.\nFour.\n"), ("b.txt", "One.\n"), ("c.txt", "Two.\n")):
        (tmp_path / name).write_text(text)
    build = ["corpus", "build", *map(str, tmp_path.iterdir()), "--out"]
    assert main([*build, str(tmp_path / "corpus")]) == 0
    screen = " ".join(capsys.readouterr().out.split())
    assert "(--format names another)" in screen and "file 2 files: a file is one document" in screen
    assert "lines 1 file: a sentence per line, blank lines between documents" in screen
    assert main([*build, str(tmp_path / "named"), "--format", "file"]) == 0
    assert "Read as" not in capsys.readouterr().out


def test_another_encoding_is_named_by_the_options_of_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    build = ["corpus", "build", str(tmp_path / "a.txt"), "--out", str(tmp_path / "corpus")]
    (tmp_path / "a.txt").write_bytes(b"caf\xe9 au lait")
    assert main(build) == 2
    assert capsys.readouterr().err.endswith(
        "Save it as UTF-8, or name its encoding (--encoding latin-1, for one), or put U+FFFD for such bytes "
        "(--encoding-errors replace).\n"
    )
    (tmp_path / "a.txt").write_text("A sentence.", encoding="utf-16-le")
    assert main(build) == 2
    assert "looks like utf-16-le without a byte-order mark. Save it as UTF-8, or name its encoding" in (
        capsys.readouterr().err
    )
    assert main([*build, "--encoding", "utf-16-le"]) == 0


def test_verify_accepts_what_is_whole_and_names_what_is_not(
    corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["corpus", "verify", str(corpus)]) == 0
    shard = corpus / "train-00000.parquet"
    data = bytearray(shard.read_bytes())
    data[100] ^= 1
    shard.write_bytes(data)
    capsys.readouterr()
    assert main(["corpus", "verify", str(corpus)]) == 2
    assert "train-00000.parquet was altered" in capsys.readouterr().err


def test_tokenize_writes_a_store_that_verify_knows(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "vocab.txt").write_text("\n".join(PIECES) + "\n")
    store = tmp_path / "store"
    assert main(["corpus", "tokenize", str(corpus), str(tmp_path / "vocab.txt"), "--out", str(store)]) == 0
    assert TokenStore.open(store / "train").vocab_size == len(PIECES)
    assert main(["corpus", "verify", str(store)]) == 0
    capsys.readouterr()
    assert main(["corpus", "info", str(store)]) == 0
    shown, train = capsys.readouterr().out, TokenStore.open(store / "train")
    assert re.search(rf"train +29 +58 +{len(train.tokens):,} *\n", shown) and "12 pieces" in shown
    assert main(["corpus", "info", str(store), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["splits"]["train"]["tokens"] == len(train.tokens)
    assert main(["corpus", "tokenize", str(store), str(tmp_path / "vocab.txt"), "--out", "x"]) == 2
    assert f"{store} is a token store. Name the corpus" in capsys.readouterr().err
    (store / "heldout").rename(tmp_path / "elsewhere")
    capsys.readouterr()
    assert main(["corpus", "verify", str(store)]) == 2, "half of a store is not whole"
    assert "heldout" in capsys.readouterr().err
    (tmp_path / "elsewhere").rename(store / "heldout")
    tokens = store / "train" / "tokens.bin"
    data = bytearray(tokens.read_bytes())
    data[-1] ^= 1
    tokens.write_bytes(data)
    assert main(["corpus", "verify", str(store)]) == 2


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["nowhere"], "The source nowhere does not exist."),
        ([], "at least one SOURCE"),
        (["texts.txt.gz", "--format", "xml"], "format: expected 'auto', 'file'"),
        (["texts.txt.gz", "--heldout", "1"], "heldout: expected less than 1"),
        (["texts.txt.gz", "--workers", "0"], "workers must be a whole number from 1 on, found 0."),
        (["texts.txt.gz", "--format", "csv"], "texts.txt.gz: no column 'text'"),
        (["pydocs:nosuchpackage"], "no package nosuchpackage is installed here"),
        (["cut.gz"], "cut.gz: the gzip archive is cut or damaged"),
        (["latin.txt"], "expected utf-8 text, found 0xe9 at byte 3"),
        (["empty.txt"], "The source empty.txt yielded no text"),
        (["empty"], "The folder empty holds no file"),
    ],
)
def test_a_mistake_is_one_sentence_and_status_2(
    source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    complaint: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("cut.gz").write_bytes(source.read_bytes()[:-9])
    Path("latin.txt").write_bytes("café".encode("latin-1"))
    Path("empty.txt").touch()
    Path("empty").mkdir()
    before = sorted(tmp_path.iterdir())
    assert main(["corpus", "build", *arguments, "--out", "out/corpus"]) == 2
    printed = capsys.readouterr()
    assert complaint in printed.err
    assert len(printed.err.strip().splitlines()) == 1
    assert sorted(tmp_path.iterdir()) == before


def test_help_shows_the_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["corpus", "build", "--help"]) == 0
    printed = capsys.readouterr().out
    assert "bertsmith corpus build pydocs: --out corpora/pydocs" in printed
    assert "--no-near-duplicates" in printed


def test_a_folder_below_a_file_is_a_sentence(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("x")
    assert main(["tokenizer", "train", str(corpus), "--out", str(tmp_path / "file" / "t")]) == 2
    assert "can't be made" in capsys.readouterr().err


def test_decontaminate(corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    test = tmp_path / "test.txt"
    test.write_text(
        "document 7 SPEAKS of matter 7!\nNothing of the kind stands there.\n<b>& so</b> on it goes\n"
    )
    clean, page = tmp_path / "clean", tmp_path / "page.html"
    capsys.readouterr()
    assert main(["corpus", "decontaminate", str(corpus), "--against", str(test), "--page", str(page)]) == 0
    assert "1 (33.3 %)" in (out := capsys.readouterr().out)
    assert "Document 7 speaks of matter 7." in out
    assert "--out FOLDER" in out
    assert "document 7 SPEAKS of matter 7!" in page.read_text()
    assert main(["corpus", "decontaminate", str(corpus), "--against", str(test), "--out", str(clean)]) == 0
    assert "Removed: 1 sentence, 6 words. Of 1 document concerned 0 went whole." in capsys.readouterr().out
    assert (clean / "decontamination.html").is_file()
    assert main(["corpus", "info", str(clean)]) == 0
    assert "against test.txt: 1 sentence removed" in capsys.readouterr().out
    assert main(["corpus", "verify", str(clean)]) == 0
    texts = [each.sentences for split in ("train", "heldout") for each in Corpus.open(clean).documents(split)]
    assert ["It ends with the word number 49."] in texts
    assert len(texts) == 30


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--against", "nowhere.csv"], "nowhere.csv"),
        (["--against", "labels.csv"], "no column looks like text"),
        (["--against", "texts.txt", "--out", "taken"], "taken already exists"),
        (
            ["--against", "texts.txt", "--page", "labels.csv"],
            "labels.csv already exists. Choose another name or remove it first.",
        ),
        (["--against", "texts.txt", "--format", "xml"], "no format 'xml'"),
        (["--against", "texts.txt", "--workers", "0"], "workers"),
    ],
)
def test_decontaminate_refuses(
    corpus: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts.txt").write_text("A text of words.\n")
    (tmp_path / "labels.csv").write_text("label\ngood\n")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "letter.txt").touch()
    before = sorted(tmp_path.iterdir())
    assert main(["corpus", "decontaminate", str(corpus), *arguments]) == 2
    assert message in capsys.readouterr().err
    assert sorted(tmp_path.iterdir()) == before
