"""A model's folder as the service has it: what it is called, what it is, and what it can be asked for."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from bertsmith.errors import ModelError
from bertsmith.inference.embedding.embedder import Embedder
from bertsmith.inference.engine import start_engine
from bertsmith.inference.index.manifest import MANIFEST, read_index_manifest
from bertsmith.model.locate import locate_model
from bertsmith.serving.operations.embed import (
    EmbedOperation,
    TextEncoder,
    encoder_beside_a_head,
    text_encoder,
    vector_operations,
)
from bertsmith.serving.operations.fill_mask import FillMaskOperation
from bertsmith.serving.operations.operation import Operation
from bertsmith.serving.operations.predict import PredictOperation, RerankOperation, ranks_pairs
from bertsmith.serving.operations.search import SearchOperation
from bertsmith.serving.refusals import UnsupportedRequest
from bertsmith.serving.settings import ModelSettings
from bertsmith.tasks.checkpoints.infer_task import model_kind, needs_class
from bertsmith.tasks.checkpoints.task_checkpoint import load_task_model
from bertsmith.tasks.pretraining.pretraining_checkpoint import load_pretraining_model
from bertsmith.tasks.registry import find_task
from bertsmith.tasks.task import Task
from bertsmith.text.tokens.tokenizer import Tokenizer

_TELLING = (".safetensors", ".json", ".txt", ".model")  # files that decide what a model answers
_TIMES = 5  # that a folder is opened whose files are replaced each time
_State = tuple[tuple[object, ...], ...]


@dataclass(frozen=True)
class ServedFiles:
    """The files that a model was read from: which they were, and whether they are there still.

    `folder` is the model's or the index's; `weights` the model's in both cases. `written`: when the folder
    was, in seconds since 1970.
    """

    folder: Path
    weights: Path
    written: float
    _opened: _State
    _index: _State

    @classmethod
    def at(cls, path: str) -> "ServedFiles":
        """As they are now. Raises ModelError where there is no such model, InputError for a damaged index."""
        folder = Path(path)
        index = _seen(folder.glob(MANIFEST))  # () where it is none
        if not index:
            folder = weights = locate_model(path).folder
        else:
            name = read_index_manifest(folder).model.name
            try:
                weights = locate_model(name).folder
            except ModelError as error:
                raise ModelError(
                    f"{folder} was built by {name!r}, which can't be opened; an index of an embedder of your "
                    f"own can't be served. {error}"
                ) from error
        return cls(folder, weights, folder.stat().st_mtime, _state(weights), index)

    @property
    def is_index(self) -> bool:
        return bool(self._index)

    @property
    def are_still_there(self) -> bool:
        """Whether the folder has the weights still. What is committed to an index is seen by each search."""
        return self._opened == _state(self.weights)

    def are_at(self, path: str) -> bool:
        """Whether opening the path again would give the same: a link may lead elsewhere by now. Raises as
        `at`.
        """
        now = ServedFiles.at(path)
        return (self._opened, self._index) == (now._opened, now._index)


def _state(folder: Path) -> _State:
    """Of the files with weights, settings and vocabulary."""
    return _seen(path for path in folder.rglob("*") if path.suffix in _TELLING)


def _seen(paths: Iterable[Path]) -> _State:
    """Another file of the same name is told apart. One that goes meanwhile isn't there."""
    found = list[tuple[object, ...]]()
    for path in sorted(paths):
        with suppress(FileNotFoundError):
            each = path.stat()
            found.append((path.name, each.st_ino, each.st_size, each.st_mtime_ns))
    return tuple(found)


@dataclass(frozen=True)
class ServedModel:
    """One version of a model. `task` is classification, tagging, …, embedding, masked-language or search.

    `operations` by name, the usual one first. `max_length` in tokens. `opened` is the task of a model that
    has a head; `encoder` is what makes vectors, where it does. `files` as they were before they were read.
    """

    name: str
    path: str
    files: ServedFiles
    version: int
    task: str
    operations: Mapping[str, Operation]
    max_length: int
    compute_dtype: torch.dtype
    device: torch.device
    tokenizer: Tokenizer
    module: torch.nn.Module
    opened: Task[Any] | None = None
    encoder: TextEncoder | None = None

    @property
    def written(self) -> float:
        """When its folder was, in seconds since 1970."""
        return self.files.written

    def operation(self, name: str | None) -> Operation:
        """The usual one for None. Raises Unsupported."""
        if name is None:
            return next(iter(self.operations.values()))
        if name not in self.operations:
            raise UnsupportedRequest(
                f"{self.name} is a model for {self.task}: it has no {name}. "
                f"It has: {', '.join(self.operations)}."
            )
        return self.operations[name]

    @property
    def labels(self) -> tuple[str, ...]:
        """Of classes or tags, in the order of the head's outputs."""
        return self.opened.labels if self.opened is not None else ()


def open_model(settings: ModelSettings, version: int, device: torch.device | str = "auto") -> ServedModel:
    """By path, alias or hub name. Where files are replaced while they are read, they are read again: it is
    never a mixture of two models. Raises ModelError and InputError as the folder's kind does.
    """
    for _ in range(_TIMES):
        files = ServedFiles.at(settings.path)
        found: ServedModel | None = None  # not a second copy while it is opened again
        try:
            found = _open(settings, version, files, device)
        except Exception:  # what a mixture of files raises may be anything
            if files.are_still_there:
                raise
        if found is not None and files.are_still_there:
            return found
    raise ModelError(
        f"{settings.path}: files were replaced each of the {_TIMES} times that it was opened. Let whatever "
        "writes there finish, and have it opened again."
    )


def _open(
    settings: ModelSettings, version: int, files: ServedFiles, device: torch.device | str
) -> ServedModel:
    wanted = getattr(torch, settings.compute_dtype) if settings.compute_dtype else None
    if files.is_index:
        embedder = Embedder(files.weights, device=device, compute_dtype=wanted)
        found = text_encoder(settings.name, embedder)
        embed = EmbedOperation(found)
        search = SearchOperation.open(files.folder, embedder, embed)
        return _of_vectors(settings, files, version, "search", {"search": search, "embed": embed}, found)
    folder = files.folder
    kind = model_kind(folder)
    if kind == "embedding":
        found = text_encoder(settings.name, Embedder(folder, device=device, compute_dtype=wanted))
        return _of_vectors(settings, files, version, "embedding", vector_operations(found), found)
    if kind == "masked-language":
        model, _ = load_pretraining_model(folder)
        engine = start_engine(model, folder, device, wanted)
        found = encoder_beside_a_head(settings.name, folder, engine, model.encoder)
        operations = {"fill_mask": FillMaskOperation(settings.name, engine), **vector_operations(found)}
        return replace(
            _of_vectors(settings, files, version, kind, operations, found),
            max_length=model.config.max_length,
            module=model,
        )
    return _open_task(settings, version, files, device, wanted)


def _open_task(
    settings: ModelSettings, version: int, files: ServedFiles, device: torch.device | str, wanted: Any
) -> ServedModel:
    folder = files.folder
    own = find_task(settings.task) if settings.task and needs_class(folder) else None
    model, task = load_task_model(folder, own)
    engine = start_engine(model, folder, device, wanted)
    predict = PredictOperation(settings.name, engine, task)
    operations: dict[str, Operation] = {"predict": predict}
    if ranks_pairs(task):
        operations["rerank"] = RerankOperation(predict)
    found = None
    if task.makes_vectors:
        found = encoder_beside_a_head(settings.name, folder, engine, model.encoder)
        operations = {**vector_operations(found), **operations}
    return ServedModel(
        name=settings.name,
        path=settings.path,
        files=files,
        version=version,
        task=task.name,
        operations=operations,
        max_length=task.settings.max_length,
        compute_dtype=engine.compute_dtype,
        device=engine.device,
        tokenizer=engine.tokenizer,
        module=model,
        opened=task,
        encoder=found,
    )


def _of_vectors(
    settings: ModelSettings,
    files: ServedFiles,
    version: int,
    task: str,
    operations: Mapping[str, Operation],
    found: TextEncoder,
) -> ServedModel:
    return ServedModel(
        name=settings.name,
        path=settings.path,
        files=files,
        version=version,
        task=task,
        operations=operations,
        max_length=found.windows.max_length,
        compute_dtype=found.compute_dtype,
        device=found.device,
        tokenizer=found.windows.tokenizer,
        module=found.encoder,
        encoder=found,
    )
