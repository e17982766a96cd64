"""The models of a service by name: opened, tried before they are served, replaced, rolled back.

A model is tried by a few texts through each of its operations, alone and together, and by golden answers of
its folder, asked again in the precision that it is served in.
"""

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
from bertsmith.model.cpu.process import start_one_core_threads
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
_MOST_NAMED = 8
_TOLERANCES = {torch.bfloat16: 0.1, torch.float16: 0.02}  # hidden states, which are some units large
_WORK = 2e10  # operations: half a second of a core
_FEWEST = 3  # texts
Result = TypeVar("Result")


class Models:
    """Clients name a model; a folder's path is the operator's, and never comes from a request."""

    def __init__(self, settings: ServingSettings) -> None:
        self.device = device_of("auto")
        self._settings = {each.name: each for each in settings.models}
        self._serving: dict[str, ServedModel] = {}
        self._before: dict[str, ServedModel] = {}
        self._rolled_back: dict[str, ServedFiles] = {}
        self._versions = dict.fromkeys(self._settings, 1)
        self._changing = Lock()
        self._opening = start_one_core_threads(1, "models")
        self._probing = start_one_core_threads(1, "probing")

    def open_all(self) -> None:
        """Opens and probes each. Raises ModelError, InputError as `open_model` does."""
        for settings in self._settings.values():
            self._serving[settings.name] = self._opening.submit(_opened, settings, 1, self.device).result()

    def apart(self, function: Callable[..., Result], *arguments: Any) -> "Future[Result]":
        """Calls it in a thread of one core, not the one that opens models, which may take minutes. A second
        team of OpenMP's threads, once there is one, would have the workers' sleep between any two operations:
        a lone request would take half as long again.
        """
        return self._probing.submit(function, *arguments)

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(list(self._serving.values()))

    def lines(self) -> list[str]:
        """What each is and can be asked for, for people."""
        return [
            f"  {each.name:20}  {each.task}, {str(each.compute_dtype).removeprefix('torch.')}, "
            f"{', '.join(each.operations)}"
            for each in self
        ]

    def __getitem__(self, name: str) -> ServedModel:
        """Raises UnknownModel."""
        if name not in self._serving:
            known = list(self._serving)
            more = f" and {len(known) - _MOST_NAMED} more" if len(known) > _MOST_NAMED else ""
            raise UnknownModel(
                f"There is no model {name[:80]!r} here. There are: {', '.join(known[:_MOST_NAMED])}{more}."
            )
        return self._serving[name]

    def find(
        self, name: str | None, operation: str | None, tasks: Collection[str] | None = None
    ) -> ServedModel:
        """By name; without one, the only model that has the operation and, where said, one of the tasks.
        Raises UnknownModel, Unsupported.
        """
        if name is not None:
            return self[name]
        able = [
            each
            for each in self
            if (operation is None or operation in each.operations) and (tasks is None or each.task in tasks)
        ]
        if len(able) == 1:
            return able[0]
        if not able:
            what = f"can {operation}" if tasks is None else f"is for {' or '.join(sorted(tasks))}"
            raise UnsupportedRequest(f"No model here {what}.")
        raise UnknownModel(
            f"Name a model: {', '.join(each.name for each in able[:_MOST_NAMED])} could answer."
        )

    def replace(self, name: str) -> ServedModel:
        """Opens the model's folder again, probes what it finds, and only then serves it; the version before
        stays for `roll_back`, but for an index's. What is served already is left as it is, and so is what
        there is to go back to.
        Raises UnknownModel, ModelError for one that doesn't pass, and as `open_model`.
        """
        with self._changing:
            return self._replace(self[name])

    def refresh(self, name: str) -> ServedModel:
        """As `replace`, but files that were rolled back are left alone until others lie there: whoever asks
        for a look at all models doesn't mean those.
        """
        with self._changing:
            now = self[name]
            if self.was_rolled_back(name) and self._rolled_back[name].are_at(now.path):
                return now
            return self._replace(now)

    def was_rolled_back(self, name: str) -> bool:
        """Whether its folder had, when it was last looked at, files that are served no more."""
        return name in self._rolled_back

    def _replace(self, now: ServedModel) -> ServedModel:
        name = now.name
        if now.files.are_at(now.path):
            self._rolled_back.pop(name, None)
            return now
        version = self._versions[name] + 1
        new = self._opening.submit(_opened, self._settings[name], version, self.device).result()
        if new.task != now.task:
            raise ModelError(
                f"{self._settings[name].path} is a model for {new.task} now, but {name} is served for "
                f"{now.task}: its clients would break. Serve it by another name."
            )
        self._versions[name] = new.version
        if not new.files.is_index:
            self._before[name] = now
        self._serving[name] = new
        self._rolled_back.pop(name, None)
        return new

    def roll_back(self, name: str) -> ServedModel:
        """Serves the version before again. Raises UnknownModel, Unsupported where there is none, as of an
        index: the one before would read what is committed now.
        """
        with self._changing:
            undone = self[name]
            if undone.files.is_index:
                raise UnsupportedRequest(
                    f"{name} is an index: each search sees what is committed, so there is no version to go "
                    "back to. Build it again from the sources that you want."
                )
            before = self._before.pop(name, None)
            if before is None:
                raise UnsupportedRequest(
                    f"{name} was not replaced since the service began: there is nothing to go back to."
                )
            self._serving[name], self._rolled_back[name] = before, undone.files
            return before


def _opened(settings: ModelSettings, version: int, device: torch.device) -> ServedModel:
    found = open_model(settings, version, device)
    probe(found)
    require_golden_answers(found)
    return found


def probe(model: ServedModel) -> None:
    """A few texts through every operation, alone and together: raises ModelError unless each can be computed,
    and on a processor's kernels unless both ways give the same bits.
    """
    for name, operation in model.operations.items():
        inputs, options = probe_of(model, name)
        together = operation.prepare(inputs, options).answer()
        if name == "search":
            continue
        for number, one in enumerate(inputs):
            (alone,) = operation.prepare([one], options).answer()
            if not _same(alone, together[number], model.compute_dtype):
                raise ModelError(
                    f"{model.path}: {name} gives another answer alone than in company. It isn't served."
                )


def probe_once(model: ServedModel) -> None:
    """One short forward pass, past the queue."""
    name, operation = next(iter(model.operations.items()))
    inputs, options = probe_of(model, name)
    prepared = operation.prepare(inputs[:1], options)
    prepared.run.outputs(prepared.encoded)


def probe_of(model: ServedModel, operation: str) -> tuple[list[Any], Options]:
    """Inputs that an operation of a model reads."""
    texts: list[Any] = list(rows_of(model) or _PROBES)
    if operation == "fill_mask":
        mask = model.tokenizer.id_to_token(model.tokenizer.mask_id)
        return [f"{text} {mask}" for text in texts], Options()
    if operation == "rerank":
        return texts, Options(more={"query": texts[0]})
    if operation == "similarity":
        return texts, Options(more={"source": texts[0]})
    columns = getattr(model.opened, "column_names", ())
    if operation == "predict" and columns:  # blank ones
        beside = dict.fromkeys(columns) | ({"text_pair": texts[0]} if reads_pairs(model) else {})
        return [{**beside, "text": text} for text in texts], Options()
    if operation == "predict" and model.opened is not None and reads_pairs(model):
        return [(texts[0], text) for text in texts], Options()
    return texts, Options()


def rows_of(model: ServedModel) -> list[str] | None:
    """Of a model that reads rows of numbers three images, or series of one, two and three patches: all values
    the mean, or something above it.
    """
    if not isinstance(model.tokenizer, PatchTokenizer):
        return None
    shape = model.tokenizer.shape
    steps = (
        [shape.height * shape.width] * 3 if shape.kind == "images" else [shape.size * n for n in (1, 2, 3)]
    )
    scale = list(zip(shape.mean, shape.deviation, strict=True))
    values = (
        [spell_number(mean + above * deviation) for mean, deviation in scale] for above in (0.0, 1.0, 0.5)
    )
    return [" ".join(step * count) for step, count in zip(values, steps, strict=True)]


def reads_pairs(model: ServedModel) -> bool:
    """Whether an input of `predict` is two texts."""
    return model.opened is not None and bool(model.opened.reads_pairs)


def _same(one: Any, other: Any, dtype: torch.dtype) -> bool:
    """To the bit by the kernels; elsewhere as far as the precision lets vectors of other batches agree."""
    if dtype == torch.int16:
        return bool(np.array_equal(one, other)) if isinstance(one, np.ndarray) else bool(one == other)
    if not isinstance(one, np.ndarray):
        return True
    return bool(np.allclose(one, other, atol=_TOLERANCES.get(dtype, 1e-3)))


def require_golden_answers(model: ServedModel) -> None:
    """Some of them, as many as half a second allows; nothing where the folder has none. Raises ModelError
    where one differs by more than the precision may.
    """
    golden = read_golden(model.files.weights)
    if golden is None:
        return
    subject = _subject(model)
    if golden.kind != subject.kind:  # the folder is served for something else
        return
    config, room = subject.encoder.config, _WORK
    weights = 4 * config.hidden_size**2 + 2 * config.hidden_size * getattr(config, "intermediate_size", 0)
    operations = 2 * weights * getattr(config, "num_hidden_layers", 1)  # of a token
    chosen = list[GoldenRecord]()
    for record in golden.records:
        room -= operations * len(record.ids)
        if isinstance(record.ids, str) or (room < 0 and len(chosen) >= _FEWEST):
            continue
        chosen.append(record)
    with autocasting(subject.encoder, model.device, model.compute_dtype):
        now = answers_of(subject, [record.input for record in chosen])
    expected = ModelAnswers(golden.stages, tuple(chosen))
    found = compare(expected, now, TOLERANCES[model.compute_dtype], told=False)
    if found.differences:
        raise ModelError(
            f"{model.path} doesn't answer on this machine as it did when it was written: "
            f"{found.differences[0]}. It isn't served. All that differs: bertsmith check {model.path}"
        )


def _subject(model: ServedModel) -> GoldenSubject:
    """The opened model itself, not another copy of it."""
    if model.opened is not None:
        assert isinstance(model.module, TaskModel)
        return TaskSubject(model.module, model.opened, model.tokenizer)
    if isinstance(model.module, PretrainingModel):
        return MaskSubject(model.module, model.tokenizer)
    assert model.encoder is not None
    sentences = read_sentence_settings(model.files.weights)
    return VectorSubject(model.encoder.encoder, model.tokenizer, sentences, model.encoder.projection)
