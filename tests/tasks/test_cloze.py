"""A gap behind the text, and the words of the labels in it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_pretraining import small_config
from small_tasks import WORDS, make_task, split_of

from bertsmith.data.batch import PackedBatch
from bertsmith.model.bert import Bert
from bertsmith.model.checkpoint import save_checkpoint
from bertsmith.tasks.auxiliary_tasks import Cloze, label_token_ids, supports_cloze
from bertsmith.tasks.examples.text_task import TextExample
from bertsmith.tasks.pretraining.pretraining import PretrainingModel
from bertsmith.tasks.pretraining.pretraining_checkpoint import load_pretraining_model, save_pretraining_model
from bertsmith.tasks.task import Task
from bertsmith.tasks.task_model import TaskModel, outputs_of
from bertsmith.text.tokens.tokenizer import Tokenizer

LABELS = ["bano", "delo_feru", "giru"]


def labelled(texts: list[str], **settings: int) -> tuple[Task[Any], list[TextExample]]:
    task = make_task("classification", pooling="mean", **settings)
    examples = [TextExample(text, None, LABELS[n % 3], "") for n, text in enumerate(texts)]
    task.fit(examples)
    return task, examples


@pytest.fixture
def source(tokenizer: Tokenizer, tmp_path: Path) -> Path:
    torch.manual_seed(3)
    model = PretrainingModel(small_config(tokenizer), next_sentence=False)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    save_pretraining_model(tmp_path / "model", model, tokenizer, {})
    return tmp_path / "model"


def test_the_words_of_labels(tokenizer: Tokenizer) -> None:
    ((bano,), (delo,)) = label_token_ids(["bano", "delo"], tokenizer)
    for name in ("bano_delo", "Bano - delo", "banoDelo", "bano/delo"):
        assert label_token_ids([name], tokenizer) == [[bano, delo]]
    assert label_token_ids(["0", "--", "12", "unheard"], tokenizer) == [[], [], [], []]


def test_without_training_a_label_is_as_likely_as_its_words_in_the_gap(
    tokenizer: Tokenizer, source: Path
) -> None:
    task, examples = labelled([" ".join(WORDS[n : n + 5]) for n in range(6)])
    assert supports_cloze(task, source, tokenizer)
    train = split_of(task, examples, tokenizer)
    cloze = Cloze(task, source, tokenizer)
    whole, _ = load_pretraining_model(source)
    model = TaskModel(whole.encoder, cloze.head(whole.config))
    gapped = cloze.auxiliary_examples(train).encoded
    found = outputs_of(model, gapped)
    for each, plain, logits in zip(gapped, train.encoded, found, strict=True):
        (window,), (before,) = each.windows, plain.windows
        (gap,) = window.rows.tolist()
        ids = window.token_ids.tolist()
        assert ids[gap] == tokenizer.mask_id
        assert [*ids[:gap], *ids[gap + 1 :]] == before.token_ids.tolist()
        assert ids[gap + 1 :] == [tokenizer.sep_id]
        states = _states(whole.encoder, ids)
        vocabulary = whole.vocabulary_logits(states[gap][None])[0]
        expected = [vocabulary[words].mean().item() for words in label_token_ids(task.labels, tokenizer)]
        np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-5)


def test_the_gap_takes_the_place_of_the_last_token_of_a_text_that_fills_the_window(
    tokenizer: Tokenizer, source: Path
) -> None:
    task, examples = labelled([" ".join(WORDS)] * 3, max_length=12)
    train = split_of(task, examples, tokenizer)
    (window,) = Cloze(task, source, tokenizer).auxiliary_examples(train).encoded[0].windows
    assert len(window.token_ids) == len(window.segment_ids) == 12
    assert window.token_ids[-2:].tolist() == [tokenizer.mask_id, tokenizer.sep_id]


def test_labels_without_words_and_encoders_without_the_head_have_no_gap(
    tokenizer: Tokenizer, source: Path, tmp_path: Path
) -> None:
    task, _ = labelled(["a", "b", "c"])
    encoder = tmp_path / "encoder"
    model, _ = load_pretraining_model(source)
    tensors = {f"encoder.{name}": each for name, each in model.encoder.state_dict().items()}
    save_checkpoint(encoder, tensors, model.config, "BertModel", task="encoder", tokenizer=tokenizer)
    assert not supports_cloze(task, encoder, tokenizer)
    task.labels = ("0", "1")
    assert not supports_cloze(task, source, tokenizer)


def _states(encoder: Bert, ids: list[int]) -> torch.Tensor:
    batch = PackedBatch.pack(
        np.array(ids, np.int64), np.zeros(len(ids), np.int64), np.array([len(ids)]), torch.device("cpu")
    )
    with torch.no_grad():
        return encoder.eval()(batch)
