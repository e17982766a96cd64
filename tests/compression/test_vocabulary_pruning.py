"""Models without unused pieces: the same answers and vectors for what was counted."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from own_task import Species
from static_samples import PIECES, save_table_of_classes, save_teacher

from bertsmith.compression import vocabulary_pruning
from bertsmith.compression.distil_static import distil_static
from bertsmith.compression.vocabulary_pruning import prune_vocabulary
from bertsmith.errors import InputError, ModelError
from bertsmith.files import read_json, write_json
from bertsmith.inference.embedding.embedder import Embedder
from bertsmith.inference.predictor import Predictor
from bertsmith.model.bert import Bert
from bertsmith.model.checkpoint import read_checkpoint, save_checkpoint
from bertsmith.model.config import make_config
from bertsmith.model.manifest import read_verified_manifest
from bertsmith.tasks.checkpoints.sentence_folder import write_sentence_folder
from bertsmith.tasks.checkpoints.task_checkpoint import load_task_model, save_task_model
from bertsmith.tasks.classification import Classification
from bertsmith.tasks.finetuning import encode_examples
from bertsmith.tasks.tagging import Tagging
from bertsmith.tasks.task_model import TaskModel
from bertsmith.text.tokens.byte_level import BYTE_SYMBOLS, build_byte_level_backend
from bertsmith.text.tokens.tokenizer import Tokenizer
from bertsmith.training.finetuning.finetune import finetune

TEXTS = ["red cats run", "the old dog", "small birds"]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_teacher(tmp_path_factory.mktemp("encoder") / "model")


def test_vectors_of_counted_texts_are_the_same_to_the_bit(encoder: Path, tmp_path: Path) -> None:
    pruned = prune_vocabulary(encoder, iter(TEXTS), tmp_path / "small")
    assert pruned.pieces < pruned.pieces_before and pruned.texts == 3
    gone = (pruned.pieces_before - pruned.pieces) * 32
    assert pruned.parameters_before - pruned.parameters == gone
    np.testing.assert_array_equal(
        Embedder(tmp_path / "small").documents(TEXTS), Embedder(encoder).documents(TEXTS)
    )
    assert read_checkpoint(tmp_path / "small").config.vocab_size == pruned.pieces


@pytest.mark.parametrize(
    "changes",
    [
        {"model_type": "gte", "pad_token_id": 0},
        {"model_type": "albert", "embedding_size": 16},
        {"model_type": "jina_bert"},
    ],
)
def test_so_are_those_of_other_families(changes: dict[str, object], tmp_path: Path) -> None:
    """Whatever else is in the batch; and transformers makes them of the pruned folder too."""
    from transformers import AutoModel, AutoTokenizer

    import jina_bert  # noqa: F401  transformers lacks it

    model = save_teacher(tmp_path / "model", **changes)
    pruned = prune_vocabulary(model, iter(TEXTS), tmp_path / "small")
    gone = pruned.pieces_before - pruned.pieces
    width = read_checkpoint(model).config.embedding_width
    assert gone > 0 and pruned.parameters_before - pruned.parameters == gone * width
    embedder = Embedder(tmp_path / "small")
    vectors = embedder.documents(TEXTS)
    np.testing.assert_array_equal(vectors, Embedder(model).documents(TEXTS))
    np.testing.assert_array_equal(vectors[1:2], embedder.documents(TEXTS[1:2]))
    batch = AutoTokenizer.from_pretrained(tmp_path / "small")(TEXTS[1], return_tensors="pt")
    theirs = AutoModel.from_pretrained(tmp_path / "small").eval()
    with torch.no_grad():
        states = theirs(**batch).last_hidden_state[0].mean(0)
    exact = Embedder(tmp_path / "small", compute_dtype=torch.float32).documents(TEXTS[1:2])
    np.testing.assert_allclose(exact[0], states / states.norm(), atol=1e-5)


def test_a_fine_tuned_model_answers_the_same_and_transformers_opens_it(encoder: Path, tmp_path: Path) -> None:
    rows = tmp_path / "rows.csv"
    rows.write_text(
        "text,label\n" + "".join(f"red cat {n % 7},cat\nold dog {n % 5},dog\n" for n in range(30))
    )
    finetune(
        "classification",
        "epochs=1",
        "max_length=64",
        model=str(encoder),
        train=str(rows),
        out=str(tmp_path / "run"),
    )
    model = tmp_path / "run" / "model"
    prune_vocabulary(model, ["red cat old dog 01234567"], tmp_path / "small")
    texts = ["red cat 3", "old dog 4"]
    assert Predictor.load(tmp_path / "small").predict(texts) == Predictor.load(model).predict(texts)
    from transformers import AutoModel, AutoTokenizer

    import jina_bert  # noqa: F401  transformers lacks it

    states = []
    for folder in (model, tmp_path / "small"):
        batch = AutoTokenizer.from_pretrained(str(folder))(texts, return_tensors="pt")
        with torch.no_grad():
            states.append(AutoModel.from_pretrained(str(folder))(**batch).last_hidden_state)
    assert torch.equal(*states)


def test_a_static_table_is_pruned_too(encoder: Path, tmp_path: Path) -> None:
    table = distil_static(encoder, tmp_path / "static", dimensions=8).model
    pruned = prune_vocabulary(table, TEXTS, tmp_path / "small")
    assert pruned.parameters == pruned.pieces * 8
    np.testing.assert_array_equal(
        Embedder(tmp_path / "small").documents(TEXTS), Embedder(table).documents(TEXTS)
    )


def test_a_model_of_a_task_of_one_s_own_is_pruned(tmp_path: Path) -> None:
    model, task = load_task_model(save_table_of_classes(tmp_path / "table"))
    species = Species(task.settings, task.labels)
    save_task_model(tmp_path / "own", model, species, Tokenizer.load(tmp_path / "table"), {})
    prune_vocabulary(tmp_path / "own", TEXTS, tmp_path / "small", Species)
    small, whole = (Predictor.load(tmp_path / name, Species).predict(TEXTS) for name in ("small", "own"))
    assert [each["label"] for each in small] == [each["label"] for each in whole]


def save_model(folder: Path, tokenizer: Tokenizer, kind: str) -> Path:
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
    task = Tagging(Tagging.Settings(), ("O", "B-a"))
    config = make_config(
        {"vocab_size": tokenizer.vocab_size, "max_position_embeddings": 130, **shape}, "test"
    )
    encoder = Bert(config)
    if kind == "tagger":
        save_task_model(folder, TaskModel(encoder, task.head(config)), task, tokenizer, {})
    else:
        tensors = {f"encoder.{name}": tensor for name, tensor in encoder.state_dict().items()}
        save_checkpoint(folder, tensors, config, "BertModel", task="encoder", tokenizer=tokenizer)
    return folder


def byte_level() -> Tokenizer:
    names = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
    special = dict(zip(("cls", "pad", "sep", "unk", "mask"), names, strict=True))
    pieces = [*names, *sorted(BYTE_SYMBOLS), "he", "Ġhe", "Ġ(", "Ġ."]
    merges = [("h", "e"), ("Ġ", "he"), ("Ġ", "("), ("Ġ", ".")]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    return Tokenizer(build_byte_level_backend(vocabulary, merges, special, add_prefix_space=False), special)


THAI = "สวัสดีครับ" * 11  # too long a word for WordPiece: each of its characters is read by itself
LETTERS = sorted(set(THAI))


@pytest.mark.parametrize(
    ("tokenizer", "text", "words"),
    [
        (byte_level(), "he said (he).", ["he", "said", "(he)."]),
        (
            Tokenizer.from_pieces([*PIECES, *LETTERS, *map("##{}".format, LETTERS)], lowercase=False),
            THAI,
            [THAI],
        ),
    ],
    ids=["byte-level", "without blanks"],
)
@pytest.mark.parametrize("kind", ["tagger", "encoder"])
def test_a_tagger_reads_counted_texts_as_before(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    tokenizer: Tokenizer,
    text: str,
    words: list[str],
    kind: str,
) -> None:
    """In a byte-level vocabulary each word that it reads, the first too, begins with a blank. So do Features
    of an encoder's words.
    """
    monkeypatch.setattr(vocabulary_pruning, "write_golden", lambda *_: None)  # half of the time
    folder = save_model(tmp_path / "model", tokenizer, kind)
    small = Tokenizer.load(prune_vocabulary(folder, [text], tmp_path / "small").folder)
    task = Tagging(Tagging.Settings())
    examples = [task.example(text), task.example(words)]
    found, expected = (
        [
            [each.pieces[number] for number in encoded.windows[0].token_ids]
            for encoded in encode_examples(task, examples, each).encoded
        ]
        for each in (small, tokenizer)
    )
    assert found == expected


def test_what_a_task_puts_before_a_text_is_read_as_before(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As the prompt of a published cross-encoder, of a model that was pruned once."""
    monkeypatch.setattr(vocabulary_pruning, "write_golden", lambda *_: None)
    model, task = load_task_model(save_table_of_classes(tmp_path / "table"))
    assert isinstance(task, Classification)
    task.prompt = "green birds: "
    save_task_model(tmp_path / "model", model, task, Tokenizer.load(tmp_path / "table"), {})
    prune_vocabulary(tmp_path / "model", TEXTS, tmp_path / "small")
    small, whole = (Predictor.load(tmp_path / name).predict(TEXTS) for name in ("small", "model"))
    for one, other in zip(small, whole, strict=True):
        assert one["probabilities"] == pytest.approx(other["probabilities"], abs=1e-5)


def test_a_head_on_a_static_table_stays_with_its_labels(tmp_path: Path) -> None:
    table = save_table_of_classes(tmp_path / "table")
    pruned = prune_vocabulary(table, TEXTS, tmp_path / "small")
    small, whole = Predictor.load(tmp_path / "small"), Predictor.load(table)
    assert small.task.labels == ("cat", "dog")
    for one, other in zip(small.predict(TEXTS), whole.predict(TEXTS), strict=True):
        assert one["probabilities"] == pytest.approx(other["probabilities"], abs=1e-5)
    assert pruned.parameters_before - pruned.parameters == 8 * (pruned.pieces_before - pruned.pieces)
    manifest = read_verified_manifest(tmp_path / "small")
    assert manifest is not None and manifest.provenance.keys() == {"seed", "pruning"}


def test_figures_of_the_whole_vocabulary_are_not_the_pruned_models(tmp_path: Path) -> None:
    model, task = load_task_model(save_table_of_classes(tmp_path / "table"))
    origin = {"seed": 3, "metrics": {"test": {"accuracy": 0.75}}}
    save_task_model(tmp_path / "model", model, task, Tokenizer.load(tmp_path / "table"), origin)
    assert "0.75" in (tmp_path / "model" / "README.md").read_text()
    prune_vocabulary(tmp_path / "model", TEXTS, tmp_path / "small")
    manifest = read_verified_manifest(tmp_path / "small")
    assert manifest is not None and manifest.provenance.keys() == {"seed", "pruning"}
    assert "0.75" not in (tmp_path / "small" / "README.md").read_text()


def test_what_stands_before_queries_and_documents_is_read_as_before(encoder: Path, tmp_path: Path) -> None:
    """Its pieces stand in none of the counted texts."""
    prompts = {"query": "blue: ", "document": "green birds: "}
    model = tmp_path / "model"
    shutil.copytree(encoder, model)
    config = read_checkpoint(model).config
    write_sentence_folder(model, config, "mean", 24, normalise=True, prompts=prompts)
    (model / "sentence_bert_config.json").rename(model / "sentence_roberta_config.json")
    prune_vocabulary(model, TEXTS, tmp_path / "small")
    small, whole = Embedder(tmp_path / "small"), Embedder(model)
    assert small.prefixes == prompts and small.max_length == 24
    np.testing.assert_array_equal(small.queries(TEXTS), whole.queries(TEXTS))
    np.testing.assert_array_equal(small.documents(TEXTS), whole.documents(TEXTS))


def test_a_longer_text_is_cut_where_the_tokenizer_did(encoder: Path, tmp_path: Path) -> None:
    """Of a plain encoder nothing else says where; the model itself has positions for more."""
    model = tmp_path / "model"
    shutil.copytree(encoder, model)
    (model / "modules.json").unlink(missing_ok=True)
    (model / "bertsmith.json").unlink()
    path = model / "tokenizer_config.json"
    write_json(path, read_json(path) | {"model_max_length": None, "max_len": 9})
    prune_vocabulary(model, TEXTS, tmp_path / "small")
    assert read_json(tmp_path / "small" / "tokenizer_config.json")["model_max_length"] == 9
    long = ["red cats run the old dog " * 4]
    np.testing.assert_array_equal(
        Embedder(tmp_path / "small").documents(long), Embedder(model).documents(long)
    )


def test_parts_are_found_by_modules_json_and_not_by_a_number(encoder: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(encoder, model)
    write_sentence_folder(model, read_checkpoint(model).config, "max", 24, normalise=True)
    (model / "1_Pooling").rename(model / "pooling")
    (model / "2_Normalize").rename(model / "to-length-1")
    text = (model / "modules.json").read_text()
    text = text.replace("1_Pooling", "pooling").replace("2_Normalize", "to-length-1")
    (model / "modules.json").write_text(text)
    (model / "1_earlier").mkdir()
    (model / "1_earlier" / "notes.txt").write_text("nothing of the model's")
    (model / "pooling" / "desktop.ini").write_text("nothing either")
    prune_vocabulary(model, TEXTS, tmp_path / "small")
    inside = {path.name for path in (tmp_path / "small").iterdir() if path.is_dir()}
    assert inside == {"pooling", "to-length-1"}
    small, whole = Embedder(tmp_path / "small"), Embedder(model)
    assert small.pooling == "max"
    np.testing.assert_array_equal(small.documents(TEXTS), whole.documents(TEXTS))


def test_a_static_table_keeps_its_prompts_and_their_pieces(encoder: Path, tmp_path: Path) -> None:
    table = distil_static(encoder, tmp_path / "static", dimensions=8).model
    prompts = {"query": "blue: ", "document": "green: "}
    write_json(table / "config_sentence_transformers.json", {"prompts": prompts})
    prune_vocabulary(table, TEXTS, tmp_path / "small")
    small, whole = Embedder(tmp_path / "small"), Embedder(table)
    assert small.prefixes == prompts
    np.testing.assert_array_equal(small.queries(TEXTS), whole.queries(TEXTS))


def test_no_texts_no_model_and_a_folder_that_exists_are_one_sentence(encoder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no texts to count"):
        prune_vocabulary(encoder, [], tmp_path / "small")
    with pytest.raises(InputError, match="found one text"):  # every letter of it would count as a text
        prune_vocabulary(encoder, "texts.csv", tmp_path / "small")
    with pytest.raises(ModelError, match="no model"):
        prune_vocabulary(tmp_path / "nowhere", TEXTS, tmp_path / "small")
    assert not (tmp_path / "small").exists()
    with pytest.raises(InputError, match="already exists"):
        prune_vocabulary(encoder, TEXTS, encoder)
