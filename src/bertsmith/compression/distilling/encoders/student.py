"""The student model, made from the teacher's weights: a smaller encoder and the layers that its losses need.

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
from bertsmith.model.sentence_files import keep_lower_max_length
from bertsmith.model.student import kept_channels, make_student, student_config
from bertsmith.tasks.checkpoints.sentence_folder import SentenceSettings, write_sentence_folder
from bertsmith.tasks.pretraining.pretraining import MaskedLanguageHead
from bertsmith.text.tokens.tokenizer import Tokenizer


class StudentModel(nn.Module):
    """An encoder and the layers that are trained with it.

    `masked_language` predicts words; `dense` projects pooled vectors to another number of dimensions;
    `bridge` widens a narrow student's hidden states to the teacher's hidden size in training (TinyBERT, Jiao
    et al. 2020, section 3.1, equation 8), and isn't saved.
    """

    def __init__(self, encoder: Bert) -> None:
        super().__init__()
        self.config = encoder.config
        self.encoder = encoder
        self.masked_language: MaskedLanguageHead | None = None
        self.dense: nn.Linear | None = None
        self.bridge: nn.Linear | None = None

    def widen(self, states: Tensor) -> Tensor:
        """Hidden states (N, h) as wide as the teacher's (N, H)."""
        return states if self.bridge is None else self.bridge(states)

    def vectors(self, pooled: Tensor) -> Tensor:
        """The vectors (B, D) of pooled hidden states (B, h), in float32 as at inference."""
        with torch.autocast(pooled.device.type, enabled=False):
            return pooled if self.dense is None else self.dense(pooled.float())

    def vocabulary_logits(self, states: Tensor) -> Tensor:
        """The logits (K, V) over the vocabulary of hidden states (K, h)."""
        assert self.masked_language is not None
        weight = self.encoder.embeddings.token.weight
        return F.linear(self.masked_language(states), weight, self.masked_language.bias)


def student_shape(recipe: EncoderDistilRecipe, teacher: BertConfig) -> BertConfig:
    """The student's config. Raises RecipeError and ModelError for one that can't be made from the teacher."""
    highest = 0 if recipe.numbers is None else max(recipe.numbers) + 1
    if highest > teacher.num_hidden_layers:
        raise RecipeError(
            f"The teacher has {teacher.num_hidden_layers} layers, counted from 1: there is no layer "
            f"{highest} to begin with."
        )
    count = recipe.layers if isinstance(recipe.layers, int) else None
    return student_config(teacher, count, recipe.width, recipe.family, recipe.numbers, recipe.feed_forward)


def make_student_model(
    recipe: EncoderDistilRecipe,
    teacher: Bert,
    config: BertConfig,
    weights: Mapping[str, float],
    head: MaskedLanguageHead | None,
    projection: Tensor | None,
) -> tuple[StudentModel, dict[str, Tensor]]:
    """The student with the layers that the losses in `weights` need, and its pooler's tensors apart, since no
    loss would train them.

    `head` is the teacher's masked-language head; `projection` (D, H) makes the teacher's vectors of its
    pooled states, as far as a product can.
    """
    encoder = make_student(teacher, config, recipe.numbers)
    pooler_state = {} if encoder.pooler is None else encoder.pooler.state_dict()
    pooler = {f"encoder.pooler.{name}": tensor.clone() for name, tensor in pooler_state.items()}
    encoder.pooler = None
    for module in encoder.modules():
        if isinstance(module, Dropout):
            module.probability = recipe.dropout
    student = StudentModel(encoder)
    if "soft" in weights or "mlm" in weights:
        student.masked_language = _start_head(encoder, teacher, head)
    width, identity = config.hidden_size, torch.eye(teacher.config.hidden_size)
    if "vectors" in weights:
        dimensions = recipe.dimensions if projection is None else len(projection)
        is_square = projection is not None and len(projection) == projection.shape[1]
        if dimensions is not None and (dimensions != width or is_square):
            matrix = identity if projection is None else projection.cpu()
            student.dense = _narrow_linear(teacher, width, matrix)
    if "states" in weights and width != teacher.config.hidden_size:
        student.bridge = _narrow_linear(teacher, width, identity)
    if set(weights) == {"relations"}:
        _freeze_behind_attention(encoder)
    return student, pooler


@torch.no_grad()
def _start_head(encoder: Bert, teacher: Bert, teacher_head: MaskedLanguageHead | None) -> MaskedLanguageHead:
    """The student's masked-language head. It starts from the teacher's, if there is one: a narrower student's
    from the rows and columns of the kept channels, a student of another build from the bias alone.
    """
    config, head = encoder.config, MaskedLanguageHead(encoder.config)
    if teacher_head is None:
        return head
    head.is_new = False
    teacher_state, state = teacher_head.state_dict(), head.state_dict()
    has_same_build = (
        config.pre_norm == teacher.config.pre_norm
        and config.embedding_size == teacher.config.embedding_size
        and state.keys() == teacher_state.keys()
    )
    if not has_same_build:
        head.load_state_dict(state | {"bias": teacher_state["bias"]})
        return head
    channels = kept_channels(teacher, config.hidden_size)
    scale = (teacher.config.hidden_size / len(channels)) ** 0.5
    # embeddings of another width than the hidden states aren't narrowed, and neither is what meets them
    rows = channels if config.embedding_size is None else torch.arange(config.embedding_size)
    narrow_state = {
        name: tensor if name == "bias" else tensor[rows] for name, tensor in teacher_state.items()
    }
    narrow_state["dense.weight"] = narrow_state["dense.weight"][:, channels] * scale
    head.load_state_dict(narrow_state)
    return head


@torch.no_grad()
def _narrow_linear(teacher: Bert, width: int, matrix: Tensor) -> nn.Linear:
    """A linear layer (D, h) with the columns of a matrix (D, H) that belong to the student's channels."""
    linear = nn.Linear(width, len(matrix))
    linear.weight.copy_(matrix[:, kept_channels(teacher, width)])
    nn.init.zeros_(linear.bias)
    return linear


def _freeze_behind_attention(encoder: Bert) -> None:
    """Freezes all behind the last layer's queries, keys and values: the relations don't train these
    weights, unless a layer below has the same ones.
    """
    if encoder.config.shares_weights_at(len(encoder.layer_sequence) - 1):
        return
    last = encoder.layer_sequence[-1]
    assert isinstance(last, Layer)
    modules = [last.attention.output, last.feed_forward, last.feed_forward_norm, encoder.final_norm]
    for module in modules if last.pre_norm else [*modules, last.attention_norm]:
        if module is not None:
            module.requires_grad_(False)


def save_student(
    folder: Path,
    config: BertConfig,
    weights: Mapping[str, Tensor],
    sentences: SentenceSettings | None,
    tokenizer: Tokenizer,
    provenance: Mapping[str, Any],
    teacher: Path,
) -> None:
    """Writes the model folder of a `StudentModel` with these `weights`; replaces what a killed run left.

    `sentences` are the settings by which the teacher makes sentence vectors, if it does: the student gets the
    same. `teacher` is the folder of the teacher's encoder, whose maximum length the student takes over.
    Raises as `save_checkpoint` does.
    """
    parts = ("encoder.", "masked_language.")
    tensors = {name: tensor for name, tensor in weights.items() if name.startswith(parts)}
    has_head = any(name.startswith(parts[1]) for name in tensors)

    def write_modules(partial: Path) -> None:
        keep_lower_max_length(teacher, partial)
        if sentences is None or has_head:
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
        config.family.class_prefix + ("ForMaskedLM" if has_head else "Model"),
        task="pretraining" if has_head else "encoder",
        tokenizer=tokenizer,
        provenance=provenance,
        write_extra_files=write_modules,
        overwrite=True,
    )
