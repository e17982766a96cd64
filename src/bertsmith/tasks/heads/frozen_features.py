"""What the last layer of a head reads of each example while nothing is trained.

R rows that the head answers for, F features.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bertsmith.data.batch import PackedBatch
from bertsmith.progress import Progress
from bertsmith.tasks.computing.evaluation_mode import evaluating
from bertsmith.tasks.computing.forward_passes import forward_passes
from bertsmith.tasks.computing.task_model import TaskModel
from bertsmith.tasks.examples.encoding import Layout


def features_of(model: TaskModel, encoded: Sequence[Any], progress: Progress | None = None) -> list[Tensor]:
    """(F,) of each example, or (R, F) where the head answers per row: what its last layer reads."""
    head = model.head

    def compute(batch: PackedBatch, layout: Layout) -> Tensor:
        return head.features(model.states(batch, layout), layout).float()

    found: list[Tensor | None] = [None] * len(encoded)
    done = 0
    with evaluating(model):
        for numbers, layout, outputs in forward_passes(compute, encoded, next(model.parameters()).device):
            ends = np.cumsum(layout.rows_of_example)[:-1] if head.per_row else None
            pieces = outputs if ends is None else np.split(outputs, ends)
            for number, piece in zip(numbers, pieces, strict=True):
                found[number] = torch.from_numpy(piece)
            done += len(numbers)
            if progress is not None:
                progress(done, len(encoded), "texts")
    return [each for each in found if each is not None]


def mean_lengths(features: Sequence[Tensor], columns: int) -> float | Tensor:
    """What makes features of mean square length 1 of them, so that strengths mean the same for every encoder:
    one number or, where the last are those of columns beside the text, (F,): each part for itself.
    """
    if columns:
        text, beside = ([each[..., place] for each in features] for place in text_and_columns(columns))
        both = [mean_lengths(part, 0) for part in (text, beside)]
        widths = torch.tensor([text[0].shape[-1], columns])
        return torch.tensor(both).repeat_interleave(widths)
    squares = sum(float(each.square().sum()) for each in features)
    return math.sqrt(squares / sum(each.numel() // each.shape[-1] for each in features)) or 1.0


def text_and_columns(columns: int) -> tuple[slice, slice]:
    """Where the text's features are, and those of columns beside it."""
    return slice(None, -columns), slice(-columns, None)
