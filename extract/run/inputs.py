"""Describes the inputs of ``extract-rois run`` for the manifest."""

from collections.abc import Sequence
from pathlib import Path

from vlmill.extract.images.plan import is_table
from vlmill.runtime.files.digests import path_input, table_input
from vlmill.runtime.files.inputs import Input
from vlmill.schemas.tables import IMAGES, PAIRS


def inputs_of_run(arguments: Sequence[str], pairs: str | None, boxes: Path | None) -> list[Input]:
    """Records the images, the pairs that chose among them, and the boxes."""
    images = [
        table_input("INPUT", argument, IMAGES)
        if is_table(argument)
        else path_input("INPUT", argument)
        for argument in arguments
    ]
    chosen = [] if pairs is None else [table_input("--pairs", pairs, PAIRS)]
    box_files = [] if boxes is None else [path_input("--boxes", boxes)]
    return [*images, *chosen, *box_files]
