"""Filling masks: a distribution over the vocabulary for each mask, in order; errors say what can't be."""

import shutil
from pathlib import Path

import pytest
import torch
from small_pretraining import small_config
from small_tasks import joined_by

from bertsmith.data.batch import PackedBatch
from bertsmith.data.store import TokenStore
from bertsmith.errors import InputError
from bertsmith.tasks.pretraining.fill_mask import MaskCandidate, fill_mask, masked_examples
from bertsmith.tasks.pretraining.pretraining import PretrainingModel
from bertsmith.text.tokens.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def model(tokenizer: Tokenizer) -> PretrainingModel:
    return with_random_weights(PretrainingModel(small_config(tokenizer)))


def with_random_weights(model: PretrainingModel) -> PretrainingModel:
    torch.manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.3)
    return model


def plainly(model: PretrainingModel, ids: list[int], place: int) -> torch.Tensor:
    """(V,) probabilities at one place of one sequence."""
    tokens = torch.tensor(ids).numpy()
    batch = PackedBatch.pack(tokens, tokens * 0, torch.tensor([len(ids)]).numpy())
    model.eval()
    with torch.no_grad():
        return model.vocabulary_logits(model.encoder(batch))[place].double().softmax(0)


def test_candidates_are_the_models_distribution_best_first(
    model: PretrainingModel, tokenizer: Tokenizer
) -> None:
    (candidates,) = fill_mask(model, tokenizer, "bano delo [MASK].", top=tokenizer.vocab_size)
    ids = [tokenizer.token_to_id(t) for t in ("[CLS]", "bano", "delo", "[MASK]", ".", "[SEP]")]
    expected = plainly(model, ids, 3)
    assert sum(candidate.probability for candidate in candidates) == pytest.approx(1.0, abs=1e-5)
    assert {candidate.token for candidate in candidates} == set(tokenizer.pieces)
    for candidate in candidates:
        place = tokenizer.token_to_id(candidate.token)
        assert candidate.probability == pytest.approx(float(expected[place]), rel=1e-4)
    probabilities = [candidate.probability for candidate in candidates]
    assert probabilities == sorted(probabilities, reverse=True)
    assert fill_mask(model, tokenizer, "bano delo [MASK].", top=3) == [candidates[:3]]
    assert len(fill_mask(model, tokenizer, "bano delo [MASK].")[0]) == 5


def test_masks_stand_between_the_tokenizers_own_special_tokens(
    model: PretrainingModel, tokenizer: Tokenizer
) -> None:
    (candidates,) = fill_mask(
        model, joined_by(tokenizer, "[CLS] [PAD]", "[SEP]", "[SEP]"), "bano [MASK].", top=1
    )
    ids = [tokenizer.token_to_id(t) for t in ("[CLS]", "[PAD]", "bano", "[MASK]", ".", "[SEP]")]
    assert candidates[0].probability == pytest.approx(float(plainly(model, ids, 3).max()), rel=1e-4)


def test_rows_without_a_piece_are_no_candidates(tokenizer: Tokenizer) -> None:
    """Of a model whose table is padded to a multiple of 64."""
    config = small_config(tokenizer)
    wider = config.model_copy(update={"vocab_size": config.vocab_size + 40})
    model = with_random_weights(PretrainingModel(wider))
    (candidates,) = fill_mask(model, tokenizer, "bano delo [MASK].", top=tokenizer.vocab_size)
    assert {candidate.token for candidate in candidates} == set(tokenizer.pieces)
    assert sum(candidate.probability for candidate in candidates) == pytest.approx(1.0, abs=1e-5)


def test_several_masks_are_filled_in_order_while_the_others_stay_masked(
    model: PretrainingModel, tokenizer: Tokenizer
) -> None:
    rows = fill_mask(model, tokenizer, "[MASK] delo [MASK] [MASK]", top=1)
    ids = [tokenizer.token_to_id(t) for t in ("[CLS]", "[MASK]", "delo", "[MASK]", "[MASK]", "[SEP]")]
    assert [tokenizer.token_to_id(row[0].token) for row in rows] == [
        int(plainly(model, ids, place).argmax()) for place in (1, 3, 4)
    ]


@pytest.mark.parametrize("training", [True, False])
def test_dropout_is_off_while_filling_and_as_before_afterwards(
    model: PretrainingModel, tokenizer: Tokenizer, training: bool
) -> None:
    model.train(training)
    first, second = (fill_mask(model, tokenizer, "bano [MASK] delo") for _ in range(2))
    assert first == second
    assert model.training == training


@pytest.mark.parametrize("text", ["bano delo.", "", "bano mask", "bano <mask>"])
def test_a_text_without_mask_is_an_error_that_shows_how(
    model: PretrainingModel, tokenizer: Tokenizer, text: str
) -> None:
    with pytest.raises(InputError, match=r"no \[MASK\].*Put \[MASK\] where"):
        fill_mask(model, tokenizer, text)


def test_the_longest_text_is_read_and_one_more_token_is_an_error(
    model: PretrainingModel, tokenizer: Tokenizer
) -> None:
    """64 positions, two of them for [CLS] and [SEP]."""
    assert len(fill_mask(model, tokenizer, "[MASK]" + " bano" * 61)) == 1
    with pytest.raises(InputError, match=r"65 tokens.*at most 64"):
        fill_mask(model, tokenizer, "[MASK]" + " bano" * 62)


@pytest.mark.parametrize("top", [0, -1])
def test_less_than_one_candidate_is_an_error(model: PretrainingModel, tokenizer: Tokenizer, top: int) -> None:
    with pytest.raises(InputError, match=rf"at least one candidate.*top = {top}"):
        fill_mask(model, tokenizer, "bano [MASK]", top=top)


def test_robertas_mask_takes_the_blank_before_it(shared_data: Path, tmp_path: Path) -> None:
    """Its words begin with their blank, so the mask of a word stands for the blank too."""
    for name in ("vocab.json", "merges.txt"):
        shutil.copy(shared_data / "vocab" / f"roberta-{name}", tmp_path / name)
    roberta = Tokenizer.load(tmp_path)
    config = small_config(roberta, "roberta").model_copy(update={"hidden_size": 4, "intermediate_size": 4})
    model = with_random_weights(PretrainingModel(config))
    (candidates,) = fill_mask(model, roberta, "The capital of France is <mask>.", top=roberta.vocab_size)
    assert sum(candidate.probability for candidate in candidates) == pytest.approx(1.0, abs=1e-4)
    words = roberta.encode("The capital of France is").ids
    ids = [roberta.cls_id, *words, roberta.mask_id, *roberta.encode(".").ids, roberta.sep_id]
    best = int(plainly(model, ids, 1 + len(words)).argmax())
    assert candidates[0].token == roberta.id_to_token(best)
    with pytest.raises(InputError, match="no <mask>"):
        fill_mask(model, roberta, "The capital of France is [MASK].")


def test_examples_are_whole_words_of_the_text_that_fit_back(store: TokenStore, tokenizer: Tokenizer) -> None:
    examples = masked_examples(store, tokenizer, 8, 64)
    texts = {
        tokenizer.decode(store.tokens[start:end].tolist())
        for start, end in zip(store.sentence_starts, store.sentence_starts[1:], strict=False)
    }
    assert len(examples) == 8 and len(set(examples)) == 8
    for text, answer in examples:
        assert text.count("[MASK]") == 1 and len(answer) >= 4 and answer.isalpha()
        restored = tokenizer.encode(text.replace("[MASK]", answer)).ids
        assert tokenizer.decode(restored) in texts
        assert 8 <= len(restored) <= 24
    assert masked_examples(store, tokenizer, 8, 64) == examples
    assert masked_examples(store, tokenizer, 8, 64, seed=1) != examples


def test_examples_can_be_filled(store: TokenStore, tokenizer: Tokenizer, model: PretrainingModel) -> None:
    for text, _ in masked_examples(store, tokenizer, 8, 64):
        ((first, *_),) = fill_mask(model, tokenizer, text)
        assert isinstance(first, MaskCandidate) and 0 < first.probability < 1


def test_examples_are_no_longer_than_the_model_reads(store: TokenStore, tokenizer: Tokenizer) -> None:
    examples = masked_examples(store, tokenizer, 8, longest=11)
    lengths = [2 + len(tokenizer.encode(text, read_special_tokens=True).ids) for text, _ in examples]
    assert len(lengths) == 8 and set(lengths) == {10, 11}
    assert masked_examples(store, tokenizer, 8, longest=9) == []
