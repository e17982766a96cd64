"""A pre-training model from a folder and into one."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from bertsmith.door import door, flag, kind, optional
from bertsmith.errors import ModelError
from bertsmith.model.checkpoint import Checkpoint, SavesItself, load_into, read_checkpoint, save_checkpoint
from bertsmith.model.meta_init import meta_init
from bertsmith.model.weights import listed, part_of
from bertsmith.tasks.pretraining.pretraining import PretrainingModel

_ORDER = "sentence_order"  # in the settings of bertsmith.json
# How the parts are called in a sentence.
_NAMES = {
    "pooler": "pooler",
    "masked_language": "masked-language head",
    "next_sentence": "next-sentence head",
}


@door(next_sentence=optional(flag), sentence_order=optional(flag), allow_new_heads=flag)
def load_pretraining_model(
    folder: Path | str,
    *,
    next_sentence: bool | None = None,
    sentence_order: bool | None = None,
    allow_new_heads: bool = False,
) -> tuple[PretrainingModel, tuple[str, ...]]:
    """The model in evaluation mode, and sentences for the user on what was converted, added or left out.

    `next_sentence` says whether to have the pairs' head; None takes what the folder has, and with
    `allow_new_heads` what its family was trained with. `sentence_order` says which question it answers; None
    takes the folder's, and a head that was trained for the other one counts as missing. `allow_new_heads`
    gives parts that the folder lacks random weights from torch's generator: to go on training from an encoder
    alone. Raises ModelError when a part is missing and may not be new, when the family has no such head, and
    as `read_checkpoint` and `load_into` do.
    """
    checkpoint = read_checkpoint(folder)
    wanted = _wants_next_sentence(checkpoint, next_sentence, allow_new_heads)
    trained = _was_in_order(checkpoint)
    order = trained if sentence_order is None else sentence_order
    model = meta_init(lambda: PretrainingModel(checkpoint.config, wanted, order))
    parts = {part_of(name) for name in model.state_dict()}
    new = parts - checkpoint.parts
    if order != trained:
        new |= parts & {"next_sentence"}
    if new and not allow_new_heads:
        if "replaced_token" in checkpoint.parts:
            raise ModelError(
                f"{folder} has no masked-language head: it tells which tokens were replaced. Its generator, "
                "a model of its own, fills masks: generator/ beside model/ in the run's folder."
            )
        raise ModelError(
            f"{folder} has no {_spoken(new, order)}. Pre-train it first (bertsmith pretrain … "
            f"init={folder}), or use a checkpoint that has one."
        )
    if new:
        model = _with_new_parts(checkpoint, model, new, str(folder))
    else:
        load_into(model, _of_parts(checkpoint, parts), checkpoint.config, str(folder))
    model.masked_language.is_new = "masked_language" in new
    return model.eval(), (*checkpoint.notes, *_notes(checkpoint, parts, new, order, folder))


@door(model=kind(PretrainingModel), provenance=kind(Mapping), overwrite=flag)
def save_pretraining_model(
    folder: Path | str,
    model: PretrainingModel,
    tokenizer: SavesItself | None,
    provenance: Mapping[str, Any],
    *,
    write_extra_files: Callable[[Path], None] | None = None,
    overwrite: bool = False,
) -> None:
    """Writes a folder that transformers opens as BertForPreTraining, or as the family's …ForMaskedLM.

    Raises as `save_checkpoint` does.
    """
    with_pairs = model.next_sentence is not None
    save_checkpoint(
        folder,
        model.state_dict(),
        model.config,
        model.config.family.class_prefix + ("ForPreTraining" if with_pairs else "ForMaskedLM"),
        task="pretraining",
        tokenizer=tokenizer,
        settings={_ORDER: True} if with_pairs and model.sentence_order else {},
        provenance=provenance,
        write_extra_files=write_extra_files,
        overwrite=overwrite,
    )


def _wants_next_sentence(checkpoint: Checkpoint, asked: bool | None, allow_new_heads: bool) -> bool:
    if asked and not checkpoint.config.has_next_sentence:
        raise ModelError(
            f"A {checkpoint.config.model_type} model has no next-sentence prediction: "
            "set data.next_sentence=false."
        )
    if asked is not None:
        return asked
    if allow_new_heads:
        return checkpoint.config.has_next_sentence
    return "next_sentence" in checkpoint.parts and "pooler" in checkpoint.parts


def _was_in_order(checkpoint: Checkpoint) -> bool:
    """Whether the pairs' head was trained on the order of segments; transformers' files say nothing of it."""
    return checkpoint.manifest is not None and checkpoint.manifest.settings.get(_ORDER) is True


def _with_new_parts(
    checkpoint: Checkpoint, blueprint: PretrainingModel, new: set[str], where: str
) -> PretrainingModel:
    """The checkpoint's parts, and random ones where they are new."""
    model = blueprint.another()
    names = model.state_dict().keys()
    tensors = _of_parts(checkpoint, {part_of(name) for name in names} - new)
    load_into(
        model, tensors, checkpoint.config, where, may_lack=[name for name in names if part_of(name) in new]
    )
    return model


def _of_parts(checkpoint: Checkpoint, parts: set[str]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in checkpoint.tensors.items() if part_of(name) in parts}


def _notes(
    checkpoint: Checkpoint, parts: set[str], new: set[str], order: bool, folder: Path | str
) -> list[str]:
    unused = checkpoint.parts - parts
    notes = []
    if new:
        notes.append(f"{folder} has no {_spoken(new, order)}: starting from random weights there")
    if unused:
        notes.append(f"the {_spoken(unused)} of {folder} isn't used for pre-training and was left out")
    return notes


def _spoken(parts: set[str] | frozenset[str], order: bool = False) -> str:
    names = _NAMES | ({"next_sentence": "sentence-order head"} if order else {})
    return listed(names.get(part, part) for part in parts)
