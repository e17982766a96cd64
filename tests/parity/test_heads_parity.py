"""Heads: what we save gives the same outputs in transformers, and what it saves gives the same ones here."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from head_parity import (
    ANSWERING,
    FAMILIES,
    LENGTH,
    PADDED_FIRST,
    ROBERTAS,
    make_task,
    new_model,
    open_in_transformers,
    our_outputs,
    random_texts,
    saved,
    sequence_task,
    small_config,
    small_tokenizer,
    tagging_task,
    their_inputs,
    their_sequence_inputs,
    their_words,
)
from model_parity import assert_same, with_large_weights

from bertsmith.model.families import FAMILIES as FAMILIES_THERE_ARE
from bertsmith.model.layers.elementwise import Dropout
from bertsmith.tasks.checkpoints.task_checkpoint import load_task_model
from jina_bert import ALIBI

TAGS = ["O", "B-PER", "I-PER", "B-LOC"]
families = pytest.mark.parametrize("family", FAMILIES)
SEQUENCE = transformers.AutoModelForSequenceClassification


def test_every_family_is_tested_here() -> None:
    assert set(FAMILIES_THERE_ARE) == set(FAMILIES)


@families
@pytest.mark.parametrize("name", ["classification", "regression", "multi-label"])
@pytest.mark.parametrize("pairs", [False, True], ids=["texts", "pairs"])
def test_a_saved_sequence_head_gives_the_same_logits(
    family: str, name: str, pairs: bool, tmp_path: Path
) -> None:
    tokenizer = small_tokenizer(family, tmp_path / "tokenizer")
    texts = random_texts(1, 6, pairs=pairs)
    task, _ = sequence_task(name, texts)
    model = new_model(task, small_config(family, tokenizer))
    training = torch.stack(our_outputs(model, task, tokenizer, texts))
    model.head.finish()
    ours = torch.stack(our_outputs(model, task, tokenizer, texts))
    assert_same(ours, training, "outputs after training is finished")
    folder = saved(tmp_path / "model", model, task, tokenizer)
    theirs = open_in_transformers(SEQUENCE, folder)
    assert_same(ours, theirs(**their_sequence_inputs(folder, theirs, texts)).logits, "logits")
    if task.labels:
        assert [theirs.config.id2label[number] for number in range(len(task.labels))] == list(task.labels)
    kinds = {"regression": "regression", "multi-label": "multi_label_classification"}
    assert theirs.config.problem_type == kinds.get(name)


@families
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("classification", None),
        ("regression", "regression"),
        ("regression", None),  # as of a cross-encoder: what sentence-transformers trains names no problem
        ("multi-label", "multi_label_classification"),
    ],
)
def test_a_sequence_head_of_transformers_opens_here(
    family: str, name: str, kind: str | None, tmp_path: Path
) -> None:
    tokenizer = small_tokenizer(family, tmp_path / "tokenizer")
    labels = ["score"] if name == "regression" else ["zeta", "alpha", "mu"]
    theirs = their_model(SEQUENCE, family, tokenizer, labels, problem_type=kind)
    theirs.save_pretrained(tmp_path / "theirs")
    tokenizer.save(tmp_path / "theirs")
    ours, task = load_task_model(tmp_path / "theirs")
    texts = random_texts(2, 5, pairs=True)
    assert task.name == name
    assert task.labels == (() if name == "regression" else tuple(labels))
    found = torch.stack(our_outputs(ours, task, tokenizer, texts))
    assert_same(found, theirs(**their_sequence_inputs(tmp_path / "theirs", theirs, texts)).logits, "logits")


def their_model(auto_class: Any, family: str, tokenizer: Any, labels: list[str], **settings: Any) -> Any:
    """A head of transformers over a random encoder of the same shape."""
    config = transformers.AutoConfig.for_model(
        "bert" if family == "jina_bert" else family,
        vocab_size=tokenizer.vocab_size,
        pad_token_id=tokenizer.pad_id,
        id2label=dict(enumerate(labels)),
        label2id={label: number for number, label in enumerate(labels)},
        max_position_embeddings=LENGTH + (2 if family in PADDED_FIRST else 0),
        **(
            {"dim": 24, "n_layers": 2, "n_heads": 3, "hidden_dim": 40}
            if family == "distilbert"
            else {
                "hidden_size": 24,
                "num_hidden_layers": 2,
                "num_attention_heads": 3,
                "intermediate_size": 40,
            }
        ),
        **({"type_vocab_size": 1} if family in ROBERTAS else {}),
        **(ALIBI if family == "jina_bert" else {}),
        **{key: value for key, value in settings.items() if value is not None},
    )
    return with_large_weights(auto_class.from_config(config, attn_implementation="eager"), 5)


@families
def test_a_sequence_head_has_dropout_where_theirs_has(family: str, tmp_path: Path) -> None:
    """A recipe's `dropout` goes to every one there is."""
    tokenizer = small_tokenizer(family, tmp_path / "tokenizer")
    task, _ = sequence_task("classification", random_texts(1, 6))
    ours = task.head(small_config(family, tokenizer))
    theirs = their_model(SEQUENCE, family, tokenizer, ["a", "b"])
    encoder = theirs.base_model_prefix
    outside = [module for name, module in theirs.named_modules() if not name.startswith(f"{encoder}.")]
    found = sum(isinstance(module, torch.nn.Dropout) for module in outside)
    # RoBERTa's head, and ELECTRA's after it, apply their only one twice
    twice = family in (*PADDED_FIRST, "electra")
    never = family == "deberta-v2"  # that of its pooler has a rate of its own, which is 0
    assert sum(isinstance(module, Dropout) for module in ours.modules()) == found + twice - never


@families
def test_a_saved_tagging_head_gives_the_same_logits_at_each_words_first_piece(
    family: str, tmp_path: Path
) -> None:
    tokenizer = small_tokenizer(family, tmp_path / "tokenizer")
    task, examples = tagging_task(4)
    model = new_model(task, small_config(family, tokenizer))
    folder = saved(tmp_path / "model", model, task, tokenizer)
    theirs = open_in_transformers(transformers.AutoModelForTokenClassification, folder)
    assert [theirs.config.id2label[number] for number in range(len(task.labels))] == list(task.labels)
    for example, ours in zip(
        examples, our_outputs(model, task, tokenizer, [e.words for e in examples]), strict=True
    ):
        inputs, firsts = their_words(folder, theirs, [example.words])
        assert_same(ours, theirs(**inputs).logits[0, firsts[0]], "logits")


@families
def test_a_tagging_head_of_transformers_opens_here(family: str, tmp_path: Path) -> None:
    tokenizer = small_tokenizer(family, tmp_path / "tokenizer")
    theirs = their_model(transformers.AutoModelForTokenClassification, family, tokenizer, TAGS)
    theirs.save_pretrained(tmp_path / "theirs")
    tokenizer.save(tmp_path / "theirs")
    ours, task = load_task_model(tmp_path / "theirs")
    assert (task.name, task.labels) == ("tagging", tuple(TAGS))
    words = ("bano", "deloss", "firu")
    inputs, firsts = their_words(tmp_path / "theirs", theirs, [words])
    (found,) = our_outputs(ours, task, tokenizer, [words])
    assert_same(found, theirs(**inputs).logits[0, firsts[0]], "logits")


@pytest.mark.parametrize("family", ANSWERING)
def test_a_saved_answer_head_gives_the_same_scores_of_passage_and_cls(family: str, tmp_path: Path) -> None:
    tokenizer = small_tokenizer(family, tmp_path / "tokenizer")
    task = make_task("question-answering", stride=4)
    model = new_model(task, small_config(family, tokenizer))
    folder = saved(tmp_path / "model", model, task, tokenizer)
    theirs = open_in_transformers(transformers.AutoModelForQuestionAnswering, folder)
    for pair in random_texts(5, 5, pairs=True):
        assert_same_scores(our_outputs(model, task, tokenizer, [pair])[0], theirs, folder, pair)


def assert_same_scores(ours: torch.Tensor, theirs: Any, folder: Path, pair: tuple[str, str]) -> None:
    batch = transformers.AutoTokenizer.from_pretrained(folder)(*pair)
    rows = [0, *(place for place, text in enumerate(batch.sequence_ids()) if text == 1)]
    scores = theirs(**their_inputs(folder, theirs, [pair[0]], [pair[1]]))
    assert_same(ours[:, 0], scores.start_logits[0, rows], "start scores")
    assert_same(ours[:, 1], scores.end_logits[0, rows], "end scores")


@pytest.mark.parametrize("family", ANSWERING)
def test_an_answer_head_of_transformers_opens_here(family: str, tmp_path: Path) -> None:
    tokenizer = small_tokenizer(family, tmp_path / "tokenizer")
    theirs = their_model(transformers.AutoModelForQuestionAnswering, family, tokenizer, ["a", "b"])
    theirs.save_pretrained(tmp_path / "theirs")
    tokenizer.save(tmp_path / "theirs")
    ours, task = load_task_model(tmp_path / "theirs")
    assert task.name == "question-answering"
    pair = random_texts(6, 1, pairs=True)[0]
    assert_same_scores(our_outputs(ours, task, tokenizer, [pair])[0], theirs, tmp_path / "theirs", pair)
