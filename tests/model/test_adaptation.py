"""What is frozen costs nothing and stays; what starts anew is drawn as at first."""

import pytest
import torch
from model_folders import tiny_config
from torch.utils.flop_counter import FlopCounterMode

from bertsmith.data.batch import PackedBatch
from bertsmith.errors import ModelError
from bertsmith.model.adaptation import freeze, reinitialise, trained_share
from bertsmith.model.bert import Bert
from bertsmith.tasks.pretraining.pretraining import PretrainingModel

LAYERS = 4


def new_bert(**changes: object) -> Bert:
    torch.manual_seed(0)
    shape = {"hidden_size": 16, "num_hidden_layers": LAYERS, "intermediate_size": 32}
    return Bert(tiny_config(**{**shape, "initializer_range": 0.3, **changes}))


def some_batch() -> PackedBatch:
    ids = torch.arange(8).numpy()
    return PackedBatch.pack(ids, ids % 2, torch.tensor([4, 4]).numpy())


@pytest.mark.parametrize("lowest", range(LAYERS + 1))
@pytest.mark.parametrize(
    "family", ["bert", "jina_bert", "mpnet", "deberta-v2"]
)  # MPNet's layers share a bias
def test_autograd_records_nothing_below_what_is_trained(lowest: int, family: str) -> None:
    model = new_bert(model_type=family).train()
    freeze(model, embeddings=True, lowest=lowest)
    recorded = [states.grad_fn is not None for states in model.all_hidden_states(some_batch())]
    assert recorded == [False] * (lowest + 1) + [True] * (LAYERS - lowest)


@pytest.mark.parametrize("lowest", range(LAYERS))
def test_the_backward_pass_costs_in_proportion_to_the_layers_that_are_trained(lowest: int) -> None:
    """A product costs twice its forward pass in the backward one, for its input and for its weight; the
    lowest trained layer needs no gradient of its input, which its qkv product (H x 3H) would have given.
    """
    model = new_bert()
    freeze(model, embeddings=True, lowest=lowest)
    with FlopCounterMode(display=False) as forward:
        states = model(some_batch())
    with FlopCounterMode(display=False) as backward:
        states.sum().backward()
    counts = forward.get_flop_counts()["Global"]
    products = counts[torch.ops.aten.addmm] + counts.get(torch.ops.aten.mm, 0)  # with the bias and without
    layer, qkv = products / LAYERS, 2 * 8 * 16 * 3 * 16
    gradients = backward.get_flop_counts()["Global"][torch.ops.aten.mm]
    assert gradients == 2 * layer * (LAYERS - lowest) - qkv


def test_a_frozen_part_is_a_fixed_function_in_training_too() -> None:
    model = new_bert(hidden_dropout_prob=0.5, attention_probs_dropout_prob=0.5)
    freeze(model, embeddings=False, lowest=2)
    quiet = model.eval().all_hidden_states(some_batch())
    noisy = model.train().all_hidden_states(some_batch())
    assert [torch.equal(a, b) for a, b in zip(quiet, noisy, strict=True)] == [True] * 3 + [False] * 2


def test_layers_are_frozen_with_the_embeddings_below_them() -> None:
    model = new_bert()
    freeze(model, embeddings=False, lowest=1)
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    below = ("embeddings.", "layers.0.")
    assert frozen == {name for name, _ in model.named_parameters() if name.startswith(below)}


def test_nothing_is_frozen_unasked() -> None:
    model = new_bert(hidden_dropout_prob=0.5)
    freeze(model, embeddings=False, lowest=0)
    assert trained_share(model) == 1.0
    assert model.embeddings.dropout.probability == 0.5


@pytest.mark.parametrize("top", range(LAYERS + 1))
def test_the_top_layers_and_the_pooler_start_anew_and_nothing_else_does(top: int) -> None:
    model = new_bert()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(7.0)
    reinitialise(model, top)
    new = {name.rpartition(".")[0] for name, p in model.named_parameters() if not bool((p == 7.0).all())}
    upper = (*(f"layers.{number}." for number in range(LAYERS - top, LAYERS)), "pooler")
    expected = {name.rpartition(".")[0] for name, _ in model.named_parameters() if name.startswith(upper)}
    assert new == (expected if top else set())


def test_new_layers_are_drawn_as_at_the_start_of_pre_training() -> None:
    """A normal distribution cut at two deviations keeps 0.88 of its deviation."""
    model = new_bert(hidden_size=64, intermediate_size=256, initializer_range=0.02)
    reinitialise(model, 1)
    top = model.layers[-1]
    weight = top.feed_forward.up.weight.detach()
    assert float(weight.std()) == pytest.approx(0.88 * 0.02, rel=0.03)
    assert float(weight.abs().max()) <= 0.04
    assert not top.feed_forward.up.bias.any()
    assert bool((top.attention_norm.weight == 1).all())


def test_a_family_without_pooler_starts_anew_too() -> None:
    model = new_bert(model_type="distilbert", type_vocab_size=0)
    before = model.layers[-1].feed_forward.up.weight.clone()
    reinitialise(model, 1)
    assert not torch.equal(model.layers[-1].feed_forward.up.weight, before)


def test_layers_whose_weights_others_have_too_are_neither_frozen_nor_drawn_anew() -> None:
    """ALBERT: with two groups the lower half is frozen by itself."""
    model = new_bert(model_type="albert", embedding_size=8)
    with pytest.raises(ModelError, match="lowest 2 of 4 layers of this albert model: others have the same"):
        freeze(model, embeddings=False, lowest=2)
    with pytest.raises(ModelError, match="top 1 of 4 layers of this albert model: others have the same"):
        reinitialise(model, 1)
    assert trained_share(model) == 1.0
    before = model.layers[0].feed_forward.up.weight.clone()
    reinitialise(model, 4)
    assert not torch.equal(model.layers[0].feed_forward.up.weight, before)
    freeze(model, embeddings=True, lowest=4)
    assert not any(parameter.requires_grad for parameter in model.layers.parameters())
    halves = new_bert(model_type="albert", embedding_size=8, num_hidden_groups=2)
    freeze(halves, embeddings=True, lowest=2)
    assert [part.attention.qkv.weight.requires_grad for part in halves.layers] == [False, True]


@pytest.mark.parametrize("number", [-1, LAYERS + 1])
def test_layers_that_the_model_does_not_have_are_refused(number: int) -> None:
    model = new_bert()
    with pytest.raises(ModelError, match=f"the lowest {number} layers: the model has 4"):
        freeze(model, embeddings=True, lowest=number)
    with pytest.raises(ModelError, match=f"the top {number} layers: the model has 4"):
        reinitialise(model, number)
    assert trained_share(model) == 1.0


def test_the_trained_share_counts_heads_and_shared_weights_once() -> None:
    model = PretrainingModel(tiny_config())
    model.encoder.requires_grad_(False)
    total = sum(parameter.numel() for parameter in model.parameters())
    # the masked-language head: dense 4 x 4 + 4, norm 4 + 4, bias 11; next sentence 2 x 4 + 2
    assert trained_share(model) == pytest.approx((20 + 8 + 11 + 10) / total)
