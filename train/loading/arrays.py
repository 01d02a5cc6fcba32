"""Defines the array types that loading uses."""

from typing import Any

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


Array = npt.NDArray[np.float32]
Arrays = dict[str, npt.NDArray[Any]]


Keys = npt.NDArray[np.uint64]
