"""`bertsmith fill-mask` and `bertsmith evaluate`."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter


def fill_mask(
    model: str, text: str, *, top: int = 5, json: Annotated[bool, Parameter(negative="")] = False
) -> None:
    """What a model puts in place of [MASK], with probabilities; several masks at once.

    Parameters
    ----------
    model
        A folder such as runs/NAME/model, or a hub name.
    text
        Text with one or more masks, in the model's own spelling ([MASK] for BERT, <mask> for RoBERTa).
    top
        How many candidates for each mask.
    json
        Print JSON instead of a table.

    Examples
    --------
    bertsmith fill-mask runs/quickstart/model "This function returns the [MASK] of the array."

    bertsmith fill-mask bert-base-uncased "Paris is the [MASK] of [MASK]." --top 3
    """
    from bertsmith.cli.screen import console, print_table
    from bertsmith.inference.masked_language import MaskedLanguageModel

    masks = MaskedLanguageModel.load(model).fill_mask(text, top)
    if json:
        console.print_json(
            data=[[{"token": c.token, "probability": c.probability} for c in row] for row in masks]
        )
        return
    for number, candidates in enumerate(masks, start=1):
        title = text if len(masks) == 1 else f"{text} (mask {number})"
        rows = [(c.token, f"{c.probability:.1%}", "█" * round(30 * c.probability)) for c in candidates]
        print_table(("token", "probability", ""), rows, title=title)


def evaluate(
    model: str,
    data: Path,
    *,
    train: Path | None = None,
    tokens: int = 1_000_000,
    sequence_length: int = 128,
    task: str | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """A model's figures beside their baselines: of a fine-tuned one on labelled rows, of a pre-trained one on
    the held-out part of a corpus.

    Parameters
    ----------
    model
        A folder such as runs/NAME/model, or a hub name.
    data
        Labelled rows in the format of training; or a corpus (bertsmith corpus build), or a token store.
    train
        The rows that baselines learn from. By default the file that the model was trained on, if it is there.
    tokens
        How much text of a corpus at most.
    sequence_length
        Tokens a sequence of a corpus, special tokens included.
    task
        For a model of a task of your own: package.module:Class.
    json
        Print JSON instead of a table.

    Examples
    --------
    bertsmith evaluate runs/intents/model test.csv

    bertsmith evaluate runs/quickstart/model runs/quickstart/corpus
    """
    from bertsmith.cli.screen import console, print_table

    if data.is_dir():
        from bertsmith.inference.masked_language import MaskedLanguageModel

        metrics = MaskedLanguageModel.load(model).evaluate(data, tokens, sequence_length)
        if json:
            console.print_json(data=metrics)
        else:
            print_table(("figure", "value"), list(metrics.items()), title=f"{model} on {data}")
        return
    from bertsmith.cli.results import show_side
    from bertsmith.inference.predictor import Predictor
    from bertsmith.tasks.registry import find_task

    predictor = Predictor.load(model, find_task(task) if task else None)
    side = predictor.evaluate(data, train)
    if json:
        console.print_json(data={"rows": side.rows, "model": side.model, "baselines": side.baselines})
        return
    show_side(side, f"{model} on {data}: {side.rows:,} rows")
    for warning in side.warnings(data.name, predictor.task.main_metric):
        console.print(f"warning: {warning}", style="yellow", markup=False)
