"""BEIR and NanoBEIR run whole, and the Embedder as mteb wants its models."""

import json
import shutil
import sys
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from benchmark_toys import GOOD, WORDS, write_beir
from safetensors.numpy import load_file, save_file

from bertsmith.benchmarks.mteb_model import MtebModel
from bertsmith.benchmarks.retrieval import BEIR, NANOBEIR, dataset_table, run_retrieval
from bertsmith.cli.main import main
from bertsmith.errors import InputError, MissingExtra, ModelError, RecipeError
from bertsmith.inference.embedding.embedder import Embedder
from bertsmith.metrics.ranking_scores import ranking_scores
from bertsmith.text.retrieval.beir import read_nanobeir
from bertsmith.text.retrieval.layouts import read_retrieval_data
from bertsmith.text.retrieval.trec_run import read_run

DOCUMENTS = [(f"d{n}", f"{WORDS[n]} {WORDS[(n + 1) % 12]} {WORDS[(n + 4) % 12]}") for n in range(12)]
QUERIES = [(f"q{n}", f"{WORDS[n]} {WORDS[(n + 1) % 12]}") for n in range(6)]
JUDGED = [(f"q{n}", f"d{n}", 1) for n in range(6)] + [("q0", "d1", 2)]


@pytest.fixture(autouse=True)
def _extra() -> None:
    pytest.importorskip("Stemmer", reason="needs the extra `retrieval`")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "beir"
    write_beir(folder / "scifact", DOCUMENTS, QUERIES, JUDGED)
    write_beir(folder / "msmarco", DOCUMENTS, QUERIES[:3], JUDGED[:3], split="dev")
    for forum, count in (("android", 2), ("english", 4)):
        write_beir(folder / "cqadupstack" / forum, DOCUMENTS, QUERIES[:count], JUDGED[:count])
    return folder


def test_every_data_set_is_measured_and_the_forums_count_once(
    folder: Path, model: str, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    found = run_retrieval(BEIR, folder, model, out)
    names = [each.name for each in found.datasets]
    assert names == ["cqadupstack/android", "cqadupstack/english", "msmarco", "scifact"]
    assert [each.published for each in found.datasets] == [None, None, 22.8, 66.5]
    for system in found.systems:
        scores = [each.scores[system] for each in found.datasets]
        expected = np.mean([np.mean(scores[:2]), *scores[2:]])
        assert found.means()[system] == pytest.approx(float(expected))
    run = {query: list(found.items()) for query, found in read_run(out / "scifact/runs/bm25.run").items()}
    again = ranking_scores(run, read_retrieval_data(folder / "scifact").judgements, ["ndcg@10"])
    assert found.datasets[3].scores["BM25"] == pytest.approx(again.means["ndcg@10"])
    assert json.loads((out / "results.json").read_text())["means"] == found.means()
    (forums,) = [row for row in dataset_table(found)[1] if row[0] == "cqadupstack, mean of 2 forums"]
    bm25 = [each.scores["BM25"] for each in found.datasets[:2]]
    assert (forums[3], forums[-1]) == (f"{100 * np.mean(bm25):.1f}", "29.9")


def test_a_document_with_the_querys_own_id_is_passed_over_in_beir_but_not_in_nanobeir(
    model: str, tmp_path: Path
) -> None:
    documents = [("same", f"{WORDS[0]} {WORDS[1]}"), ("answer", f"{WORDS[0]} {GOOD}"), ("other", WORDS[5])]
    write_beir(
        tmp_path / "data/arguana", documents, [("same", f"{WORDS[0]} {WORDS[1]}")], [("same", "answer", 1)]
    )
    beir = run_retrieval(BEIR, tmp_path / "data", model, tmp_path / "beir").datasets[0]
    nano = run_retrieval(NANOBEIR, tmp_path / "data", model, tmp_path / "nano").datasets[0]
    assert beir.scores["BM25"] == 1.0
    assert nano.scores["BM25"] == pytest.approx(1 / np.log2(3))
    assert "same" not in dict(read_run(tmp_path / "beir/arguana/runs/bm25.run")["same"])


def test_a_data_set_that_has_ended_is_not_searched_again(folder: Path, model: str, tmp_path: Path) -> None:
    out = tmp_path / "out"

    def stop(found: Any) -> None:
        if found.name == "msmarco":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_retrieval(BEIR, folder, model, out, on_dataset=stop)
    assert not (out / "scifact").exists()
    before = (out / "msmarco/results.json").stat().st_mtime_ns
    found = run_retrieval(BEIR, folder, model, out, resume=True)
    assert (out / "msmarco/results.json").stat().st_mtime_ns == before
    assert len(found.datasets) == 4


def test_data_sets_that_are_added_stand_beside_those_that_have_ended(
    folder: Path, model: str, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    first = run_retrieval(BEIR, folder, model, out, datasets=["scifact"]).datasets[0]
    found = run_retrieval(BEIR, folder, model, out, datasets=["msmarco"], resume=True)
    assert [each.name for each in found.datasets] == ["msmarco", "scifact"]
    assert found.datasets[1] == first
    record = json.loads((out / "results.json").read_text())
    assert list(record["datasets"]) == ["msmarco", "scifact"]
    assert record["means"]["BM25"] == np.mean([each.scores["BM25"] for each in found.datasets])


def test_a_data_set_of_other_files_is_not_taken_for_the_one_that_was_measured(
    folder: Path, model: str, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    run_retrieval(BEIR, folder, model, out, datasets=["scifact"])
    run_retrieval(BEIR, folder, model, out, datasets=["scifact", "msmarco"], resume=True)
    with (folder / "scifact/qrels/test.tsv").open("a") as file:
        file.write("q1\td2\t1\n")
    with pytest.raises(RecipeError, match=r"other files of scifact: qrels/test.tsv changed since"):
        run_retrieval(BEIR, folder, model, out, datasets=["scifact"], resume=True)


def test_what_is_refused_leaves_no_folder_that_refuses_the_corrected_command(
    folder: Path, model: str, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    with pytest.raises(ModelError):
        run_retrieval(BEIR, folder, model, out, reranker=model, datasets=["msmarco"])
    assert len(run_retrieval(BEIR, folder, model, out, datasets=["msmarco"]).datasets) == 1


def test_a_data_set_without_its_judgements_is_missed_before_any_is_searched(
    folder: Path, model: str, tmp_path: Path
) -> None:
    (folder / "scifact/qrels/test.tsv").rename(folder / "scifact/qrels/train.tsv")
    shutil.rmtree(folder / "cqadupstack")
    complaint = r"beir/scifact: .* in qrels/test\.tsv, found train\. .* by --datasets msmarco\.$"
    with pytest.raises(InputError, match=complaint):
        run_retrieval(BEIR, folder, model, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_figures_of_what_has_ended_are_written_when_another_data_set_fails(
    folder: Path, model: str, tmp_path: Path
) -> None:
    with (folder / "scifact/corpus.jsonl").open("a") as file:
        file.write("{\n")
    with pytest.raises(InputError, match=r"corpus\.jsonl, line 13"):
        run_retrieval(BEIR, folder, model, tmp_path / "out", datasets=["msmarco", "scifact"])
    assert list(json.loads((tmp_path / "out/results.json").read_text())["datasets"]) == ["msmarco"]


def test_nanobeirs_parquet_is_read_as_beirs_lines(folder: Path, model: str, tmp_path: Path) -> None:
    nano = tmp_path / "nano" / "NanoSciFact"
    for part in ("corpus", "queries", "qrels"):
        (nano / part).mkdir(parents=True)
    for part, rows in (("corpus", DOCUMENTS), ("queries", QUERIES)):
        ids, texts = zip(*rows, strict=True)
        pq.write_table(pa.table({"_id": ids, "text": texts}), nano / part / "train-00000-of-00001.parquet")
    pairs = [(query, document) for query, document, _ in JUDGED]
    columns = dict(zip(("query-id", "corpus-id"), zip(*pairs, strict=True), strict=True))
    pq.write_table(pa.table(columns), nano / "qrels" / "train-00000-of-00001.parquet")
    expected, found = read_retrieval_data(folder / "scifact"), read_retrieval_data(nano)
    assert found.documents == expected.documents
    assert found.queries == expected.queries
    assert found.judgements["q0"] == {"d0": 1, "d1": 1}  # without grades, each says yes
    words = ["--model", model, "--out", str(tmp_path / "out")]
    assert main(["benchmark", "nanobeir", str(nano.parent), *words]) == 0
    page = (tmp_path / "out/report.html").read_text(encoding="utf-8")
    assert "NanoSciFact" in page
    assert "Thakur et al. 2021" in page
    (nano / "qrels" / "train-00000-of-00001.parquet").unlink()
    with pytest.raises(InputError, match="expected Parquet files in qrels/"):
        read_nanobeir(nano, "test")


def test_what_is_no_benchmark_is_refused(
    folder: Path, model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--model", model, "--out", str(tmp_path / "out")]
    for arguments, complaint in (
        ([str(tmp_path / "nowhere")], "is not a folder"),
        ([str(folder / "scifact")], "expected folders with corpus.jsonl"),
        ([str(folder), "--datasets", "scifakt"], "Did you mean 'scifact'?"),
        ([str(folder), "--datasets", ","], "--datasets names nothing"),
    ):
        assert main(["benchmark", "beir", *arguments, *words]) == 2
        assert complaint in " ".join(capsys.readouterr().err.split())
        assert not (tmp_path / "out").exists()


class PromptType(StrEnum):
    """As mteb has it."""

    query = "query"
    document = "document"


def test_mteb_gets_the_vectors_of_queries_and_documents(model: str) -> None:
    ours = MtebModel(model, revision=None, device=None, query_prefix=f"{GOOD} ")
    embedder, texts = Embedder(model, query_prefix=f"{GOOD} "), [text for _, text in DOCUMENTS]
    loader = [{"text": texts[:5], "title": [""] * 5}, {"text": texts[5:]}]  # batches, as a DataLoader gives
    told: dict[str, Any] = {
        "task_metadata": None,
        "hf_split": "test",
        "hf_subset": "default",
        "batch_size": 8,
    }
    for kind, expected in (
        (PromptType.query, embedder.queries(texts)),
        (PromptType.document, embedder.documents(texts)),
        (None, embedder.documents(texts)),
    ):
        np.testing.assert_allclose(ours.encode(loader, prompt_type=kind, **told), expected, atol=1e-6)
    old = ours.encode(texts, task_name="STSBenchmark", prompt_type=PromptType.query)  # version 1
    np.testing.assert_allclose(old, embedder.queries(texts), atol=1e-6)
    with pytest.raises(InputError, match="leave out tasks on images or sound"):
        ours.encode([{"image": [1]}])


def test_mtebs_similarities_are_cosines(model: str) -> None:
    draw = np.random.default_rng(0)
    first, second = draw.normal(size=(4, 3)), draw.normal(size=(4, 3))
    expected = [[a @ b / (np.linalg.norm(a) * np.linalg.norm(b)) for b in second] for a in first]
    ours = MtebModel(model)
    np.testing.assert_allclose(ours.similarity(first, second), expected, atol=1e-6)
    np.testing.assert_allclose(ours.similarity_pairwise(first, second), np.diag(expected), atol=1e-6)


@dataclass
class ModelMeta:
    """What mteb's record of a model requires, as of 2.26."""

    loader: Any
    name: str
    revision: str
    release_date: Any
    languages: Any
    n_parameters: Any
    memory_usage_mb: Any
    max_tokens: int
    embed_dim: int
    license: Any
    open_weights: Any
    public_training_code: Any
    public_training_data: Any
    framework: list[str]
    similarity_fn_name: str
    use_instructions: bool
    training_datasets: Any


@pytest.fixture
def mteb(monkeypatch: pytest.MonkeyPatch) -> None:
    """As much of the package as is asked for."""
    module = ModuleType("mteb.models.model_meta")
    module.ModelMeta = ModelMeta  # type: ignore[attr-defined]
    for name in ("mteb", "mteb.models"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "mteb.models.model_meta", module)


def test_without_mteb_its_record_of_a_model_says_so(model: str) -> None:
    with pytest.raises(MissingExtra, match=r"mteb.*pip install 'bertsmith\[mteb\]'"):
        _ = MtebModel(model).mteb_model_meta


@pytest.mark.usefixtures("mteb")
def test_mteb_is_told_which_model_it_was(model: str) -> None:
    meta = MtebModel(model, max_length=32).mteb_model_meta
    assert meta.name == f"bertsmith/{Path(model).parent.name}-encoder"
    assert (meta.embed_dim, meta.max_tokens, meta.similarity_fn_name) == (16, 32, "cosine")
    assert MtebModel(model, revision="mine").mteb_model_meta.revision == "mine"


@pytest.mark.usefixtures("mteb")
def test_mteb_has_no_results_of_another_model_or_other_options_under_the_same_revision(
    model: str, tmp_path: Path
) -> None:
    """Its cache goes by name and revision, and every run's model lies in a folder called model."""
    metas = []
    for number, run in enumerate(("law", "other")):
        folder = tmp_path / run / "model"
        shutil.copytree(model, folder)
        tensors = load_file(folder / "model.safetensors")
        changed = {name: tensor * (1 + number) for name, tensor in tensors.items()}
        save_file(changed, folder / "model.safetensors")
        (folder / "bertsmith.json").unlink()  # which has the old weights' hash
        metas.append(MtebModel(folder, device="cpu").mteb_model_meta)
    assert [meta.name for meta in metas] == ["bertsmith/law-model", "bertsmith/other-model"]
    told: list[dict[str, Any]] = [
        *({}, {"max_length": 16}, {"query_prefix": "a "}, {"document_prefix": "a "}, {"dimensions": 8}),
        *({"compute_dtype": torch.bfloat16}, {"long_texts": "windows"}, {"normalise": False}),
    ]
    revisions = [MtebModel(folder, device="cpu", **options).mteb_model_meta.revision for options in told]
    assert revisions[0] == metas[1].revision != metas[0].revision
    assert len({*revisions, metas[0].revision}) == len(told) + 1
