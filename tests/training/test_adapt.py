"""Continued pre-training: general text mixed in and measured, before and after, where people look."""

import json
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from bertsmith.cli.main import main
from bertsmith.errors import CorpusError, RecipeError, StoreError, TokenizerError
from bertsmith.inference.masked_language import MaskedLanguageModel
from bertsmith.model.config import make_config
from bertsmith.tasks.pretraining.pretraining import PretrainingModel
from bertsmith.tasks.pretraining.pretraining_checkpoint import (
    load_pretraining_model,
    save_pretraining_model,
    save_replaced_token_model,
)
from bertsmith.tasks.pretraining.replaced_tokens import ReplacedTokenModel, generator_config
from bertsmith.text.corpus.building import build_corpus
from bertsmith.text.corpus_settings import CorpusSettings
from bertsmith.text.tokens.tokenizer import Tokenizer
from bertsmith.training.extending import EXTENSION, extend_vocabulary, read_extension, undo_extension
from bertsmith.training.log import RunLog
from bertsmith.training.pretrain import pretrain
from bertsmith.training.pretraining_report import check_forgetting, compare_with_start
from bertsmith.training.recipe import read_recipe

GENERAL = ("the", "cat", "sits", "on", "a", "mat", "and", "sleeps")
DOMAIN = ("laminar", "flow", "over", "the", "airfoil", "at", "hypersonic", "speed")
LETTERS = [*"abcdefghijklmnopqrstuvwxyz.", *(f"##{letter}" for letter in "abcdefghijklmnopqrstuvwxyz")]
PIECES = [*dict.fromkeys(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *GENERAL])]
SHAPE = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
FAST = [
    "data.sequence_lengths=[32]",
    "data.batch_size=16",
    "optimizer.learning_rate=3e-3",
    "loss.sampled_pieces=0",
    "evaluation.tokens=1500",
    "checkpoint.every=1000",
    "hardware.threads=1",
]


def build(folder: Path, words: tuple[str, ...], heldout: float = 0.2, sentences: int = 1) -> Path:
    """Documents of so many sentences that go through `words` in their order, from a random one on."""
    draw = random.Random(len(words[0]))
    lines = []
    for _ in range(120):
        start = draw.randrange(len(words))
        lines.append(" ".join((words * 3)[start : start + draw.randint(6, 12)]).capitalize() + ".")
    documents = ["\n".join(lines[first : first + sentences]) for first in range(0, len(lines), sentences)]
    folder.mkdir(parents=True)
    (folder / "text.txt").write_text("\n\n".join(documents))
    settings = CorpusSettings(format="blank-lines", heldout=heldout, near_duplicates=False)
    build_corpus([str(folder / "text.txt")], folder / "corpus", settings=settings, workers=1)
    return folder / "corpus"


@pytest.fixture(scope="module")
def general(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("text") / "general", GENERAL)


@pytest.fixture(scope="module")
def domain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("text") / "domain", DOMAIN)


@pytest.fixture(scope="module")
def in_pairs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """General text and that of the domain, in documents that pairs can be made from."""
    folder = tmp_path_factory.mktemp("pairs")
    general, domain = (
        build(folder / name, words, sentences=4) for name, words in (("g", GENERAL), ("d", DOMAIN))
    )
    return general, domain


@pytest.fixture(scope="module")
def trained(general: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that knows the general text."""
    folder = tmp_path_factory.mktemp("trained")
    torch.manual_seed(0)
    config = make_config({"vocab_size": len(PIECES), "max_position_embeddings": 64} | SHAPE, "test")
    tokenizer = Tokenizer.from_pieces(PIECES, lowercase=True)
    save_pretraining_model(folder / "random", PretrainingModel(config, False), tokenizer, {})
    settings = [f"init={folder / 'random'}", f"corpus={general}", f"out={folder / 'run'}", "steps=150"]
    return pretrain("adapt", *settings, *FAST).model


def evaluations(out: Path) -> Iterator[dict[str, Any]]:
    return (record for record in RunLog.read(out) if record["kind"] == "evaluation")


def test_what_is_gained_and_forgotten_is_measured_from_before_the_first_step(
    trained: Path, domain: Path, general: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    settings = [f"init={trained}", f"corpus={domain}", f"general={general}", f"out={out}", "steps=40"]
    settings.append("hardware.precision=float32")
    assert main(["pretrain", "adapt", *settings, *FAST]) == 0
    printed = capsys.readouterr().out
    measured = list(evaluations(out))
    assert measured[0]["step"] == 0
    assert len(measured) > 5 and all("general_mlm_loss" in record for record in measured)
    before, after = measured[0], measured[-1]
    assert after["mlm_loss"] < before["mlm_loss"] - 1
    figures = MaskedLanguageModel.load(trained, compute_dtype=torch.float32).evaluate(general, 10_000, 32)
    assert before["general_mlm_loss"] == pytest.approx(figures["mlm_loss"], rel=1e-4)
    for figure in (before["general_mlm_loss"], after["general_mlm_loss"]):
        assert f"{figure:.4g}"[:4] in printed
        assert f"{figure:.3f}"[:4] in (out / "report.html").read_text()
    assert "general text: MLM loss" in printed
    assert "Gained and forgotten" in (out / "report.html").read_text()


def test_general_text_in_the_batches_keeps_what_was_known(
    trained: Path, domain: Path, general: Path, tmp_path: Path
) -> None:
    lost = {}
    for share in (0.0, 0.5):
        out = tmp_path / f"{share}"
        settings = [f"init={trained}", f"corpus={domain}", f"general={general}", f"out={out}", "steps=60"]
        result = pretrain("adapt", *settings, *FAST, f"data.general_share={share}")
        assert result.before is not None
        lost[share] = result.metrics["general_mlm_loss"] - result.before["general_mlm_loss"]
    assert lost[0.0] > 0.3
    assert lost[0.5] < 0.3 * lost[0.0]


@pytest.mark.parametrize(
    ("share", "said"),
    [("0.05", "data.general_share = 0.05 is rounded to whole sequences: 1 of the 8"), ("0.25", None)],
)
def test_a_share_that_whole_sequences_do_not_make_is_told(
    share: str, said: str | None, trained: Path, domain: Path, general: Path, tmp_path: Path
) -> None:
    settings = [f"init={trained}", f"corpus={domain}", f"general={general}", f"out={tmp_path / 'run'}"]
    settings += [*FAST, "data.batch_size=8", f"data.general_share={share}", "steps=1"]
    pretrain("adapt", *settings)
    messages = [record["message"] for record in RunLog.read(tmp_path / "run") if record["kind"] == "warning"]
    rounded = [message for message in messages if "rounded" in message]
    assert len(rounded) == (said is not None)
    assert said is None or rounded[0].startswith(said)


def segments(model: Path) -> torch.Tensor:
    """(2, H): what is added to the first text of a pair, and to the second."""
    embeddings = load_pretraining_model(model)[0].encoder.embeddings
    assert embeddings.segment is not None
    return embeddings.segment.weight.detach()


@pytest.mark.slow
def test_single_texts_teach_what_is_added_to_a_pairs_second_text_too(
    trained: Path, in_pairs: tuple[Path, Path], tmp_path: Path
) -> None:
    """From random weights and on; a model that knows pairs keeps its own, and pairs make two of one."""
    general, domain = in_pairs
    new = ["model.model_type=bert", *(f"model.{name}={value}" for name, value in SHAPE.items())]
    new += [f"corpus={general}", f"tokenizer={trained}", f"out={tmp_path / 'new'}", "steps=5"]
    begun = pretrain("budget", *new, *FAST).model
    found = {"begun": segments(begun)}
    for name, init, pairs in (("on", begun, False), ("pairs", begun, True), ("known", trained, False)):
        settings = [
            f"init={init}",
            f"corpus={domain}",
            f"out={tmp_path / name}",
            f"data.next_sentence={pairs}",
        ]
        found[name] = segments(pretrain("adapt", *settings, "steps=5", *FAST).model)
    equal = {name: torch.equal(*weight) for name, weight in found.items()}
    assert equal == {"begun": True, "on": True, "pairs": False, "known": False}
    assert not torch.equal(found["on"], found["begun"])


def test_an_extension_goes_with_the_trained_model_and_can_be_undone(
    trained: Path, domain: Path, tmp_path: Path
) -> None:
    extended, out = tmp_path / "extended", tmp_path / "run"
    extension = extend_vocabulary(trained, domain, extended)
    pretrain("adapt", f"init={extended}", f"corpus={domain}", f"out={out}", "steps=5", *FAST)
    assert read_extension(out / "model") == extension
    assert EXTENSION in json.loads((out / "model" / "bertsmith.json").read_text())["files"]
    undo_extension(out / "model", tmp_path / "undone")
    assert Tokenizer.load(tmp_path / "undone").sha256 == Tokenizer.load(trained).sha256
    assert MaskedLanguageModel.load(tmp_path / "undone").fill_mask("the cat [MASK] on")


@pytest.mark.parametrize("objective", ["sentence-order", "replaced-tokens"])
def test_an_extension_goes_with_the_models_of_other_objectives(
    objective: str, trained: Path, in_pairs: tuple[Path, Path], tmp_path: Path
) -> None:
    _, domain = in_pairs
    init, extended, out = trained, tmp_path / "extended", tmp_path / "run"
    settings = [f"objective={objective}", "data.next_sentence=true"]
    if objective == "replaced-tokens":
        settings = [f"objective={objective}", "data.next_sentence=false"]
        init = discriminator(tmp_path)
    extension = extend_vocabulary(init, domain, extended)
    pretrain("adapt", *settings, f"init={extended}", f"corpus={domain}", f"out={out}", "steps=3", *FAST)
    models = [each for each in (out / "model", out / "generator") if each.exists()]
    assert len(models) == (2 if objective == "replaced-tokens" else 1)
    for model in models:
        assert read_extension(model) == extension
        undo_extension(model, tmp_path / "undone", overwrite=True)
        assert Tokenizer.load(tmp_path / "undone").sha256 == Tokenizer.load(init).sha256


def discriminator(folder: Path) -> Path:
    """An untrained ELECTRA."""
    torch.manual_seed(0)
    shape = {"model_type": "electra", "vocab_size": len(PIECES), "max_position_embeddings": 64} | SHAPE
    config = make_config(shape | {"embedding_size": 16}, "test")
    model = ReplacedTokenModel(config, generator_config(config, 0.5))
    tokenizer = Tokenizer.from_pieces(PIECES, lowercase=True)
    save_replaced_token_model(folder / "electra", folder / "its-generator", model, tokenizer, {})
    return folder / "electra"


def test_general_text_goes_with_sentence_order(
    trained: Path, general: Path, in_pairs: tuple[Path, Path], tmp_path: Path
) -> None:
    """Both texts come in pairs, and what is forgotten is measured on single texts."""
    alone, (general, domain) = general, in_pairs
    out = tmp_path / "run"
    settings = [f"init={trained}", f"corpus={domain}", f"out={out}", "steps=40", *FAST]
    settings += ["objective=sentence-order", "data.next_sentence=true", "data.general_share=0.5"]
    result = pretrain("adapt", *settings, f"general={general}")
    before = result.before
    assert before is not None
    assert {name for name in result.metrics if name.startswith("sop_")} == {
        *("sop_loss", "sop_accuracy", "sop_majority")
    }
    assert not any(name.startswith("general_sop") for name in result.metrics)
    figures = MaskedLanguageModel.load(trained).evaluate(general, 10_000, 32)
    assert before["general_mlm_loss"] == pytest.approx(figures["mlm_loss"], rel=5e-3)  # trained in bfloat16
    assert result.metrics["mlm_loss"] < before["mlm_loss"] - 1
    kept = load_pretraining_model(result.model, sentence_order=True)
    assert kept[0].next_sentence is not None and kept[1] == ()
    assert pretrain(str(out / "recipe.toml"), resume=True).before == before
    with pytest.raises(StoreError, match="Sentence-order prediction needs"):  # a document is one sentence
        pretrain("adapt", *settings, f"general={alone}", f"out={tmp_path / 'other'}")


def test_general_text_with_replaced_tokens_is_refused(domain: Path, general: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    settings = [f"init={discriminator(tmp_path)}", f"corpus={domain}", f"general={general}", f"out={out}"]
    with pytest.raises(RecipeError, match=r"general= doesn't go with objective=replaced-tokens"):
        pretrain("adapt", *settings, "steps=5", "objective=replaced-tokens", *FAST)
    assert not out.exists()


def test_a_damaged_extension_is_refused_before_anything_is_trained(
    trained: Path, domain: Path, tmp_path: Path
) -> None:
    extended, out = tmp_path / "extended", tmp_path / "run"
    extend_vocabulary(trained, domain, extended)
    (extended / "bertsmith.json").unlink()  # whose hashes would say it before
    (extended / EXTENSION).write_text("{}")
    with pytest.raises(TokenizerError, match="the key 'base_pieces' is missing"):
        pretrain("adapt", f"init={extended}", f"corpus={domain}", f"out={out}", "steps=5", *FAST)
    assert not (out / "log.jsonl").exists()


def test_without_general_text_nothing_is_measured_beside_the_corpus(
    trained: Path, domain: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    result = pretrain("adapt", f"init={trained}", f"corpus={domain}", f"out={out}", "steps=5", *FAST)
    assert result.before is None
    assert all(record["step"] and "general_mlm_loss" not in record for record in evaluations(out))


def test_the_loss_a_character_is_that_of_hidden_words(trained: Path, general: Path) -> None:
    """Of a model that knows nothing every piece costs the log of the vocabulary."""
    model = MaskedLanguageModel.load(trained)
    with torch.no_grad():
        for parameter in model.model.masked_language.parameters():
            parameter.zero_()
    figures = model.evaluate(general, 10_000, 32)
    assert figures["mlm_loss"] == pytest.approx(math.log(len(PIECES)), rel=1e-3)
    tokenizer = model.tokenizer
    # words of the general text are pieces: a hidden piece has as many characters as its word
    mean = sum(map(len, GENERAL)) / len(GENERAL)
    expected = math.log(tokenizer.vocab_size) / mean
    for name in ("mlm_loss_per_character", "whole_word_loss_per_character"):
        assert figures[name] == pytest.approx(expected, rel=0.3)


def test_a_row_for_each_text_and_a_warning_where_more_is_lost_than_gained() -> None:
    before = {"mlm_loss": 4.0, "mlm_accuracy": 0.3, "general_mlm_loss": 2.0}
    before |= {"general_mlm_accuracy": 0.6, "general_mlm_majority": 0.05}
    after = {"mlm_loss": 3.5, "mlm_accuracy": 0.4, "general_mlm_loss": 2.4, "general_mlm_accuracy": 0.5}
    rows = compare_with_start(before, after)
    assert [(row["held-out text"], row["MLM loss before"], row["after"]) for row in rows] == [
        ("of the corpus", 4.0, 3.5),
        ("general", 2.0, 2.4),
    ]
    assert check_forgetting(before, after) == []
    (warning,) = check_forgetting(before, after | {"general_mlm_loss": 2.6})
    assert "rose by 0.600, that on the corpus's own fell by 0.500" in warning
    (untold,) = check_forgetting(before | {"general_mlm_accuracy": 0.055}, after)
    assert "began untrained" in untold
    assert compare_with_start(None, after) == [] == check_forgetting(None, after)
    assert check_forgetting(before | {"mlm_loss": None}, after) == []  # NaN, as the log has it


def test_what_is_missing_is_said_before_anything_is_written(
    trained: Path, domain: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    settings = [f"init={trained}", f"corpus={domain}", f"out={out}", "steps=5", *FAST]
    with pytest.raises(CorpusError, match=r"nowhere is not a folder"):
        pretrain("adapt", *settings, f"general={tmp_path / 'nowhere'}")
    with pytest.raises(RecipeError, match=r"batch_size = 1 has no room for two kinds of text"):
        pretrain("adapt", *settings, f"general={domain}", "data.batch_size=1")
    assert not out.exists()
    without = build(tmp_path / "whole", GENERAL, heldout=0.0)
    with pytest.raises(CorpusError, match=r"forgetting can't be measured"):
        pretrain("adapt", *settings, f"general={without}", console=Console(quiet=True))


def test_the_recipe_is_for_going_on(tmp_path: Path) -> None:
    recipe = read_recipe("adapt", ["init=minilm", f"out={tmp_path}"])
    assert (recipe.optimizer.kind, recipe.data.next_sentence) == ("adamw", False)
    assert recipe.optimizer.layer_decay < 1 and 0 < recipe.data.general_share < 1
