"""The session that all trainings of a run share: examples are read and encoded once, and any method can train
a model on them.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bertsmith.arrays import Ints
from bertsmith.files import sha256
from bertsmith.model.checkpoint import WEIGHTS
from bertsmith.model.config import BertConfig
from bertsmith.model.locate import locate_model
from bertsmith.model.own_tokenizer import load_own_tokenizer
from bertsmith.progress import Progress
from bertsmith.tasks.auxiliary_tasks import AuxiliaryTask, ClassContrast, Cloze
from bertsmith.tasks.checkpoints.task_checkpoint import save_task_adapter
from bertsmith.tasks.examples.text_settings import choose_pooling
from bertsmith.tasks.finetuning import EncodedExamples, encode_examples, steps_of_epoch
from bertsmith.tasks.heads.linear_start import (
    MOST_EXAMPLES,
    LinearProbe,
    LinearStart,
    TextFeatures,
    fit_linear_start,
)
from bertsmith.tasks.heads.name_training import MOST_TEXTS, NamesStudy, NameTraining, study_names
from bertsmith.tasks.task import Task
from bertsmith.tasks.task_model import TaskModel
from bertsmith.text.tokens.tokenizer import Tokenizer
from bertsmith.training.finetune_recipe import FinetuneRecipe, make_task
from bertsmith.training.finetuning.labelled_data import LabelledData
from bertsmith.training.finetuning.methods import (
    AUTO,
    CLOZE,
    CONTRASTIVE,
    FULL,
    LINEAR,
    NAMES,
    NAMES_TEXTS,
    SELF_TRAINING,
    TRAINED,
    UNTRAINED,
    SelfTraining,
    apply_method,
    leave_out_featured,
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
    """The encoded examples of `data`, the model to begin with, and the machine to train on.

    `source` is the model's folder, `config` its encoder's config, and `encoder_sha256` the hash of the
    weights that the recipe names. `linear` is the linear model that the head begins with, and `methods` are
    the possible methods. With cross-validation `dev` is empty, and `folds` (E,) has the fold of each training
    example. `probe` has the features of the training examples, with folds or with columns beside the texts,
    and `self_training` and `names` those of texts without labels and of the labels' names, if these methods
    may be used.
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
    names: NameTraining | None = None

    @classmethod
    def open(
        cls,
        recipe: FinetuneRecipe,
        machine: Machine,
        *,
        folds: bool = False,
        progress: Progress | None = None,
    ) -> "FinetuneSession":
        """Reads, checks and encodes the recipe's files. With `folds`, few rows without a dev file are divided
        into folds. `progress` is called during the pass over the rows for the head's linear model.

        Raises what `LabelledData.read` and `prepare` raise, before anything is written.
        """
        task = make_task(recipe)
        require_folds_suit(recipe, task, machine.ranks.count)
        data = LabelledData.read(task, recipe, folds=folds and suits_folds(task, recipe))
        source = locate_model(recipe.model).folder  # may fetch it
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
        """Encodes data in memory. A few rows without a dev set are divided into folds. Raises RecipeError for
        a recipe that doesn't suit the data or the model, ModelError for a folder without an encoder, and
        ResourceError if there is no room on the disk for the model.
        """
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
        if not recipe.reinit_layers:  # features of reinitialised layers are worth nothing to a linear model
            model = start_model(recipe, task, source).model.to(machine.device)
            probe = LinearProbe.of(task, model, train, progress=progress)
        linear = None if probe is None else probe.fit_best()
        methods = list_possible_methods(
            *(task, recipe, source, tokenizer, start.model),
            linear=linear is not None,
            unlabelled=bool(data.unlabelled),
            names=bool(data.names),
        )
        if not data.is_judged:
            methods = [NAMES, *[NAMES_TEXTS] * bool(data.unlabelled)]
        can_have_folds = data.is_judged and not len(dev) and suits_folds(task, recipe) and data.can_be_folded
        fold_count = recipe.fold_count(len(train)) if can_have_folds else 0
        if fold_count and probe is not None and len(probe) < len(train):
            methods = leave_out_featured(recipe, methods, len(train))
            if data.unlabelled:
                data = replace(data, warnings=(*data.warnings, _TOO_MANY))
        if FULL in methods or (data.is_judged and not (fold_count or recipe.method == LINEAR)):
            require_trained(recipe, task, start.model)
        require_possible(recipe, task, methods)
        example_folds = data.folds(fold_count, recipe.seed) if fold_count else None
        texts = TextFeatures([], [], 0.0)
        taught = [name for name in methods if recipe.method in (*([AUTO] if fold_count else []), name)]
        if not data.is_judged:
            taught = methods
        model = start.model.to(machine.device)
        if SELF_TRAINING in taught or NAMES_TEXTS in taught:
            most = () if data.is_judged else (MOST_TEXTS,)
            sampled = encode_examples(task, sample_texts(data.unlabelled, *most), tokenizer)
            texts = TextFeatures.of(model, sampled, progress)
        self_training = names = None
        if SELF_TRAINING in taught and probe is not None and linear is not None:
            self_training = SelfTraining(probe, linear.strength, texts)
        if NAMES in taught or NAMES_TEXTS in taught:
            names = NameTraining.of(model, task, tokenizer, data.names, train, texts, probe)
        if data.unlabelled and not fold_count and not {SELF_TRAINING, NAMES_TEXTS}.intersection(taught):
            data = replace(data, warnings=(*data.warnings, _UNUSED))
        if not fold_count and task.columns is None:
            probe = None  # its features, as large as the data, aren't needed any more
        return cls(
            source=source,
            tokenizer=tokenizer,
            data=data,
            train=train,
            dev=dev,
            test=test,
            machine=machine,
            config=config,
            linear=linear,
            methods=methods,
            encoder_sha256=sha256(source / WEIGHTS),
            folds=example_folds,
            probe=probe,
            self_training=self_training,
            names=names,
        )

    def with_encoder(self, recipe: FinetuneRecipe, source: Path) -> "FinetuneSession":
        """A session of the same data for another encoder with the same vocabulary, by its folder. The hash of
        the encoder stays that of the one that the recipe names.
        """
        session = FinetuneSession.prepare(recipe, source, self.data.copy_for_another_model(), self.machine)
        return replace(session, encoder_sha256=self.encoder_sha256)

    @property
    def task(self) -> Task[Any]:
        """The data's task, which knows its labels."""
        return self.data.task

    @property
    def layers(self) -> int:
        """The number of the encoder's layers."""
        return self.config.num_hidden_layers

    @property
    def searched_layers(self) -> int:
        """The number of layers of which a search may freeze some: one where layers share weights, since then
        it is all or none.
        """
        return self.layers if self.config.num_hidden_groups is None else 1

    def steps_per_epoch(self, recipe: FinetuneRecipe) -> int:
        """The number of batches of the recipe's size in an epoch; 1 without any labelled row."""
        return max(steps_of_epoch(self.task, self.train, recipe.batch_size), 1)

    def auxiliary_task(self, method: str) -> AuxiliaryTask | None:
        """The task that the method trains the encoder on before the head, or None if it has none."""
        if method == CONTRASTIVE:
            return ClassContrast(self.task)
        return Cloze(self.task, self.source, self.tokenizer) if method == CLOZE else None

    @property
    def knows_all_features(self) -> bool:
        """Whether the features of all training rows are known, so that methods without training can be
        evaluated without another pass of the encoder.
        """
        return self.probe is None or len(self.probe) == len(self.train)

    # -- a model ---------------------------------------------------------------------------------------------

    def learn(self, method: str, recipe: FinetuneRecipe, rows: EncodedExamples) -> TaskModel:
        """Trains a model by the method on these rows alone and returns it with its last weights, LoRA's
        merged. The same rows and seed give the same model.
        """
        recipe = apply_method(method, recipe, self.layers)
        model = start_model(recipe, self.task, self.source).model.to(self.machine.device)
        head, auxiliary = model.head, self.auxiliary_task(method)
        if auxiliary is not None:
            model.head = auxiliary.head(model.config).to(self.machine.device)
            train_silently(auxiliary, model, recipe, auxiliary.auxiliary_examples(rows), self.machine)
            model.head = head
        if not recipe.reinit_layers:
            linear = self._fit_linear(method, model, rows)
            if linear is not None:
                linear.apply(model)
        if method in TRAINED:
            train_silently(self.task, model, recipe, rows, self.machine)
        model.head.finish()
        merge_and_bind(self.task, model)
        return model

    def _fit_linear(self, method: str, model: TaskModel, rows: EncodedExamples) -> LinearStart | None:
        """The linear model of the rows that the method's head begins with, or, if untrained, ends with."""
        if method in (NAMES, NAMES_TEXTS):
            assert self.names is not None and rows is self.train
            return self.names.fit(texts=method == NAMES_TEXTS)
        if method == SELF_TRAINING:
            assert self.self_training is not None and rows is self.train
            return self.self_training.fit()
        if rows is self.train and (method == LINEAR or method in TRAINED):
            return self.linear
        return fit_linear_start(self.task, model, rows)

    def study_names(self, method: str) -> NamesStudy | None:
        """What the names say of the unlabelled texts, if the method learns from both; else None."""
        if method != NAMES_TEXTS or self.names is None:
            return None
        return study_names(self.names, self.task.labels, len(self.data.unlabelled), len(self.train))

    def start(self, recipe: FinetuneRecipe, seed: int) -> TaskModel:
        """The model that a run of this seed begins with, its head the linear model if there is one."""
        start = start_model(recipe, self.task, self.source, seed, self.linear)
        return start.model.to(self.machine.device)

    def finish(
        self, recipe: FinetuneRecipe, run: Path, adapter: Path | None = None, method: str = FULL
    ) -> TaskModel:
        """The model with the best weights of the folder `run`, LoRA's merged. With `adapter`, LoRA's weights
        are saved to that folder first. `recipe` is that of the method.
        """
        model = start_model(recipe, self.task, self.source).model
        head, auxiliary = model.head, self.auxiliary_task(method)
        if auxiliary is not None:
            model.head = auxiliary.head(model.config)
        if method not in UNTRAINED:
            BestWeights(run / "best", self.task.main_metric).restore(model)
        model.head = head
        if method not in TRAINED:
            linear = self._fit_linear(method, model.to(self.machine.device), self.train)
            if linear is not None:
                linear.apply(model)
        model.head.finish()
        if adapter is not None:
            is_named = self.source == locate_model(recipe.model).folder
            base = recipe.model if is_named else str(self.source)
            save_task_adapter(adapter, model, base)
        merge_and_bind(self.task, model)
        return model.to(self.machine.device)
