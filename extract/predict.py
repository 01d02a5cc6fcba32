"""One picture's bytes to its row of the regions table."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float
from torch import Tensor

from vlmill.extract.config import ExtractConfig, Storage
from vlmill.extract.preprocess import NetworkInput, Rejected, decode, network_input
from vlmill.extract.selection import choose_regions
from vlmill.extract.weights import Detector
from vlmill.models.faster_rcnn import Detections
from vlmill.models.nms import class_confidence
from vlmill.schemas.regions import RegionRow, from_stored, to_stored
from vlmill.schemas.rejects import Reason

# RoIs that pass through res5 together. Measured on two cores: no cost against all 300 at once, and
# it bounds the memory of R-101 to about 0.5 GB beside the weights.
ROI_CHUNK = 50


def extract_regions(
    image_id: str, data: bytes, detector: Detector, config: ExtractConfig
) -> RegionRow:
    """Decodes, detects and selects. Raises Rejected.

    Every picture goes through the network alone, so its row does not depend on its neighbours.
    """
    pixels = decode(data, config.limits)
    spec = detector.model.config
    picture = network_input(pixels, spec.pixel_mean, config.limits, min_side=spec.min_input_side)
    with torch.inference_mode():
        found = detector.model(picture.tensor.to(detector.device), picture.scale, ROI_CHUNK)
        return region_row(image_id, found, picture, detector, config)


def region_row(
    image_id: str,
    found: Detections,
    picture: NetworkInput,
    detector: Detector,
    config: ExtractConfig,
) -> RegionRow:
    """The chosen regions, their proposals (not refined) as boxes in the picture's own pixels."""
    spec, storage = detector.model.config, config.storage
    boxes = found.boxes / picture.scale
    foreground = found.class_probs[:, 1:]
    confidence = class_confidence(
        boxes,
        foreground,
        spec.class_nms_threshold,
        offset=spec.box_offset,
        inclusive=spec.nms_inclusive,
    )
    chosen = choose_regions(confidence, config.selection)
    features = stored(found.features[chosen], storage.dtype)
    class_scores, class_ids = foreground[chosen].max(dim=1)
    attribute_scores, attribute_ids = found.attribute_probs[chosen, 1:].max(dim=1)
    classes = storage.class_probs != "none"
    probs, numbers = kept_probs(found.class_probs[chosen], storage)
    return RegionRow(
        image_id=image_id,
        width=picture.width,
        height=picture.height,
        boxes=boxes[chosen].cpu().numpy(),
        features=features,
        class_ids=class_ids.short().cpu().numpy() if classes else None,
        class_scores=class_scores.cpu().numpy() if classes else None,
        class_probs=None if probs is None else stored(probs, storage.dtype),
        class_prob_ids=numbers,
        attribute_ids=attribute_ids.short().cpu().numpy(),
        attribute_scores=attribute_scores.cpu().numpy(),
    )


def kept_probs(
    probs: Float[Tensor, "N K1"], storage: Storage
) -> tuple[Tensor | None, npt.NDArray[Any] | None]:
    """What is stored of the class distributions, background first: all, or the highest and their
    columns; equal ones in the columns' order.
    """
    if storage.class_probs == "full":
        return probs, None
    if storage.top_k is None:
        return None, None
    values, numbers = probs.sort(dim=1, descending=True, stable=True)
    count = storage.top_k
    return values[:, :count], numbers[:, :count].cpu().numpy().astype(np.uint16)


def stored(values: Tensor, dtype: str) -> npt.NDArray[Any]:
    """Values as a reader will see them. Raises Rejected where the type cannot hold them."""
    try:
        return from_stored(to_stored(values.cpu().numpy(), dtype), dtype)
    except ValueError as error:
        raise Rejected(Reason.NOT_FINITE, f"a feature or probability: {error}") from None
