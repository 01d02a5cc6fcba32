"""Network inputs to rows of the regions table: one by one, or a batch of one shape.

On a CPU every picture has as many proposals as it has, and regions of one picture share work. On
other devices all sizes are fixed (vlmill.models.detector.batch) and results come back in one copy,
so that the host runs ahead of the device.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float
from torch import Tensor

from vlmill.extract.config import ExtractConfig, Storage
from vlmill.extract.detect.detector import Detector
from vlmill.extract.detect.precision import computing
from vlmill.extract.detect.selection import Chosen, Frame, select
from vlmill.extract.pictures.decode import decode
from vlmill.extract.pictures.resize import NetworkInput, PixelInput, network_input
from vlmill.models.detector.config import DetectorConfig
from vlmill.models.detector.faster_rcnn import Detections, foreground_attributes, foreground_classes
from vlmill.schemas.readers.regions import RegionRow, from_stored, to_stored
from vlmill.schemas.rejects import Reason, Rejected

# RoIs that pass through res5 together. Measured on two cores: no cost against all 300 at once, and
# it bounds the memory of R-101 to about 0.5 GB beside the weights.
ROI_CHUNK = 50

Array = npt.NDArray[Any]
Outcome = RegionRow | Rejected


@dataclass(frozen=True, kw_only=True)
class Query:
    """A picture for the network; ``boxes`` [N, 4] in its own pixels replace proposals."""

    image_id: str
    picture: NetworkInput | PixelInput  # the second only for vlmill.extract.detect.predict_fixed
    boxes: npt.NDArray[np.float32] | None = None


def extract_regions(
    image_id: str, data: bytes, detector: Detector, config: ExtractConfig
) -> RegionRow:
    """Decodes, detects and selects. Raises Rejected."""
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
    """Detects and selects in one picture, or describes given ``boxes`` [N, 4] in the picture's
    pixels, all of them in their order. Raises Rejected.
    """
    query = Query(image_id=image_id, picture=picture, boxes=boxes)
    (outcome,) = predict([query], detector, config)
    if isinstance(outcome, Rejected):
        raise outcome
    return outcome


def predict(queries: Sequence[Query], detector: Detector, config: ExtractConfig) -> list[Outcome]:
    """Rows of pictures of one input shape, which share the backbone; the rest goes one by one."""
    model = detector.model
    tensors = [tensor_of(query) for query in queries]
    with computing(config.precision, detector.device):
        batch = tensors[0] if len(tensors) == 1 else torch.cat(tensors)
        features = model.feature_map(batch.to(detector.device))
        found = [
            describe(query, features[i : i + 1], detector, config)
            for i, query in enumerate(queries)
        ]
    return [outcome_of(*one, config.storage) for one in zip(queries, found, strict=True)]


def tensor_of(query: Query) -> Float[Tensor, "1 3 H W"]:
    """The network's input, resized already."""
    assert isinstance(query.picture, NetworkInput)
    return query.picture.tensor


def describe(
    query: Query, features: Float[Tensor, "1 C G V"], detector: Detector, config: ExtractConfig
) -> Mapping[str, Array]:
    """The arrays of one picture's row, from its feature map."""
    model, picture = detector.model, query.picture
    height, width = picture.size
    if query.boxes is None:
        rois, _ = model.proposal_generator(features, height, width, picture.scale)
    else:
        own = torch.from_numpy(query.boxes).to(detector.device)
        rois = own * own.new_tensor(picture.factors * 2)
    tensors = row_tensors(model.describe(features, rois, ROI_CHUNK), query, model.config, config)
    if config.storage.global_feature:
        tensors["global_feature"] = model.whole_image(features, height, width)
    return {name: values.cpu().numpy() for name, values in tensors.items()}


def row_tensors(
    found: Detections, query: Query, spec: DetectorConfig, config: ExtractConfig
) -> dict[str, Tensor]:
    """What a row stores of the regions that are chosen among detections."""
    chosen = chosen_of(found, query.picture, spec, config, query.boxes)
    return kept_tensors(found, chosen, spec, config.storage)


def chosen_of(
    found: Detections,
    picture: NetworkInput | PixelInput,
    spec: DetectorConfig,
    config: ExtractConfig,
    boxes: npt.NDArray[np.float32] | None,
) -> Chosen:
    """The rule's regions; of given boxes all."""
    if boxes is None:
        return select(found, spec, frame_of(picture), config.selection)
    return all_given(found, spec, boxes)


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


def frame_of(picture: NetworkInput | PixelInput) -> Frame:
    """What the selection has to know of a picture."""
    return Frame(
        height=float(picture.size[0]),
        width=float(picture.size[1]),
        own_height=float(picture.height),
        own_width=float(picture.width),
        factors=picture.factors,
    )


def kept_tensors(
    found: Detections, chosen: Chosen, spec: DetectorConfig, storage: Storage
) -> dict[str, Tensor]:
    """What is stored of the chosen regions, by the names of :class:`RegionRow`."""
    kept = {"boxes": chosen.boxes, "features": found.features[chosen.ids]}
    if storage.class_probs != "none":
        kept["class_ids"] = chosen.class_ids.short()
        kept["class_scores"] = chosen.class_scores
    if storage.class_probs == "full" or storage.top_k is not None:
        probs = background_first(found.class_probs[chosen.ids], spec)
        if storage.top_k is not None:  # equal ones in the columns' order
            probs, numbers = probs.sort(dim=1, descending=True, stable=True)
            probs, kept["class_prob_ids"] = probs[:, : storage.top_k], numbers[:, : storage.top_k]
        kept["class_probs"] = probs
    if found.attribute_probs is not None:
        attributes = foreground_attributes(found.attribute_probs[chosen.ids], spec)
        kept["attribute_scores"], numbers = attributes.max(dim=1)
        kept["attribute_ids"] = numbers.short()
    return kept


def background_first(
    class_probs: Float[Tensor, "N K1"], spec: DetectorConfig
) -> Float[Tensor, "N K1"]:
    """The distribution as the table has it, whatever the family's order."""
    return class_probs if spec.background == "first" else class_probs.roll(1, dims=1)


def outcome_of(query: Query, arrays: Mapping[str, Array], storage: Storage) -> Outcome:
    """The row, or why there is none."""
    try:
        return row_of(query, arrays, storage)
    except Rejected as why:
        return why


def row_of(query: Query, arrays: Mapping[str, Array], storage: Storage) -> RegionRow:
    """A row of arrays by their names. Raises Rejected where the stored type cannot hold them."""
    values = dict(arrays)
    for name in ("features", "class_probs", "global_feature"):
        if name in values:
            values[name] = stored(values[name], storage.dtype)
    if "class_prob_ids" in values:
        values["class_prob_ids"] = values["class_prob_ids"].astype(np.uint16)
    return RegionRow(
        image_id=query.image_id, width=query.picture.width, height=query.picture.height, **values
    )


def stored(values: Array, dtype: str) -> Array:
    """Values as a reader will see them. Raises Rejected where the type cannot hold them."""
    try:
        return from_stored(to_stored(values, dtype), dtype)
    except ValueError as error:
        raise Rejected(Reason.NOT_FINITE, f"a feature or probability: {error}") from None
