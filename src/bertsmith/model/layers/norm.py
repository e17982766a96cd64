"""LayerNorm (Ba et al. 2016), with or without its bias, or RMSNorm (Zhang and Sennrich 2019)."""

from torch import nn

from bertsmith.model.config import BertConfig


def make_norm(config: BertConfig) -> nn.LayerNorm | nn.RMSNorm:
    """Over the hidden size."""
    if config.norm == "rms":
        return nn.RMSNorm(config.hidden_size, eps=config.layer_norm_eps)
    return nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps, bias=config.norm_bias)
