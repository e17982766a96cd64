"""LayerNorm (Ba et al. 2016), with or without its bias, or RMSNorm (Zhang and Sennrich 2019)."""

from torch import nn

from bertsmith.model.config import BertConfig


def make_norm(config: BertConfig, width: int | None = None) -> nn.LayerNorm | nn.RMSNorm:
    """Over `width` values, the hidden size unless said."""
    width = config.hidden_size if width is None else width
    if config.norm == "rms":
        return nn.RMSNorm(width, eps=config.layer_norm_eps)
    return nn.LayerNorm(width, eps=config.layer_norm_eps, bias=config.norm_bias)
