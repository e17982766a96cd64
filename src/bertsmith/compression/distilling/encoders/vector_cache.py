"""A teacher's vectors of texts on disk, each computed when it is first needed: an epoch later it is read.

rank-0.f16      a row of float16 for each text, of length 1, or zeros while nobody needed it

The file is mapped into memory, so that what a killed run has computed is there for the one that goes on. A
row whose length isn't 1 was never written, or not to its end: it is computed again.

B texts, D dimensions.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bertsmith.arrays import Ints
from bertsmith.files import make_folder, require_free_space
from bertsmith.inference.embedding.vectors import normalised

Vectors = npt.NDArray[np.float32]
_TOLERANCE = 0.01  # of a length; rounding D values to float16 changes it by 0.0005


class VectorCache:
    """Vectors by the number of their text, below `rows`.

    What is handed out was rounded to float16, whether it is read or has just been computed, so that a run
    that goes on gets what it would have got.
    """

    def __init__(self, folder: Path, rank: int, rows: int, dimensions: int) -> None:
        """Raises ResourceError when the disk has no room for all of them."""
        path = folder / f"rank-{rank}.f16"
        size = rows * dimensions * 2
        if not path.exists() or path.stat().st_size != size:
            require_free_space(folder, size, "Keeping the teacher's vectors")
            make_folder(folder)
            with path.open("wb") as file:
                file.truncate(size)  # zeros that take no room until they are written
        self._rows = np.memmap(path, np.float16, mode="r+", shape=(rows, dimensions)).view(np.ndarray)
        self.computed = 0

    def get(self, numbers: Ints, compute: Callable[[Ints], Vectors]) -> Vectors:
        """(B,) -> (B, D) of length 1; `compute` gets places in `numbers`, and returns their vectors."""
        found = self._rows[numbers].astype(np.float32)
        whole = np.abs(np.einsum("bd,bd->b", found, found) - 1) <= _TOLERANCE  # what is no number isn't
        missing = np.flatnonzero(~whole)
        if len(missing):
            rounded = normalised(compute(missing)).astype(np.float16)
            self._rows[numbers[missing]] = rounded
            found[missing] = rounded
            self.computed += len(missing)
        return normalised(found)
