"""The ways in which labelled rows become a model, each without a file: what cross-validation compares.

linear          the encoder as it is, under a linear model of its features, or their cosine for similarity
self-training   the same, and unlabelled texts are learned from by what it says of them
contrastive     the encoder taught by pairs of one label, then a linear model of what its features became
cloze           the encoder taught to say the label's words in a gap, then the same
full            begun as the linear model, then all weights trained, as the recipe says
upper           the same for the upper half of the layers alone
lora            the same for added weights of low rank alone

All begin with the pre-trained encoder under a new head, adapted as the recipe says (`start_model`).

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
from bertsmith.progress import Progress
from bertsmith.tasks.checkpoints.sentence_folder import ends_in_projection, read_truncate_dim
from bertsmith.tasks.checkpoints.task_checkpoint import StartingModel, begin_task_model
from bertsmith.tasks.finetuning import EncodedExamples
from bertsmith.tasks.heads.linear_start import LinearProbe, LinearStart, features_of, minimise
from bertsmith.tasks.task import Outputs, Task
from bertsmith.tasks.task_model import TaskModel
from bertsmith.tasks.teaching import FEWEST_A_BATCH, can_be_gapped
from bertsmith.text.tokens.tokenizer import Tokenizer
from bertsmith.training.finetune_recipe import FinetuneRecipe
from bertsmith.training.inputs import require_room_for_learned_rows

FULL: str = "full"
AUTO, LINEAR, CONTRASTIVE = "auto", "linear", "contrastive"
CLOZE, SELF_TRAINING, UPPER, LORA = "cloze", "self-training", "upper", "lora"
UNTRAINED = LINEAR, SELF_TRAINING  # the encoder stays as it is
TRAINED = FULL, UPPER, LORA  # with the head on it
_TAUGHT_EPOCHS = 4
_MEANINGS = {
    LINEAR: "a linear classifier on the frozen encoder",
    SELF_TRAINING: "the same, learning from the unlabelled texts too",
    CONTRASTIVE: "SetFit's way: pairs of rows first, then linear",
    CLOZE: "the encoder learns to put the label's words into a gap, then linear",
    FULL: "all weights are trained",
    UPPER: "only the upper layers are trained",
    LORA: "only small added weights are trained",
}
_LORA_RANK = 8
_MOST_TEXTS = 5000  # of the unlabelled: more cost seconds a fold
_ROUNDS, _ITERATIONS = 2, 20
_WEIGHT = 0.3  # of an unlabelled text, beside 1 of a labelled one
_SHARPENING, _ALIGNMENT = 2.0, 0.5  # powers


def list_possible_methods(
    task: Task[Any],
    recipe: FinetuneRecipe,
    source: Path,
    tokenizer: Tokenizer,
    model: TaskModel,
    *,
    linear: bool,
    unlabelled: bool,
) -> list[str]:
    """Those that suit the task, the cheapest first, for the `model` that training begins with. `linear`: the
    head can begin as a linear model; `unlabelled`: there are texts without labels.
    """
    layers = model.config.num_hidden_layers
    if task.compares_vectors and not recipe.reinit_layers:
        return [LINEAR, FULL] if trained_share(model) > 0 else [LINEAR]
    if not linear:
        return [FULL]
    found = [LINEAR]
    if unlabelled and task.learns_unlabelled:
        found.append(SELF_TRAINING)
    if recipe.freeze_embeddings and recipe.freeze_layers >= layers:
        return [*found, FULL]
    if CONTRASTIVE in task.teachings and recipe.batch_size >= FEWEST_A_BATCH:
        found.append(CONTRASTIVE)
    if CLOZE in task.teachings and can_be_gapped(task, source, tokenizer):
        found.append(CLOZE)
    found.append(FULL)
    if recipe.lora.rank:
        return found + [LORA] * (recipe.method == LORA)  # its settings make `full` the same
    if _freezes_layers(recipe):
        return found + [UPPER] * (recipe.method == UPPER)
    return [*found, *[UPPER] * (layers > 1), LORA]


def list_compared_methods(recipe: FinetuneRecipe, possible: Sequence[str]) -> list[str]:
    """Those that are compared: the one that the recipe names or, where it gives no time, those that win most
    often.
    """
    if named_method(recipe) != AUTO:
        return [named_method(recipe)]
    return [method for method in possible if recipe.minutes is not None or method not in (UPPER, LORA)]


def named_method(recipe: FinetuneRecipe) -> str:
    """LoRA's settings ask to be trained; else what the recipe says."""
    return FULL if recipe.method == AUTO and recipe.lora.rank else recipe.method


def apply_method(method: str, recipe: FinetuneRecipe, layers: int) -> FinetuneRecipe:
    """What the method trains by, an encoder of so many layers."""
    changes: dict[str, Any] = {}
    if method in (CONTRASTIVE, CLOZE) and "epochs" not in recipe.model_fields_set:
        changes["epochs"] = _TAUGHT_EPOCHS
    if method == UPPER and not _freezes_layers(recipe):
        changes |= {"freeze_embeddings": True, "freeze_layers": layers // 2}
    if method == LORA and not recipe.lora.rank:
        changes["lora"] = recipe.lora.model_copy(update={"rank": _LORA_RANK})
    return recipe.model_copy(update=changes) if changes else recipe


def _freezes_layers(recipe: FinetuneRecipe) -> bool:
    return recipe.freeze_embeddings or recipe.freeze_layers > 0


def suits_folds(task: Task[Any], recipe: FinetuneRecipe) -> bool:
    """Whether a linear model of frozen features is a method here, which costs next to nothing a fold."""
    return (task.is_linear or task.compares_vectors) and not recipe.reinit_layers


def require_folds_suit(recipe: FinetuneRecipe, task: Task[Any], processes: int = 1) -> None:
    """Raises RecipeError for `folds` that are asked for where rows can't judge in turn."""
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
    """Raises RecipeError where the recipe freezes all there is to train: a head may have no weights."""
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


def describe_methods(methods: Sequence[str], task: Task[Any]) -> str:
    """What the methods are, in a line: 'linear: a linear classifier on the frozen encoder; full: …'."""
    meanings = dict(_MEANINGS)
    if task.compares_vectors:
        meanings[LINEAR] = "the cosine of the frozen encoder's vectors"
    elif not task.labels:
        meanings[LINEAR] = "a linear regression on the frozen encoder"
    return "; ".join(f"{method}: {meanings[method]}" for method in methods)


# -- what training begins with -------------------------------------------------------------------------


def start_model(
    recipe: FinetuneRecipe,
    task: Task[Any],
    source: Path,
    seed: int | None = None,
    linear: LinearStart | None = None,
) -> StartingModel:
    """The same weights for the same seed, and what the user should know of them. What stands under a `linear`
    start is drawn by the recipe's seed, whatever the run's.

    Raises ModelError for a folder without an encoder, and RecipeError when the task's windows are longer than
    what the model can read, or shorter than the rows of the table that it was pre-trained on.
    """
    seed = recipe.seed if seed is None else seed
    # a linear start fits the layers below it as the recipe's seed draws them: other ones would undo it
    drawn_by = seed if linear is None else recipe.seed
    torch.manual_seed(drawn_by)
    start = begin_task_model(source, task)
    if seed != drawn_by:
        torch.manual_seed(seed)
    model = start.model
    if task.settings.max_length > model.config.max_length:
        raise RecipeError(
            f"max_length = {task.settings.max_length}, but the model has positions for "
            f"{model.config.max_length} tokens. To read longer texts as windows, set a stride, such as "
            "stride=64."
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
        if targets and model.new_pooler:  # which is trained in full, as the head is
            targets = tuple(target for target in targets if target != "pooler")
        add_lora(model.encoder, lora.rank, lora.alpha, lora.dropout, targets)
        if model.new_pooler:
            model.encoder.get_submodule("pooler").requires_grad_(True)
    if linear is not None:
        linear.apply(model)
    return start


def vector_notes(task: Task[Any], source: Path) -> list[str]:
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


def merge_and_bind(task: Task[Any], model: TaskModel) -> None:
    """What was added by LoRA becomes the weights, and the task decodes by this model."""
    merge_lora(model.encoder)
    task.bind(model.head)


# -- self-training -------------------------------------------------------------------------------------


class SelfTraining:
    """Texts without labels learned from by what the model says of them (self-training: Scudder 1965; for
    text classification Nigam et al. 2000): the linear model of the labelled ones says how likely each class
    is, and another learns from both. What it says is made surer, and its classes nearly as frequent as among
    the labelled texts (sharpening and distribution alignment: Berthelot et al. 2020).

    The features of both kinds of texts are computed once: a fold costs no pass. `seconds` is how long that of
    the unlabelled ones took.
    """

    def __init__(
        self, probe: LinearProbe, strength: float, features: Sequence[Tensor], seconds: float
    ) -> None:
        """`features` (F,) of each unlabelled text. See `of`."""
        self._probe, self._strength, self.seconds = probe, strength, seconds
        self._unlabelled = probe.scaled(torch.stack(list(features)))

    @classmethod
    def of(
        cls,
        probe: LinearProbe,
        strength: float,
        model: TaskModel,
        texts: EncodedExamples,
        progress: Progress | None = None,
    ) -> "SelfTraining":
        """Beside a classification's `probe`, whose best `strength` is known; of what `sample_texts` gives."""
        begun = time.monotonic()
        features = features_of(model, texts.encoded, progress)
        return cls(probe, strength, features, time.monotonic() - begun)

    def fit(self) -> LinearStart:
        """From all labelled texts."""
        begun = time.monotonic()
        weights = self._learn(np.arange(len(self._probe)))
        seconds = self.seconds + time.monotonic() - begun
        return LinearStart(*self._probe.unscaled(weights), self._strength, seconds)

    def judge(self, folds: Ints) -> list[Outputs]:
        """(C,) of each labelled text, by what was learned from the other folds, (E,), and the unlabelled."""
        found: list[Outputs] = [np.empty(0, np.float32)] * len(folds)
        for fold in sorted(set(folds.tolist())):
            held, others = np.flatnonzero(folds == fold), np.flatnonzero(folds != fold)
            said = self._probe.outputs(self._learn(others), held).numpy()
            for row, each in zip(held.tolist(), said, strict=True):
                found[row] = each
        return found

    def _learn(self, rows: Ints) -> tuple[Tensor, Tensor]:
        weights = self._probe.begin()
        self._probe.solve(weights, rows, self._strength)
        shares = self._probe.class_shares(rows)
        for _ in range(_ROUNDS):
            with torch.no_grad():
                targets = _align_and_sharpen(self._said(weights).softmax(1), shares)

            def total(weights: tuple[Tensor, Tensor] = weights, targets: Tensor = targets) -> Tensor:
                unlabelled = F.cross_entropy(self._said(weights), targets, reduction="sum")
                return self._probe.total(weights, rows, self._strength) + _WEIGHT * unlabelled

            minimise(weights, total, _ITERATIONS)
        return weights

    def _said(self, weights: tuple[Tensor, Tensor]) -> Tensor:
        """(U, C)."""
        return self._unlabelled @ weights[0].T + weights[1]


def sample_texts(texts: Sequence[Any], most: int = _MOST_TEXTS) -> Sequence[Any]:
    """All, or `most` of them by chance, in their order and always the same."""
    if len(texts) <= most:
        return texts
    places = np.random.default_rng(0).choice(len(texts), most, replace=False)
    return [texts[place] for place in np.sort(places).tolist()]


def _align_and_sharpen(said: Tensor, shares: Tensor) -> Tensor:
    """(U, C) probabilities and (C,) the shares of classes among labelled texts -> (U, C), surer."""
    found = said * (shares / said.mean(0)).pow(_ALIGNMENT)
    found = (found / found.sum(1, keepdim=True)).pow(_SHARPENING)
    return found / found.sum(1, keepdim=True)
