"""BERT's parameter groups, which weights are Muon's, and the state of both optimisers by name."""

from copy import deepcopy

import pytest
import torch
import transformers
from torch import nn
from torch.nn import functional as F

from bertsmith.errors import InputError, RecipeError
from bertsmith.model.config import Family, make_config
from bertsmith.tasks.pretraining.pretraining import PretrainingModel
from bertsmith.training.optimizer import (
    Muon,
    Optimizers,
    collect_optimizer_tensors,
    count_layer_depths,
    is_decayed,
    load_optimizer_tensors,
    make_optimizer,
    set_learning_rate,
)
from bertsmith.training.settings import OptimizerSettings

OWN = f"{__name__}:Own"
SHAPE = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}


def new_model(family: Family = "bert") -> PretrainingModel:
    torch.manual_seed(0)
    config = {"model_type": family, "vocab_size": 20, "max_position_embeddings": 16, "pad_token_id": 0}
    own = {
        "roberta": {"type_vocab_size": 1},
        "distilbert": {"type_vocab_size": 0},
        "mpnet": {"pad_token_id": 1},
    }.get(family, {})
    return PretrainingModel(make_config(config | SHAPE | own, "the test"))


def new_optimizer(model: nn.Module, layer_decay: float = 1.0, kind: str = "adamw") -> Optimizers:
    return make_optimizer(model, OptimizerSettings(kind=kind, layer_decay=layer_decay))


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert"])
def test_what_is_decayed_is_told_by_the_kind_of_module(family: Family) -> None:
    """The rule goes by names; here it is held against the modules themselves."""
    model = new_model(family)
    matrices = [m.weight for m in model.modules() if isinstance(m, nn.Linear | nn.Embedding)]
    decayed, spared = (group["params"] for group in new_optimizer(model).param_groups)
    assert {id(p) for p in decayed} == {id(p) for p in matrices}
    assert {id(p) for p in decayed}.isdisjoint(id(p) for p in spared)
    assert len(decayed) + len(spared) == len(list(model.parameters()))
    assert {p.ndim for p in spared} == {1}


def test_the_groups_decays() -> None:
    optimizer = new_optimizer(new_model())
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.01, 0.0]
    set_learning_rate(optimizer, 0.25)
    assert [group["lr"] for group in optimizer.param_groups] == [0.25, 0.25]


@pytest.mark.parametrize(
    ("name", "decayed"),
    [
        ("encoder.embeddings.token.weight", True),
        ("encoder.layers.0.attention.qkv.weight", True),
        ("encoder.layers.0.attention.qkv.bias", False),
        ("encoder.layers.0.attention_norm.weight", False),
        ("masked_language.norm.bias", False),
        ("masked_language.bias", False),
        ("encoder.relative.table.weight", True),
        ("encoder.relative.bias.weight", False),  # of scores
    ],
)
def test_names(name: str, decayed: bool) -> None:
    assert is_decayed(name) is decayed


def test_a_bias_by_distance_is_spared_as_by_transformers_and_learns_as_slowly_as_the_embeddings() -> None:
    model = new_model("mpnet")
    theirs = transformers.MPNetForMaskedLM(transformers.MPNetConfig(**SHAPE, vocab_size=20))
    rules = transformers.Trainer.get_decay_parameter_names(None, theirs)  # type: ignore[arg-type]
    assert ("mpnet.encoder.relative_attention_bias.weight" in rules) == is_decayed(
        "encoder.relative.bias.weight"
    )
    depths = count_layer_depths(model)
    assert depths["encoder.relative.bias.weight"] == depths["encoder.embeddings.token.weight"] == 3


def test_frozen_parameters_are_left_out() -> None:
    model = new_model()
    model.encoder.embeddings.requires_grad_(False)
    frozen = sum(1 for _ in model.encoder.embeddings.parameters())
    trained = [p for group in new_optimizer(model).param_groups for p in group["params"]]
    assert len(trained) == len(list(model.parameters())) - frozen


@pytest.mark.parametrize(
    ("name", "depth"),
    [
        ("masked_language.dense.weight", 0),
        ("next_sentence.bias", 0),
        ("encoder.pooler.weight", 0),
        ("encoder.layers.1.attention.qkv.weight", 1),
        ("encoder.layers.1.feed_forward_norm.bias", 1),
        ("encoder.layers.0.attention.output.bias", 2),
        ("encoder.embeddings.norm.weight", 3),
        ("encoder.embeddings.token.weight", 3),
    ],
)
def test_rates_fall_by_one_factor_for_each_layer_below_the_head(name: str, depth: int) -> None:
    model = new_model()
    assert count_layer_depths(model)[name] == depth
    optimizer = new_optimizer(model, layer_decay=0.5)
    set_learning_rate(optimizer, 0.2)
    (group,) = (g for g in optimizer.param_groups if any(p is model.get_parameter(name) for p in g["params"]))
    assert group["lr"] == 0.2 * 0.5**depth
    assert group["weight_decay"] == (0.01 if is_decayed(name) else 0.0)


def test_with_layer_decay_every_weight_is_in_one_group_and_frozen_layers_still_count() -> None:
    model = new_model()
    model.encoder.layers[1].requires_grad_(False)
    groups = new_optimizer(model, layer_decay=0.9).param_groups
    placed = [id(p) for group in groups for p in group["params"]]
    assert sorted(placed) == sorted(id(p) for p in model.parameters() if p.requires_grad)
    assert sorted({group["factor"] for group in groups}) == pytest.approx([0.9**3, 0.9**2, 1.0])


def test_a_step_moves_each_layer_by_its_own_rate() -> None:
    """AdamW's first step moves every weight by its rate, whatever the gradient's size."""
    model = new_model()
    before = deepcopy(model)
    optimizer = make_optimizer(model, OptimizerSettings(weight_decay=0, epsilon=1e-30, layer_decay=0.5))
    set_learning_rate(optimizer, 0.01)
    for number, parameter in enumerate(model.parameters()):
        parameter.grad = torch.full_like(parameter, float(number + 1))
    optimizer.step()
    for name, depth in count_layer_depths(model).items():
        moved = before.get_parameter(name) - model.get_parameter(name)
        assert torch.allclose(moved, torch.full_like(moved, 0.01 * 0.5**depth), rtol=1e-3), name


def test_one_step_by_hand() -> None:
    """AdamW's first step: the moments' corrections cancel, and decay is not part of the gradient."""
    model = nn.Sequential(nn.Linear(1, 1))
    weight, bias = model[0].weight, model[0].bias
    before = weight.item(), bias.item()
    optimizer = new_optimizer(model)
    set_learning_rate(optimizer, 0.1)
    weight.grad, bias.grad = torch.full_like(weight, 2.0), torch.full_like(bias, -3.0)
    optimizer.step()
    assert weight.item() == pytest.approx(before[0] * (1 - 0.1 * 0.01) - 0.1 * 2 / (2 + 1e-6), rel=1e-5)
    assert bias.item() == pytest.approx(before[1] - 0.1 * -3 / (3 + 1e-6), rel=1e-5)


@pytest.mark.parametrize("kind", ["adamw", "muon"])
@pytest.mark.parametrize("layer_decay", [1.0, 0.8])
def test_state_goes_over_to_another_optimizer_to_the_bit(layer_decay: float, kind: str) -> None:
    model = new_model()
    optimizer = new_optimizer(model, layer_decay, kind)
    for _ in range(3):
        take_step(model, optimizer)
    twin = deepcopy(model)
    resumed = new_optimizer(twin, layer_decay, kind)
    saved = {name: tensor.clone() for name, tensor in collect_optimizer_tensors(model, optimizer).items()}
    load_optimizer_tensors(twin, resumed, saved)
    matrices = 8 if kind == "muon" else 0
    assert len(saved) == 3 * (len(list(model.parameters())) - matrices) + matrices
    take_step(model, optimizer)
    take_step(twin, resumed)
    for name, parameter in twin.named_parameters():
        assert torch.equal(parameter, model.get_parameter(name)), name


class Own(torch.optim.SGD):
    """A user's own, which counts its steps: as a tensor, as a number, in its groups, or as of no weight."""

    counts = "as a tensor"

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        super().step()
        for group in self.param_groups:
            for weight in group["params"]:
                state = self.state[weight]
                state["count"] = state.get("count", torch.zeros(())) + 1
                weight.data.sub_(0.01 * state["count"])
                if self.counts == "as a number":
                    state["count"] = int(state["count"])
        if self.counts == "in its groups":
            self.param_groups[0]["count"] = 1
        if self.counts == "of no weight":
            self.state["count"] = {"all": torch.zeros(())}


def test_a_user_s_own_has_our_groups_and_its_state_goes_over_to_the_bit() -> None:
    model = new_model()
    optimizer = new_optimizer(model, 0.8, OWN)
    ours = new_optimizer(model, 0.8)
    settings = [(group["weight_decay"], group["factor"], group["params"]) for group in optimizer.param_groups]
    expected = [(group["weight_decay"], group["factor"], group["params"]) for group in ours.param_groups]
    assert [each[:2] for each in settings] == [each[:2] for each in expected]
    for _ in range(3):
        take_step(model, optimizer)
    twin = deepcopy(model)
    resumed = new_optimizer(twin, 0.8, OWN)
    saved = {name: tensor.clone() for name, tensor in collect_optimizer_tensors(model, optimizer).items()}
    assert {float(tensor) for name, tensor in saved.items() if name.endswith(".count")} == {3.0}
    load_optimizer_tensors(twin, resumed, saved)
    take_step(model, optimizer)
    take_step(twin, resumed)
    for name, parameter in twin.named_parameters():
        assert torch.equal(parameter, model.get_parameter(name)), name


@pytest.mark.parametrize(
    ("counts", "complaint"),
    [
        ("as a number", "Own keeps 'count' as int. A checkpoint holds tensors by weight"),
        ("in its groups", "Own changes its groups' settings as it steps"),
        ("of no weight", r"Own keeps state\['count'\], which is of no weight"),
    ],
)
def test_what_a_resumed_run_would_have_forgotten_is_refused_at_the_first_step(
    counts: str, complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Own, "counts", counts)
    model = new_model()
    with pytest.raises(RecipeError, match=complaint):
        take_step(model, new_optimizer(model, kind=OWN))


@pytest.mark.parametrize(
    ("kind", "complaint"),
    [
        ("no_such_file:Lion", "The optimizer 'no_such_file:Lion' can't be imported: No module named"),
        ("math:Lion", "The optimizer 'math:Lion' can't be imported: module 'math' has no attribute"),
        ("math:pi", "'math:pi' is not a subclass of torch.optim.optimizer.Optimizer"),
    ],
)
def test_what_is_no_optimizer_is_refused(kind: str, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        new_optimizer(new_model(), kind=kind)


def take_step(model: PretrainingModel, optimizer: Optimizers) -> None:
    set_learning_rate(optimizer, 0.01)
    model.zero_grad()
    rows = model.encoder.embeddings.token.weight[:4]
    F.cross_entropy(model.vocabulary_logits(rows), torch.arange(4)).backward()
    for parameter in model.parameters():
        if parameter.grad is None:
            parameter.grad = torch.linspace(-1, 1, parameter.numel()).view_as(parameter) ** 3
    optimizer.step()


# -- with Muon ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "count"),
    [
        *((family, 8) for family in ("bert", "roberta", "distilbert", "electra", "modernbert")),
        *(
            ("nomic_bert", 8),
            ("gte", 8),
            ("jina_bert", 8),
            ("mpnet", 8),
            ("deberta-v2", 8),
            ("albert", 4),
        ),  # ALBERT's two layers have the weights of one
    ],
)
def test_the_layers_matrices_are_muons_and_all_else_is_adamws(family: Family, count: int) -> None:
    model = new_model(family)
    matrices = {id(m.weight) for m in model.encoder.layers.modules() if isinstance(m, nn.Linear)}
    adamw, muon = new_optimizer(model, kind="muon").optimizers
    of_adamw, of_muon = (
        {id(p) for group in one.param_groups for p in group["params"]} for one in (adamw, muon)
    )
    assert isinstance(muon, Muon) and isinstance(adamw, torch.optim.AdamW)
    assert of_muon == matrices and len(matrices) == count
    assert of_adamw | of_muon == {id(p) for p in model.parameters()} and not of_adamw & of_muon


@pytest.mark.parametrize(("family", "of_up"), [("bert", 1), ("modernbert", 2)])
def test_query_key_and_value_are_three_matrices_and_a_gated_feed_forward_two(
    family: Family, of_up: int
) -> None:
    model = new_model(family)
    groups = new_optimizer(model, kind="muon").param_groups
    found = {id(p): group["matrices"] for group in groups for p in group["params"]}
    for layer in model.encoder.layers:
        assert found[id(layer.attention.qkv.weight)] == 3
        assert found[id(layer.feed_forward.up.weight)] == of_up
        assert found[id(layer.attention.output.weight)] == found[id(layer.feed_forward.down.weight)] == 1


def test_matrices_have_their_own_rate_in_each_layer() -> None:
    model = new_model()
    settings = OptimizerSettings(kind="muon", layer_decay=0.5, matrix_rate_factor=20)
    optimizer = make_optimizer(model, settings)
    set_learning_rate(optimizer, 0.1)
    rates = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    for number, layer in enumerate(model.encoder.layers):
        depth = 2 - number
        assert rates[id(layer.feed_forward.up.weight)] == pytest.approx(0.1 * 20 * 0.5**depth)
        assert rates[id(layer.feed_forward.up.bias)] == pytest.approx(0.1 * 0.5**depth)
    assert rates[id(model.encoder.embeddings.token.weight)] == pytest.approx(0.1 * 0.5**3)


def test_with_muon_a_model_without_other_weights_is_trained_all_the_same() -> None:
    model = new_model()
    model.requires_grad_(False)
    model.encoder.layers[0].feed_forward.up.weight.requires_grad_(True)
    (only,) = new_optimizer(model, kind="muon").optimizers
    assert isinstance(only, Muon)
