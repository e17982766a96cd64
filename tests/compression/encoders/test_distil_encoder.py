"""Encoders distilled on raw text: the loss falls, what is saved opens elsewhere, bad input is a sentence."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from encoder_samples import PIECES, recipe_of, save_embedder, save_word_model, tiny_tokenizer
from safetensors.torch import load_file, save_file

from bertsmith.compression.distilling.distil import EncoderDistilResult, distil_encoder
from bertsmith.compression.distilling.recipes import make_encoder_recipe
from bertsmith.data.batch import PackedBatch
from bertsmith.data.tokenizing import tokenize_corpus
from bertsmith.errors import BertsmithError, RecipeError
from bertsmith.inference.embedding.embedder import Embedder
from bertsmith.inference.masked_language import MaskedLanguageModel
from bertsmith.model.checkpoint import encoder_of, load_encoder, read_checkpoint
from bertsmith.model.student import kept_channels
from bertsmith.tasks.checkpoints.sentence_folder import read_sentence_settings
from bertsmith.tasks.heads.pooling import Dense, Projection, UnitLength, VectorNorm
from bertsmith.text.corpus.building import build_corpus
from bertsmith.text.corpus.corpus import Corpus
from bertsmith.text.corpus_settings import CorpusSettings
from bertsmith.text.tokens.tokenizer import Tokenizer
from bertsmith.training.log import RunLog

TEXTS = ["bal ben cir.", "ven dom dun fate gal", "kal"]


def nearer(result: EncoderDistilResult) -> bool:
    """Whether the student is nearer to its teacher by every loss."""
    assert result.before.keys() == result.metrics.keys()
    return all(result.metrics[name] < value for name, value in result.before.items())


def test_vectors_are_learned_and_open_in_sentence_transformers(
    embedder: Path, store: Path, tmp_path: Path
) -> None:
    sentence_transformers = pytest.importorskip("sentence_transformers")
    result = distil_encoder(recipe_of(embedder, store, tmp_path / "run", steps=40))
    assert set(result.metrics) == {"loss", "states_loss", "vectors_loss"}
    assert nearer(result)
    ours = Embedder(result.model, compute_dtype=torch.float32)
    assert ours.max_length == 32
    theirs = sentence_transformers.SentenceTransformer(str(result.model), device="cpu")
    np.testing.assert_allclose(ours.documents(TEXTS), theirs.encode(TEXTS), atol=1e-5)
    teacher = Embedder(embedder, compute_dtype=torch.float32).documents(TEXTS)
    cosines = (ours.documents(TEXTS) * teacher).sum(1)
    assert cosines.mean() > 0.9
    assert load_encoder(result.model).config.num_hidden_layers == 2


@pytest.mark.parametrize(
    "changes",
    [
        ["dimensions=8", "width=16"],
        pytest.param(["dimensions=8"], marks=pytest.mark.slow),
        pytest.param(["width=16"], marks=pytest.mark.slow),
    ],
)
def test_fewer_dimensions_open_in_sentence_transformers(
    changes: list[str], embedder: Path, store: Path, tmp_path: Path
) -> None:
    sentence_transformers = pytest.importorskip("sentence_transformers")
    result = distil_encoder(recipe_of(embedder, store, tmp_path / "run", *changes, steps=30))
    assert nearer(result)
    ours = Embedder(result.model, compute_dtype=torch.float32)
    assert ours.documents(TEXTS).shape == (3, 8 if "dimensions=8" in changes else 16)
    theirs = sentence_transformers.SentenceTransformer(str(result.model), device="cpu")
    np.testing.assert_allclose(ours.documents(TEXTS), theirs.encode(TEXTS), atol=1e-5)


@pytest.mark.parametrize(
    ("layers", "changes", "width"),
    [
        ([Dense(32, 12, True, "Tanh")], [], 12),
        ([Dense(32, 32, True, "Tanh")], [], 32),
        ([Dense(32, 48, True, "GELU"), VectorNorm(48)], ["width=16"], 16),
        ([UnitLength(), Dense(32, 12, True, "Tanh")], ["dimensions=6"], 6),
    ],
)
def test_a_teacher_with_layers_behind_its_pooling_is_imitated(
    layers: list[Any], changes: list[str], width: int, store: Path, tmp_path: Path
) -> None:
    teacher = save_embedder(tmp_path / "teacher", projection=Projection(layers))
    result = distil_encoder(recipe_of(teacher, store, tmp_path / "run", *changes, steps=40))
    assert nearer(result)
    student = Embedder(result.model, compute_dtype=torch.float32)
    assert student.width == width
    if width == Embedder(teacher).width:
        taught = Embedder(teacher, compute_dtype=torch.float32).documents(TEXTS)
        assert (student.documents(TEXTS) * taught).sum(1).mean() > 0.9


@pytest.mark.parametrize(
    ("changes", "width"), [pytest.param([], 12, marks=pytest.mark.slow), (["dimensions=6"], 6)]
)
def test_a_teacher_that_keeps_its_first_dimensions_is_imitated_in_these(
    changes: list[str], width: int, store: Path, tmp_path: Path
) -> None:
    teacher = save_embedder(tmp_path / "teacher", prompts={})
    (teacher / "bertsmith.json").unlink()
    (teacher / "config_sentence_transformers.json").write_text('{"truncate_dim": 12}')
    result = distil_encoder(recipe_of(teacher, store, tmp_path / "run", *changes, steps=40))
    assert nearer(result)
    found = Embedder(result.model).documents(TEXTS)
    assert found.shape == (3, width)
    taught = Embedder(teacher).documents(TEXTS)
    assert abs(found @ found.T - taught @ taught.T).max() < (0.1 if not changes else 0.4)
    with pytest.raises(RecipeError, match="dimensions is 13, but the teacher's vectors have 12"):
        distil_encoder(recipe_of(teacher, store, tmp_path / "more", "dimensions=13"))


def test_prompts_pooling_and_the_longest_text_are_the_teachers(store: Path, tmp_path: Path) -> None:
    prompts = {"query": "bal ", "document": "ven dom ", "other": "fate "}
    teacher = save_embedder(tmp_path / "teacher", "cls", prompts)
    (teacher / "bertsmith.json").unlink()
    said = {"prompts": prompts, "default_prompt_name": "other"}
    (teacher / "config_sentence_transformers.json").write_text(json.dumps(said))
    result = distil_encoder(recipe_of(teacher, store, tmp_path / "run", steps=4))
    ours = Embedder(result.model)
    assert (ours.pooling, ours.max_length) == ("cls", 32)
    assert ours.prefixes == {name: prompts[name] for name in ("query", "document")}
    found = read_sentence_settings(result.model)
    assert (found.prompts, found.default_prompt) == (prompts, "fate ")


def test_the_longest_text_is_a_plain_teacher_s(encoder: Path, store: Path, tmp_path: Path) -> None:
    teacher = Path(shutil.copytree(encoder, tmp_path / "teacher"))
    (teacher / "bertsmith.json").unlink()
    path = teacher / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"model_max_length": 20}))
    result = distil_encoder(recipe_of(teacher, store, tmp_path / "run", steps=2))
    assert Embedder(result.model).max_length == Embedder(teacher).max_length == 20


@pytest.mark.parametrize("length", [8, 12, 15])
def test_a_length_that_the_prompt_fills_is_refused_before_anything_is_written(
    length: int, store: Path, tmp_path: Path
) -> None:
    prompts = {"query": "bal ", "document": "bal ben cir ven dom dun fate gal kal bal "}
    teacher = save_embedder(tmp_path / "teacher", prompts=prompts)
    with pytest.raises(BertsmithError, match=r"prompt and two special tokens take 12: .* Make it 16 or more"):
        distil_encoder(recipe_of(teacher, store, tmp_path / "run", f"data.sequence_length={length}"))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("model_type", ["bert", "modernbert"])
def test_masked_words_are_learned_and_open_in_transformers(
    model_type: str, store: Path, tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    teacher = save_word_model(tmp_path / "teacher", model_type)
    result = distil_encoder(recipe_of(teacher, store, tmp_path / "run", steps=30))
    assert set(result.metrics) == {"loss", "soft_loss", "mlm_loss", "states_loss"}
    assert result.metrics["loss"] < result.before["loss"]
    assert result.metrics["soft_loss"] < result.before["soft_loss"]
    theirs = transformers.AutoModelForMaskedLM.from_pretrained(result.model).eval()
    ids = tiny_tokenizer().encode("bal [MASK] cir", read_special_tokens=True).ids
    ids = [2, *ids, 3]
    with torch.no_grad():
        wanted = theirs(torch.tensor([ids])).logits[0, 2].softmax(-1)
    ours = MaskedLanguageModel.load(result.model).fill_mask("bal [MASK] cir", top=1)[0][0]
    assert ours.probability == pytest.approx(float(wanted.max()), abs=1e-3)


@pytest.mark.parametrize(
    "changes",
    [
        [],
        pytest.param(["width=16"], marks=pytest.mark.slow),
        ["family=modernbert"],
        pytest.param(["loss.relations=1", "loss.states=0"], marks=pytest.mark.slow),
        ["family=distilbert", "feed_forward=20"],
    ],
)
def test_a_bare_encoder_is_learned_in_any_shape(
    changes: list[str], encoder: Path, store: Path, tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    result = distil_encoder(recipe_of(encoder, store, tmp_path / "run", *changes, steps=20))
    assert nearer(result)
    ours, theirs = load_encoder(result.model), transformers.AutoModel.from_pretrained(result.model).eval()
    ids = [2, 7, 9, 11, 3]
    packed = PackedBatch.pack(np.array(ids), np.zeros(5, np.int64), np.array([5]))
    with torch.no_grad():
        wanted = theirs(torch.tensor([ids])).last_hidden_state[0]
        torch.testing.assert_close(ours(packed), wanted, rtol=0, atol=1e-5)


def test_words_are_learned_by_a_narrow_student(word_model: Path, store: Path, tmp_path: Path) -> None:
    result = distil_encoder(recipe_of(word_model, store, tmp_path / "run", "width=16", steps=30))
    assert set(result.metrics) == {"loss", "soft_loss", "mlm_loss", "states_loss", "relations_loss"}
    assert result.metrics["loss"] < result.before["loss"]
    assert "bridge" not in str(read_checkpoint(result.model).tensors.keys())


@pytest.mark.parametrize("width", [32, 16])
def test_words_learned_without_their_teachers_answers_begin_with_its_head(
    width: int, word_model: Path, store: Path, tmp_path: Path
) -> None:
    changes = ["loss.soft=0", "loss.mlm=1", "loss.states=0", "loss.relations=0", f"width={width}"]
    still = {"learning_rate": 1e-9}
    result = distil_encoder(
        recipe_of(word_model, store, tmp_path / "run", *changes, steps=1, optimizer=still)
    )
    assert "soft_loss" not in result.metrics
    theirs, ours = read_checkpoint(word_model), read_checkpoint(result.model).tensors
    kept = kept_channels(encoder_of(theirs, ""), width)
    weight = theirs.tensors["masked_language.dense.weight"][kept][:, kept] * (32 / width) ** 0.5
    torch.testing.assert_close(ours["masked_language.dense.weight"], weight)


@pytest.mark.slow
def test_words_are_learned_of_a_teacher_whose_embeddings_are_narrower(store: Path, tmp_path: Path) -> None:
    teacher = save_word_model(tmp_path / "teacher", "electra", embedding_size=16)
    for width in (32, 16):  # with the product behind embeddings, and as wide as they are
        recipe = recipe_of(teacher, store, tmp_path / str(width), f"width={width}", steps=20)
        result = distil_encoder(recipe)
        assert result.metrics["loss"] < result.before["loss"]
        assert load_encoder(result.model).config.hidden_size == width


def test_the_teachers_vectors_are_kept_and_read_again(embedder: Path, store: Path, tmp_path: Path) -> None:
    changes = ["loss.states=0", "steps=30"]  # several epochs
    with_them = distil_encoder(recipe_of(embedder, store, tmp_path / "with", *changes))
    rows = np.fromfile(tmp_path / "with" / "teacher" / "rank-0.f16", np.float16).reshape(-1, 32)
    lengths = np.linalg.norm(rows.astype(np.float32), axis=1)
    assert set(np.round(lengths, 2)) == {0.0, 1.0}
    assert nearer(with_them)
    again = distil_encoder(recipe_of(embedder, store, tmp_path / "again", *changes))
    assert again.metrics == with_them.metrics


def test_the_run_says_what_it_was(embedder: Path, corpus: Path, tmp_path: Path) -> None:
    result = distil_encoder(recipe_of(embedder, corpus, tmp_path / "run"))
    manifest = json.loads((result.model / "bertsmith.json").read_text())
    assert manifest["task"] == "encoder"
    assert manifest["provenance"]["teacher"]["name"] == str(embedder)
    assert len(manifest["provenance"]["teacher"]["sha256"]) == 64
    assert manifest["provenance"]["losses"] == {"states": 1.0, "vectors": 1.0}
    assert "teacher: 4" in (tmp_path / "run" / "report.html").read_text()
    steps = [each for each in RunLog.read(tmp_path / "run") if each["kind"] == "step"]
    assert len(steps) == 12
    assert steps[-1]["loss"] == pytest.approx(steps[-1]["states_loss"] + steps[-1]["vectors_loss"])


def test_the_loss_does_not_depend_on_how_a_step_is_divided(
    word_model: Path, store: Path, tmp_path: Path
) -> None:
    losses = []
    for tokens in (64, 100_000):
        changes = ["loss.relations=1", f"micro_batch_tokens={tokens}", "steps=3"]
        recipe = recipe_of(word_model, store, tmp_path / str(tokens), *changes)
        distil_encoder(recipe)
        records = RunLog.read(tmp_path / str(tokens))
        losses.append([each["loss"] for each in records if each["kind"] == "step"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


@pytest.mark.parametrize(
    ("kind", "changes", "sentence"),
    [
        ("embedder", ["dimensions=33"], "dimensions is 33, but the teacher's vectors have 32"),
        ("embedder", ["loss.mlm=1"], "loss.vectors goes with whole texts"),
        ("embedder", ["loss.states=0", "loss.vectors=0"], "Every loss has the weight 0"),
        ("encoder", ["loss.soft=1"], "has no masked-language head"),
        ("encoder", ["layers=9"], "A student of 9 layers can't be cut from 4"),
        ("encoder", ["layers=[1, 5]"], "The teacher has 4 layers, counted from 1: there is no layer 5"),
        ("encoder", ["width=12"], "choose a multiple of 16"),
        ("encoder", ["data.sequence_length=65"], "positions for 64 tokens"),
        (
            "encoder",
            ["loss.relations=1", "loss.teacher_layer=5"],
            "loss.teacher_layer is 5, but the teacher has only 4",
        ),
        ("encoder", ["family=bart"], "bart"),
    ],
)
def test_what_cannot_be_is_one_sentence_and_leaves_nothing(
    kind: str, changes: list[str], sentence: str, store: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    teacher: Path = request.getfixturevalue(kind)
    with pytest.raises(BertsmithError) as caught:
        distil_encoder(recipe_of(teacher, store, tmp_path / "run", *changes))
    assert sentence in str(caught.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (["hours=1"], "exactly one of steps and hours"),
        (["hours=1", "steps=3"], "steps=3 and hours=1 are both given"),
        (["lr=1e-4"], "unknown key 'lr'. Did you mean 'optimizer.learning_rate'?"),
        (["max_seq_length=64"], "Did you mean 'data.sequence_length'?"),
        (["layer=3"], "unknown key 'layer'. Did you mean 'layers'?"),
        (["loss.cosine=1"], "loss.cosine"),
        (["dropout=1"], "dropout"),
        (["layers=[0, 2]"], "counted from 1"),
        (["layers=0"], "layers are a number from 1 on"),
        (["optimizer.warmup=3"], "3 steps is not shorter than the run of 3 steps"),
        (["optimizer.schedule=wsd", "optimizer.decay=4"], "together longer than the run"),
    ],
)
def test_a_wrong_setting_is_named(
    changes: list[str], sentence: str, encoder: Path, store: Path, tmp_path: Path
) -> None:
    values = {"teacher": "t", "corpus": "c", "out": "o", "steps": 3}
    if changes == ["hours=1"]:
        values |= {"hours": 2}
        changes = []
    with pytest.raises(BertsmithError) as caught:
        make_encoder_recipe(values, changes)
    assert sentence in str(caught.value)


def test_a_store_of_another_tokenizer_is_refused(tmp_path: Path, store: Path) -> None:
    teacher = save_embedder(tmp_path / "teacher")
    other = Tokenizer.from_pieces([*PIECES[:-1], "other"], lowercase=True)
    other.save(tmp_path / "tokenizer")
    for name in ("vocab.txt", "tokenizer.json", "tokenizer_config.json"):
        (teacher / name).write_bytes((tmp_path / "tokenizer" / name).read_bytes())
    (teacher / "bertsmith.json").unlink()
    with pytest.raises(BertsmithError, match="was made with another tokenizer"):
        distil_encoder(recipe_of(teacher, store, tmp_path / "run"))


def test_a_folder_that_holds_another_run_is_refused(embedder: Path, store: Path, tmp_path: Path) -> None:
    distil_encoder(recipe_of(embedder, store, tmp_path / "run", steps=2))
    with pytest.raises(BertsmithError, match="already holds a run"):
        distil_encoder(recipe_of(embedder, store, tmp_path / "run", steps=2))
    with pytest.raises(BertsmithError, match=r"was begun with other settings: loss\.vectors"):
        distil_encoder(recipe_of(embedder, store, tmp_path / "run", "loss.vectors=2", steps=2), resume=True)


def test_another_teacher_of_the_same_name_is_refused(store: Path, tmp_path: Path) -> None:
    """Its predecessor's vectors lie in the run's folder, and its weights are half a student."""
    teacher = save_embedder(tmp_path / "teacher")
    changes = ["loss.states=0", "dimensions=8"]
    distil_encoder(recipe_of(teacher, store, tmp_path / "run", *changes, steps=2))
    weights = load_file(teacher / "model.safetensors")
    save_file({name: each * 1.5 for name, each in weights.items()}, teacher / "model.safetensors")
    (teacher / "bertsmith.json").unlink()  # it has the hash of the old ones
    with pytest.raises(BertsmithError, match="file given as teacher has changed"):
        distil_encoder(recipe_of(teacher, store, tmp_path / "run", *changes, steps=2), resume=True)


def test_another_store_in_place_of_the_first_is_refused(embedder: Path, corpus: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    tokenize_corpus(Corpus.open(corpus), tiny_tokenizer(), store)
    distil_encoder(recipe_of(embedder, store, tmp_path / "run", steps=2))
    (tmp_path / "other.txt").write_text("\n\n".join(f"Bal ben cir ven {word}." for word in PIECES[6:]))
    build_corpus(
        [str(tmp_path / "other.txt")], tmp_path / "other", settings=CorpusSettings(heldout=0.0), workers=1
    )
    shutil.rmtree(store)
    tokenize_corpus(Corpus.open(tmp_path / "other"), tiny_tokenizer(), store)
    with pytest.raises(BertsmithError, match="file given as corpus has changed"):
        distil_encoder(recipe_of(embedder, store, tmp_path / "run", steps=2), resume=True)


def test_figures_are_of_the_same_words_though_fewer_are_masked_in_the_end(
    word_model: Path, store: Path, tmp_path: Path
) -> None:
    """With a rate of 0 nothing is learned: the loss before and behind must be the same."""
    fewer = ["masking.mask_rate=0.4", "masking.final_mask_rate=0.05", "optimizer.learning_rate=1e-12"]
    result = distil_encoder(recipe_of(word_model, store, tmp_path / "run", *fewer))
    for name, value in result.before.items():
        assert result.metrics[name] == pytest.approx(value, abs=1e-5)
