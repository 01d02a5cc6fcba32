"""Converts selected regions to rows of the regions table: columns and types."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from vlmill.extract.config import Storage
from vlmill.extract.detect.selection import SelectedRegions
from vlmill.extract.images.resize import NetworkInput, PixelInput
from vlmill.models.detector.config import DetectorConfig
from vlmill.models.detector.faster_rcnn import Detections, foreground_attributes
from vlmill.runtime.readers.region_rows import (
    LARGEST,
    LARGEST_BFLOAT16,
    RegionRow,
    describe_overflow,
    from_stored,
    to_stored,
)
from vlmill.schemas.rejects import Reason, Rejected


@dataclass(frozen=True, kw_only=True)
class Query:
    """Holds an image for the network; ``boxes`` [N, 4] in its own pixels replace proposals."""

    image_id: str
    image: NetworkInput | PixelInput
    boxes: npt.NDArray[np.float32] | None = None


Array = npt.NDArray[Any]
ROUNDED = ("features", "class_probs", "global_feature")  # to the stored type
Outcome = RegionRow | Rejected


def stored_tensors(
    detections: Detections, chosen: SelectedRegions, spec: DetectorConfig, storage: Storage
) -> dict[str, Tensor]:
    """Returns the stored values of the selected regions [N, M, ...], by the names of
    :class:`RegionRow`.
    """
    tensors = {"boxes": chosen.boxes, "features": regions_at(detections.features, chosen.ids)}
    if spec.regions == "grid":  # its cells have no classes
        return tensors
    if storage.class_probs != "none":
        tensors["class_ids"] = chosen.class_ids.short()
        tensors["class_scores"] = chosen.class_scores
    if storage.class_probs == "full" or storage.top_k is not None:
        probs = regions_at(detections.class_probs, chosen.ids)
        if spec.background != "first":  # the table has it first
            probs = probs.roll(1, dims=-1)
        if storage.top_k is not None:  # ties are in column order
            ordered, columns = probs.sort(dim=-1, descending=True, stable=True)
            tensors["class_prob_ids"] = columns[..., : storage.top_k]
            probs = ordered[..., : storage.top_k]
        tensors["class_probs"] = probs
    if detections.attribute_probs is not None:
        tensors |= best_attributes(regions_at(detections.attribute_probs, chosen.ids), spec)
    return tensors


def best_attributes(probs: Float[Tensor, "N M L1"], spec: DetectorConfig) -> dict[str, Tensor]:
    """Returns the most likely attribute of each region except "no attribute", and its
    probability.
    """
    scores, attributes = foreground_attributes(probs, spec).max(dim=-1)
    return {"attribute_scores": scores, "attribute_ids": attributes.short()}


def in_stored_type(
    tensors: Mapping[str, Tensor], box_mask: Bool[Tensor, "N M"], storage: Storage
) -> dict[str, Tensor]:
    """Returns the tensors of `stored_tensors` rounded to the stored type, and "finite" [N]: whether
    that type can hold an image's values.
    """
    tensors = dict(tensors)
    # Rounded on the device: float16 copies half as many bytes. NumPy has no bfloat16.
    if storage.dtype == "float16":
        tensors |= {name: tensors[name].half() for name in ROUNDED if name in tensors}
    finite = finite_images(tensors, box_mask, storage.dtype)
    if storage.dtype == "bfloat16":
        rounded = {name: tensors[name].bfloat16() for name in ROUNDED if name in tensors}
        tensors |= {name: values.float() for name, values in rounded.items()}
    return {**tensors, "finite": finite}


def regions_at(values: Float[Tensor, "N P D"], ids: Tensor) -> Float[Tensor, "N M D"]:
    """Returns each image's values of its own regions."""
    images = torch.arange(len(values), device=values.device)[:, None]
    return values[images, ids]


def finite_images(
    tensors: Mapping[str, Tensor], box_mask: Bool[Tensor, "N M"], dtype: str
) -> Bool[Tensor, " N"]:
    """Returns which images' features and probabilities the stored type can represent.

    The check runs on the device, where it costs microseconds; unused slots are ignored.
    """
    finite = torch.ones(len(box_mask), dtype=torch.bool, device=box_mask.device)
    for name in ROUNDED:
        if name in tensors:
            # The largest of each row: NaN if there is one.
            within = fits(tensors[name].abs().amax(dim=-1), dtype)
            finite &= within if name == "global_feature" else (within | ~box_mask).all(dim=1)
    return finite


def fits(magnitudes: Tensor, dtype: str) -> Tensor:
    """Returns which numbers of at least 0 :func:`~vlmill.runtime.readers.regions.to_stored`
    accepts; they are already float16 if that is stored.
    """
    if dtype == "float16":
        return magnitudes <= torch.finfo(torch.float16).max
    within = magnitudes <= LARGEST
    return within & (magnitudes.bfloat16() <= LARGEST_BFLOAT16) if dtype == "bfloat16" else within


def make_outcomes(
    queries: Sequence[Query], batch: Mapping[str, Array], storage: Storage
) -> list[Outcome]:
    """Returns a row for each image of a batch's arrays, or the reason for having none.

    Rows of images without unused slots are views of the batch's arrays.
    """
    arrays = dict(batch)
    box_mask, finite = arrays.pop("taken"), arrays.pop("finite")
    if "class_prob_ids" in arrays:
        arrays["class_prob_ids"] = arrays["class_prob_ids"].astype(np.uint16)
    outcomes: list[Outcome] = []
    for number, query in enumerate(queries):
        if not finite[number]:
            outcomes.append(not_finite(storage.dtype))
            continue
        taken = slice(None) if box_mask[number].all() else box_mask[number]
        values = {
            name: array[number] if name == "global_feature" else array[number][taken]
            for name, array in arrays.items()
        }
        outcomes.append(make_row(query, values))
    return outcomes


def make_row(query: Query, arrays: Mapping[str, Array]) -> RegionRow:
    """Returns the row of arrays by their names, rounded as they are stored."""
    image = query.image
    return RegionRow(image_id=query.image_id, width=image.width, height=image.height, **arrays)


def as_stored(values: Array, dtype: str) -> Array:
    """Returns values as the table stores them. Raises Rejected if the type cannot hold them."""
    try:
        return from_stored(to_stored(values, dtype), dtype)
    except ValueError:
        raise not_finite(dtype) from None


def not_finite(dtype: str) -> Rejected:
    """Returns the reject of an image whose features or probabilities the type cannot hold."""
    detail = f"a feature or probability: {describe_overflow(dtype)}"
    return Rejected(Reason.NOT_FINITE, detail)
