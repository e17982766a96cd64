"""What a trained model predicts: `bertsmith predict`, `bertsmith evaluate` and `bertsmith fill-mask`."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from bertsmith.cli.options import (
    AS_TRAINED,
    FileLayout,
    FileOrDash,
    Flag,
    LabelledColumns,
    OutOrDash,
    PredictionDtype,
    ReadableText,
    TextColumns,
    collect_options,
)
from bertsmith.cli.screen import print_json, print_note, print_table, print_warning, progress_bar
from bertsmith.errors import InputError
from bertsmith.reporting.formatting import counted
from bertsmith.text.workers import Engine

_TOKENS, _LENGTH = 1_000_000, 128  # tokens to read of a corpus, and tokens of a sequence


def predict(
    model: str,
    input: FileOrDash,
    *,
    out: OutOrDash = Path("-"),
    overwrite: Flag = False,
    columns: Annotated[TextColumns | None, AS_TRAINED] = None,
    layout: Annotated[FileLayout | None, AS_TRAINED] = None,
    task: str | None = None,
    compute_dtype: PredictionDtype | None = None,
    engine: Engine = "local",
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
        two thirds of float32's time, and changes probabilities by about 1e-4. Elsewhere float32. int8 takes
        two thirds of int16's; what it changes is printed.
    engine
        ray computes on a Ray cluster, as for `bertsmith embed`.

    Examples
    --------
    bertsmith predict runs/intents/model new.csv --out predictions.jsonl

    bertsmith predict runs/names/model sentences.conll > names.jsonl

    bertsmith predict runs/intents/model archive.parquet --out predictions.jsonl --compute-dtype float32

    bertsmith predict runs/intents/model archive.parquet --out predictions.jsonl --engine ray
    """
    import torch

    from bertsmith.files import is_standard_output, require_output
    from bertsmith.inference.predictor import Predictor
    from bertsmith.model.locate import locate_model
    from bertsmith.tasks.registry import find_task

    own = find_task(task) if task else None
    require_output(out, overwrite, [input, locate_model(model).folder])
    dtype = getattr(torch, compute_dtype) if compute_dtype else None
    predictor = Predictor.load(model, own, compute_dtype=dtype)
    if predictor.int8_choice is not None:
        print_note(str(predictor.int8_choice), out)
    with progress_bar("Predicting") as progress:
        count = predictor.predict_file(
            str(input),
            str(out),
            progress,
            overwrite=overwrite,
            warn=lambda sentence: print_warning(sentence, out),
            engine=engine,
            **collect_options(columns, layout),
        )
    if not is_standard_output(out):
        print_note(f"{counted(count, 'prediction')} in {out}")


def evaluate(
    model: str,
    data: Path,
    *,
    train: list[Path] | None = None,
    columns: Annotated[LabelledColumns | None, AS_TRAINED] = None,
    layout: Annotated[FileLayout | None, AS_TRAINED] = None,
    tokens: int = _TOKENS,
    sequence_length: int = _LENGTH,
    task: str | None = None,
    compute_dtype: PredictionDtype | None = None,
    json: Flag = False,
) -> None:
    """Measure a fine-tuned model on labelled rows, or a pre-trained one on held-out text, beside baselines.

    Parameters
    ----------
    model
        A folder such as runs/NAME/model, or a model's name on the hub.
    data
        Labelled rows in any format of training; or a corpus (see `bertsmith corpus build`), or a token store,
        of which the held-out part is measured, or the training text if nothing is held out.
    train
        Rows for the baselines to learn from: a file or a folder of them; for more, repeat the option. By
        default what the model was trained on, if it is still there.
    tokens
        Tokens of a corpus to read, at most.
    sequence_length
        Tokens per sequence of a corpus, special tokens included.
    task
        For a model with a task of your own: package.module:Class.
    compute_dtype
        A precision to measure beside float32, such as int8: what `predict` and `serve` would lose by it.
    json
        Print JSON instead of a table.

    Examples
    --------
    bertsmith evaluate runs/intents/model test.csv

    bertsmith evaluate runs/intents/model dev.csv --compute-dtype int8

    bertsmith evaluate runs/intents/model mails.csv --text body --label kind --encoding latin-1

    bertsmith evaluate runs/quickstart/model runs/quickstart/corpus
    """
    reading = collect_options(columns, layout)
    of_rows = {"train": train, "task": task, "compute_dtype": compute_dtype}
    _require_its_options(data, of_rows | reading, tokens, sequence_length)
    if data.is_dir():
        _evaluate_corpus(model, data, tokens, sequence_length, json)
    else:
        _evaluate_rows(model, data, train, task, compute_dtype, json, reading)


def _require_its_options(data: Path, of_rows: dict[str, Any], tokens: int, sequence_length: int) -> None:
    """Raises InputError if `data` doesn't exist, or for an option that isn't for this kind of data.

    A folder is a corpus or a token store, which has no use for `of_rows`; a file holds labelled rows.
    """
    if not data.exists():
        raise InputError(
            f"{data} does not exist. Name a file of labelled rows, or the folder of a corpus or of a token "
            "store."
        )
    if data.is_dir():
        what, other = "a folder, so it is measured as a corpus or a token store", "labelled rows"
        refused = [name for name, value in of_rows.items() if value is not None]
    else:
        what, other = "a file, so it is measured as labelled rows", "a corpus"
        changed = {"tokens": tokens != _TOKENS, "sequence_length": sequence_length != _LENGTH}
        refused = [name for name, is_given in changed.items() if is_given]
    if refused:
        options = " and ".join(f"--{name.replace('_', '-')}" for name in refused)
        raise InputError(f"{data} is {what}: leave out {options}, for {other} alone.")


def _evaluate_corpus(model: str, data: Path, tokens: int, sequence_length: int, json: bool) -> None:
    from bertsmith.model.locate import locate_model
    from bertsmith.tasks.checkpoints.infer_task import model_kind

    if model_kind(locate_model(model).folder) == "task":
        raise InputError(
            f"{model} is a fine-tuned model, which is measured on a file of labelled rows, but {data} is a "
            "folder. Name one file."
        )
    import torch

    from bertsmith.inference.masked_language import MaskedLanguageModel, measured_split

    opened = MaskedLanguageModel.load(model, compute_dtype=torch.float32)  # as training's own figures
    metrics = opened.evaluate(data, tokens, sequence_length)
    split = measured_split(data)
    if json:
        print_json({"split": split} | metrics)
    else:
        part = "its held-out part" if split == "heldout" else "its training text: nothing is held out"
        print_table(("figure", "value"), list(metrics.items()), title=f"{model} on {data}, {part}")


def _evaluate_rows(
    model: str,
    data: Path,
    train: list[Path] | None,
    task: str | None,
    compute_dtype: PredictionDtype | None,
    json: bool,
    columns: dict[str, Any],
) -> None:
    import torch

    from bertsmith.cli.results import show_classes, show_evaluation, show_meanings, show_remarks
    from bertsmith.inference.predictor import Predictor
    from bertsmith.model.card import unchecked_warning
    from bertsmith.model.locate import locate_model
    from bertsmith.tasks.evaluating.evaluation import standard_error
    from bertsmith.tasks.registry import find_task

    own = find_task(task) if task else None
    rounded = None
    if compute_dtype not in (None, "float32"):
        rounded = Predictor.load(model, own, compute_dtype=getattr(torch, compute_dtype))
    predictor = Predictor.load(model, own, compute_dtype=torch.float32)  # as training's own figures
    evaluation, metric = predictor.evaluate(data, train or (), **columns), predictor.task.main_metric
    warnings = evaluation.warnings(data.name, metric)
    unchecked = unchecked_warning(locate_model(model).folder, data)
    warnings += [unchecked] if unchecked else []
    analysis = predictor.task.error_analysis(evaluation.predictions, evaluation.split.examples)
    error = standard_error(predictor.task, evaluation, analysis.answers)
    comparison = None if rounded is None else rounded.compare(evaluation)
    if json:
        figures = {"model": evaluation.model, "standard_error": error, "baselines": evaluation.baselines}
        if comparison is not None:
            figures[f"model_in_{compute_dtype}"] = comparison.model
            figures["same_answers"] = comparison.same_answers
        confusions = [] if analysis.confusion is None else analysis.confusion.most_frequent()
        classes = {
            "per_class": [asdict(row) for row in analysis.per_class],
            "confusions": [
                {"right": right, "taken_for": predicted, "times": times}
                for right, predicted, times in confusions
            ],
        }
        print_json(
            {"rows": evaluation.rows, "main_metric": metric, **figures, **classes, "warnings": warnings}
        )
        return
    beside = {} if comparison is None else {f"the model in {compute_dtype}": comparison.model}
    show_evaluation(evaluation, f"{model} on {data}", metric, error, beside)
    if comparison is not None and comparison.same_answers is not None:
        same = f"{comparison.same_answers:,} of {evaluation.rows:,}"
        print_note(f"{same} answers in {compute_dtype} are those in float32")
    if rounded is not None and rounded.int8_choice is not None:
        print_note(str(rounded.int8_choice))
    show_meanings(evaluation.model)
    show_classes(analysis)
    show_remarks(evaluation.remarks)
    for warning in warnings:
        print_warning(warning)


def fill_mask(model: str, text: ReadableText, *, top: int = 5, json: Flag = False) -> None:
    """Guess the words behind one or more [MASK], with their probabilities.

    Parameters
    ----------
    model
        A folder such as runs/NAME/model, or a model's name on the hub.
    text
        A text with one or more masks, spelled as the model spells them: [MASK] for BERT, <mask> for RoBERTa.
    top
        Candidates for each mask.
    json
        Print JSON instead of a table.

    Examples
    --------
    bertsmith fill-mask runs/quickstart/model "This function returns the [MASK] of the array."

    bertsmith fill-mask google-bert/bert-base-uncased "Paris is the [MASK] of [MASK]." --top 3
    """
    from bertsmith.inference.masked_language import MaskedLanguageModel

    masks = MaskedLanguageModel.load(model, "cpu").fill_mask(text, top)  # a GPU takes longer to start
    if json:
        print_json([[{"token": c.token, "probability": c.probability} for c in row] for row in masks])
        return
    for number, candidates in enumerate(masks, start=1):
        title = text if len(masks) == 1 else f"{text} (mask {number})"
        rows = [(c.token, f"{c.probability:.1%}", "█" * round(30 * c.probability)) for c in candidates]
        print_table(("token", "probability", ""), rows, title=title)
