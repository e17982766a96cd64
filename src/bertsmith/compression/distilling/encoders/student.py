"""The module that is trained, made from its teacher: a smaller encoder, and what it needs to be compared.

N tokens in the packed batch, K masked positions, B texts, h and H hidden size of student and teacher,
D dimensions of a vector, V vocabulary.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bertsmith.compression.distilling.recipes import EncoderDistilRecipe
from bertsmith.errors import RecipeError
from bertsmith.model.bert import Bert
from bertsmith.model.checkpoint import save_checkpoint
from bertsmith.model.config import BertConfig
from bertsmith.model.layers.elementwise import Dropout
from bertsmith.model.layers.layer import Layer
from bertsmith.model.sentence_files import keep_longest
from bertsmith.model.student import kept_channels, make_student, student_config
from bertsmith.tasks.checkpoints.sentence_folder import SentenceSettings, write_sentence_folder
from bertsmith.tasks.pretraining.pretraining import MaskedLanguageHead
from bertsmith.text.tokens.tokenizer import Tokenizer


class StudentModel(nn.Module):
    """An encoder with what is trained beside it.

    `masked_language` predicts words; `dense` makes vectors of other dimensions than the hidden states;
    `bridge` makes a narrow student's hidden states as wide as the teacher's while it learns (Jiao et al.
    2020, TinyBERT, section 3.1, equation 8), and is saved with no model.
    """

    def __init__(self, encoder: Bert) -> None:
        super().__init__()
        self.config = encoder.config
        self.encoder = encoder
        self.masked_language: MaskedLanguageHead | None = None
        self.dense: nn.Linear | None = None
        self.bridge: nn.Linear | None = None

    def compared(self, states: Tensor) -> Tensor:
        """(N, h) -> (N, H)."""
        return states if self.bridge is None else self.bridge(states)

    def vectors(self, pooled: Tensor) -> Tensor:
        """(B, h) -> (B, D), in float32 as when they are used."""
        with torch.autocast(pooled.device.type, enabled=False):
            return pooled if self.dense is None else self.dense(pooled.float())

    def vocabulary_logits(self, states: Tensor) -> Tensor:
        """(K, h) rows of hidden states -> (K, V)."""
        assert self.masked_language is not None
        weight = self.encoder.embeddings.token.weight
        return F.linear(self.masked_language(states), weight, self.masked_language.bias)


def shape_of(recipe: EncoderDistilRecipe, teacher: BertConfig) -> BertConfig:
    """The student's shape. Raises RecipeError and ModelError for an impossible one."""
    highest = 0 if recipe.numbers is None else max(recipe.numbers) + 1
    if highest > teacher.num_hidden_layers:
        raise RecipeError(
            f"The teacher has {teacher.num_hidden_layers} layers, counted from 1: there is no layer "
            f"{highest} to begin with."
        )
    count = recipe.layers if isinstance(recipe.layers, int) else None
    return student_config(teacher, count, recipe.width, recipe.family, recipe.numbers, recipe.feed_forward)


def make_trained(
    recipe: EncoderDistilRecipe,
    teacher: Bert,
    config: BertConfig,
    weights: Mapping[str, float],
    head: MaskedLanguageHead | None,
    projection: Tensor | None,
) -> tuple[StudentModel, dict[str, Tensor]]:
    """The student for these losses, and its pooler's tensors apart: nothing of them would train it.

    `head` is the teacher's masked-language head; `projection` (D, H) what its vectors become.
    """
    encoder = make_student(teacher, config, recipe.numbers)
    own = {} if encoder.pooler is None else encoder.pooler.state_dict()
    pooler = {f"encoder.pooler.{name}": tensor.clone() for name, tensor in own.items()}
    encoder.pooler = None
    for module in encoder.modules():
        if isinstance(module, Dropout):
            module.probability = recipe.dropout
    student = StudentModel(encoder)
    if "soft" in weights or "mlm" in weights:
        student.masked_language = _words(encoder, teacher, head)
    width, whole = config.hidden_size, torch.eye(teacher.config.hidden_size)
    if "vectors" in weights:
        dimensions = recipe.dimensions if projection is None else len(projection)
        if dimensions is not None and dimensions != width:
            onto = whole if projection is None else projection.cpu()
            student.dense = _from_kept_channels(teacher, width, onto)
    if "states" in weights and width != teacher.config.hidden_size:
        student.bridge = _from_kept_channels(teacher, width, whole)
    if set(weights) == {"relations"}:
        _freeze_behind_attention(encoder)
    return student, pooler


@torch.no_grad()
def _words(encoder: Bert, teacher: Bert, head: MaskedLanguageHead | None) -> MaskedLanguageHead:
    """Begins as the teacher's, where it has one; that of another width with what belongs to the channels that
    were kept, of another build with the bias alone.
    """
    config, words = encoder.config, MaskedLanguageHead(encoder.config)
    if head is None:
        return words
    words.is_new = False
    theirs, own = head.state_dict(), words.state_dict()
    same = config.pre_norm == teacher.config.pre_norm
    if not same or config.embedding_size != teacher.config.embedding_size or own.keys() != theirs.keys():
        words.load_state_dict(own | {"bias": theirs["bias"]})
        return words
    channels = kept_channels(teacher, config.hidden_size)
    scale = (teacher.config.hidden_size / len(channels)) ** 0.5
    # what is compared with embeddings of another width than the hidden states stays whole, as they do
    rows = channels if config.embedding_size is None else torch.arange(config.embedding_size)
    kept = {name: tensor if name == "bias" else tensor[rows] for name, tensor in theirs.items()}
    kept["dense.weight"] = kept["dense.weight"][:, channels] * scale
    words.load_state_dict(kept)
    return words


@torch.no_grad()
def _from_kept_channels(teacher: Bert, width: int, onto: Tensor) -> nn.Linear:
    """Makes of the channels that were kept (h,) what a matrix (D, H) makes of all of the teacher's."""
    linear = nn.Linear(width, len(onto))
    linear.weight.copy_(onto[:, kept_channels(teacher, width)])
    nn.init.zeros_(linear.bias)
    return linear


def _freeze_behind_attention(encoder: Bert) -> None:
    """Relations of the last layer say nothing of what comes behind its queries, keys and values."""
    last = encoder.layers[-1]
    assert isinstance(last, Layer)
    behind = [last.attention.output, last.feed_forward, last.feed_forward_norm, encoder.final_norm]
    for part in behind if last.pre_norm else [*behind, last.attention_norm]:
        if part is not None:
            part.requires_grad_(False)


def save_student(
    folder: Path,
    config: BertConfig,
    weights: Mapping[str, Tensor],
    sentences: SentenceSettings | None,
    tokenizer: Tokenizer,
    provenance: Mapping[str, Any],
    teacher: Path,
) -> None:
    """Of the `weights` of a `StudentModel` what belongs into a model, with how the teacher makes vectors of
    sentences, if it does; replaces what a killed run left. `teacher` is the folder of the teacher's encoder,
    by which longer texts are cut.

    Raises as `save_checkpoint` does.
    """
    parts = ("encoder.", "masked_language.")
    tensors = {name: tensor for name, tensor in weights.items() if name.startswith(parts)}
    words = any(name.startswith(parts[1]) for name in tensors)

    def write_modules(partial: Path) -> None:
        keep_longest(teacher, partial)
        if sentences is None or words:
            return
        dense = None
        if "dense.weight" in weights:
            dimensions, width = weights["dense.weight"].shape
            dense = nn.Linear(width, dimensions)
            dense.load_state_dict({name: weights[f"dense.{name}"] for name in ("weight", "bias")})
        prompts = {"query": sentences.query_prefix, "document": sentences.document_prefix}
        write_sentence_folder(
            partial,
            config,
            sentences.pooling,
            min(sentences.max_length or config.max_length, config.max_length),
            normalise=True,
            prompts={**sentences.prompts, **prompts},
            default_prompt_name=sentences.default_prompt_name,
            projection=dense,
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
