"""`bertsmith index` and `bertsmith search`: what they print, their exit status, and what they refuse."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("lancedb")

from bertsmith.cli.embed import _find_window, _format_heading, _format_passage
from bertsmith.cli.main import main
from bertsmith.inference.index.index import Index
from bertsmith.inference.index.manifest import read_index_manifest, write_index_manifest
from bertsmith.inference.index.search import Hit
from bertsmith.model.bert import Bert
from bertsmith.model.checkpoint import save_checkpoint
from bertsmith.model.config import make_config
from bertsmith.text.tokens.tokenizer import Tokenizer

WORDS = ("leave", "is", "asked", "for", "a", "week", "before", "the", "office", "opens", "at", "nine", "tea")
TEXTS = {
    "leave.md": "# Leave\n\nLeave is asked for a week before.\n",
    "office.txt": "The office opens at nine.\n",
    "logo.png": "\x89PNG\0",
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("models") / "tiny", 16)


def tiny_model(folder: Path, width: int) -> Path:
    tokenizer = Tokenizer.from_pieces(
        ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *WORDS], lowercase=True
    )
    shape = {"hidden_size": width, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = make_config({"vocab_size": tokenizer.vocab_size, "max_position_embeddings": 32} | shape, "test")
    tensors = {f"encoder.{name}": tensor for name, tensor in Bert(config).state_dict().items()}
    save_checkpoint(folder, tensors, config, "BertModel", task="test", tokenizer=tokenizer)
    return folder


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    folder = tmp_path / "docs"
    folder.mkdir()
    for name, text in TEXTS.items():
        (folder / name).write_text(text)
    return folder


@pytest.fixture
def index(docs: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    out = docs.parent / "index"
    assert main(["index", "build", str(docs), "--model", str(model), "--out", str(out)]) == 0
    return out


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What a command prints that succeeds."""
    capsys.readouterr()
    assert main(list(words)) == 0
    return capsys.readouterr().out


def complaint(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The sentence of one that fails."""
    capsys.readouterr()
    assert main(list(words)) == 2
    found = capsys.readouterr().err
    assert found.count("\n") == 1, "one line"
    return found


def test_build_says_what_it_did_and_what_it_left_out(
    docs: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ("index", "build", str(docs), "--model", str(model), "--out", str(docs.parent / "index"))
    first = printed(capsys, *command)
    assert "Documents: 2 new, 0 changed, 0 removed, 0 unchanged\n2 passages embedded" in first
    assert "Left out: 1 binary file (docs/logo.png)." in first
    assert "exact: every vector is compared" in first
    again = printed(capsys, *command)
    assert "0 new, 0 changed, 0 removed, 2 unchanged\n0 passages embedded" in again


def test_search_shows_place_title_and_passage(index: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = printed(capsys, "search", str(index), "asked for leave", "--mode", "text")
    assert "docs/leave.md:1  Leave" in found
    assert "Leave is asked for a week before." in found
    assert "office" not in found
    assert printed(capsys, "search", str(index), "zebra", "--mode", "text") == "Nothing was found.\n"


@pytest.mark.parametrize(
    ("mode", "kind"), [("text", "BM25"), ("vector", "cosine"), ("hybrid", "rank fusion score (RRF)")]
)
def test_a_score_says_what_it_is(
    index: Path, mode: str, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert f"  {kind} " in printed(capsys, "search", str(index), "leave", "--mode", mode).splitlines()[0]


def test_search_as_json_writes_nothing_that_is_no_json(
    docs: Path, index: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    note = docs.parent / "prices.jsonl"
    note.write_text(
        '{"id": "p1", "text": "A tea.", "price": NaN}\n{"id": "p2", "text": "A tea.", "price": -Infinity}\n'
    )
    printed(capsys, "index", "add", str(index), str(note))
    found = printed(capsys, "search", str(index), "tea", "--where", "document_id LIKE 'p_'", "--json")
    hits = [json.loads(line, parse_constant=pytest.fail) for line in found.splitlines()]
    assert [hit["metadata"]["price"] for hit in hits] == [None, None]


def test_search_as_json_has_all_of_each_hit(index: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, "search", str(index), "the office", "--json", "--k", "1").splitlines()
    (hit,) = map(json.loads, lines)
    assert (hit["document_id"], hit["place"], hit["line"]) == ("docs/office.txt", "docs/office.txt:1", 1)
    assert [hit["text"][start:end] for start, end in hit["matches"]] == ["office"]
    assert TEXTS["office.txt"][hit["start"] : hit["end"]] == hit["text"]


def test_add_remove_and_info(index: Path, docs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    note = docs.parent / "note.jsonl"
    note.write_text('{"id": "tea", "text": "Tea at nine.", "floor": 3}\n')
    assert "1 new" in printed(capsys, "index", "add", str(index), str(note))
    found = printed(capsys, "search", str(index), "tea", "--where", "floor = 3", "--json")
    assert json.loads(found)["metadata"] == {"file_date": None, "floor": 3}
    shown = " ".join(printed(capsys, "index", "info", str(index), "--verify").split())
    assert (
        "3, 3 passages" in shown
        and "floor (whole numbers)" in shown
        and "all 3 passages are as they were committed" in shown
    )
    facts = json.loads(printed(capsys, "index", "info", str(index), "--verify", "--json"))
    assert (facts["documents"], facts["rows"], facts["verified"]) == (3, 3, 3)
    assert facts["metadata"] == {"file_date": "text", "floor": "whole numbers"}
    assert printed(capsys, "index", "remove", str(index), "tea", "docs/leave.md") == "2 documents removed\n"
    assert "1, 1 passage," in printed(capsys, "index", "info", str(index))


def test_what_is_not_said_of_passages_is_as_usual_or_as_it_was(
    docs: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The model reads 30 tokens, of which four fifths are a passage's."""
    to = ("index", "build", str(docs), "--out", str(tmp_path / "german"))
    said = "24 tokens at most, overlap 4, language de"
    assert said in printed(capsys, *to, "--model", str(model), "--language", "de")
    assert said in printed(capsys, *to, "--passage-overlap", "4")
    assert "with other passages (24 tokens, overlap 4, language de)" in complaint(
        capsys, *to, "--passage-overlap", "5"
    )
    to = ("index", "build", str(docs), "--out", str(tmp_path / "small"))
    said = "10 tokens at most, overlap 2, language en"
    small = ("--passage-tokens", "10", "--passage-overlap", "2")
    assert said in printed(capsys, *to, "--model", str(model), *small)
    assert said in printed(capsys, *to, "--language", "en")
    to = ("index", "build", str(docs), "--out", str(tmp_path / "of a fifth"))
    for _ in range(2):
        said = printed(capsys, *to, "--model", str(model), "--passage-tokens", "15")
        assert "15 tokens at most, overlap 3, language en" in said


def test_a_language_that_there_is_not_is_refused_and_an_older_index_of_one_still_opens(
    docs: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    index = tmp_path / "index"
    to = ("index", "build", str(docs), "--out", str(index), "--model", str(model))
    for code in ("zz", "eng", "english"):
        assert "language" in complaint(capsys, *to, "--language", code)
        assert not index.exists()
    assert "language en-gb" in printed(capsys, *to, "--language", "en-GB")
    (hit,) = Index.open(index).search("opened", k=1, mode="text")
    assert "opens" in hit.text, "English stems"
    noted = read_index_manifest(index)
    older = noted.passages.model_copy(update={"language": "eng"})  # which 0.3 let through
    write_index_manifest(index, noted.model_copy(update={"passages": older}))
    assert "language eng" in printed(capsys, *to)


def test_products_are_what_is_asked_for(
    docs: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    vectors = []
    for products in ("float32", "bfloat16"):
        to = ("index", "build", str(docs), "--out", str(tmp_path / products), "--compute-dtype", products)
        assert "A new index needs a model" in complaint(capsys, *to)
        assert "2 passages embedded" in printed(capsys, *to, "--model", str(model))
        assert "0 passages embedded" in printed(capsys, *to)
        (docs / "new.txt").write_text("Tea is at nine.\n")
        added = ("index", "add", str(tmp_path / products), str(docs / "new.txt"), "--compute-dtype", products)
        assert "1 passage embedded" in printed(capsys, *added)
        (docs / "new.txt").unlink()
        vectors.append(vectors_of(tmp_path / products))
    apart = np.abs(vectors[0] - vectors[1]).max(1)
    assert len(apart) == 3
    assert ((apart > 1e-6) & (apart < 0.03)).all()  # float32 alone is off by 1e-7


def vectors_of(index: Path) -> npt.NDArray[np.float32]:
    """In the order of the documents' ids."""
    batches = Index.open(index)._committed.table.scan(["document_id", "vector"])
    rows = sorted((row["document_id"], row["vector"]) for batch in batches for row in batch.to_pylist())
    return np.array([vector for _, vector in rows], np.float32)


def test_mistakes_are_one_sentence(
    index: Path, docs: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "is no index" in complaint(capsys, "search", str(docs), "tea")
    assert "does not exist" in complaint(capsys, "index", "info", str(docs / "nowhere"))
    assert "holds no document 'docs/leav.md'. Did you mean 'docs/leave.md'?" in complaint(
        capsys, "index", "remove", str(index), "docs/leav.md"
    )
    assert "can't be used" in complaint(capsys, "search", str(index), "tea", "--where", "floor = 3")
    assert "A new index needs a model" in complaint(
        capsys, "index", "build", str(docs), "--out", str(tmp_path / "n")
    )
    assert "Name at least one SOURCE" in complaint(capsys, "index", "build", "--out", str(tmp_path / "n"))
    to_new = ("index", "build", str(docs), "--model", str(model), "--out", str(tmp_path / "n"))
    assert "greater than or equal to 8, found 3" in complaint(capsys, *to_new, "--passage-tokens", "3")
    wide = tiny_model(tmp_path / "wide", 24)
    assert "16 dimensions" in complaint(
        capsys, "index", "build", str(docs), "--out", str(index), "--model", str(wide)
    )
    assert not (tmp_path / "n").exists()


def test_a_long_passage_is_shown_from_a_little_before_its_first_match() -> None:
    text = "word " * 300 + "needle " + "word " * 300
    hit = Hit(1.0, "a", "a", "", text, 0, len(text), 1, ((1500, 1506),), {})
    start, end = _find_window(hit)
    assert start < 1500 and end >= 1506 and end - start <= 600
    assert text[start - 1] == " "


def test_a_title_does_not_steer_the_terminal_either() -> None:
    hit = Hit(1.0, "a", "a\x1b[2J.txt", "b\x1b[2J\nc\td", "text", 0, 4, 1, (), {})
    assert _format_heading(1, hit, "BM25").plain == "1  a [2J.txt:1  b [2J c d  BM25 1.0000"


def test_a_document_does_not_steer_the_terminal_and_marks_stay_in_place() -> None:
    text = "\x0c\x1b[2Jold\x07 tea\nhere"
    shown = _format_passage(Hit(1.0, "a", "a", "", text, 0, len(text), 1, ((5, 8),), {}))
    assert shown.plain == "  [2Jold  tea\nhere"
    assert [shown.plain[span.start : span.end] for span in shown.spans if span.style] == ["old"]


@pytest.mark.parametrize(("similarity", "is_said"), [("dot", True), ("cosine", False)])
def test_it_is_said_that_a_model_of_dot_products_is_compared_by_cosine(
    model: Path,
    docs: Path,
    trained_for: Callable[[str | Path, str], str],
    similarity: str,
    is_said: bool,
    capsys: pytest.CaptureFixture[str],
) -> None:
    chosen, out = trained_for(model, similarity), str(docs.parent / "index")
    for words in (
        ["build", str(docs), "--model", chosen, "--out", out],
        ["add", out, str(docs / "leave.md")],
    ):
        assert main(["index", *words]) == 0
        assert ("trained for dot products" in " ".join(capsys.readouterr().out.split())) is is_said
