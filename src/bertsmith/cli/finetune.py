"""`bertsmith finetune`."""

from pathlib import Path
from typing import Annotated

from bertsmith.cli.options import AS_NAMED, FileLayout, Flag, LabelledColumns, RunFiles, given


def finetune(
    task: str,
    *overrides: str,
    files: RunFiles,
    columns: Annotated[LabelledColumns | None, AS_NAMED] = None,
    layout: Annotated[FileLayout | None, AS_NAMED] = None,
    unlabelled: Path | None = None,
    features: str | None = None,
    resume: Flag = False,
) -> None:
    """Fine-tune an encoder on labelled text, and compare it with baselines.

    OUT/model is the trained model, which transformers opens too. OUT/report.html and OUT/results.json hold
    every figure, OUT/predictions the prediction for each row.

    Parameters
    ----------
    task
        classification, multi-label, regression, tagging, question-answering, similarity, retrieval,
        reranking, or a task of your own as package.module:Class.
    overrides
        Settings as key=value, for instance epochs=4 batch_size=16 optimizer.learning_rate=3e-5 restarts=5
        patience=2 freeze_layers=3 lora.rank=8 max_length=256 stride=64 class_weights=auto.
    unlabelled
        Texts without labels. A classification learns from them too, if cross-validation finds that this
        helps.
    features
        Columns to read beside the text, such as age,plan. Their values decide whether they are numbers or
        categories, unless you say so: age:number,plan:category. For classification, multi-label and
        regression.
    resume
        Resume an interrupted run, bit for bit.

    Examples
    --------
    bertsmith finetune classification --model minilm --train intents.csv --out runs/intents

    bertsmith finetune classification --model runs/law/model --train clauses.tsv --label kind \
              --out runs/clauses restarts=5 class_weights=auto

    bertsmith finetune classification --model minilm --train fifty.csv --unlabelled tickets.csv --out runs/few

    bertsmith finetune classification --model minilm --train tickets.csv --features age,plan --out runs/mixed

    bertsmith finetune tagging --model minilm --train train.conll --dev dev.conll --out runs/names epochs=3

    bertsmith finetune retrieval --model minilm --train pairs.jsonl --out runs/search batch_size=64
    """
    from bertsmith.cli.results import show_results
    from bertsmith.cli.screen import console, print_paths, print_warning
    from bertsmith.model.contamination import unchecked_warning
    from bertsmith.training.finetuning.finetune import finetune as run

    more = {"unlabelled": None if unlabelled is None else str(unlabelled), "features": features}
    values = given(files, columns, layout) | {
        name: value for name, value in more.items() if value is not None
    }
    result = run(task, *overrides, resume=resume, console=console, **values)
    show_results(result.results)
    if files.test is not None and (unchecked := unchecked_warning(result.model, files.test)) is not None:
        print_warning(unchecked)
    print_paths(model=result.model, report=result.report)
