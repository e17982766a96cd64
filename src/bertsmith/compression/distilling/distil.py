"""Distils a model into a smaller one: recipe → teacher and texts → student → training → results → run folder.

`_distil` has the steps that all distillations share. What differs is in the two classes of `Distiller`:
fine-tuned models, or a file of answers, teach a task (tasks/distiller.py); an encoder teaches its hidden
states and vectors on raw text (encoders/distiller.py). Both files list the contents of their run folders.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from rich.console import Console

from bertsmith.argument_checks import (
    any_of,
    check_arguments,
    check_flag,
    check_function,
    check_path,
    check_text,
    instance_of,
    list_of,
    optional,
)
from bertsmith.compression.distilling.encoders.distiller import EncoderDistiller
from bertsmith.compression.distilling.recipes import (
    DistilRecipe,
    EncoderDistilRecipe,
    distil_values,
    make_distil_recipe,
    make_encoder_recipe,
)
from bertsmith.compression.distilling.tasks.distiller import TaskDistiller
from bertsmith.compression.distilling.tasks.results import DistilResults
from bertsmith.model.cpu.process import keep_freed_memory
from bertsmith.progress import Show, silent
from bertsmith.tasks.golden.records import write_golden
from bertsmith.tasks.task import Task
from bertsmith.training.machine import wait_for_ranks
from bertsmith.training.run import Run
from bertsmith.training.run_folder import open_folder
from bertsmith.training.settings import RunSettings, read_toml
from bertsmith.validation import check

Student = TypeVar("Student")
Results = TypeVar("Results", covariant=True)


class Distiller(Protocol[Student, Results]):
    """What one way of distilling does in the steps of `_distil`. An open distiller has read and checked its
    teacher and its texts.
    """

    @property
    def recipe(self) -> RunSettings:
        """The recipe, with values chosen for the settings that weren't given."""

    @property
    def hashes(self) -> dict[str, str]:
        """The SHA-256 of every input that the student is made from, by name."""

    @property
    def task_class(self) -> type[Task[Any]] | None:
        """The task class to open the saved student with; None where the model's folder names it."""

    def train(self) -> Student:
        """Trains the student to the end and measures it."""

    def save(self, student: Student, folder: Path) -> None:
        """Writes the student with its provenance to `folder`."""

    def report(self, student: Student) -> Results:
        """Returns what was measured; the first process writes the report. Labelled rows may first train the
        same student without its teacher, for comparison.
        """


@dataclass(frozen=True)
class DistilResult:
    """The student's folder, the report's file, and every score and cost that was measured."""

    model: Path
    report: Path
    results: DistilResults


@check_arguments(
    teacher=list_of(check_path),
    overrides=list_of(check_text),
    out=check_path,
    texts=list_of(check_path),
    train=optional(any_of(list_of(check_path), check_path)),
    dev=optional(check_path),
    test=optional(check_path),
    cache=optional(check_path),
    resume=check_flag,
    console=optional(instance_of(Console)),
    show=optional(check_function),
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
    """Trains a smaller model on the outputs of one or several fine-tuned models for `texts` and for the rows
    of `train` (a file, a folder of files, or several), whose labels it learns too. The weights that are
    best on `dev` are kept; without that file, some rows are held out for it. `test` is measured once, at the
    end.

    Settings are `dotted.key=value` overrides, or keyword arguments for those of the top level. The teachers'
    outputs are cached in `cache`, by default `out`/answers, where any distillation of the same teachers and
    texts finds them. `resume` continues an interrupted run. `show` opens a progress bar with a title. Raises
    InputError, RecipeError and ModelError before anything is trained.
    """
    recipe_values = distil_values(teacher, texts, train, values, dev=dev, test=test, out=out)
    recipe = make_distil_recipe(recipe_values, list(overrides))
    with Run.open(lambda: open_distil_folder(recipe, resume), resume, console) as run:
        keep_freed_memory()
        answers_folder = Path(cache) if cache else run.out / "answers"
        results = _distil(run, TaskDistiller.open(run, answers_folder, show or silent))
        return DistilResult(run.out / "model", run.out / "report.html", results)


def open_distil_folder(recipe: DistilRecipe, resume: bool) -> DistilRecipe:
    """Opens the run's folder and returns the recipe; a resumed run keeps the values that were chosen for it.

    Raises RecipeError where the folder holds another run.
    """

    def read_recipe(path: Path) -> DistilRecipe:
        return check(DistilRecipe, read_toml(path, str(path)), str(path))

    path = Path(recipe.out) / "recipe.toml"
    if resume and path.exists():
        recipe = recipe.with_choices_of(read_recipe(path))
    open_folder(Path(recipe.out), recipe, read_recipe, resume, "the same command with --resume")
    return recipe


@dataclass(frozen=True)
class EncoderDistilResult:
    """The student's folder, the report's file, and the mean losses on held-out text before the first step and
    at the end.
    """

    model: Path
    report: Path
    before: dict[str, float]
    metrics: dict[str, float]


@check_arguments(
    recipe=instance_of(EncoderDistilRecipe), resume=check_flag, console=optional(instance_of(Console))
)
def distil_encoder(
    recipe: EncoderDistilRecipe, *, resume: bool = False, console: Console | None = None
) -> EncoderDistilResult:
    """Trains a smaller encoder on what `recipe.teacher` computes for the text of `recipe.corpus`.

    The losses follow from the teacher: masked words and hidden states (DistilBERT, Sanh et al. 2019), the
    vectors of texts, or hidden states alone; where the student has another width or build, relations of
    self-attention besides (MiniLMv2, Wang et al. 2021). `resume` continues from the last complete checkpoint
    in `out`. Under torchrun, every process calls this function. Raises RecipeError, ModelError, CorpusError,
    StoreError and ResourceError before anything is trained, and TrainingStopped when the guard ends the run.
    """

    def open_encoder_folder() -> EncoderDistilRecipe:
        def read_recipe(path: Path) -> EncoderDistilRecipe:
            return make_encoder_recipe(read_toml(path, str(path)), [])

        open_folder(Path(recipe.out), recipe, read_recipe, resume, "the same command with --resume")
        return recipe

    with Run.open(open_encoder_folder, resume, console) as run:
        keep_freed_memory()
        before, metrics = _distil(run, EncoderDistiller.open(run))
        return EncoderDistilResult(run.out / "model", run.out / "report.html", before, metrics)


def _distil(run: Run[Any], distiller: Distiller[Student, Results]) -> Results:
    """The steps of every distillation, from an open distiller to its results. The saved student gets golden
    answers, by which `bertsmith check` recognises it later.
    """
    run.begin(distiller.recipe, distiller.hashes)
    student = distiller.train()
    if run.is_first:
        distiller.save(student, run.out / "model")
        write_golden(run.out / "model", distiller.task_class)
    wait_for_ranks()
    results = distiller.report(student)
    wait_for_ranks()
    return results
