"""A fine-tuned model's answers become a smaller model: labelled rows and texts → answers → student → figures.

out/recipe.toml    the resolved recipe      out/student/      the student's run: log, checkpoints, best
out/answers/       what the teacher says    out/alone/        the run of the same student on the labels alone
out/results.json   every figure             out/model/        the student, which transformers opens too
out/report.html    the same to look at
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from bertsmith.compression.distilling.distil_data import data_hashes
from bertsmith.compression.distilling.distil_measuring import agreements, measure, saving_of
from bertsmith.compression.distilling.distil_recipe import DistilRecipe, make_distil_recipe
from bertsmith.compression.distilling.distil_report import write_distil_report
from bertsmith.compression.distilling.distil_results import DistilResults, write_distil_results
from bertsmith.compression.distilling.distil_session import (
    STUDENT,
    DistilSession,
    Heard,
    Show,
    Work,
    answers_to_learn,
    hear,
    learn_alone,
    restored,
    silent,
    train_student,
)
from bertsmith.compression.distilling.teacher import hash_of
from bertsmith.door import door, either, flag, function, kind, optional, place, several, text
from bertsmith.model.cpu.process import keep_memory
from bertsmith.tasks.checkpoints.task_checkpoint import save_task_model
from bertsmith.tasks.golden.records import write_golden
from bertsmith.tasks.registry import find_task
from bertsmith.tasks.task import Outputs
from bertsmith.tasks.task_model import TaskModel
from bertsmith.training.finetuning.results import Restart, Results
from bertsmith.training.log import json_value
from bertsmith.training.machine import wait
from bertsmith.training.resources import require_room_to_save
from bertsmith.training.run import Run
from bertsmith.training.run_folder import open_folder, require_same_data
from bertsmith.training.settings import read_toml
from bertsmith.validation import check


@dataclass(frozen=True)
class DistilResult:
    """Where the student is, and every figure about it."""

    model: Path
    report: Path
    results: DistilResults


@door(
    teacher=several(place),
    overrides=several(text),
    out=place,
    texts=several(place),
    train=optional(either(several(place), place)),
    dev=optional(place),
    test=optional(place),
    cache=optional(place),
    resume=flag,
    console=optional(kind(Console)),
    show=optional(function),
)
def distil_task(
    teacher: Sequence[str | Path],
    *overrides: str,
    out: str | Path,
    texts: Sequence[str | Path] = (),
    train: str | Path | Sequence[str | Path] | None = None,
    dev: str | Path | None = None,
    test: str | Path | None = None,
    cache: str | Path | None = None,
    resume: bool = False,
    console: Console | None = None,
    show: Show | None = None,
    **values: Any,
) -> DistilResult:
    """Teaches a smaller model what fine-tuned models, several together, say of `texts` and of the rows of
    `train`, a file, a folder of them, or several, whose labels it learns too.

    Settings are `dotted.key=value` overrides, or keyword arguments for those of the top level. Answers are
    kept in `cache`, by default `out`/answers, and found again there by any distillation of the same teachers
    and texts. With `resume`, goes on where a run was interrupted. `show` makes a progress bar of a title.
    Raises InputError, RecipeError and ModelError before anything is trained.
    """
    files = {"dev": dev, "test": test, "out": out}
    given = {name: str(path) for name, path in files.items() if path is not None}
    several_given = {"teacher": list(map(str, teacher)), "texts": list(map(str, texts))}
    several_given["train"] = [str(train)] if isinstance(train, str | Path) else list(map(str, train or ()))
    more = {
        name: str(value) if isinstance(value, Path) else value
        for name, value in values.items()
        if value is not None
    }
    found: dict[str, Any] = several_given | given | more
    recipe = make_distil_recipe(found, list(overrides))
    with Run.open(lambda: open_distilling(recipe, resume), resume, console) as run:
        place_of_answers = Path(cache) if cache else run.out / "answers"
        session = DistilSession.open(run.recipe, run.machine, place_of_answers)
        return _run(Work(run, session, show or silent))


def open_distilling(recipe: DistilRecipe, resume: bool) -> DistilRecipe:
    """Raises RecipeError when the folder holds another run. One that goes on keeps what was chosen for it."""

    def stored(path: Path) -> DistilRecipe:
        return check(DistilRecipe, read_toml(path, str(path)), str(path))

    path = Path(recipe.out) / "recipe.toml"
    if resume and path.exists():
        recipe = recipe.chosen_as(stored(path))
    open_folder(Path(recipe.out), recipe, stored, resume, "the same command with --resume")
    return recipe


def _run(work: Work) -> DistilResult:
    keep_memory()
    session, out, first = work.session, work.run.out, work.run.is_first
    recipe = work.run.recipe
    steps = session.steps_per_epoch(recipe)
    recipe = recipe.completed(session.config.hidden_size, session.config.num_hidden_layers, steps)
    recipe.as_finetuning().resolved(steps, recipe.seed)  # refuses, before anything is written
    require_room_to_save(session.empty(recipe), out)
    hashes = data_hashes(recipe) | {f"teacher {n}": each.sha256 for n, each in enumerate(session.teachers, 1)}
    if recipe.student is not None:
        hashes["student"] = hash_of(session.source.folder)
    require_same_data(out, hashes)
    work.run.begin(recipe, hashes)
    answers = answers_to_learn(work)
    splits = hear(work)
    student, restart = _learn(recipe, work, answers, splits)
    results = measure(work, student, restart, splits)
    if first:
        provenance = _provenance(recipe, session, results, hashes)
        save_task_model(out / "model", student, session.task, session.tokenizer, provenance, overwrite=True)
        own = None if recipe.task is None else find_task(recipe.task)  # as it is opened, not as it was taught
        write_golden(out / "model", own)
    wait()
    alone = learn_alone(recipe, work, splits) if recipe.compare and session.data.labelled else {}
    whole = DistilResults(
        student=results,
        teacher={name: each.teacher for name, each in splits.items() if each.teacher},
        alone=alone,
        agreement=agreements(session.task, results, splits),
        saving=saving_of(work, out / "model", splits["dev"].split),
        texts=len(session.data.texts),
        labels_of_teacher=session.data.dev_is_unlabelled,
    )
    if first:
        write_distil_results(out, whole)
        write_distil_report(out, recipe, whole, hashes)
    return DistilResult(out / "model", out / "report.html", whole)


def _learn(
    recipe: DistilRecipe, work: Work, answers: list[Outputs | None], splits: Mapping[str, Heard]
) -> tuple[TaskModel, Restart]:
    """The student, by its best weights on dev."""
    session = work.session
    taught, examples = session.taught(answers, recipe.soft_weight)
    model = session.begin(recipe, taught, examples)
    restart = train_student(recipe, work, taught, model, examples, splits["dev"].split, STUDENT)
    return restored(session.task, session.empty(recipe), work, STUDENT), restart


def _provenance(
    recipe: DistilRecipe, session: DistilSession, results: Results, hashes: Mapping[str, str]
) -> dict[str, Any]:
    """Where the student comes from: recipe, teachers by their hash, metrics, the data's hashes."""
    return {
        "recipe": json.loads(recipe.model_dump_json(exclude_none=True))
        | {"dev_share": session.data.dev_share},
        "teachers": [{"model": str(each.folder), "sha256": each.sha256} for each in session.teachers],
        "layers": [layer + 1 for layer in session.source.layers],
        "metrics": json_value({name: each.model for name, each in results.evaluations.items()}),
        "sha256": dict(hashes),
        "columns": dict(session.data.columns),
        "method": "distil",
        "judged_by": results.judge,
    }
