"""Masks regions by pure functions of random numbers. R regions.

As in ``words.py`` these are sampled in the published order. The region for the full image is never
masked and is not among the R.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vlmill.train.loading.arrays import Array, Flags
from vlmill.train.loading.boxes import overlapping, overlaps
from vlmill.train.loading.random import Draws, Uniforms
from vlmill.train.settings.parts import Masking


@dataclass(frozen=True, kw_only=True)
class MaskedRegions:
    """Flags the ``masked`` [R] regions to predict, and of these the ``zeroed`` [R] features."""

    masked: Flags
    zeroed: Flags

    @staticmethod
    def none(num_regions: int) -> "MaskedRegions":
        """Masks none of the regions."""
        nothing = np.zeros(num_regions, dtype=np.bool_)
        return MaskedRegions(masked=nothing, zeroed=nothing)


def masked_by(drawn: npt.NDArray[np.float64], *, share: float, to_zero: float) -> MaskedRegions:
    """Masks each region with chance ``share``; ``to_zero`` of these lose their feature.

    15 % and 90 % in ViLBERT (sec. 3.1), ImageBERT (sec. 3.3), VL-BERT's code, and InterBERT's
    without groups. A region's number in ``drawn`` [R] decides both: masked below ``share``, zeroed
    below ``share`` times ``to_zero``.
    """
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
    """Masks groups as InterBERT does: anchors and every region that overlaps with one.

    ``overlap`` [R, R] comes from :func:`overlaps`. Each region is an anchor with chance
    ``anchor_share``; all regions of a group lose their feature and are predicted. The paper
    requires an overlap above ``threshold``, the released code one of at least ``threshold``
    (``inclusive``).
    """
    anchors = np.array([draws.random() for _ in range(len(overlap))]) < anchor_share
    grouped = overlapping(anchors, overlap, threshold=threshold, inclusive=inclusive)
    return MaskedRegions(masked=grouped, zeroed=grouped)


def mask_image(
    boxes: Array, draws: Uniforms, masking: Masking, size: tuple[int, int]
) -> MaskedRegions:
    """Masks the regions of an image of ``size`` pixels by the stage's rule."""
    if masking.region_rule == "regions":
        share = masking.regions
        drawn = draws.many(len(boxes))
        return masked_by(drawn, share=share, to_zero=masking.region_to_zero)
    pixel = (1.0, 1.0) if masking.group_pixels else (0.0, 0.0)
    return mask_groups(
        overlaps(boxes, pixel=pixel),
        draws,
        anchor_share=masking.regions,
        threshold=masking.group_overlap,
        inclusive=masking.group_pixels,
    )
