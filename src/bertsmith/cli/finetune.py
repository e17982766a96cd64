"""`bertsmith finetune`."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter


def finetune(
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
    """Train a head on labelled text, beside its baselines.

    OUT/model is the trained model, which transformers opens too; OUT/report.html and OUT/results.json hold
    every figure, OUT/predictions what the model says of each row.

    Parameters
    ----------
    task
        classification, multi-label, regression, tagging, question-answering, similarity, retrieval,
        reranking, or a task of your own as package.module:Class.
    overrides
        Settings as key=value, for instance epochs=4 batch_size=16 optimizer.learning_rate=3e-5 restarts=5
        patience=2 freeze_layers=3 lora.rank=8 max_length=256 stride=64 class_weights=auto.
    model
        What to begin with: a folder such as runs/NAME/model, minilm, or a hub name.
    train
        Labelled rows: CSV, TSV, JSON lines, Parquet, CoNLL for tagging, SQuAD's JSON for answers.
    out
        The run's folder.
    dev
        Rows to choose by. Without them a tenth of the training rows is held out.
    test
        Rows to report on, once.
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
        Go on where the run was interrupted: the same model, to the bit, as without the interruption.

    Examples
    --------
    bertsmith finetune classification --model minilm --train intents.csv --out runs/intents

    bertsmith finetune classification --model runs/law/model --train train.tsv --dev dev.tsv
    --text clause --label kind --out runs/clauses restarts=5 class_weights=auto

    bertsmith finetune tagging --model minilm --train train.conll --dev dev.conll --out runs/names epochs=3

    bertsmith finetune retrieval --model minilm --train pairs.jsonl --out runs/search batch_size=64
    """
    from bertsmith.cli.results import show_results
    from bertsmith.cli.screen import console
    from bertsmith.training.finetune import finetune as run

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
        console=console,
        **given,
        **({} if header else {"header": False}),
    )
    show_results(result.results)
    console.print(f"\nmodel   {result.model}\nreport  {result.report}", markup=False)
