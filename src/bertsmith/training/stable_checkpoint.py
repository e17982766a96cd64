"""The checkpoint of another run's stable phase that a run begins from (`decay_from`), to do the decay alone:
one long run, and from it a model for any budget.
"""

from pathlib import Path
from typing import Any

from bertsmith.data.store import TokenStore
from bertsmith.errors import RecipeError
from bertsmith.text.tokens.tokenizer import Tokenizer
from bertsmith.training.checkpoint import read_progress
from bertsmith.training.recipe import Recipe, read_recipe
from bertsmith.training.run_folder import differing_keys

# What is the decay's own. All else decides what the weights, the moments and the place in the text mean.
_OWN: dict[str, Any] = {
    **dict.fromkeys(("decay_from", "steps", "hours", "out", "corpus", "masking"), True),
    **dict.fromkeys(("evaluation", "checkpoint", "guard", "hardware", "log_every"), True),
    "optimizer": {"schedule", "warmup", "decay"},
    "data": {"micro_batch_tokens", "sequence_shares"},
}


def with_stable_checkpoint(recipe: Recipe, out: Path) -> Recipe:
    """The recipe with the checkpoint where `decay_from` names its run; none is needed once `out` has its own.

    Raises as `stable_checkpoint` does.
    """
    if recipe.decay_from is None or any((out / "checkpoints").glob("step-*")):
        return recipe
    return recipe.model_copy(update={"decay_from": str(stable_checkpoint(recipe))})


def from_phase_of_checkpoint(recipe: Recipe) -> Recipe:
    """The recipe with no share for phases of length before that of its checkpoint, which a decay begins in;
    unchanged where `decay_from` isn't on this machine.

    Raises as `stable_checkpoint` does.
    """
    if recipe.decay_from is None or not Path(recipe.decay_from).exists():
        return recipe
    first, shares = read_progress(stable_checkpoint(recipe)).cursor.phase, recipe.data.sequence_shares
    from_there = (*(0.0 for _ in shares[:first]), sum(shares[: first + 1]), *shares[first + 1 :])
    return recipe.model_copy(update={"data": recipe.data.model_copy(update={"sequence_shares": from_there})})


def stable_checkpoint(recipe: Recipe) -> Path:
    """The folder of the checkpoint that `decay_from` names, or of the newest stable one of the run it names.

    Raises RecipeError when it isn't in the stable phase of a run with the same settings, and ModelError when
    it is damaged.
    """
    given = Path(recipe.decay_from or "")
    run = run_of(given)
    if not (run / "recipe.toml").is_file():
        raise RecipeError(
            f"decay_from = {given} is neither the folder of a run nor a checkpoint in one "
            "(RUN/checkpoints/step-00001000)."
        )
    long = read_recipe(str(run / "recipe.toml"), [])
    _require_same_settings(long, recipe, run)
    found = [given] if run != given else sorted((run / "checkpoints").glob("step-*"), reverse=True)
    for path in found:
        progress = read_progress(path)
        if long.schedule.is_stable(long.share_done(progress.step, progress.elapsed)):
            return path
    there = ", ".join(path.name for path in reversed(found)) or "none"
    raise RecipeError(
        f"decay_from = {given} names no checkpoint of a stable phase (found: {there}). There is one between "
        f"the end of the warm-up and the beginning of the decay of a run with optimizer.schedule=wsd; "
        "checkpoint.keep says how many of the newest a run keeps."
    )


def require_same_text(recipe: Recipe, tokenizer: Tokenizer, train: TokenStore) -> None:
    """Raises RecipeError when the long run's own token store is of another corpus than the decay's, and
    StoreError when it is of another tokenizer: a place in it would be another one here.
    """
    if recipe.decay_from is None:
        return
    store = run_of(Path(recipe.decay_from)) / "tokens"
    if not (store / "train").is_dir():
        return
    if TokenStore.open(store / "train", tokenizer).corpus_sha256 != train.corpus_sha256:
        raise RecipeError(
            f"decay_from = {recipe.decay_from} was trained on another corpus than corpus = {recipe.corpus} "
            f"is now. Its text is still there: corpus={store}."
        )


def run_of(path: Path) -> Path:
    """The folder of the run that a checkpoint, or the run itself, is given of."""
    return path.parent.parent if path.name.startswith("step-") else path


def _require_same_settings(long: Recipe, recipe: Recipe, run: Path) -> None:
    differing = differing_keys(long, recipe, _OWN)
    if recipe.corpus not in (long.corpus, str(run / "tokens")):
        differing = ["corpus", *differing]
    if differing:
        raise RecipeError(
            f"{run} was begun with other settings: {', '.join(differing)}. Decay with the same ones "
            f"(bertsmith pretrain {run / 'recipe.toml'} decay_from={recipe.decay_from} steps=… out=…)."
        )
