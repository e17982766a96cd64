"""The folder of a search: opened once, or again with the same settings; its trials, and the best of them."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bertsmith.errors import RecipeError
from bertsmith.files import atomic_write, make_folder, read_json, write_json
from bertsmith.training.finetune_recipe import MADE_FROM_EPOCHS, FinetuneRecipe
from bertsmith.training.finetuning.best import WORST
from bertsmith.training.finetuning.report import command
from bertsmith.training.log import json_value
from bertsmith.training.run_folder import MAY_CHANGE, differing_names, require_unchanged, require_unused
from bertsmith.training.tuning.space import Search
from bertsmith.training.tuning.trials import Trial, leading_trial

SEARCH_FILE, TRIALS_FILE, BEST_FILE = "search.json", "trials.json", "best.toml"
_HASHES = "sha256"  # in search.json, of each labelled file
_GIVEN = "given"  # beside it, the names of the settings that the user gave


def open_search(search: Search, out: Path, resume: bool) -> list[Trial]:
    """The trials that are over. Raises RecipeError when the folder holds another search, or any unasked."""
    if out.is_file():
        raise RecipeError(f"{out} is a file. Choose a folder for the search.")
    stored = out / SEARCH_FILE
    if not stored.exists():
        require_unused(out)
        return []
    if not resume:
        raise RecipeError(f"{out} already holds a search. Go on with it by --resume, or take another folder.")
    new = _identity(search)
    old = {name: value for name, value in read_json(stored).items() if name in new}
    given = (set(old.pop(_GIVEN, ())) ^ set(new.pop(_GIVEN))) & search.decided_by_giving
    differing = dict.fromkeys([*differing_names(old, new), *sorted(given)])
    if differing:
        raise RecipeError(
            f"{out} was begun with other settings: {', '.join(differing)}. Resume with the same ones, or "
            "choose another folder."
        )
    path = out / TRIALS_FILE
    return [_trial(record) for record in read_json(path)] if path.exists() else []


def begin_search(search: Search, out: Path, hashes: dict[str, str]) -> None:
    """Makes the folder, and notes there what is searched, on files of these hashes.

    Raises RecipeError when the search goes on and a file is another one: trials on different rows can't be
    compared.
    """
    stored = out / SEARCH_FILE
    if stored.exists():
        require_unchanged(read_json(stored).get(_HASHES, hashes), hashes, f"the search in {out}")
    make_folder(out)
    write_json(stored, _identity(search) | {_HASHES: hashes})


def keep_trials(out: Path, trials: Sequence[Trial]) -> None:
    """Writes all trials, and removes weights: those of the leading one are enough. Logs stay."""
    write_json(out / TRIALS_FILE, json_value([asdict(trial) for trial in trials]))
    leading = leading_trial(trials)
    for trial in trials:
        if trial != leading:
            for name in ("best/weights.safetensors", "choice.safetensors"):
                (trial_folder(out, trial.number) / name).unlink(missing_ok=True)


def write_best_recipe(out: Path, recipe: FinetuneRecipe, best: Trial, judge: str) -> None:
    """best.toml, its header saying what judged it, and how to train it as a run of its own."""
    import tomli_w

    score = f"{best.score:.4f} {'on' if judge == 'dev' else 'by'} {judge}"
    header = f"# Trial {best.number}, {score}. To train it again:\n# {command(recipe)}\n"
    text = tomli_w.dumps(recipe.model_dump(mode="json", exclude_none=True, exclude={*MADE_FROM_EPOCHS}))
    atomic_write(out / BEST_FILE, header + text)


def trial_folder(out: Path, number: int) -> Path:
    return out / "trials" / str(number)


def _trial(record: dict[str, Any]) -> Trial:
    """As `keep_trials` wrote it, where an evaluation without a score is null."""
    scores = [WORST if score is None else score for score in record["scores"]]
    return Trial(**record | {"scores": scores})


def _identity(search: Search) -> dict[str, Any]:
    """What must be the same when a search goes on: all but the number of trials and what a run may change."""
    recipe = json.loads(search.recipe.model_dump_json(exclude=MAY_CHANGE))
    settings = json.loads(search.settings.model_dump_json(exclude={"trials"}))
    return {**recipe, **settings, _GIVEN: sorted(search.fixed)}
