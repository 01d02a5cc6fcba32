"""From chosen regions to rows of the regions table: what is stored, and in which types."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float
from torch import Tensor

from vlmill.extract.config import Storage
from vlmill.extract.detect.query import Query
from vlmill.extract.detect.selection import SelectedRegions
from vlmill.models.detector.config import DetectorConfig
from vlmill.models.detector.faster_rcnn import Detections, foreground_attributes
from vlmill.runtime.readers.regions import RegionRow, from_stored, to_stored
from vlmill.schemas.rejects import Reason, Rejected

Array = npt.NDArray[Any]
ROUNDED = ("features", "class_probs", "global_feature")  # to the type in which they are stored
Outcome = RegionRow | Rejected


def stored_tensors(
    detections: Detections, chosen: SelectedRegions, spec: DetectorConfig, storage: Storage
) -> dict[str, Tensor]:
    """What is stored of the chosen regions [N, M, ...], by the names of :class:`RegionRow`."""
    tensors = {"boxes": chosen.boxes, "features": regions_at(detections.features, chosen.ids)}
    if spec.regions == "grid":  # whose cells have no classes
        return tensors
    if storage.class_probs != "none":
        tensors["class_ids"] = chosen.class_ids.short()
        tensors["class_scores"] = chosen.class_scores
    if storage.class_probs == "full" or storage.top_k is not None:
        probs = background_first(regions_at(detections.class_probs, chosen.ids), spec)
        if storage.top_k is not None:  # equal ones in the columns' order
            ordered, columns = probs.sort(dim=-1, descending=True, stable=True)
            tensors["class_prob_ids"] = columns[..., : storage.top_k]
            probs = ordered[..., : storage.top_k]
        tensors["class_probs"] = probs
    if detections.attribute_probs is not None:
        tensors |= best_attributes(regions_at(detections.attribute_probs, chosen.ids), spec)
    return tensors


def best_attributes(probs: Float[Tensor, "N M L1"], spec: DetectorConfig) -> dict[str, Tensor]:
    """The likeliest attribute of each region but "no attribute", and its probability."""
    scores, attributes = foreground_attributes(probs, spec).max(dim=-1)
    return {"attribute_scores": scores, "attribute_ids": attributes.short()}


def in_stored_type(tensors: Mapping[str, Tensor], storage: Storage) -> dict[str, Tensor]:
    """Tensors with those that are stored in float16 rounded: half as many bytes come back."""
    rounded = ROUNDED if storage.dtype == "float16" else ()
    return {name: values.half() if name in rounded else values for name, values in tensors.items()}


def regions_at(values: Float[Tensor, "N P D"], ids: Tensor) -> Float[Tensor, "N M D"]:
    """Returns each image's values of its own regions."""
    images = torch.arange(len(values), device=values.device)[:, None]
    return values[images, ids]


def background_first(
    class_probs: Float[Tensor, "N M K1"], spec: DetectorConfig
) -> Float[Tensor, "N M K1"]:
    """The distribution as the table has it, whatever the family's order."""
    return class_probs if spec.background == "first" else class_probs.roll(1, dims=-1)


def make_outcomes(
    queries: Sequence[Query], batch: Mapping[str, Array], storage: Storage
) -> list[Outcome]:
    """A row for each image of a batch's arrays, or why there is none."""
    arrays = dict(batch)
    box_mask = arrays.pop("taken")
    outcomes = []
    for number, query in enumerate(queries):
        values = {
            name: array[number] if name == "global_feature" else array[number][box_mask[number]]
            for name, array in arrays.items()
        }
        outcomes.append(make_outcome(query, values, storage))
    return outcomes


def make_outcome(query: Query, arrays: Mapping[str, Array], storage: Storage) -> Outcome:
    """The row, or why there is none."""
    try:
        return make_row(query, arrays, storage)
    except Rejected as why:
        return why


def make_row(query: Query, arrays: Mapping[str, Array], storage: Storage) -> RegionRow:
    """A row of arrays by their names. Raises Rejected where the stored type cannot hold them."""
    values = dict(arrays)
    for name in ROUNDED:
        if name in values:
            values[name] = as_stored(values[name], storage.dtype)
    if "class_prob_ids" in values:
        values["class_prob_ids"] = values["class_prob_ids"].astype(np.uint16)
    return RegionRow(
        image_id=query.image_id, width=query.image.width, height=query.image.height, **values
    )


def as_stored(values: Array, dtype: str) -> Array:
    """Values as a reader will see them. Raises Rejected where the type cannot hold them."""
    try:
        return from_stored(to_stored(values, dtype), dtype)
    except ValueError as error:
        raise Rejected(Reason.NOT_FINITE, f"a feature or probability: {error}") from None
