"""`bertsmith sequences`: turns integers, symbols, table rows, series and images into a token store, and
encodes labelled rows in the same tokens.
"""

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from bertsmith.cli.options import AS_NAMED, FileLayout, Flag, Out, OutOrDash, collect_options
from bertsmith.cli.screen import console, print_facts, print_warning, progress_bar
from bertsmith.data.sequences.building import SequenceSettings
from bertsmith.files import is_standard_output

app = App(name="sequences", help="Turn logs, DNA, table rows, series or images into tokens, to train on.")
DEFAULTS = SequenceSettings()


@app.command
def build(
    *files: Path,
    out: Out,
    like: Path | None = None,
    settings: Annotated[SequenceSettings, Parameter(name="*", consume_multiple=True)] = DEFAULTS,
) -> None:
    """Turn sequences of integers or strings, table rows, series or images into a token store.

    The vocabulary is counted, and written to OUT/tokenizer. In a table each cell is a token: a number by the
    bin that it falls into, or as it is; a category by itself. Series and images are cut into patches of
    numbers.

    Parameters
    ----------
    files
        Parquet, JSON lines, CSV, TSV, .npy or .npz.
    out
        The token store's folder.
    like
        An earlier store whose tokens the new one gets, to go on with a model that learned from it.

    Examples
    --------
    bertsmith sequences build logs.parquet --column events --out stores/logs
    bertsmith sequences build proteins.csv --column protein --characters --out stores/proteins
    bertsmith sequences build games.npy --out stores/games
    bertsmith sequences build customers.csv --kind table --leave-out id label --out stores/customers
    bertsmith sequences build sales.parquet --kind table --numbers continuous --out stores/sales
    bertsmith sequences build sensors.npz --kind series --column signal --patch 16 --out stores/sensors
    bertsmith sequences build images.npy --kind images --patch 4 --out stores/images
    bertsmith sequences build december.parquet --like stores/logs --out stores/december
    """
    from bertsmith.data.sequences.building import build_sequences

    with progress_bar("Reading sequences") as progress:
        built = build_sequences(files, out, settings, progress, like=like)
    facts = {
        "rows": f"{built.rows['train']:,} to train on, {built.rows['heldout']:,} held out",
        "tokens": f"{built.tokens:,}, {built.unknown:,} of them [UNK]",
        "vocabulary": f"{built.vocab_size:,} tokens, five of them special",
    }
    for column in built.codec.columns:
        number = f"number, {len(column.edges) + 1} bins" if column.scale is None else "number, as it is"
        facts[column.name] = number if column.kind == "number" else "category"
    print_facts(f"Sequences {out}", facts)
    if built.empty:
        print_warning(f"{built.empty:,} rows have no item and were left out.")
    # BERT's positions are learned.
    family = "model.model_type=bert " if built.codec.has_fixed_positions else ""
    console.print(f"Pre-train on them with {family}corpus={out} data.next_sentence=false", markup=False)


@app.command
def encode(
    file: Path,
    *,
    like: Path,
    out: OutOrDash,
    overwrite: Flag = False,
    layout: Annotated[FileLayout | None, AS_NAMED] = None,
) -> None:
    """Write rows as JSON lines in the symbols of a store, for finetune and predict.

    Parameters
    ----------
    file
        Rows with the columns that the store was built from. Other columns, such as labels, are copied.
    like
        The store, made by `bertsmith sequences build`.
    out
        The JSON lines to write; - is standard output.
    overwrite
        Replace the file if it exists.

    Examples
    --------
    bertsmith sequences encode labelled.parquet --like stores/logs --out labelled.jsonl
    """
    from bertsmith.data.sequences.encoding import encode_sequences

    with progress_bar("Encoding") as progress:
        encoded = encode_sequences(
            file, like, out, overwrite=overwrite, progress=progress, **collect_options(layout)
        )
    if not is_standard_output(out):
        console.print(f"{encoded.rows:,} rows written to {out}", markup=False)
    if encoded.unknown:
        print_warning(
            f"{encoded.unknown:,} of {encoded.symbols:,} symbols are not in the vocabulary of {like}, such "
            f"as {', '.join(encoded.unknown_examples)}: the model reads [UNK], the token for what it doesn't "
            "know.",
            out,
        )
