"""What an encoder has to teach, what of it counts in the loss unless somebody says otherwise, and the shape
of its student: read from the teacher's folder, before anything is computed.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from torch import Tensor, nn

from bertsmith.compression.distilling.encoders.losses import relation_heads
from bertsmith.compression.distilling.encoders.objective import SHORTEST, EncoderLosses, TextStream
from bertsmith.compression.distilling.encoders.student import shape_of
from bertsmith.compression.distilling.recipes import EncoderDistilRecipe
from bertsmith.data.store import TokenStore
from bertsmith.data.stream import PretrainingStream
from bertsmith.errors import RecipeError
from bertsmith.files import sha256
from bertsmith.model.bert import Bert
from bertsmith.model.checkpoint import WEIGHTS, Checkpoint, encoder_of, load_into, read_checkpoint
from bertsmith.model.config import BertConfig
from bertsmith.model.locate import locate_model
from bertsmith.model.own_tokenizer import load_own_tokenizer
from bertsmith.model.sentence_files import makes_vectors
from bertsmith.model.student import is_alike
from bertsmith.tasks.checkpoints.sentence_folder import (
    SentenceSettings,
    encoder_folder,
    read_sentence_settings,
    refuse_projection,
)
from bertsmith.tasks.heads.pooling import Pooling
from bertsmith.tasks.pretraining.pretraining import MaskedLanguageHead
from bertsmith.text.tokens.tokenizer import Tokenizer
from bertsmith.training.inputs import require_room_for_rows

# Soft targets, words and states as 5 : 2 : 1, DistilBERT's published weights, with the words at 1.
_MASKED_WORDS = {"soft": 2.5, "mlm": 1.0, "states": 0.5}
_VECTORS = {"vectors": 1.0, "states": 1.0}
_STATES = {"states": 1.0}
_OTHER_SHAPE = {"relations": 1.0}  # beside them, where the student is of another width or build


@dataclass(frozen=True)
class TeachingPlan:
    """The teacher as it was read, and what it teaches: the weight of each loss, how it makes a vector of a
    text, if it does, and the student's shape, `config`.
    """

    folder: Path
    checkpoint: Checkpoint
    tokenizer: Tokenizer
    weights: dict[str, float]
    sentences: SentenceSettings | None
    config: BertConfig

    @classmethod
    def open(cls, recipe: EncoderDistilRecipe) -> "TeachingPlan":
        """Reads and checks; writes nothing. Raises ModelError and RecipeError."""
        length = recipe.data.sequence_length
        require_room_for_rows(recipe.corpus, length, "data.sequence_length")
        folder = locate_model(recipe.teacher).folder
        checkpoint = read_checkpoint(encoder_folder(folder))
        teacher, config = checkpoint.config, shape_of(recipe, checkpoint.config)
        embeds = recipe.dimensions is not None or bool(recipe.loss.vectors) or makes_vectors(folder)
        sentences = read_sentence_settings(folder) if embeds else None
        if sentences is not None:
            refuse_projection(folder, sentences.projection, "a teacher")
        weights = _weights(recipe, folder, checkpoint, sentences, config)
        tokenizer = load_own_tokenizer(encoder_folder(folder), teacher)
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
        found = cls(folder, checkpoint, tokenizer, weights, sentences, config)
        if recipe.dimensions is not None and recipe.dimensions > found.width:
            raise RecipeError(
                f"dimensions is {recipe.dimensions}, but the teacher's vectors have {found.width}: choose at "
                "most as many."
            )
        taken = 2 + max(map(len, found.prefixes), default=0)
        if length < taken + SHORTEST:
            raise RecipeError(
                f"data.sequence_length is {length}, of which the teacher's prompt and two special tokens "
                f"take {taken}: hardly any text is left. Make it {taken + SHORTEST} or more."
            )
        return found

    @cached_property
    def sha256(self) -> str:
        """Of the teacher's weights."""
        return sha256(self.inside / WEIGHTS)

    @property
    def inside(self) -> Path:
        """The folder of the encoder itself."""
        return encoder_folder(self.folder)

    @property
    def masks(self) -> bool:
        """Whether words are masked."""
        return "soft" in self.weights or "mlm" in self.weights

    @property
    def pooling(self) -> Pooling:
        """How vectors of tokens become one of their text."""
        return "mean" if self.sentences is None else self.sentences.pooling

    @property
    def width(self) -> int:
        """Dimensions of the teacher's vectors."""
        kept = None if self.sentences is None else self.sentences.truncate_dim
        return min(self.checkpoint.config.hidden_size, kept or self.checkpoint.config.hidden_size)

    @property
    def prefixes(self) -> list[list[int]]:
        """Token ids of what stands before the texts whose vectors are compared; none where none are."""
        if "vectors" not in self.weights or self.sentences is None:
            return []
        query, document = self.sentences.query_prefix, self.sentences.document_prefix
        texts = dict.fromkeys((query, document, self.sentences.default_prompt or document))
        return [list(self.tokenizer.encode(text).ids) for text in texts]

    def stream(self, recipe: EncoderDistilRecipe, store: TokenStore, seed: int) -> PretrainingStream:
        """Texts where their vectors are compared, else full sequences."""
        length = recipe.data.sequence_length
        budget = recipe.data.batch_size * length
        if not (prefixes := self.prefixes):
            return PretrainingStream(store, self.tokenizer, seed, False, length, budget)
        return TextStream(store, self.tokenizer, seed, False, length, budget, prefixes=prefixes)

    def head(self) -> MaskedLanguageHead | None:
        """The teacher's, as which the student's begins; None where no words are masked, and where the teacher
        has none.
        """
        if not self.masks or "masked_language" not in self.checkpoint.parts:
            return None
        head, prefix = MaskedLanguageHead(self.checkpoint.config), "masked_language."
        tensors = {name: each for name, each in self.checkpoint.tensors.items() if name.startswith(prefix)}
        where = f"{self.folder}/{WEIGHTS}"
        load_into(nn.ModuleDict({"masked_language": head}), tensors, self.checkpoint.config, where)
        return head

    def encoder(self) -> Bert:
        """The teacher's own."""
        return encoder_of(self.checkpoint, f"{self.folder}/{WEIGHTS}")

    def comparison(self, recipe: EncoderDistilRecipe, projection: Tensor | None) -> EncoderLosses:
        """Of student and teacher, whose vectors the projection (D, H) brings to fewer dimensions."""
        widths = self.checkpoint.config.hidden_size, self.config.hidden_size
        heads = relation_heads(*widths, recipe.loss.relation_heads)
        return EncoderLosses(self.weights, recipe.loss.temperature, heads, self.pooling, projection)


def _weights(
    recipe: EncoderDistilRecipe,
    folder: Path,
    checkpoint: Checkpoint,
    sentences: SentenceSettings | None,
    config: BertConfig,
) -> dict[str, float]:
    """Of each loss that counts. Raises RecipeError where one is asked for that this teacher, or this student,
    doesn't have.
    """
    has_words = "masked_language" in checkpoint.parts
    if sentences is not None:
        usual = dict(_VECTORS)
    elif has_words:
        usual = dict(_MASKED_WORDS)
    else:
        usual = dict(_STATES)
    if config.hidden_size != checkpoint.config.hidden_size or not is_alike(config, checkpoint.config):
        usual |= _OTHER_SHAPE
    weights = {}
    for name in ("soft", "mlm", "states", "relations", "vectors"):
        given = getattr(recipe.loss, name)
        weight = usual.get(name, 0.0) if given is None else given
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
