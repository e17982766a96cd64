"""`bertsmith rank` from a folder of files to a table, JSON and a folder."""

import errno
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from bertsmith.cli.main import main
from bertsmith.inference.predictor import Predictor
from bertsmith.inference.ranking import report
from bertsmith.model.bert import Bert
from bertsmith.model.checkpoint import save_checkpoint
from bertsmith.model.config import BertConfig, make_config
from bertsmith.tasks.checkpoints.task_checkpoint import save_task_model
from bertsmith.tasks.reranking import Reranking
from bertsmith.tasks.task_model import TaskModel
from bertsmith.text.retrieval.trec_run import read_run
from bertsmith.text.tokens.tokenizer import Tokenizer

pytest.importorskip("Stemmer", reason="needs the extra `retrieval`")

WORDS = ("red", "blue", "green", "cat", "dog", "bird", "runs", "sleeps")
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
TOKENIZER = Tokenizer.from_pieces(PIECES, lowercase=True)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    torch.manual_seed(0)
    config = tiny_config()
    weights = {f"encoder.{name}": tensor for name, tensor in Bert(config).state_dict().items()}
    save_checkpoint(folder, weights, config, "BertModel", task="test", tokenizer=TOKENIZER, provenance={})
    return str(folder)


@pytest.fixture(scope="module")
def reranker(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("models") / "reranker"
    torch.manual_seed(1)
    task, config = Reranking(Reranking.Settings(max_length=64)), tiny_config()
    save_task_model(folder, TaskModel(Bert(config), task.head(config)), task, TOKENIZER, {})
    return str(folder)


def tiny_config() -> BertConfig:
    shape = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    return make_config({"vocab_size": len(PIECES), "max_position_embeddings": 64, **shape}, "test")


@pytest.fixture
def data(tmp_path: Path) -> str:
    """A cat, a dog and a bird in each colour; each query is a document without its colour."""
    folder = tmp_path / "animals"
    (folder / "qrels").mkdir(parents=True)
    texts = [f"{colour} {animal} {act}" for colour in WORDS[:3] for animal in WORDS[3:6] for act in WORDS[6:]]
    lines = [json.dumps({"_id": f"d{n}", "text": text}) for n, text in enumerate(texts)]
    (folder / "corpus.jsonl").write_text("\n".join(lines))
    asked = [{"_id": f"q{n}", "text": text.split(" ", 1)[1]} for n, text in enumerate(texts[:6])]
    (folder / "queries.jsonl").write_text("\n".join(map(json.dumps, asked)))
    judged = [f"q{n}\td{n}\t1" for n in range(6)]
    (folder / "qrels/test.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *judged]))
    return str(folder)


def test_json_table_and_folder_agree(
    model: str, data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    command = ["rank", model, data, "--k", "3", "--queries", "5", "--no-english", "--out", str(out)]
    assert main([*command, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads((out / "results.json").read_text())
    assert list(printed["systems"]) == ["BM25", "dense", "hybrid"]
    assert list(printed["systems"]["BM25"]["scores"])[:2] == ["ndcg@3", "mrr@3"]
    assert printed["queries"] == 5
    assert {path.name for path in (out / "runs").iterdir()} == {"bm25.run", "dense.run", "hybrid.run"}
    again = f"bertsmith rank {model} {data} --k 3 --queries 5 --no-english"
    assert again in (out / "report.html").read_text()


def test_results_hold_what_was_measured_beside_what_was_asked_for(
    model: str, data: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["rank", model, data, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["queries"], printed["most_queries"], printed["depth"]) == (6, None, 100)
    assert main(["rank", model, data, "--queries", "500", "--k", "120", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["queries"], printed["most_queries"], printed["depth"]) == (6, 500, 120)


def test_the_figures_are_shown_though_they_cannot_be_written(
    model: str, data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(report, "write_comparison", full)
    assert main(["rank", model, data, "--out", str(tmp_path / "out")]) == 2
    shown = capsys.readouterr()
    assert "nDCG@10" in shown.out and "report.html" not in shown.out
    assert "The disk is full." in shown.err


def test_half_a_utf_16_pair_in_a_text_does_not_cost_the_folder(
    model: str, data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("corpus", "queries"):  # JSON may name a half, and the report shows all of these
        path = Path(data) / f"{name}.jsonl"
        path.write_text(path.read_text().replace('"text": "', '"text": "\\ud83d '))
    out = tmp_path / "out"
    assert main(["rank", model, data, "--out", str(out)]) == 0
    assert "\ufffd" in (out / "report.html").read_text(encoding="utf-8")


def test_the_reranker_reads_the_first_of_the_hybrid(
    model: str, reranker: str, data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    command = ["rank", model, data, "--reranker", reranker]
    assert main([*command, "--reranked", "150", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["depth"] == 150
    assert main([*command, "--reranked", "4", "--out", str(out)]) == 0
    assert "re-ranked" in capsys.readouterr().out
    hybrid, final = (read_run(out / "runs" / f"{name}.run")["q1"] for name in ("hybrid", "re-ranked"))
    first = list(hybrid)[:4]
    lines = (Path(data) / "corpus.jsonl").read_text().splitlines()
    texts = {row["_id"]: row["text"] for row in map(json.loads, lines)}
    pairs = [("cat sleeps", texts[name]) for name in first]
    scores = [prediction["score"] for prediction in Predictor.load(reranker).predict(pairs)]
    assert [final[name] for name in first] == pytest.approx(scores, abs=1e-6)
    assert list(final)[4:] == list(hybrid)[4:]


def test_the_table_has_a_row_a_system(model: str, data: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rank", model, data]) == 0
    printed = capsys.readouterr().out
    assert "animals: 18 documents, 6 queries" in printed
    for word in ("nDCG@10", "BM25", "dense", "hybrid", "above BM25", "ms/query"):
        assert word in printed


def test_mistakes_get_a_sentence_before_any_work(
    model: str, data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["rank", model, data, "--out", str(tmp_path)]) == 2
    assert f"{tmp_path} already exists" in capsys.readouterr().err
    assert main(["rank", model, str(tmp_path)]) == 2
    assert "found no documents and no topics and no judgements" in capsys.readouterr().err
    assert main(["rank", model, data, "--split", "dev"]) == 2
    assert "There are: test. Choose with --split." in capsys.readouterr().err
    for option, complaint in {
        "depth": "depth and reranked must be 1 or more, found 0 and 50",
        "reranked": "depth and reranked must be 1 or more",
        "k": "k must be 1 or more, found 0",
        "queries": "The number of queries must be 1 or more, found 0",
    }.items():
        assert main(["rank", model, data, f"--{option}", "0"]) == 2
        assert complaint in capsys.readouterr().err
    for command, complaint in {
        "--depth 5": "--depth 5 keeps fewer documents than --k 10 asks for. Give a larger --depth",
        "--depth 60 --reranked 80 --reranker x": "fewer documents than --reranked 80 asks for",
        "--reranked 20": "--reranked is how many documents a re-ranker reads. Name one with --reranker",
    }.items():
        assert main(["rank", model, data, *command.split()]) == 2
        assert complaint in capsys.readouterr().err


@pytest.mark.parametrize(("similarity", "is_said"), [("dot", True), ("cosine", False)])
def test_it_is_noted_that_a_model_of_dot_products_is_compared_by_cosine(
    model: str,
    data: str,
    trained_for: Callable[[str | Path, str], str],
    similarity: str,
    is_said: bool,
    tmp_path: Path,
) -> None:
    out = tmp_path / "out"
    assert main(["rank", trained_for(model, similarity), data, "--out", str(out)]) == 0
    notes = json.loads((out / "results.json").read_text())["notes"]
    assert any("trained for dot products" in note for note in notes) is is_said
    assert ("trained for dot products" in (out / "report.html").read_text()) is is_said
