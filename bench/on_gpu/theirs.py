"""The sides of transformers: its models with SDPA, padded batches, autocast and fused AdamW, compiled or not.

They are given what a careful user would: padded batches made beforehand in pinned memory, micro-batches of
as many slots as ours has tokens, texts sorted by length, no value read back within a step. Dropout is ours:
on a GPU none on attention weights, where our variable-length attention has none.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bertsmith.data.batch import Sequences
from bertsmith.model.config import BertConfig
from bertsmith.tasks.examples.encoding import EncodedExample, pack_examples
from on_gpu.scale import Scale

Padded = dict[str, Tensor]
_MASK_ID, _IGNORED, _RATE = 4, -100, 0.15


class _Training:
    """Steps over micro-batches."""

    def __init__(self, model: nn.Module, scale: Scale, *, compiled: bool) -> None:
        self._scale = scale
        self._parameters = list(model.to(scale.device).train().parameters())
        self._model: Any = torch.compile(model, dynamic=False) if compiled else model
        self._optimizer = torch.optim.AdamW(self._parameters, lr=1e-7, weight_decay=0.01, fused=True)
        # one shape to compile for: padded to a fixed length, as is usual with torch.compile
        self._fixed = compiled

    def step(self, micro_batches: list[Padded]) -> None:
        """Forward, backward, clipping, AdamW."""
        self._optimizer.zero_grad()
        for batch in micro_batches:
            with autocast(self._scale):
                loss = self._model(**to_device(batch, self._scale.device)).loss
            (loss / len(micro_batches)).backward()
        nn.utils.clip_grad_norm_(self._parameters, 1.0)
        self._optimizer.step()


class Pretraining(_Training):
    """BertForPreTraining."""

    def __init__(self, scale: Scale, size: str, *, compiled: bool = False) -> None:
        from transformers import BertForPreTraining

        config = their_config(scale.config(size), scale.device)
        super().__init__(BertForPreTraining(config), scale, compiled=compiled)

    def prepare(self, sequences: Sequences) -> list[Padded]:
        """15 % masked. Compiled, mixed lengths are padded to the most there may be."""
        mixed = len(set(sequences.lengths.tolist())) > 1
        least = self._scale.longest if self._fixed and mixed else 0
        rows = max(self._scale.step_tokens // max(int(sequences.lengths.max()), least), 1)
        found = []
        for start in range(0, len(sequences), rows):
            part = sequences.take(np.arange(start, min(start + rows, len(sequences))))
            batch = pad(part, max(least, 0), rows if least else len(part))
            chosen = (torch.rand(batch["input_ids"].shape) < _RATE) & batch["attention_mask"].bool()
            batch["labels"] = batch["input_ids"].where(chosen, _IGNORED)
            batch["input_ids"] = batch["input_ids"].where(~chosen, _MASK_ID)
            labels = torch.full((len(batch["input_ids"]),), _IGNORED)
            labels[: len(part)] = torch.from_numpy(part.labels)
            batch["next_sentence_label"] = labels
            found.append(pinned(batch, self._scale.device))
        return found


class Finetune(_Training):
    """BertForSequenceClassification on batches padded to their longest."""

    def __init__(
        self, scale: Scale, size: str, examples: Sequence[EncodedExample], *, compiled: bool = False
    ) -> None:
        from transformers import BertForSequenceClassification

        self._examples = examples
        config = their_config(scale.config(size), scale.device, num_labels=2)
        super().__init__(BertForSequenceClassification(config), scale, compiled=compiled)

    def prepare(self, sequences: Sequences) -> list[Padded]:
        """Keys are numbers of examples. Compiled, all batches are padded to SST-2's longest, 64."""
        batch = pad(sequences, 64 if self._fixed else 0, len(sequences))
        targets = [self._examples[number].target for number in sequences.keys.astype(int).tolist()]
        return [pinned(batch | {"labels": torch.tensor(targets)}, self._scale.device)]


class Embedding:
    """BertModel on texts sorted by length, in batches of as many slots as ours has tokens."""

    def __init__(self, scale: Scale, size: str, *, compiled: bool = False) -> None:
        from transformers import BertModel

        self._scale = scale
        config = their_config(scale.config(size), scale.device)
        self._model: Any = BertModel(config, add_pooling_layer=False)
        self._model.to(scale.device).eval()
        if compiled:
            self._model = torch.compile(self._model, dynamic=True)

    def prepare(self, encoded: Sequence[EncodedExample]) -> list[tuple[list[int], Padded]]:
        """Padded beforehand."""
        return [
            (numbers, pinned(pad(_packed(encoded, numbers), 0), self._scale.device))
            for numbers in self._batches(encoded)
        ]

    @torch.inference_mode()
    def step(self, batches: list[tuple[list[int], Padded]]) -> np.ndarray:
        """(E, H) on the host."""
        found: dict[int, Any] = {}
        for numbers, padded in batches:
            batch = to_device(padded, self._scale.device)
            with autocast(self._scale):
                states = self._model(**batch).last_hidden_state
            mask = batch["attention_mask"].unsqueeze(2)
            vectors = ((states.float() * mask).sum(1) / mask.sum(1)).cpu().numpy()
            found |= dict(zip(numbers, vectors, strict=True))
        return np.stack([found[number] for number in sorted(found)])

    def _batches(self, encoded: Sequence[EncodedExample]) -> Iterator[list[int]]:
        lengths = [len(each.windows[0].token_ids) for each in encoded]
        order = sorted(range(len(encoded)), key=lambda number: -lengths[number])
        while order:
            count = max(self._scale.embed_tokens // lengths[order[0]], 1)
            yield order[:count]
            order = order[count:]


def their_config(config: BertConfig, device: torch.device, **more: Any) -> Any:
    """The same shape, and as much dropout as ours has on this device."""
    from transformers import BertConfig as Theirs

    names = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    shape = {name: getattr(config, name) for name in (*names, "max_position_embeddings")}
    on_weights = 0.0 if device.type == "cuda" else config.attention_probs_dropout_prob
    dropout = {
        "hidden_dropout_prob": config.hidden_dropout_prob,
        "attention_probs_dropout_prob": on_weights,
    }
    return Theirs(**shape, **dropout, attn_implementation="sdpa", **more)


def autocast(scale: Scale) -> AbstractContextManager[Any]:
    return torch.autocast(scale.device.type, scale.precision, enabled=scale.precision != torch.float32)


def pad(sequences: Sequences, length: int, rows: int = 0) -> Padded:
    """To `length` or, if that is more, to the longest; to `rows`, the last of them padding alone."""
    longest = max(int(sequences.lengths.max()), length)
    shape = (max(rows, len(sequences)), longest)
    ids, segments, mask = (torch.zeros(shape, dtype=torch.long) for _ in range(3))
    ends = np.cumsum(sequences.lengths)
    for row, (end, count) in enumerate(zip(ends, sequences.lengths, strict=True)):
        ids[row, :count] = torch.from_numpy(sequences.token_ids[end - count : end])
        segments[row, :count] = torch.from_numpy(sequences.segment_ids[end - count : end])
        mask[row, :count] = 1
    mask[len(sequences) :, 0] = 1  # a row that attends to nothing is not a number
    return {"input_ids": ids, "token_type_ids": segments, "attention_mask": mask}


def pinned(batch: Padded, device: torch.device) -> Padded:
    """Where a copy to the GPU need not be waited for."""
    return {name: each.pin_memory() if device.type == "cuda" else each for name, each in batch.items()}


def to_device(batch: Padded, device: torch.device) -> Padded:
    return {name: each.to(device, non_blocking=True) for name, each in batch.items()}


def _packed(encoded: Sequence[EncodedExample], numbers: Sequence[int]) -> Sequences:
    return pack_examples([encoded[number] for number in numbers], numbers)
