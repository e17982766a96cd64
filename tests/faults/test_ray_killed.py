"""Jobs on a Ray cluster of two nodes, one worker killed with SIGKILL in the middle: what comes out is what a
single process makes."""

import json
import os
import random
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from signal import SIGKILL
from typing import Any

import pytest
import torch

pytest.importorskip("lancedb", reason="needs the extra retrieval")

import mortal_tasks
from index_documents import SETTINGS, rows_of
from mortal_tasks import PATIENCE, Mortal, make_mortal, one_worker_died, read_diary
from tiny_run import WORDS

from bertsmith.cli.main import main
from bertsmith.data import tokenizing
from bertsmith.data.tokenizing import tokenize_corpus
from bertsmith.errors import InputError, ResourceError
from bertsmith.inference import predictor as predictor_module
from bertsmith.inference.embedding import job as embedding_job
from bertsmith.inference.embedding.embedder import Embedder
from bertsmith.inference.embedding.job import Count, embed_file
from bertsmith.inference.index import build as index_build
from bertsmith.inference.index import text_embedder
from bertsmith.inference.index.index import Index
from bertsmith.inference.predictor import Predictor
from bertsmith.model.bert import Bert
from bertsmith.model.checkpoint import save_checkpoint
from bertsmith.model.config import make_config
from bertsmith.text import workers
from bertsmith.text.corpus import building, reading
from bertsmith.text.corpus.building import build_corpus
from bertsmith.text.tokens.tokenizer import Tokenizer
from bertsmith.text.workers import ATTEMPTS, map_in_order_by_ray
from served_models import save_fine_tuned

pytestmark = [
    pytest.mark.slow,  # starting two nodes and their workers takes most of a minute
    pytest.mark.timeout(1800),  # on a machine that is busy otherwise, far longer
    pytest.mark.filterwarnings("ignore::DeprecationWarning:ray"),  # by Ray Data, of its own settings
]

TEXTS, SHARD_ROWS = 300, 25
SHAPE = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
DEADLY = 4  # the task whose worker dies


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes of one CPU each, and this process connected to them."""
    ray = pytest.importorskip("ray", reason="needs the extra ray")
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("RAY_USAGE_STATS_ENABLED", "0")
        nodes = Cluster()
        add_node(nodes, include_dashboard=False)
        add_node(nodes)
        ray.init(address=nodes.address, log_to_driver=False, logging_level="ERROR")
        for module in (mortal_tasks, sys.modules[__name__]):  # workers don't have the tests on their path
            ray.cloudpickle.register_pickle_by_value(module)
        yield nodes
        ray.shutdown()
        nodes.shutdown()


def add_node(nodes: Any, starts: int = 5, **settings: Any) -> Any:
    """Ray gives up on a node that isn't ready after 15 seconds, which a busy machine may well take."""
    try:
        return nodes.add_node(num_cpus=1, object_store_memory=100 << 20, **settings)
    except Exception as error:
        if starts == 1 or "timed out" not in str(error):
            raise
        return add_node(nodes, starts - 1, **settings)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, tokenizer: Path) -> Path:
    """Two random layers of 16."""
    torch.manual_seed(0)
    words = Tokenizer.load(tokenizer)
    config = make_config({"vocab_size": words.vocab_size, "max_position_embeddings": 64, **SHAPE}, "test")
    tensors = {f"encoder.{name}": tensor for name, tensor in Bert(config).state_dict().items()}
    folder = tmp_path_factory.mktemp("models") / "tiny"
    save_checkpoint(folder, tensors, config, "BertModel", task="test", tokenizer=words)
    return folder


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts of 1 to 30 words, of which each has its own."""
    draw = random.Random(0)
    path = tmp_path_factory.mktemp("table") / "texts.jsonl"
    texts = (" ".join([f"text{n}", *draw.choices(WORDS, k=draw.randint(0, 29))]) for n in range(TEXTS))
    path.write_text("".join(json.dumps({"id": f"d{n}", "text": text}) + "\n" for n, text in enumerate(texts)))
    return path


def test_vectors_of_a_killed_worker_are_computed_again(
    cluster: Any, model: Path, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, out = tmp_path / "alone.parquet", tmp_path / "v.parquet"
    embed_file(Embedder(model), table, expected, shard_rows=SHARD_ROWS)
    make_mortal(monkeypatch, embedding_job, tmp_path / "diary", DEADLY)
    result = embed_file(Embedder(model), table, out, shard_rows=SHARD_ROWS, engine="ray")
    assert out.read_bytes() == expected.read_bytes()
    assert result.whole.texts == result.computed.texts == TEXTS
    assert one_worker_died(tmp_path / "diary", DEADLY) == TEXTS // SHARD_ROWS
    assert sorted(path.name for path in tmp_path.iterdir()) == ["alone.parquet", "diary", "v.parquet"]


def test_predictions_of_a_killed_worker_are_those_of_a_single_process(
    cluster: Any, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    predictor = Predictor.load(save_fine_tuned(tmp_path / "model", "classification"))
    alone, out = tmp_path / "alone.jsonl", tmp_path / "predictions.jsonl"
    predictor.predict_file(table, alone)
    monkeypatch.setattr(predictor_module, "_EXAMPLES_AT_A_TIME", SHARD_ROWS)
    make_mortal(monkeypatch, predictor_module, tmp_path / "diary", DEADLY)
    assert predictor.predict_file(table, out, engine="ray") == TEXTS
    assert out.read_bytes() == alone.read_bytes()
    assert one_worker_died(tmp_path / "diary", DEADLY) == TEXTS // SHARD_ROWS


def test_a_worker_unpickles_the_model_once(cluster: Any, tmp_path: Path) -> None:
    processes = [*map_in_order_by_ray(UnpicklingDiary(tmp_path / "diary"), ((n,) for n in range(40)))]
    assert sorted(set(processes)) == sorted(map(int, (tmp_path / "diary").read_text().split()))


class UnpicklingDiary:
    """Notes the process that unpickles it, and returns the one that calls it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        with self.path.open("a") as file:
            file.write(f"{os.getpid()}\n")

    def __call__(self, task: int) -> int:
        return os.getpid()


def test_shards_that_are_written_are_not_computed_again(
    cluster: Any, model: Path, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, out = tmp_path / "alone.parquet", tmp_path / "v.parquet"
    embed_file(Embedder(model), table, expected, shard_rows=SHARD_ROWS, store_dtype="int8")

    def stop(count: Count) -> None:
        if count.texts > 2 * SHARD_ROWS:
            raise KeyboardInterrupt

    job = {"shard_rows": SHARD_ROWS, "store_dtype": "int8", "engine": "ray"}
    with pytest.raises(KeyboardInterrupt):
        embed_file(Embedder(model), table, out, watch=stop, **job)  # type: ignore[arg-type]
    written = len(list(tmp_path.glob("v.parquet.parts/shard-*")))
    assert written >= 2
    make_mortal(monkeypatch, embedding_job, tmp_path / "diary", DEADLY)
    embed_file(Embedder(model), table, out, resume=True, **job)  # type: ignore[arg-type]
    assert out.read_bytes() == expected.read_bytes()
    assert one_worker_died(tmp_path / "diary", DEADLY) == TEXTS // SHARD_ROWS - written


def test_an_index_of_a_killed_worker_is_that_of_a_single_process(
    cluster: Any, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_build, "PASSAGES_AT_A_TIME", 12)
    docs, more = folder_of_texts(tmp_path / "docs", 60), folder_of_texts(tmp_path / "more", 3)
    settings = {"embedder": Embedder(model), "passages": SETTINGS}
    alone = Index.build([docs], tmp_path / "alone", **settings)  # type: ignore[arg-type]
    make_mortal(monkeypatch, text_embedder, tmp_path / "diary", DEADLY)
    index = Index.build([docs], tmp_path / "index", engine="ray", **settings)  # type: ignore[arg-type]
    assert rows_of(index.path) == rows_of(alone.path)
    assert index.changes == alone.changes
    one_worker_died(tmp_path / "diary", DEADLY)
    assert index.add([more], engine="ray") == alone.add([more])
    assert rows_of(index.path) == rows_of(alone.path)


def test_a_corpus_and_its_tokens_of_killed_workers_are_those_of_a_single_process(
    cluster: Any, tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "BATCH_DOCUMENTS", 6)
    monkeypatch.setattr(tokenizing, "DOCUMENTS_PER_TASK", 5)
    texts = folder_of_texts(tmp_path / "texts", 60)
    (texts / "copy.txt").write_bytes((texts / "07.txt").read_bytes())
    alone = build_corpus([str(texts)], tmp_path / "alone")
    make_mortal(monkeypatch, building, tmp_path / "diary", DEADLY)
    corpus = build_corpus([str(texts)], tmp_path / "corpus", engine="ray")
    one_worker_died(tmp_path / "diary", DEADLY)
    assert contents(corpus.path) == contents(alone.path)
    assert corpus.manifest.dropped["exact_duplicates"] == 1
    words = Tokenizer.load(tokenizer)
    tokenize_corpus(alone, words, tmp_path / "store alone")
    make_mortal(monkeypatch, tokenizing, tmp_path / "second diary", DEADLY)
    tokenize_corpus(corpus, words, tmp_path / "store", engine="ray")
    one_worker_died(tmp_path / "second diary", DEADLY)
    assert contents(tmp_path / "store") == contents(tmp_path / "store alone")


def folder_of_texts(folder: Path, count: int) -> Path:
    draw = random.Random(count)
    folder.mkdir()
    for number in range(count):
        text = f"Word{number} " + " ".join(draw.choices(WORDS, k=20)) + ". It is what it is."
        (folder / f"{number:02}.txt").write_text(text)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_what_the_user_has_to_mend_comes_as_one_sentence(
    cluster: Any, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(InputError, match=r"^line 3 is no text$"):
        list(map_in_order_by_ray(refuse, [(1,), (2,), (3,), (4,)]))
    (tmp_path / "rows.jsonl").write_text('{"text": "balen"}\n{"text": 3}\n')
    rows, out = str(tmp_path / "rows.jsonl"), str(tmp_path / "v.parquet")
    assert main(["embed", str(model), rows, "--out", out, "--engine", "ray"]) == 2
    complaint = capsys.readouterr().err
    assert "line 2: expected a text" in complaint and "Traceback" not in complaint
    assert [path.name for path in tmp_path.iterdir()] == ["rows.jsonl"]


def refuse(number: int) -> int:
    if number == 3:
        raise InputError("line 3 is no text")
    return number


def test_a_task_that_always_loses_its_worker_is_given_up(cluster: Any) -> None:
    with pytest.raises(
        ResourceError, match=f"Task 0 lost its worker {ATTEMPTS} times, mostly because memory"
    ):
        list(map_in_order_by_ray(die, [()]))


def die() -> None:
    os.kill(os.getpid(), SIGKILL)


def test_results_come_in_order_over_several_rounds(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "TASKS_OF_A_ROUND", 3)
    drawn = []

    def tasks() -> Iterator[tuple[int, int]]:
        for number in range(14):
            drawn.append(number)
            yield number, 2

    results = map_in_order_by_ray(pow, tasks())
    assert next(results) == 0
    assert len(drawn) == 6, "a round: three tasks for each of two CPUs"
    assert list(results) == [number**2 for number in range(1, 14)]


def test_what_a_lost_machine_was_doing_is_done_elsewhere(cluster: Any, tmp_path: Path) -> None:
    third = add_node(cluster)
    stuck = Mortal(partial(sleep_on, third.node_id), tmp_path, deadly=-1)
    results = map_in_order_by_ray(stuck, ((number, number) for number in range(24)))
    first, began = next(results), time.monotonic()
    while not (lost := stuck_tasks(tmp_path, third.node_id)):
        assert time.monotonic() - began < PATIENCE, "the third machine never took part"
        time.sleep(0.05)
    cluster.remove_node(third, allow_graceful=False)
    assert [first, *results] == list(range(24))
    assert lost <= {each.task for each in read_diary(tmp_path) if each.node != third.node_id}


def stuck_tasks(diary: Path, node: str) -> set[int]:
    return {each.task for each in read_diary(diary) if each.node == node and each.task > 0}


def sleep_on(node: str, number: int) -> int:
    """On one machine tasks take an hour, but for the first, of which the result is waited for."""
    import ray

    time.sleep(3600 if ray.get_runtime_context().get_node_id() == node and number else 1)
    return number
