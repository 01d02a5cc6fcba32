"""Computes which regions of an image a score rests on."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from vlmill.train.loading.batch import Batch

RegionMask = NDArray[np.bool_]


def occlusion_weights(
    score: Callable[[RegionMask], float], num_regions: int
) -> NDArray[np.float64]:
    """Returns by how much the score falls if a region is removed: [R], below 0 where it rises.

    ``score`` is of the regions that are shown, [R]. Unlike the attention of one layer this is about
    the answer, and the same for every model; it costs R + 1 scores (Zeiler and Fergus,
    arXiv:1311.2901, sec. 4.2, hide squares of an image). A single region has the weight 0: no model
    is fed none.
    """
    if num_regions < 2:
        return np.zeros(num_regions)
    full_score = score(np.ones(num_regions, dtype=np.bool_))
    without = [score(np.arange(num_regions) != region) for region in range(num_regions)]
    return full_score - np.array(without)


def only_rows(batch: Batch, rows: RegionMask) -> Batch:
    """Returns a batch of one image with these rows of its regions."""
    inputs = batch.inputs
    chosen = torch.from_numpy(rows).to(inputs.region_features.device)
    names = ("region_features", "region_locations", "region_mask", "masked_regions")
    values = {name: getattr(inputs, name) for name in names}
    columns = {name: value[:, chosen] for name, value in values.items() if value is not None}
    return replace(batch, inputs=replace(inputs, **columns, real_regions=None))
