"""What a teacher has to teach, and what of it counts in the loss unless somebody says otherwise."""

from dataclasses import dataclass
from pathlib import Path

from bertsmith.compression.distilling.encoders.encoder_recipe import EncoderDistilRecipe
from bertsmith.errors import RecipeError
from bertsmith.model.checkpoint import Checkpoint
from bertsmith.model.sentence_files import makes_vectors
from bertsmith.tasks.checkpoints.sentence_folder import (
    SentenceSettings,
    read_sentence_settings,
    refuse_projection,
)

# Soft targets, words and states as 5 : 2 : 1, DistilBERT's published weights, with the words at 1.
_MASKED_WORDS = {"soft": 2.5, "mlm": 1.0, "states": 0.5}
_VECTORS = {"vectors": 1.0, "states": 1.0}
_STATES = {"states": 1.0}
_OTHER_SHAPE = {"relations": 1.0}  # beside them, where the student is of another width or build


@dataclass(frozen=True)
class Subject:
    """What is taught: the weight of each loss, and how the teacher makes a vector of a text, if it does."""

    weights: dict[str, float]
    sentences: SentenceSettings | None

    @property
    def masks(self) -> bool:
        """Whether words are masked."""
        return "soft" in self.weights or "mlm" in self.weights

    @property
    def only_vectors(self) -> bool:
        return set(self.weights) == {"vectors"}


def choose_subject(
    recipe: EncoderDistilRecipe, folder: Path, checkpoint: Checkpoint, same_shape: bool
) -> Subject:
    """Raises RecipeError where a loss is asked for that this teacher, or this student, doesn't have."""
    has_words = "masked_language" in checkpoint.parts
    asked = recipe.dimensions is not None or bool(recipe.loss.vectors)
    embeds = asked or makes_vectors(folder)
    sentences = read_sentence_settings(folder) if embeds else None
    if sentences is not None:
        refuse_projection(folder, sentences.projection, "a teacher")
    if sentences is not None:
        usual = dict(_VECTORS)
    elif has_words:
        usual = dict(_MASKED_WORDS)
    else:
        usual = dict(_STATES)
    if not same_shape:
        usual |= _OTHER_SHAPE
    weights = {}
    for name in ("soft", "mlm", "states", "relations", "vectors"):
        given = getattr(recipe.loss, name)
        weight = usual.get(name, 0.0) if given is None else given
        if weight:
            weights[name] = weight
    _require(recipe, folder, weights, has_words)
    return Subject(weights, sentences)


def _require(
    recipe: EncoderDistilRecipe,
    folder: Path,
    weights: dict[str, float],
    has_words: bool,
) -> None:
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
