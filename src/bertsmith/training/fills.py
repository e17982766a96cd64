"""Masked sentences, and what a run's model puts there before and after training: fills.json."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import nn

from bertsmith.files import read_json, write_json
from bertsmith.tasks.pretraining.fill_mask import fill_mask
from bertsmith.tasks.pretraining.pretraining import PretrainingModel
from bertsmith.text.tokens.tokenizer import Tokenizer
from bertsmith.training.checkpoint import read_training_state

FILLS = "fills.json"


def filled_masks(model: PretrainingModel, tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[Any]]:
    """The candidates of each text's first mask, best first."""
    return [[[*asdict(each).values()] for each in fill_mask(model, tokenizer, text)[0]] for text in texts]


def filled_at_first(
    out: Path,
    model: nn.Module,
    filling: PretrainingModel,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    checkpoint: str | None,
) -> list[list[Any]]:
    """`filled_masks` by what the run of `out` began with: kept there if it goes on; of a decay the weights of
    its `checkpoint`, which are put into `model`. `filling` is what fills masks by the weights of `model`.

    Raises ModelError when the checkpoint is damaged or gone.
    """
    if (out / FILLS).exists():
        return [each["before"] for each in read_json(out / FILLS)]
    if checkpoint is not None and texts:
        model.load_state_dict(read_training_state(Path(checkpoint)).weights)
    return filled_masks(filling, tokenizer, texts)


def write_fills(out: Path, examples: Sequence[tuple[str, str]], **sides: Sequence[list[Any]]) -> None:
    """`examples` are texts and what was masked there; `sides` their candidates, `before` or `before` and
    `after`.
    """
    fills: list[dict[str, Any]] = [{"text": text, "answer": answer} for text, answer in examples]
    for name, filled in sides.items():
        for fill, candidates in zip(fills, filled, strict=True):
            fill[name] = candidates
    write_json(out / FILLS, fills)
