"""One step of fine-tuning: the same loss and gradients as transformers', of every parameter."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from head_parity import (
    ANSWERING,
    FAMILIES,
    make_task,
    new_model,
    open_in_transformers,
    our_step,
    random_texts,
    saved,
    sequence_task,
    small_config,
    small_tokenizer,
    tagging_task,
    their_gradients,
    their_inputs,
    their_sequence_inputs,
    their_words,
)
from model_parity import assert_same
from torch.nn import functional as F

from bertsmith.text.labelled.squad import SquadQuestion

families = pytest.mark.parametrize("family", FAMILIES)
SEQUENCE = transformers.AutoModelForSequenceClassification


def assert_same_gradients(found: dict[str, Any], wanted: dict[str, Any], scale: Any = 1.0) -> None:
    assert found.keys() == wanted.keys()
    for name, gradient in wanted.items():
        factor = scale(name) if callable(scale) else scale
        assert_same(found[name], gradient * factor, f"gradient of {name}")


@families
@pytest.mark.parametrize("name", ["classification", "multi-label"])
def test_loss_and_gradients_of_a_step_over_classes(family: str, name: str, tmp_path: Path) -> None:
    tokenizer = small_tokenizer(family, tmp_path / "tokenizer")
    texts = random_texts(7, 6, pairs=True)
    task, examples = sequence_task(name, texts)
    model = new_model(task, small_config(family, tokenizer))
    folder = saved(tmp_path / "model", model, task, tokenizer)
    theirs = open_in_transformers(SEQUENCE, folder)
    targets = np.stack([task.target(example.label) for example in examples])  # type: ignore[attr-defined]
    labels = torch.from_numpy(targets.astype(np.float32 if name == "multi-label" else np.int64))
    loss = theirs(**their_sequence_inputs(folder, theirs, texts), labels=labels).loss
    ours, gradients = our_step(model, task, tokenizer, examples)
    assert_same(ours, loss, "loss")
    assert_same_gradients(gradients, their_gradients(theirs, loss))


@families
def test_loss_and_gradients_of_a_step_over_numbers(family: str, tmp_path: Path) -> None:
    """Ours count in deviations d of the labels: the loss is theirs / d², and the last layer, which answers in
    deviations too, has theirs / d.
    """
    tokenizer = small_tokenizer(family, tmp_path / "tokenizer")
    texts = random_texts(8, 6)
    task, examples = sequence_task("regression", texts)
    model = new_model(task, small_config(family, tokenizer))
    ours, gradients = our_step(model, task, tokenizer, examples)
    model.head.finish()
    folder = saved(tmp_path / "model", model, task, tokenizer)
    theirs = open_in_transformers(SEQUENCE, folder)
    labels = torch.tensor([example.label for example in examples])
    loss = theirs(**their_sequence_inputs(folder, theirs, texts), labels=labels).loss
    deviation = float(np.std([example.label for example in examples]))
    assert_same(ours, loss / deviation**2, "loss")
    last = f"{model.head.file_names['out']}."
    assert_same_gradients(
        gradients,
        their_gradients(theirs, loss),
        lambda name: 1 / deviation if name.startswith(last) else 1 / deviation**2,
    )


@families
def test_loss_and_gradients_of_a_step_over_words(family: str, tmp_path: Path) -> None:
    tokenizer = small_tokenizer(family, tmp_path / "tokenizer")
    task, examples = tagging_task(9)
    model = new_model(task, small_config(family, tokenizer))
    folder = saved(tmp_path / "model", model, task, tokenizer)
    theirs = open_in_transformers(transformers.AutoModelForTokenClassification, folder)
    inputs, firsts = their_words(folder, theirs, [example.words for example in examples])
    labels = torch.full_like(inputs["input_ids"], -100)
    for row, (places, example) in enumerate(zip(firsts, examples, strict=True)):
        labels[row, places] = torch.tensor([task.labels.index(tag) for tag in example.tags])
    loss = theirs(**inputs, labels=labels).loss
    ours, gradients = our_step(model, task, tokenizer, examples)
    assert_same(ours, loss, "loss")
    assert_same_gradients(gradients, their_gradients(theirs, loss))


@pytest.mark.parametrize("family", ANSWERING)
def test_loss_and_gradients_of_a_step_over_answers(family: str, tmp_path: Path) -> None:
    """Ours choose among [CLS] and the passage: theirs do once their other positions are masked."""
    tokenizer = small_tokenizer(family, tmp_path / "tokenizer")
    task = make_task("question-answering")
    pairs = random_texts(10, 6, pairs=True)
    examples = [SquadQuestion("", q, p, (), impossible=True) for q, p in pairs[:2]]
    examples += [SquadQuestion("", q, p, ((p.split()[-1], p.rindex(p.split()[-1])),)) for q, p in pairs[2:]]
    model = new_model(task, small_config(family, tokenizer))
    folder = saved(tmp_path / "model", model, task, tokenizer)
    theirs = open_in_transformers(transformers.AutoModelForQuestionAnswering, folder)
    loss = their_masked_loss(theirs, folder, examples)
    ours, gradients = our_step(model, task, tokenizer, examples)
    assert_same(ours, loss, "loss")
    assert_same_gradients(gradients, their_gradients(theirs, loss))


def their_masked_loss(theirs: Any, folder: Path, examples: list[SquadQuestion]) -> torch.Tensor:
    """Mean over questions of half the cross-entropy of start and of end, by character offsets."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    total = torch.zeros(())
    for example in examples:
        batch = tokenizer(example.question, example.passage)
        allowed = torch.tensor([place == 0 or text == 1 for place, text in enumerate(batch.sequence_ids())])
        start = end = 0
        if example.answers:
            text, at = example.answers[0]
            start, end = batch.char_to_token(0, at, 1), batch.char_to_token(0, at + len(text) - 1, 1)
        scores = theirs(**their_inputs(folder, theirs, [example.question], [example.passage]))
        for logits, gold in ((scores.start_logits, start), (scores.end_logits, end)):
            masked = logits.masked_fill(~allowed, -torch.inf)
            total = total + F.cross_entropy(masked, torch.tensor([gold])) / 2
    return total / len(examples)
