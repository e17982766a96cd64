"""`bertsmith tune`."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter


def tune(
    task: str,
    *overrides: str,
    model: str,
    train: Path,
    out: Path,
    dev: Path | None = None,
    test: Path | None = None,
    text: str | None = None,
    text_pair: str | None = None,
    label: str | None = None,
    header: bool = True,
    format: str | None = None,
    encoding: str | None = None,
    resume: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Search the settings that suit a task, by the score on dev.

    Trial 0 is the baseline: the defaults, or what you give. OUT/best.toml is the recipe that did best,
    OUT/model its model, OUT/report.html every trial and which settings mattered.

    Parameters
    ----------
    task
        As for finetune.
    overrides
        Settings as key=value: trials=20, prune=false, bounds such as search.learning_rate=[1e-5,1e-3]
        search.layer_decay=[0.7,1] search.epochs=[2,6] search.batch_size=[16,32] search.freeze_layers=[0,3],
        and all those of finetune. What is given as such, like batch_size=32, is not searched.
    model
        What to begin with: a folder such as runs/NAME/model, minilm, or a hub name.
    train
        Labelled rows, as for finetune. They are read and encoded once.
    out
        The search's folder.
    dev
        Rows to choose by. Without them a tenth of the training rows is held out.
    test
        Rows to report on, once, with the best.
    text
        The column of the text: a name, or a number from 1. By default the names in the file decide.
    text_pair
        The column of a second text.
    label
        The column of the label.
    header
        Whether the first row names the columns.
    format
        csv, tsv, jsonl, json, parquet, conll: where the file's ending doesn't say it.
    encoding
        Of the files, where it is not UTF-8: latin-1, say.
    resume
        Go on where the search was interrupted, or to more trials. A killed trial is run again.

    Examples
    --------
    bertsmith tune classification --model minilm --train intents.csv --out runs/search trials=20

    bertsmith tune tagging --model minilm --train train.conll --dev dev.conll --out runs/search
    trials=30 batch_size=32 search.epochs=[3,10] --resume
    """
    from bertsmith.cli.results import show_results
    from bertsmith.cli.screen import console, print_table
    from bertsmith.training.trials import Trial
    from bertsmith.training.tune import tune as run
    from bertsmith.training.tune_report import shown, trial_rows

    def hear(trial: Trial) -> None:
        choice = " ".join(f"{name}={value:.4g}" for name, value in trial.choice.items())
        line = f"trial {trial.number}: {shown(trial.score)} {trial.state}  {choice}"
        console.print(line, markup=False, soft_wrap=True)

    columns = {"text": text, "text_pair": text_pair, "label": label, "format": format, "encoding": encoding}
    given = {name: value for name, value in columns.items() if value is not None}
    result = run(
        task,
        *overrides,
        model=model,
        train=str(train),
        out=str(out),
        dev=str(dev) if dev else None,
        test=str(test) if test else None,
        resume=resume,
        hear=hear,
        **given,
        **({} if header else {"header": False}),
    )
    header_row, rows = trial_rows(result.trials)
    print_table(header_row, rows, title=f"{len(rows)} trials by {result.results.task.main_metric} on dev")
    if result.importance:
        shares = [(name, f"{share:.0%}") for name, share in result.importance.items()]
        print_table(("setting", "share of the spread"), shares)
    show_results(result.results)
    console.print(
        f"\nmodel   {out / 'model'}\nrecipe  {out / 'best.toml'}\nreport  {out / 'report.html'}", markup=False
    )
