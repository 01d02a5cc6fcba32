"""Samples one masked pair of a stage: pure functions of the tables' rows and random numbers.

T tokens, R regions of an image, excluding the full image.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from vlmill.runtime.readers.mapped import RegionGroup
from vlmill.runtime.readers.regions import RegionRow
from vlmill.schemas.errors import InputError
from vlmill.train.loading.arrays import Array, Arrays, Ids
from vlmill.train.loading.masking.regions import MaskedRegions, mask_image
from vlmill.train.loading.masking.words import NO_TEXT, MaskedTokens, cut_text
from vlmill.train.loading.random import Uniforms
from vlmill.train.settings.parts import Feeding, Masking

LONGEST = 64  # maximum of text and regions together


@dataclass(frozen=True, kw_only=True)
class StoredFeatures:
    """Holds the features of ``num_regions`` regions of a row: their location, or the bytes.

    ``location`` is a shard, an offset and a size in its file. It is None for a compressed row,
    whose bytes are in ``copied``. The regions are the row's first ones, or the positions ``order``
    [num_regions] of the row, in this order. ``more`` follows, from this or another table. Nothing
    is read for a model that computes features from pixels.
    """

    num_regions: int
    location: tuple[int, int, int] | None
    copied: npt.NDArray[np.uint8] | None = None
    order: Ids | None = None
    more: tuple["StoredFeatures", ...] = ()
    is_read: bool = True

    def find_positions(self, regions: Ids) -> Ids:
        """Returns the positions in the row of some of the regions, counted from 0."""
        return regions if self.order is None else self.order[regions]

    def reorder(self, positions: Ids) -> "StoredFeatures":
        """Returns the regions in the order ``positions``, which stays within each part."""
        parts, end = list[StoredFeatures](), 0
        for part in (self, *self.more):
            start, end = end, end + part.num_regions
            order = part.find_positions(positions[start:end] - start)
            parts.append(replace(part, order=order, more=()))
        return replace(parts[0], more=tuple(parts[1:]))


def stored_features(
    group: RegionGroup, row_number: int, num_regions: int, order: Ids | None = None
) -> StoredFeatures:
    """Locates the features of row ``row_number`` of a group. Raises InputError if the row has no
    features and ``num_regions`` is not 0.
    """
    if not num_regions:
        return StoredFeatures(num_regions=0, location=None, copied=np.empty(0, np.uint8))
    span = group.locate_features(row_number)
    if span is not None:
        where = (group.shard_number, *span)
        return StoredFeatures(num_regions=num_regions, location=where, order=order)
    copied = group.stored_bytes("features", row_number)
    if copied is None:
        raise no_features(group.image_id(row_number))
    return StoredFeatures(num_regions=num_regions, location=None, copied=copied, order=order)


def unread_features(num_regions: int, order: Ids | None = None) -> StoredFeatures:
    """Returns a placeholder for the features that a model computes from pixels."""
    return StoredFeatures(num_regions=num_regions, location=None, order=order, is_read=False)


def no_features(image_id: str) -> InputError:
    """Returns the error for an image whose row has no features."""
    return InputError(f"--regions: {image_id} has no features; extract the regions with features")


@dataclass(frozen=True, kw_only=True)
class SampledRegions:
    """Holds the R regions that are read of an image; their features stay in their file.

    The first ``num_shown`` are shown; VL-BERT's full image is the mean of all. ``boxes`` float32
    [R, 4] are ``mirrored`` or not. ``masks`` [R]. ``row`` holds the whole row in the table's order,
    with the columns from :func:`list_columns`. ``weights`` [R] are the regions' shares in the full
    image's mean, where these differ. ``first_annotated`` is the index of the first annotated region
    after the detected ones.
    """

    row: RegionRow
    features: StoredFeatures
    boxes: Array
    masks: MaskedRegions
    num_shown: int
    mirrored: bool = False
    weights: Array | None = None
    first_annotated: int = 0

    @property
    def stored_boxes(self) -> Array:
        """Returns the boxes [R, 4] as stored, in this order: neither mirrored nor clamped."""
        # Regions of several parts have their own row, made in this order.
        order = None if self.features.more else self.features.order
        return self.row.boxes[: len(self.boxes)] if order is None else self.row.boxes[order]

    def reorder(self, positions: Ids, num_shown: int) -> "SampledRegions":
        """Returns the regions in the order ``positions`` [R], which stays within each part of their
        features. The first ``num_shown`` are shown; the others still count for the full image.
        """
        boxes = self.row.boxes
        row = replace(self.row, boxes=boxes[positions]) if self.features.more else self.row
        return replace(
            self,
            row=row,
            features=self.features.reorder(positions),
            boxes=self.boxes[positions],
            masks=MaskedRegions(
                masked=self.masks.masked[positions], zeroed=self.masks.zeroed[positions]
            ),
            num_shown=num_shown,
            weights=None if self.weights is None else self.weights[positions],
        )


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Holds a row of a batch: a text with an image, or only one of them.

    ``matching`` is True for a matching pair. An image is given as regions, as the arrays of
    ``pixels`` by their names in the batch, or as both.
    """

    pair_id: str
    source: str = ""
    text: MaskedTokens = NO_TEXT
    regions: SampledRegions | None = None
    pixels: Arrays = field(default_factory=dict)
    matching: bool = True
    image_key: int | None = None  # 64 bits, equal for the pairs of an image; None: unknown
    row: int = -1  # of the prepared samples, which hold a task's labels


IGNORED = -100
COLUMNS = {"class": ("class_ids",), "distribution": ("class_ids", "class_probs", "class_prob_ids")}


def list_columns(feeding: Feeding, *, global_features: bool = False) -> tuple[str, ...]:
    """Returns the columns that are read in addition to boxes and features."""
    columns = [*COLUMNS[feeding.region_targets], *["global_feature"] * global_features]
    if feeding.region_order == "confidence":
        columns += ["class_probs", "class_scores"]
    return tuple(dict.fromkeys(columns))


def surest_first(row: RegionRow) -> Ids | None:
    """Returns an image's regions by falling confidence [R]; ties stay in the row's order.

    Confidence is the highest probability of any class, background included (VL-BERT's code), or the
    class's score where no distribution is stored; None where neither is stored.
    """
    confidence = row.class_scores
    if row.class_probs is not None:
        # The bits of numbers from 0 up have the numbers' order, and comparing them is a hundred
        # times as fast as comparing float16 (100 regions of 1601 classes: 6 us, not 706).
        halves = row.class_probs.dtype == np.float16
        probs = row.class_probs.view(np.int16) if halves else row.class_probs
        confidence = probs.max(axis=1, initial=0)
    return None if confidence is None else np.argsort(-confidence, kind="stable")


def chosen_regions(row: RegionRow, feeding: Feeding) -> tuple[int, Ids | None]:
    """Returns how many regions of a row are read, and their positions; None for the first ones."""
    count = min(len(row.boxes), feeding.max_regions)
    order = surest_first(row) if feeding.region_order == "confidence" else None
    return count, None if order is None else order[:count]


def take_regions(
    group: RegionGroup,
    row_number: int,
    feeding: Feeding,
    columns: Sequence[str],
    *,
    mirrored: bool = False,
) -> SampledRegions:
    """Returns the regions of row ``row_number`` of a group that a model reads; all count as
    shown (``num_shown``), and none is masked.

    Training, evaluation and probes all use this function. ``columns`` come from
    :func:`list_columns`. Raises InputError for a row without features.
    """
    row = group.row(row_number, columns)
    count, order = chosen_regions(row, feeding)
    boxes = row.boxes[:count] if order is None else row.boxes[order]
    boxes = placed_boxes(boxes, (row.width, row.height), feeding, mirrored=mirrored)
    return SampledRegions(
        row=row,
        features=(
            stored_features(group, row_number, count, order)
            if feeding.kind == "regions"  # else a model computes features from pixels
            else unread_features(count, order)
        ),
        boxes=boxes,
        masks=MaskedRegions.none(count),
        num_shown=count,
        mirrored=mirrored,
    )


def sample_regions(
    group: RegionGroup,
    row_number: int,
    draws: Uniforms,
    feeding: Feeding,
    masking: Masking,
    columns: Sequence[str],
) -> SampledRegions:
    """Returns a row's regions as :func:`take_regions` does, randomly mirrored, and masked."""
    mirrored = bool(feeding.flip) and draws.random() < feeding.flip
    regions = take_regions(group, row_number, feeding, columns, mirrored=mirrored)
    size = (regions.row.width, regions.row.height)
    return replace(regions, masks=mask_image(regions.boxes, draws, masking, size))


def fit_together(
    text: MaskedTokens, regions: SampledRegions, longest: int, *, has_whole_image: bool
) -> tuple[MaskedTokens, SampledRegions]:
    """Cuts a text and an image's regions to ``longest`` elements together, among them the region of
    the full image if the model has one.
    """
    num_tokens, num_shown = kept_lengths(
        len(text.tokens), len(regions.boxes) + has_whole_image, longest
    )
    return cut_text(text, num_tokens), replace(regions, num_shown=num_shown - has_whole_image)


def placed_boxes(boxes: Array, size: tuple[int, int], feeding: Feeding, *, mirrored: bool) -> Array:
    """Returns boxes, mirrored if requested; clamped to the last pixel if the model needs it."""
    if mirrored:
        last = size[0] - 1
        boxes = np.stack([last - boxes[:, 2], boxes[:, 1], last - boxes[:, 0], boxes[:, 3]], axis=1)
    if feeding.whole_image == "rest":
        ends = np.array([max(size[0] - 1, 0), max(size[1] - 1, 0)] * 2, dtype=np.float32)
        boxes = np.minimum(np.maximum(boxes, 0), ends)  # np.clip takes three times as long
    return boxes


def get_global_feature(row: RegionRow) -> npt.NDArray[Any]:
    """Returns the full image's feature [G]. Raises InputError if the row has none."""
    if row.global_feature is None:
        raise InputError(
            f"--regions: {row.image_id} has no global_feature, which model.global_widths asks for; "
            "extract with --global-feature, or train a model without global features"
        )
    return row.global_feature


def kept_lengths(tokens: int, regions: int, longest: int = LONGEST) -> tuple[int, int]:
    """Returns how many of the tokens (including [CLS] and [SEP]) and regions are kept.

    Elements are removed one by one from the longer part, from the text if both are equal; at least
    two tokens and one region stay.
    """
    while tokens + regions > longest and (tokens > 2 or regions > 1):
        if (regions > tokens and regions > 1) or tokens <= 2:
            regions -= 1
        else:
            tokens -= 1
    return tokens, regions
