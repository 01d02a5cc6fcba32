"""Separates rows from duplicates: the first image with an id gets the row, later ones are
rejects.
"""

from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq

from vlmill.extract.images.plan import InputImage
from vlmill.extract.images.reader import duplicate
from vlmill.extract.run.batches import ExtractionResult
from vlmill.runtime.files.paths import readable
from vlmill.runtime.readers.regions import RegionRow
from vlmill.schemas.rejects import MAX_KEY, Reason, Rejected, clean


def get_unique_row(extracted: ExtractionResult, earlier_images: dict[str, InputImage]) -> RegionRow:
    """Returns the image's row, if its id has none yet. Raises Rejected.

    Ids in the plan count from their first appearance there (mark_repeats); the SHA-256 of a file
    counts from the first row.
    """
    image = extracted.image
    if isinstance(extracted.result, Rejected) and extracted.result.reason is Reason.DUPLICATE:
        raise extracted.result
    if extracted.image_id is not None and extracted.image_id in earlier_images:
        what = "bytes" if image.image_id is None else "id"
        raise duplicate(image.source, what, earlier_images[extracted.image_id].source)
    if image.image_id is not None:
        earlier_images[image.image_id] = image
    if isinstance(extracted.result, Rejected):
        raise extracted.result
    earlier_images[extracted.result.image_id] = image
    return extracted.result


def planned_ids(images: Sequence[InputImage]) -> dict[str, InputImage]:
    """Returns the first image of each id that is known before anything is read: a table's row or
    a file by its name.
    """
    first: dict[str, InputImage] = {}
    for image in images:
        if image.image_id is not None:
            first.setdefault(image.image_id, image)
    return first


def row_images(images: Sequence[InputImage], regions: Path, rejects: Path) -> dict[str, InputImage]:
    """Returns the images of a finished part's rows, by id.

    ``images`` are all of the part, and both shards are in their order. Of images with the same key
    the last ones are the rejects, as duplicates.
    """
    ids, keys = read_column(regions, "image_id"), read_column(rejects, "key")
    images_by_id: dict[str, InputImage] = {}
    for image in reversed(images):
        if keys and keys[-1] == clean(image.key, MAX_KEY):
            keys.pop()
        elif ids:
            images_by_id[ids.pop()] = image
    return images_by_id


def read_column(shard: Path, name: str) -> list[str]:
    """Returns a column of texts of a shard, in the order of its rows."""
    values: list[str] = pq.read_table(readable(shard), columns=[name]).column(0).to_pylist()
    return values
