"""A tiny pre-training task with dropout and with weights far from zero."""

import torch

from bertsmith.data.batch import Sequences
from bertsmith.data.masking import Masker, MaskingRates
from bertsmith.data.store import TokenStore
from bertsmith.data.stream import PretrainingStream
from bertsmith.model.config import BertConfig
from bertsmith.model.cpu.grouped_attention import padded_length
from bertsmith.tasks.pretraining.pretraining import PretrainingModel, PretrainingTask
from bertsmith.text.tokens.tokenizer import Tokenizer


def small_config(tokenizer: Tokenizer, family: str = "bert") -> BertConfig:
    return BertConfig.model_validate(
        {
            "model_type": family,
            "vocab_size": tokenizer.vocab_size,
            "hidden_size": 16,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "intermediate_size": 32,
            "max_position_embeddings": 64,
            "pad_token_id": tokenizer.pad_id,
        }
    )


def filler_operations(config: BertConfig, sequences: Sequences, masked: int) -> int:
    """Forward and backward in float32: attention's for what it fills sequences up with, and the vocabulary's
    for what fills the masked positions up to whole registers of 16.
    """
    lengths = sequences.lengths.tolist()
    squares = sum(padded_length(length, torch.float32) ** 2 - length**2 for length in lengths)
    attention = 3 * config.num_hidden_layers * 4 * config.hidden_size * squares
    return attention + 3 * 2 * (-masked % 16) * config.hidden_size * config.vocab_size


def small_task(
    store: TokenStore, tokenizer: Tokenizer, *, family: str = "bert", whole_words: bool = False
) -> PretrainingTask:
    """Held-out text is the training text: what is tested here is counting."""
    torch.manual_seed(1)
    model = PretrainingModel(small_config(tokenizer, family))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.3)
    stream = PretrainingStream(store, tokenizer, 3, model.next_sentence is not None, 48, 480)
    masker = Masker(tokenizer, MaskingRates(whole_words=whole_words))
    return PretrainingTask(model, [stream], masker, stream, 4000, torch.device("cpu"))
