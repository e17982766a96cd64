"""`bertsmith predict`."""

from pathlib import Path
from typing import Annotated, Literal

from bertsmith.cli.options import AS_TRAINED, FileLayout, FileOrDash, Flag, OutOrDash, TextColumns, given


def predict(
    model: str,
    input: FileOrDash,
    *,
    out: OutOrDash = Path("-"),
    overwrite: Flag = False,
    columns: Annotated[TextColumns | None, AS_TRAINED] = None,
    layout: Annotated[FileLayout | None, AS_TRAINED] = None,
    task: str | None = None,
    compute_dtype: Literal["float32", "int16"] | None = None,
) -> None:
    """Write a fine-tuned model's prediction for each row of a file, as JSON lines.

    Parameters
    ----------
    model
        A folder such as runs/NAME/model, or a model's name on the hub.
    input
        Texts in any format of training; - is standard input, read as JSON lines unless --format says
        otherwise.
    out
        The file of predictions; - is standard output.
    overwrite
        Replace the file if it exists.
    task
        For a model with a task of your own: package.module:Class.
    compute_dtype
        Precision of the matrix products. By default int16 on a CPU with the compiled kernels: it takes
        two thirds of float32's time, and changes probabilities by about 1e-4. Elsewhere float32.

    Examples
    --------
    bertsmith predict runs/intents/model new.csv --out predictions.jsonl

    bertsmith predict runs/names/model sentences.conll > names.jsonl

    bertsmith predict runs/intents/model archive.parquet --out predictions.jsonl --compute-dtype float32
    """
    import torch

    from bertsmith.cli.screen import print_note, print_warning, progress_bar
    from bertsmith.files import is_standard_output, require_output
    from bertsmith.inference.predictor import Predictor
    from bertsmith.model.locate import locate_model
    from bertsmith.tasks.registry import find_task

    own = find_task(task) if task else None
    require_output(out, overwrite, [input, locate_model(model).folder])
    wanted = getattr(torch, compute_dtype) if compute_dtype else None
    predictor = Predictor.load(model, own, compute_dtype=wanted)
    with progress_bar("Predicting") as progress:
        count = predictor.predict_file(
            str(input), str(out), progress, overwrite=overwrite, warn=print_warning, **given(columns, layout)
        )
    if not is_standard_output(out):
        print_note(f"{count:,} predictions in {out}")
