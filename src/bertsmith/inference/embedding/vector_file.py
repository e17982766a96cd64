"""Vectors on disk: a Parquet file whose metadata says what made the vectors.

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

    `model_sha256` is the hash of the weights and of every other file that determines the vectors.
    `tokenizer_sha256` is the hash of what determines token ids, "" in files of older versions. `max_length`
    counts tokens. `products` is the precision the model computed in, `precision` the one vectors are stored
    in. `ranges` are those of int8: base64 of 2 x D little-endian float32, the lowest values, then the
    highest.
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
        """`ranges` decoded, (D,) lowest and (D,) highest values; None if the vectors aren't int8."""
        if self.ranges is None:
            return None
        lowest, highest = np.frombuffer(base64.b64decode(self.ranges), "<f4").reshape(2, self.dimensions)
        return Int8Ranges(lowest.astype(np.float32), highest.astype(np.float32))

    def with_ranges(self, ranges: Int8Ranges) -> "About":
        """A copy of this description that holds `ranges`, encoded in base64."""
        numbers = np.stack([ranges.lowest, ranges.highest]).astype("<f4")
        return self.model_copy(update={"ranges": base64.b64encode(numbers.tobytes()).decode()})


class VectorFile(NamedTuple):
    """A file's content. `vectors` are (E, D) float32, decoded from whatever precision they are stored in."""

    ids: list[str]
    vectors: Vectors
    about: About


def read_vectors(path: Path | str) -> VectorFile:
    """Reads a file that `bertsmith embed` wrote. Raises InputError for a missing, damaged or other file."""
    about = read_about(path)
    table = pq.read_table(path)
    stored = table.column("vector").combine_chunks()
    values = stored.flatten().to_numpy(zero_copy_only=False).reshape(len(table), stored.type.list_size)
    return VectorFile(table.column("id").to_pylist(), decode(values, about), about)


def read_about(path: Path | str) -> About:
    """Reads a file's metadata alone. Raises InputError as `read_vectors` does."""
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
    """A table of ids and vectors (E, D), stored in the precision of `about`; `noted` is further metadata."""
    values = encode(vectors, about)
    flat = pa.array(np.ascontiguousarray(values).reshape(-1), type=_VALUES[about.precision])
    schema = vector_schema(about, **noted)
    column = pa.FixedSizeListArray.from_arrays(flat, type=schema.field("vector").type)
    return pa.table([pa.array(ids, pa.string()), column], schema=schema)


def vector_schema(about: About, **noted: str) -> pa.Schema:
    """The columns and the metadata of a file; `noted` is metadata besides `about`."""
    width = -(-about.dimensions // 8) if about.precision == "binary" else about.dimensions
    fields = [pa.field("id", pa.string()), pa.field("vector", pa.list_(_VALUES[about.precision], width))]
    return pa.schema(fields, metadata={_KEY.decode(): about.model_dump_json(), **noted})


def encode(vectors: Vectors, about: About) -> npt.NDArray[Any]:
    """(E, D) float32 -> the values to store: float32 or int8 (E, D), or bits uint8 (E, ceil(D / 8))."""
    if about.precision == "binary":
        return to_bits(vectors)
    ranges = about.int8_ranges
    return vectors if ranges is None else ranges.encode(vectors)


def decode(values: npt.NDArray[Any], about: About) -> Vectors:
    """The stored values, as `encode` makes them -> (E, D) float32."""
    if about.precision == "binary":
        return from_bits(values, about.dimensions)
    ranges = about.int8_ranges
    return values if ranges is None else ranges.decode(values)
