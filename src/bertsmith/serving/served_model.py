"""A model's folder as the service has it: what it is called, what it is, and what it can be asked for."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bertsmith.errors import InputError
from bertsmith.inference.embedding.embedder import Embedder
from bertsmith.inference.embedding.text_windows import TextWindows
from bertsmith.inference.engine import Engine, start_engine
from bertsmith.inference.index.index import Index
from bertsmith.inference.index.manifest import MANIFEST as INDEX
from bertsmith.inference.model_kind import model_kind
from bertsmith.model.bert import Bert
from bertsmith.model.locate import locate_model
from bertsmith.serving.operations.embed import Embed, EmbedTokens, Similarity, TextEncoder
from bertsmith.serving.operations.fill_mask import FillMask
from bertsmith.serving.operations.operation import Operation
from bertsmith.serving.operations.predict import Predict
from bertsmith.serving.operations.rerank import Rerank, ranks_pairs
from bertsmith.serving.operations.search import Search
from bertsmith.serving.refusals import Unsupported
from bertsmith.serving.settings import ModelSettings
from bertsmith.tasks.checkpoints.sentence_settings import read_sentence_settings
from bertsmith.tasks.checkpoints.task_checkpoint import load_task_model
from bertsmith.tasks.pretraining.pretraining_checkpoint import load_pretraining_model
from bertsmith.tasks.task import Task
from bertsmith.text.tokens.tokenizer import Tokenizer

_State = tuple[tuple[object, ...], ...]
_TELLING = (".safetensors", ".json", ".txt", ".model")  # files that decide what a model answers


@dataclass(frozen=True)
class ServedModel:
    """One version of a model. `task` is classification, tagging, …, embedding, masked-language or search.

    `operations` by name, the usual one first. `max_length` in tokens. `opened` is the task of a model that
    has a head; `encoder` is what makes vectors, where it does. `weights` is the folder that has them, where
    it is another one than `folder`. `written`: when the folder was, in seconds since 1970.
    """

    name: str
    path: str
    folder: Path
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
    weights: Path | None = None
    written: float = field(init=False)
    _opened: _State = field(init=False)
    _index: _State = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "written", self.folder.stat().st_mtime)
        object.__setattr__(self, "_opened", _state(self.weights or self.folder))
        object.__setattr__(self, "_index", _state_of_index(self.folder))

    @property
    def is_in_its_folder(self) -> bool:
        """Whether the folder still has the weights that are served: opened again, it would be the same."""
        return self._opened == _state(self.weights or self.folder)

    @property
    def is_at_its_path(self) -> bool:
        """Whether opening its path again would give the same: a link may lead elsewhere by now. Raises
        ModelError where nothing is there.
        """
        path = Path(self.path)
        folder = path if (path / INDEX).exists() else locate_model(self.path).folder
        return self._opened == _state(self.weights or folder) and self._index == _state_of_index(folder)

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
    """By path, alias or hub name. Raises ModelError and InputError as the folder's kind does."""
    path = Path(settings.path)
    if (path / INDEX).exists():
        return _open_index(settings, version, path)
    folder = locate_model(settings.path).folder
    wanted = getattr(torch, settings.compute_dtype) if settings.compute_dtype else None
    kind = model_kind(folder)
    if kind == "embedding":
        found = text_encoder(settings.name, Embedder(folder, device=device, compute_dtype=wanted))
        return _of_vectors(settings, folder, version, "embedding", vector_operations(found), found)
    if kind == "masked-language":
        model, _ = load_pretraining_model(folder)
        engine = start_engine(model, folder, device, wanted)
        found = _beside_a_head(settings.name, folder, engine, model.encoder)
        operations = {"fill_mask": FillMask(settings.name, engine), **vector_operations(found)}
        return replace(
            _of_vectors(settings, folder, version, kind, operations, found),
            max_length=model.config.max_length,
            module=model,
        )
    return _open_task(settings, version, folder, device, wanted)


def _open_task(
    settings: ModelSettings, version: int, folder: Path, device: torch.device | str, wanted: Any
) -> ServedModel:
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
        folder=folder,
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


def _open_index(settings: ModelSettings, version: int, path: Path) -> ServedModel:
    index = Index.open(path)
    embedder = index.embedder
    if not isinstance(embedder, Embedder):
        raise InputError(f"{path} was built with an embedder of your own, which a service can't open.")
    found = text_encoder(settings.name, embedder)
    embed = Embed(found)
    operations: dict[str, Operation] = {"search": Search(index, embed), "embed": embed}
    return replace(_of_vectors(settings, path, version, "search", operations, found), weights=embedder.folder)


def _of_vectors(
    settings: ModelSettings,
    folder: Path,
    version: int,
    task: str,
    operations: Mapping[str, Operation],
    found: TextEncoder,
) -> ServedModel:
    return ServedModel(
        name=settings.name,
        path=settings.path,
        folder=folder,
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


def _state(folder: Path) -> _State:
    """Of the files with weights, settings and vocabulary."""
    return _seen(path for path in folder.rglob("*") if path.suffix in _TELLING)


def _state_of_index(folder: Path) -> _State:
    """() where it is none."""
    return _seen(folder.glob(INDEX))


def _seen(paths: Iterable[Path]) -> _State:
    """Another file of the same name is told apart."""
    found = [(path, path.stat()) for path in sorted(paths)]
    return tuple((path.name, each.st_ino, each.st_size, each.st_mtime_ns) for path, each in found)


def text_encoder(name: str, embedder: Embedder) -> TextEncoder:
    """The same encoder, for the service's queue."""
    prefixes = {str(kind): prefix for kind, prefix in embedder.prefixes.items()}
    how = embedder.pooling, prefixes, embedder.device, embedder.compute_dtype
    last = embedder.projection, embedder.full_width
    return TextEncoder(name, embedder.encoder, embedder.windows, *how, *last)


def _beside_a_head(name: str, folder: Path, engine: Engine[Any], encoder: Bert) -> TextEncoder:
    """Vectors by the encoder of a model that has a head too."""
    found = read_sentence_settings(folder)
    longest = min(found.max_length or encoder.config.max_length, encoder.config.max_length)
    lowers = found.lowercase and not engine.tokenizer.lowercase
    windows = TextWindows(engine.tokenizer, longest, None, found.pooling == "cls", lowers)
    prefixes = {"query": found.query_prefix, "document": found.document_prefix}
    return TextEncoder(name, encoder, windows, found.pooling, prefixes, engine.device, engine.compute_dtype)


def vector_operations(found: TextEncoder) -> dict[str, Operation]:
    """What any encoder can be asked for."""
    embed = Embed(found)
    return {"embed": embed, "similarity": Similarity(embed), "embed_tokens": EmbedTokens(found)}
