"""The usual way in transformers: its tokenizer, AutoModelFor…, padding to a batch's longest, its Trainer.

Imported by the workers that measure it. Rows are what the Trainer takes: dicts of input_ids and labels.
"""

import json
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import (
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)
from transformers.trainer_utils import get_last_checkpoint

from bertsmith.model.locate import locate_model
from labelled import MODEL

Row = dict[str, Any]
INPUTS = ("input_ids", "token_type_ids", "attention_mask")


def load_tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(str(locate_model(MODEL).folder))


def load_model(kind: str, labels: Sequence[str], seed: int) -> Any:
    """The encoder with the new head for a task of ours, drawn by the seed."""
    set_seed(seed)
    classes: dict[str, tuple[Any, dict[str, Any]]] = {
        "classification": (AutoModelForSequenceClassification, {"num_labels": len(labels)}),
        "multi-label": (
            AutoModelForSequenceClassification,
            {"num_labels": len(labels), "problem_type": "multi_label_classification"},
        ),
        "regression": (AutoModelForSequenceClassification, {"num_labels": 1, "problem_type": "regression"}),
        "tagging": (AutoModelForTokenClassification, {"num_labels": len(labels)}),
        "question-answering": (AutoModelForQuestionAnswering, {}),
    }
    kind_of_model, options = classes[kind]
    folder = str(locate_model(MODEL).folder)
    return kind_of_model.from_pretrained(folder, dtype=torch.float32, **options)


def fit(
    model: Any,
    collate: Any,
    rows: Sequence[Row],
    settings: dict[str, Any],
    seed: int,
    after_epoch: Callable[[], None] = lambda: None,
    folder: Path | None = None,
    precision: str | None = None,
) -> dict[str, Any]:
    """Trains by settings under our names; returns the seconds, evaluations left out, real tokens, and the
    precision of products: if none is given, bfloat16 on a GPU and, as is usual, float32 on a processor.

    A run with a folder goes on from the last checkpoint there.
    """
    precision = precision or ("bfloat16" if torch.cuda.is_available() else "float32")
    with tempfile.TemporaryDirectory() as temporary:
        out = folder or Path(temporary)
        last = get_last_checkpoint(str(out)) if out.is_dir() else None
        watch = _Stopwatch(after_epoch, Path(last) if last else None)
        arguments = TrainingArguments(
            output_dir=str(out),
            num_train_epochs=settings["epochs"],
            learning_rate=settings["optimizer.learning_rate"],
            weight_decay=settings["optimizer.weight_decay"],
            warmup_steps=settings["optimizer.warmup"],  # below 1: a share of all steps
            per_device_train_batch_size=settings["batch_size"],
            use_cpu=not torch.cuda.is_available(),  # else it refuses bfloat16 on a processor
            bf16=precision == "bfloat16",
            dataloader_pin_memory=torch.cuda.is_available(),
            seed=seed,
            save_strategy="steps" if folder else "no",
            save_steps=50,
            save_total_limit=1,
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        Trainer(
            model=model, args=arguments, train_dataset=list(rows), data_collator=collate, callbacks=[watch]
        ).train(resume_from_checkpoint=last)
    tokens = sum(len(row["input_ids"]) for row in rows) * watch.epochs
    return {"seconds": watch.seconds, "tokens": tokens, "precision": precision}


class _Stopwatch(TrainerCallback):
    """Runs from the first step to the last, and stands still while an epoch is judged or a step saved."""

    _FILE = "seconds.json"

    def __init__(self, after_epoch: Callable[[], None], last: Path | None) -> None:
        self.seconds = json.loads((last / self._FILE).read_text()) if last else 0.0
        self.epochs, self._after_epoch = 0.0, after_epoch
        self._started: float | None = None

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if control.should_save:
            self._stop()

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        path = Path(args.output_dir) / f"checkpoint-{state.global_step}" / self._FILE
        path.write_text(json.dumps(self.seconds))

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._started is None:
            self._started = time.perf_counter()

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._stop()
        self._after_epoch()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._stop()
        self.epochs = state.epoch

    def _stop(self) -> None:
        if self._started is not None:
            self.seconds += time.perf_counter() - self._started
            self._started = None


@torch.inference_mode()
def outputs_of(model: Any, collate: Any, rows: Sequence[Row], names: Sequence[str]) -> list[list[Any]]:
    """Per row, the outputs of these names, padded as they were computed; rows of like length together."""
    was_training = model.training
    model.eval()
    found: list[list[Any]] = [[] for _ in rows]
    for numbers in _by_length(rows):
        batch = collate([{name: rows[number][name] for name in INPUTS} for number in numbers])
        result = model(**{name: tensor.to(model.device) for name, tensor in batch.items()})
        arrays = [getattr(result, name).float().cpu().numpy() for name in names]
        for place, number in enumerate(numbers):
            found[number] = [array[place] for array in arrays]
    model.train(was_training)
    return found


def _by_length(rows: Sequence[Row], batch: int = 64) -> Iterator[list[int]]:
    order = np.argsort([-len(row["input_ids"]) for row in rows], kind="stable").tolist()
    for start in range(0, len(order), batch):
        yield order[start : start + batch]
