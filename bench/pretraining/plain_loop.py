"""The usual loop on transformers: a model of masked language, batches padded to their longest text, AdamW.

Imported by the workers that measure it. A loop goes on from its folder, and its clock counts its steps alone.

B sequences of a batch, L the longest of them.
"""

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import AutoConfig, AutoModelForMaskedLM, AutoModelForPreTraining
from transformers.utils.logging import disable_progress_bar

from bertsmith.data.batch import Sequences
from bertsmith.data.store import TokenStore
from bertsmith.data.stream import Cursor, PretrainingStream
from bertsmith.model.config import BertConfig, make_config
from bertsmith.model.config_json import config_to_hugging_face
from bertsmith.text.tokens.tokenizer import Tokenizer
from pretraining_sides import LENGTH, Plain

STATE = "state.pt"

disable_progress_bar()


class PlainLoop:
    """Trains for so many `seconds` of its own clock, in parts: `train` goes on from what the folder holds."""

    def __init__(
        self,
        folder: Path,
        settings: Plain,
        shape: dict[str, Any],
        seconds: float,
        store: Path,
        tokenizer: Tokenizer,
    ) -> None:
        """`shape` has the names of BertConfig, `store` is one split of a token store."""
        self.folder, self.settings, self.seconds = folder, settings, seconds
        self.elapsed, self.tokens, self.step = 0.0, 0, 0
        self._cursor = Cursor()
        self._batches = PaddedBatches(TokenStore.open(store, tokenizer), tokenizer, settings)
        torch.manual_seed(0)
        self.model = _new_model(make_config(shape, settings.family), settings).train()
        self._optimizer = torch.optim.AdamW(
            self.model.parameters(),
            betas=(0.9, settings.beta2),
            weight_decay=settings.weight_decay,
            fused=settings.fused,
        )
        if (folder / STATE).exists():
            self._restore()

    def train(self, until: float) -> None:
        """Up to this second of its clock, or to its end; then writes what is needed to go on."""
        torch.manual_seed(self.step)  # of dropout
        before = self.elapsed
        started = time.monotonic()
        for batch, tokens, cursor in self._batches.after(self._cursor, self.step):
            self._train_on(batch)
            self._cursor, self.tokens, self.step = cursor, self.tokens + tokens, self.step + 1
            self.elapsed = before + time.monotonic() - started
            if self.elapsed >= min(until, self.seconds):
                break
        self._save()

    @property
    def finished(self) -> bool:
        return self.elapsed >= self.seconds

    def _train_on(self, batch: dict[str, torch.Tensor]) -> None:
        for group in self._optimizer.param_groups:
            group["lr"] = self.settings.rate(self.elapsed / self.seconds)
        self._optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=self.settings.precision == "bfloat16"):
            loss = self.model(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self._optimizer.step()

    def _save(self) -> None:
        state = {
            "model": self.model.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "progress": (self.elapsed, self.tokens, self.step),
            "cursor": asdict(self._cursor),
        }
        self.folder.mkdir(parents=True, exist_ok=True)
        partial = self.folder / f"{STATE}.partial"
        torch.save(state, partial)
        partial.replace(self.folder / STATE)

    def _restore(self) -> None:
        state = torch.load(self.folder / STATE, weights_only=True)
        self.model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])
        self.elapsed, self.tokens, self.step = state["progress"]
        self._cursor = Cursor(**state["cursor"])


def _new_model(config: BertConfig, settings: Plain) -> Any:
    values = config_to_hugging_face(config, "")
    del values["architectures"]
    spelled = AutoConfig.for_model(**values, **({"sparse_prediction": True} if settings.sparse else {}))
    return (AutoModelForPreTraining if settings.pairs else AutoModelForMaskedLM).from_config(spelled)


@dataclass(frozen=True)
class PaddedBatches:
    """Texts or pairs in random order, masked as transformers' collator does."""

    store: TokenStore
    tokenizer: Tokenizer
    settings: Plain

    def after(self, cursor: Cursor, step: int) -> Iterator[tuple[dict[str, torch.Tensor], int, Cursor]]:
        """From a place in the text and the number of the step on: a batch, its real tokens, where it ends."""
        tokens = self.settings.batch * LENGTH
        stream = PretrainingStream(self.store, self.tokenizer, 0, self.settings.pairs, LENGTH, tokens)
        for number, found in enumerate(stream.batches(cursor), start=step):
            random = np.random.default_rng([0, number])
            yield self._padded(found.sequences, random), int(found.sequences.lengths.sum()), found.end

    def _padded(self, sequences: Sequences, random: np.random.Generator) -> dict[str, torch.Tensor]:
        filled = np.arange(sequences.lengths.max()) < sequences.lengths[:, None]  # (B, L)
        ids = np.full(filled.shape, self.tokenizer.pad_id, np.int64)
        ids[filled] = sequences.token_ids
        masked, labels = self._masked(ids, filled, random)
        batch = {"input_ids": masked, "attention_mask": filled.astype(np.int64), "labels": labels}
        if self.settings.pairs:
            segments = np.zeros_like(ids)
            segments[filled] = sequences.segment_ids
            next_sentence = sequences.labels.astype(np.int64)
            batch |= {"token_type_ids": segments, "next_sentence_label": next_sentence}
        return {name: torch.from_numpy(values) for name, values in batch.items()}

    def _masked(
        self, ids: npt.NDArray[np.int64], filled: npt.NDArray[np.bool_], random: np.random.Generator
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """(B, L) what the model reads, and (B, L) what it is to predict."""
        special = np.isin(ids, list(self.tokenizer.special_ids))
        chosen = (random.random(ids.shape) < self.settings.masked) & filled & ~special
        draw = random.random(ids.shape)
        read = np.where(chosen & (draw < 0.8), self.tokenizer.mask_id, ids)
        swapped = chosen & (draw >= 0.8) & (draw < 0.9)
        read = np.where(swapped, random.integers(0, self.tokenizer.vocab_size, ids.shape), read)
        return read, np.where(chosen, ids, -100)
