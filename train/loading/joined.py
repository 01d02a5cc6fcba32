"""A picture's detected and annotated regions are fed together here.

N detected and M annotated regions of a picture, R of both.
"""

from dataclasses import replace

import numpy as np

from vlmill.schemas.errors import InputError
from vlmill.schemas.readers.joined_regions import JoinedRegions
from vlmill.schemas.readers.region_group import RegionGroup
from vlmill.schemas.readers.region_rows import RegionRow
from vlmill.train.loading.arrays import Array, Ids
from vlmill.train.loading.masking.regions import MaskedRegions
from vlmill.train.loading.sample import SampledRegions, placed_boxes
from vlmill.train.loading.stored import StoredFeatures, stored_features, unread_features
from vlmill.train.recipes.parts import Feeding


def shown_of_each(num_detected: int, num_annotated: int, most: int) -> tuple[int, int]:
    """Returns how many regions of either kind are shown among ``most``.

    Annotated ones have the right of way, the last ones of each kind go (ViLBERT's code).
    """
    annotated = min(most, num_annotated)
    return min(most - annotated, num_detected), annotated


def whole_weights(num_detected: int, num_annotated: int) -> Array:
    """Returns each region's share in the whole picture's feature: float32 [N + M], of sum 1.

    That is the mean of both kinds' means, each weighted with its number of rows, the whole
    picture's among them (ViLBERT's code): (f (n + 1) + g (m + 1)) / (n + m + 2).
    """
    counts = [count for count in (num_detected, num_annotated) if count]
    rows = sum(count + 1 for count in counts)
    shares = [np.full(count, (count + 1) / (count * rows), np.float32) for count in counts]
    return np.concatenate(shares) if shares else np.empty(0, np.float32)


def weights_of(counts: tuple[int, int], feeding: Feeding) -> Array:
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
    regions: JoinedRegions, at: int, feeding: Feeding, *, mirrored: bool = False
) -> SampledRegions:
    """Takes the detected regions of row ``at`` and behind them the picture's annotated ones.

    Those that are not shown are read behind both, as they count for the whole picture. Nothing is
    masked, and no class comes along: the two tables' classes may be different lists. Raises
    InputError for tables that give the picture different sizes.
    """
    detected = regions.located(at)
    row = detected[0].row(detected[1], ())
    annotated = regions.located_annotated(row.image_id)
    other = annotated[0].row(annotated[1], ())
    size, theirs = (row.width, row.height), (other.width, other.height)
    if size != theirs:
        raise InputError(
            f"--annotated-regions: {other.image_id} is {theirs[0]} x {theirs[1]} pixels, in "
            f"--regions {size[0]} x {size[1]}; extract both from the same picture"
        )
    counts = len(row.boxes), len(other.boxes)
    shown = shown_of_each(*counts, feeding.max_regions)
    parts = joined_parts(counts, shown)
    order = np.concatenate([places + which * counts[0] for which, places in parts])
    boxes = np.concatenate([row.boxes, other.boxes])[order]
    return SampledRegions(
        row=RegionRow(image_id=row.image_id, width=row.width, height=row.height, boxes=boxes),
        features=(
            _features(regions, (detected, annotated), parts)
            if feeding.reads_features
            else unread_features(len(order))
        ),
        boxes=placed_boxes(boxes, size, feeding, mirrored=mirrored),
        masks=MaskedRegions.none(len(boxes)),
        num_shown=sum(shown),
        mirrored=mirrored,
        weights=weights_of(counts, feeding)[order],
        first_annotated=shown[0],
    )


def joined_parts(counts: tuple[int, int], shown: tuple[int, int]) -> list[tuple[int, Ids]]:
    """Returns which regions are read, in turn: 0 for detected or 1 for annotated, and their places
    in that row. First those of both that are shown, then the others.
    """
    starts = [np.arange(count) for count in shown]
    rests = [np.arange(first, count) for first, count in zip(shown, counts, strict=True)]
    return list(enumerate(starts)) + list(enumerate(rests))


def _features(
    regions: JoinedRegions,
    tables: tuple[tuple[RegionGroup, int], tuple[RegionGroup, int]],
    parts: list[tuple[int, Ids]],
) -> StoredFeatures:
    """Where the features of these parts are stored, one behind the other.

    The first part has no order: it begins with its row, as `SampledRegions.stored_boxes` asks.
    """
    stored = []
    for which, places in parts:
        if not len(places):
            continue
        part = stored_features(*tables[which], len(places), None if places[0] == 0 else places)
        if which and part.place is not None:
            shard, offset, size = part.place
            part = replace(part, place=(len(regions.paths) + shard, offset, size))
        stored.append(part)
    first, *more = stored or [stored_features(*tables[0], 0)]
    return replace(first, more=tuple(more))
