"""Vectors on disk: a Parquet file that says in its metadata what made it.

id       string
vector   a list of fixed size: D float32, D int8, or ceil(D / 8) uint8 of sign bits

In the schema's metadata the key `bertsmith` holds `About` as JSON, and `rows_sha256` the hash of all ids and
texts in order.
"""

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict, ValidationError

from bertsmith.errors import InputError
from bertsmith.inference.embedding.vectors import Int8Ranges, Precision, Vectors, from_bits, to_bits

_KEY = b"bertsmith"
ROWS = "rows_sha256"
_VALUES: dict[Precision, pa.DataType] = {"float32": pa.float32(), "int8": pa.int8(), "binary": pa.uint8()}


class About(BaseModel):
    """What made a file's vectors.

    `model_sha256` is of its weights and what else in its folder makes vectors, `tokenizer_sha256` of what
    makes token ids, "" in files of old that didn't note it; `max_length` in tokens; `products` what the model
    computed in, `precision` what is stored; `ranges` those of int8, as base64 of 2 x D little-endian float32:
    the lowest values, then the highest.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str
    model_sha256: str
    tokenizer_sha256: str = ""
    kind: str
    prefix: str
    max_length: int
    long_texts: str
    pooling: str
    normalise: bool
    dimensions: int
    products: str = "float32"
    precision: Precision
    ranges: str | None = None

    @property
    def int8_ranges(self) -> Int8Ranges | None:
        """`ranges` as numbers."""
        if self.ranges is None:
            return None
        lowest, highest = np.frombuffer(base64.b64decode(self.ranges), "<f4").reshape(2, self.dimensions)
        return Int8Ranges(lowest.astype(np.float32), highest.astype(np.float32))

    def with_ranges(self, ranges: Int8Ranges) -> "About":
        """The same with `ranges` noted."""
        numbers = np.stack([ranges.lowest, ranges.highest]).astype("<f4")
        return self.model_copy(update={"ranges": base64.b64encode(numbers.tobytes()).decode()})


class VectorFile(NamedTuple):
    """A file's content: `vectors` (E, D) float32, decoded whatever the precision."""

    ids: list[str]
    vectors: Vectors
    about: About


def read_vectors(path: Path | str) -> VectorFile:
    """Raises InputError for what is no whole file of vectors."""
    about = read_about(path)
    table = pq.read_table(path)
    stored = table.column("vector").combine_chunks()
    values = stored.flatten().to_numpy(zero_copy_only=False).reshape(len(table), stored.type.list_size)
    return VectorFile(table.column("id").to_pylist(), decode(values, about), about)


def read_about(path: Path | str) -> About:
    """Of the metadata alone. Raises InputError as `read_vectors` does."""
    try:
        metadata: dict[bytes, bytes] = pq.read_schema(path).metadata or {}
        return About.model_validate_json(metadata[_KEY])
    except FileNotFoundError as error:
        raise InputError(f"{path} does not exist.") from error
    except (pa.ArrowInvalid, OSError, KeyError, ValidationError) as error:
        raise InputError(
            f"{path} is not a whole file of vectors from `bertsmith embed`. Make it again."
        ) from error


def vector_table(ids: Sequence[str], vectors: Vectors, about: About, **noted: str) -> pa.Table:
    """Vectors (E, D) in the precision of `about` as a table; `noted` goes into its metadata too."""
    values = encode(vectors, about)
    flat = pa.array(np.ascontiguousarray(values).reshape(-1), type=_VALUES[about.precision])
    schema = vector_schema(about, **noted)
    column = pa.FixedSizeListArray.from_arrays(flat, type=schema.field("vector").type)
    return pa.table([pa.array(ids, pa.string()), column], schema=schema)


def vector_schema(about: About, **noted: str) -> pa.Schema:
    """Columns and metadata of a file."""
    width = -(-about.dimensions // 8) if about.precision == "binary" else about.dimensions
    fields = [pa.field("id", pa.string()), pa.field("vector", pa.list_(_VALUES[about.precision], width))]
    return pa.schema(fields, metadata={_KEY.decode(): about.model_dump_json(), **noted})


def encode(vectors: Vectors, about: About) -> npt.NDArray[Any]:
    """(E, D) float32 -> the values that are stored."""
    if about.precision == "binary":
        return to_bits(vectors)
    ranges = about.int8_ranges
    return vectors if ranges is None else ranges.encode(vectors)


def decode(values: npt.NDArray[Any], about: About) -> Vectors:
    """The values that are stored -> (E, D) float32."""
    if about.precision == "binary":
        return from_bits(values, about.dimensions)
    ranges = about.int8_ranges
    return values if ranges is None else ranges.decode(values)
