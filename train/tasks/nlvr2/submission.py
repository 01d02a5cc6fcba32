"""Writes predictions of NLVR2 in the form that its scripts read."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from vlmill.runtime.files.atomic import write_text
from vlmill.train.tasks.scores import require_same_ids


def write_predictions(
    path: Path, predictions: Mapping[str, bool], identifiers: Sequence[str]
) -> None:
    """Writes lines ``identifier,True|False`` without a header, in the order of the examples.

    Raises InputError for missing and surplus identifiers.
    """
    require_same_ids(predictions.keys(), set(identifiers), path.name)
    write_text(path, "".join(f"{key},{bool(predictions[key])}\n" for key in identifiers))
