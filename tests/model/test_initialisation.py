"""Weights before training."""

import pytest
import torch

from bertsmith.model.adaptation import reinitialise
from bertsmith.model.bert import Bert
from bertsmith.model.config import make_config

SHAPE = {"hidden_size": 128, "num_hidden_layers": 8, "num_attention_heads": 4, "intermediate_size": 128}


@pytest.mark.parametrize(("family", "share"), [("bert", 1.0), ("nomic_bert", 1.0), ("modernbert", 0.25)])
def test_what_a_pre_norm_layer_adds_is_smaller_by_the_number_of_layers(family: str, share: float) -> None:
    """1 / sqrt(2 x 8) = 1/4; a normal distribution cut off at two deviations has 0.88 of the deviation."""
    torch.manual_seed(1)
    names = {"model_type": family, "vocab_size": 50, "pad_token_id": 0}
    model = Bert(make_config({**names, **SHAPE, "initializer_range": 0.05}, "test"))
    for draw in (lambda: None, lambda: reinitialise(model, 2)):
        draw()
        for layer in (model.layers[0], model.layers[7]):
            deviations = {name: float(weight.detach().std()) for name, weight in layer.named_parameters()}
            assert deviations["attention.qkv.weight"] == pytest.approx(0.05 * 0.88, rel=0.03)
            assert deviations["feed_forward.up.weight"] == pytest.approx(0.05 * 0.88, rel=0.03)
            for added in ("attention.output.weight", "feed_forward.down.weight"):
                assert deviations[added] == pytest.approx(0.05 * 0.88 * share, rel=0.03)
