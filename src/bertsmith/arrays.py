"""The arrays that pass from function to function, by what they hold."""

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]  # of which many are held
Floats = npt.NDArray[np.float64]
Float32s = npt.NDArray[np.float32]  # of which many are held, or a head gives
Bools = npt.NDArray[np.bool_]
