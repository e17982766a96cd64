"""What a teacher encoder can teach: the losses and their default weights, how it makes vectors, and the shape
of its student. All of it is read from the teacher's folder before anything is computed.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor, nn

from bertsmith.compression.distilling.encoders.losses import relation_heads
from bertsmith.compression.distilling.encoders.objective import SHORTEST, EncoderLosses, TextStream
from bertsmith.compression.distilling.encoders.student import student_shape
from bertsmith.compression.distilling.recipes import EncoderDistilRecipe
from bertsmith.data.store import TokenStore
from bertsmith.data.stream import PretrainingStream
from bertsmith.errors import ModelError, RecipeError
from bertsmith.files import sha256
from bertsmith.model.bert import Bert
from bertsmith.model.checkpoint import WEIGHTS, Checkpoint, encoder_of, load_into, read_checkpoint
from bertsmith.model.config import BertConfig
from bertsmith.model.locate import locate_model
from bertsmith.model.own_tokenizer import load_own_tokenizer
from bertsmith.model.sentence_files import makes_vectors
from bertsmith.model.student import is_alike
from bertsmith.tasks.checkpoints.projection_folders import read_projection
from bertsmith.tasks.checkpoints.sentence_folder import (
    SentenceSettings,
    find_encoder_folder,
    read_sentence_settings,
    refuse_unpooled_prompts,
)
from bertsmith.tasks.heads.pooling import Pooling, Projection
from bertsmith.tasks.pretraining.pretraining import MaskedLanguageHead
from bertsmith.text.tokens.tokenizer import Tokenizer
from bertsmith.training.inputs import require_room_for_rows

# DistilBERT's published weights of soft targets, words and states, 5 : 2 : 1, scaled to 1 for the words.
_MASKED_WORDS = {"soft": 2.5, "mlm": 1.0, "states": 0.5}
_VECTORS = {"vectors": 1.0, "states": 1.0}
_STATES = {"states": 1.0}
_OTHER_SHAPE = {"relations": 1.0}  # in addition, where the student has another width or build


@dataclass(frozen=True)
class TeachingPlan:
    """The teacher's checkpoint and tokenizer, the weight of each loss, its settings for sentence vectors
    (None where it makes none), and the student's `config`.
    """

    folder: Path
    checkpoint: Checkpoint
    tokenizer: Tokenizer
    weights: dict[str, float]
    sentences: SentenceSettings | None
    config: BertConfig

    @classmethod
    def open(cls, recipe: EncoderDistilRecipe) -> "TeachingPlan":
        """Reads the teacher and checks the recipe against it. Raises ModelError and RecipeError."""
        length = recipe.data.sequence_length
        require_room_for_rows(recipe.corpus, length, "data.sequence_length")
        folder = locate_model(recipe.teacher).folder
        checkpoint = read_checkpoint(find_encoder_folder(folder))
        teacher, config = checkpoint.config, student_shape(recipe, checkpoint.config)
        embeds = recipe.dimensions is not None or bool(recipe.loss.vectors) or makes_vectors(folder)
        sentences = read_sentence_settings(folder) if embeds else None
        if sentences is not None:
            refuse_unpooled_prompts(folder, sentences, "a teacher")
            if sentences.layer_weights is not None:
                raise ModelError(
                    f"{folder} mixes its layers by weights (WeightedLayerPooling), which a teacher can't do. "
                    "Use another model."
                )
        weights = _choose_weights(recipe, folder, checkpoint, sentences, config)
        tokenizer = load_own_tokenizer(find_encoder_folder(folder), teacher)
        if length > (longest := min(teacher.max_length, config.max_length)):
            raise RecipeError(
                f"data.sequence_length is {length}, but teacher and student have positions for {longest} "
                "tokens. Shorten it."
            )
        if recipe.loss.teacher_layer is not None and recipe.loss.teacher_layer > teacher.num_hidden_layers:
            raise RecipeError(
                f"loss.teacher_layer is {recipe.loss.teacher_layer}, but the teacher has only "
                f"{teacher.num_hidden_layers} layers. Choose one of them."
            )
        plan = cls(folder, checkpoint, tokenizer, weights, sentences, config)
        if recipe.dimensions is not None and recipe.dimensions > plan.width:
            raise RecipeError(
                f"dimensions is {recipe.dimensions}, but the teacher's vectors have {plan.width}: choose at "
                "most as many."
            )
        reserved = 2 + max(map(len, plan.prefixes), default=0)
        if length < reserved + SHORTEST:
            raise RecipeError(
                f"data.sequence_length is {length}, of which the teacher's prompt and two special tokens "
                f"take {reserved}: hardly any text is left. Make it {reserved + SHORTEST} or more."
            )
        return plan

    @cached_property
    def sha256(self) -> str:
        """The SHA-256 of the teacher's weights file."""
        return sha256(self.inside / WEIGHTS)

    @property
    def inside(self) -> Path:
        """The encoder's folder, which may lie inside the teacher's."""
        return find_encoder_folder(self.folder)

    @property
    def masks(self) -> bool:
        """Whether a loss needs masked words."""
        return "soft" in self.weights or "mlm" in self.weights

    @property
    def pooling(self) -> Pooling:
        """How hidden states are pooled to a vector of a text."""
        return "mean" if self.sentences is None else self.sentences.pooling

    @cached_property
    def projection(self) -> Projection | None:
        """The layers behind the pooling of the teacher, if it has any."""
        if self.sentences is None:
            return None
        return read_projection(self.sentences.projection, self.checkpoint.config.hidden_size)

    @property
    def full_width(self) -> int:
        """The number of dimensions of the teacher's vectors before any are truncated."""
        hidden_size = self.checkpoint.config.hidden_size
        return hidden_size if self.projection is None else self.projection.width(hidden_size) or hidden_size

    @property
    def width(self) -> int:
        """The number of dimensions of the teacher's vectors."""
        truncate_dim = None if self.sentences is None else self.sentences.truncate_dim
        return min(self.full_width, truncate_dim or self.full_width)

    @property
    def prefixes(self) -> list[list[int]]:
        """The token ids of the prefixes for queries, for documents and for other texts, where vectors of
        texts are learned; an empty list otherwise.
        """
        if "vectors" not in self.weights or self.sentences is None:
            return []
        query, document = self.sentences.query_prefix, self.sentences.document_prefix
        texts = dict.fromkeys((query, document, self.sentences.default_prompt or document))
        return [list(self.tokenizer.encode(text).ids) for text in texts]

    def stream(self, recipe: EncoderDistilRecipe, store: TokenStore, seed: int) -> PretrainingStream:
        """The stream of training batches: texts where vectors of texts are learned, otherwise full
        sequences.
        """
        length = recipe.data.sequence_length
        budget = recipe.data.batch_size * length
        if not (prefixes := self.prefixes):
            return PretrainingStream(store, self.tokenizer, seed, False, length, budget)
        return TextStream(store, self.tokenizer, seed, False, length, budget, prefixes=prefixes)

    def head(self) -> MaskedLanguageHead | None:
        """The teacher's masked-language head. None where it has none, and where no loss needs
        masked words.
        """
        if not self.masks or "masked_language" not in self.checkpoint.parts:
            return None
        head, prefix = MaskedLanguageHead(self.checkpoint.config), "masked_language."
        tensors = {
            name: tensor for name, tensor in self.checkpoint.tensors.items() if name.startswith(prefix)
        }
        where = f"{self.folder}/{WEIGHTS}"
        load_into(nn.ModuleDict({"masked_language": head}), tensors, self.checkpoint.config, where)
        return head

    def encoder(self) -> Bert:
        """The teacher's encoder, loaded anew with each call."""
        return encoder_of(self.checkpoint, f"{self.folder}/{WEIGHTS}")

    def losses(
        self, recipe: EncoderDistilRecipe, projection: Tensor | None, device: torch.device
    ) -> EncoderLosses:
        """The losses with their settings; `projection` (D, H) brings the teacher's vectors to fewer
        dimensions.
        """
        layers = None if self.projection is None else self.projection.to(device)
        fewer = None if projection is None else projection.to(device)
        widths = self.checkpoint.config.hidden_size, self.config.hidden_size
        heads = relation_heads(*widths, recipe.loss.relation_heads)
        return EncoderLosses(self.weights, recipe.loss.temperature, heads, self.pooling, fewer, layers)


def _choose_weights(
    recipe: EncoderDistilRecipe,
    folder: Path,
    checkpoint: Checkpoint,
    sentences: SentenceSettings | None,
    config: BertConfig,
) -> dict[str, float]:
    """The weight of each loss that is used: the recipe's, or the default for this teacher and student.

    Raises RecipeError where there is none, and for a loss that the teacher can't give.
    """
    has_words = "masked_language" in checkpoint.parts
    if sentences is not None:
        defaults = dict(_VECTORS)
    elif has_words:
        defaults = dict(_MASKED_WORDS)
    else:
        defaults = dict(_STATES)
    if config.hidden_size != checkpoint.config.hidden_size or not is_alike(config, checkpoint.config):
        defaults |= _OTHER_SHAPE
    weights = {}
    for name in ("soft", "mlm", "states", "relations", "vectors"):
        weight = getattr(recipe.loss, name)
        if weight is None:
            weight = defaults.get(name, 0.0)
        if weight:
            weights[name] = weight
    if not weights:
        raise RecipeError(
            "Every loss has the weight 0: there is nothing to learn. Give one of loss.* a weight."
        )
    if "soft" in weights and not has_words:
        raise RecipeError(
            f"loss.soft needs a teacher that predicts masked words, and {folder} has no masked-language "
            "head. Leave it out: its hidden states are learned."
        )
    if "vectors" in weights and ("soft" in weights or "mlm" in weights):
        raise RecipeError(
            "loss.vectors goes with whole texts, loss.soft and loss.mlm with masked ones: choose either."
        )
    if recipe.dimensions is not None and "vectors" not in weights:
        raise RecipeError("dimensions are those of an embedding model's vectors: loss.vectors must count.")
    return weights
