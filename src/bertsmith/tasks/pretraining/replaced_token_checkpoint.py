"""Discriminator and generator from folders and into them: two models that transformers opens each for itself.

MODEL        ElectraForPreTraining, the discriminator: what is fine-tuned
GENERATOR    ElectraForMaskedLM, with a copy of the embeddings that both share in training
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from bertsmith.errors import ModelError
from bertsmith.model.checkpoint import SavesItself, load_into, read_checkpoint, save_checkpoint
from bertsmith.model.config import BertConfig
from bertsmith.model.weights import listed, part_of
from bertsmith.tasks.pretraining.pretraining_checkpoint import save_pretraining_model
from bertsmith.tasks.pretraining.replaced_tokens import ReplacedTokenModel, generator_config

_EMBEDDINGS = "encoder.embeddings."
_PROJECT = "encoder.embeddings.project."


def load_replaced_token_model(
    folder: Path | str, share: float, generator: Path | str | None = None
) -> tuple[ReplacedTokenModel, tuple[str, ...]]:
    """To go on training with: the discriminator in `folder`, and the generator in its own folder or else a
    new one of `share` of the width. Also sentences for the user on what is new or was left out.

    What is new is drawn from torch's generator. The embeddings are the discriminator's. Raises ModelError
    when the two don't fit each other, and as `read_checkpoint` and `load_into` do.
    """
    checkpoint = read_checkpoint(folder)
    config = checkpoint.config
    smaller = generator_config(config, share) if generator is None else read_checkpoint(generator).config
    model = ReplacedTokenModel(config, smaller)
    wanted = {"encoder", "replaced_token"}
    tensors = {name: each for name, each in checkpoint.tensors.items() if part_of(name) in wanted}
    new = [name for name in model.replaced_token.state_dict() if f"replaced_token.{name}" not in tensors]
    discriminator = nn.ModuleDict({"encoder": model.encoder, "replaced_token": model.replaced_token})
    load_into(
        discriminator, tensors, config, str(folder), may_lack=[f"replaced_token.{name}" for name in new]
    )
    notes = list(checkpoint.notes)
    if new:
        notes.append(f"{folder} has no replaced-token head: starting from random weights there")
    if unused := checkpoint.parts - wanted:
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
    tensors = {
        _without_encoder(name): each
        for name, each in checkpoint.tensors.items()
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
    """Writes both folders, and `write_extra_files` into each. Raises as `save_checkpoint` does."""
    alone = model.masked_language()
    save_pretraining_model(
        generator, alone, tokenizer, provenance, write_extra_files=write_extra_files, overwrite=overwrite
    )
    tensors: dict[str, Tensor] = {
        name: each for name, each in model.state_dict().items() if not name.startswith("generator.")
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


def _without_encoder(name: str) -> str:
    """Of a masked language model -> of a `Generator`, whose project stands beside its layers."""
    return name.replace(_PROJECT, "project.").removeprefix("encoder.")


def has_replaced_token_head(config: BertConfig) -> bool:
    """Whether the family's files have a place for it."""
    return any(row.ours.startswith("replaced_token.") for row in config.family.heads)
