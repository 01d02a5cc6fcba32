"""Tells rows from duplicates: the first picture with an id has the row, later ones are rejects."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq

from vlmill.extract.pictures.plan import InputImage
from vlmill.extract.pictures.reader import duplicate
from vlmill.extract.run.batches import ExtractionResult
from vlmill.schemas.files.paths import readable
from vlmill.schemas.readers.regions import RegionRow
from vlmill.schemas.rejects import MAX_KEY, Reason, Rejected, clean


def get_unique_row(extracted: ExtractionResult, earlier_images: dict[str, InputImage]) -> RegionRow:
    """Returns the picture's row, if its id has none yet. Raises Rejected.

    Ids that the plan gives count from their first appearance there (repeats_marked); the SHA-256 of
    a file counts from the first row.
    """
    picture = extracted.picture
    if isinstance(extracted.result, Rejected) and extracted.result.reason is Reason.DUPLICATE:
        raise extracted.result
    if extracted.image_id is not None and extracted.image_id in earlier_images:
        what = "bytes" if picture.image_id is None else "id"
        raise duplicate(picture.source, what, earlier_images[extracted.image_id].source)
    if picture.image_id is not None:
        earlier_images[picture.image_id] = picture
    if isinstance(extracted.result, Rejected):
        raise extracted.result
    earlier_images[extracted.result.image_id] = picture
    return extracted.result


def planned_ids(pictures: Sequence[InputImage]) -> dict[str, InputImage]:
    """Returns the first picture of each id that is known before anything is read: a table's row or
    a file by its name.
    """
    first: dict[str, InputImage] = {}
    for picture in pictures:
        if picture.image_id is not None:
            first.setdefault(picture.image_id, picture)
    return first


def row_pictures(
    pictures: Sequence[InputImage], regions: Path, rejects: Path
) -> dict[str, InputImage]:
    """Returns the pictures of a finished part's rows, by id.

    ``pictures`` are all of the part, and both shards are in their order. Of pictures with one key
    the last ones are the rejects: they were duplicates.
    """
    ids = image_ids(regions)
    keys = pq.read_table(readable(rejects), columns=["key"]).column(0).to_pylist()
    images_by_id: dict[str, InputImage] = {}
    for picture in reversed(pictures):
        if keys and keys[-1] == clean(picture.key, MAX_KEY):
            keys.pop()
        elif ids:
            images_by_id[ids.pop()] = picture
    return images_by_id


def image_ids(path: Path) -> list[str]:
    """Returns the ids of a shard's rows."""
    ids: list[str] = pq.read_table(readable(path), columns=["image_id"]).column(0).to_pylist()
    return ids
