"""Writes the files of predictions that GLUE's server reads."""

from collections.abc import Mapping
from pathlib import Path

from vlmill.runtime.files.atomic import write_text
from vlmill.train.tasks.glue.metrics import TASKS
from vlmill.train.tasks.scores import require_same_ids

BEST_SCORE = 5.0  # of STS-B


def prediction_file(task: str, predictions: Mapping[int, int | float]) -> str:
    """Returns the text of a task's file: ``index`` and ``prediction``, by rising index from 0.

    Classes are written by their names, STS-B's scores clipped to 0..5 with three decimals. Raises
    InputError unless the indices are 0, 1, ... without a gap.
    """
    rows = range(max(predictions, default=-1) + 1)
    require_same_ids(predictions.keys(), set(rows), f"predictions of {task}")
    classes = TASKS[task].classes
    written = [
        classes[int(predictions[row])]
        if classes
        else f"{min(max(predictions[row], 0.0), BEST_SCORE):.3f}"
        for row in rows
    ]
    lines = ["index\tprediction", *(f"{row}\t{text}" for row, text in enumerate(written))]
    return "\n".join(lines) + "\n"


def write_prediction_file(folder: Path, task: str, predictions: Mapping[int, int | float]) -> Path:
    """Writes a task's file under the name that the server expects: ``SST-2.tsv``."""
    path = folder / f"{TASKS[task].file}.tsv"
    write_text(path, prediction_file(task, predictions))
    return path
