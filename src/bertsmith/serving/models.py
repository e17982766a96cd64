"""The models of a service, by name: they are opened, tried, served, replaced and rolled back.

Before a model is served, it computes a few texts with each of its operations, alone and in a batch, and the
golden answers of its folder again, in the precision that it is served in.
"""

import gc
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future
from threading import Lock
from typing import Any, TypeVar

import numpy as np
import torch

from bertsmith.data.sequences.codec import spell_number
from bertsmith.errors import ModelError
from bertsmith.inference.checking.check import TOLERANCES
from bertsmith.inference.engine import autocasting
from bertsmith.machine import device_of
from bertsmith.model.bert import Bert
from bertsmith.model.cpu.process import give_back_memory, start_one_core_threads
from bertsmith.serving.operations.operation import Options
from bertsmith.serving.refusals import UnknownModel, UnsupportedRequest
from bertsmith.serving.served_model import ServedFiles, ServedModel, open_model
from bertsmith.serving.settings import ModelSettings, ServingSettings
from bertsmith.tasks.checkpoints.sentence_folder import read_sentence_settings
from bertsmith.tasks.golden.comparison import compare
from bertsmith.tasks.golden.records import GoldenRecord, ModelAnswers, answers_of, read_golden
from bertsmith.tasks.golden.subject import GoldenSubject, MaskSubject, TaskSubject, VectorSubject
from bertsmith.tasks.pretraining.pretraining import PretrainingModel
from bertsmith.tasks.task_model import TaskModel
from bertsmith.text.tokens.value_tokenizers import PatchTokenizer

_PROBES = (
    "The court granted the motion.",
    "no",
    "It was the best of times, it was the worst of times, was it?",
)
_MOST_NAMES = 8  # in a message
_TOLERANCES = {torch.bfloat16: 0.1, torch.float16: 0.02}  # hidden states, which are some units large
_OPERATION_BUDGET = 2e10  # floating-point operations: half a second of a core
_FEWEST_TEXTS = 3
Result = TypeVar("Result")


class Models:
    """The models of a service by name. Their paths come from the operator's settings, never from a
    request.
    """

    def __init__(self, settings: ServingSettings) -> None:
        self.device = device_of("auto")
        self._settings = {model.name: model for model in settings.models}
        self._served: dict[str, ServedModel] = {}
        self._previous: dict[str, ServedModel] = {}
        self._rolled_back: dict[str, ServedFiles] = {}
        self._versions = dict.fromkeys(self._settings, 1)
        self._changing = Lock()
        self._opening = start_one_core_threads(1, "models")
        self._probing = start_one_core_threads(1, "probing")

    def open_all(self) -> None:
        """Opens and tries all models. Raises ModelError and InputError as `open_model` does, and ModelError
        for one that fails its trial.
        """
        for settings in self._settings.values():
            self._served[settings.name] = self._opening.submit(
                _open_and_try, settings, 1, self.device
            ).result()
        gc.collect()
        give_back_memory()  # what opening took

    def run_in_thread(self, function: Callable[..., Result], *arguments: Any) -> "Future[Result]":
        """Calls `function` in a one-core thread, not in the thread that opens models, which may be busy for
        minutes. One core, because a second team of OpenMP threads would make those of the workers sleep
        between any two operations: a lone request would take half as long again.
        """
        return self._probing.submit(function, *arguments)

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(list(self._served.values()))

    def describe(self) -> list[str]:
        """A line for people about each model: name, task, precision and operations; and one on what int8
        changes.
        """
        lines = list[str]()
        for model in self:
            precision = str(model.compute_dtype).removeprefix("torch.")
            lines.append(f"  {model.name:20}  {model.task}, {precision}, {', '.join(model.operations)}")
            encoders = (part for part in model.module.modules() if isinstance(part, Bert))
            lines += [f"  {'':20}  {encoder.int8_choice}" for encoder in encoders if encoder.int8_choice]
        return lines

    def __getitem__(self, name: str) -> ServedModel:
        """The model of this name. Raises UnknownModel."""
        if name not in self._served:
            known = list(self._served)
            more = f" and {len(known) - _MOST_NAMES} more" if len(known) > _MOST_NAMES else ""
            raise UnknownModel(
                f"There is no model {name[:80]!r} here. There are: {', '.join(known[:_MOST_NAMES])}{more}."
            )
        return self._served[name]

    def find(
        self, name: str | None, operation: str | None, tasks: Collection[str] | None = None
    ) -> ServedModel:
        """The model of this name; for None, the only one that has the operation and one of the `tasks`, if
        given. Raises UnknownModel, UnsupportedRequest.
        """
        if name is not None:
            return self[name]
        candidates = [
            model
            for model in self
            if (operation is None or operation in model.operations) and (tasks is None or model.task in tasks)
        ]
        if len(candidates) == 1:
            return candidates[0]
        if not candidates:
            reason = f"can {operation}" if tasks is None else f"is for {' or '.join(sorted(tasks))}"
            raise UnsupportedRequest(f"No model here {reason}.")
        raise UnknownModel(
            f"Name a model: {', '.join(model.name for model in candidates[:_MOST_NAMES])} could answer."
        )

    def replace(self, name: str) -> ServedModel:
        """Opens the model's folder again, tries the new version, and only then serves it.

        The version before is held for `roll_back`, except for an index. If the folder has the files that are
        served already, nothing changes. Raises UnknownModel, ModelError for a version that fails its trial,
        and what `open_model` raises.
        """
        with self._changing:
            return self._replace(self[name])

    def refresh(self, name: str) -> ServedModel:
        """Like `replace`, but skips files that were rolled back until others replace them: a reload of all
        models (SIGHUP) must not undo a roll-back.
        """
        with self._changing:
            current = self[name]
            if self.was_rolled_back(name) and self._rolled_back[name].are_at(current.path):
                return current
            return self._replace(current)

    def was_rolled_back(self, name: str) -> bool:
        """Whether the model was rolled back and its folder has not had other files since."""
        return name in self._rolled_back

    def _replace(self, current: ServedModel) -> ServedModel:
        name = current.name
        if current.files.are_at(current.path):
            self._rolled_back.pop(name, None)
            return current
        version = self._versions[name] + 1
        new = self._opening.submit(_open_and_try, self._settings[name], version, self.device).result()
        if new.task != current.task:
            raise ModelError(
                f"{self._settings[name].path} is a model for {new.task} now, but {name} is served for "
                f"{current.task}: its clients would break. Serve it by another name."
            )
        self._versions[name] = new.version
        if not new.files.is_index:
            self._previous[name] = current
        self._served[name] = new
        self._rolled_back.pop(name, None)
        return new

    def roll_back(self, name: str) -> ServedModel:
        """Serves the version before again. Raises UnknownModel, and UnsupportedRequest if there is none; an
        index has none, because its old version would read what is committed now.
        """
        with self._changing:
            undone = self[name]
            if undone.files.is_index:
                raise UnsupportedRequest(
                    f"{name} is an index: each search sees what is committed, so there is no version to go "
                    "back to. Build it again from the sources that you want."
                )
            previous = self._previous.pop(name, None)
            if previous is None:
                raise UnsupportedRequest(
                    f"{name} was not replaced since the service began: there is nothing to go back to."
                )
            self._served[name], self._rolled_back[name] = previous, undone.files
            return previous


def _open_and_try(settings: ModelSettings, version: int, device: torch.device) -> ServedModel:
    """Opens a model. Raises ModelError if it fails its trial, and what `open_model` raises."""
    model = open_model(settings, version, device)
    probe(model)
    require_golden_answers(model)
    return model


def probe(model: ServedModel) -> None:
    """Computes a few texts through every operation, alone and in a batch.

    Raises ModelError if the two results differ: for int16 and int8 by a single bit; else if vectors differ by
    more than the precision allows (other results aren't compared, because a label may flip at a tie).
    """
    for name, operation in model.operations.items():
        inputs, options = make_probe_inputs(model, name)
        together = operation.prepare(inputs, options).compute_answer()
        if name == "search":
            continue
        for number, input_ in enumerate(inputs):
            (alone,) = operation.prepare([input_], options).compute_answer()
            if not _results_agree(alone, together[number], model.compute_dtype):
                raise ModelError(
                    f"{model.path}: {name} gives another answer alone than in company. It isn't served."
                )


def probe_once(model: ServedModel) -> None:
    """Computes one short forward pass, past the queue: the health check's probe of a model."""
    name, operation = next(iter(model.operations.items()))
    inputs, options = make_probe_inputs(model, name)
    prepared = operation.prepare(inputs[:1], options)
    prepared.forward.compute_outputs(prepared.encoded)


def make_probe_inputs(model: ServedModel, operation: str) -> tuple[list[Any], Options]:
    """Three inputs, and the options, that this operation of the model can read."""
    texts: list[Any] = list(make_probe_rows(model) or _PROBES)
    if operation == "fill_mask":
        mask = model.tokenizer.id_to_token(model.tokenizer.mask_id)
        return [f"{text} {mask}" for text in texts], Options()
    if operation == "rerank":
        return texts, Options(more={"query": texts[0]})
    if operation == "similarity":
        return texts, Options(more={"source": texts[0]})
    columns = getattr(model.head_task, "column_names", ())
    if operation == "predict" and columns:  # which are left blank
        blank_columns = dict.fromkeys(columns) | ({"text_pair": texts[0]} if reads_pairs(model) else {})
        return [{**blank_columns, "text": text} for text in texts], Options()
    if operation == "predict" and model.head_task is not None and reads_pairs(model):
        return [(texts[0], text) for text in texts], Options()
    return texts, Options()


def make_probe_rows(model: ServedModel) -> list[str] | None:
    """Rows of numbers for a model that reads images or time series, None for a model of texts.

    Three images, or series of one, two and three patches. All values are the mean, or up to one standard
    deviation above it.
    """
    if not isinstance(model.tokenizer, PatchTokenizer):
        return None
    shape = model.tokenizer.shape
    steps = (
        [shape.height * shape.width] * 3 if shape.kind == "images" else [shape.size * n for n in (1, 2, 3)]
    )
    scale = list(zip(shape.mean, shape.deviation, strict=True))
    values = (
        [spell_number(mean + offset * deviation) for mean, deviation in scale] for offset in (0.0, 1.0, 0.5)
    )
    return [" ".join(step * count) for step, count in zip(values, steps, strict=True)]


def reads_pairs(model: ServedModel) -> bool:
    """Whether the model's task reads pairs of texts."""
    return model.head_task is not None and bool(model.head_task.reads_pairs)


def _results_agree(one: Any, other: Any, dtype: torch.dtype) -> bool:
    """Whether two results agree: to the bit for int16 and int8; else vectors within the precision's
    tolerance, and anything else always.
    """
    if dtype in (torch.int16, torch.int8):
        return bool(np.array_equal(one, other)) if isinstance(one, np.ndarray) else bool(one == other)
    if not isinstance(one, np.ndarray):
        return True
    return bool(np.allclose(one, other, atol=_TOLERANCES.get(dtype, 1e-3)))


def require_golden_answers(model: ServedModel) -> None:
    """Computes the folder's golden answers again, as many as half a second allows, but at least three.

    Raises ModelError if one differs by more than the precision allows. A folder without golden answers
    passes.
    """
    golden = read_golden(model.files.weights)
    if golden is None:
        return
    subject = _make_subject(model)
    if golden.kind != subject.kind:  # the answers are of another task than the model is served for
        return
    config, budget = subject.encoder.config, _OPERATION_BUDGET
    weights = 4 * config.hidden_size**2 + 2 * config.hidden_size * getattr(config, "intermediate_size", 0)
    operations_per_token = 2 * weights * getattr(config, "num_hidden_layers", 1)
    records = list[GoldenRecord]()
    for record in golden.records:
        budget -= operations_per_token * len(record.ids)
        if isinstance(record.ids, str) or (budget < 0 and len(records) >= _FEWEST_TEXTS):
            continue
        records.append(record)
    with autocasting(subject.encoder, model.device, model.compute_dtype):
        answers = answers_of(subject, [record.input for record in records])
    expected = ModelAnswers(golden.stages, tuple(records))
    comparison = compare(expected, answers, TOLERANCES[model.compute_dtype], told=False)
    if comparison.differences:
        raise ModelError(
            f"{model.path} doesn't answer on this machine as it did when it was written: "
            f"{comparison.differences[0]}. It isn't served. All that differs: bertsmith check {model.path}"
        )


def _make_subject(model: ServedModel) -> GoldenSubject:
    """The served model as golden answers are computed with it, without another copy of its weights."""
    if model.head_task is not None:
        assert isinstance(model.module, TaskModel)
        return TaskSubject(model.module, model.head_task, model.tokenizer)
    if isinstance(model.module, PretrainingModel):
        return MaskSubject(model.module, model.tokenizer)
    assert model.encoder is not None
    sentences = read_sentence_settings(model.files.weights)
    return VectorSubject(model.encoder.encoder, model.tokenizer, sentences, model.encoder.projection)
