"""The pre-training task against plain torch: losses, counts, metrics, shares of ranks, operations."""

import math
from collections import Counter
from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from small_pretraining import filler_operations, small_config, small_task
from torch import Tensor
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from bertsmith.data.batch import PackedBatch, Sequences, split
from bertsmith.data.masking import IGNORED, Masker, MaskingRates
from bertsmith.data.store import TokenStore
from bertsmith.data.stream import Cursor
from bertsmith.data.tokenizing import tokenize_corpus
from bertsmith.tasks.pretraining.masked_task import most_frequent_piece
from bertsmith.tasks.pretraining.pretraining import PretrainingModel, PretrainingTask, start_at_frequencies
from bertsmith.tasks.pretraining.pretraining_checkpoint import load_pretraining_model, save_pretraining_model
from bertsmith.text.corpus.building import build_corpus
from bertsmith.text.corpus_settings import CorpusSettings
from bertsmith.text.tokens.tokenizer import Tokenizer

families = pytest.mark.parametrize("family", ["bert", "roberta", "distilbert"])
each_masking = pytest.mark.parametrize("whole_words", [False, True], ids=["pieces", "words"])


def first_sequences(task: PretrainingTask) -> Sequences:
    return next(iter(task.batches(Cursor()))).sequences


def logits_and_labels(task: PretrainingTask, sequences: Sequences) -> dict[str, tuple[Tensor, Tensor]]:
    """Plainly: the vocabulary's logits of every row, labels with -100 where nothing is predicted."""
    batch = PackedBatch.of(sequences)
    masked = task.masker.draw(sequences, batch)
    labels = torch.full_like(batch.token_ids, IGNORED)
    labels[masked.positions] = masked.labels
    model = task.model
    hidden_states = model.encoder(replace(batch, token_ids=masked.token_ids))
    head = model.masked_language
    transformed = head.norm(head.activation(head.dense(hidden_states)))
    found = {"mlm": (transformed @ model.encoder.embeddings.token.weight.T + head.bias, labels)}
    if model.next_sentence is not None:
        pooler = model.encoder.pooler
        pooled = torch.stack([rows[0] for rows in hidden_states.split(batch.lengths)])
        found["nsp"] = (
            model.next_sentence(torch.tanh(pooled @ pooler.weight.T + pooler.bias)),
            torch.from_numpy(sequences.labels),
        )
    return found


@families
@each_masking
def test_the_loss_is_torchs_cross_entropy_and_its_gradient(
    store: TokenStore, tokenizer: Tokenizer, family: str, whole_words: bool
) -> None:
    task = small_task(store, tokenizer, family=family, whole_words=whole_words)
    task.model.eval()  # no dropout: both sides see the same network
    sequences = first_sequences(task)
    losses, parameters = task.loss(sequences), list(task.model.parameters())
    plain = {
        name: F.cross_entropy(logits, labels, reduction="sum", ignore_index=IGNORED)
        for name, (logits, labels) in logits_and_labels(task, sequences).items()
    }
    assert losses.keys() == plain.keys() == task.counts(sequences).keys()
    assert ("nsp" in losses) == (family == "bert")
    for name, loss in losses.items():
        assert loss.item() == pytest.approx(plain[name].item(), rel=1e-5)
        for found, expected in zip(
            torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True),
            torch.autograd.grad(plain[name], parameters, retain_graph=True, allow_unused=True),
            strict=True,
        ):
            assert (found is None) == (expected is None)
            if found is not None:
                torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@each_masking
def test_counts_are_the_labels_and_the_sequences(
    store: TokenStore, tokenizer: Tokenizer, whole_words: bool
) -> None:
    task = small_task(store, tokenizer, whole_words=whole_words)
    for batch in islice(task.batches(Cursor()), 10):
        labels = logits_and_labels(task, batch.sequences)["mlm"][1]
        expected = {"mlm": int((labels != IGNORED).sum()), "nsp": len(batch.sequences)}
        assert task.counts(batch.sequences) == expected


@each_masking
def test_micro_batches_add_up_to_the_global_batch(
    store: TokenStore, tokenizer: Tokenizer, whole_words: bool
) -> None:
    task = small_task(store, tokenizer, whole_words=whole_words)
    task.model.eval()
    sequences = first_sequences(task)
    parts = [part for share in split(sequences, 2, 100) for part in share]
    assert len(parts) > 4
    whole, counts = task.loss(sequences), task.counts(sequences)
    losses = [task.loss(part) for part in parts]
    for name, loss in whole.items():
        assert sum(task.counts(part)[name] for part in parts) == counts[name]
        assert sum(part[name].item() for part in losses) == pytest.approx(loss.item(), rel=1e-5)


def test_a_sample_of_the_vocabulary_is_for_training_alone(store: TokenStore, tokenizer: Tokenizer) -> None:
    """Each place has its own; held-out figures are of all pieces, the products counted of the sample."""
    whole = small_task(store, tokenizer)
    sampled = replace(whole, sampled_pieces=8, seed=2)
    whole.model.eval()
    sequences = first_sequences(whole)
    sampled.prepare_step(Cursor(), 0.0)
    first = sampled.loss(sequences)
    sampled.prepare_step(Cursor(offset=1), 0.0)
    second = sampled.loss(sequences)
    assert len({each["mlm"].item() for each in (whole.loss(sequences), first, second)}) == 3
    assert first["nsp"] == second["nsp"] == whole.loss(sequences)["nsp"]
    assert sampled.metrics(sampled.sum_heldout(0, 1)) == whole.metrics(whole.sum_heldout(0, 1))
    hidden, masked = whole.model.config.hidden_size, whole.host_masker.count(sequences)
    saved = 3 * 2 * masked * hidden * (tokenizer.vocab_size - 8)
    assert whole.flops(sequences) - sampled.flops(sequences) == saved


@each_masking
@pytest.mark.parametrize("decayed", [0.0, 0.4, 1.0])
def test_counts_losses_and_operations_are_of_the_decays_masks_and_evaluation_is_not(
    store: TokenStore, tokenizer: Tokenizer, whole_words: bool, decayed: float
) -> None:
    task = small_task(store, tokenizer, whole_words=whole_words)
    plain = task.metrics(task.sum_heldout(0, 1))
    rates = MaskingRates(mask_rate=0.5, whole_words=whole_words, final_mask_rate=0.1)
    task = replace(task, masker=Masker(tokenizer, rates))
    task.prepare_step(Cursor(), 0.9)
    followed = task.prepare_step(Cursor(), decayed)  # as after going back
    assert followed == {"mask_rate": pytest.approx(0.5 - 0.4 * decayed)}
    sequences = first_sequences(task)
    fixed = replace(
        task, masker=Masker(tokenizer, MaskingRates(followed["mask_rate"], whole_words=whole_words))
    )
    assert fixed.prepare_step(Cursor(), decayed) == {}
    assert task.counts(sequences) == fixed.counts(sequences)
    assert task.flops(sequences) == fixed.flops(sequences)
    for each in (task, fixed):
        each.model.eval()
    assert task.loss(sequences)["mlm"] == fixed.loss(sequences)["mlm"]
    assert task.metrics(task.sum_heldout(0, 1)) == plain


@torch.no_grad()
def test_metrics_are_plain_means_over_the_heldout_sample(store: TokenStore, tokenizer: Tokenizer) -> None:
    task = small_task(store, tokenizer)
    task.model.eval()
    logits: dict[str, list[Tensor]] = {"mlm": [], "nsp": []}
    truth: dict[str, list[Tensor]] = {"mlm": [], "nsp": []}
    tokens = 0
    for batch in task.batches(Cursor()):
        if tokens >= task.heldout_tokens:
            break
        tokens += len(batch.sequences.token_ids)
        for name, (scores, labels) in logits_and_labels(task, batch.sequences).items():
            logits[name].append(scores[labels != IGNORED])
            truth[name].append(labels[labels != IGNORED])
    expected = {}
    for name in logits:
        scores, labels = torch.cat(logits[name]), torch.cat(truth[name])
        expected[f"{name}_loss"] = float(F.cross_entropy(scores, labels))
        expected[f"{name}_accuracy"] = float((scores.argmax(1) == labels).double().mean())
    expected["mlm_perplexity"] = math.exp(expected["mlm_loss"])
    ((piece, _),) = Counter(store.tokens.tolist()).most_common(1)
    expected["mlm_majority"] = float((torch.cat(truth["mlm"]) == piece).double().mean())
    random_ones = float(torch.cat(truth["nsp"]).double().mean())
    expected["nsp_majority"] = max(random_ones, 1 - random_ones)
    assert task.metrics(task.sum_heldout(0, 1)) == pytest.approx(expected, rel=1e-5)


@families
def test_evaluation_repeats_exactly_and_leaves_training_alone(
    store: TokenStore, tokenizer: Tokenizer, family: str
) -> None:
    """With dropout on before and after, and none in between."""
    task = small_task(store, tokenizer, family=family)
    task.model.train()
    state = torch.get_rng_state()
    first, second = task.sum_heldout(0, 1), task.sum_heldout(0, 1)
    assert first == second
    assert task.model.training and all(module.training for module in task.model.modules())
    assert torch.equal(torch.get_rng_state(), state)
    assert all(parameter.grad is None for parameter in task.model.parameters())


@pytest.mark.parametrize("ranks", [2, 3, 50])
def test_the_ranks_shares_of_the_evaluation_add_up(
    store: TokenStore, tokenizer: Tokenizer, ranks: int
) -> None:
    """Also with more ranks than batches: those have nothing to add."""
    task = small_task(store, tokenizer)
    alone = task.sum_heldout(0, 1)
    shares = [task.sum_heldout(rank, ranks) for rank in range(ranks)]
    assert {tuple(share) for share in shares} == {tuple(alone)}
    for name, value in alone.items():
        assert sum(share[name] for share in shares) == pytest.approx(value, rel=1e-9)


def test_without_heldout_text_there_is_nothing_to_say(store: TokenStore, tokenizer: Tokenizer) -> None:
    task = replace(small_task(store, tokenizer), heldout=None)
    assert task.metrics(task.sum_heldout(0, 1)) == {}


def test_a_heldout_text_smaller_than_a_batch_is_read_once(store: TokenStore, tokenizer: Tokenizer) -> None:
    """Its figures would otherwise count each sequence several times, and as one of other masks."""
    task = small_task(store, tokenizer)
    wide = replace(task.streams[0], batch_tokens=10**6)
    once = sum(len(batch.sequences) for batch in task.streams[0].batches(Cursor(), last_epoch=0))
    assert replace(task, heldout=wide, heldout_tokens=10**9).sum_heldout(0, 1)["nsp_count"] == once


def test_the_most_frequent_piece_is_one_that_can_be_a_label(tmp_path: Path) -> None:
    """In a text of unknown words [UNK] is the most frequent, but it is never masked."""
    tokenizer = Tokenizer.from_pieces(
        ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "known", "."], lowercase=True
    )
    (tmp_path / "text").mkdir()
    for number in range(20):
        (tmp_path / "text" / f"{number}.txt").write_text(
            f"Known strange{number} odd{number} rare. Known new. "
        )
    settings = CorpusSettings(heldout=0.1, near_duplicates=False)
    corpus = build_corpus([str(tmp_path / "text")], tmp_path / "corpus", settings=settings, workers=1)
    tokenize_corpus(corpus, tokenizer, tmp_path / "store")
    store = TokenStore.open(tmp_path / "store" / "train", tokenizer)
    assert np.bincount(store.tokens).argmax() == tokenizer.unk_id
    assert most_frequent_piece(store, tokenizer) == tokenizer.token_to_id("known")


def test_the_heldout_sample_is_the_first_tokens_of_one_pass(store: TokenStore, tokenizer: Tokenizer) -> None:
    """Batches of at most 480 tokens until the sample is reached, or the text ends."""
    task = small_task(store, tokenizer)
    some = task.sum_heldout(0, 1)
    everything = replace(task, heldout_tokens=10**9).sum_heldout(0, 1)
    assert 0.15 * 0.9 * 4000 < some["mlm_count"] < 0.15 * 1.1 * (4000 + 480)
    assert everything["mlm_count"] < 0.15 * 1.1 * len(store.tokens) * 1.5  # pairs read some text twice
    assert everything["mlm_count"] > 0.15 * 0.8 * len(store.tokens)


@families
def test_operations_are_those_that_torch_counts(store: TokenStore, tokenizer: Tokenizer, family: str) -> None:
    """A step's matrix products, forward and backward, counted by torch as they run.

    Left out on purpose: the pooler and the next-sentence head, one row a sequence, and padding.
    """
    task = small_task(store, tokenizer, family=family)
    sequences, hidden = first_sequences(task), task.model.config.hidden_size
    task.model.train()  # with dropout on, attention is plain products, which the counter sees
    with FlopCounterMode(display=False) as counter:
        torch.stack(list(task.loss(sequences).values())).sum().backward()
    pooled = 3 * 2 * len(sequences) * hidden * (hidden + 2) if family == "bert" else 0
    masked = int(task.host_masker.count(sequences))
    padding = filler_operations(task.model.config, sequences, masked)
    assert task.flops(sequences) == counter.get_total_flops() - pooled - padding


def test_operations_by_hand(store: TokenStore, tokenizer: Tokenizer) -> None:
    """H 16, 4 H² + 2 · 16 · 32 weights a layer; lengths 5 and 9; one masked token each."""
    task = small_task(store, tokenizer)
    ids = np.full(14, tokenizer.token_to_id("."), np.int64)
    sequences = Sequences(
        ids, np.zeros_like(ids), np.array([5, 9]), np.array([1, 2], np.uint64), np.zeros(2, np.int64)
    )
    attention = 14 * 2 * 3 * 16 * 16 + (25 + 81) * 2 * 2 * 16
    after_attention = 2 * (16 * 16 + 2 * 16 * 32)  # a row
    read = 2 + 2  # first tokens and masked ones: all the last layer computes after its attention
    head = 2 * 2 * 16 * (16 + tokenizer.vocab_size)
    assert task.flops(sequences) == 3 * (2 * attention + (14 + read) * after_attention + head)


def test_the_model_has_what_its_tasks_train_and_no_more(tokenizer: Tokenizer) -> None:
    for family, next_sentence in (("bert", True), ("roberta", False), ("distilbert", False)):
        model = PretrainingModel(small_config(tokenizer, family))
        assert (model.next_sentence is not None) == (model.encoder.pooler is not None) == next_sentence
    bare = PretrainingModel(small_config(tokenizer), next_sentence=False)
    assert bare.next_sentence is None and bare.encoder.pooler is None
    with pytest.raises(ValueError, match="no next-sentence head"):
        bare.next_sentence_logits(torch.zeros(2, 16))


def test_an_untrained_model_guesses_evenly(store: TokenStore, tokenizer: Tokenizer) -> None:
    """The loss begins at ln V and ln 2: the published initialisation, and a sum that is divided rightly."""
    torch.manual_seed(0)
    task = replace(small_task(store, tokenizer), model=PretrainingModel(small_config(tokenizer)))
    metrics = task.metrics(task.sum_heldout(0, 1))
    assert metrics["mlm_loss"] == pytest.approx(math.log(tokenizer.vocab_size), abs=0.05)
    assert metrics["nsp_loss"] == pytest.approx(math.log(2), abs=0.02)


def test_an_untrained_vocabulary_bias_starts_at_the_pieces_log_frequencies(
    store: TokenStore, tokenizer: Tokenizer
) -> None:
    model = PretrainingModel(small_config(tokenizer))
    start_at_frequencies(model.masked_language, store, tokenizer)
    counts = Counter(store.tokens.tolist())
    usual = [piece for piece, _ in counts.most_common() if piece not in tokenizer.special_ids][:5]
    bias = model.masked_language.bias.detach()
    for common, rarer in pairwise(usual):
        expected = math.log(counts[common] + 1) - math.log(counts[rarer] + 1)
        assert float(bias[common] - bias[rarer]) == pytest.approx(expected, abs=1e-5)
    assert float(bias.mean()) == pytest.approx(0, abs=1e-5)


def test_a_trained_heads_bias_stays_even_if_it_is_zero(
    store: TokenStore, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    model = PretrainingModel(small_config(tokenizer))
    save_pretraining_model(tmp_path / "model", model, tokenizer, {})
    head = load_pretraining_model(tmp_path / "model", allow_new_heads=True)[0].masked_language
    assert not head.bias.any()  # as of families that are trained without one
    start_at_frequencies(head, store, tokenizer)
    assert not head.bias.any()
