"""`bertsmith check`, whether a model answers as it did, and `bertsmith look`, what an answer rests on."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from bertsmith.cli.options import AS_NAMED, FileLayout, Flag, Out, ReadableText, collect_options
from bertsmith.cli.screen import (
    console,
    print_facts,
    print_json,
    print_paths,
    print_table,
    print_warning,
    progress_bar,
)
from bertsmith.errors import InputError

if TYPE_CHECKING:
    from bertsmith.inference.explaining.look import Look


_SHOWN = 8  # differences of each kind; there may be one a text


def check(
    model: str,
    *,
    against: Literal["transformers", "sentence-transformers"] | None = None,
    write: Flag = False,
    task: str | None = None,
    json: Flag = False,
) -> int:
    """Check that a model answers as it did when it was written.

    A model's folder holds golden answers: what the model made of some twenty fixed texts, at every stage, in
    float32. They are asked for again, in float32 and in the precision that is used on this machine. So a
    changed file or setting shows, and a damaged kernel, or another tokenizer, torch or processor. What
    differs is shown with the first stage at which it does: pieces, embeddings, a layer, the head or the
    answer. The status is 1 if anything differs.

    Parameters
    ----------
    model
        A folder such as runs/NAME/model, minilm, a model's name on the hub, the folder of an exported
        graph, or an index.
    against
        Compare it with what transformers or sentence-transformers make of the same folder, if they are
        installed, instead of with its golden answers.
    write
        First keep what the model answers now as its golden answers. The folder must have a bertsmith.json.
    task
        For a model with a task of your own: package.module:Class.
    json
        Print JSON instead of sentences.

    Examples
    --------
    bertsmith check runs/intents/model

    bertsmith check minilm --against sentence-transformers

    bertsmith check models/bert-base-uncased --write
    """
    from bertsmith.inference.checking.check import check_model
    from bertsmith.tasks.registry import find_task

    result = check_model(model, find_task(task) if task else None, against=against, write=write)
    status = 0 if result.agrees else 1
    if json:
        print_json({"agrees": result.agrees, **asdict(result), "folder": str(result.folder)})
        return status
    facts = {}
    for name, compared in result.comparisons.items():
        largest = (
            f"largest difference: {compared.largest}" if compared.largest.size else "no difference of numbers"
        )
        agreeing = f"{compared.texts - len(compared.differences)} of {compared.texts} texts agree"
        facts[name] = f"{agreeing}; {largest} (tolerated: {compared.tolerance:.0e})"
    print_facts(f"{model} beside {result.beside}", facts)
    console.print()
    lists = [result.settings, *(comparison.differences for comparison in result.comparisons.values())]
    for differences in lists:
        for difference in differences[:_SHOWN]:
            print_warning(str(difference))
        if len(differences) > _SHOWN:
            print_warning(f"and {len(differences) - _SHOWN} more")
    return status


def look(
    model: str,
    text: ReadableText,
    second: ReadableText | None = None,
    *,
    target: ReadableText | None = None,
    word: ReadableText | None = None,
    among: Path | None = None,
    column: str | None = None,
    layout: Annotated[FileLayout | None, AS_NAMED] = None,
    out: Out = Path("look.html"),
    overwrite: Flag = False,
    task: str | None = None,
) -> None:
    """Show what a model makes of one input, on a page that opens in any browser.

    The page shows what each token adds to the answer, and where every head of every layer looks. With --word
    it also shows which words of other texts are nearest to that word, layer by layer.

    Parameters
    ----------
    model
        A folder such as runs/NAME/model, minilm, or a model's name on the hub.
    text
        What the model reads: a text, a question, a query, or a text with a mask.
    second
        The second text of a pair, the passage for a question, or the document for a query.
    target
        The class or vocabulary piece to explain instead of the answer. For tags: the number of a word,
        counted from 0.
    word
        A word of the text, to find its nearest neighbours in --among.
    among
        The texts to find neighbours in: a line or a row each.
    column
        The column of the text in --among, if it is a table: its name, or its number counted from 1.
    out
        The page to write.
    overwrite
        Replace the page if it exists.
    task
        For a model with a task of your own: package.module:Class.

    Examples
    --------
    bertsmith look runs/intents/model "My card has not arrived yet"

    bertsmith look runs/answers/model "Who wrote it?" "It was written by Ada in 1843." --out answer.html

    bertsmith look runs/articles/model "The dog chased the ball" --word dog --among sentences.txt
    """
    from bertsmith.files import require_output
    from bertsmith.inference.explaining.look import look as look_at
    from bertsmith.model.locate import locate_model
    from bertsmith.tasks.registry import find_task
    from bertsmith.text.files.rows import stream_texts

    reading = collect_options(layout) if column is None else {"column": column} | collect_options(layout)
    if among is None and reading:
        options = " and ".join(
            f"--no-{name}" if value is False else f"--{name}" for name, value in reading.items()
        )
        raise InputError(f"{options}: there is no file to read. Add --among, or leave this out.")
    require_output(out, overwrite, [locate_model(model).folder, *([] if among is None else [among])])
    _refuse_columns(model)
    texts = None if among is None else stream_texts(among, column, **collect_options(layout))
    with progress_bar("Looking") as progress:
        view = look_at(
            model,
            text if second is None else (text, second),
            target=target,
            word=word,
            among=texts,
            task=find_task(task) if task else None,
            progress=progress,
        )
    _print_look(model, view)
    view.save(out, overwrite=overwrite)
    print_paths(page=out)


def _refuse_columns(model: str) -> None:
    """Raises InputError for a model that reads columns beside the text: a command has no place for them."""
    from bertsmith.model.locate import locate_model
    from bertsmith.model.manifest import read_unverified_manifest

    manifest = read_unverified_manifest(locate_model(model).folder)
    settings = {} if manifest is None else manifest.settings.get("settings", {})
    if isinstance(settings, dict) and (columns := settings.get("features")):
        names = ", ".join(map(str, columns))
        raise InputError(
            f"{model} reads columns beside the text ({names}), which it can be given from Python only: "
            'bertsmith.look(model, {"text": …, "COLUMN": …}).save("look.html").'
        )


def _print_look(model: str, view: "Look") -> None:
    """What the answer rests on most, and a word's neighbours in the last layer."""
    from bertsmith.text.tokens.pieces import describe_tokens

    attributions = view.attributions
    if attributions is not None:
        facts = {
            "the answer": f"{attributions.target}: {attributions.value:.4f}",
            "without the text": f"{attributions.baseline_value:.4f}",
        }
        print_facts(f"{model} on this input", facts)
        shown = describe_tokens(view.tokenizer, attributions.token_ids)
        best = sorted(range(len(shown)), key=lambda position: -abs(attributions.scores[position]))[:10]
        print_table(
            ("token", "adds"),
            [(shown[position]["text"], f"{attributions.scores[position]:+.4f}") for position in best],
        )
    if view.neighbours is not None:
        last = [
            (f"{near.before} [{near.word}] {near.after}", f"{near.cosine:.3f}")
            for near in view.neighbours.layers[-1]
        ]
        print_table((f"nearest to {view.neighbours.word} in the last layer", "cosine"), last)
