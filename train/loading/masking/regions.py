"""Masking of regions, and what stands for the whole picture then.  R regions, D feature width.

As in ``words.py``: pure functions that draw one number at a time in the published order. The
region that stands for the whole picture is never masked and is not among the R.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vlmill.train.loading.arrays import Array, Flags
from vlmill.train.loading.boxes import overlapping
from vlmill.train.loading.random import Draws


@dataclass(frozen=True, kw_only=True)
class MaskedRegions:
    """``masked`` [R] regions are to be guessed; of those ``zeroed`` [R] lose their feature."""

    masked: Flags
    zeroed: Flags


def mask_regions(count: int, draws: Draws, *, share: float, to_zero: float) -> MaskedRegions:
    """Each region with chance ``share``, each for itself; of those ``to_zero`` lose their feature.

    15 % and 90 % in ViLBERT (sec. 3.1), ImageBERT (sec. 3.3), VL-BERT's code, and InterBERT's
    without groups. One number u decides: masked below ``share``, zeroed if u/share < ``to_zero``.
    """
    drawn = np.array([draws.random() for _ in range(count)])
    return masked_by(drawn, share=share, to_zero=to_zero)


def masked_by(drawn: npt.NDArray[np.float64], *, share: float, to_zero: float) -> MaskedRegions:
    """:func:`mask_regions` by numbers [R] that are drawn already."""
    masked = drawn < share
    return MaskedRegions(masked=masked, zeroed=masked & (drawn < to_zero * share))


def mask_groups(
    overlap: Array,
    draws: Draws,
    *,
    anchor_share: float = 0.10,
    threshold: float = 0.4,
    inclusive: bool = False,
) -> MaskedRegions:
    """InterBERT's masked group modelling: anchors and every region that overlaps with one.

    ``overlap`` [R, R] is :func:`overlaps`. Each region is an anchor with chance ``anchor_share``;
    all of a group lose their feature and are to be guessed. The paper asks for an overlap above
    ``threshold``, the released code for one that is not below (``inclusive``).
    """
    anchors = np.array([draws.random() for _ in range(len(overlap))]) < anchor_share
    grouped = overlapping(anchors, overlap, threshold=threshold, inclusive=inclusive)
    return MaskedRegions(masked=grouped, zeroed=grouped)


def without(features: Array, zeroed: Flags) -> Array:
    """Features [R, D] with zeros in place of the ``zeroed`` [R]."""
    return np.where(zeroed[:, None], np.float32(0), features)


def blank(features: Array) -> Flags:
    """Which features [R, D] are all zeros.

    InterBERT's released code takes every such region, masked or not, for one to be guessed.
    """
    return np.asarray(~features.any(axis=1))


def mean_after_masking(features: Array, count: int | None = None) -> Array:
    """The picture's feature [D]: sum of the masked [R, D] by the number of regions, zeroed or not.

    ViLBERT's and InterBERT's in pretraining. 12-in-1 divides by another ``count``: the rows, padded
    ones included, that :func:`overlapping` does not name, at least 1.
    """
    mean: Array = features.sum(axis=0) / np.float32(
        max(len(features) if count is None else count, 1)
    )
    return mean


def mean_of_unmasked(features: Array, mean: Array, zeroed: Flags) -> Array:
    """VL-BERT's: the feature [D] of the whole picture without what the ``zeroed`` [R] gave to it.

    ``mean`` [D] is of all ``features`` [R, D]. Zeros where nothing is left, of which the published
    code makes rounding noise a hundred thousand times as large.
    """
    count, gone = len(features), int(zeroed.sum())
    if gone == count:
        return np.zeros_like(mean)
    rest: Array = count * mean - features[zeroed].sum(axis=0)
    return rest / np.float32(count - gone + 1e-5)
