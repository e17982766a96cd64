"""What every training by one recipe's files shares: examples read and encoded once, and how a method makes a
model of them.
"""

import time
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from bertsmith.arrays import Ints
from bertsmith.errors import RecipeError
from bertsmith.files import sha256
from bertsmith.model.adaptation import trained_share
from bertsmith.model.checkpoint import WEIGHTS
from bertsmith.model.config import BertConfig
from bertsmith.model.locate import locate_model
from bertsmith.model.lora import merge_lora, pooler_tensors, save_adapter
from bertsmith.model.own_tokenizer import load_own_tokenizer
from bertsmith.model.sentence_files import makes_vectors
from bertsmith.progress import Progress
from bertsmith.tasks.checkpoints.sentence_folder import ends_in_projection, read_truncate_dim
from bertsmith.tasks.checkpoints.task_checkpoint import head_tensors
from bertsmith.tasks.evaluating.evaluation import evaluate
from bertsmith.tasks.examples.held_out import folds_of
from bertsmith.tasks.examples.text_settings import choose_pooling
from bertsmith.tasks.finetuning import EncodedExamples, encode_examples, steps_of_epoch
from bertsmith.tasks.heads.linear_start import (
    MOST_EXAMPLES,
    LinearProbe,
    LinearStart,
    fit_linear_start,
)
from bertsmith.tasks.registry import find_task
from bertsmith.tasks.task import Prediction, Task
from bertsmith.tasks.task_model import TaskModel, outputs_of
from bertsmith.tasks.teaching import ClassContrast, Cloze, Teaching
from bertsmith.text.tokens.tokenizer import Tokenizer
from bertsmith.training.finetune_recipe import FLOP_A_MINUTE, FinetuneRecipe, task_settings
from bertsmith.training.finetuning.choosing import (
    Choice,
    Judged,
    Work,
    choose,
    epoch_work,
    pass_work,
    training_speed,
)
from bertsmith.training.finetuning.labelled_data import (
    LabelledData,
    can_be_folded,
    read_labelled_data,
    require_enough_texts,
    require_negatives,
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
    compared_methods,
    drawn,
    named_method,
    possible_methods,
    recipe_of,
    require_folds_suit,
    require_possible,
    require_trained,
    start_model,
    suits_folds,
)
from bertsmith.training.finetuning.task_run import Best, train_silently
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
    """A task that knows its labels, its data, and where to compute. `source` is the model's folder, `config`
    its encoder's; `linear` is what the head begins with, `methods` are the possible ones. `folds`
    (E,) are those of `train`, where its rows judge in turn and `dev` is empty; `probe` has their features
    then, and where columns stand beside the texts, and `self_training` those of texts without labels.
    `encoder_sha256` is of the weights of the encoder that the recipe names.
    """

    task: Task[Any]
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
        kind = find_task(recipe.task)
        task = kind(task_settings(recipe, kind))
        require_folds_suit(recipe, task, machine.ranks.count)
        data = read_labelled_data(task, recipe, folds=folds and suits_folds(task, recipe))
        source = locate_model(recipe.model).folder  # which may have to be fetched
        return cls.prepare(task, recipe, source, data, machine, progress)

    @classmethod
    def prepare(
        cls,
        task: Task[Any],
        recipe: FinetuneRecipe,
        source: Path,
        data: LabelledData,
        machine: Machine,
        progress: Progress | None = None,
    ) -> "FinetuneSession":
        """The same for data in memory. Where dev is empty, and they are few, the rows judge in turn."""
        require_folds_suit(recipe, task)
        require_enough_texts(task, recipe, data.train)
        require_negatives(task, recipe, data.train)
        choose_pooling(task, source)
        start = start_model(recipe, task, source)
        if recipe.out:  # empty for an estimator, which saves nothing
            require_room_to_save(start.model, Path(recipe.out))
        tokenizer = load_own_tokenizer(source, start.model.config)
        train, dev = (encode_examples(task, examples, tokenizer) for examples in (data.train, data.dev))
        test = None if data.test is None else encode_examples(task, data.test, tokenizer)
        notes = *start.notes, *_left_out(task, source)
        data = replace(data, warnings=(*notes, *data.warnings))
        config = start.model.config
        probe = None
        if not recipe.reinit_layers:  # else there is nothing that the head could begin with
            model = start_model(recipe, task, source).model.to(machine.device)
            probe = LinearProbe.of(task, model, train, progress=progress)
        linear = None if probe is None else probe.best()
        methods = possible_methods(
            *(task, recipe, source, tokenizer, config.num_hidden_layers),
            linear=linear is not None,
            trains=trained_share(start.model) > 0,
            unlabelled=bool(data.unlabelled),
        )
        judging = not len(dev) and suits_folds(task, recipe) and can_be_folded(task, data.train)
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
        parts = folds_of(task, train.examples, count, recipe.seed) if count else None
        self_training, asked = None, recipe.method in (*([AUTO] if count else []), SELF_TRAINING)
        if asked and SELF_TRAINING in methods and probe is not None and linear is not None:
            texts = encode_examples(task, drawn(data.unlabelled), tokenizer)
            self_training = SelfTraining.of(probe, linear.strength, start.model.to(machine.device), texts)
        if data.unlabelled and not count and recipe.method != SELF_TRAINING:
            data = replace(data, warnings=(*data.warnings, _UNUSED))
        probe = probe if count or task.columns is not None else None  # its features are as large as the data
        found = task, source, tokenizer, data, train, dev, test, machine, config, linear, methods
        return cls(*found, sha256(source / WEIGHTS), parts, probe, self_training)

    def begun_from(self, recipe: FinetuneRecipe, source: Path) -> "FinetuneSession":
        """The same data for another encoder of the same vocabulary."""
        begun = FinetuneSession.prepare(copy(self.task), recipe, source, self.data, self.machine)
        return replace(begun, encoder_sha256=self.encoder_sha256)

    # -- what is trained by what -----------------------------------------------------------------------------

    @property
    def layers(self) -> int:
        """Of the encoder."""
        return self.config.num_hidden_layers

    def steps_per_epoch(self, recipe: FinetuneRecipe) -> int:
        """How many batches of the recipe's size an epoch is divided into."""
        return steps_of_epoch(self.task, self.train, recipe.batch_size)

    def uncompared_method(self, recipe: FinetuneRecipe) -> str:
        """The one that is named; else `full`, unless rows that aren't few are to get no work at all."""
        named = named_method(recipe)
        if named != AUTO:
            return named
        return LINEAR if recipe.minutes == 0 and self._has_limit(recipe) else FULL

    def completed(self, method: str, recipe: FinetuneRecipe) -> FinetuneRecipe:
        """What the method trains by on all rows."""
        usual = self.usually_completed(method, recipe)
        if method != FULL or "epochs" in recipe.model_fields_set or not self._has_limit(recipe):
            return usual
        rows, work = len(self.train) + len(self.dev), epoch_work(self.config, self.train.encoded, usual)
        return usual.model_copy(update={"epochs": recipe.epochs_on_many(usual.epochs, rows, work)})

    def usually_completed(self, method: str, recipe: FinetuneRecipe) -> FinetuneRecipe:
        """The same, whatever work its epochs are."""
        return self._completed(method, recipe, self.task, self.train)

    def _completed(
        self, method: str, recipe: FinetuneRecipe, task: Task[Any], rows: EncodedExamples
    ) -> FinetuneRecipe:
        steps = steps_of_epoch(task, rows, recipe.batch_size)
        return recipe_of(method, recipe, self.layers).completed(self.config.hidden_size, self.layers, steps)

    def _has_limit(self, recipe: FinetuneRecipe) -> bool:
        """Whether methods would have been compared, within their work, if only the rows were fewer."""
        rows = len(self.train) + len(self.dev)
        compares = self.folds is None and named_method(recipe) == AUTO and LINEAR in self.methods
        return compares and suits_folds(self.task, recipe) and recipe.is_held_out_unasked(rows)

    def teaching(self, method: str) -> Teaching | None:
        """What the encoder is taught by before it has its head, if anything."""
        if method == CONTRASTIVE:
            return ClassContrast(self.task)
        return Cloze(self.task, self.source, self.tokenizer) if method == CLOZE else None

    # -- work, and the choice among methods ------------------------------------------------------------------

    def training_work(
        self, method: str, recipe: FinetuneRecipe, rows: EncodedExamples | None = None
    ) -> float:
        """FLOP of what the method learns by from these rows, all by default."""
        rows = rows or self.train
        once = pass_work(self.config, rows.encoded)  # for what the head begins or ends with
        if method in UNTRAINED:
            return once
        teaching = self.teaching(method)
        task, taught = (self.task, rows) if teaching is None else (teaching, teaching.examples(rows))
        trained = self._completed(method, recipe, task, taught)
        return once + trained.epochs * epoch_work(self.config, taught.encoded, trained)

    def work(self, recipe: FinetuneRecipe) -> Work:
        """Of the methods that are compared, and how much there may be."""
        assert self.folds is not None
        numbers, rows = sorted(set(self.folds.tolist())), len(self.train)
        parts = [self.train.some(np.flatnonzero(self.folds != number)) for number in numbers]
        folds, final = dict[str, list[float]](), dict[str, float]()
        for method in compared_methods(recipe, self.methods):
            known = method in UNTRAINED and self._knows_features
            folds[method] = [0.0 if known else self.training_work(method, recipe, part) for part in parts]
            final[method] = 0.0 if method in UNTRAINED else self.training_work(method, recipe)
        budget, look = (
            FLOP_A_MINUTE * minutes
            for minutes in (recipe.minutes_to_choose(rows), recipe.minutes_to_look(rows))
        )
        return Work(folds, final, budget, look)

    @property
    def _knows_features(self) -> bool:
        """Of all rows, so that what isn't trained is judged without a pass of its own."""
        return self.probe is None or len(self.probe) == len(self.train)

    def speed(self, recipe: FinetuneRecipe) -> float:
        """FLOP of training a second on this machine, as `training_speed` has it."""
        model = start_model(recipe, self.task, self.source).model.to(self.machine.device)
        return training_speed(model, self.train.encoded, recipe, self.machine)

    def choose(
        self,
        recipe: FinetuneRecipe,
        work: Work | None = None,
        on_fold: Callable[[str, int], None] = lambda method, number: None,
    ) -> Choice:
        """The method for few rows, by cross-validation; the recipe may name it, and it is only measured.
        `work` is that of the recipe unless another is given. `on_fold` hears which method begins its fold of
        this number.
        """
        assert self.folds is not None
        work = work or self.work(recipe)

        def train(method: str, rows: EncodedExamples) -> TaskModel:
            return self.learn(method, recipe, rows)

        judged = self._judge_frozen(recipe, work.methods) if self._knows_features else {}
        return choose(self.task, work, self.train, self.folds, train, on_fold, judged)

    def _judge_frozen(self, recipe: FinetuneRecipe, methods: Sequence[str]) -> dict[str, Judged]:
        """From the features that the start was learned from."""
        assert self.folds is not None
        found, begun = {}, time.monotonic()
        if LINEAR in methods and self.probe is not None and self.linear is not None:
            outputs = self.probe.judge(self.folds, self.linear.strength)
            seconds = self.linear.seconds + time.monotonic() - begun
            found[LINEAR] = Judged(outputs, seconds)
        elif LINEAR in methods:
            outputs = outputs_of(self.start(recipe, recipe.seed), self.train.encoded)
            seconds = time.monotonic() - begun
            found[LINEAR] = Judged(outputs, seconds)
        if SELF_TRAINING in methods and self.self_training is not None and self.probe is not None:
            begun = time.monotonic()
            outputs = self.self_training.judge(self.folds)
            seconds = self.self_training.seconds + time.monotonic() - begun
            found[SELF_TRAINING] = Judged(outputs, seconds)
        return found

    def judge_linear(self) -> list[Prediction]:
        """What linear models of the features say of the rows that each hasn't learned from."""
        assert self.folds is not None and self.probe is not None and self.linear is not None
        outputs = self.probe.judge(self.folds, self.linear.strength)
        return self.task.decode_by_folds(outputs, self.train.examples, self.train.encoded, self.folds)

    # -- a model ---------------------------------------------------------------------------------------------

    def learn(self, method: str, recipe: FinetuneRecipe, rows: EncodedExamples) -> TaskModel:
        """A model of these rows alone, by its last weights; the same for the same rows and seed."""
        recipe = recipe_of(method, recipe, self.layers)
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
        merge_lora(model.encoder)
        self.task.bind(model.head)
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
            Best(run / "best", self.task.main_metric).restore(model)
        model.head = head
        if method not in TRAINED:
            linear = self._linear(method, model.to(self.machine.device), self.train)
            if linear is not None:
                linear.apply(model)
        model.head.finish()
        if adapter is not None:
            heads, _ = head_tensors(model.head)
            if model.new_pooler:
                heads |= pooler_tensors(model.encoder)
            as_named = self.source == locate_model(recipe.model).folder
            base = recipe.model if as_named else str(self.source)
            save_adapter(adapter, model.encoder, heads=heads, base_model=base, overwrite=True)
        merge_lora(model.encoder)
        self.task.bind(model.head)
        return model.to(self.machine.device)

    def score(self, model: TaskModel) -> float:
        """The main metric on dev, calibrated there."""
        task, outputs = copy(self.task), outputs_of(model, self.dev.encoded)
        task.calibrate(outputs, self.dev.examples, self.dev.encoded)
        return evaluate(task, outputs, None, self.dev).model[task.main_metric]


def _left_out(task: Task[Any], source: Path) -> list[str]:
    """Sentences on what an embedding model does to its vectors and a task that makes them doesn't, or the
    other way round.
    """
    if not task.makes_vectors:
        return []
    notes = []
    if task.settings.stride is not None:
        notes.append(
            f"stride = {task.settings.stride}: training, evaluate and predict read longer texts in windows. "
            "Where the model makes vectors (embed, search, serve, sentence-transformers) they are cut at "
            f"{task.settings.max_length} tokens, unless embed is given --long-texts windows"
        )
    if ends_in_projection(source):
        notes.append(
            f"{source} ends in a linear layer that changes the vectors' dimensions. It is left out: training "
            "begins with the encoder's own vectors, which have other dimensions"
        )
    if makes_vectors(source) and (kept := read_truncate_dim(source)):
        notes.append(
            f"{source} keeps the first {kept} dimensions of its vectors (truncate_dim). All are trained and "
            "kept here: ask for fewer where the vectors are used"
        )
    return notes
