"""Finds the checkpoints of a training run by their names, and deletes old ones.

A run's output has ``checkpoints/step-00000100/`` and so on; a folder is a checkpoint if it contains
the file that describes it.
"""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from vlmill.runtime.files.atomic import TEMPORARY_PREFIX

CHECKPOINTS, STEP = "checkpoints", "step-"
# Of a checkpoint: the hashes of its training data (vlmill.runtime.readers.trained_on).
TRAINED_PAIRS, TRAINED_IMAGES = "trained_pairs.npy", "trained_images.npy"


def step_folder(output: str | Path, step: int) -> Path:
    """Returns the folder of the checkpoint after ``step``."""
    return Path(output) / CHECKPOINTS / f"{STEP}{step:08d}"


def checkpoints_with(output: Path, file: str) -> dict[int, Path]:
    """Returns the folders of a run's checkpoints that have ``file``, by step."""
    folders = (output / CHECKPOINTS).glob(f"{STEP}*")
    return {int(f.name.removeprefix(STEP)): f for f in folders if (f / file).is_file()}


def keep_last(folders: Mapping[int, Path], count: int, *, also: int | None = None) -> None:
    """Deletes all checkpoints but the last ``count``, at least one, and that of step ``also``."""
    for step in sorted(folders)[: -max(count, 1)]:
        if step == also:
            continue
        # Renamed first: a kill in between must not leave half a checkpoint under a valid name.
        doomed = folders[step].with_name(f"{TEMPORARY_PREFIX}{folders[step].name}")
        os.replace(folders[step], doomed)
        shutil.rmtree(doomed)


def remove_partial(output: str | Path) -> None:
    """Deletes partial checkpoints, which a kill left while they were written or deleted."""
    for folder in (Path(output) / CHECKPOINTS).glob(f"{TEMPORARY_PREFIX}*"):
        shutil.rmtree(folder)
