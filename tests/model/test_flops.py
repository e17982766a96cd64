"""Operations by torch's own count, for every family, windows apart: these by counting pairs."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from bertsmith.data.batch import PackedBatch
from bertsmith.model.bert import Bert
from bertsmith.model.config import BertConfig, make_config
from bertsmith.model.flops import attention_flops, encoder_flops, linear_flops, muon_flops, seen_pairs
from bertsmith.training.optimizer import Muon, find_layer_matrices

LENGTHS = np.array([5, 9, 9, 14])


def small(**values: object) -> BertConfig:
    shape = {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 2, "intermediate_size": 48}
    return make_config({"vocab_size": 60, "pad_token_id": 0, **shape, **values}, "test")


@pytest.mark.parametrize(
    "family", ["bert", "jina_bert", "modernbert", "nomic_bert", "gte", "albert", "mpnet", "deberta-v2"]
)
def test_linear_operations_are_those_that_torch_counts(family: str) -> None:
    config = small(model_type=family, pad_token_id=int(family == "mpnet"))
    model = Bert(config)
    tokens = int(LENGTHS.sum())
    batch = PackedBatch.pack(np.ones(tokens, np.int64), np.zeros(tokens, np.int64), LENGTHS)
    rows = torch.tensor([0, 7, 20])
    counted = []

    def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        counted.append(2 * x.shape[0] * weight.numel())
        return plain(x, weight, bias)

    plain = F.linear
    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.setattr(F, "linear", linear)
        model(batch, rows)
    assert linear_flops(config, tokens, len(rows)) == sum(counted)


def test_attention_over_everything_is_what_torch_counts() -> None:
    config = small()
    with FlopCounterMode(display=False) as counter:
        for length in LENGTHS.tolist():
            states = torch.randn(2, length, 16)
            for _ in range(config.num_hidden_layers):
                (states @ states.mT) @ states
    assert attention_flops(config, LENGTHS) == counter.get_total_flops()


@pytest.mark.parametrize("window", [0, 1, 3, 8, 13, 100])
def test_pairs_within_a_window_are_counted_one_by_one(window: int) -> None:
    counted = sum(
        abs(i - j) <= window for length in LENGTHS.tolist() for i in range(length) for j in range(length)
    )
    assert seen_pairs(LENGTHS, window) == counted


def test_local_layers_cost_what_they_touch() -> None:
    config = small(model_type="modernbert", local_attention=6)  # layers 0 and 3 see everything
    pairs = 2 * seen_pairs(LENGTHS, None) + 2 * seen_pairs(LENGTHS, 3)
    tokens = float(LENGTHS.sum())
    expected = linear_flops(config, tokens, tokens) + 4 * config.hidden_size * pairs
    assert encoder_flops(config, LENGTHS, tokens) == expected


@pytest.mark.parametrize("family", ["bert", "modernbert"])
def test_muons_operations_are_those_that_torch_counts(family: str) -> None:
    config = small(model_type=family)
    model = Bert(config)
    weights = dict(model.named_parameters())
    groups = [
        {"params": [weights[name]], "matrices": count} for name, count in find_layer_matrices(model).items()
    ]
    muon = Muon(groups, momentum=0.9, precision=torch.float32)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    with FlopCounterMode(display=False) as counter:
        muon.step()
    assert muon_flops(config) == counter.get_total_flops()
