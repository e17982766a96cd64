"""A fine-tuned model from a folder and into one, or begun from a pre-trained encoder.

model.safetensors   encoder and head, in transformers' names
head.safetensors    what transformers has no place for, if anything, in ours; a linear head of pooled states
                    stands in sentence-transformers' files too
bertsmith.json      the task, and its state: settings, labels, thresholds
"""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from safetensors.torch import save_file
from torch import Tensor, nn

from bertsmith.errors import ModelError
from bertsmith.files import sha256, sha256_of_unchanged, tensors_written_to
from bertsmith.model.bert import Bert
from bertsmith.model.checkpoint import (
    CONFIG,
    WEIGHTS,
    Checkpoint,
    FindsEncoder,
    SavesItself,
    encoder_of,
    load_encoder_into,
    read_checkpoint,
    save_checkpoint,
)
from bertsmith.model.config import BertConfig
from bertsmith.model.cpu.adapter import read_kernel_adapter
from bertsmith.model.layers.initialisation import meta_init
from bertsmith.model.locate import locate_model
from bertsmith.model.lora import (
    ADAPTER_CONFIG,
    pooler_tensors,
    read_adapter,
    save_adapter,
)
from bertsmith.model.manifest import (
    IMPORTED,
    MANIFEST,
    Manifest,
    read_unverified_manifest,
    verify_while_loading,
    write_manifest,
)
from bertsmith.model.static_table import StaticTable, is_static, load_static, save_static
from bertsmith.model.untrusted import plain_file, read_settings, read_tensors
from bertsmith.model.weights import listed
from bertsmith.tasks.checkpoints.infer_task import task_of_foreign
from bertsmith.tasks.checkpoints.sentence_folder import read_starting_projection, write_sentence_folder
from bertsmith.tasks.heads.classifier_head import PooledHead
from bertsmith.tasks.registry import TASKS, find_task
from bertsmith.tasks.task import Task, TaskSettings
from bertsmith.tasks.task_model import TaskModel
from bertsmith.text.tokens.tokenizer import Tokenizer

HEAD = "head.safetensors"
_BASE_HASH = "base_sha256"  # of the weights that an adapter was trained on


@dataclass(frozen=True)
class StartingModel:
    """A model to fine-tune: a pre-trained encoder and a new head; `notes` are sentences for the user."""

    model: TaskModel
    notes: tuple[str, ...]


def begin_task_model(folder: Path | str, task: Task[Any]) -> StartingModel:
    """A pre-trained encoder with a new head, drawn from torch's generator. Raises as `load_encoder` does."""
    checkpoint = read_checkpoint(folder)
    encoder = encoder_of(checkpoint, f"{folder}/{WEIGHTS}")
    if task.makes_vectors:
        task.projection = read_starting_projection(Path(folder), encoder.config.hidden_size)
    head = task.head(encoder.config)
    notes = list(checkpoint.notes)
    if head.pooled and encoder.pooler is None:
        notes.append(f"{folder} has no pooler: starting from random weights there")
    return StartingModel(TaskModel(encoder, head), tuple(notes))


def save_task_model(
    folder: Path | str,
    model: TaskModel,
    task: Task[Any],
    tokenizer: SavesItself,
    provenance: Mapping[str, Any],
    *,
    overwrite: bool = False,
) -> None:
    """Writes a folder that transformers opens by the head's class. Raises as `save_checkpoint` does."""
    if isinstance(model.encoder, StaticTable):
        _save_on_table(folder, model.encoder, model.head, task, tokenizer, provenance, overwrite=overwrite)
        return
    config, head = model.config, model.head
    known, own = head_tensors(head)
    task.bind(head)

    def write_extra_files(partial: Path) -> None:
        if own:
            with tensors_written_to(partial / HEAD):
                save_file(own, partial / HEAD)
        if isinstance(head, PooledHead) and head.pooling is not None:
            longest = task.settings.max_length
            dense = None if head.column_features else head.out  # which reads more than the text's vector
            write_sentence_folder(partial, config, head.pooling, longest, normalise=True, classifier=dense)
        task.write_extra_files(partial, config)

    save_checkpoint(
        folder,
        {f"encoder.{name}": tensor for name, tensor in model.encoder.state_dict().items()},
        config,
        config.family.class_prefix + (head.architecture or "Model"),
        task=task.name,
        tokenizer=tokenizer,
        provenance=provenance,
        settings=task.state(),
        carried=known,
        labels=task.config_labels(),
        write_extra_files=write_extra_files,
        overwrite=overwrite,
    )


def load_task_model(
    folder: Path | str,
    task: type[Task[Any]] | None = None,
    *,
    table_in_file: bool = False,
    in_use: FindsEncoder | None = None,
) -> tuple[TaskModel, Task[Any]]:
    """The model in evaluation mode, and its task as it was trained. `table_in_file` and `in_use` are as in
    `read_checkpoint`.

    A folder of transformers without bertsmith.json is opened by its class and labels. `task` is needed for
    tasks that aren't ours, because a file can't name code to import. Raises ModelError for a folder of
    another kind, a missing head, and as `read_checkpoint` does.
    """
    folder = Path(folder)
    if is_static(folder):
        return _load_on_table(folder, task)
    if is_task_adapter(folder):
        return _load_adapted(folder, task, table_in_file=table_in_file, in_use=in_use)
    checkpoint = read_checkpoint(folder, table_in_file=table_in_file, in_use=in_use)
    opened = _open_task(checkpoint, folder, task)
    model = meta_init(
        lambda: TaskModel(checkpoint.encoder or Bert(checkpoint.config), opened.head(checkpoint.config))
    )
    without = "" if model.head.pooled else "encoder.pooler."
    load_encoder_into(model.encoder, checkpoint, str(folder), without=without)
    _load_head(model.head, checkpoint.carried, _own_tensors(folder, checkpoint), str(folder))
    opened.bind(model.head)
    return model.eval(), opened


def on_table(table: StaticTable, task: Task[Any]) -> TaskModel:
    """A task's head, with new weights, on a static table, of which the head needs only the width."""
    pieces, width = table.table.shape
    shape = BertConfig(
        vocab_size=pieces,
        hidden_size=width,
        num_attention_heads=1,
        hidden_dropout_prob=0.0,
        intermediate_size=1,
    )
    return TaskModel(cast(Bert, table), task.head(shape))


def _load_on_table(folder: Path, given: type[Task[Any]] | None) -> tuple[TaskModel, Task[Any]]:
    table, manifest = load_static(folder), read_unverified_manifest(folder)
    if manifest is None or manifest.task == "encoder":
        raise ModelError(
            f"{folder} is a static table of vectors, without the head of a task. Embed, index, search and "
            "serve with it."
        )
    opened = _known_task(manifest, given, folder)
    model = on_table(table, opened)
    if HEAD not in manifest.files:
        raise ModelError(f"{folder}/bertsmith.json has no hash of {HEAD}. It was altered.")
    _load_head(model.head, {}, read_tensors(plain_file(folder, HEAD)), str(folder))
    opened.bind(model.head)
    return model.eval(), opened


def _save_on_table(
    folder: Path | str,
    table: StaticTable,
    head: nn.Module,
    task: Task[Any],
    tokenizer: SavesItself,
    provenance: Mapping[str, Any],
    *,
    overwrite: bool,
) -> None:
    def write_head(partial: Path) -> None:
        known, own = head_tensors(head)
        with tensors_written_to(partial / HEAD):
            save_file(known | own, partial / HEAD)

    save_static(
        Path(folder),
        table.table.detach(),
        cast(Tokenizer, tokenizer),
        provenance=provenance,
        max_length=task.settings.max_length,
        task=task.name,
        settings=task.state(),
        write_extra_files=write_head,
        overwrite=overwrite,
    )


def _open_task(checkpoint: Checkpoint, folder: Path, given: type[Task[Any]] | None) -> Task[Any]:
    manifest = checkpoint.manifest
    if manifest is None or manifest.task == IMPORTED:
        return task_of_foreign(checkpoint, folder)
    opened = _known_task(manifest, given, folder)
    _require_room(opened.settings, checkpoint.config, f"{folder}/bertsmith.json")
    return opened


def _known_task(manifest: Manifest, task_class: type[Task[Any]] | None, folder: Path) -> Task[Any]:
    """The task as it was trained, except for the encoding, which belongs to a file: latin-1 would silently
    misread UTF-8.
    """
    if task_class is None and manifest.task not in TASKS:
        raise ModelError(
            f"{folder} was made for {manifest.task!r}, which is none of Bertsmith's tasks "
            f"({', '.join(TASKS)}). Fine-tune it first, or name your own task's class."
        )
    chosen_class = task_class or find_task(manifest.task)
    opened = chosen_class.from_state(manifest.settings, f"{folder}/bertsmith.json")
    default = TaskSettings.model_fields["encoding"].default
    opened.settings = opened.settings.model_copy(update={"encoding": default})
    return opened


def _require_room(settings: TaskSettings, config: BertConfig, where: str) -> None:
    """Raises ModelError if windows are longer than the model reads, or the stride leaves no room to
    move on.
    """
    if settings.max_length > config.max_length:
        raise ModelError(
            f"{where}: max_length = {settings.max_length}, but the model has positions for "
            f"{config.max_length} tokens. The file was altered: take it from a copy, or train again."
        )
    default = type(settings).model_fields["stride"].default  # which gives way to a smaller max_length
    if settings.stride != default and settings.stride_problem is not None:
        raise ModelError(f"{where}: {settings.stride_problem}")


def head_tensors(head: nn.Module) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """A head's tensors under transformers' names, and separately those that it has no name for."""
    known, others = {}, {}
    for name, tensor in head.state_dict().items():
        module, _, leaf = name.rpartition(".")
        file_name = head.file_names.get(module)  # type: ignore[union-attr, operator]
        if file_name is None:
            others[name] = tensor.detach().contiguous()
        else:
            known[f"{file_name}.{leaf}"] = tensor
    return known, others


def _own_tensors(folder: Path, checkpoint: Checkpoint) -> dict[str, Tensor]:
    if not (folder / HEAD).exists():
        return {}
    if checkpoint.manifest is None or HEAD not in checkpoint.manifest.files:
        raise ModelError(f"{folder}/bertsmith.json has no hash of {HEAD}. It was altered.")
    return read_tensors(plain_file(folder, HEAD))


def _load_head(head: nn.Module, carried: Mapping[str, Tensor], own: Mapping[str, Tensor], where: str) -> None:
    """Loads every tensor of the head, and raises ModelError if one is missing or left over."""
    expected, names = head.state_dict(), dict[str, str]()
    for name in expected:
        module, _, leaf = name.rpartition(".")
        file_name = head.file_names.get(module)  # type: ignore[union-attr, operator]
        names[name] = name if file_name is None else f"{file_name}.{leaf}"
    tensors = {**carried, **own}
    missing, unexpected = set(names.values()) - tensors.keys(), tensors.keys() - set(names.values())
    if missing or unexpected:
        raise ModelError(
            f"{where}: its head doesn't fit its task: "
            + "; ".join(
                f"{what} {listed(which)}"
                for what, which in (("missing", missing), ("unexpected", unexpected))
                if which
            )
            + ". Use a checkpoint whose files belong together."
        )
    for name, file_name in names.items():
        if tensors[file_name].shape != expected[name].shape:
            raise ModelError(
                f"{where}: {file_name} must have the shape {tuple(expected[name].shape)}, found "
                f"{tuple(tensors[file_name].shape)}."
            )
        if not bool(tensors[file_name].isfinite().all()):
            raise ModelError(f"{where}: {file_name} holds values that are not finite.")
    head.load_state_dict({name: tensors[file_name].float() for name, file_name in names.items()}, assign=True)


def is_task_adapter(folder: Path) -> bool:
    """Whether a folder has LoRA's weights and a head, and says of which task and tokenizer they are."""
    return (
        (folder / ADAPTER_CONFIG).exists() and (folder / MANIFEST).exists() and not (folder / CONFIG).exists()
    )


def _load_adapted(
    folder: Path, given: type[Task[Any]] | None, *, table_in_file: bool, in_use: FindsEncoder | None
) -> tuple[TaskModel, Task[Any]]:
    """The model that an adapter was trained on, with its low-rank parts, which aren't merged, and its head.
    Raises ModelError where that model is gone, or has other weights than it had then.
    """
    with verify_while_loading(folder) as manifest:
        assert manifest is not None
        opened = _known_task(manifest, given, folder)
        name = read_settings(plain_file(folder, ADAPTER_CONFIG)).get("base_model_name_or_path")
        try:
            base = locate_model(str(name)).folder
        except ModelError as error:
            raise ModelError(f"{folder} was trained on {name}, which can't be opened. {error}") from error
        if sha256_of_unchanged(plain_file(base, WEIGHTS)) != manifest.provenance.get(_BASE_HASH):
            raise ModelError(
                f"{folder} was trained on {name}, whose weights are others now. Give the folder of the "
                f"merged model, {folder.parent / 'model'}, or train again."
            )
        checkpoint = read_checkpoint(base, table_in_file=table_in_file, in_use=in_use)
        if checkpoint.encoder is not None:
            tensors, adapter = read_kernel_adapter(folder, checkpoint.config)
            checkpoint.encoder.adapter = adapter
            if adapter is None:  # it can only be merged into the weights
                checkpoint = read_checkpoint(base, table_in_file=table_in_file)
        model = meta_init(
            lambda: TaskModel(checkpoint.encoder or Bert(checkpoint.config), opened.head(checkpoint.config))
        )
        has_pooler = model.head.pooled and "pooler" in checkpoint.parts
        pooler = model.encoder.pooler
        if not has_pooler:
            model.encoder.pooler = None
        load_encoder_into(
            model.encoder, checkpoint, str(base), without="" if has_pooler else "encoder.pooler."
        )
        if checkpoint.encoder is None:
            tensors = read_adapter(folder, model.encoder)
        if model.head.pooled and not has_pooler:
            model.encoder.pooler = pooler
            assert pooler is not None
            names = {
                leaf: name
                for name in tensors
                for leaf in ("weight", "bias")
                if f"pooler.dense.{leaf}" in name
            }
            pooler.load_state_dict({leaf: tensors.pop(name) for leaf, name in names.items()}, assign=True)
        own = read_tensors(plain_file(folder, HEAD)) if HEAD in manifest.files else {}
        _load_head(model.head, tensors, own, str(folder))
    opened.bind(model.head)
    return model.eval(), opened


def complete_task_adapter(folder: Path, merged: Path, base: Path) -> None:
    """Puts into the folder of `save_task_adapter` what is needed to predict with it and its `base` alone: the
    task, its tokenizer and what else stands in the folder of the `merged` model beside its weights.
    """
    manifest = read_unverified_manifest(merged)
    assert manifest is not None
    for name in manifest.files.keys() - {CONFIG, WEIGHTS, "golden.json"}:
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(merged / name, folder / name)
    provenance = manifest.provenance | {_BASE_HASH: sha256(base / WEIGHTS)}
    write_manifest(folder, manifest.model_copy(update={"provenance": provenance}))


def save_task_adapter(folder: Path, model: TaskModel, base_model: str) -> None:
    """Saves the LoRA weights that were added to the encoder of `base_model`, and the head, replacing what is
    in `folder`.
    """
    heads, _ = head_tensors(model.head)
    if model.new_pooler:
        heads |= pooler_tensors(model.encoder)
    save_adapter(folder, model.encoder, heads=heads, base_model=base_model, overwrite=True)
