"""A similarity model's folder opens in sentence-transformers and gives the same vectors and cosines."""

from pathlib import Path

import pytest
import torch
from head_parity import (
    FAMILIES,
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
from bertsmith.tasks.encoding import Layout, pack_examples
from bertsmith.tasks.finetuning import encode_examples
from bertsmith.tasks.pooling import pool_texts

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
