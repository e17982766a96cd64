"""A distilled encoder into a folder that other tools open: for masked words, for vectors, or bare."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from bertsmith.compression.distilling.encoders.kinds import Subject
from bertsmith.model.checkpoint import save_checkpoint
from bertsmith.model.config import BertConfig
from bertsmith.model.sentence_files import keep_longest
from bertsmith.tasks.checkpoints.sentence_folder import write_sentence_folder
from bertsmith.text.tokens.tokenizer import Tokenizer


def save_student(
    folder: Path,
    config: BertConfig,
    weights: Mapping[str, Tensor],
    subject: Subject,
    tokenizer: Tokenizer,
    provenance: Mapping[str, Any],
    teacher: Path,
) -> None:
    """Of the `weights` of a `Student` what belongs into a model; replaces what a killed run left. `teacher`
    is the folder of the teacher's encoder, by which longer texts are cut.

    Raises as `save_checkpoint` does.
    """
    parts = ("encoder.", "masked_language.")
    tensors = {name: tensor for name, tensor in weights.items() if name.startswith(parts)}
    words = any(name.startswith(parts[1]) for name in tensors)

    def write_modules(partial: Path) -> None:
        keep_longest(teacher, partial)
        found = subject.sentences
        if found is not None and not words:
            longest = min(found.max_length or config.max_length, config.max_length)
            write_sentence_folder(
                partial,
                config,
                found.pooling,
                longest,
                normalise=True,
                prompts={
                    **found.prompts,
                    "query": found.query_prefix,
                    "document": found.document_prefix,
                },
                default_prompt_name=found.default_prompt_name,
                projection=_dense(weights),
            )

    save_checkpoint(
        folder,
        tensors,
        config,
        config.family.class_prefix + ("ForMaskedLM" if words else "Model"),
        task="pretraining" if words else "encoder",
        tokenizer=tokenizer,
        provenance=provenance,
        write_extra_files=write_modules,
        overwrite=True,
    )


def _dense(weights: Mapping[str, Tensor]) -> nn.Linear | None:
    if "dense.weight" not in weights:
        return None
    dimensions, width = weights["dense.weight"].shape
    dense = nn.Linear(width, dimensions)
    dense.load_state_dict({name: weights[f"dense.{name}"] for name in ("weight", "bias")})
    return dense
