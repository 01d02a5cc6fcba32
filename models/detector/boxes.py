"""Decodes, clips and compares boxes.

R boxes, C classes. Boxes are (x1, y1, x2, y2) in pixels of the network's input. ``offset`` is 1
where x2 and y2 are the last pixel inside (Caffe's convention, used by the published
bottom-up-attention weights) and 0 where they are the first outside (Detectron2's).
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor


def decode_boxes(
    boxes: Float[Tensor, "R 4"],
    deltas: Float[Tensor, "R C4"],
    *,
    weights: tuple[float, float, float, float],
    offset: float,
    max_log_scale: float | None,
    end: float = 0.0,
) -> Float[Tensor, "R C4"]:
    """Applies regressions (dx, dy, dw, dh), one or several per box (Girshick et al. 2014).

    ``weights`` divide the four deltas; ``max_log_scale`` limits dw and dh from above (None: no
    limit, as in Caffe). ``end`` pixels are subtracted from the new x2 and y2, as in
    maskrcnn-benchmark.
    """
    sizes = boxes[:, 2:] - boxes[:, :2] + offset
    centres = boxes[:, :2] + 0.5 * sizes
    shifts = deltas.reshape(len(boxes), deltas.shape[1] // 4, 4) / constants(weights, deltas)
    log_scales = shifts[..., 2:]
    if max_log_scale is not None:
        log_scales = log_scales.clamp(max=max_log_scale)
    new_centres = shifts[..., :2] * sizes[:, None] + centres[:, None]
    half_sizes = 0.5 * log_scales.exp() * sizes[:, None]
    decoded = torch.cat((new_centres - half_sizes, new_centres + half_sizes - end), dim=-1)
    return decoded.reshape(deltas.shape)


def clip_boxes(
    boxes: Float[Tensor, "... 4"], limits: Float[Tensor, "... 4"]
) -> Float[Tensor, "... 4"]:
    """Moves corners outside the image onto its border.

    ``limits`` has the farthest corner twice (x, y, x, y): the last pixel where ``offset`` is 1.
    """
    return boxes.clamp(min=0.0).minimum(limits)


def constants(values: Sequence[float], like: Tensor) -> Float[Tensor, " n"]:
    """Returns numbers as a tensor with the device and dtype of ``like``.

    The numbers are written one by one, because a copy of a list would make the host wait for a GPU.
    """
    return torch.stack([like.new_full((), value) for value in values])


def pairwise_iou(
    first: Float[Tensor, "*N R 4"], second: Float[Tensor, "*N S 4"], offset: float
) -> Float[Tensor, "*N R S"]:
    """Returns the intersection over union of every pair of boxes, in each of N images."""
    low = torch.maximum(first[..., :, None, :2], second[..., None, :, :2])
    high = torch.minimum(first[..., :, None, 2:], second[..., None, :, 2:])
    inter = (high - low + offset).clamp(min=0.0).prod(dim=-1)
    area_first = (first[..., 2:] - first[..., :2] + offset).prod(dim=-1)
    area_second = (second[..., 2:] - second[..., :2] + offset).prod(dim=-1)
    return inter / (area_first[..., :, None] + area_second[..., None, :] - inter)
