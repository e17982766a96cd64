"""The folder of a run: opening a new one or one to resume, and checking that settings and data are those the
run was begun with. At the end, runs that begin from another run's checkpoint.

out/recipe.toml    every setting       out/data.json    the SHA-256 of each file of data
out/given.json     the names of the settings that the user gave, since some choices depend on it
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
_DATA = "data.json"  # the SHA-256 of each file of data, by its setting's name
_GIVEN = "given.json"  # the names of settings that the user gave
# Files that show that a folder is something else, and files of a run that may be in a folder without a
# recipe.
_FOREIGN_FILES = {
    "config.json": "a model",
    "manifest.json": "a corpus or of tokens",
    "index.json": "an index",
    "vocab.txt": "a tokenizer",
}
_RUN_OUTPUTS = ("model", "results.json", "report.html", "predictions", "log.jsonl")
# Settings that may change when a run or a search is resumed: none of them changes the text, the model or the
# schedule. Other hardware and other micro-batches compute the same steps up to rounding, with other draws of
# dropout.
MAY_CHANGE: dict[str, Any] = {
    **dict.fromkeys(("out", "guard", "hardware", "checkpoint", "log_every", "trackers"), True),
    "micro_batch_tokens": True,
    "data": {"micro_batch_tokens"},
}
# Settings in which a run that only does the decay may differ from the long run whose stable phase it begins
# from (`decay_from`): one long run gives a model for any budget. All other settings decide what the weights,
# the moments and the position in the text mean.
_DECAY_SETTINGS: dict[str, Any] = {
    **dict.fromkeys(("decay_from", "steps", "hours", "out", "corpus", "masking"), True),
    **dict.fromkeys(("evaluation", "checkpoint", "guard", "hardware", "log_every", "trackers"), True),
    "optimizer": {"schedule", "warmup", "decay"},
    "data": {"micro_batch_tokens", "sequence_shares"},
}


def open_run(recipe: Recipe, resume: bool) -> Path:
    """Returns the folder of a pre-training run, which isn't made yet. Raises RecipeError when it holds
    another run, or, with `resume`, one that was begun with other settings.
    """
    if not recipe.out:
        raise RecipeError(_NO_FOLDER)
    again = f"bertsmith pretrain {Path(recipe.out) / 'recipe.toml'} --resume"
    return open_folder(Path(recipe.out), recipe, lambda path: read_recipe(str(path), []), resume, again)


def require_its_own_folder(file: Path, recipe: Recipe) -> None:
    """Raises RecipeError when the recipe's `file` lies in the folder of a run, but its `out` is another
    folder, as after the run was moved: resuming would begin a new run there, from step 0.
    """
    folder = file.parent
    if recipe.out and (folder / "checkpoints").is_dir() and folder.resolve() != Path(recipe.out).resolve():
        raise RecipeError(
            f"{file} lies beside the checkpoints of a run, but names {recipe.out} as its folder. Give "
            f"out={folder} to go on with the run there, or out={recipe.out} to use that folder."
        )


def restore_decay_start(recipe: Recipe, resume: bool) -> Recipe:
    """The recipe with the checkpoint that the run in `out` began from, when it is resumed and `decay_from`
    names only the run of that checkpoint. Otherwise the recipe as it is.
    """
    recipe_file = Path(recipe.out or "") / "recipe.toml"
    if resume and recipe.out and recipe.decay_from and recipe_file.exists():
        stored_start = read_recipe(str(recipe_file), []).decay_from
        if stored_start is not None and Path(stored_start).is_relative_to(recipe.decay_from):
            return recipe.model_copy(update={"decay_from": stored_start})
    return recipe


def open_finetuning(recipe: FinetuneRecipe, resume: bool) -> FinetuneRecipe:
    """Checks the folder of a fine-tuning run as `open_run` does, and returns its recipe; that of a resumed
    run has the settings that were chosen for it when it began.
    """
    if not recipe.out:  # as a path it would be the current folder
        raise RecipeError(_NO_FOLDER)
    path = Path(recipe.out) / "recipe.toml"
    if resume and path.exists():
        recipe = recipe.with_choices_of(_read_stored_finetuning(path))
    again = "the same command with --resume"
    open_folder(Path(recipe.out), recipe, _read_stored_finetuning, resume, again)
    return recipe


def restore_given_settings(recipe: FinetuneRecipe, resume: bool) -> FinetuneRecipe:
    """The recipe of a resumed run with the settings counted as given that were given when it began. A given
    setting turns off a choice (of method, epochs, learning rates) even if its value is the default. Raises
    RecipeError for a setting that is given now and wasn't then.
    """
    out = Path(recipe.out or "")
    if not resume or not recipe.out or not (out / _GIVEN).exists() or not (out / "recipe.toml").exists():
        return recipe
    names = read_json(out / _GIVEN)
    if new := sorted(recipe.given.difference(names)):
        raise RecipeError(
            f"{recipe.out} was begun without {', '.join(new)}. Resume without it, or choose another folder."
        )
    return recipe.with_given(_read_stored_finetuning(out / "recipe.toml"), names)


def _read_stored_finetuning(path: Path) -> FinetuneRecipe:
    return check(FinetuneRecipe, read_toml(path, str(path)), str(path))


def open_folder(
    out: Path, recipe: RunSettings, read: Callable[[Path], RunSettings], resume: bool, again: str
) -> Path:
    """Returns the folder `out` of a run by any kind of recipe, after checking that it is unused, or, with
    `resume`, was begun with the same settings. Raises RecipeError otherwise.

    read: reads the recipe stored in the folder. again: the command that resumes the run, for the message.
    """
    if out.is_file():
        raise RecipeError(f"{out} is a file. Choose a folder for the run.")
    recipe_file = out / "recipe.toml"
    if not recipe_file.exists():
        require_unused(out)
        return out
    if not resume:
        raise RecipeError(f"{out} already holds a run. Go on with it by --resume, or take another folder.")
    differing = find_differing_settings(read(recipe_file), recipe, MAY_CHANGE)
    if differing:
        raise RecipeError(
            f"{out} was begun with other settings: {', '.join(differing)}. Resume with the same ones "
            f"({again}), or choose another folder."
        )
    return out


def require_unused(out: Path) -> None:
    """Raises RecipeError when the folder of a new run is something else, such as the model that the run
    starts from, or has files that the run would replace.
    """
    for name, content in _FOREIGN_FILES.items():
        if (out / name).exists():
            raise RecipeError(
                f"{out} is the folder of {content}: the run would write among its files. Choose another."
            )
    for name in _RUN_OUTPUTS:
        if (out / name).exists():
            raise RecipeError(
                f"{out / name} exists, but {out} holds no run: it would be replaced. Choose another folder."
            )


def require_same_data(out: Path, hashes: dict[str, str]) -> None:
    """Raises RecipeError when a file of data has changed since the run in `out` was begun. `hashes` are the
    SHA-256 of all its files now, by their setting's name.
    """
    data_file = out / _DATA
    if data_file.exists():
        require_unchanged(read_json(data_file), hashes, f"the run in {out}")


def require_unchanged(old_hashes: dict[str, str], hashes: dict[str, str], what: str) -> None:
    """Raises RecipeError when a file's hash differs from the one in `old_hashes`, with which `what` was
    begun, or when a file was added or removed: its results and positions are about the old files.
    """
    names = dict.fromkeys([*hashes, *old_hashes])  # of fewer files in a folder, the last number is missing
    changed = [name for name in names if old_hashes.get(name) != hashes.get(name)]
    if changed:
        raise RecipeError(
            f"The file given as {', '.join(changed)} has changed since {what} was begun. Put the old one "
            "back to go on, or choose another folder."
        )


def begin_folder(
    recipe: RunSettings, out: Path, hashes: dict[str, str], given: Collection[str] | None = None
) -> None:
    """Writes recipe.toml, data.json (the `hashes`) and, unless None, given.json into the run's folder
    `out`.
    """
    if given is not None:
        make_folder(out)
        write_json(out / _GIVEN, sorted(given))
    write_recipe(recipe, out)
    write_data_hashes(out, hashes)


def write_data_hashes(out: Path, hashes: dict[str, str]) -> None:
    """Writes the SHA-256 of the data files, which `require_same_data` checks when the run is resumed."""
    make_folder(out)
    write_json(out / _DATA, hashes)


def write_recipe(
    recipe: RunSettings,
    out: Path,
    name: str = "recipe.toml",
    header: str = "# The resolved recipe of this run.\n",
) -> None:
    """Writes the resolved recipe with all its settings, except those that are derived from its epochs, to the
    file `name` in `out`, below the comment `header`.
    """
    import tomli_w

    derived = set(MADE_FROM_EPOCHS) if "epochs" in type(recipe).model_fields else set()
    text = tomli_w.dumps(recipe.model_dump(mode="json", exclude_none=True, exclude=derived))
    make_folder(out)
    atomic_write(out / name, header + text)


def find_differing_settings(old: RunSettings, new: RunSettings, may_change: dict[str, Any]) -> list[str]:
    """Returns the dotted names of the settings in which two runs differ, in the recipe's order. `may_change`
    are settings to leave out, as pydantic's `exclude` has them.
    """
    # as JSON, which has lists for tuples
    old_values = old.model_dump(mode="json", exclude=may_change)
    new_values = new.model_dump(mode="json", exclude=may_change)
    return find_differing_names(old_values, new_values)


def find_differing_names(old: dict[str, Any], new: dict[str, Any], section: str = "") -> list[str]:
    """Returns the dotted names in which two dictionaries of settings differ; `section` is put before each."""
    keys: list[str] = []
    for name in [*old, *(name for name in new if name not in old)]:
        value, new_value = old.get(name), new.get(name)
        if isinstance(value, dict) and isinstance(new_value, dict):
            keys += find_differing_names(value, new_value, f"{section}{name}.")
        elif value != new_value:
            keys.append(section + name)
    return keys


# -- a run that begins from the checkpoint of another --------------------------------------------------


def resolve_decay_start(recipe: Recipe, out: Path) -> Recipe:
    """The recipe with the checkpoint to begin from as `decay_from`, where that names a run. Unchanged once
    `out` has checkpoints of its own.

    Raises RecipeError and ModelError as `find_stable_checkpoint` does.
    """
    if recipe.decay_from is None or any((out / "checkpoints").glob("step-*")):
        return recipe
    return recipe.model_copy(update={"decay_from": str(find_stable_checkpoint(recipe))})


def skip_earlier_phases(recipe: Recipe) -> Recipe:
    """The recipe of a decay with the share 0 for the phases of sequence length before its checkpoint's: their
    shares are added to that of the phase in which the decay begins. Unchanged when `decay_from` isn't on this
    machine.

    Raises RecipeError and ModelError as `find_stable_checkpoint` does.
    """
    if recipe.decay_from is None or not Path(recipe.decay_from).exists():
        return recipe
    first, shares = read_progress(find_stable_checkpoint(recipe)).cursor.phase, recipe.data.sequence_shares
    new_shares = (*(0.0 for _ in shares[:first]), sum(shares[: first + 1]), *shares[first + 1 :])
    return recipe.model_copy(update={"data": recipe.data.model_copy(update={"sequence_shares": new_shares})})


def find_stable_checkpoint(recipe: Recipe) -> Path:
    """Returns the folder of the checkpoint that `decay_from` names, or of the newest checkpoint in the stable
    phase of the run that it names.

    Raises RecipeError when there is none in the stable phase of a run with the same settings, and ModelError
    when it is damaged.
    """
    path = Path(recipe.decay_from or "")
    run = find_run_folder(path)
    if not (run / "recipe.toml").is_file():
        raise RecipeError(
            f"decay_from = {path} is neither the folder of a run nor a checkpoint in one "
            "(RUN/checkpoints/step-00001000)."
        )
    stable_recipe = read_recipe(str(run / "recipe.toml"), [])
    _require_same_settings(stable_recipe, recipe, run)
    checkpoints = [path] if run != path else sorted((run / "checkpoints").glob("step-*"), reverse=True)
    for checkpoint in checkpoints:
        progress = read_progress(checkpoint)
        if stable_recipe.schedule.is_stable(stable_recipe.share_done(progress.step, progress.elapsed)):
            return checkpoint
    available = ", ".join(checkpoint.name for checkpoint in reversed(checkpoints)) or "none"
    raise RecipeError(
        f"decay_from = {path} names no checkpoint of a stable phase (found: {available}). There is one "
        "between the end of the warm-up and the beginning of the decay of a run with optimizer.schedule=wsd; "
        "checkpoint.keep says how many of the newest a run keeps."
    )


def require_same_text(recipe: Recipe, tokenizer: Tokenizer, train: TokenStore) -> None:
    """Checks that the decay's text is that of the run it begins from, whose cursor is a position in it.
    Raises RecipeError when that run's own token store is of another corpus, StoreError when of another
    tokenizer.
    """
    if recipe.decay_from is None:
        return
    store = find_run_folder(Path(recipe.decay_from)) / "tokens"
    if not (store / "train").is_dir():
        return
    if TokenStore.open(store / "train", tokenizer).corpus_sha256 != train.corpus_sha256:
        raise RecipeError(
            f"decay_from = {recipe.decay_from} was trained on another corpus than corpus = {recipe.corpus} "
            f"is now. Its text is still there: corpus={store}."
        )


def find_run_folder(path: Path) -> Path:
    """The folder of the run that `path` is a checkpoint of; `path` itself when it is no checkpoint."""
    is_checkpoint = path.name.startswith("step-") and path.parent.name == "checkpoints"
    return path.parent.parent if is_checkpoint else path


def _require_same_settings(stable_recipe: Recipe, recipe: Recipe, run: Path) -> None:
    differing = find_differing_settings(stable_recipe, recipe, _DECAY_SETTINGS)
    if recipe.corpus not in (stable_recipe.corpus, str(run / "tokens")):
        differing = ["corpus", *differing]
    if differing:
        raise RecipeError(
            f"{run} was begun with other settings: {', '.join(differing)}. Decay with the same ones "
            f"(bertsmith pretrain {run / 'recipe.toml'} decay_from={recipe.decay_from} steps=… out=…)."
        )
