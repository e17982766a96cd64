"""The run of each seed of a fine-tuning: trained once, its score kept, and of all weights the leading one's.

out/restarts/1 …    log, checkpoints, best weights; restart.json when it is finished
"""

import shutil
from collections.abc import Sequence
from copy import copy
from pathlib import Path
from typing import NamedTuple

from bertsmith.files import make_folder, read_json, write_json
from bertsmith.model.adaptation import trained_share
from bertsmith.tasks.evaluating.evaluation import evaluate
from bertsmith.tasks.task_model import outputs_of
from bertsmith.training.finetune_recipe import FinetuneRecipe, FinetuneRun
from bertsmith.training.finetuning.choosing import MethodChoice
from bertsmith.training.finetuning.finetune_session import FinetuneSession
from bertsmith.training.finetuning.methods import LINEAR, TRAINED, UNTRAINED
from bertsmith.training.finetuning.task_run import WORST, BestWeights, TaskRun
from bertsmith.training.log import as_json_value
from bertsmith.training.observer import describe_run
from bertsmith.training.run import Run


class Restart(NamedTuple):
    """The run of one seed: its best score on dev, at which step, of how many, in how many seconds.

    Without any that is a number, as where the model gives all rows the same, the score is minus infinity.
    """

    seed: int
    score: float
    step: int
    steps: int
    seconds: float

    def write(self, path: Path) -> None:
        """A score that is no number is null."""
        write_json(path, as_json_value(self._asdict()))

    @classmethod
    def read(cls, path: Path) -> "Restart":
        """As it was written. Raises InputError."""
        record = read_json(path)
        return cls(**record | {"score": WORST if record["score"] is None else record["score"]})


def best_restart_index(restarts: Sequence[Restart]) -> int:
    """The index of the best restart; of equals the first."""
    return max(range(len(restarts)), key=lambda index: restarts[index].score)


def train_restart(
    run: Run[FinetuneRecipe],
    recipe: FinetuneRecipe,
    settings: FinetuneRun,
    bench: FinetuneSession,
    method: str,
    choice: MethodChoice | None,
) -> Restart:
    """The training of one seed; a finished one is not repeated."""
    folder = restart_folder(run.out, settings.seed - recipe.seed + 1)
    if run.resume and (folder / "restart.json").exists():
        return Restart.read(folder / "restart.json")
    best, steps, elapsed = None, 0, 0.0
    if method not in UNTRAINED:
        best, steps, elapsed = _train(run, recipe, settings, bench, method, folder)
    elif bench.linear is not None:
        elapsed = bench.linear.seconds
    if choice is not None:
        score = next(each.score for each in choice.tried if each.method == choice.method)
    elif method in TRAINED:
        assert best is not None
        score = best.score
    else:
        task, model = copy(bench.task), bench.finish(recipe, folder, method=method)
        outputs = outputs_of(model, bench.dev.encoded)
        task.calibrate(outputs, bench.dev.examples, bench.dev.encoded)
        score = evaluate(task, outputs, None, bench.dev).model[task.main_metric]
    at = best.step if best is not None else 0
    restart = Restart(settings.seed, WORST if score is None else score, at, steps, elapsed)
    if run.is_first:
        make_folder(folder)
        restart.write(folder / "restart.json")
    return restart


def _train(
    run: Run[FinetuneRecipe],
    recipe: FinetuneRecipe,
    settings: FinetuneRun,
    bench: FinetuneSession,
    method: str,
    folder: Path,
) -> tuple[BestWeights, int, float]:
    """What was best, after how many steps and seconds."""
    model = bench.start(recipe, settings.seed)
    facts = describe_run(model, model.config, Path(recipe.train_name).name, run.machine)
    if trained_share(model) < 1:
        facts["trained"] = f"{trained_share(model):.1%} trained"
    title = bench.task.name.capitalize()
    if recipe.restarts > 1:
        title += f" {settings.seed - recipe.seed + 1} of {recipe.restarts}"
    observer = run.observer(title, facts, settings, folder)
    task, train, dev = bench.task, bench.train, bench.dev if len(bench.dev) else None
    teaching = bench.teaching(method)
    if teaching is not None:
        task, train, dev = teaching, teaching.examples(train), None
        model.head = task.head(model.config).to(run.machine.device)
    training = TaskRun(
        *(task, model, train, dev, settings, run.machine, folder, observer),
        resumable=True,
        measure_first=LINEAR in bench.methods,
        progress=observer.evaluating,
    )
    elapsed = training.run_watched(observer, run.resume)
    return training.best, training.step, elapsed


def restart_folder(out: Path, number: int) -> Path:
    return out / "restarts" / str(number)


def keep_best_only(out: Path, restarts: list[Restart]) -> None:
    """A finished run needs no checkpoints, and of all weights those of the leading one are enough."""
    for number in range(1, len(restarts) + 1):
        folder = restart_folder(out, number)
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)
        if number - 1 != best_restart_index(restarts):
            (folder / "best" / "weights.safetensors").unlink(missing_ok=True)
