"""A model's folder opened for the service: its name, its task and its operations."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from bertsmith.errors import ModelError
from bertsmith.inference.embedding.embedder import Embedder
from bertsmith.inference.engine import open_task_model, start_engine
from bertsmith.inference.index.manifest import MANIFEST, read_index_manifest
from bertsmith.model.locate import locate_model
from bertsmith.serving.operations.embed import (
    EmbedOperation,
    TextEncoder,
    make_backbone_encoder,
    make_text_encoder,
    make_vector_operations,
)
from bertsmith.serving.operations.fill_mask import FillMaskOperation
from bertsmith.serving.operations.operation import Operation
from bertsmith.serving.operations.predict import PredictOperation, RerankOperation, ranks_pairs
from bertsmith.serving.operations.search import SearchOperation
from bertsmith.serving.refusals import UnsupportedRequest
from bertsmith.serving.settings import ModelSettings
from bertsmith.tasks.checkpoints.infer_task import model_kind, needs_class
from bertsmith.tasks.pretraining.pretraining_checkpoint import load_pretraining_model
from bertsmith.tasks.registry import find_task
from bertsmith.tasks.task import Task
from bertsmith.text.tokens.tokenizer import Tokenizer

_MODEL_SUFFIXES = (".safetensors", ".json", ".txt", ".model")  # files that decide what a model answers
_ATTEMPTS = 5  # to open a folder whose files are replaced meanwhile
_FileStates = tuple[tuple[object, ...], ...]  # see `_stat_files`


@dataclass(frozen=True)
class ServedFiles:
    """The files that a model was read from, so that a change of them is noticed.

    `folder` is the model's or the index's, `weights` the model's folder in both cases. `written` is the
    folder's modification time, in seconds since 1970.
    """

    folder: Path
    weights: Path
    written: float
    _model_state: _FileStates
    _index_state: _FileStates

    @classmethod
    def at(cls, path: str) -> "ServedFiles":
        """The files at a path now. Raises ModelError if there is no such model, InputError for a damaged
        index.
        """
        folder = Path(path)
        index_state = _stat_files(folder.glob(MANIFEST))  # () for a model
        if not index_state:
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
        return cls(folder, weights, folder.stat().st_mtime, _stat_model_files(weights), index_state)

    @property
    def is_index(self) -> bool:
        """Whether the folder is that of an index."""
        return bool(self._index_state)

    @property
    def are_still_there(self) -> bool:
        """Whether the folder still has the same weights. (Each search sees what is committed to an index.)"""
        return self._model_state == _stat_model_files(self.weights)

    def are_at(self, path: str) -> bool:
        """Whether opening the path again would read the same files: a link may lead elsewhere by now. Raises
        what `at` raises.
        """
        now = ServedFiles.at(path)
        return (self._model_state, self._index_state) == (now._model_state, now._index_state)


def _stat_model_files(folder: Path) -> _FileStates:
    """The state of the files with weights, settings and vocabulary."""
    return _stat_files(path for path in folder.rglob("*") if path.suffix in _MODEL_SUFFIXES)


def _stat_files(paths: Iterable[Path]) -> _FileStates:
    """Name, inode, size and modification time of each file; one that vanishes meanwhile is left out."""
    states = list[tuple[object, ...]]()
    for path in sorted(paths):
        with suppress(FileNotFoundError):
            status = path.stat()
            states.append((path.name, status.st_ino, status.st_size, status.st_mtime_ns))
    return tuple(states)


@dataclass(frozen=True)
class ServedModel:
    """One version of a model. `task` is classification, tagging, …, embedding, masked-language or search.

    `operations` by name, the default one first. `max_length` in tokens. `head_task` is the task of a model
    with a fine-tuned head, else None; `encoder` makes vectors, None if the model can't. `files` as they were
    before they were read.
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
    head_task: Task[Any] | None = None
    encoder: TextEncoder | None = None

    @property
    def written(self) -> float:
        """The modification time of the folder, in seconds since 1970."""
        return self.files.written

    def operation(self, name: str | None) -> Operation:
        """The operation of this name, or the default one for None. Raises UnsupportedRequest."""
        if name is None:
            return next(iter(self.operations.values()))
        if name not in self.operations:
            raise UnsupportedRequest(
                f"{self.name} is a model for {self.task}: it has no {name}. "
                f"It has: {', '.join(self.operations)}."
            )
        return self.operations[name]

    @property
    def shortest_window(self) -> int:
        """The tokens that every operation reads of a longer text, at least."""
        encoder_window = self.encoder.windows.max_length if self.encoder is not None else self.max_length
        return min(self.max_length, encoder_window)

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of the classes or tags, in the order of the head's outputs; () for a model without."""
        return self.head_task.labels if self.head_task is not None else ()


def open_model(settings: ModelSettings, version: int, device: torch.device | str = "auto") -> ServedModel:
    """Opens a model by path, alias or hub name. Files that are replaced during the reading are read again, so
    that two models are never mixed. Raises ModelError and InputError as the folder's kind does.
    """
    for _ in range(_ATTEMPTS):
        files = ServedFiles.at(settings.path)
        model: ServedModel | None = None  # frees the last attempt before the next one
        try:
            model = _open_files(settings, version, files, device)
        except Exception:  # a mixture of two models' files may raise anything
            if files.are_still_there:
                raise
        if model is not None and files.are_still_there:
            return model
    raise ModelError(
        f"{settings.path}: files were replaced each of the {_ATTEMPTS} times that it was opened. Let "
        "whatever writes there finish, and have it opened again."
    )


def _open_files(
    settings: ModelSettings, version: int, files: ServedFiles, device: torch.device | str
) -> ServedModel:
    """Opens an index, an embedding model, a masked language model or a model with a task's head."""
    compute_dtype = getattr(torch, settings.compute_dtype) if settings.compute_dtype else None
    if files.is_index:
        embedder = Embedder(files.weights, device=device, compute_dtype=compute_dtype)
        encoder = make_text_encoder(settings.name, embedder)
        embed = EmbedOperation(encoder)
        search = SearchOperation.open(files.folder, embedder, embed)
        return _make_vector_model(
            settings, files, version, "search", {"search": search, "embed": embed}, encoder
        )
    folder = files.folder
    kind = model_kind(folder)
    if kind == "embedding":
        encoder = make_text_encoder(
            settings.name, Embedder(folder, device=device, compute_dtype=compute_dtype)
        )
        return _make_vector_model(
            settings, files, version, "embedding", make_vector_operations(encoder), encoder
        )
    if kind == "masked-language":
        model, _ = load_pretraining_model(folder)
        engine = start_engine(model, folder, device, compute_dtype)
        encoder = make_backbone_encoder(settings.name, folder, engine, model.encoder)
        operations = {
            "fill_mask": FillMaskOperation(settings.name, engine),
            **make_vector_operations(encoder),
        }
        return replace(
            _make_vector_model(settings, files, version, kind, operations, encoder),
            max_length=model.config.max_length,
            module=model,
        )
    return _open_task(settings, version, files, device, compute_dtype)


def _open_task(
    settings: ModelSettings, version: int, files: ServedFiles, device: torch.device | str, compute_dtype: Any
) -> ServedModel:
    """Opens a model with a task's head: it predicts, and if its task allows re-ranks or makes vectors too."""
    folder = files.folder
    task_class = find_task(settings.task) if settings.task and needs_class(folder) else None
    engine, task = open_task_model(folder, task_class, device, compute_dtype, shares_tokenizer=True)
    predict = PredictOperation(settings.name, engine, task)
    operations: dict[str, Operation] = {"predict": predict}
    if ranks_pairs(task):
        operations["rerank"] = RerankOperation(predict)
    encoder = None
    if task.makes_vectors:
        encoder = make_backbone_encoder(settings.name, folder, engine, engine.model.encoder)
        operations = {**make_vector_operations(encoder), **operations}
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
        module=engine.model,
        head_task=task,
        encoder=encoder,
    )


def _make_vector_model(
    settings: ModelSettings,
    files: ServedFiles,
    version: int,
    task: str,
    operations: Mapping[str, Operation],
    encoder: TextEncoder,
) -> ServedModel:
    """A model without a head, whose window, device and tokenizer are those of its encoder."""
    return ServedModel(
        name=settings.name,
        path=settings.path,
        files=files,
        version=version,
        task=task,
        operations=operations,
        max_length=encoder.windows.max_length,
        compute_dtype=encoder.compute_dtype,
        device=encoder.device,
        tokenizer=encoder.windows.tokenizer,
        module=encoder.encoder,
        encoder=encoder,
    )
