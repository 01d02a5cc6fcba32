"""The detector on a batch of pictures of one size, without the host ever waiting for a GPU.

Where one picture has as many proposals as it has, here every picture has P places, and flags say
which of them are taken; what stands in the others means nothing. Nothing is padded: features are
those of each picture alone, up to the rounding of another order of sums.

N pictures, P places for regions, D and K1 as in vlmill.models.detector.faster_rcnn.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from vlmill.models.detector.faster_rcnn import Detections, FasterRCNN


@dataclass(frozen=True, kw_only=True)
class BatchDetections:
    """What the network says of a batch: :class:`Detections` of N x P regions in one row."""

    found: Detections
    taken: Bool[Tensor, "N P"]
    whole: Float[Tensor, "N D"] | None  # of the regions that are the whole pictures, if asked for


def detect_batch(
    model: FasterRCNN,
    pictures: Float[Tensor, "N 3 H W"],
    sides: Float[Tensor, " N"],
    *,
    given: tuple[Float[Tensor, "N P 4"], Bool[Tensor, "N P"]] | None = None,
    whole: bool = False,
    chunk: int,
) -> BatchDetections:
    """Detects, or describes ``given`` boxes (and which of them count) in pixels of the input.

    ``sides``: the least width and height of proposals, in pixels of the input. ``chunk``: regions
    that pass through res5 together.
    """
    height, width = pictures.shape[2:]
    features = model.feature_map(pictures)
    if given is None:
        boxes, taken = model.proposal_generator.propose_fixed(features, height, width, sides)
    else:
        boxes, taken = given
    places = boxes.shape[1]
    rois = torch.cat((boxes, whole_pictures(model, boxes, height, width)), 1) if whole else boxes
    means = model.roi_heads.region_features(features, numbered(rois), chunk)
    means = means.reshape(len(pictures), rois.shape[1], model.config.feature_size)
    found = model.classify(boxes.reshape(-1, 4), means[:, :places].flatten(0, 1))
    return BatchDetections(found=found, taken=taken, whole=means[:, places] if whole else None)


def numbered(boxes: Float[Tensor, "N P 4"]) -> Float[Tensor, "R 5"]:
    """All boxes in one row, each after its picture's number, as torchvision pools them."""
    numbers = torch.arange(len(boxes), dtype=boxes.dtype, device=boxes.device)
    return torch.cat((numbers[:, None, None].expand(*boxes.shape[:2], 1), boxes), 2).flatten(0, 1)


def whole_pictures(
    model: FasterRCNN, like: Float[Tensor, "N P 4"], height: int, width: int
) -> Float[Tensor, "N 1 4"]:
    """The regions that are the whole pictures."""
    offset = model.config.box_offset
    corners = like.new_zeros((len(like), 1, 4))
    corners[..., 2] = width - offset
    corners[..., 3] = height - offset
    return corners
