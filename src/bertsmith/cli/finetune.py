"""`bertsmith finetune` and `tune`, and the commands that find rows for them: `suggest` and `mine`."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from bertsmith.cli.options import (
    AS_NAMED,
    FileLayout,
    Flag,
    LabelledColumns,
    Out,
    OutOrDash,
    RunFiles,
    TextColumns,
    as_typed,
    collect_options,
    finetune_setting_names,
    takes_settings,
)
from bertsmith.cli.screen import (
    console,
    error_console,
    print_note,
    print_paths,
    print_table,
    print_warning,
    progress_bar,
)
from bertsmith.errors import InputError
from bertsmith.reporting import formatting

if TYPE_CHECKING:
    from bertsmith.inference.suggesting.suggest import Suggestions

_SHOWN, _LONGEST = 10, 60  # rows on the screen, characters of a text


@takes_settings(finetune_setting_names)
def finetune(
    task: str,
    *overrides: str,
    files: RunFiles,
    columns: Annotated[LabelledColumns | None, AS_NAMED] = None,
    layout: Annotated[FileLayout | None, AS_NAMED] = None,
    unlabelled: Annotated[Path | None, Parameter(name=["--unlabelled", "--texts"])] = None,
    labels: str | None = None,
    hint: str | None = None,
    features: str | None = None,
    resume: Flag = False,
) -> None:
    """Fine-tune an encoder on labelled text, and compare it with baselines.

    OUT/model is the trained model, which transformers opens too. OUT/report.html and OUT/results.json hold
    every figure, OUT/predictions the prediction for each row.

    A classification needs no labelled row to begin with: --labels names its labels, --texts gives texts of
    the kind that it will read.

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
        helps; and without labelled rows, from them and --labels alone.
    labels
        The names of the labels, for a classification: "billing, delivery, refund", or a table with the
        columns label and description. Each name is learned as one more row of its label, so it should say in
        words what is meant; a description helps where it doesn't. A label such as "other" says nothing.
    hint
        With --labels, a sentence that says how the texts speak of them, {} standing for the name: "the
        customer asks about {}".
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

    bertsmith finetune classification --model minilm --labels "billing, delivery, refund" --texts inbox.csv \
              --out runs/first

    bertsmith finetune classification --model minilm --labels labels.csv --texts inbox.csv --train few.csv \
              --hint "the customer asks about {}" --out runs/second

    bertsmith finetune classification --model minilm --train tickets.csv --features age,plan --out runs/mixed

    bertsmith finetune tagging --model minilm --train train.conll --dev dev.conll --out runs/names epochs=3

    bertsmith finetune retrieval --model minilm --train pairs.jsonl --out runs/search batch_size=64
    """
    from bertsmith.cli.results import show_results
    from bertsmith.model.card import unchecked_warning
    from bertsmith.training.finetuning.finetune import finetune as run

    more = {"unlabelled": None if unlabelled is None else str(unlabelled), "features": features}
    more |= {"names": labels, "hint": hint}
    values = collect_options(files, columns, layout) | {
        name: value for name, value in more.items() if value is not None
    }
    result = run(task, *overrides, resume=resume, console=console, **values)
    show_results(result.results, data_warnings=False)  # the run has told them
    if files.test is not None and (unchecked := unchecked_warning(result.model, files.test)) is not None:
        print_warning(unchecked)
    print_paths(model=result.model, report=result.report)
    if result.results.names is not None and unlabelled is not None:
        suggest_command = (
            "bertsmith",
            "suggest",
            str(result.model),
            str(unlabelled),
            "--out",
            f"{files.out}-next",
        )
        print_note(f"the texts to label first: {shlex.join(suggest_command)}")


@takes_settings(finetune_setting_names)
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
    from bertsmith.training.finetuning.search import Trial, trial_rows
    from bertsmith.training.finetuning.tune import tune as run

    if files.train is None:
        raise InputError("tune compares settings by labelled rows. Give a file of them with --train.")

    def on_trial(trial: Trial) -> None:
        choice = " ".join(f"{name}={value:.4g}" for name, value in trial.choice.items())
        line = f"trial {trial.number}: {trial.shown_score} {trial.state}  {choice}"
        console.print(line, markup=False, soft_wrap=True)

    result = run(
        task, *overrides, resume=resume, on_trial=on_trial, **collect_options(files, columns, layout)
    )
    header_row, rows = trial_rows(result.trials)
    by = f"{result.results.task.main_metric} of {result.results.judge}"
    print_table(header_row, rows, title=f"{len(rows)} trials by {by}")
    if result.importance:
        shares = [(name, f"{share:.0%}") for name, share in result.importance.items()]
        print_table(("setting", "how much of the differences between trials it explains"), shares)
    show_results(result.results)
    out = files.out
    print_paths(model=out / "model", recipe=out / "best.toml", report=out / "report.html")


def suggest(
    model: str,
    file: Path,
    *,
    out: Out,
    overwrite: Flag = False,
    count: int = 50,
    labelled: Path | None = None,
    labels: str | None = None,
    hint: str | None = None,
    task: str = "classification",
    separator: str | None = None,
    seed: int = 0,
    columns: Annotated[LabelledColumns | None, AS_NAMED] = None,
    layout: Annotated[FileLayout | None, AS_NAMED] = None,
) -> None:
    """Find the rows to label next, and the labels that are probably wrong.

    Among the rows without a label, it chooses some that the model is unsure of and that are unlike each
    other. They are written to rows.csv, for you to fill in. Each labelled row is judged by a model that
    learned from other rows; labels.csv lists the most doubtful first. report.html shows both.

    Parameters
    ----------
    model
        A fine-tuned model such as runs/NAME/model; or an encoder such as minilm, on which a linear model
        learns from the labelled rows.
    file
        Rows with and without labels, in any mixture. Rows of a plain text file have none.
    out
        The folder for rows.csv, labels.csv and report.html.
    overwrite
        Replace the folder, if an earlier suggest wrote it, with all that was filled in there.
    count
        Rows to choose for labelling.
    labelled
        A file with more labelled rows. For a fine-tuned model, by default the files that it was trained on,
        with the rows held out of them.
    labels
        The names of the labels, as for finetune, if MODEL is an encoder: it guesses by them before any row
        has a label.
    hint
        With --labels, a sentence that says how the texts speak of them, {} standing for the name: "the
        customer asks about {}".
    task
        What the labels are for, if MODEL is an encoder: classification or multi-label. For a model with a
        task of your own: package.module:Class.
    separator
        What stands between several labels in one cell. By default a comma, or what training had.
    seed
        Another seed draws other rows.

    Examples
    --------
    bertsmith suggest minilm tickets.csv --count 50 --out runs/next

    bertsmith suggest minilm inbox.csv --labels "billing, delivery, refund" --out runs/next

    bertsmith suggest runs/intents/model unlabelled.txt --out runs/next

    bertsmith suggest minilm pool.jsonl --labelled rows.csv --label topic --out runs/next
    """
    from bertsmith.inference.suggesting.folder import require_place, write_suggestions
    from bertsmith.inference.suggesting.suggest import suggest as find

    if count < 1:
        raise InputError(f"--count must be 1 or more, found {count}.")
    require_place(out, overwrite, [file, *([labelled] if labelled else [])])  # before the work, not after it
    reading = collect_options(columns, layout) | ({} if separator is None else {"separator": separator})
    with progress_bar("Reading") as progress:
        suggestions = find(
            *(model, file),
            labelled=labelled,
            names=labels,
            hint=hint,
            task=task,
            count=count,
            seed=seed,
            progress=progress,
            **reading,
        )
    options = {"count": count, "labelled": labelled, "labels": labels, "hint": hint, "task": task}
    options |= {"seed": seed, **reading, "out": out}
    write_suggestions(out, suggestions, as_typed(suggest, "suggest", model, file, **options), overwrite)
    for note in suggestions.notes:
        print_note(note)
    _print_suggestions(suggestions)
    paths = {"rows": out / "rows.csv"} if suggestions.rows else {}
    paths |= {"labels": out / "labels.csv"} if suggestions.doubts else {}
    print_paths(**paths, report=out / "report.html")


def _print_suggestions(suggestions: "Suggestions") -> None:
    if suggestions.rows:
        rows = [
            (_shorten(row.example.text), row.guess, f"{row.confidence:.0%}")
            for row in suggestions.rows[:_SHOWN]
        ]
        title = f"{len(suggestions.rows):,} of {suggestions.without_label:,} rows to label next"
        if len(suggestions.rows) > _SHOWN:
            title += f": the first {_SHOWN}, all in rows.csv"
        print_table(("text", "it looks like", "how sure"), rows, title=title)
        console.print(
            "Those from which the model would learn most: unlike each other, and unlike what has a label; "
            "near copies are left out. Fill in their labels in rows.csv.",
            markup=False,
        )
    if suggestions.doubts:
        wrong = [
            (_shorten(doubt.example.text), suggestions.label_of(doubt.example), doubt.guess)
            for doubt in suggestions.wrong[:_SHOWN]
        ]
        title = f"{len(suggestions.wrong):,} of {len(suggestions.doubts):,} labels to look at"
        if len(suggestions.wrong) > _SHOWN:
            title += f": the first {_SHOWN}, all in labels.csv"
        if wrong:
            print_table(("text", "label", "it looks like"), wrong, title=title)
        else:
            print_note(f"none of the {len(suggestions.doubts):,} labels looks wrong")
    if suggestions.contradictions:
        pairs = [
            (
                *(_shorten(first.text), suggestions.label_of(first)),
                *(_shorten(second.text), suggestions.label_of(second)),
            )
            for first, second, _ in suggestions.contradictions[:_SHOWN]
        ]
        count = formatting.counted(len(suggestions.contradictions), "pair")
        title = f"{count} of nearly the same text with different labels"
        print_table(("text", "label", "and text", "label"), pairs, title=title)


def _shorten(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def mine(
    model: str,
    pairs: Path,
    *,
    out: OutOrDash,
    overwrite: Flag = False,
    documents: Path | None = None,
    negatives: int = 4,
    depth: int = 100,
    ratio: float = 0.95,
    margin: float = 0.0,
    skip: int = 0,
    document_text: str = "text",
    missing: Literal["refuse", "drop"] = "refuse",
    columns: Annotated[TextColumns | None, AS_NAMED] = None,
    layout: Annotated[FileLayout | None, AS_NAMED] = None,
) -> None:
    """Find hard negatives: documents near a query that don't answer it.

    Each pair is written with its negatives, the nearest first, as a row that `bertsmith finetune retrieval`
    and `bertsmith finetune reranking` read. A column `scores` is left out, since the negatives have no
    teacher's score yet.

    Parameters
    ----------
    model
        The model that searches: a folder such as runs/NAME/model, minilm, or a model's name on the hub.
    pairs
        Rows of a query and a document that answers it, as for `bertsmith finetune retrieval`.
    out
        The file of JSON lines; - is standard output.
    overwrite
        Replace the file if it exists.
    documents
        The documents to search: a table, or a .txt file with a text per line. --format counts for it too, if
        its ending tells none; --header and --encoding do in any case. By default the documents of the pairs.
    negatives
        Negatives per pair, at most. Those that a pair has already count.
    depth
        How many of the nearest documents to look at.
    ratio
        A negative's cosine with the query is at most this share of the answer's.
    margin
        A negative's cosine is at least this far below the answer's.
    skip
        How many of the nearest documents are never taken.
    document_text
        The column of the text in --documents.
    missing
        Pairs of which a text is missing: refuse or drop them.

    Examples
    --------
    bertsmith mine minilm pairs.jsonl --out mined.jsonl

    bertsmith mine runs/search/model pairs.tsv --documents manual.csv --document-text body --out mined.jsonl
    """
    from bertsmith.files import require_output, write_jsonl
    from bertsmith.inference.embedding.embedder import Embedder
    from bertsmith.inference.ranking.mining import NegativeGuard
    from bertsmith.inference.ranking.mining import mine as run
    from bertsmith.model.locate import locate_model
    from bertsmith.tasks.retrieval import Retrieval, RetrievalSettings
    from bertsmith.text.files.rows import quoting_warnings, read_rows, tells_format
    from bertsmith.text.files.values import as_text, is_blank

    if documents is None and document_text != "text":
        raise InputError("--document-text is the column of --documents. Add --documents, or leave it out.")
    reads = [pairs, *([documents] if documents else []), locate_model(model).folder]
    require_output(out, overwrite, reads)
    task = Retrieval(RetrievalSettings(missing=missing, **collect_options(columns, layout)))
    rows = task.read(pairs)
    for sentence in task.left_out:
        error_console.print(sentence, markup=False, soft_wrap=True)
    task.check(rows)
    searched = [row.documents[0] for row in rows]
    if documents is not None:
        settings = task.settings
        format = None if tells_format(documents) else settings.format
        document_rows = read_rows(
            documents, [document_text], format=format, header=settings.header, encoding=settings.encoding
        )
        texts = (as_text(values[0], where) for values, where in document_rows)
        searched = [text for text in texts if not is_blank(text)]
        for sentence in quoting_warnings(documents, searched, format):
            error_console.print(sentence, markup=False, soft_wrap=True)
    with progress_bar("Embedding") as progress:
        embedder = Embedder(model)
        if embedder.caveat:
            error_console.print(embedder.caveat, markup=False, soft_wrap=True)
        mined = run(
            embedder,
            rows,
            searched,
            negatives=negatives,
            depth=depth,
            guard=NegativeGuard(ratio, margin, skip),
            progress=progress,
        )
    write_jsonl(mined.rows, out)
    # On standard error: --out may be standard output.
    if any(row.scores is not None for row in rows):
        error_console.print("The pairs' scores were left out: no teacher has scored the negatives found.")
    reasons = "; ".join(f"{count:,} {reason}" for reason, count in mined.passed_over.most_common())
    error_console.print(
        f"{mined.negatives:,} negatives for {len(mined.rows):,} pairs. Passed over: {reasons or 'nothing'}.",
        markup=False,
        soft_wrap=True,
    )
