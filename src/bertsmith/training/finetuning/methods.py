"""The methods of fine-tuning: the ways to train a model on labelled rows, which cross-validation compares.

linear          a linear model of the frozen encoder's features, or for similarity their cosine
names           linear, with the name of each label as one more row of it
self-training   linear, trained on its own predictions for unlabelled texts too
names-texts     names, trained on what the names and rows say of unlabelled texts too
contrastive     trains the encoder on pairs of texts with one label, then fits linear on its new features
cloze           trains the encoder to predict the label's words in a gap, then fits linear the same way
full            begins as linear, then trains all weights, as the recipe says
upper           the same, but trains only the upper half of the layers
lora            the same, but trains only added weights of low rank

All begin with the pre-trained encoder and a new head, frozen or changed as the recipe says (`start_model`).

U unlabelled texts, E labelled ones, F features, C classes.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from bertsmith.arrays import Ints
from bertsmith.errors import RecipeError
from bertsmith.model.adaptation import freeze, reinitialise, trained_share
from bertsmith.model.layers.elementwise import Dropout
from bertsmith.model.lora import add_lora, merge_lora
from bertsmith.model.sentence_files import makes_vectors
from bertsmith.tasks.auxiliary_tasks import FEWEST_A_BATCH, supports_cloze
from bertsmith.tasks.checkpoints.sentence_folder import read_sentence_settings, read_truncate_dim
from bertsmith.tasks.checkpoints.task_checkpoint import StartingModel, begin_task_model
from bertsmith.tasks.heads.linear_start import (
    MOST_EXAMPLES,
    LinearProbe,
    LinearStart,
    TextFeatures,
    minimise,
)
from bertsmith.tasks.task import Outputs, Task
from bertsmith.tasks.task_model import TaskModel
from bertsmith.text.tokens.tokenizer import Tokenizer
from bertsmith.text.tokens.value_tokenizers import ValueTokenizer
from bertsmith.training.finetune_recipe import FinetuneRecipe
from bertsmith.training.inputs import require_room_for_learned_rows

FULL: str = "full"
AUTO, LINEAR, CONTRASTIVE = "auto", "linear", "contrastive"
CLOZE, SELF_TRAINING, UPPER, LORA = "cloze", "self-training", "upper", "lora"
NAMES, NAMES_TEXTS = "names", "names-texts"
UNTRAINED = LINEAR, NAMES, SELF_TRAINING, NAMES_TEXTS  # leave the encoder as it is
TRAINED = FULL, UPPER, LORA  # train the encoder together with the head
_AUXILIARY_EPOCHS = 4  # of contrastive and cloze
_MEANINGS = {
    LINEAR: "a linear classifier on the encoder as it is",
    NAMES: "the same, with the label's name as one more row",
    SELF_TRAINING: "linear, learning from the unlabelled texts too",
    NAMES_TEXTS: "names, learning from the unlabelled texts too",
    CONTRASTIVE: "SetFit's way: pairs of rows first, then linear",
    CLOZE: "the encoder learns to put the label's words into a gap, then linear",
    FULL: "all weights are trained",
    UPPER: "only the upper layers are trained",
    LORA: "only small added weights are trained",
}
_LORA_RANK = 8
_MOST_TEXTS = 5000  # unlabelled: more would cost seconds for each fold
_ROUNDS, _ITERATIONS = 2, 20  # of self-training, and of the optimiser in each round
_WEIGHT = 0.3  # of an unlabelled text, where a labelled one has 1
_SHARPENING, _ALIGNMENT = 2.0, 0.5  # exponents


def list_possible_methods(
    task: Task[Any],
    recipe: FinetuneRecipe,
    source: Path,
    tokenizer: Tokenizer,
    model: TaskModel,
    *,
    linear: bool,
    unlabelled: bool,
    names: bool = False,
) -> list[str]:
    """The methods that suit the task, the recipe and the `model` that training begins with, the cheapest
    first. `linear` says whether the head can begin as a linear model, `unlabelled` whether there are
    unlabelled texts, `names` whether the labels' names say something.
    """
    layers = model.config.num_hidden_layers
    names = names and not isinstance(tokenizer, ValueTokenizer)
    if task.compares_vectors and not recipe.reinit_layers:
        return [LINEAR, FULL] if trained_share(model) > 0 else [LINEAR]
    if not linear:
        return [FULL]
    methods = [LINEAR, *[NAMES] * names]
    if unlabelled and task.learns_unlabelled:
        methods += [SELF_TRAINING, *[NAMES_TEXTS] * names]
    teachings = task.teachings if recipe.freeze_layers < layers else ()  # they train the encoder alone
    if CONTRASTIVE in teachings and recipe.batch_size >= FEWEST_A_BATCH:
        methods.append(CONTRASTIVE)
    if CLOZE in teachings and supports_cloze(task, source, tokenizer):
        methods.append(CLOZE)
    methods.append(FULL)
    if recipe.lora.rank:  # makes `full` the same as `lora`
        return methods + [LORA] * (recipe.method == LORA)
    if _freezes_layers(recipe):
        return methods + [UPPER] * (recipe.method == UPPER)
    has_upper_half = layers > 1 and not model.config.shares_weights_at(layers // 2)
    return [*methods, *[UPPER] * has_upper_half, LORA]


def list_compared_methods(recipe: FinetuneRecipe, possible: Sequence[str]) -> list[str]:
    """The methods to compare: only the one that the recipe names; else the possible ones, without `upper` and
    `lora`, which rarely win, unless the recipe gives `minutes`.
    """
    if named_method(recipe) != AUTO:
        return [named_method(recipe)]
    return [method for method in possible if recipe.minutes is not None or method not in (UPPER, LORA)]


def named_method(recipe: FinetuneRecipe) -> str:
    """The recipe's method, or `auto`. A recipe with lora.rank but no method means `full`."""
    return FULL if recipe.method == AUTO and recipe.lora.rank else recipe.method


def apply_method(method: str, recipe: FinetuneRecipe, layers: int) -> FinetuneRecipe:
    """The recipe with the settings of the method, for an encoder with so many layers. Settings that the user
    gave stay.
    """
    changes: dict[str, Any] = {}
    if method in (CONTRASTIVE, CLOZE) and "epochs" not in recipe.model_fields_set:
        changes["epochs"] = _AUXILIARY_EPOCHS
    if method == UPPER and not _freezes_layers(recipe):
        changes |= {"freeze_embeddings": True, "freeze_layers": layers // 2}
    if method == LORA and not recipe.lora.rank:
        changes["lora"] = recipe.lora.model_copy(update={"rank": _LORA_RANK})
    return recipe.model_copy(update=changes) if changes else recipe


def _freezes_layers(recipe: FinetuneRecipe) -> bool:
    return recipe.freeze_embeddings or recipe.freeze_layers > 0


def suits_folds(task: Task[Any], recipe: FinetuneRecipe) -> bool:
    """Whether `linear` is possible, which makes cross-validation cost next to nothing."""
    return (task.is_linear or task.compares_vectors) and not recipe.reinit_layers


def require_folds_suit(recipe: FinetuneRecipe, task: Task[Any], processes: int = 1) -> None:
    """Raises RecipeError if the recipe gives `folds`, but cross-validation isn't possible: with several
    processes, reinitialised layers, or a task without a linear model.
    """
    if recipe.folds is None:
        return
    folds, instead = f"folds = {recipe.folds}", "leave folds out: a dev set judges then."
    if processes > 1:
        raise RecipeError(
            f"{folds} is for one process, and torchrun started {processes}. Start without it, or {instead}"
        )
    if recipe.reinit_layers:
        raise RecipeError(
            f"{folds} can't be used with reinit_layers: each fold begins with a linear model of the layers "
            f"as they were pre-trained. Set reinit_layers=0, or {instead}"
        )
    if not suits_folds(task, recipe):
        raise RecipeError(
            f"{folds} is not for this {task.name}: rows judge in turn in classification, multi-label, "
            f"regression, tagging and similarity (of scores, not of classes). {instead.capitalize()}"
        )


def require_trained(recipe: FinetuneRecipe, task: Task[Any], model: TaskModel) -> None:
    """Raises RecipeError if the recipe freezes the whole encoder and the task's head has no weights."""
    if not trained_share(model):
        raise RecipeError(
            f"freeze_layers = {recipe.freeze_layers} leaves nothing to train: {task.name} has no weights but "
            "the encoder's. Freeze fewer layers."
        )


def require_possible(recipe: FinetuneRecipe, task: Task[Any], possible: Sequence[str]) -> None:
    """Raises RecipeError for a named method that doesn't suit the task."""
    method, few = recipe.method, recipe.batch_size < FEWEST_A_BATCH
    if method not in (AUTO, *possible):
        pairs = f" contrastive compares texts: it takes a batch_size of {FEWEST_A_BATCH} or more."
        raise RecipeError(
            f"method = {method} is not for this {task.name}. Choose {' or '.join(possible)}."
            f"{pairs if few and method == CONTRASTIVE else ''}"
        )


def leave_out_featured(recipe: FinetuneRecipe, methods: Sequence[str], rows: int) -> list[str]:
    """The methods without those that would need the features of all `rows` for folds. Raises RecipeError if
    the recipe names one of them.
    """
    featured = NAMES, SELF_TRAINING, NAMES_TEXTS
    if recipe.method in featured:
        raise RecipeError(
            f"method = {recipe.method} can't be judged by folds of more than {MOST_EXAMPLES:,} rows, and "
            f"train has {rows:,}. Leave out folds."
        )
    return [method for method in methods if method not in featured]


def describe_methods(methods: Sequence[str], task: Task[Any]) -> str:
    """What the methods are, in a line: 'linear (a linear classifier on the encoder as it is), full (…)'."""
    meanings = dict(_MEANINGS)
    if task.compares_vectors:
        meanings[LINEAR] = "the cosine of the encoder's vectors as they are"
    elif not task.labels:
        meanings[LINEAR] = "a linear regression on the encoder as it is"
    return ", ".join(f"{method} ({meanings[method]})" for method in methods)


# -- what training begins with -------------------------------------------------------------------------


def start_model(
    recipe: FinetuneRecipe,
    task: Task[Any],
    source: Path,
    seed: int | None = None,
    linear: LinearStart | None = None,
) -> StartingModel:
    """The model that training begins with: the encoder of the folder `source` under a new head, with dropout,
    frozen layers and LoRA as the recipe says; and notes on it for the user. `linear` is put into the head.

    New weights are drawn by `seed`, by default the recipe's, so that the same seed gives the same model. With
    `linear` they are drawn by the recipe's seed, and `seed` only seeds the training that follows. Raises
    ModelError for a folder without an encoder, and RecipeError if the task's windows are longer than the
    model can read, or shorter than the rows of the table that it was pre-trained on.
    """
    seed = recipe.seed if seed is None else seed
    # `linear` was fitted on new layers, such as a pooler, that were drawn by the recipe's seed
    drawn_by = seed if linear is None else recipe.seed
    torch.manual_seed(drawn_by)
    start = begin_task_model(source, task)
    if seed != drawn_by:
        torch.manual_seed(seed)
    model = start.model
    if task.settings.max_length > model.config.max_length:
        longer = "" if task.settings.stride is not None else ", and stride=64 to read longer texts as windows"
        raise RecipeError(
            f"max_length = {task.settings.max_length}, but the model has positions for "
            f"{model.config.max_length} tokens. Give max_length={model.config.max_length}{longer}."
        )
    require_room_for_learned_rows(source, task.settings.max_length)
    if recipe.dropout is not None:
        for module in model.modules():
            if isinstance(module, Dropout):
                module.probability = recipe.dropout
    reinitialise(model.encoder, recipe.reinit_layers)
    freeze(model.encoder, recipe.freeze_embeddings, recipe.freeze_layers)
    if recipe.lora.rank:
        lora = recipe.lora
        targets = lora.targets
        if targets and model.new_pooler:  # a new pooler is trained in full, as the head is
            targets = tuple(target for target in targets if target != "pooler")
        add_lora(model.encoder, lora.rank, lora.alpha, lora.dropout, targets)
        if model.new_pooler:
            model.encoder.get_submodule("pooler").requires_grad_(True)
    if linear is not None:
        linear.apply(model)
    return start


def vector_notes(task: Task[Any], source: Path) -> list[str]:
    """Sentences for the user on where training and the use of an embedding model differ: windows of long
    texts, the layers behind the pooling, prompts, and truncated vectors. Empty for tasks without vectors.
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
    if task.projection is not None:
        names = ", ".join(layer.kind for layer in task.projection.layers)
        notes.append(f"{source} has layers behind its pooling ({names}), which are trained and kept")
    settings = read_sentence_settings(source) if makes_vectors(source) else None
    if settings is not None and settings.layer_weights is not None:
        notes.append(
            f"{source} mixes its layers by weights (WeightedLayerPooling). They are left out: training "
            "begins with the last layer's hidden states"
        )
    if settings is not None and not settings.include_prompt:
        notes.append(
            f"{source} leaves its prompts out of the pooling (include_prompt is false). Training, and the "
            "model that it makes, pool all tokens, those of prefixes too"
        )
    if makes_vectors(source) and (dimensions := read_truncate_dim(source)):
        notes.append(
            f"{source} keeps the first {dimensions} dimensions of its vectors (truncate_dim). All are "
            "trained and kept here: ask for fewer where the vectors are used"
        )
    return notes


def merge_and_bind(task: Task[Any], model: TaskModel) -> None:
    """Merges LoRA's weights into the encoder, and has the task decode by the model's head."""
    merge_lora(model.encoder)
    task.bind(model.head)


# -- self-training -------------------------------------------------------------------------------------


class SelfTraining:
    """Self-training on unlabelled texts (Scudder 1965; for text classification Nigam et al. 2000): a linear
    model of the labelled texts predicts the classes of the unlabelled ones, and is then trained on both. The
    predicted probabilities are sharpened, and aligned to the shares of classes among the labelled texts
    (Berthelot et al. 2020).

    The features of all texts are computed once, so that a fold costs no pass of the encoder. `seconds` is how
    long those of the unlabelled texts took.
    """

    def __init__(self, probe: LinearProbe, strength: float, texts: TextFeatures) -> None:
        """Takes the labelled texts' `probe`, the `strength` of its regularisation, and unlabelled texts."""
        self._probe, self._strength, self.seconds = probe, strength, texts.seconds
        self._unlabelled = probe.scale(torch.stack(texts.features))

    def fit(self) -> LinearStart:
        """The linear model of all labelled texts and the unlabelled ones."""
        start = time.monotonic()
        weights = self._learn(np.arange(len(self._probe)))
        seconds = self.seconds + time.monotonic() - start
        return LinearStart(*self._probe.unscale(weights), self._strength, seconds)

    def judge(self, folds: Ints) -> list[Outputs]:
        """Outputs (C,) for each labelled text by a model of the other folds and the unlabelled texts. `folds`
        (E,) has the fold of each labelled text.
        """
        by_row: list[Outputs] = [np.empty(0, np.float32)] * len(folds)
        for fold in sorted(set(folds.tolist())):
            held_out, others = np.flatnonzero(folds == fold), np.flatnonzero(folds != fold)
            outputs = self._probe.outputs(self._learn(others), held_out).numpy()
            for row, output in zip(held_out.tolist(), outputs, strict=True):
                by_row[row] = output
        return by_row

    def _learn(self, rows: Ints) -> tuple[Tensor, Tensor]:
        """The weights of a linear model of these labelled rows and all unlabelled texts."""
        weights = self._probe.make_initial_weights()
        self._probe.solve(weights, rows, self._strength)
        shares = self._probe.count_class_shares(rows)
        for _ in range(_ROUNDS):
            with torch.no_grad():
                targets = _align_and_sharpen(self._unlabelled_logits(weights).softmax(1), shares)

            def total(weights: tuple[Tensor, Tensor] = weights, targets: Tensor = targets) -> Tensor:
                logits = self._unlabelled_logits(weights)
                unlabelled = F.cross_entropy(logits, targets, reduction="sum")
                return self._probe.penalised_loss(weights, rows, self._strength) + _WEIGHT * unlabelled

            minimise(weights, total, _ITERATIONS)
        return weights

    def _unlabelled_logits(self, weights: tuple[Tensor, Tensor]) -> Tensor:
        """The logits (U, C) of the unlabelled texts."""
        return self._unlabelled @ weights[0].T + weights[1]


def sample_texts(texts: Sequence[Any], most: int = _MOST_TEXTS) -> Sequence[Any]:
    """All texts, or `most` of them drawn at random, always the same ones, in their order."""
    if len(texts) <= most:
        return texts
    indices = np.random.default_rng(0).choice(len(texts), most, replace=False)
    return [texts[index] for index in np.sort(indices).tolist()]


def _align_and_sharpen(probabilities: Tensor, shares: Tensor) -> Tensor:
    """Moves class probabilities (U, C) towards the shares (C,) of classes among labelled texts, and sharpens
    them. Returns probabilities (U, C).
    """
    predicted = probabilities.mean(0).clamp_min(torch.finfo(probabilities.dtype).tiny)  # 0 if they underflow
    aligned = probabilities * (shares / predicted).pow(_ALIGNMENT)
    sharpened = (aligned / aligned.sum(1, keepdim=True)).pow(_SHARPENING)
    return sharpened / sharpened.sum(1, keepdim=True)
