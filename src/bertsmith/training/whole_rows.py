"""A row of a table is one sequence: a length without room for all its cells is refused before training.

The position of a cell is its column. Of a row that is cut or divided, cells would be lost, or stand at the
positions of others. A model that only knows distances between positions is warned of.
"""

from collections.abc import Sequence
from pathlib import Path

from bertsmith.data.sequences.codec import read_codec, table_row_length
from bertsmith.data.store_manifest import CODEC_FILE
from bertsmith.errors import RecipeError
from bertsmith.model.config import BertConfig
from bertsmith.model.manifest import stated_manifest

_KEY = "table_row_length"


def require_room_for_rows(store: Path | str, lengths: Sequence[int], setting: str) -> None:
    """Raises RecipeError where the `setting` has a length that a row of the table `store` doesn't fit into.
    Any other folder fits.
    """
    needed = table_row_length(store)
    if needed is not None:
        _require(min(lengths), needed, f"the table {store}", setting)


def note_on_places(store: Path | str, config: BertConfig) -> tuple[str, ...]:
    """A sentence for a store whose places have a meaning of their own, which rotary positions don't tell."""
    of_rows = config.position_embedding == "rotary" and (Path(store) / CODEC_FILE).is_file()
    if not of_rows or not read_codec(store).has_fixed_places:
        return ()
    return (
        f"a place in a row of {store} is a column or a square, and the rotary positions of "
        f"{config.model_type} tell only distances: model.model_type=bert learns more from such rows",
    )


def require_room_for_learned_rows(model: Path, max_length: int) -> None:
    """The same for fine-tuning a model that was pre-trained on a table."""
    needed = learned_row_length(model)
    if needed is not None:
        _require(max_length, needed, f"the table that {model} was pre-trained on", "max_length")


def learned_row_length(model: Path | None) -> int | None:
    """Of the table that a model was pre-trained on, as its bertsmith.json says; None where that says nothing
    of one.
    """
    manifest = None if model is None else stated_manifest(model)
    found = None if manifest is None else manifest.provenance.get(_KEY)
    return found if isinstance(found, int) else None


def rows_provenance(length: int | None) -> dict[str, int]:
    """What a provenance says of it."""
    return {} if length is None else {_KEY: length}


def _require(length: int, needed: int, table: str, setting: str) -> None:
    if length < needed:
        raise RecipeError(
            f"{setting}: {length} tokens, but a row of {table} has {needed}, [CLS] and [SEP] included, and "
            f"it is never cut, for a cell's position is its column. Give {needed} or more."
        )
