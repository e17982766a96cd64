"""Predictor: loads a fine-tuned model, predicts for texts in memory or a file of them, and evaluates it on a
labelled file beside baselines.

Read `Predictor.load` and `Predictor.predict` first. The tasks (bertsmith.tasks) encode inputs and decode
outputs; what a model was trained on, which the baselines learn from, is in provenance.py.
"""

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import compress
from pathlib import Path
from typing import Any, NamedTuple

import torch

from bertsmith.argument_checks import (
    any_of,
    check_arguments,
    check_function,
    check_path,
    instance_of,
    list_of,
    one_of,
    optional,
)
from bertsmith.errors import InputError
from bertsmith.files import require_output, write_jsonl
from bertsmith.inference.engine import (
    make_ready,
    open_task_model,
    require_count,
    require_list,
    require_texts,
)
from bertsmith.inference.provenance import TrainedOn, encoder_of_baseline, frozen_predictions
from bertsmith.model.bert import Bert
from bertsmith.model.cpu.int8 import Int8Choice
from bertsmith.model.locate import locate_model
from bertsmith.progress import Progress
from bertsmith.tasks.evaluating.evaluation import Evaluation, evaluate
from bertsmith.tasks.examples.encoding import Encoded, special_tokens
from bertsmith.tasks.examples.held_out import shared_with_train
from bertsmith.tasks.finetuning import encode_examples, few_at_a_time
from bertsmith.tasks.task import Metrics, Prediction, Task, fitted_again, reading_columns
from bertsmith.tasks.task_model import LONGEST, TaskModel, outputs_of, outputs_together
from bertsmith.text.labelled.labelled_files import describe_files, list_labelled_files
from bertsmith.text.tokens.tokenizer import Tokenizer
from bertsmith.text.workers import Engine, map_in_order_by_ray, require_engine

# Examples encoded at a time: bounds memory, and is enough to batch examples of like length.
_EXAMPLES_AT_A_TIME, _CHARACTERS_AT_A_TIME = 4096, 1 << 22
# `predict_windows` computes little at a time, because its caller may stop after any window.
_WINDOWS_AT_A_TIME, _TEXTS_OF_WINDOWS, _CHARACTERS_OF_WINDOWS = 16, 64, 1 << 16
_CHARACTERS_OF_A_TOKEN = 16  # English has about 5


class PredictorComparison(NamedTuple):
    """A model's metrics on rows, and how many of its answers are another's; None where answers are
    numbers.
    """

    model: Metrics
    same_answers: int | None


@dataclass(frozen=True)
class Predictor:
    """A fine-tuned model with its tokenizer and its task, which holds labels and thresholds.

    `Predictor.load` opens one. The model can't be trained further: on a processor its weights are packed for
    inference.
    """

    model: TaskModel
    task: Task[Any]
    tokenizer: Tokenizer
    trained_on: TrainedOn | None = None
    before: Path | None = None  # folder of the encoder before it was fine-tuned

    @property
    def int8_choice(self) -> Int8Choice | None:
        """The same as `Embedder.int8_choice` has it."""
        encoder = self.model.encoder
        return encoder.int8_choice if isinstance(encoder, Bert) else None

    @classmethod
    @check_arguments(
        task=optional(instance_of(type)),
        compute_dtype=optional(one_of(torch.float32, torch.int16, torch.int8)),
    )
    def load(
        cls,
        name: str | Path,
        task: type[Task[Any]] | None = None,
        device: torch.device | str = "auto",
        compute_dtype: torch.dtype | None = None,
    ) -> "Predictor":
        """Opens a fine-tuned model by its path, alias or hub name.

        `task` is the task's class if you wrote it yourself. The model computes on a GPU if there is one,
        unless `device` names another device. `compute_dtype` is the precision of the encoder's matrix
        products: float32, or int16 by the compiled kernels, which is the default where they are installed
        (docs/how-it-works.md says what that changes). With the kernels, a text's prediction is the same to
        the bit whatever it is batched with; with torch's products the last bits depend on the batch, and so
        may a printed digit.

        Raises ModelError when the checkpoint has no task head, InputError for int16 without kernels and for
        any other precision.
        """
        folder = locate_model(name).folder
        engine, opened = open_task_model(folder, task, device, compute_dtype)
        before = encoder_of_baseline(folder)
        return cls(engine.model, opened, engine.tokenizer, TrainedOn.of_folder(folder), before)

    def predict(self, texts: Sequence[Any]) -> list[Prediction]:
        """Returns one prediction for each input, in order.

        An input is what the task reads: a text, a pair of texts, (question, passage), or a sentence's words.
        Raises InputError for anything else, naming the input's number, from 1.
        """
        require_list(texts)
        examples = [self.task.example(text, f"input {number}") for number, text in enumerate(texts, 1)]
        require_count(len(examples), len(texts))
        return list(self._predict_examples(examples))

    @staticmethod
    def predict_together(predictors: Sequence["Predictor"], texts: Sequence[Any]) -> list[list[Prediction]]:
        """Returns what `predict` of each predictor gives for the same inputs, one list for each predictor.

        Predictors with equal encoders, as of frozen or LoRA models, share it once loaded: then the encoder
        reads a text once for all of them. With the compiled kernels predictions are those of `predict` to the
        bit. Raises InputError as `predict` does.
        """
        require_list(texts)
        results: list[list[Prediction]] = [[] for _ in predictors]
        for start in range(0, len(texts), _TEXTS_OF_WINDOWS):
            some = texts[start : start + _TEXTS_OF_WINDOWS]
            parts = [
                [p.task.example(text, f"input {number}") for number, text in enumerate(some, start + 1)]
                for p in predictors
            ]
            splits = [
                encode_examples(p.task, examples, p.tokenizer).encoded
                for p, examples in zip(predictors, parts, strict=True)
            ]
            outputs = outputs_together([p.model for p in predictors], splits)
            for number, predictor in enumerate(predictors):
                results[number] += predictor.task.decode(outputs[number], parts[number], splits[number])
        return results

    def predict_windows(self, texts: Sequence[str]) -> Iterator[Prediction]:
        """Yields a prediction for each window of each text, in order.

        A text that `predict` would truncate is read in windows of `max_length` tokens, each of which overlaps
        the next by half; taggers, and tasks that have a stride, yield one prediction for each text.
        Predictions are computed lazily, a few windows at a time. Very long texts are encoded in parts that
        overlap by as many characters as a window may hold. Raises InputError as `predict` does.
        """
        require_texts(texts)
        task = self.task
        is_cut = task.settings.stride is None and not task.is_pretokenized  # a tagger reads texts whole
        if is_cut:
            room = task.settings.max_length - special_tokens(self.tokenizer, 1)
            task = reading_columns(task, {"stride": room // 2})
        examples = [
            task.example(part, f"input {number}")
            for number, text in enumerate(texts, 1)
            for part in (_split_long_text(text, task.settings.max_length) if is_cut else [text])
        ]
        for batch in few_at_a_time(task, examples, _TEXTS_OF_WINDOWS, _CHARACTERS_OF_WINDOWS):
            windows: list[tuple[Any, Encoded]] = []
            for example, encoded in zip(
                batch, encode_examples(task, batch, self.tokenizer).encoded, strict=True
            ):
                alone = [replace(encoded, windows=(window,)) for window in encoded.windows]
                windows += [(example, part) for part in (alone if is_cut else [encoded])]
            for start in range(0, len(windows), _WINDOWS_AT_A_TIME):
                owners, parts = zip(*windows[start : start + _WINDOWS_AT_A_TIME], strict=True)
                yield from self.task.decode(outputs_of(self.model, parts), owners, parts)

    @check_arguments(
        path=check_path, out=check_path, progress=optional(check_function), warn=optional(check_function)
    )
    def predict_file(
        self,
        path: Path | str,
        out: Path | str,
        progress: Progress | None = None,
        *,
        overwrite: bool = False,
        warn: Callable[[str], None] | None = None,
        engine: Engine = "local",
        **columns: Any,
    ) -> int:
        """Predicts for every row of a file and writes JSON lines to `out`. Returns the number of rows. With
        `engine` "ray" a cluster computes, 4,096 rows at a time, and this process reads and writes.

        `path` and `out` may be '-', a standard stream. `columns` are settings that say where the texts stand:
        text, text_pair, header, format, encoding. A row without a text gets "error": "no text" instead of a
        prediction, unless the model was trained with missing=keep. `warn` is called with a sentence about
        such rows, and about anything that may have been misread. Raises InputError if `out` exists, unless
        `overwrite`.
        """
        require_output(out, overwrite, [path])
        require_engine(engine)
        task = _task_for_file(self.task, columns)
        examples = task.read(path, labelled=False)
        keeps_blank = getattr(task.settings, "missing", None) == "keep"
        answerable = [keeps_blank or task.has_text(example) for example in examples]
        blank = [
            example.where
            for example, is_answered in zip(examples, answerable, strict=True)
            if not is_answered
        ]
        warnings = list(task.left_out)
        if blank:
            warnings.append(
                f"{len(blank):,} of {len(examples):,} rows have no text and no prediction, the first is "
                f"{blank[0]}"
            )
        if warn is not None:
            for sentence in warnings:
                warn(sentence)
        predict = self._predict_by_ray if engine == "ray" else self._predict_examples
        predictions = predict([*compress(examples, answerable)], progress)
        lines = (
            task.line(example, next(predictions) if is_answered else {"error": "no text"})
            for example, is_answered in zip(examples, answerable, strict=True)
        )
        return write_jsonl(lines, out)

    @check_arguments(path=check_path, train=optional(any_of(list_of(check_path), check_path)))
    def evaluate(
        self, path: Path | str, train: Path | str | Sequence[Path | str] | None = None, **columns: Any
    ) -> Evaluation:
        """Evaluates the model on a labelled file, beside baselines that learn from `train`: a file, a folder
        of files, or several of them.

        By default `train` is what the model was trained on, if those files are still there unchanged, without
        the rows that were held out; otherwise no baseline learns, and a warning says so. `columns` say where
        `path` has its texts and labels, as for `predict_file`; `train` is read as in training. Raises
        InputError naming file and line.
        """
        task = _task_for_file(self.task, columns)
        examples = task.read(path)
        task.check(examples)
        split = encode_examples(self.task, examples, self.tokenizer)
        train_paths = (train,) if isinstance(train, Path | str) else train or ()
        rows, warnings = self._training_rows(tuple(map(Path, train_paths)), examples, Path(path))
        outputs = outputs_of(self.model, split.encoded)
        frozen: dict[str, list[Prediction]] = {}
        if rows and self.before is not None:  # the encoder as it was before it was fine-tuned
            probe_task, device = fitted_again(self.task, rows), next(self.model.parameters()).device
            probe_task.uncalibrate()
            frozen = frozen_predictions(probe_task, self.before, rows, split, device)
        evaluation = evaluate(self.task, outputs, rows, split, frozen)
        data_warnings = *warnings, *task.left_out, *task.warnings(examples)
        return replace(evaluation, data_warnings=data_warnings, remarks=task.remarks())

    def compare(self, evaluation: Evaluation) -> "PredictorComparison":
        """Predicts the rows of an evaluation, that of the same model in another precision."""
        split = evaluation.split
        predictions = self.task.decode(outputs_of(self.model, split.encoded), split.examples, split.encoded)
        same = None
        if self.task.decided:
            pairs = zip(predictions, evaluation.predictions, strict=True)
            same = sum(all(a[key] == b[key] for key in self.task.decided) for a, b in pairs)
        return PredictorComparison(self.task.metrics(predictions, split.examples), same)

    def _training_rows(
        self, named: tuple[Path, ...], examples: Sequence[Any], measured: Path
    ) -> tuple[list[Any] | None, list[str]]:
        """The rows that baselines learn from (None if they can't be read), and warnings about them.

        `named` are the files the caller named, `measured` the file that is evaluated. Raises InputError for
        named files that can't be read.
        """
        provenance, paths = self.trained_on, named
        if not named and provenance is not None and provenance.are_at(provenance.paths):
            paths = provenance.paths
        if not paths:
            if not self.task.baselines_learn:
                return None, []
            reason = (
                f"{provenance.name} is not there, or was changed"
                if provenance
                else "the model names no training file"
            )
            return None, [f"no baselines, for {reason}. Name the training file with --train"]
        # a copy, because reading files settles a task's columns
        reader = reading_columns(self.task, {"encoding": provenance and provenance.columns.get("encoding")})
        try:
            is_unchanged = provenance is not None and provenance.are_at(paths)
            if provenance is not None and is_unchanged:
                rows = provenance.rows(reader, paths)
            else:
                format = getattr(reader.settings, "format", None)
                rows = reader.read_files(list_labelled_files(paths, besides=[measured], format=format))
            reader.check(rows)
        except InputError as error:
            if named:
                raise
            return None, [f"no baselines, for the model's training file can't be read as it was: {error}"]
        return rows, shared_with_train(self.task, rows, examples, measured.name, describe_files(paths))

    def _predict_examples(
        self, examples: Sequence[Any], progress: Progress | None = None
    ) -> Iterator[Prediction]:
        done = 0
        for batch in few_at_a_time(self.task, examples, _EXAMPLES_AT_A_TIME, _CHARACTERS_AT_A_TIME):
            split = encode_examples(self.task, batch, self.tokenizer)
            has_long_text = any(
                example.tokens > LONGEST for example in split.encoded
            )  # one such text may take minutes
            outputs = outputs_of(self.model, split.encoded, progress=progress if has_long_text else None)
            done += len(batch)
            if progress is not None:
                progress(done, len(examples), "texts")
            yield from self.task.decode(outputs, batch, split.encoded)

    def _predict_by_ray(
        self, examples: Sequence[Any], progress: Progress | None = None
    ) -> Iterator[Prediction]:
        """As `_predict_examples`, on a cluster, whose machines may have no GPU."""
        copy = self
        if next(self.model.parameters()).device.type != "cpu":
            model = deepcopy(self.model)
            make_ready(model, "cpu", torch.float32)
            copy = replace(self, model=model)
        done = 0
        batches = few_at_a_time(self.task, examples, _EXAMPLES_AT_A_TIME, _CHARACTERS_AT_A_TIME)
        for predictions in map_in_order_by_ray(copy._predict_batch, ((batch,) for batch in batches)):
            yield from predictions
            done += len(predictions)
            if progress is not None:
                progress(done, len(examples), "texts")

    def _predict_batch(self, examples: Sequence[Any]) -> list[Prediction]:
        return list(self._predict_examples(examples))


def _task_for_file(task: Task[Any], columns: dict[str, Any]) -> Task[Any]:
    """The task, reading the given columns. Raises InputError for settings that belong to training: they would
    have no effect on how a file is read.
    """
    if fixed := sorted(task.settings.of_model & columns.keys()):
        raise InputError(
            f"{fixed[0]} is a setting of training, which the model keeps: it can't be changed for a file. "
            "Leave it out. Very long texts are read whole by predict_windows."
        )
    reading = reading_columns(task, columns)
    reading.given_columns = {name for name, value in columns.items() if value is not None}
    return reading


def _split_long_text(text: str, max_length: int) -> Iterator[str]:
    """Overlapping parts of at most `_CHARACTERS_OF_WINDOWS` characters, cut at blanks if possible."""
    overlap = max_length * _CHARACTERS_OF_A_TOKEN
    size, start = max(_CHARACTERS_OF_WINDOWS, 2 * overlap), 0
    while start + size < len(text):
        end = text.rfind(" ", start + size - overlap // 2, start + size)
        end = start + size if end < 0 else end
        yield text[start:end]
        start = max(text.find(" ", end - overlap, end - overlap // 2), end - overlap)
    yield text[start:]
