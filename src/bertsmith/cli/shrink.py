"""`bertsmith shrink`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from bertsmith.cli.options import AS_TRAINED, FileLayout, Flag, LabelledColumns, Out, given

if TYPE_CHECKING:
    from bertsmith.compression.shrinking.tried import Shrunk


def shrink(
    model: str,
    *overrides: str,
    dev: Path,
    out: Out,
    train: list[Path] | None = None,
    test: Path | None = None,
    texts: list[Path] | None = None,
    hours: float | None = None,
    keep: float = 0.98,
    whole_vocabulary: Flag = False,
    columns: Annotated[LabelledColumns | None, AS_TRAINED] = None,
    layout: Annotated[FileLayout | None, AS_TRAINED] = None,
    task: str | None = None,
    resume: Flag = False,
) -> None:
    """Find the fastest smaller model that keeps a fine-tuned one's score.

    First, pieces of the vocabulary that the texts don't have are dropped. Then models of fewer layers, and a
    narrower one, learn the model's answers, the quickest to train first. OUT/model is the one that keeps the
    score you asked for and computes least for a text: work is counted, so that a busy machine chooses the
    same. OUT/report.html shows them all, with intervals.

    Parameters
    ----------
    model
        A fine-tuned model: a folder such as runs/NAME/model, or a name on the hub.
    overrides
        Settings of each distillation as key=value, for instance epochs=10 batch_size=32 temperature=2
        soft_weight=0.7 seed=1.
    dev
        Labelled rows to choose by. Nothing may have been trained on them.
    out
        The folder to write: the model, the report and all figures.
    train
        Labelled rows to learn from. Either --train or --texts is needed, or both. A file or a folder of
        them; for more, repeat the option.
    test
        Labelled rows that are measured once, at the end: the score on dev flatters what was chosen by it.
    texts
        Texts without labels to learn from: the more, the smaller the model can be. May be repeated.
    hours
        Hours that the search may take. What isn't expected to finish in time is left out. By default
        everything is tried.
    keep
        The share of the model's score on --dev to keep.
    whole_vocabulary
        Keep the pieces that the texts don't have, for a model that will read other texts.
    task
        For a model with a task of your own: package.module:Class.
    resume
        Resume an interrupted search. Finished candidates stay; --hours and --keep may change.

    Examples
    --------
    bertsmith shrink runs/intents/model --train intents.csv --dev later.csv --out runs/shrunk

    bertsmith shrink runs/intents/model --train intents.csv --texts tickets.csv --dev later.csv \
              --test last.csv --out runs/shrunk --hours 2 --keep 0.97 epochs=10
    """
    from bertsmith.cli.screen import console, print_paths, progress_bar
    from bertsmith.compression.shrinking.shrink import shrink as search

    values: dict[str, Any] = given(columns, layout)
    result = search(
        model,
        *overrides,
        out=str(out),
        dev=str(dev),
        train=[str(path) for path in train or ()],
        test=None if test is None else str(test),
        texts=[str(path) for path in texts or ()],
        hours=hours,
        keep=keep,
        prune=not whole_vocabulary,
        resume=resume,
        console=console,
        show=progress_bar,
        **values | ({} if task is None else {"task": task}),
    )
    _show(result.shrunk)
    print_paths(model=result.model, report=result.report)


def _show(shrunk: "Shrunk") -> None:
    from bertsmith.cli.screen import console, print_table, print_warning
    from bertsmith.compression.shrinking.shrink_report import COLUMNS, rows

    print_table(COLUMNS, rows(shrunk), title=f"{shrunk.metric} on dev, at least {shrunk.wanted:.4f} wanted")
    console.print(f"The least work that keeps {shrunk.keep:.0%}: {shrunk.chosen.name}.", markup=False)
    if shrunk.on_test is not None:
        console.print(shrunk.on_test.sentence(shrunk.metric), markup=False)
    for warning in shrunk.warnings:
        print_warning(warning)
