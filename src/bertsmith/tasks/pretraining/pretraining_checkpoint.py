"""Loads and saves pre-training models: one folder, or two for the discriminator and the generator of
replaced-token detection.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from bertsmith.argument_checks import check_arguments, check_flag, instance_of, optional
from bertsmith.errors import ModelError
from bertsmith.model.checkpoint import Checkpoint, SavesItself, load_into, read_checkpoint, save_checkpoint
from bertsmith.model.config import BertConfig
from bertsmith.model.layers.initialisation import meta_init
from bertsmith.model.weights import listed, part_of
from bertsmith.tasks.pretraining.pretraining import PretrainingModel
from bertsmith.tasks.pretraining.replaced_tokens import ReplacedTokenModel, generator_config

_ORDER = "sentence_order"  # in the settings of bertsmith.json
# The names of parts in sentences.
_NAMES = {
    "pooler": "pooler",
    "masked_language": "masked-language head",
    "next_sentence": "next-sentence head",
}
_EMBEDDINGS = "encoder.embeddings."
_PROJECT = "encoder.embeddings.project."


@check_arguments(
    next_sentence=optional(check_flag), sentence_order=optional(check_flag), allow_new_heads=check_flag
)
def load_pretraining_model(
    folder: Path | str,
    *,
    next_sentence: bool | None = None,
    sentence_order: bool | None = None,
    allow_new_heads: bool = False,
) -> tuple[PretrainingModel, tuple[str, ...]]:
    """The model in evaluation mode, and sentences for the user on what was converted, added or left out.

    `next_sentence` says whether the model has the pair head; None means as in the folder or, with
    `allow_new_heads`, as in its family. `sentence_order` says which question that head answers; None means
    the folder's, and a head that was trained for the other question counts as missing. With
    `allow_new_heads` missing parts get random weights from torch's generator, to train an encoder further.
    Raises ModelError when a part is missing and may not be new, when the family has no such head, and as
    `read_checkpoint` and `load_into` do.
    """
    checkpoint = read_checkpoint(folder)
    has_pairs = _has_pair_head(checkpoint, next_sentence, allow_new_heads)
    trained = _was_trained_on_order(checkpoint)
    order = trained if sentence_order is None else sentence_order
    model = meta_init(lambda: PretrainingModel(checkpoint.config, has_pairs, order))
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
            f"{folder} has no {_name_parts(new, order)}. Pre-train it first (bertsmith pretrain … "
            f"init={folder}), or use a checkpoint that has one."
        )
    if new:
        model = _add_new_parts(checkpoint, model, new, str(folder))
    else:
        load_into(model, _select_parts(checkpoint, parts), checkpoint.config, str(folder))
    model.masked_language.is_new = "masked_language" in new
    return model.eval(), (*checkpoint.notes, *_describe_changes(checkpoint, parts, new, order, folder))


@check_arguments(model=instance_of(PretrainingModel), provenance=instance_of(Mapping), overwrite=check_flag)
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


def _has_pair_head(checkpoint: Checkpoint, next_sentence: bool | None, allow_new_heads: bool) -> bool:
    if next_sentence and not checkpoint.config.has_next_sentence:
        raise ModelError(
            f"A {checkpoint.config.model_type} model has no next-sentence prediction: "
            "set data.next_sentence=false."
        )
    if next_sentence is not None:
        return next_sentence
    if allow_new_heads:
        return checkpoint.config.has_next_sentence
    return "next_sentence" in checkpoint.parts and "pooler" in checkpoint.parts


def _was_trained_on_order(checkpoint: Checkpoint) -> bool:
    """Whether the pair head was trained on the order of segments: ALBERT's is, and our bertsmith.json says so
    of another.
    """
    if checkpoint.config.family.sentence_order:
        return True
    return checkpoint.manifest is not None and checkpoint.manifest.settings.get(_ORDER) is True


def _add_new_parts(
    checkpoint: Checkpoint, blueprint: PretrainingModel, new: set[str], where: str
) -> PretrainingModel:
    """A model with the checkpoint's parts, and with random weights in the new ones."""
    model = blueprint.another()
    names = model.state_dict().keys()
    tensors = _select_parts(checkpoint, {part_of(name) for name in names} - new)
    load_into(
        model, tensors, checkpoint.config, where, may_lack=[name for name in names if part_of(name) in new]
    )
    return model


def _select_parts(checkpoint: Checkpoint, parts: set[str]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in checkpoint.tensors.items() if part_of(name) in parts}


def _describe_changes(
    checkpoint: Checkpoint, parts: set[str], new: set[str], order: bool, folder: Path | str
) -> list[str]:
    unused = checkpoint.parts - parts
    notes = []
    if new:
        notes.append(f"{folder} has no {_name_parts(new, order)}: starting from random weights there")
    if unused:
        notes.append(f"the {_name_parts(unused)} of {folder} isn't used for pre-training and was left out")
    return notes


def _name_parts(parts: set[str] | frozenset[str], order: bool = False) -> str:
    names = _NAMES | ({"next_sentence": "sentence-order head"} if order else {})
    return listed(names.get(part, part) for part in parts)


def load_replaced_token_model(
    folder: Path | str, share: float, generator: Path | str | None = None
) -> tuple[ReplacedTokenModel, tuple[str, ...]]:
    """Loads the discriminator in `folder`, and the generator in its own folder or, without one, a new
    generator with `share` of the width, to train them further. Returns them with sentences for the user on
    what is new or was left out.

    New weights are drawn from torch's generator. The embeddings are the discriminator's. Raises ModelError
    when the two don't fit each other, and as `read_checkpoint` and `load_into` do.
    """
    checkpoint = read_checkpoint(folder)
    config = checkpoint.config
    smaller = generator_config(config, share) if generator is None else read_checkpoint(generator).config
    model = ReplacedTokenModel(config, smaller)
    read_parts = {"encoder", "replaced_token"}
    tensors = _select_parts(checkpoint, read_parts)
    new = [name for name in model.replaced_token.state_dict() if f"replaced_token.{name}" not in tensors]
    discriminator = nn.ModuleDict({"encoder": model.encoder, "replaced_token": model.replaced_token})
    load_into(
        discriminator, tensors, config, str(folder), may_lack=[f"replaced_token.{name}" for name in new]
    )
    notes = list(checkpoint.notes)
    if new:
        notes.append(f"{folder} has no replaced-token head: starting from random weights there")
    if unused := checkpoint.parts - read_parts:
        notes.append(f"of {folder} {listed(unused)} isn't used for pre-training and was left out")
    if generator is None:
        notes.append(
            "the generator starts from random weights; replaced.generator=FOLDER goes on with a trained one"
        )
    else:
        notes += _load_generator(model, config, generator)
    return model, tuple(notes)


def _load_generator(model: ReplacedTokenModel, config: BertConfig, folder: Path | str) -> list[str]:
    checkpoint = read_checkpoint(folder)
    own, shared = checkpoint.config, ("vocab_size", "max_position_embeddings", "type_vocab_size")
    differing = [name for name in shared if getattr(own, name) != getattr(config, name)]
    differing += [] if own.embedding_width == config.embedding_width else ["embedding_size"]
    if differing:
        raise ModelError(
            f"{folder} can't be the generator: it must share the discriminator's embeddings, but has another "
            f"{listed(differing)}. Leave replaced.generator out for a new one."
        )
    if "masked_language" not in checkpoint.parts:
        raise ModelError(
            f"{folder} has no masked-language head, so it is no generator. A run with "
            "objective=replaced-tokens saves one as generator/."
        )
    tensors = {  # `Generator.project` is beside its layers, not in its embeddings
        name.replace(_PROJECT, "project.").removeprefix("encoder."): tensor
        for name, tensor in checkpoint.tensors.items()
        if part_of(name) in ("encoder", "masked_language")
        and (not name.startswith(_EMBEDDINGS) or name.startswith(_PROJECT))
    }
    model.generator.load_state_dict(tensors)
    model.generator.masked_language.is_new = False
    return list(checkpoint.notes)


def save_replaced_token_model(
    folder: Path,
    generator: Path,
    model: ReplacedTokenModel,
    tokenizer: SavesItself | None,
    provenance: Mapping[str, Any],
    *,
    write_extra_files: Callable[[Path], None] | None = None,
    overwrite: bool = False,
) -> None:
    """Writes the discriminator to `folder` and the generator to `generator`, and calls `write_extra_files`
    for both. Raises as `save_checkpoint` does.
    """
    alone = model.masked_language()
    save_pretraining_model(
        generator, alone, tokenizer, provenance, write_extra_files=write_extra_files, overwrite=overwrite
    )
    tensors: dict[str, Tensor] = {
        name: tensor for name, tensor in model.state_dict().items() if not name.startswith("generator.")
    }
    save_checkpoint(
        folder,
        tensors,
        model.config,
        model.config.family.class_prefix + "ForPreTraining",
        task="pretraining",
        tokenizer=tokenizer,
        provenance=provenance,
        write_extra_files=write_extra_files,
        overwrite=overwrite,
    )


def has_replaced_token_head(config: BertConfig) -> bool:
    """Whether the family's files can hold the head of replaced-token detection."""
    return any(row.ours.startswith("replaced_token.") for row in config.family.heads)
