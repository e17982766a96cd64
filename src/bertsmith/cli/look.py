"""`bertsmith look`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from bertsmith.cli.options import AS_NAMED, FileLayout, Flag, Out, ReadableText, given

if TYPE_CHECKING:
    from bertsmith.inference.looking.look import Look


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

    Examples
    --------
    bertsmith look runs/intents/model "My card has not arrived yet"

    bertsmith look runs/answers/model "Who wrote it?" "It was written by Ada in 1843." --out answer.html

    bertsmith look runs/articles/model "The dog chased the ball" --word dog --among sentences.txt
    """
    from bertsmith.cli.screen import print_paths, progress_bar
    from bertsmith.files import require_output
    from bertsmith.inference.looking.look import look as look_at
    from bertsmith.model.locate import locate_model
    from bertsmith.text.labelled.rows import stream_texts

    if among is None:
        _refuse_reading({"column": column} | given(layout))
    require_output(out, overwrite, [locate_model(model).folder, *([] if among is None else [among])])
    _refuse_columns(model)
    texts = None if among is None else stream_texts(among, column, **given(layout))
    with progress_bar("Looking") as progress:
        found = look_at(
            model,
            text if second is None else (text, second),
            target=target,
            word=word,
            among=texts,
            progress=progress,
        )
    _show(model, found)
    found.save(out, overwrite=overwrite)
    print_paths(page=out)


def _refuse_reading(said: dict[str, Any]) -> None:
    """Raises InputError for options that say how --among is read, where it isn't given."""
    from bertsmith.errors import InputError

    names = [
        f"--no-{name}" if value is False else f"--{name}" for name, value in said.items() if value is not None
    ]
    if names:
        raise InputError(f"{' and '.join(names)}: there is no file to read. Add --among, or leave this out.")


def _refuse_columns(model: str) -> None:
    """Raises InputError for a model that reads columns beside the text: a command has no place for them."""
    from bertsmith.errors import InputError
    from bertsmith.model.locate import locate_model
    from bertsmith.model.manifest import stated_manifest

    manifest = stated_manifest(locate_model(model).folder)
    settings = {} if manifest is None else manifest.settings.get("settings", {})
    if isinstance(settings, dict) and (columns := settings.get("features")):
        names = ", ".join(map(str, columns))
        raise InputError(
            f"{model} reads columns beside the text ({names}), which it can be given from Python only: "
            'bertsmith.look(model, {"text": …, "COLUMN": …}).save("look.html").'
        )


def _show(model: str, found: "Look") -> None:
    """What the answer rests on most, and a word's neighbours in the last layer."""
    from bertsmith.cli.screen import print_facts, print_table
    from bertsmith.text.tokens.shown_tokens import shown_tokens

    rests = found.attributions
    if rests is not None:
        facts = {
            "the answer": f"{rests.target}: {rests.value:.4f}",
            "without the text": f"{rests.baseline_value:.4f}",
        }
        print_facts(f"{model} on this input", facts)
        shown = shown_tokens(found.tokenizer, rests.token_ids)
        best = sorted(range(len(shown)), key=lambda place: -abs(rests.scores[place]))[:10]
        print_table(
            ("token", "adds"), [(shown[place]["text"], f"{rests.scores[place]:+.4f}") for place in best]
        )
    if found.neighbours is not None:
        last = [
            (f"{near.before} [{near.word}] {near.after}", f"{near.cosine:.3f}")
            for near in found.neighbours.layers[-1]
        ]
        print_table((f"nearest to {found.neighbours.word} in the last layer", "cosine"), last)
