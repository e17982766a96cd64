"""The folder of a run: opened once, or again with the same settings; and where a run begins from another
run's checkpoint.

out/recipe.toml    every setting       out/data.json    the SHA-256 of what it is made from
out/given.json     names of settings of which it matters that somebody gave them
"""

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from bertsmith.data.store import TokenStore
from bertsmith.errors import RecipeError
from bertsmith.files import atomic_write, make_folder, read_json, write_json
from bertsmith.text.tokens.tokenizer import Tokenizer
from bertsmith.training.checkpoint import read_progress
from bertsmith.training.finetune_recipe import MADE_FROM_EPOCHS, FinetuneRecipe
from bertsmith.training.recipe import Recipe, read_recipe
from bertsmith.training.settings import RunSettings, read_toml
from bertsmith.validation import check

_NO_FOLDER = "The run needs a folder: out=runs/NAME."
_DATA = "data.json"  # the SHA-256 of each labelled file
_GIVEN = "given.json"  # names of given settings of which it matters that they were
# What tells the folders of other things, and what a run writes that may stand there without one.
_OTHERS = {
    "config.json": "a model",
    "manifest.json": "a corpus or of tokens",
    "index.json": "an index",
    "vocab.txt": "a tokenizer",
}
_REPLACED = ("model", "results.json", "report.html", "predictions", "log.jsonl")
# What may change between the parts of a run or a search: none of it changes the text, the model or the
# schedule. Other hardware and other micro-batches compute the same steps, but to rounding only, with other
# draws of dropout.
MAY_CHANGE: dict[str, Any] = {
    **dict.fromkeys(("out", "guard", "hardware", "checkpoint", "log_every", "micro_batch_tokens"), True),
    "data": {"micro_batch_tokens"},
}
# What is the own of a run that begins from the stable phase of another (`decay_from`), to do the decay
# alone: one long run, and from it a model for any budget. All else decides what the weights, the moments and
# the place in the text mean.
_OWN: dict[str, Any] = {
    **dict.fromkeys(("decay_from", "steps", "hours", "out", "corpus", "masking"), True),
    **dict.fromkeys(("evaluation", "checkpoint", "guard", "hardware", "log_every"), True),
    "optimizer": {"schedule", "warmup", "decay"},
    "data": {"micro_batch_tokens", "sequence_shares"},
}


def open_run(recipe: Recipe, resume: bool) -> Path:
    """The run's folder, which is not made yet. Raises RecipeError when it holds another run."""
    if not recipe.out:
        raise RecipeError(_NO_FOLDER)
    again = f"bertsmith pretrain {Path(recipe.out) / 'recipe.toml'} --resume"
    return open_folder(Path(recipe.out), recipe, lambda path: read_recipe(str(path), []), resume, again)


def require_its_own_folder(file: Path, recipe: Recipe) -> None:
    """Raises RecipeError where a recipe that is to be resumed lies in a run's folder, but names another as
    its `out`: since the run was moved, another one would begin there, from step 0.
    """
    folder = file.parent
    if recipe.out and (folder / "checkpoints").is_dir() and folder.resolve() != Path(recipe.out).resolve():
        raise RecipeError(
            f"{file} lies beside the checkpoints of a run, but names {recipe.out} as its folder. Give "
            f"out={folder} to go on with the run there, or out={recipe.out} to use that folder."
        )


def as_begun(recipe: Recipe, resume: bool) -> Recipe:
    """A run that goes on keeps the checkpoint it was begun from, where `decay_from` names its run alone."""
    stored = Path(recipe.out or "") / "recipe.toml"
    if resume and recipe.out and recipe.decay_from and stored.exists():
        begun_from = read_recipe(str(stored), []).decay_from
        if begun_from is not None and Path(begun_from).is_relative_to(recipe.decay_from):
            return recipe.model_copy(update={"decay_from": begun_from})
    return recipe


def open_finetuning(recipe: FinetuneRecipe, resume: bool) -> FinetuneRecipe:
    """The same for a fine-tuning run. Returns its recipe: one that goes on keeps what was chosen for it."""

    if not recipe.out:  # as a path it would be the current folder
        raise RecipeError(_NO_FOLDER)
    path = Path(recipe.out) / "recipe.toml"
    if resume and path.exists():
        recipe = recipe.chosen_as(_stored_finetuning(path))
    again = "the same command with --resume"
    open_folder(Path(recipe.out), recipe, _stored_finetuning, resume, again)
    return recipe


def given_when_begun(recipe: FinetuneRecipe, resume: bool) -> FinetuneRecipe:
    """A run that goes on has the settings that were given when it began, though their values be those of
    defaults: without them few rows would judge in turn, or epochs and rates be chosen. Raises RecipeError for
    such a setting that is given now alone.
    """
    out = Path(recipe.out or "")
    if not resume or not recipe.out or not (out / _GIVEN).exists() or not (out / "recipe.toml").exists():
        return recipe
    names = read_json(out / _GIVEN)
    if new := sorted(recipe.given.difference(names)):
        raise RecipeError(
            f"{recipe.out} was begun without {', '.join(new)}. Resume without it, or choose another folder."
        )
    return recipe.given_as(_stored_finetuning(out / "recipe.toml"), names)


def _stored_finetuning(path: Path) -> FinetuneRecipe:
    return check(FinetuneRecipe, read_toml(path, str(path)), str(path))


def open_folder(
    out: Path, recipe: RunSettings, read: Callable[[Path], RunSettings], resume: bool, again: str
) -> Path:
    """The folder of a run by any kind of recipe, which `read` reads; `again` says how to go on with it."""
    if out.is_file():
        raise RecipeError(f"{out} is a file. Choose a folder for the run.")
    stored = out / "recipe.toml"
    if not stored.exists():
        require_unused(out)
        return out
    if not resume:
        raise RecipeError(f"{out} already holds a run. Go on with it by --resume, or take another folder.")
    differing = differing_keys(read(stored), recipe, MAY_CHANGE)
    if differing:
        raise RecipeError(
            f"{out} was begun with other settings: {', '.join(differing)}. Resume with the same ones "
            f"({again}), or choose another folder."
        )
    return out


def require_unused(out: Path) -> None:
    """Raises RecipeError when the folder of a run that is to begin is another thing, such as the model that
    the run learns from, or has what the run would replace.
    """
    for name, what in _OTHERS.items():
        if (out / name).exists():
            raise RecipeError(
                f"{out} is the folder of {what}: the run would write among its files. Choose another."
            )
    for name in _REPLACED:
        if (out / name).exists():
            raise RecipeError(
                f"{out / name} exists, but {out} holds no run: it would be replaced. Choose another folder."
            )


def require_same_data(out: Path, hashes: dict[str, str]) -> None:
    """Raises RecipeError when a labelled file is another one than when the run was begun."""
    stored = out / _DATA
    if stored.exists():
        require_unchanged(read_json(stored), hashes, f"the run in {out}")


def require_unchanged(begun: dict[str, str], hashes: dict[str, str], what: str) -> None:
    """The same for `what` was begun with files of these hashes: what was done counts rows of the old ones."""
    changed = [name for name in hashes if begun.get(name) != hashes[name]]
    if changed:
        raise RecipeError(
            f"The file given as {', '.join(changed)} has changed since {what} was begun. Put the old one "
            "back to go on, or choose another folder."
        )


def begin_folder(
    recipe: RunSettings, out: Path, hashes: dict[str, str], given: Collection[str] | None = None
) -> None:
    """What is trained by and on: the recipe, which of its settings were `given`, and what its files were."""
    if given is not None:
        make_folder(out)
        write_json(out / _GIVEN, sorted(given))
    write_recipe(recipe, out)
    write_data_hashes(out, hashes)


def write_data_hashes(out: Path, hashes: dict[str, str]) -> None:
    """What a run is made from, for `require_same_data`."""
    make_folder(out)
    write_json(out / _DATA, hashes)


def write_recipe(
    recipe: RunSettings,
    out: Path,
    name: str = "recipe.toml",
    header: str = "# The resolved recipe of this run.\n",
) -> None:
    """The resolved recipe, every setting written out but those that are made from its epochs, where it has
    such.
    """
    import tomli_w

    made = set(MADE_FROM_EPOCHS) if "epochs" in type(recipe).model_fields else set()
    text = tomli_w.dumps(recipe.model_dump(mode="json", exclude_none=True, exclude=made))
    make_folder(out)
    atomic_write(out / name, header + text)


def differing_keys(old: RunSettings, new: RunSettings, may_change: dict[str, Any]) -> list[str]:
    """Dotted names of the settings in which two runs differ, in the recipe's order."""
    one, other = (each.model_dump(mode="json", exclude=may_change) for each in (old, new))  # tuples as lists
    return differing_names(one, other)


def differing_names(old: dict[str, Any], new: dict[str, Any], section: str = "") -> list[str]:
    """The same of settings as JSON has them; `section` stands before each name."""
    keys: list[str] = []
    for name in [*old, *(name for name in new if name not in old)]:
        value, other = old.get(name), new.get(name)
        if isinstance(value, dict) and isinstance(other, dict):
            keys += differing_names(value, other, f"{section}{name}.")
        elif value != other:
            keys.append(section + name)
    return keys


# -- a run that begins from the checkpoint of another --------------------------------------------------


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
