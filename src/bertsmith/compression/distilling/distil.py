"""A model that knows becomes a smaller one that has learned it: recipe → teacher and its texts → student →
the loop → figures → the folder of the run.

The story is told once, in `_distil`. What differs is answered by the kind of lesson: a fine-tuned model, or a
file of answers, teaches a task (tasks/lesson.py); an encoder teaches what it makes of raw text
(encoders/lesson.py). Each says what lies in its folder.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from rich.console import Console

from bertsmith.compression.distilling.encoders.lesson import EncoderLesson
from bertsmith.compression.distilling.recipes import (
    DistilRecipe,
    EncoderDistilRecipe,
    distil_values,
    make_distil_recipe,
    make_encoder_recipe,
)
from bertsmith.compression.distilling.tasks.lesson import TaskLesson
from bertsmith.compression.distilling.tasks.results import DistilResults
from bertsmith.door import door, either, flag, function, kind, optional, place, several, text
from bertsmith.model.cpu.process import keep_memory
from bertsmith.progress import Show, silent
from bertsmith.tasks.golden.records import write_golden
from bertsmith.tasks.task import Task
from bertsmith.training.machine import wait
from bertsmith.training.run import Run
from bertsmith.training.run_folder import open_folder
from bertsmith.training.settings import RunSettings, read_toml
from bertsmith.validation import check

Student = TypeVar("Student")
Figures = TypeVar("Figures", covariant=True)


class Lesson(Protocol[Student, Figures]):
    """What a distillation asks of its kind: a lesson that is open has read teacher and texts, and refused
    what can't be learned.
    """

    @property
    def recipe(self) -> RunSettings:
        """With what was chosen where nobody gave it."""

    @property
    def hashes(self) -> dict[str, str]:
        """The SHA-256 of all that the student is made from."""

    @property
    def own_task(self) -> type[Task[Any]] | None:
        """How the student is opened, where it does a task of the user's own."""

    def learn(self) -> Student:
        """The student, trained until its end and measured."""

    def save(self, student: Student, folder: Path) -> None:
        """The student with where it comes from."""

    def report(self, student: Student) -> Figures:
        """What the teacher brought, of which the first process writes the page."""


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
    given = distil_values(teacher, texts, train, values, dev=dev, test=test, out=out)
    recipe = make_distil_recipe(given, list(overrides))
    with Run.open(lambda: open_distilling(recipe, resume), resume, console) as run:
        keep_memory()
        answers = Path(cache) if cache else run.out / "answers"
        figures = _distil(run, TaskLesson.open(run, answers, show or silent))
        return DistilResult(run.out / "model", run.out / "report.html", figures)


def open_distilling(recipe: DistilRecipe, resume: bool) -> DistilRecipe:
    """Raises RecipeError when the folder holds another run. One that goes on keeps what was chosen for it."""

    def stored(path: Path) -> DistilRecipe:
        return check(DistilRecipe, read_toml(path, str(path)), str(path))

    path = Path(recipe.out) / "recipe.toml"
    if resume and path.exists():
        recipe = recipe.chosen_as(stored(path))
    open_folder(Path(recipe.out), recipe, stored, resume, "the same command with --resume")
    return recipe


@dataclass(frozen=True)
class EncoderDistilResult:
    """Where the student is, and how far it is from its teacher on held-out text: before the first step, and
    at the end.
    """

    model: Path
    report: Path
    before: dict[str, float]
    metrics: dict[str, float]


@door(recipe=kind(EncoderDistilRecipe), resume=flag, console=optional(kind(Console)))
def distil_encoder(
    recipe: EncoderDistilRecipe, *, resume: bool = False, console: Console | None = None
) -> EncoderDistilResult:
    """Teaches a smaller encoder what `recipe.teacher` makes of the text of `recipe.corpus`.

    What is taught follows from the teacher: masked words and hidden states (Sanh et al. 2019), the vectors of
    texts, or hidden states alone; relations of self-attention beside them where the student has another shape
    (Wang et al. 2021). With `resume`, goes on from the last whole checkpoint of `out`. Under torchrun, every
    process calls this. Raises RecipeError, ModelError, CorpusError, StoreError and ResourceError before
    anything is trained, and TrainingStopped when the guard ends the run.
    """

    def look() -> EncoderDistilRecipe:
        def stored(path: Path) -> EncoderDistilRecipe:
            return make_encoder_recipe(read_toml(path, str(path)), [])

        open_folder(Path(recipe.out), recipe, stored, resume, "the same command with --resume")
        return recipe

    with Run.open(look, resume, console) as run:
        keep_memory()
        before, metrics = _distil(run, EncoderLesson.open(run))
        return EncoderDistilResult(run.out / "model", run.out / "report.html", before, metrics)


def _distil(run: Run[Any], lesson: Lesson[Student, Figures]) -> Figures:
    """The story of any distillation, from an open lesson to its figures."""
    run.begin(lesson.recipe, lesson.hashes)
    student = lesson.learn()
    if run.is_first:
        lesson.save(student, run.out / "model")
        write_golden(run.out / "model", lesson.own_task)
    wait()
    figures = lesson.report(student)
    wait()
    return figures
