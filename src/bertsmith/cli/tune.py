"""`bertsmith tune`."""

from typing import Annotated

from bertsmith.cli.options import AS_NAMED, FileLayout, Flag, LabelledColumns, RunFiles, given
from bertsmith.reporting import formatting


def tune(
    task: str,
    *overrides: str,
    files: RunFiles,
    columns: Annotated[LabelledColumns | None, AS_NAMED] = None,
    layout: Annotated[FileLayout | None, AS_NAMED] = None,
    resume: Flag = False,
) -> None:
    """Search for the best fine-tuning settings, judged by dev or, with few rows, by cross-validation.

    Trial 0 is the baseline: the defaults, or the settings that you give. OUT/best.toml is the best recipe,
    OUT/model its model. OUT/report.html shows every trial, and which settings mattered. Rows are read and
    encoded once.

    Parameters
    ----------
    task
        As for `bertsmith finetune`.
    overrides
        Settings as key=value: trials=20, prune=false, bounds such as search.learning_rate=[1e-5,1e-3]
        search.layer_decay=[0.7,1] search.epochs=[2,6] search.batch_size=[16,32] search.freeze_layers=[0,3],
        and all those of finetune. A setting that you fix, such as batch_size=32, is not searched.
    resume
        Resume an interrupted search, or go on with more trials. A killed trial runs again.

    Examples
    --------
    bertsmith tune classification --model minilm --train intents.csv --out runs/search trials=20

    bertsmith tune tagging --model minilm --train train.conll --dev dev.conll --out runs/search \
              trials=30 batch_size=32 search.epochs=[3,10] --resume
    """
    from bertsmith.cli.results import show_results
    from bertsmith.cli.screen import console, print_paths, print_table
    from bertsmith.training.finetuning.search import Trial
    from bertsmith.training.finetuning.tune import trial_rows
    from bertsmith.training.finetuning.tune import tune as run

    def on_trial(trial: Trial) -> None:
        choice = " ".join(f"{name}={value:.4g}" for name, value in trial.choice.items())
        line = f"trial {trial.number}: {formatting.score(trial.score)} {trial.state}  {choice}"
        console.print(line, markup=False, soft_wrap=True)

    result = run(task, *overrides, resume=resume, on_trial=on_trial, **given(files, columns, layout))
    header_row, rows = trial_rows(result.trials)
    by = f"{result.results.task.main_metric} of {result.results.judge}"
    print_table(header_row, rows, title=f"{len(rows)} trials by {by}")
    if result.importance:
        shares = [(name, f"{share:.0%}") for name, share in result.importance.items()]
        print_table(("setting", "share of the spread"), shares)
    show_results(result.results)
    out = files.out
    print_paths(model=out / "model", recipe=out / "best.toml", report=out / "report.html")
