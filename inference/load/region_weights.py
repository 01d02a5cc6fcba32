"""Measures the effect of each region on a score by scoring an image without each of them.

R regions of the image. The published models do not report which regions they use. The decrease of
the score without a region is a fact about the model, independent of its attention weights.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vlmill.inference.load.model import LoadedModel
from vlmill.runtime.readers.region_rows import PER_BOX
from vlmill.runtime.readers.regions import HeldRegions, RegionRow
from vlmill.schemas.errors import InputError, with_article
from vlmill.train.tasks.retrieval.job import get_max_elements
from vlmill.train.tasks.retrieval.matching import make_scorer, match_scores


@dataclass(frozen=True, kw_only=True)
class RegionEffects:
    """Holds the ``score`` of an image with a text, its ``row`` of regions, and float32 [R], the
    score's decrease ``without`` each region.
    """

    score: float
    row: RegionRow
    without: NDArray[np.float32]
    arrays: Mapping[str, Any]  # types and widths of the row's arrays


def measure_region_effects(model: LoadedModel, image: bytes, text: str) -> RegionEffects:
    """Scores a text with an image, with all regions and without each of them.

    Raises InputError for a model that reads no regions, or has no matching head, for a text without
    a word, and for an image with fewer than two detected regions.
    """
    if not reads_regions(model):
        raise InputError(f"{with_article(model.loaded.variant)} reads no regions")
    tokens, good = model.tokens([text])
    if not good:
        raise InputError(f"text {text!r} has no word; give one")
    regions = model.hold({"0": image}, model.feeding).regions
    if regions is None or not regions.box_counts().max(initial=0) > 1:
        raise InputError("no two regions are found in the image; give another image")
    row = regions.row(0)
    rows = [row, *(without(row, region) for region in range(len(row.boxes)))]
    names = [str(number) for number in range(len(rows))]
    variants = [
        dataclasses.replace(variant, image_id=name)
        for variant, name in zip(rows, names, strict=True)
    ]
    scores = match_scores(
        make_scorer(model.loaded.model, get_max_elements(model.feeding)),
        tokens,
        names,
        model.region_images(HeldRegions(variants, regions.arrays)),
        device=model.device,
        batch_size=model.batch_size,
    )[:, 0]
    losses = scores[0] - scores[1:]
    return RegionEffects(score=float(scores[0]), row=row, without=losses, arrays=regions.arrays)


def reads_regions(model: LoadedModel) -> bool:
    """Returns whether the model reads regions."""
    return model.feeding.kind == "regions"


def without(row: RegionRow, region: int) -> RegionRow:
    """Returns the row without one of its regions."""
    values = {name: getattr(row, name) for name in ("boxes", *PER_BOX)}
    fields = {
        name: np.delete(array, region, axis=0)
        for name, array in values.items()
        if array is not None
    }
    return dataclasses.replace(row, **fields)
