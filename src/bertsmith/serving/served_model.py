"""A model's folder as the service has it: what it is called, what it is, and what it can be asked for."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bertsmith.errors import ModelError
from bertsmith.inference.embedding.embedder import Embedder
from bertsmith.inference.embedding.text_windows import TextWindows
from bertsmith.inference.engine import Engine, start_engine
from bertsmith.inference.index.index import Index
from bertsmith.model.bert import Bert
from bertsmith.serving.operations.embed import Embed, EmbedTokens, Prompts, Similarity, TextEncoder
from bertsmith.serving.operations.fill_mask import FillMask
from bertsmith.serving.operations.operation import Operation
from bertsmith.serving.operations.predict import Predict
from bertsmith.serving.operations.rerank import Rerank, ranks_pairs
from bertsmith.serving.operations.search import Search
from bertsmith.serving.refusals import Unsupported
from bertsmith.serving.served_files import ServedFiles
from bertsmith.serving.settings import ModelSettings
from bertsmith.tasks.checkpoints.model_kind import model_kind
from bertsmith.tasks.checkpoints.sentence_settings import read_sentence_settings
from bertsmith.tasks.checkpoints.task_checkpoint import load_task_model
from bertsmith.tasks.pretraining.pretraining_checkpoint import load_pretraining_model
from bertsmith.tasks.task import Task
from bertsmith.text.tokens.tokenizer import Tokenizer

_TIMES = 5  # that a folder is opened whose files are replaced each time


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
    module: nn.Module
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
            raise Unsupported(
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
        return _open_index(settings, version, files, device, wanted)
    folder = files.folder
    kind = model_kind(folder)
    if kind == "embedding":
        found = text_encoder(settings.name, Embedder(folder, device=device, compute_dtype=wanted))
        return _of_vectors(settings, files, version, "embedding", vector_operations(found), found)
    if kind == "masked-language":
        model, _ = load_pretraining_model(folder)
        engine = start_engine(model, folder, device, wanted)
        found = _beside_a_head(settings.name, folder, engine, model.encoder)
        operations = {"fill_mask": FillMask(settings.name, engine), **vector_operations(found)}
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
    model, task = load_task_model(folder)
    engine = start_engine(model, folder, device, wanted)
    predict = Predict(settings.name, engine, task)
    operations: dict[str, Operation] = {"predict": predict}
    if ranks_pairs(task):
        operations["rerank"] = Rerank(predict)
    found = None
    if task.name in ("similarity", "retrieval"):
        found = _beside_a_head(settings.name, folder, engine, model.encoder)
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


def _open_index(
    settings: ModelSettings, version: int, files: ServedFiles, device: torch.device | str, wanted: Any
) -> ServedModel:
    embedder = Embedder(files.weights, device=device, compute_dtype=wanted)
    index = Index.open(files.folder, embedder)
    index.require_same_model()
    index.warn_if_unfinished()
    found = text_encoder(settings.name, embedder)
    embed = Embed(found)
    operations: dict[str, Operation] = {"search": Search(index, embed), "embed": embed}
    return _of_vectors(settings, files, version, "search", operations, found)


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


def text_encoder(name: str, embedder: Embedder) -> TextEncoder:
    """The same encoder, for the service's queue."""
    prompts = Prompts.of(read_sentence_settings(embedder.folder))
    how = embedder.pooling, prompts, embedder.device, embedder.compute_dtype
    last = embedder.projection, embedder.full_width, embedder.dimensions
    return TextEncoder(name, embedder.encoder, embedder.windows, *how, *last)


def _beside_a_head(name: str, folder: Path, engine: Engine[Any], encoder: Bert) -> TextEncoder:
    """Vectors by the encoder of a model that has a head too."""
    found = read_sentence_settings(folder)
    longest = min(found.max_length or encoder.config.max_length, encoder.config.max_length)
    windows = TextWindows(engine.tokenizer, longest, None, found.pooling == "cls")
    how = found.pooling, Prompts.of(found), engine.device, engine.compute_dtype
    return TextEncoder(name, encoder, windows, *how)


def vector_operations(found: TextEncoder) -> dict[str, Operation]:
    """What any encoder can be asked for."""
    embed = Embed(found)
    return {"embed": embed, "similarity": Similarity(embed), "embed_tokens": EmbedTokens(found)}
