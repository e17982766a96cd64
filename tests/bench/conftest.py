"""bench/'s scripts can be imported, and what they need: a tiny model and a small corpus."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.append(str(Path(__file__).parents[2] / "bench"))
sys.path.extend(str(folder) for folder in (Path(__file__).parents[2] / "bench").iterdir() if folder.is_dir())

from bench_runs import RunScript

from bertsmith.model.bert import Bert
from bertsmith.model.checkpoint import save_checkpoint
from bertsmith.model.config import make_config
from bertsmith.text.corpus.building import build_corpus
from bertsmith.text.corpus.corpus import Corpus
from bertsmith.text.tokens.tokenizer import Tokenizer

SHAPE = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz"]
PIECES += [f"##{letter}" for letter in PIECES[5:]]


@pytest.fixture
def run_script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> RunScript:
    """run_script(module, "--option", …): its `main`."""
    return RunScript(monkeypatch, tmp_path / "results")


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two layers of 16 with random weights, whose pieces are letters."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("models") / "tiny"
    config = make_config({"vocab_size": len(PIECES), "max_position_embeddings": 128, **SHAPE}, "test")
    tensors = {f"encoder.{name}": tensor for name, tensor in Bert(config).state_dict().items()}
    tokenizer = Tokenizer.from_pieces(PIECES, lowercase=True)
    save_checkpoint(folder, tensors, config, "BertModel", task="test", tokenizer=tokenizer, provenance={})
    return folder


@pytest.fixture(scope="session")
def small_corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """Forty documents of their own words each, and some that all have."""
    folder = tmp_path_factory.mktemp("corpora")
    usual = ["the", "court", "and", "a", "judge", "of", "this", "town"]
    for number in range(40):
        own = [f"{'abcdefgh'[number % 8]}{'klmnopqr'[number // 8]}{ending}" for ending in "stuvwxyz"]
        words = [word for pair in zip(usual, own, strict=True) for word in pair]
        sentences = [" ".join(words[shift:] + words[:shift]).capitalize() + "." for shift in range(0, 16, 2)]
        (folder / f"{number:02}.txt").write_text(" ".join(sentences), encoding="utf-8")
    return build_corpus([str(folder)], folder.parent / "corpus", workers=1)
