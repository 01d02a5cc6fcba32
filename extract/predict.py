"""One picture's bytes to its row of the regions table."""

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float
from torch import Tensor

from vlmill.extract.config import ExtractConfig, Storage
from vlmill.extract.precision import computing
from vlmill.extract.preprocess import NetworkInput, Rejected, decode, network_input
from vlmill.extract.selection import Chosen, Frame, select
from vlmill.extract.weights import Detector
from vlmill.models.detector_config import DetectorConfig
from vlmill.models.faster_rcnn import Detections, foreground_attributes, foreground_classes
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
    picture = network_input(pixels, detector.model.config, config.limits)
    return predict_regions(image_id, picture, detector, config)


def predict_regions(
    image_id: str,
    picture: NetworkInput,
    detector: Detector,
    config: ExtractConfig,
    boxes: npt.NDArray[np.float32] | None = None,
) -> RegionRow:
    """Detects and selects, or describes given ``boxes`` [N, 4] in the picture's pixels, all of
    them in their order. Raises Rejected.
    """
    model, tensor = detector.model, picture.tensor.to(detector.device)
    height, width = tensor.shape[2:]
    with computing(config.precision, detector.device):
        features = model.feature_map(tensor)
        if boxes is None:
            rois, _ = model.proposal_generator(features, height, width, picture.scale)
        else:
            rois = torch.from_numpy(boxes).to(tensor) * tensor.new_tensor(picture.factors * 2)
        found = model.describe(features, rois, ROI_CHUNK)
        row = region_row(image_id, found, picture, detector, config, boxes)
        if not config.storage.global_feature:
            return row
        whole = model.whole_image(features, height, width)
        return dataclasses.replace(row, global_feature=stored(whole, config.storage.dtype))


def region_row(
    image_id: str,
    found: Detections,
    picture: NetworkInput,
    detector: Detector,
    config: ExtractConfig,
    boxes: npt.NDArray[np.float32] | None = None,
) -> RegionRow:
    """The chosen regions, with boxes in the picture's own pixels; of given boxes, all."""
    spec, storage = detector.model.config, config.storage
    if boxes is None:
        chosen = select(found, spec, frame_of(picture), config.selection)
    else:
        chosen = all_given(found, spec, boxes)
    features = stored(found.features[chosen.ids], storage.dtype)
    attribute_scores = attribute_ids = None
    if found.attribute_probs is not None:
        attributes = foreground_attributes(found.attribute_probs[chosen.ids], spec)
        attribute_scores, attribute_ids = attributes.max(dim=1)
    classes = storage.class_probs != "none"
    class_probs = background_first(found.class_probs[chosen.ids], spec)
    probs, numbers = kept_probs(class_probs, storage)
    return RegionRow(
        image_id=image_id,
        width=picture.width,
        height=picture.height,
        boxes=chosen.boxes.cpu().numpy(),
        features=features,
        class_ids=chosen.class_ids.short().cpu().numpy() if classes else None,
        class_scores=chosen.class_scores.cpu().numpy() if classes else None,
        class_probs=None if probs is None else stored(probs, storage.dtype),
        class_prob_ids=numbers,
        attribute_ids=None if attribute_ids is None else attribute_ids.short().cpu().numpy(),
        attribute_scores=None if attribute_scores is None else attribute_scores.cpu().numpy(),
    )


def all_given(found: Detections, spec: DetectorConfig, boxes: npt.NDArray[np.float32]) -> Chosen:
    """Every given box as it came, with its likeliest class; none is dropped, moved or refined."""
    scores, classes = foreground_classes(found.class_probs, spec).max(dim=1)
    return Chosen(
        ids=torch.arange(len(boxes), device=scores.device),
        boxes=torch.from_numpy(boxes),
        class_ids=classes,
        class_scores=scores,
        nms_threshold=1.0,
    )


def frame_of(picture: NetworkInput) -> Frame:
    """What the selection has to know of a picture."""
    return Frame(
        height=float(picture.tensor.shape[2]),
        width=float(picture.tensor.shape[3]),
        own_height=float(picture.height),
        own_width=float(picture.width),
        factors=picture.factors,
    )


def background_first(
    class_probs: Float[Tensor, "N K1"], spec: DetectorConfig
) -> Float[Tensor, "N K1"]:
    """The distribution as the table has it, whatever the family's order."""
    return class_probs if spec.background == "first" else class_probs.roll(1, dims=1)


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
