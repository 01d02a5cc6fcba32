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
from vlmill.runtime.console.progress import without_progress
from vlmill.runtime.files.atomic import temporary_folder
from vlmill.runtime.files.shards import write_shard
from vlmill.runtime.readers.region_rows import PER_BOX
from vlmill.runtime.readers.regions import RegionReader, RegionRow, encode_regions
from vlmill.schemas.errors import InputError, with_article
from vlmill.schemas.tables import REGIONS
from vlmill.train.loading.features import get_global_widths
from vlmill.train.tasks.retrieval.checks import body_config
from vlmill.train.tasks.retrieval.inputs import RegionImages
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
    with temporary_folder() as folder, without_progress():
        faults = model.write_tables([image], folder)
        reader = RegionReader(folder / "regions")
        if faults or "0" not in reader or reader.num_boxes("0") < 2:
            raise InputError("no two regions are found in the image; give another")
        row = reader["0"]
        count = len(row.boxes)
        rows = [row, *(without(row, region) for region in range(count))]
        variants = [
            dataclasses.replace(variant, image_id=str(index)) for index, variant in enumerate(rows)
        ]
        table = encode_regions(variants, dtype=reader.arrays["features"]["dtype"])
        where = folder / "variants"
        write_shard(where, REGIONS, table, producer=reader.producer, arrays=reader.arrays)
        has_global_features = bool(get_global_widths(body_config(model.loaded)))
        images = RegionImages(
            RegionReader(where), model.feeding, global_features=has_global_features
        )
        scores = match_scores(
            make_scorer(model.loaded.model, get_max_elements(model.feeding)),
            tokens,
            [variant.image_id for variant in variants],
            images,
            device=model.device,
            batch_size=model.batch_size,
        )[:, 0]
    losses = scores[0] - scores[1:]
    return RegionEffects(score=float(scores[0]), row=row, without=losses, arrays=reader.arrays)


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
