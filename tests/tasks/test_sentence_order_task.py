"""Sentence-order prediction: the pairs' head under its own names, in files, and measured on its own pairs."""

from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
import torch
from small_pretraining import small_config
from torch.nn import functional as F

from bertsmith.data.batch import PackedBatch
from bertsmith.data.masking import Masker, MaskingRates
from bertsmith.data.store import TokenStore
from bertsmith.data.stream import Cursor, PretrainingStream
from bertsmith.errors import InputError
from bertsmith.inference.masked_language import MaskedLanguageModel
from bertsmith.tasks.pretraining.objective_choices import ObjectiveChoices, ObjectiveName
from bertsmith.tasks.pretraining.objectives import OBJECTIVES, find_objective
from bertsmith.tasks.pretraining.pretraining import PretrainingModel, PretrainingTask
from bertsmith.tasks.pretraining.pretraining_checkpoint import load_pretraining_model, save_pretraining_model
from bertsmith.text.tokens.tokenizer import Tokenizer


def small_model(tokenizer: Tokenizer, sentence_order: bool = True) -> PretrainingModel:
    torch.manual_seed(1)
    model = PretrainingModel(small_config(tokenizer), sentence_order=sentence_order)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.3)
    return model.eval()


def small_task(store: TokenStore, tokenizer: Tokenizer) -> PretrainingTask:
    stream = PretrainingStream(store, tokenizer, 3, True, 48, 480, sentence_order=True)
    masker = Masker(tokenizer, MaskingRates())
    return PretrainingTask(small_model(tokenizer), [stream], masker, stream, 4000, torch.device("cpu"))


def test_the_loss_is_torchs_cross_entropy_of_whether_a_pair_is_swapped(
    store: TokenStore, tokenizer: Tokenizer
) -> None:
    task = small_task(store, tokenizer)
    sequences = next(iter(task.batches(Cursor()))).sequences
    losses, counts = task.loss(sequences), task.counts(sequences)
    assert losses.keys() == counts.keys() == {"mlm", "sop"}
    batch = PackedBatch.of(sequences)
    masked = task.masker.draw(sequences, batch)
    states = task.model.encoder(replace(batch, token_ids=masked.token_ids))
    logits = task.model.next_sentence_logits(states[batch.first_rows])
    expected = F.cross_entropy(logits, torch.from_numpy(sequences.labels), reduction="sum")
    assert float(losses["sop"].detach()) == pytest.approx(float(expected.detach()), rel=1e-5)
    assert counts["sop"] == len(sequences)
    figures = task.evaluate(0, 1, lambda sums: sums)
    assert {name for name in figures if not name.startswith("mlm")} == {
        *("sop_loss", "sop_accuracy", "sop_majority")
    }
    assert 0.5 <= figures["sop_majority"] < 0.7


def test_a_saved_model_says_which_question_its_head_answers(
    store: TokenStore, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    save_pretraining_model(tmp_path / "order", small_model(tokenizer), tokenizer, {})
    again, notes = load_pretraining_model(tmp_path / "order")
    assert again.sentence_order and notes == ()
    figures = MaskedLanguageModel.load(tmp_path / "order", "cpu").evaluate(store.path.parent, 2000, 48)
    assert "sop_accuracy" in figures and "nsp_accuracy" not in figures
    save_pretraining_model(tmp_path / "next", small_model(tokenizer, False), tokenizer, {})
    assert not load_pretraining_model(tmp_path / "next")[0].sentence_order


def test_every_name_that_a_recipe_may_give_is_an_objective() -> None:
    assert tuple(OBJECTIVES) == get_args(ObjectiveName)
    assert all(objective.name == name for name, objective in OBJECTIVES.items())


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("no_such_module:Mine", "The objective 'no_such_module:Mine' can't be imported: No module named"),
        ("pathlib:Path", "'pathlib:Path' is not a subclass of .*PretrainingObjective"),
    ],
)
def test_an_own_objective_that_is_none_is_one_sentence(name: str, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        find_objective(name)


def test_going_on_with_the_other_question_begins_with_a_new_head(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    old = small_model(tokenizer, sentence_order=False)
    save_pretraining_model(tmp_path / "next", old, tokenizer, {})
    objective = OBJECTIVES["sentence-order"]
    choices = ObjectiveChoices(next_sentence=True)
    model, notes = objective.load(tmp_path / "next", choices)
    assert model.sentence_order
    assert any("has no sentence-order head: starting from random weights there" in note for note in notes)
    assert not torch.equal(model.next_sentence.weight, old.next_sentence.weight)  # type: ignore[union-attr]
    assert torch.equal(model.encoder.pooler.weight, old.encoder.pooler.weight)  # type: ignore[union-attr]
    same, notes = OBJECTIVES["masked-language"].load(tmp_path / "next", choices)
    assert notes == () and torch.equal(same.next_sentence.weight, old.next_sentence.weight)
