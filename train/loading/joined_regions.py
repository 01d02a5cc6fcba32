"""Joins an image's detected and annotated regions.

N detected and M annotated regions of an image, R of both.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from vlmill.runtime.readers.joined_regions import JoinedRegions
from vlmill.runtime.readers.mapped import RegionGroup
from vlmill.runtime.readers.regions import RegionReader, RegionRow
from vlmill.schemas.errors import InputError
from vlmill.train.loading.arrays import Array, Ids
from vlmill.train.loading.masking.regions import MaskedRegions
from vlmill.train.loading.sample import (
    SampledRegions,
    StoredFeatures,
    placed_boxes,
    stored_features,
    unread_features,
)
from vlmill.train.settings.parts import Feeding


def count_shown(
    num_detected: int, num_annotated: int, max_regions: int, *, detected_first: bool = False
) -> tuple[int, int]:
    """Returns how many regions of each type are shown among ``max_regions``; the last ones are
    dropped.

    Annotated regions have priority; with ``detected_first`` detected ones have it (ViLBERT's code
    for VCR, and for RefCOCO+).
    """
    if detected_first:
        detected = min(max_regions, num_detected)
        return detected, min(max_regions - detected, num_annotated)
    annotated = min(max_regions, num_annotated)
    return min(max_regions - annotated, num_detected), annotated


def whole_weights(num_detected: int, num_annotated: int) -> Array:
    """Returns each region's share in the full image's feature: float32 [N + M], of sum 1.

    It is the mean of the two types' means, each weighted by its number of rows, including the full
    image (ViLBERT's code): (f (n + 1) + g (m + 1)) / (n + m + 2).
    """
    counts = [count for count in (num_detected, num_annotated) if count]
    rows = sum(count + 1 for count in counts)
    shares = [np.full(count, (count + 1) / (count * rows), np.float32) for count in counts]
    return np.concatenate(shares) if shares else np.empty(0, np.float32)


def compute_region_weights(counts: tuple[int, int], feeding: Feeding) -> Array:
    """Returns the regions' shares in the full image's feature, as :func:`whole_weights`.

    Annotated regions that are read in training only do not count, as they are absent later
    (ViLBERT's code for RefCOCO+), unless nothing was detected.
    """
    detected, annotated = counts
    if feeding.boxes == "joined-in-training" and detected:
        none = np.zeros(annotated, np.float32)
        return np.concatenate([whole_weights(detected, 0), none])
    return whole_weights(detected, annotated)


def joined_regions(
    regions: RegionReader,
    row_number: int,
    feeding: Feeding,
    *,
    with_annotated: bool = True,
    mirrored: bool = False,
) -> SampledRegions:
    """Returns the detected regions of row ``row_number`` and, ``with_annotated``, the image's
    annotated ones after them.

    Regions that are not shown are read after both, as they count for the full image. Nothing is
    masked, and classes are not read: the two tables may use different class lists. Raises
    InputError for tables that give the image different sizes.
    """
    tables = [regions.locate_row(row_number)]
    rows = [tables[0][0].row(tables[0][1], ())]
    if with_annotated:
        assert isinstance(regions, JoinedRegions)  # opened by `open_examples`
        tables.append(regions.locate_annotated(rows[0].image_id))
        rows.append(tables[1][0].row(tables[1][1], ()))
        require_same_size(*rows)
    counts = len(rows[0].boxes), len(rows[1].boxes) if with_annotated else 0
    in_training = feeding.boxes == "joined-in-training"
    shown_counts = count_shown(*counts, feeding.max_regions, detected_first=in_training)
    parts = joined_parts(counts, shown_counts)
    order = np.concatenate([positions + which * counts[0] for which, positions in parts])
    boxes = np.concatenate([row.boxes for row in rows])[order]
    size = rows[0].width, rows[0].height
    return SampledRegions(
        row=RegionRow(image_id=rows[0].image_id, width=size[0], height=size[1], boxes=boxes),
        features=(
            _features(len(regions.paths), tables, parts)
            if feeding.kind == "regions"
            else unread_features(len(order))
        ),
        boxes=placed_boxes(boxes, size, feeding, mirrored=mirrored),
        masks=MaskedRegions.none(len(boxes)),
        num_shown=sum(shown_counts),
        mirrored=mirrored,
        weights=compute_region_weights(counts, feeding)[order],
        first_annotated=shown_counts[0],
    )


def require_same_size(detected: RegionRow, annotated: RegionRow) -> None:
    """Raises InputError for an image with different sizes in two tables."""
    detected_size, annotated_size = ((row.width, row.height) for row in (detected, annotated))
    if detected_size != annotated_size:
        raise InputError(
            f"--annotated-regions: {annotated.image_id} is {annotated_size[0]} x "
            f"{annotated_size[1]} pixels, in "
            f"--regions {detected_size[0]} x {detected_size[1]}; extract both from the same image"
        )


def joined_parts(counts: tuple[int, int], shown_counts: tuple[int, int]) -> list[tuple[int, Ids]]:
    """Returns the regions that are read, in order: 0 for detected or 1 for annotated, and their
    positions in that row. The shown regions of both come first, then the others.
    """
    starts = [np.arange(count) for count in shown_counts]
    rests = [np.arange(first, count) for first, count in zip(shown_counts, counts, strict=True)]
    return list(enumerate(starts)) + list(enumerate(rests))


def _features(
    num_shards: int,
    tables: Sequence[tuple[RegionGroup, int]],
    parts: list[tuple[int, Ids]],
) -> StoredFeatures:
    """Returns the storage locations of these parts, concatenated. Shards of the annotated table are
    numbered from ``num_shards``.

    The first part has no order: it begins with its row, as `SampledRegions.stored_boxes` requires.
    """
    stored = []
    for which, positions in parts:
        if not len(positions):
            continue
        part = stored_features(
            *tables[which], len(positions), None if positions[0] == 0 else positions
        )
        if which and part.location is not None:
            shard, offset, size = part.location
            part = replace(part, location=(num_shards + shard, offset, size))
        stored.append(part)
    first, *more = stored or [stored_features(*tables[0], 0)]
    return replace(first, more=tuple(more))
