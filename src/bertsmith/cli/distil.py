"""Smaller models: `bertsmith distil` and `bertsmith shrink`.

`distil` teaches a student, in one of three ways: a fine-tuned teacher on texts and labelled rows, an encoder
on a corpus (--corpus), or an embedding model as a static table (--static). `shrink` tries several students of
a fine-tuned model and chooses the fastest one that keeps its score.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from bertsmith.cli.options import (
    AS_TRAINED,
    FileLayout,
    Flag,
    LabelledColumns,
    Out,
    collect_options,
    takes_settings,
)
from bertsmith.cli.screen import console, print_paths, print_table, print_warning, progress_bar
from bertsmith.errors import InputError


def _recipe_setting_names(words: Sequence[str]) -> list[str]:
    from bertsmith.compression.distilling.recipes import DistilRecipe, EncoderDistilRecipe
    from bertsmith.training.finetune_recipe import list_finetune_settings
    from bertsmith.validation import setting_names

    return setting_names(EncoderDistilRecipe) if "--corpus" in words else list_finetune_settings(DistilRecipe)


@takes_settings(_recipe_setting_names)
def distil(
    teacher: str,
    *overrides: str,
    out: Out,
    texts: list[Path] | None = None,
    train: list[Path] | None = None,
    dev: Path | None = None,
    test: Path | None = None,
    corpus: Path | None = None,
    student: str | None = None,
    layers: str | None = None,
    columns: Annotated[LabelledColumns | None, AS_TRAINED] = None,
    layout: Annotated[FileLayout | None, AS_TRAINED] = None,
    task: str | None = None,
    static: Flag = False,
    dimensions: int | None = None,
    language: str | None = None,
    resume: Flag = False,
) -> None:
    """Teach a smaller, faster model what a fine-tuned model, an encoder or an embedding model knows.

    A fine-tuned teacher answers all texts once. The student learns these answers, and the labels of rows that
    have any. OUT/model is the student; predict, serve and export take it like any other model.
    OUT/report.html and OUT/results.json compare it with its teacher, and with the same student trained
    without a teacher.

    An encoder teaches on a corpus of raw text (--corpus, with hours= or steps=). The student learns masked
    words and hidden states if the teacher predicts words, the vectors of texts if it is an embedding model,
    and otherwise hidden states. OUT/model is an encoder, or an embedding model, like its teacher.

    With --static, an embedding model becomes a table of token vectors, learned from --texts. The table is
    many times faster than the model; model2vec and sentence-transformers open it too.

    Parameters
    ----------
    teacher
        The model that teaches: a folder such as runs/NAME/model, minilm, or a name on the hub. Several
        fine-tuned models, one after the other, teach together. Or a file of answers, such as an LLM's: texts
        with a label each, or with the probabilities that predict writes.
    overrides
        More teachers, and settings as key=value, for instance epochs=10 temperature=2 soft_weight=0.7
        width=192 feed_forward=768 compare=false batch_size=32 optimizer.learning_rate=3e-4 seed=1. With
        --corpus: hours=1 or steps=1000, width, feed_forward, family=modernbert, dimensions=128 (of vectors),
        and the weights loss.states, loss.relations, loss.vectors, loss.soft, loss.mlm.
    out
        The folder to write: the student, the report and all figures.
    texts
        Texts without labels, of the kind that the student will read: as many as there are. May be repeated.
    train
        Labelled rows, whose labels the student learns too. A file or a folder of them; for more, repeat the
        option.
    dev
        Labelled rows that choose the best weights. Without it, a tenth of --train is held out; without
        --train a tenth of the texts, and the teacher's answers count as right (not for search and
        re-ranking, which need --dev or --train).
    test
        Labelled rows that are measured once, at the end.
    corpus
        For an encoder or an embedding model: a corpus, or a token store made with the teacher's tokenizer.
    student
        The encoder that the student starts from: a folder, minilm, or a name on the hub. By default the
        teacher.
    layers
        How many layers the student has, such as 3; or which layers it starts from, such as 1,3,6. By default
        half of the teacher's.
    task
        The task that a file's answers are for: classification, tagging, … For a teacher with a task of your
        own: package.module:Class.
    static
        Make a static table of an embedding model. --texts are then files and folders of running text, which
        are read as `corpus build` reads them; --text and --encoding say how.
    dimensions
        Dimensions of the table's vectors, by default 256. (With --corpus this is a setting: dimensions=128.)
    language
        With --static: two-letter code, for splitting the texts into sentences. By default en.
    resume
        Resume an interrupted run, bit for bit; only with hours= the learning rate follows the clock.

    Examples
    --------
    bertsmith distil runs/intents/model --texts tickets.csv --train intents.csv --layers 3 --out runs/small

    bertsmith distil runs/names/model --texts articles.txt --out runs/names-small epochs=5

    bertsmith distil answers.jsonl --task classification --student minilm --layers 3 --out runs/of-llm

    bertsmith distil runs/a/model runs/b/model runs/c/model --train intents.csv --student minilm \
              --layers 3 --out runs/of-three

    bertsmith distil minilm --corpus corpora/wiki --layers 3 --out runs/minilm-3 hours=1

    bertsmith distil minilm --corpus corpora/wiki --layers 3 --out runs/minilm-128 hours=1 dimensions=128

    bertsmith distil minilm --static --texts articles/ --out runs/static
    """
    from bertsmith.cli.results import show_distilled
    from bertsmith.compression.distilling.distil import distil_task
    from bertsmith.text.files.tables import find_format_by_ending

    unusable: dict[str, object]
    if static:
        reading = collect_options(columns, layout)
        text_options = {"text_column": reading.pop("text", None), "encoding": reading.pop("encoding", None)}
        unusable = {"--corpus": corpus, "--train": train, "--dev": dev, "--test": test}
        unusable |= {"--student": student, "--layers": layers, "--task": task}
        unusable |= {f"--{name.replace('_', '-')}": value for name, value in reading.items()}
        if others := [*(name for name, value in unusable.items() if value is not None), *overrides]:
            raise InputError(
                "--static takes --texts with --text, --encoding and --language, --dimensions, and --resume. "
                f"Leave {others[0]} out."
            )
        given = {"--text": text_options["text_column"], "--encoding": text_options["encoding"]}
        given["--language"] = language
        if not texts and (unread := [name for name, value in given.items() if value is not None]):
            raise InputError(f"{unread[0]} says how --texts are read. Add --texts, or leave {unread[0]} out.")
        _distil_static_table(
            teacher, texts or (), out, dimensions, text_options | {"language": language}, resume
        )
        return
    if dimensions is not None:
        raise InputError("--dimensions is for --static. With --corpus it is a setting: dimensions=128.")
    if language is not None:
        raise InputError("--language is for --static. Leave it out.")
    if corpus is not None:
        unusable = {"--texts": texts, "--train": train, "--dev": dev, "--test": test, "--student": student}
        unusable |= {"--task": task, "columns of a table": columns, "the layout of a table": layout}
        if others := [name for name, value in unusable.items() if value is not None]:
            raise InputError(
                f"--corpus is for encoders, which learn from raw text: {others[0]} doesn't go with it. A "
                "fine-tuned model learns from --texts and --train."
            )
        _distil_encoder(teacher, corpus, out, layers, overrides, resume)
        return
    settings = [word for word in overrides if _is_setting(word)]
    teachers = [teacher, *(word for word in overrides if not _is_setting(word))]
    if not Path(teacher).is_file():
        if find_format_by_ending(Path(teacher).suffix.lower()) and not Path(teacher).exists():
            raise InputError(f"{teacher} does not exist. Name a file of answers, or the model that teaches.")
        _require_fine_tuned(teacher)
    values: dict[str, Any] = collect_options(columns, layout)
    values |= {"student": student, "layers": None if layers is None else _parse_layers(layers), "task": task}
    result = distil_task(
        teachers,
        *settings,
        out=str(out),
        texts=[str(path) for path in texts or ()],
        train=[str(path) for path in train or ()],
        resume=resume,
        console=console,
        show=progress_bar,
        **{name: None if path is None else str(path) for name, path in (("dev", dev), ("test", test))},
        **{name: value for name, value in values.items() if value is not None},
    )
    show_distilled(result.results)
    print_paths(model=result.model, report=result.report)


def _is_setting(word: str) -> bool:
    """Whether this argument is a setting, key=value, and not an existing path with an equals sign in it."""
    return "=" in word and not Path(word).exists()


def _parse_layers(text: str) -> int | list[int]:
    """Parses --layers: a count such as "3", or the layers to start from such as "1,3,6".

    Raises InputError for anything else.
    """
    parts = text.split(",")
    if not all(part.strip().isdecimal() for part in parts):
        raise InputError(f"--layers: expected a number, or numbers as in 1,3,6; found {text!r}.")
    numbers = [int(part) for part in parts]
    return numbers[0] if len(numbers) == 1 else numbers


def _distil_static_table(
    teacher: str,
    texts: Sequence[Path],
    out: Path,
    dimensions: int | None,
    reading: dict[str, Any],
    resume: bool,
) -> None:
    from bertsmith.cli.results import show_static_table
    from bertsmith.compression.distil_static import distil_static

    with progress_bar("Static table") as progress:
        result = distil_static(
            teacher,
            out,
            [str(path) for path in texts],
            dimensions=dimensions,
            resume=resume,
            progress=progress,
            **{name: value for name, value in reading.items() if value is not None},
        )
    show_static_table(result)
    print_paths(model=result.model)


def _distil_encoder(
    teacher: str, corpus: Path, out: Path, layers: str | None, overrides: Sequence[str], resume: bool
) -> None:
    from bertsmith.cli.results import show_losses
    from bertsmith.compression.distilling.distil import distil_encoder
    from bertsmith.compression.distilling.recipes import make_encoder_recipe
    from bertsmith.model.locate import locate_model
    from bertsmith.tasks.checkpoints.infer_task import model_kind

    if model_kind(locate_model(teacher).folder) == "task":
        raise InputError(
            f"{teacher} is a fine-tuned model: its student learns from texts like those it will read. Give "
            "--texts or --train instead of --corpus."
        )
    values: dict[str, Any] = {"teacher": teacher, "corpus": str(corpus), "out": str(out)}
    if layers is not None:
        values["layers"] = _parse_layers(layers)
    recipe = make_encoder_recipe(values, list(overrides))
    result = distil_encoder(recipe, resume=resume, console=console)
    show_losses(result.before, result.metrics)
    print_paths(model=result.model, report=result.report)


def _require_fine_tuned(teacher: str) -> None:
    """Raises InputError for a teacher that isn't fine-tuned: it has no answers for a student to learn."""
    from bertsmith.model.locate import locate_model
    from bertsmith.tasks.checkpoints.infer_task import model_kind

    kind = model_kind(locate_model(teacher).folder)
    if kind != "task":
        raise InputError(
            f"{teacher} is not fine-tuned but a model for {kind}: it has no answers to teach. Give --corpus "
            "to make a smaller encoder of it, or fine-tune it first (bertsmith finetune)."
        )


@takes_settings(_recipe_setting_names)
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
    from bertsmith.compression.shrinking.shrink import shrink as search
    from bertsmith.compression.shrinking.shrink_report import COLUMNS, MEANINGS, make_rows

    values: dict[str, Any] = collect_options(columns, layout)
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
    shrunk = result.shrunk
    print_table(
        COLUMNS, make_rows(shrunk), title=f"{shrunk.metric} on dev, at least {shrunk.wanted:.4f} wanted"
    )
    console.print(MEANINGS, markup=False)
    console.print(
        f"Of those that keep {shrunk.keep:.0%} of the score, the one with the least work: "
        f"{shrunk.chosen.name}.",
        markup=False,
    )
    if shrunk.on_test is not None:
        console.print(shrunk.on_test.sentence(shrunk.metric), markup=False)
    for warning in shrunk.warnings:
        print_warning(warning)
    print_paths(model=result.model, report=result.report)
