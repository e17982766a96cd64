"""What can't work is refused with one sentence, before anything is written."""

import json
import shutil
from collections import namedtuple
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from defects import Defect
from nursery import Attempt, Settings, finish
from safetensors.numpy import load_file, save_file
from tiny_run import NewRun

from bertsmith.data.tokenizing import tokenize_corpus
from bertsmith.errors import BertsmithError, CorpusError, RecipeError, ResourceError, StoreError
from bertsmith.machine import Hardware
from bertsmith.text.corpus.building import build_corpus
from bertsmith.text.corpus.corpus import Corpus
from bertsmith.text.corpus_settings import CorpusSettings
from bertsmith.text.tokens.tokenizer import Tokenizer
from bertsmith.training import machine
from bertsmith.training import pretrain as pretraining
from bertsmith.training.machine import Ranks
from bertsmith.training.recipe import check_recipe

TWO_PHASES = {"sequence_shares": [0.6, 0.4]}
TINY = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}

IMPOSSIBLE: list[tuple[dict[str, Any], type[BertsmithError], str]] = [
    ({"out": None}, RecipeError, "The run needs a folder: out="),
    ({"corpus": None}, RecipeError, "The run needs a corpus: corpus="),
    ({"tokenizer": None}, RecipeError, "The run needs a tokenizer: tokenizer="),
    ({"corpus": "nowhere"}, CorpusError, "nowhere is not a folder"),
    ({"tokenizer": "nowhere"}, BertsmithError, "nowhere"),
    ({"model": TINY | {"num_attention_heads": 5}}, BertsmithError, "must divide hidden_size = 32"),
    (
        {"data": TWO_PHASES | {"sequence_lengths": [16, 513]}},
        RecipeError,
        "has 513, but the model has positions",
    ),
    ({"model": TINY | {"model_type": "distilbert"}}, RecipeError, "has no next-sentence prediction"),
    ({"objective": "replaced-tokens"}, RecipeError, "bert has none: model.model_type=electra"),
    (
        {"objective": "replaced-tokens", "model": TINY | {"model_type": "electra", "size": "small"}},
        RecipeError,
        "objective=replaced-tokens has no pairs: data.next_sentence=false",
    ),
    (
        {"objective": "sentence-order", "data": {"next_sentence": False}},
        RecipeError,
        "is about pairs: leave data.next_sentence=false out",
    ),
    (
        {"objective": "sentence-order", "model": TINY | {"model_type": "roberta"}},
        RecipeError,
        "roberta has no head for pairs",
    ),
    ({"model": TINY | {"embedding_size": 8}}, BertsmithError, "embedding_size = 8 is impossible for bert"),
    ({"hardware": {"device": "cuda"}}, RecipeError, "no CUDA device"),
]


@pytest.fixture(autouse=True)
def _known_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without a GPU whose speed needs no measuring."""
    monkeypatch.setattr(machine, "matmul_flops", lambda *_, **__: 1e11)
    seen = replace(Hardware.detect(), gpus=())
    monkeypatch.setattr(Hardware, "detect", classmethod(lambda _: seen))


def start(settings: Settings, resume: bool = False) -> None:
    pretraining.pretrain(check_recipe(settings, "the test"), resume=resume)


def everything_in(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*"))


@pytest.mark.parametrize(("changes", "kind", "sentence"), IMPOSSIBLE)
def test_impossible_settings(
    changes: dict[str, Any], kind: type[BertsmithError], sentence: str, new_run: NewRun
) -> None:
    settings = new_run()
    folder = Path(settings["out"]).parent
    with pytest.raises(kind) as error:
        start(settings | changes)
    assert sentence in str(error.value)
    assert everything_in(folder) == []


def test_more_ranks_than_sequences_in_a_batch(new_run: NewRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "join_ranks", lambda _: Ranks(rank=0, count=17))
    settings = new_run()
    with pytest.raises(RecipeError, match=r"data.batch_size = 16 leaves some of the 17 ranks without"):
        start(settings)
    assert everything_in(Path(settings["out"]).parent) == []


def test_too_little_memory(new_run: NewRun, monkeypatch: pytest.MonkeyPatch) -> None:
    small = replace(Hardware.detect(), memory_available=300_000)
    monkeypatch.setattr(Hardware, "detect", classmethod(lambda _: small))
    settings = new_run()
    with pytest.raises(ResourceError, match=r"needs about .* GB of memory .*Choose a smaller model.size"):
        start(settings)
    assert everything_in(Path(settings["out"]).parent) == []


def test_too_little_disk(new_run: NewRun, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**12, 10**12 - 1000, 1000))
    settings = new_run()
    with pytest.raises(ResourceError, match=r"checkpoints and model needs about .*Free some space"):
        start(settings)
    assert everything_in(Path(settings["out"]).parent) == []


# -- a folder that holds a run ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def begun(new_run: NewRun) -> Settings:
    """A run of two steps that is over."""
    settings = new_run(steps=2, optimizer={"warmup": 1})
    finish(settings)
    return settings


def test_an_existing_run_is_not_begun_again(begun: Settings) -> None:
    before = snapshot(begun)
    with pytest.raises(RecipeError, match=r"already holds a run. Go on with it by --resume"):
        start(begun)
    assert snapshot(begun) == before


def test_a_resume_with_other_settings_names_them(begun: Settings) -> None:
    before = snapshot(begun)
    other = begun | {
        "seed": 5,
        "optimizer": {"warmup": 1, "max_grad_norm": 0.5},
        "data": begun["data"] | {"batch_size": 8},
    }
    with pytest.raises(RecipeError) as error:
        start(other, resume=True)
    differing = "seed, optimizer.max_grad_norm, data.batch_size"
    assert f"begun with other settings: {differing}. Resume" in str(error.value)
    assert snapshot(begun) == before


def test_another_vocabulary_of_the_same_size_does_not_go_with_a_trained_model(
    begun: Settings, new_run: NewRun, tmp_path: Path
) -> None:
    model = Path(begun["out"]) / "model"
    own = Tokenizer.load(model)
    exchanged = [*own.pieces[:-2], own.pieces[-1], own.pieces[-2]]
    Tokenizer.from_pieces(exchanged, lowercase=own.lowercase).save(tmp_path / "other")
    settings = new_run(init=str(model), tokenizer=str(tmp_path / "other"))
    settings.pop("model", None)
    with pytest.raises(RecipeError, match=r"as many pieces as that of init = .*, but other ones"):
        start(settings)
    assert everything_in(Path(settings["out"]).parent) == []


def test_a_model_with_spare_rows_behind_its_vocabulary_goes_on(
    begun: Settings, new_run: NewRun, tmp_path: Path
) -> None:
    """As those padded to a multiple of 64; a tokenizer of that size is another matter."""
    model = tmp_path / "model"
    shutil.copytree(Path(begun["out"]) / "model", model)
    (model / "bertsmith.json").unlink()  # which knows the files' hashes
    values = json.loads((model / "config.json").read_text())
    tensors = load_file(model / "model.safetensors")
    for name, tensor in tensors.items():
        if tensor.shape[0] == values["vocab_size"]:
            tensors[name] = np.concatenate([tensor, np.zeros_like(tensor[:6])])
    save_file(tensors, model / "model.safetensors")
    values["vocab_size"] += 6
    (model / "config.json").write_text(json.dumps(values))
    settings = new_run(init=str(model)) | {"tokenizer": None}
    settings.pop("model")
    finish(settings)
    saved = json.loads((Path(settings["out"]) / "model/config.json").read_text())
    assert saved["vocab_size"] == values["vocab_size"]
    with pytest.raises(RecipeError, match="init has a vocabulary of"):
        start(settings | {"tokenizer": begun["tokenizer"], "out": str(tmp_path / "other")})


def test_a_fault_while_examples_are_filled_leaves_the_trained_model(new_run: NewRun) -> None:
    """With ten positions, of which most sentences of the text have more."""
    shape = new_run()["model"] | {"max_position_embeddings": 10}
    data = {"batch_size": 8, "sequence_lengths": [10], "sequence_shares": [1.0]}
    settings = new_run(steps=2, optimizer={"warmup": 1}, model=shape, data=data)
    attempt = Attempt(settings, [Defect("examples can't be filled after the run")])
    assert attempt.wait() == [1]
    assert attempt.complaint() == "NotFinite: a fault"
    assert (Path(settings["out"]) / "model" / "model.safetensors").is_file()


def test_what_does_not_change_the_steps_may_change(begun: Settings) -> None:
    changes = {"guard": {"action": "skip"}, "checkpoint": {"every": 1, "keep": 5}, "log_every": 2}
    finish(begun | changes)
    assert (Path(begun["out"]) / "model" / "model.safetensors").is_file()


def test_a_run_that_was_moved_is_found_where_it_is(begun: Settings, tmp_path: Path) -> None:
    shutil.copytree(begun["out"], tmp_path / "moved")
    finish(begun | {"out": str(tmp_path / "moved")})
    assert (tmp_path / "moved" / "model" / "model.safetensors").is_file()


def another_corpus(folder: Path) -> Corpus:
    (folder / "text").mkdir()
    for number in range(8):
        text = "\n".join(f"Balen cirom dum {part} fal {number}." for part in range(6))
        (folder / "text" / f"{number}.txt").write_text(text)
    settings = CorpusSettings(heldout=0.2)
    build_corpus([str(folder / "text")], folder / "corpus", settings=settings, workers=1, progress=None)
    return Corpus.open(folder / "corpus")


def test_a_store_of_another_corpus_is_not_used(begun: Settings, tmp_path: Path) -> None:
    """As when the corpus was built again between the parts of a run."""
    corpus = another_corpus(tmp_path).path
    shutil.copytree(begun["out"], tmp_path / "run")
    (tmp_path / "run" / "recipe.toml").unlink()  # killed before it was written, and so before any model was
    shutil.rmtree(tmp_path / "run" / "model")
    for name in ("log.jsonl", "report.html"):
        (tmp_path / "run" / name).unlink(missing_ok=True)
    with pytest.raises(StoreError, match=r"tokens was made from another corpus than .*corpus is now"):
        start(begun | {"corpus": str(corpus), "out": str(tmp_path / "run")})


def test_a_token_store_that_was_built_again_is_not_gone_on_with(
    begun: Settings, new_run: NewRun, tmp_path: Path
) -> None:
    """A place in it is another one now, and what was trained on may be held out."""
    store = tmp_path / "store"
    shutil.copytree(Path(begun["out"]) / "tokens", store)
    settings = new_run(corpus=str(store))
    finish(settings)
    start(settings, resume=True)  # nothing has changed
    shutil.rmtree(store)
    tokenize_corpus(another_corpus(tmp_path), Tokenizer.load(settings["tokenizer"]), store)
    with pytest.raises(RecipeError, match="The file given as corpus has changed since the run"):
        start(settings, resume=True)


def snapshot(settings: Settings) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in everything_in(Path(settings["out"])) if path.is_file()}
