"""An image's detected and annotated regions are fed together here.

N detected and M annotated regions of an image, R of both.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from vlmill.runtime.readers.joined_regions import JoinedRegions
from vlmill.runtime.readers.region_group import RegionGroup
from vlmill.runtime.readers.regions import RegionReader, RegionRow
from vlmill.schemas.errors import InputError
from vlmill.train.loading.arrays import Array, Ids
from vlmill.train.loading.feature_store import StoredFeatures, stored_features, unread_features
from vlmill.train.loading.masking.regions import MaskedRegions
from vlmill.train.loading.sample import SampledRegions, placed_boxes
from vlmill.train.settings.parts import Feeding


def count_shown(
    num_detected: int, num_annotated: int, max_regions: int, *, detected_first: bool = False
) -> tuple[int, int]:
    """Returns how many regions of either kind are shown among ``max_regions``; the last ones of
    each go.

    Annotated ones have the right of way, but with ``detected_first`` (ViLBERT's code for VCR, and
    for RefCOCO+).
    """
    if detected_first:
        detected = min(max_regions, num_detected)
        return detected, min(max_regions - detected, num_annotated)
    annotated = min(max_regions, num_annotated)
    return min(max_regions - annotated, num_detected), annotated


def whole_weights(num_detected: int, num_annotated: int) -> Array:
    """Returns each region's share in the full image's feature: float32 [N + M], of sum 1.

    That is the mean of both kinds' means, each weighted with its number of rows, the full
    image's among them (ViLBERT's code): (f (n + 1) + g (m + 1)) / (n + m + 2).
    """
    counts = [count for count in (num_detected, num_annotated) if count]
    rows = sum(count + 1 for count in counts)
    shares = [np.full(count, (count + 1) / (count * rows), np.float32) for count in counts]
    return np.concatenate(shares) if shares else np.empty(0, np.float32)


def compute_region_weights(counts: tuple[int, int], feeding: Feeding) -> Array:
    """Returns the shares where both kinds are always fed, as :func:`whole_weights`; where annotated
    ones come along in training alone they do not count, as later they are not there (ViLBERT's
    code for RefCOCO+), unless nothing was detected.
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
    """Takes the detected regions of row ``row_number`` and, ``with_annotated``, the image's
    annotated ones behind them.

    Those that are not shown are read behind both, as they count for the full image. Nothing is
    masked, and no class comes along: the two tables' classes may be different lists. Raises
    InputError for tables that give the image different sizes.
    """
    tables = [regions.locate_row(row_number)]
    rows = [tables[0][0].row(tables[0][1], ())]
    if with_annotated:
        assert isinstance(regions, JoinedRegions)  # `open_examples`
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
            if feeding.reads_features
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
    """Raises InputError for an image that two tables give different sizes."""
    detected_size, annotated_size = ((row.width, row.height) for row in (detected, annotated))
    if detected_size != annotated_size:
        raise InputError(
            f"--annotated-regions: {annotated.image_id} is {annotated_size[0]} x "
            f"{annotated_size[1]} pixels, in "
            f"--regions {detected_size[0]} x {detected_size[1]}; extract both from the same image"
        )


def joined_parts(counts: tuple[int, int], shown_counts: tuple[int, int]) -> list[tuple[int, Ids]]:
    """Returns which regions are read, in turn: 0 for detected or 1 for annotated, and their places
    in that row. First those of both that are shown, then the others.
    """
    starts = [np.arange(count) for count in shown_counts]
    rests = [np.arange(first, count) for first, count in zip(shown_counts, counts, strict=True)]
    return list(enumerate(starts)) + list(enumerate(rests))


def _features(
    num_shards: int,
    tables: Sequence[tuple[RegionGroup, int]],
    parts: list[tuple[int, Ids]],
) -> StoredFeatures:
    """Where the features of these parts are stored, one behind the other; shards of the annotated
    table count from ``num_shards`` on.

    The first part has no order: it begins with its row, as `SampledRegions.stored_boxes` asks.
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
