"""Stores the training data of a checkpoint's weights as two files of sorted 64-bit hashes
of ids.
"""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from vlmill.schemas.ids import key64

Keys = npt.NDArray[np.uint64]


def mapped_keys(path: Path) -> Keys:
    """Maps a file of hashes. Raises OSError or ValueError for another file."""
    try:
        keys: Keys = np.load(path, mmap_mode="r", allow_pickle=False)
    except EOFError:
        raise ValueError(f"{path.name} is empty") from None
    if keys.ndim != 1 or keys.dtype != np.uint64:
        raise ValueError(f"{path.name} holds {keys.dtype} {list(keys.shape)}, expected uint64 [N]")
    return keys


def known_keys(queries: Keys, keys: Keys) -> npt.NDArray[np.bool_]:
    """Returns which of the hashes ``queries`` are in the sorted ``keys``."""
    if not len(keys):
        return np.zeros(len(queries), dtype=np.bool_)
    positions = np.minimum(np.searchsorted(keys, queries), len(keys) - 1)
    same: npt.NDArray[np.bool_] = keys[positions] == queries
    return same


def count_known(ids: Iterable[str], keys: Keys) -> int:
    """Returns how many of the ids have their hash among the sorted ``keys``."""
    queries = np.fromiter(map(key64, ids), np.uint64)
    return int(np.count_nonzero(known_keys(queries, keys)))
