"""The objectives of pre-training by their names in a recipe: ours, or a user's own class. All have the same
data (streams and masks) and the same training loop.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import torch

from bertsmith.argument_checks import import_class
from bertsmith.data.masking import Masker
from bertsmith.data.stream import MixedStream, PretrainingStream
from bertsmith.model.checkpoint import SavesItself
from bertsmith.model.config import BertConfig
from bertsmith.tasks.pretraining.masked_task import MaskedTask
from bertsmith.tasks.pretraining.objective_choices import ObjectiveChoices
from bertsmith.tasks.pretraining.pretraining import PretrainingModel, PretrainingTask
from bertsmith.tasks.pretraining.pretraining_checkpoint import (
    has_replaced_token_head,
    load_pretraining_model,
    load_replaced_token_model,
    save_pretraining_model,
    save_replaced_token_model,
)
from bertsmith.tasks.pretraining.reconstruction import reconstruction_class
from bertsmith.tasks.pretraining.replaced_tokens import (
    ReplacedTokenModel,
    ReplacedTokenTask,
    generator_config,
)

PretrainedModel = PretrainingModel | ReplacedTokenModel
ModelT = TypeVar("ModelT", PretrainingModel, ReplacedTokenModel)
WriteFiles = Callable[[Path], None]  # writes files into a folder
MODEL, GENERATOR = "model", "generator"  # folders of a run


@dataclass(frozen=True)
class TaskInputs:
    """The arguments of every pre-training task beside its model; see `MaskedTask`."""

    streams: Sequence[PretrainingStream | MixedStream]
    masker: Masker
    heldout: PretrainingStream | None
    heldout_tokens: int
    device: torch.device
    sampled_pieces: int = 0
    seed: int = 0
    general_heldout: PretrainingStream | None = None


class PretrainingObjective(ABC, Generic[ModelT]):
    """An objective of pre-training. With `sentence_order` its pairs are about the order of segments, not
    about whether they belong together.
    """

    name: ClassVar[str]
    sentence_order: ClassVar[bool] = False

    @abstractmethod
    def problem(self, config: BertConfig, choices: ObjectiveChoices) -> str | None:
        """A sentence on why a model of this shape can't be trained with the objective; None where it can."""

    @abstractmethod
    def build(self, config: BertConfig, choices: ObjectiveChoices) -> ModelT:
        """A new model with weights drawn from torch's generator."""

    @abstractmethod
    def load(self, folder: Path, choices: ObjectiveChoices) -> tuple[ModelT, tuple[str, ...]]:
        """The model of a folder, to be trained further, and sentences on parts that were added or left
        out.
        """

    @abstractmethod
    def task(self, model: ModelT, inputs: TaskInputs, choices: ObjectiveChoices) -> MaskedTask[ModelT]:
        """The task that the training loop trains."""

    @abstractmethod
    def masked_language(self, model: ModelT) -> PretrainingModel:
        """The masked language model in `model`, with the same weights."""

    @abstractmethod
    def save(
        self,
        out: Path,
        model: ModelT,
        tokenizer: SavesItself,
        provenance: Mapping[str, Any],
        write_extra_files: WriteFiles | None,
    ) -> None:
        """Saves the model below the run's folder `out`, replacing an earlier one. `write_extra_files` writes
        into each model folder.
        """


class MaskedLanguage(PretrainingObjective[PretrainingModel]):
    """Predicts masked tokens and, with `data.next_sentence`, whether the second segment follows the first
    (BERT).
    """

    name = "masked-language"

    def problem(self, config: BertConfig, choices: ObjectiveChoices) -> str | None:
        if choices.next_sentence and not config.has_next_sentence:
            return f"{config.model_type} has no next-sentence prediction: data.next_sentence=false."
        if choices.next_sentence and config.family.sentence_order:
            return (
                f"{config.model_type}'s head for pairs tells their order: objective=sentence-order, or "
                "data.next_sentence=false."
            )
        return None

    def build(self, config: BertConfig, choices: ObjectiveChoices) -> PretrainingModel:
        return PretrainingModel(config, choices.next_sentence, self.sentence_order)

    def load(self, folder: Path, choices: ObjectiveChoices) -> tuple[PretrainingModel, tuple[str, ...]]:
        return load_pretraining_model(
            folder,
            next_sentence=choices.next_sentence,
            sentence_order=self.sentence_order,
            allow_new_heads=True,
        )

    def task(
        self, model: PretrainingModel, inputs: TaskInputs, choices: ObjectiveChoices
    ) -> MaskedTask[PretrainingModel]:
        return PretrainingTask(model, **vars(inputs))

    def masked_language(self, model: PretrainingModel) -> PretrainingModel:
        return model

    def save(
        self,
        out: Path,
        model: PretrainingModel,
        tokenizer: SavesItself,
        provenance: Mapping[str, Any],
        write_extra_files: WriteFiles | None,
    ) -> None:
        arguments = out / MODEL, model, tokenizer, provenance
        save_pretraining_model(*arguments, write_extra_files=write_extra_files, overwrite=True)


class SentenceOrder(MaskedLanguage):
    """Predicts masked tokens, and whether two neighbouring segments are in order (ALBERT)."""

    name = "sentence-order"
    sentence_order = True

    def problem(self, config: BertConfig, choices: ObjectiveChoices) -> str | None:
        if not choices.next_sentence:
            return (
                "objective=sentence-order is about pairs: leave data.next_sentence=false out, or take "
                "objective=masked-language."
            )
        if not config.has_next_sentence:
            return (
                f"{config.model_type} has no head for pairs, which objective=sentence-order needs: choose "
                "model.model_type=bert, or objective=masked-language data.next_sentence=false."
            )
        return None


class ReplacedTokens(PretrainingObjective[ReplacedTokenModel]):
    """Finds the tokens that a small generator has replaced (ELECTRA)."""

    name = "replaced-tokens"

    def problem(self, config: BertConfig, choices: ObjectiveChoices) -> str | None:
        if not has_replaced_token_head(config):
            return (
                f"objective=replaced-tokens needs a family whose files have a place for its head, and "
                f"{config.model_type} has none: model.model_type=electra."
            )
        if choices.next_sentence:
            return "objective=replaced-tokens has no pairs: data.next_sentence=false."
        if choices.general:
            return (
                "general= doesn't go with objective=replaced-tokens: the task changes with the generator, so "
                "its figures before and after don't say what was forgotten. Leave general out, or choose "
                "objective=masked-language with a masked language model as init."
            )
        return None

    def build(self, config: BertConfig, choices: ObjectiveChoices) -> ReplacedTokenModel:
        return ReplacedTokenModel(config, generator_config(config, choices.generator_share))

    def load(self, folder: Path, choices: ObjectiveChoices) -> tuple[ReplacedTokenModel, tuple[str, ...]]:
        return load_replaced_token_model(folder, choices.generator_share, choices.generator)

    def task(
        self, model: ReplacedTokenModel, inputs: TaskInputs, choices: ObjectiveChoices
    ) -> MaskedTask[ReplacedTokenModel]:
        return ReplacedTokenTask(model, **vars(inputs), weight=choices.replaced_weight)

    def masked_language(self, model: ReplacedTokenModel) -> PretrainingModel:
        return model.masked_language()

    def save(
        self,
        out: Path,
        model: ReplacedTokenModel,
        tokenizer: SavesItself,
        provenance: Mapping[str, Any],
        write_extra_files: WriteFiles | None,
    ) -> None:
        arguments = out / MODEL, out / GENERATOR, model, tokenizer, provenance
        save_replaced_token_model(*arguments, write_extra_files=write_extra_files, overwrite=True)


class Values(MaskedLanguage):
    """Predicts the values of masked patches of series and images, and of masked numbers in tables: masked
    language modelling for such inputs.
    """

    def task(
        self, model: PretrainingModel, inputs: TaskInputs, choices: ObjectiveChoices
    ) -> MaskedTask[PretrainingModel]:
        return reconstruction_class(inputs.streams[0].tokenizer)(model, **vars(inputs))


VALUES = Values()
OBJECTIVES: dict[str, PretrainingObjective[Any]] = {
    objective.name: objective for objective in (MaskedLanguage(), SentenceOrder(), ReplacedTokens())
}


def find_objective(name: str) -> PretrainingObjective[Any]:
    """The objective of this name in a recipe: one of ours, or a user's `module:Class`. Raises InputError for
    an unknown one.
    """
    if name in OBJECTIVES:
        return OBJECTIVES[name]
    objective_class: type[PretrainingObjective[Any]] = import_class(name, PretrainingObjective, "objective")
    return objective_class()
