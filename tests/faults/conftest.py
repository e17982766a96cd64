"""A corpus, a tokenizer and a recipe so small that a whole run takes about a second."""

import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from evidence import Evidence, evidence
from nursery import Settings, finish, open_nursery
from tiny_run import OPTIMIZERS, STEPS, WORDS, NewRun, Uninterrupted

from bertsmith.text.corpus.building import build_corpus
from bertsmith.text.corpus_settings import CorpusSettings
from bertsmith.text.tokens.tokenizer import Tokenizer

# Each starts processes and ends them in many places, some seconds a place.
_OF_MANY_PLACES = (
    "test_comparison.py",
    "test_damaged.py",
    "test_decayed.py",
    "test_distil_killed.py",
    "test_finetune_killed.py",
    "test_finetune_ranks.py",
    "test_index_killed.py",
    "test_killed.py",
    "test_objectives.py",
)
_EACH = 3


@pytest.hookimpl(tryfirst=True)  # before pytest leaves out what is slow
def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """Of a test's places each third is tried in every run, all of them by make test-slow."""
    seen = Counter[str]()
    for item in items:
        if item.path.name in _OF_MANY_PLACES and isinstance(item, pytest.Function) and "[" in item.name:
            test = f"{item.path.name}::{item.originalname}"
            if seen[test] % _EACH:
                item.add_marker(pytest.mark.slow)
            seen[test] += 1


@pytest.fixture(scope="session", autouse=True)
def _nursery() -> None:
    open_nursery()


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fifty documents, some 1,500 words: each phase of a run passes over them several times."""
    folder = tmp_path_factory.mktemp("text")
    draw = random.Random(3)
    for number in range(50):
        sentences = (" ".join(draw.choices(WORDS, k=draw.randint(3, 9))).capitalize() + "." for _ in range(5))
        (folder / f"{number}.txt").write_text("\n".join(sentences))
    out = folder / "corpus"
    build_corpus([str(folder)], out, settings=CorpusSettings(heldout=0.2), workers=1, progress=None)
    return out


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *WORDS, *(f"##{end}" for end in "aeiou")]
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n")
    Tokenizer.load(folder / "vocab.txt").save(folder / "whole")
    return folder / "whole"


@pytest.fixture(scope="session")
def new_run(corpus: Path, tokenizer: Path, tmp_path_factory: pytest.TempPathFactory) -> NewRun:
    """Settings of a run in a folder of its own: dropout, two lengths, several micro-batches and epochs."""

    def settings(**changes: object) -> Settings:
        model = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
        return {
            "corpus": str(corpus),
            "tokenizer": str(tokenizer),
            "out": str(tmp_path_factory.mktemp("runs") / "run"),
            "steps": STEPS,
            "model": model,
            "data": {
                "batch_size": 16,
                "micro_batch_tokens": 128,
                "sequence_lengths": [16, 32],
                "sequence_shares": [0.6, 0.4],
            },
            "optimizer": OPTIMIZERS["adamw"],
            "evaluation": {"every": 7},
            "checkpoint": {"every": 4, "keep": 2},
            "hardware": {"device": "cpu", "precision": "float32", "threads": 1},
        } | changes

    return settings


@pytest.fixture(scope="session")
def uninterrupted(new_run: NewRun) -> Uninterrupted:
    """What a run of so many ranks comes to when nothing happens to it."""
    known: dict[tuple[int, str, str], Evidence] = {}

    def run(ranks: int, shard: str = "none", kind: str = "adamw") -> Evidence:
        if (ranks, shard, kind) not in known:
            settings = new_run(optimizer=OPTIMIZERS[kind])
            settings["hardware"] = settings["hardware"] | {"shard": shard}
            finish(settings, ranks=ranks)
            known[ranks, shard, kind] = evidence(Path(settings["out"]))
        return known[ranks, shard, kind]

    return run
