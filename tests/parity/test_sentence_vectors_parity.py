"""A similarity model's folder opens in sentence-transformers and gives the same vectors and cosines; that of
a linear head of pooled states the same outputs.
"""

from pathlib import Path

import pytest
import torch
import transformers
from head_parity import (
    FAMILIES,
    PADDED_FIRST,
    make_task,
    new_model,
    our_outputs,
    random_texts,
    saved,
    small_config,
    small_tokenizer,
)
from model_parity import assert_same

from bertsmith.data.batch import PackedBatch
from bertsmith.tasks.checkpoints.sentence_folder import read_pooling
from bertsmith.tasks.examples.encoding import Layout, pack_examples
from bertsmith.tasks.finetuning import encode_examples
from bertsmith.tasks.heads.pooling import pool_texts

sentence_transformers = pytest.importorskip("sentence_transformers")


@pytest.mark.parametrize(
    ("family", "pooling"),
    [("bert", "cls"), ("bert", "max"), *((family, "mean") for family in FAMILIES)],
)
def test_the_same_vectors_and_cosines(family: str, pooling: str, tmp_path: Path) -> None:
    tokenizer = small_tokenizer(family, tmp_path / "tokenizer")
    task = make_task("similarity", pooling=pooling, max_length=12)  # some of the texts are cut
    model = new_model(task, small_config(family, tokenizer))
    folder = saved(tmp_path / "model", model, task, tokenizer)
    pairs = [*random_texts(11, 5, pairs=True), ("bano delo firu " * 9, "bano")]
    encoded = encode_examples(task, [task.example(pair) for pair in pairs], tokenizer).encoded
    packed = PackedBatch.of(pack_examples(encoded, range(len(encoded))))
    with torch.inference_mode():
        ours = pool_texts(model.encoder(packed), Layout(encoded), pooling)  # type: ignore[arg-type]
    theirs = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
    assert theirs.max_seq_length == 12
    wanted = theirs.encode([text for pair in pairs for text in pair], convert_to_tensor=True)
    assert_same(ours, wanted, "vectors")
    cosines = torch.nn.functional.cosine_similarity(wanted[0::2], wanted[1::2])
    assert_same(torch.cat(our_outputs(model, task, tokenizer, pairs)), cosines, "cosines")


@pytest.mark.parametrize(
    ("name", "family", "pooling"),
    [
        ("regression", "bert", "cls"),
        ("multi-label", "bert", "max"),
        *(("classification", family, "mean") for family in FAMILIES),
    ],
)
def test_a_linear_head_of_pooled_states_gives_the_same_outputs(
    name: str, family: str, pooling: str, tmp_path: Path
) -> None:
    """Encoder, pooling, normalisation and a dense layer; transformers opens the encoder itself."""
    tokenizer = small_tokenizer(family, tmp_path / "tokenizer")
    task = make_task(name, pooling=pooling, max_length=12)  # some of the texts are cut
    task.labels = () if name == "regression" else ("a", "b", "c")
    model = new_model(task, small_config(family, tokenizer))
    folder = saved(tmp_path / "model", model, task, tokenizer)
    texts = [*random_texts(11, 5), "bano delo firu " * 9]
    theirs = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
    wanted = theirs.encode(texts, convert_to_tensor=True)
    found = torch.stack(our_outputs(model, task, tokenizer, texts)).to(wanted.dtype)
    assert_same(found, wanted, "outputs")
    without = ("bert", "jina_bert", *PADDED_FIRST, "nomic_bert", "albert")
    pooler = {"add_pooling_layer": False} if family in without else {}
    _, info = transformers.AutoModel.from_pretrained(folder, output_loading_info=True, **pooler)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]


def test_training_goes_on_with_the_pooling_of_such_a_folder(tmp_path: Path) -> None:
    tokenizer = small_tokenizer("bert", tmp_path / "tokenizer")
    task = make_task("classification", pooling="max")
    task.labels = ("a", "b")
    folder = saved(tmp_path / "model", new_model(task, small_config("bert", tokenizer)), task, tokenizer)
    assert read_pooling(folder) == "max"
    assert read_pooling(tmp_path / "tokenizer") is None
