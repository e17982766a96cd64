"""`bertsmith predict`."""

from pathlib import Path
from typing import Annotated

from bertsmith.cli.options import AS_TRAINED, FileOrDash, Layout, TextColumns, given


def predict(
    model: str,
    input: FileOrDash,
    *,
    out: FileOrDash = Path("-"),
    columns: Annotated[TextColumns | None, AS_TRAINED] = None,
    layout: Annotated[Layout | None, AS_TRAINED] = None,
    task: str | None = None,
) -> None:
    """What a fine-tuned model says of each row of a file, as JSON lines.

    Parameters
    ----------
    model
        A folder such as runs/NAME/model, or a hub name.
    input
        Texts, in the formats that it was trained from; - is the standard input, as JSON lines unless --format
        says otherwise.
    out
        The file of predictions; - is the standard output.
    task
        For a model of a task of your own: package.module:Class.

    Examples
    --------
    bertsmith predict runs/intents/model new.csv --out predictions.jsonl

    bertsmith predict runs/names/model sentences.conll > names.jsonl
    """
    from bertsmith.cli.screen import print_note, progress_bar
    from bertsmith.inference.predictor import Predictor
    from bertsmith.tasks.registry import find_task

    predictor = Predictor.load(model, find_task(task) if task else None)
    with progress_bar("Predicting") as progress:
        count = predictor.predict_file(str(input), str(out), progress, **given(columns, layout))
    if str(out) != "-":
        print_note(f"{count:,} predictions in {out}")
