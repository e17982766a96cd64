"""`bertsmith predict`."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter


def predict(
    model: str,
    input: Annotated[Path, Parameter(allow_leading_hyphen=True)],  # a lone dash looks like an option
    *,
    out: Annotated[Path, Parameter(allow_leading_hyphen=True)] = Path("-"),
    text: str | None = None,
    text_pair: str | None = None,
    header: Annotated[bool | None, Parameter(negative="--no-header")] = None,
    format: str | None = None,
    encoding: str | None = None,
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
    text
        The column of the text: a name, or a number from 1. By default as in training.
    text_pair
        The column of a second text.
    header
        Whether the first row names the columns. By default as in training.
    format
        csv, tsv, jsonl, json, parquet, conll, lines: where the file's ending doesn't say it.
    encoding
        Of the file, where it isn't UTF-8: latin-1, for one.
    task
        For a model of a task of your own: package.module:Class.

    Examples
    --------
    bertsmith predict runs/intents/model new.csv --out predictions.jsonl

    bertsmith predict runs/names/model sentences.conll > names.jsonl
    """
    from bertsmith.cli.screen import progress_bar
    from bertsmith.inference.predictor import Predictor
    from bertsmith.tasks.registry import find_task

    predictor = Predictor.load(model, find_task(task) if task else None)
    columns = {"text": text, "text_pair": text_pair}
    reading = {"header": header, "format": format, "encoding": encoding}
    with progress_bar("Predicting") as progress:
        predictor.predict_file(str(input), str(out), progress, **columns, **reading)
