"""Replaced-token detection: what is put in, what counts as replaced, counts, figures, operations."""

from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from small_pretraining import filler_operations
from torch.utils.flop_counter import FlopCounterMode

from bertsmith.data.batch import PackedBatch, Sequences, concatenate, split
from bertsmith.data.masking import Masker, MaskingRates
from bertsmith.data.store import TokenStore
from bertsmith.data.stream import Cursor, PretrainingStream
from bertsmith.data.tokenizing import tokenize_corpus
from bertsmith.errors import ModelError
from bertsmith.model.config import BertConfig, make_config, preset
from bertsmith.planning.cost import flops_by_part
from bertsmith.planning.workload import StepAmounts
from bertsmith.tasks.checkpoints.infer_task import model_kind
from bertsmith.tasks.pretraining.pretraining_checkpoint import (
    load_pretraining_model,
    load_replaced_token_model,
    save_replaced_token_model,
)
from bertsmith.tasks.pretraining.replaced_tokens import (
    ReplacedTokenModel,
    ReplacedTokenTask,
    generator_config,
    sample_pieces,
)
from bertsmith.text.corpus.building import build_corpus
from bertsmith.text.tokens.tokenizer import Tokenizer


def small_config(tokenizer: Tokenizer) -> BertConfig:
    values = {
        "model_type": "electra",
        "vocab_size": tokenizer.vocab_size,
        "hidden_size": 16,
        "embedding_size": 12,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "max_position_embeddings": 64,
    }
    return make_config(values, "test")


def small_task(store: TokenStore, tokenizer: Tokenizer, **rates: object) -> ReplacedTokenTask:
    torch.manual_seed(1)
    config = small_config(tokenizer)
    model = ReplacedTokenModel(config, generator_config(config, 0.5))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.3)
    stream = PretrainingStream(store, tokenizer, 3, False, 48, 480)
    masker = Masker(tokenizer, MaskingRates(**rates))  # type: ignore[arg-type]
    return ReplacedTokenTask(model, [stream], masker, stream, 4000, torch.device("cpu"), weight=20.0)


def first_sequences(task: ReplacedTokenTask) -> Sequences:
    return next(iter(task.batches(Cursor()))).sequences


def test_pieces_are_drawn_as_the_softmax_says() -> None:
    """Chi-square over 20,000 positions of the same scores."""
    weight, bias = torch.zeros(6, 1), torch.tensor([0.0, 1.0, -1.0, 2.0, 0.5, -3.0])
    places = torch.from_numpy(np.random.default_rng(0).random(20_000))
    found = sample_pieces(torch.zeros(20_000, 1), weight, bias, places).bincount(minlength=6)
    expected = bias.double().softmax(0) * 20_000
    assert stats.chisquare(found.numpy(), expected.numpy()).pvalue > 1e-3


def test_the_ends_of_the_distribution_are_pieces_too() -> None:
    weight, bias = torch.zeros(3, 1), torch.tensor([-1000.0, 0.0, -1000.0])
    places = torch.tensor([0.0, 0.5, 1 - 2**-53], dtype=torch.float64)
    assert sample_pieces(torch.zeros(3, 1), weight, bias, places).tolist() == [1, 1, 1]


def test_what_is_put_in_depends_on_key_and_place_only(store: TokenStore, tokenizer: Tokenizer) -> None:
    """Not on the micro-batch, on dropout's generator, or on what was drawn before."""
    task = small_task(store, tokenizer)
    task.model.eval()
    sequences = first_sequences(task)
    whole = task.corrupt(sequences, task.masker).batch.token_ids.split(sequences.lengths.tolist())
    torch.manual_seed(77)
    for row in reversed(range(len(sequences))):
        alone = sequences.take(np.array([row]))
        assert torch.equal(task.corrupt(alone, task.masker).batch.token_ids, whole[row])
    other = replace(sequences, keys=sequences.keys + np.uint64(1))
    again = task.corrupt(other, task.masker).batch.token_ids.split(sequences.lengths.tolist())
    assert any(not torch.equal(one, two) for one, two in zip(whole, again, strict=True))


def test_a_piece_that_is_guessed_right_is_not_replaced(store: TokenStore, tokenizer: Tokenizer) -> None:
    """Section 3.1: it counts as the text's own. Here the generator always says `.`"""
    task = small_task(store, tokenizer)
    point = tokenizer.token_to_id(".")
    with torch.no_grad():
        task.model.generator.masked_language.bias[point] = 1e4
    sequences = first_sequences(task)
    corrupted = task.corrupt(sequences, task.masker)
    own = torch.from_numpy(sequences.token_ids)
    chosen = torch.zeros(len(own), dtype=torch.bool)
    chosen[corrupted.masked.positions] = True
    assert torch.equal(corrupted.replaced, chosen & (own != point))
    assert (chosen & (own == point)).sum() > 0
    assert torch.equal(corrupted.batch.token_ids, torch.where(chosen, point, own))


def test_places_that_no_whole_word_filled_keep_their_token(store: TokenStore, tokenizer: Tokenizer) -> None:
    task = small_task(store, tokenizer, whole_words=True, mask_rate=0.3)
    sequences = first_sequences(task)
    corrupted = task.corrupt(sequences, task.masker)
    unfilled = corrupted.masked.positions[corrupted.masked.labels < 0]
    assert not corrupted.replaced[unfilled].any()


def test_the_discriminator_s_loss_reaches_no_layer_of_the_generator(
    store: TokenStore, tokenizer: Tokenizer
) -> None:
    """Section 3.1: "we don't back-propagate the discriminator loss through the generator"."""
    task = small_task(store, tokenizer)
    task.loss(first_sequences(task))["weighted_rtd"].backward()
    assert all(parameter.grad is None for parameter in task.model.generator.parameters())
    assert task.model.encoder.embeddings.token.weight.grad is not None


def test_micro_batches_add_up_to_the_whole(store: TokenStore, tokenizer: Tokenizer) -> None:
    task = small_task(store, tokenizer)
    task.model.eval()
    sequences = first_sequences(task)
    whole, counts = task.loss(sequences), task.counts(sequences)
    assert counts["weighted_rtd"] == len(sequences.token_ids) / 20
    parts = split(sequences, 3, 100)
    for name, loss in whole.items():
        found = sum(float(task.loss(part)[name].detach()) for rank in parts for part in rank)
        assert found == pytest.approx(float(loss.detach()), rel=1e-5)
        assert sum(task.counts(part)[name] for rank in parts for part in rank) == pytest.approx(counts[name])


@pytest.mark.parametrize("ranks", [2, 3, 50])
def test_the_ranks_shares_of_the_evaluation_add_up(
    store: TokenStore, tokenizer: Tokenizer, ranks: int
) -> None:
    task = small_task(store, tokenizer)
    alone = task.sum_heldout(0, 1)
    shares = [task.sum_heldout(rank, ranks) for rank in range(ranks)]
    for name, value in alone.items():
        assert sum(share[name] for share in shares) == pytest.approx(value, rel=1e-9)


def test_figures_by_hand(store: TokenStore, tokenizer: Tokenizer) -> None:
    task = small_task(store, tokenizer)
    sums = dict.fromkeys(task.sum_names, 0.0) | {"mlm_count": 10.0, "mlm_loss": 20.0, "mlm_right": 4.0}
    sums |= {"rtd_count": 100.0, "rtd_replaced": 6.0, "rtd_found": 3.0, "rtd_called": 4.0}
    sums |= {"rtd_right": 96.0, "rtd_loss": 15.0}
    found = task.metrics(sums)
    assert (found["mlm_accuracy"], found["rtd_accuracy"], found["rtd_majority"]) == (0.4, 0.96, 0.94)
    assert found["rtd_majority_loss"] == pytest.approx(stats.entropy([0.06, 0.94]))
    assert (found["rtd_recall"], found["rtd_precision"], found["rtd_loss"]) == (0.5, 0.75, 0.15)
    assert task.metrics(dict.fromkeys(task.sum_names, 0.0)) == {}


@torch.no_grad()
def test_what_is_measured_is_what_plain_torch_says(store: TokenStore, tokenizer: Tokenizer) -> None:
    task = small_task(store, tokenizer)
    task.model.eval()
    sequences = first_sequences(task)
    masker = task.evaluation_masker
    found, corrupted = task.sum_micro_batch(sequences, masker), task.corrupt(sequences, masker)
    states = task.model.encoder(corrupted.batch)
    probability = torch.sigmoid(task.model.replaced_token(states)).detach()
    truth = corrupted.replaced
    assert found["rtd_right"] == float(((probability > 0.5) == truth).sum())
    expected = -torch.where(truth, probability, 1 - probability).log().sum()
    assert found["rtd_loss"] == pytest.approx(float(expected), rel=1e-4)
    assert found["rtd_found"] == float((probability[truth] > 0.5).sum())


def test_operations_are_those_that_torch_counts_and_a_plan_adds_up(
    store: TokenStore, tokenizer: Tokenizer
) -> None:
    task = small_task(store, tokenizer)
    sequences = first_sequences(task)
    task.model.train()  # with dropout on, attention is plain products, which the counter sees
    with FlopCounterMode(display=False) as counter:
        torch.stack(list(task.loss(sequences).values())).sum().backward()
    config, generator = task.model.config, task.model.generator.config
    masked = int(task.host_masker.count(sequences))
    filler = filler_operations(config, sequences, 0) + filler_operations(generator, sequences, 0)
    filler += 3 * 2 * (-masked % 16) * config.embedding_width * config.vocab_size
    assert task.flops(sequences) == counter.get_total_flops() - filler
    squares = float((sequences.lengths.astype(float) ** 2).sum())
    step = StepAmounts(len(sequences), len(sequences.token_ids), squares, masked)
    parts = flops_by_part(config, step, False, generator=generator)
    assert sum(parts.values()) == pytest.approx(task.flops(sequences), rel=1e-12)


def test_generators_of_the_published_sizes() -> None:
    """google-research/electra: widths and heads of a quarter (small, large) and a third (base)."""
    for size, share, width, heads, wide in (
        ("small", 0.25, 64, 1, 256),
        ("base", 1 / 3, 256, 4, 1024),
        ("large", 0.25, 256, 4, 1024),
    ):
        config = preset(size, model_type="electra")
        found = generator_config(config, share)
        assert (found.hidden_size, found.num_attention_heads, found.intermediate_size) == (width, heads, wide)
        assert found.embedding_width == config.embedding_width
        assert found.num_hidden_layers == config.num_hidden_layers


@pytest.mark.parametrize(("size", "millions"), [("small", 13.5), ("base", 108.9), ("large", 334.1)])
def test_discriminators_have_the_published_number_of_weights(size: str, millions: float) -> None:
    """Of google's checkpoints, without the head: 14 M, 110 M and 335 M as table 1 rounds them."""
    from bertsmith.model.bert import Bert
    from bertsmith.model.layers.initialisation import meta_init

    config = preset(size, model_type="electra")
    count = sum(parameter.numel() for parameter in meta_init(lambda: Bert(config)).parameters())
    assert count / 1e6 == pytest.approx(millions, abs=0.1)


def test_going_on_from_two_folders_changes_nothing(
    store: TokenStore, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    task = small_task(store, tokenizer)
    model, folder = task.model, tmp_path
    save_replaced_token_model(folder / "model", folder / "generator", model, tokenizer, {})
    again, notes = load_replaced_token_model(folder / "model", 0.9, folder / "generator")
    assert notes == ()
    assert not again.generator.masked_language.is_new
    assert again.state_dict().keys() == model.state_dict().keys()
    assert all(torch.equal(tensor, again.state_dict()[name]) for name, tensor in model.state_dict().items())
    fresh, notes = load_replaced_token_model(folder / "model", 0.5)
    assert notes == (
        "the generator starts from random weights; replaced.generator=FOLDER goes on with a trained one",
    )
    assert fresh.generator.masked_language.is_new
    assert torch.equal(fresh.replaced_token.out.weight, model.replaced_token.out.weight)
    assert model_kind(folder / "model") == "embedding"
    assert model_kind(folder / "generator") == "masked-language"
    with pytest.raises(ModelError, match=r"has no masked-language head: it tells .* generator/ beside"):
        load_pretraining_model(folder / "model")
    with pytest.raises(ModelError, match="has no masked-language head, so it is no generator"):
        load_replaced_token_model(folder / "model", 0.5, folder / "model")
    wider = make_config(model.config.model_dump() | {"embedding_size": 14}, "test")
    other = ReplacedTokenModel(wider, generator_config(wider, 0.5))
    save_replaced_token_model(folder / "b", folder / "b-generator", other, tokenizer, {})
    with pytest.raises(ModelError, match=r"can't be the generator.*another embedding_size"):
        load_replaced_token_model(folder / "model", 0.5, folder / "b-generator")


def test_the_generator_alone_is_the_same_weights_not_a_copy(store: TokenStore, tokenizer: Tokenizer) -> None:
    task = small_task(store, tokenizer)
    alone = task.model.masked_language()
    assert alone.encoder.embeddings.token.weight is task.model.encoder.embeddings.token.weight
    sequences = concatenate([first_sequences(task)])
    batch, rows = PackedBatch.of(sequences), torch.arange(5)
    task.model.eval()
    expected = task.model.generator(task.model.encoder.embeddings.lookup(batch), batch, rows)
    assert torch.equal(alone.eval().masked_language(alone.encoder(batch, rows)), expected)


@pytest.mark.slow
def test_the_discriminator_learns_what_does_not_belong(tmp_path: Path) -> None:
    """Each document has six words of its own, and the generator knows the more frequent pieces only."""
    words = [f"{first}{last}" for first in "bdfgklmnprst" for last in ("ano", "elo", "iru", "uma")]
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer = Tokenizer.from_pieces([*special, *words, "."], lowercase=True)
    draw = np.random.default_rng(0)
    (tmp_path / "text").mkdir()
    for number in range(60):
        topic = words[6 * (number % 8) : 6 * (number % 8) + 6]
        sentences = (" ".join(draw.choice(topic, 12)) + "." for _ in range(8))
        (tmp_path / "text" / f"{number}.txt").write_text("\n".join(sentences))
    corpus = build_corpus([str(tmp_path / "text")], tmp_path / "corpus", workers=1)
    tokenize_corpus(corpus, tokenizer, tmp_path / "store")
    task = small_task(TokenStore.open(tmp_path / "store" / "train", tokenizer), tokenizer)
    torch.manual_seed(0)
    shape = {"hidden_size": 64, "embedding_size": 32, "intermediate_size": 128, "initializer_range": 0.08}
    config = make_config(task.model.config.model_dump() | shape, "test")
    model = ReplacedTokenModel(config, generator_config(config, 0.5))
    task = replace(task, model=model, weight=50.0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step, batch in enumerate(islice(task.batches(Cursor()), 200)):
        optimizer.param_groups[0]["lr"] = 1e-3 * min(1, (step + 1) / 50)
        losses, counts = task.loss(batch.sequences), task.counts(batch.sequences)
        torch.stack([losses[name] / counts[name] for name in losses]).sum().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    found = task.evaluate(0, 1, lambda sums: sums)
    assert found["rtd_loss"] < 0.75 * found["rtd_majority_loss"]
    assert found["rtd_recall"] > 0.4 and found["rtd_precision"] > 0.8


def test_drawing_over_several_blocks_of_the_vocabulary_is_drawing_from_one_row() -> None:
    """Of 700 pieces: against the whole row added up, and the last piece of all."""
    draw = torch.Generator().manual_seed(3)
    states, weight = torch.randn(400, 8, generator=draw), torch.randn(700, 8, generator=draw)
    bias, places = torch.randn(700, generator=draw), torch.rand(400, dtype=torch.float64, generator=draw)
    places[0] = 1 - 2**-53
    reached = (states @ weight.T + bias).double().softmax(1).cumsum(1)
    wanted = (reached <= places.unsqueeze(1)).sum(1).clamp(max=699)
    assert torch.equal(sample_pieces(states, weight, bias, places), wanted)
