"""Low-rank parts against the definition, their gradients, and the plain model they merge into."""

from copy import deepcopy
from itertools import combinations

import pytest
import torch
from model_folders import tiny_config
from torch import Tensor, nn

from bertsmith.data.batch import PackedBatch
from bertsmith.errors import ModelError
from bertsmith.model.adaptation import trained_share
from bertsmith.model.bert import Bert
from bertsmith.model.config import preset
from bertsmith.model.cpu.inference import prepare_for_inference
from bertsmith.model.layers.initialisation import meta_init
from bertsmith.model.lora import (
    LoraLinear,
    LoraSettings,
    add_lora,
    lora_settings,
    lora_tensors,
    merge_lora,
    targets_of,
)
from bertsmith.model.weights import to_hugging_face
from bertsmith.tasks.pretraining.pretraining import PretrainingModel

TARGETS = ("query", "key", "value", "attention_output", "feed_forward_up", "feed_forward_down", "pooler")
SHAPE = {"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 20}
SEGMENTS = {
    "bert": {},
    "jina_bert": {},
    "modernbert": {"type_vocab_size": 0},
    "nomic_bert": {},
    "gte": {},
    "albert": {},
    "mpnet": {"type_vocab_size": 0},
    "deberta-v2": {"type_vocab_size": 0},
}
WITHOUT_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def new_bert(**changes: object) -> Bert:
    torch.manual_seed(0)
    model = Bert(tiny_config(**{**SHAPE, **changes}))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.3)
    return model.eval()


def some_batch() -> PackedBatch:
    ids = torch.arange(9).numpy()
    return PackedBatch.pack(ids, ids % 2, torch.tensor([4, 2, 3]).numpy())


def states_and_pooled(model: Bert) -> Tensor:
    batch = some_batch()
    states = model(batch)
    return states if model.pooler is None else torch.cat([states, model.pool(states[batch.first_rows])])


def draw_added_weights(model: Bert) -> None:
    with torch.no_grad():
        for tensor in lora_tensors(model).values():
            tensor.normal_(0.0, 0.3)


def by_definition(plain: Bert, adapted: Bert) -> Bert:
    """W + alpha / r B A, target by target, from the tensors alone."""
    result, added, settings = deepcopy(plain), lora_tensors(adapted), lora_settings(adapted)
    assert settings is not None
    rows = {"query": slice(0, 12), "key": slice(12, 24), "value": slice(24, 36)}
    for name, a in added.items():
        if ".lora_A." in name:
            module, target = name.split(".lora_A.")
            product = added[name.replace("lora_A", "lora_B")] @ a
            weight = result.get_submodule(module).weight
            with torch.no_grad():
                weight[rows.get(target, slice(None))] += settings.alpha / settings.rank * product
    return result


def close(found: Tensor, wanted: Tensor) -> bool:
    found, wanted = found.detach(), wanted.detach()
    return bool((found - wanted).abs().max() <= 1e-5 * max(1.0, float(wanted.abs().max())))


@pytest.mark.parametrize("targets", [*combinations(TARGETS, 1), *combinations(TARGETS[:3], 2), TARGETS])
def test_outputs_are_those_of_the_definition_merged_or_not(targets: tuple[str, ...]) -> None:
    plain, adapted = new_bert(), new_bert()
    add_lora(adapted, rank=3, alpha=5.0, targets=targets)
    draw_added_weights(adapted)
    wanted = states_and_pooled(by_definition(plain, adapted))
    assert not close(states_and_pooled(plain), wanted)
    assert close(states_and_pooled(adapted), wanted)
    merge_lora(adapted)
    assert close(states_and_pooled(adapted), wanted)


def test_a_fresh_low_rank_part_changes_nothing_whatever_its_dropout() -> None:
    plain = new_bert(**WITHOUT_DROPOUT)
    adapted = deepcopy(plain)
    add_lora(adapted, dropout=0.5, targets=TARGETS)
    assert torch.equal(states_and_pooled(adapted.train()), states_and_pooled(plain))


def test_dropout_falls_on_the_low_rank_part_alone_and_only_in_training() -> None:
    model = new_bert(**WITHOUT_DROPOUT)
    plain = states_and_pooled(model)
    add_lora(model, dropout=0.5)
    draw_added_weights(model)
    assert not torch.equal(states_and_pooled(model.train()), states_and_pooled(model))
    assert torch.equal(states_and_pooled(model.eval()), states_and_pooled(model))
    for linear in (part for part in model.modules() if isinstance(part, LoraLinear)):
        linear.dropout.probability = 255 / 256  # nearly everything: what is left is the base
    with torch.no_grad():
        kept = [(states_and_pooled(model.train()) - plain).abs().max() < 1e-6 for _ in range(20)]
    assert any(kept)


def test_gradients_are_those_of_the_definition() -> None:
    """The chain rule on W + s B A: dA = s Bᵀ dW and dB = s dW Aᵀ, with dW from the merged plain model."""
    adapted = new_bert()
    add_lora(adapted, rank=3, alpha=5.0, targets=TARGETS)
    draw_added_weights(adapted)
    merged = by_definition(new_bert(), adapted)
    for model in (adapted, merged):
        (states_and_pooled(model) ** 2).sum().backward()
    rows = {"query": slice(0, 12), "key": slice(12, 24), "value": slice(24, 36)}
    compared = 0
    for path, linear in adapted.named_modules():
        if isinstance(linear, LoraLinear):
            whole = merged.get_submodule(path).weight.grad
            for target, a in linear.lora_A.items():
                b, part = linear.lora_B[target], whole[rows.get(target, slice(None))]
                assert close(a.grad, 5 / 3 * b.T @ part), (path, target)
                assert close(b.grad, 5 / 3 * part @ a.T), (path, target)
                compared += 1
    assert compared == 2 * 6 + 1


def test_only_the_added_weights_are_trained_and_each_gets_its_gradient() -> None:
    model = new_bert()
    add_lora(model, rank=2)
    draw_added_weights(model)
    states_and_pooled(model).sum().backward()
    trained = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert trained == set(lora_tensors(model))
    assert trained == {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert trained == {
        f"layers.{layer}.attention.qkv.lora_{factor}.{target}"
        for layer in range(2)
        for factor in "AB"
        for target in ("query", "value")
    }


def test_heads_outside_the_encoder_are_trained_on() -> None:
    model = PretrainingModel(tiny_config())
    add_lora(model.encoder)
    heads = [name for name, _ in model.named_parameters() if not name.startswith("encoder.")]
    assert heads
    assert all(model.get_parameter(name).requires_grad for name in heads)


def test_a_is_drawn_within_kaimings_bounds_and_b_is_zero() -> None:
    model = new_bert(hidden_size=30, intermediate_size=100, num_attention_heads=2)
    add_lora(model, rank=16, targets=("feed_forward_down",))
    for linear in (part for part in model.modules() if isinstance(part, LoraLinear)):
        a, b = (factor["feed_forward_down"].detach() for factor in (linear.lora_A, linear.lora_B))
        assert a.shape == (16, 100)
        assert 0.09 < float(a.abs().max()) <= 0.1  # 1 / sqrt(100)
        assert float(a.std()) == pytest.approx(0.1 / 3**0.5, rel=0.1)
        assert not b.any()


def test_the_finished_weights_keep_their_names_and_values() -> None:
    plain = new_bert()
    adapted = deepcopy(plain)
    add_lora(adapted, targets=TARGETS)
    assert adapted.state_dict().keys() - plain.state_dict().keys() == lora_tensors(adapted).keys()
    for name, tensor in plain.state_dict().items():
        assert torch.equal(adapted.state_dict()[name], tensor)


def test_merging_leaves_a_plain_model_and_touches_only_the_targets() -> None:
    plain = new_bert()
    model = deepcopy(plain)
    add_lora(model, targets=("query", "value"))
    draw_added_weights(model)
    merge_lora(model)
    assert {type(part) for part in model.modules()} == {type(part) for part in plain.modules()}
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert list(model.state_dict()) == list(plain.state_dict())
    before, after = (
        to_hugging_face({f"encoder.{k}": v for k, v in each.state_dict().items()}, each.config, bare=True)
        for each in (plain, model)
    )
    changed = {name for name, tensor in before.items() if not torch.equal(tensor, after[name])}
    assert changed == {
        f"encoder.layer.{layer}.attention.self.{target}.weight"
        for layer in range(2)
        for target in ("query", "value")
    }


def test_a_model_without_lora_is_left_alone_by_merging() -> None:
    model = new_bert()
    model.embeddings.requires_grad_(False)
    merge_lora(model)
    assert not any(parameter.requires_grad for parameter in model.embeddings.parameters())


@pytest.mark.parametrize("targets", [("query",), ("feed_forward_down",)])
def test_an_encoder_for_inference_keeps_a_low_rank_part_that_isnt_merged(targets: tuple[str, ...]) -> None:
    model = new_bert()
    add_lora(model, rank=2, targets=targets)
    draw_added_weights(model)
    with torch.no_grad():
        expected = model(some_batch())
        assert close(prepare_for_inference(model)(some_batch()), expected)


def test_rank_8_on_query_and_value_of_bert_base_trains_a_quarter_of_a_percent() -> None:
    """Hu et al. 2021, table 2: 0.3 M of 125 M for RoBERTa-base; BERT-base has 109.48 M."""
    model = meta_init(lambda: Bert(preset("base")))
    add_lora(model)
    added = sum(tensor.numel() for tensor in lora_tensors(model).values())
    assert added == 294_912
    assert trained_share(model) == pytest.approx(294_912 / (109_482_240 + 294_912))


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"rank": 0}, "rank 0"),
        ({"alpha": 0.0}, "alpha 0"),
        ({"alpha": float("nan")}, "alpha nan"),
        ({"dropout": 1.0}, "dropout 1"),
        ({"targets": ()}, "at least one target"),
        ({"targets": ("querry",)}, "Did you mean 'query'"),
        ({"targets": ("classifier",)}, "no target 'classifier'"),
    ],
)
def test_impossible_settings_are_refused_and_nothing_is_frozen(
    settings: dict[str, object], complaint: str
) -> None:
    model = new_bert()
    with pytest.raises(ModelError, match=complaint):
        add_lora(model, **settings)  # type: ignore[arg-type]
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_a_target_that_the_model_lacks_and_a_second_lora_are_refused() -> None:
    model = new_bert(model_type="distilbert", type_vocab_size=0)
    with pytest.raises(ModelError, match=r"distilbert model has no pooler .* There are: query, key, value,"):
        add_lora(model, targets=("query", "pooler"))
    add_lora(model, targets=TARGETS[:-1])
    with pytest.raises(ModelError, match="has LoRA already"):
        add_lora(model)


@pytest.mark.parametrize(
    ("family", "there", "usual", "rows"),
    [
        ("bert", TARGETS, ("query", "value"), (12, 12)),
        ("jina_bert", TARGETS, ("query", "value"), (12, 12)),
        ("albert", TARGETS, ("query", "value"), (12, 12)),
        ("mpnet", TARGETS, ("query", "value"), (12, 12)),
        ("deberta-v2", TARGETS[:-1], ("query", "value"), (12, 12)),
        ("modernbert", ("qkv", *TARGETS[3:6]), ("qkv",), (36,)),
        *(
            (family, (*TARGETS[:4], "feed_forward_gate", *TARGETS[4:]), ("query", "value"), (12, 12))
            for family in ("nomic_bert", "gte")
        ),
    ],
)
def test_targets_are_the_modules_that_the_family_s_class_has(
    family: str, there: tuple[str, ...], usual: tuple[str, ...], rows: tuple[int, ...]
) -> None:
    model = new_bert(model_type=family, **SEGMENTS[family])
    assert targets_of(model) == there
    add_lora(model)
    settings = lora_settings(model)
    assert settings is not None
    assert settings.targets == usual
    first = [tensor for name, tensor in lora_tensors(model).items() if "layers.0." in name and "_B" in name]
    assert tuple(len(b) for b in first) == rows


def test_a_target_of_another_family_is_refused_with_those_there_are() -> None:
    model = new_bert(model_type="modernbert", type_vocab_size=0)
    with pytest.raises(
        ModelError, match=r"modernbert model has no value .* There are: qkv, attention_output"
    ):
        add_lora(model, targets=("qkv", "value"))
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_a_linear_without_bias_merges_too() -> None:
    layer = LoraLinear(nn.Linear(4, 6, bias=False), ("query", None), LoraSettings(2, 4.0, 0.0, ("query",)))
    layer.draw()
    with torch.no_grad():
        layer.lora_B["query"].normal_()
    x = torch.randn(5, 4)
    assert close(layer.merge()(x), layer(x))
    assert close(layer(x)[:, 3:], x @ layer.weight[3:].T)
