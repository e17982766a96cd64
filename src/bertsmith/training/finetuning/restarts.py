"""The restarts of a fine-tuning run: one training for each seed. Only the best one's weights are kept.

out/restarts/1 …    log, checkpoints, best weights; restart.json when the training is finished
"""

import math
import shutil
from collections.abc import Callable, Sequence
from copy import copy
from pathlib import Path
from typing import Any, NamedTuple

import torch

from bertsmith.files import make_folder, read_json, write_json
from bertsmith.model.adaptation import trained_share
from bertsmith.tasks.evaluating.evaluation import evaluate
from bertsmith.tasks.task_model import TaskModel, outputs_of
from bertsmith.training.finetune_recipe import FinetuneRecipe, FinetuneRun
from bertsmith.training.finetuning.choosing import MethodChoice
from bertsmith.training.finetuning.finetune_session import FinetuneSession
from bertsmith.training.finetuning.methods import LINEAR, TRAINED, UNTRAINED
from bertsmith.training.finetuning.task_run import WORST, BestWeights, TaskRun
from bertsmith.training.log import as_json_value
from bertsmith.training.machine import wait_for_ranks
from bertsmith.training.observer import describe_run
from bertsmith.training.run import Run


class Restart(NamedTuple):
    """The training of one seed: its best score on dev, the step of that score, the steps in all, and seconds.

    The score is minus infinity if none was a number, as if the model's predictions are all the same.
    """

    seed: int
    score: float
    step: int
    steps: int
    seconds: float

    def write(self, path: Path) -> None:
        """Writes restart.json, where a score that isn't finite is null."""
        write_json(path, as_json_value(self._asdict()))

    @classmethod
    def read(cls, path: Path) -> "Restart":
        """Reads what `write` wrote. Raises InputError for a damaged file."""
        record = read_json(path)
        return cls(**record | {"score": WORST if record["score"] is None else record["score"]})


def best_restart_index(restarts: Sequence[Restart]) -> int:
    """The index of the best restart; of equals the first."""
    return max(range(len(restarts)), key=lambda index: restarts[index].score)


def train_restart(
    run: Run[FinetuneRecipe],
    recipe: FinetuneRecipe,
    settings: FinetuneRun,
    session: FinetuneSession,
    method: str,
    choice: MethodChoice | None,
) -> Restart:
    """Trains with one seed and writes restart.json. A resumed run reads it instead if it is there.

    `settings` are those of this seed, `recipe` is that of all. The score is that of the `choice` between
    methods if there is one, else that of the finished model on dev, in float32 as it will be used: of a head
    that was trained with its encoder in float32, the best evaluation's.
    """
    folder = restart_folder(run.out, settings.seed - recipe.seed + 1)
    if run.resume and (folder / "restart.json").exists():
        return Restart.read(folder / "restart.json")
    best, steps, elapsed = None, 0, 0.0
    if method not in UNTRAINED:
        best, steps, elapsed = _train(run, recipe, settings, session, method, folder)
    elif session.linear is not None:
        elapsed = session.linear.seconds
    if choice is not None:
        score = next(entry.score for entry in choice.tried if entry.method == choice.method)
    else:
        evaluated = best if method in TRAINED else None
        score = score_on_dev(run, session, evaluated, lambda: session.finish(recipe, folder, method=method))
    best_step = best.step if best is not None else 0
    restart = Restart(settings.seed, WORST if score is None else score, best_step, steps, elapsed)
    if run.is_first:
        make_folder(folder)
        restart.write(folder / "restart.json")
    return restart


def score_on_dev(
    run: Run[Any], session: FinetuneSession, best: BestWeights | None, finish: Callable[[], TaskModel]
) -> float:
    """The main metric on dev of the model that `finish` returns, calibrated there and in float32, as it will
    be used: that of the `best` evaluation, if training was in float32 too. WORST if it isn't a number.
    """
    if best is not None and best.score is not None and run.machine.precision == torch.float32:
        return best.score
    wait_for_ranks()  # the first rank alone writes the encoder's weights
    task, outputs = copy(session.task), outputs_of(finish(), session.dev.encoded)
    task.calibrate(outputs, session.dev.examples, session.dev.encoded)
    score = evaluate(task, outputs, None, session.dev).model[task.main_metric]
    return WORST if score is None or math.isnan(score) else score


def _train(
    run: Run[FinetuneRecipe],
    recipe: FinetuneRecipe,
    settings: FinetuneRun,
    session: FinetuneSession,
    method: str,
    folder: Path,
) -> tuple[BestWeights, int, float]:
    """Trains in `folder` and returns the best weights there, the number of steps, and the seconds."""
    model = session.start(recipe, settings.seed)
    facts = describe_run(model, model.config, Path(recipe.train_name).name, run.machine)
    if trained_share(model) < 1:
        facts["trained"] = f"{trained_share(model):.1%} trained"
    title = session.task.name.capitalize()
    if recipe.restarts > 1:
        title += f" {settings.seed - recipe.seed + 1} of {recipe.restarts}"
    observer = run.observer(title, facts, settings, folder)
    task, train, dev = session.task, session.train, session.dev if len(session.dev) else None
    auxiliary = session.auxiliary_task(method)
    if auxiliary is not None:
        task, train, dev = auxiliary, auxiliary.auxiliary_examples(train), None
        model.head = task.head(model.config).to(run.machine.device)
    training = TaskRun(
        *(task, model, train, dev, settings, run.machine, folder, observer),
        resumable=True,
        measure_first=LINEAR in session.methods,
        progress=observer.evaluating,
    )
    elapsed = training.run_watched(observer, run.resume)
    return training.best, training.step, elapsed


def restart_folder(out: Path, number: int) -> Path:
    """The folder of restart `number`, from 1."""
    return out / "restarts" / str(number)


def keep_best_only(out: Path, restarts: list[Restart]) -> None:
    """Removes the checkpoints of finished restarts, and the weights of all but the best one."""
    for number in range(1, len(restarts) + 1):
        folder = restart_folder(out, number)
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)
        if number - 1 != best_restart_index(restarts):
            (folder / "best" / "weights.safetensors").unlink(missing_ok=True)
