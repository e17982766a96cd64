"""A fine-tuned model at work: predictions for texts or files, and figures on labelled ones."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from pathlib import Path
from typing import Any

import torch

from bertsmith.door import door, either, function, kind, one_of, optional, place, several
from bertsmith.errors import InputError
from bertsmith.files import require_output
from bertsmith.inference.engine import require_count, require_list, start_engine
from bertsmith.inference.provenance import TrainedOn, encoder_of_baseline, frozen_predictions
from bertsmith.model.locate import locate_model
from bertsmith.progress import Progress
from bertsmith.tasks.checkpoints.task_checkpoint import load_task_model
from bertsmith.tasks.evaluating.evaluation import Evaluation, evaluate
from bertsmith.tasks.examples.encoding import special_tokens
from bertsmith.tasks.examples.held_out import shared_with_train
from bertsmith.tasks.finetuning import encode_examples, few_at_a_time
from bertsmith.tasks.task import Prediction, Task, fitted_again, reading_columns
from bertsmith.tasks.task_model import LONGEST, TaskModel, outputs_of
from bertsmith.text.files.jsonl import write_jsonl
from bertsmith.text.labelled.labelled_files import labelled_files, named_files
from bertsmith.text.tokens.tokenizer import Tokenizer

# What bounds memory, and is enough to sort by length.
_EXAMPLES_AT_A_TIME, _CHARACTERS_AT_A_TIME = 4096, 1 << 22
# What a caller who may stop at any time waits for.
_WINDOWS_AT_A_TIME, _TEXTS_OF_WINDOWS, _CHARACTERS_OF_WINDOWS = 16, 64, 1 << 16
_CHARACTERS_OF_A_TOKEN = 16  # English has about 5


@dataclass(frozen=True)
class Predictor:
    """Model, tokenizer, and the task with its labels and thresholds. Load one by `Predictor.load`, whose
    model only predicts: on a processor its weights are packed.
    """

    model: TaskModel
    task: Task[Any]
    tokenizer: Tokenizer
    trained_on: TrainedOn | None = None
    before: Path | None = None  # the encoder's folder, without any fine-tuning

    @classmethod
    @door(task=optional(kind(type)), compute_dtype=optional(one_of(torch.float32, torch.int16)))
    def load(
        cls,
        name: str | Path,
        task: type[Task[Any]] | None = None,
        device: torch.device | str = "auto",
        compute_dtype: torch.dtype | None = None,
    ) -> "Predictor":
        """By path, alias or hub name; `task` for a model of a task of your own. Computes on a GPU where there
        is one, unless `device` says otherwise. Products of the encoder are in `compute_dtype`: float32, or
        int16 by the compiled kernels, the default where these are (docs/promises.md says what it changes). By
        the kernels a text's prediction is the same to the bit whatever the other texts are; by torch's
        products the last bits depend on them, and so may a printed digit.

        Raises ModelError when the checkpoint has no head of a task, InputError for int16 without kernels and
        for other precisions.
        """
        folder = locate_model(name).folder
        model, opened = load_task_model(folder, task)
        engine = start_engine(model, folder, device, compute_dtype)
        before = encoder_of_baseline(folder)
        return cls(model, opened, engine.tokenizer, TrainedOn.of_folder(folder), before)

    def predict(self, texts: Sequence[Any]) -> list[Prediction]:
        """One prediction a text, or a pair of texts, or (question, passage), or a sentence's words: whatever
        the task reads. Raises InputError, naming the place in `texts`, for anything else.
        """
        require_list(texts)
        examples = [self.task.example(text, f"input {number}") for number, text in enumerate(texts, 1)]
        require_count(len(examples), len(texts))
        return list(self._predictions(examples))

    def predict_windows(self, texts: Sequence[str]) -> Iterator[Prediction]:
        """Of a text that is cut in `predict`, a prediction for each window of `max_length` tokens, half of
        which the next one shows too; of others one. In the order of the texts, computed a few at a time as
        they are asked for: very long ones too, in parts that share as many characters as a window may have.
        """
        task, is_cut = self.task, self.task.settings.stride is None
        if is_cut:
            room = task.settings.max_length - special_tokens(self.tokenizer, 1)
            task = reading_columns(task, {"stride": room // 2})
        examples = [
            task.example(part, f"input {number}")
            for number, text in enumerate(texts, 1)
            for part in (_split_long_text(text, task.settings.max_length) if is_cut else [text])
        ]
        for some in few_at_a_time(task, examples, _TEXTS_OF_WINDOWS, _CHARACTERS_OF_WINDOWS):
            shown = [
                (example, part)
                for example, whole in zip(
                    some, encode_examples(task, some, self.tokenizer).encoded, strict=True
                )
                for part in (
                    [replace(whole, windows=(each,)) for each in whole.windows] if is_cut else [whole]
                )
            ]
            for start in range(0, len(shown), _WINDOWS_AT_A_TIME):
                of, parts = zip(*shown[start : start + _WINDOWS_AT_A_TIME], strict=True)
                yield from self.task.decode(outputs_of(self.model, parts), of, parts)

    @door(path=place, out=place, progress=optional(function), warn=optional(function))
    def predict_file(
        self,
        path: Path | str,
        out: Path | str,
        progress: Progress | None = None,
        *,
        overwrite: bool = False,
        warn: Callable[[str], None] | None = None,
        **columns: Any,
    ) -> int:
        """Predictions for the rows of a file, as JSON lines; '-' is a standard stream. Returns how many.

        `columns` changes where the texts are found, as settings: text, text_pair, header, format,
        encoding. A row without a text has "error": "no text" in place of a prediction, unless training took
        blank texts as they are (missing=keep); `warn` gets sentences on such rows, and on what may be
        misread. Raises InputError where `out` exists, unless `overwrite` says to replace it.
        """
        require_output(out, overwrite, [path])
        task = _task_for_file(self.task, columns)
        examples = task.read(path, labelled=False)
        is_kept = getattr(task.settings, "missing", None) == "keep"
        answered = [is_kept or task.has_text(example) for example in examples]
        blank = [
            example.where for example, has_answer in zip(examples, answered, strict=True) if not has_answer
        ]
        warnings = list(task.left_out)
        if blank:
            warnings.append(
                f"{len(blank):,} of {len(examples):,} rows have no text and no prediction, from {blank[0]} on"
            )
        if warn is not None:
            for sentence in warnings:
                warn(sentence)
        predictions = self._predictions([*compress(examples, answered)], progress)
        lines = (
            task.line(example, next(predictions) if has_answer else {"error": "no text"})
            for example, has_answer in zip(examples, answered, strict=True)
        )
        return write_jsonl(lines, out)

    @door(path=place, train=optional(either(several(place), place)))
    def evaluate(
        self, path: Path | str, train: Path | str | Sequence[Path | str] | None = None, **columns: Any
    ) -> Evaluation:
        """The model's figures on a labelled file, and those of baselines learnt from `train`, a file, a
        folder of them, or several.

        Without `train` what the model was trained on is taken, if it still is where it was; else
        there are no baselines that learn, and a warning says so. Of the file trained on only those rows count
        that were trained on. `columns` are those of `path`, as for `predict_file`, and label; `train` is read
        as in training. Raises InputError naming file and line.
        """
        task = _task_for_file(self.task, columns)
        examples = task.read(path)
        task.check(examples)
        split = encode_examples(self.task, examples, self.tokenizer)
        named = (train,) if isinstance(train, Path | str) else train or ()
        rows, warnings = self._training_rows(tuple(map(Path, named)), examples, Path(path))
        outputs = outputs_of(self.model, split.encoded)
        frozen: dict[str, list[Prediction]] = {}
        if rows and self.before is not None:  # the encoder as it was before it was fine-tuned
            again, device = fitted_again(self.task, rows), next(self.model.parameters()).device
            again.uncalibrate()
            frozen = frozen_predictions(again, self.before, rows, split, device)
        evaluation = evaluate(self.task, outputs, rows, split, frozen)
        said = *warnings, *task.left_out, *task.warnings(examples)
        return replace(evaluation, data_warnings=said, remarks=task.remarks())

    def _training_rows(
        self, named: tuple[Path, ...], examples: Sequence[Any], measured: Path
    ) -> tuple[list[Any] | None, list[str]]:
        """What baselines learn from, None if it isn't found, and sentences on it."""
        known, paths = self.trained_on, named
        if not named and known is not None and known.are_at(known.paths):
            paths = known.paths
        if not paths:
            if not self.task.baselines_learn:
                return None, []
            lost = (
                f"{known.name} is not there, or was changed" if known else "the model names no training file"
            )
            return None, [f"no baselines, for {lost}. Name the training file with --train"]
        # a copy: reading settles its columns
        again = reading_columns(self.task, {"encoding": known and known.columns.get("encoding")})
        try:
            is_known = known is not None and known.are_at(paths)
            if known is not None and is_known:
                rows = known.rows(again, paths)
            else:
                format = getattr(again.settings, "format", None)
                rows = again.read_files(labelled_files(paths, besides=[measured], format=format))
            again.check(rows)
        except InputError as error:
            if named:
                raise
            return None, [f"no baselines, for the model's training file can't be read as it was: {error}"]
        return rows, shared_with_train(self.task, rows, examples, measured.name, named_files(paths))

    def _predictions(self, examples: Sequence[Any], progress: Progress | None = None) -> Iterator[Prediction]:
        done = 0
        for some in few_at_a_time(self.task, examples, _EXAMPLES_AT_A_TIME, _CHARACTERS_AT_A_TIME):
            split = encode_examples(self.task, some, self.tokenizer)
            long = any(each.tokens > LONGEST for each in split.encoded)  # minutes, perhaps, of one text
            outputs = outputs_of(self.model, split.encoded, progress=progress if long else None)
            done += len(some)
            if progress is not None:
                progress(done, len(examples), "texts")
            yield from self.task.decode(outputs, some, split.encoded)


def _task_for_file(task: Task[Any], columns: dict[str, Any]) -> Task[Any]:
    """Raises InputError for settings that are no matter of reading: they would have no effect."""
    if own := sorted(task.settings.of_model & columns.keys()):
        raise InputError(
            f"{own[0]} is a setting of training, which the model keeps: it can't be changed for a file. "
            "Leave it out. Very long texts are read whole by predict_windows."
        )
    return reading_columns(task, columns)


def _split_long_text(text: str, max_length: int) -> Iterator[str]:
    """Of `_CHARACTERS_OF_WINDOWS` at most, cut at blanks where there are some."""
    shared = max_length * _CHARACTERS_OF_A_TOKEN
    size, start = max(_CHARACTERS_OF_WINDOWS, 2 * shared), 0
    while start + size < len(text):
        end = text.rfind(" ", start + size - shared // 2, start + size)
        end = start + size if end < 0 else end
        yield text[start:end]
        start = max(text.find(" ", end - shared, end - shared // 2), end - shared)
    yield text[start:]
