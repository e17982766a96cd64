"""How large the run is: as published on a GPU, or in miniature to see whether it runs at all."""

from dataclasses import dataclass

import torch

from bertsmith.model.config import BertConfig, preset


@dataclass(frozen=True)
class Scale:
    """Shapes by the names of the report, tokens of a step, texts to embed, and how long is measured.

    `longest` is the most positions, `length` the short one that is measured beside it; a side is timed for
    `seconds` in each of `rounds`.
    """

    device: torch.device
    precision: torch.dtype
    vocabulary: int
    pretrained: tuple[str, ...]
    finetuned: str
    embedded: tuple[str, ...]
    step_tokens: int
    texts: int
    embed_tokens: int
    length: int
    longest: int
    rounds: int
    seconds: float

    def config(self, name: str) -> BertConfig:
        """A published size, or MiniLM's shape (Wang et al. 2020), with this vocabulary and length."""
        limits = {"vocab_size": self.vocabulary, "max_position_embeddings": self.longest}
        if name != "MiniLM":
            return preset(name.removeprefix("BERT-"), **limits)
        shape = {"num_hidden_layers": 6, "hidden_size": 384, "num_attention_heads": 12}
        return BertConfig.model_validate(shape | {"intermediate_size": 1536} | limits)


def full(device: torch.device) -> Scale:
    """For a data centre's GPU: micro-batches as the library makes them there."""
    sizes = ("BERT-base", "BERT-large")
    return Scale(
        device, torch.bfloat16, 30_522, sizes, "BERT-base", ("MiniLM", "BERT-base"), 32_768, 8192, 32_768,
        128, 512, rounds=5, seconds=0.4,
    )  # fmt: skip


def small(device: torch.device) -> Scale:
    """Everything in under a minute of one processor."""
    precision = torch.bfloat16 if device.type == "cuda" else torch.float32
    return Scale(
        device, precision, 600, ("BERT-tiny",), "BERT-tiny", ("BERT-tiny",), 256, 12, 256, 16, 64,
        rounds=1, seconds=0.01,
    )  # fmt: skip
