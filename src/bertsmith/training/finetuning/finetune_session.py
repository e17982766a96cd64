"""What every training by one recipe's files shares: examples read and encoded once, and how a method makes a
model of them.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bertsmith.arrays import Ints
from bertsmith.errors import RecipeError
from bertsmith.files import sha256
from bertsmith.model.checkpoint import WEIGHTS
from bertsmith.model.config import BertConfig
from bertsmith.model.locate import locate_model
from bertsmith.model.own_tokenizer import load_own_tokenizer
from bertsmith.progress import Progress
from bertsmith.tasks.checkpoints.task_checkpoint import save_task_adapter
from bertsmith.tasks.examples.text_settings import choose_pooling
from bertsmith.tasks.finetuning import EncodedExamples, encode_examples, steps_of_epoch
from bertsmith.tasks.heads.linear_start import (
    MOST_EXAMPLES,
    LinearProbe,
    LinearStart,
    fit_linear_start,
)
from bertsmith.tasks.task import Task
from bertsmith.tasks.task_model import TaskModel
from bertsmith.tasks.teaching import AuxiliaryTask, ClassContrast, Cloze
from bertsmith.text.tokens.tokenizer import Tokenizer
from bertsmith.training.finetune_recipe import FinetuneRecipe, make_task
from bertsmith.training.finetuning.labelled_data import (
    LabelledData,
)
from bertsmith.training.finetuning.methods import (
    AUTO,
    CLOZE,
    CONTRASTIVE,
    FULL,
    LINEAR,
    SELF_TRAINING,
    TRAINED,
    UNTRAINED,
    SelfTraining,
    apply_method,
    list_possible_methods,
    merge_and_bind,
    require_folds_suit,
    require_possible,
    require_trained,
    sample_texts,
    start_model,
    suits_folds,
    vector_notes,
)
from bertsmith.training.finetuning.task_run import BestWeights, train_silently
from bertsmith.training.machine import Machine
from bertsmith.training.resources import require_room_to_save

_UNUSED = (
    "the unlabelled texts were not learned from: they are where few rows judge in turn, without a dev, or "
    "with method=self-training"
)
_TOO_MANY = (
    f"the unlabelled texts were not learned from: where over {MOST_EXAMPLES:,} rows judge in turn, too few "
    "of them have features. Give a dev and method=self-training"
)


@dataclass(frozen=True)
class FinetuneSession:
    """`data`, whose task knows its labels, and where to compute. `source` is the model's folder, `config` its
    encoder's; `linear` is what the head begins with, `methods` are the possible ones. `folds`
    (E,) are those of `train`, where its rows judge in turn and `dev` is empty; `probe` has their features
    then, and where columns stand beside the texts, and `self_training` those of texts without labels.
    `encoder_sha256` is of the weights of the encoder that the recipe names.
    """

    source: Path
    tokenizer: Tokenizer
    data: LabelledData
    train: EncodedExamples
    dev: EncodedExamples
    test: EncodedExamples | None
    machine: Machine
    config: BertConfig
    linear: LinearStart | None
    methods: list[str]
    encoder_sha256: str
    folds: Ints | None = None
    probe: LinearProbe | None = None
    self_training: SelfTraining | None = None

    @classmethod
    def open(
        cls,
        recipe: FinetuneRecipe,
        machine: Machine,
        *,
        folds: bool = False,
        progress: Progress | None = None,
    ) -> "FinetuneSession":
        """Reads, checks and encodes: refuses what can't be trained before anything is written. `folds`: few
        rows may judge in turn. `progress` hears of the pass over the rows that the head begins with.
        """
        task = make_task(recipe)
        require_folds_suit(recipe, task, machine.ranks.count)
        data = LabelledData.read(task, recipe, folds=folds and suits_folds(task, recipe))
        source = locate_model(recipe.model).folder  # which may have to be fetched
        return cls.prepare(recipe, source, data, machine, progress)

    @classmethod
    def prepare(
        cls,
        recipe: FinetuneRecipe,
        source: Path,
        data: LabelledData,
        machine: Machine,
        progress: Progress | None = None,
    ) -> "FinetuneSession":
        """The same for data in memory. Where dev is empty, and they are few, the rows judge in turn."""
        task = data.task
        require_folds_suit(recipe, task)
        data.require_enough_texts(recipe)
        data.require_negatives(recipe)
        choose_pooling(task, source)
        start = start_model(recipe, task, source)
        if recipe.out:  # empty for an estimator, which saves nothing
            require_room_to_save(start.model, Path(recipe.out))
        tokenizer = load_own_tokenizer(source, start.model.config)
        train, dev = (encode_examples(task, examples, tokenizer) for examples in (data.train, data.dev))
        test = None if data.test is None else encode_examples(task, data.test, tokenizer)
        data = replace(data, warnings=(*start.notes, *vector_notes(task, source), *data.warnings))
        config = start.model.config
        probe = None
        if not recipe.reinit_layers:  # else there is nothing that the head could begin with
            model = start_model(recipe, task, source).model.to(machine.device)
            probe = LinearProbe.of(task, model, train, progress=progress)
        linear = None if probe is None else probe.best()
        methods = list_possible_methods(
            *(task, recipe, source, tokenizer, start.model),
            linear=linear is not None,
            unlabelled=bool(data.unlabelled),
        )
        judging = not len(dev) and suits_folds(task, recipe) and data.can_be_folded
        count = recipe.folds_of(len(train)) if judging else 0
        if count and data.unlabelled and probe is not None and len(probe) < len(train):
            if recipe.method == SELF_TRAINING:
                raise RecipeError(
                    f"method = {SELF_TRAINING} can't be judged by folds of more than {MOST_EXAMPLES:,} rows, "
                    f"and train has {len(train):,}. Leave out folds."
                )
            methods = [method for method in methods if method != SELF_TRAINING]
            data = replace(data, warnings=(*data.warnings, _TOO_MANY))
        if FULL in methods or not (count or recipe.method == LINEAR):
            require_trained(recipe, task, start.model)
        require_possible(recipe, task, methods)
        parts = data.folds(count, recipe.seed) if count else None
        self_training, asked = None, recipe.method in (*([AUTO] if count else []), SELF_TRAINING)
        if asked and SELF_TRAINING in methods and probe is not None and linear is not None:
            texts = encode_examples(task, sample_texts(data.unlabelled), tokenizer)
            self_training = SelfTraining.of(probe, linear.strength, start.model.to(machine.device), texts)
        if data.unlabelled and not count and recipe.method != SELF_TRAINING:
            data = replace(data, warnings=(*data.warnings, _UNUSED))
        probe = probe if count or task.columns is not None else None  # its features are as large as the data
        found = source, tokenizer, data, train, dev, test, machine, config, linear, methods
        return cls(*found, sha256(source / WEIGHTS), parts, probe, self_training)

    def begun_from(self, recipe: FinetuneRecipe, source: Path) -> "FinetuneSession":
        """The same data for another encoder of the same vocabulary."""
        begun = FinetuneSession.prepare(recipe, source, self.data.another(), self.machine)
        return replace(begun, encoder_sha256=self.encoder_sha256)

    @property
    def task(self) -> Task[Any]:
        """That of the data."""
        return self.data.task

    @property
    def layers(self) -> int:
        """Of the encoder."""
        return self.config.num_hidden_layers

    def steps_per_epoch(self, recipe: FinetuneRecipe) -> int:
        """How many batches of the recipe's size an epoch is divided into."""
        return steps_of_epoch(self.task, self.train, recipe.batch_size)

    def teaching(self, method: str) -> AuxiliaryTask | None:
        """What the encoder is taught by before it has its head, if anything."""
        if method == CONTRASTIVE:
            return ClassContrast(self.task)
        return Cloze(self.task, self.source, self.tokenizer) if method == CLOZE else None

    @property
    def knows_features(self) -> bool:
        """Of all rows, so that what isn't trained is judged without a pass of its own."""
        return self.probe is None or len(self.probe) == len(self.train)

    # -- a model ---------------------------------------------------------------------------------------------

    def learn(self, method: str, recipe: FinetuneRecipe, rows: EncodedExamples) -> TaskModel:
        """A model of these rows alone, by its last weights; the same for the same rows and seed."""
        recipe = apply_method(method, recipe, self.layers)
        model = start_model(recipe, self.task, self.source).model.to(self.machine.device)
        head, teaching = model.head, self.teaching(method)
        if teaching is not None:
            model.head = teaching.head(model.config).to(self.machine.device)
            train_silently(teaching, model, recipe, teaching.examples(rows), self.machine)
            model.head = head
        if not recipe.reinit_layers:
            linear = self._linear(method, model, rows)
            if linear is not None:
                linear.apply(model)
        if method in TRAINED:
            train_silently(self.task, model, recipe, rows, self.machine)
        model.head.finish()
        merge_and_bind(self.task, model)
        return model

    def _linear(self, method: str, model: TaskModel, rows: EncodedExamples) -> LinearStart | None:
        """What the method has the head begin, or end, with."""
        if method == SELF_TRAINING:
            assert self.self_training is not None and rows is self.train
            return self.self_training.fit()
        if rows is self.train and (method == LINEAR or method in TRAINED):
            return self.linear
        return fit_linear_start(self.task, model, rows)

    def start(self, recipe: FinetuneRecipe, seed: int) -> TaskModel:
        """What a run of this seed begins with."""
        found = start_model(recipe, self.task, self.source, seed, self.linear)
        return found.model.to(self.machine.device)

    def finish(
        self, recipe: FinetuneRecipe, run: Path, adapter: Path | None = None, method: str = FULL
    ) -> TaskModel:
        """The model of a run's best weights, LoRA's merged; with `adapter` these are saved there first.
        `recipe` is the method's.
        """
        model = start_model(recipe, self.task, self.source).model
        head, teaching = model.head, self.teaching(method)
        if teaching is not None:
            model.head = teaching.head(model.config)
        if method not in UNTRAINED:
            BestWeights(run / "best", self.task.main_metric).restore(model)
        model.head = head
        if method not in TRAINED:
            linear = self._linear(method, model.to(self.machine.device), self.train)
            if linear is not None:
                linear.apply(model)
        model.head.finish()
        if adapter is not None:
            as_named = self.source == locate_model(recipe.model).folder
            base = recipe.model if as_named else str(self.source)
            save_task_adapter(adapter, model, base)
        merge_and_bind(self.task, model)
        return model.to(self.machine.device)
