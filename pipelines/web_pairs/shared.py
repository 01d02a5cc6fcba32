"""Looks up texts that too many images share, in files of sorted keys."""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from vlmill.pipelines.web_pairs import rows
from vlmill.pipelines.web_pairs.units import Job, range_units
from vlmill.runtime.units.unit import Unit

Keys = npt.NDArray[np.bytes_]


def shared_path(job: Job, unit: Unit) -> Path:
    """Returns the path of the keys of a range's shared texts."""
    return job.joins / f"{unit.name}.shared"


class SharedTexts:
    """Looks up shared texts in memory-mapped files of sorted keys."""

    def __init__(self, job: Job) -> None:
        self._parts: dict[int, Keys] = {}
        for unit in range_units("shared", job):
            path = shared_path(job, unit)
            if path.stat().st_size:
                keys: Keys = np.memmap(path, dtype=f"S{rows.KEY}", mode="r")
                self._parts |= dict.fromkeys(unit.slices, keys)

    def __contains__(self, key: bytes) -> bool:
        keys = self._parts.get(key[0])
        if keys is None:
            return False
        value = np.array(key, dtype=keys.dtype)
        index = int(np.searchsorted(keys, value))
        return index < len(keys) and bool(keys[index] == value)
