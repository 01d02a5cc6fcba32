"""Non-maximum suppression, in one order of the boxes or in every class's order at once.

R boxes, K classes, N kept boxes.  ``offset`` and box layout as in vlmill.models.boxes.
``inclusive`` suppresses at an overlap equal to the threshold (the original Caffe code on the CPU),
otherwise only above it.
"""

import math

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from torchvision.ops import batched_nms
from torchvision.ops import nms as torchvision_nms

from vlmill.models.boxes import pairwise_iou

WORD_BITS = 64


def nms(
    boxes: Float[Tensor, "R 4"],
    scores: Float[Tensor, " R"],
    threshold: float,
    *,
    offset: float,
    inclusive: bool,
) -> Int64[Tensor, " N"]:
    """Indices of the boxes that survive, highest score first.

    torchvision's operator measures widths without an offset and suppresses strictly above the
    threshold: the far corners carry the offset instead, and an inclusive threshold is the next
    float32 below.
    """
    corners = exclusive_corners(boxes, offset)
    kept: Tensor = torchvision_nms(corners, scores, strict_threshold(threshold, inclusive))
    return kept


def nms_by_class(
    boxes: Float[Tensor, "R 4"],
    scores: Float[Tensor, " R"],
    classes: Int64[Tensor, " R"],
    threshold: float,
    *,
    offset: float,
    inclusive: bool,
) -> Int64[Tensor, " N"]:
    """The same where boxes of different classes do not suppress each other."""
    corners = exclusive_corners(boxes, offset)
    kept: Tensor = batched_nms(corners, scores, classes, strict_threshold(threshold, inclusive))
    return kept


def exclusive_corners(boxes: Float[Tensor, "R 4"], offset: float) -> Float[Tensor, "R 4"]:
    """Boxes whose second corner is the first pixel outside."""
    return torch.cat((boxes[:, :2], boxes[:, 2:] + offset), dim=1)


def strict_threshold(threshold: float, inclusive: bool) -> float:
    """The threshold above which float32 overlaps suppress."""
    if not inclusive:
        return threshold
    bound = torch.tensor(threshold, dtype=torch.float32)
    return torch.nextafter(bound, torch.tensor(-math.inf)).item()


def nms_every_class(
    boxes: Float[Tensor, "R 4"],
    scores: Float[Tensor, "R K"],
    threshold: float,
    *,
    offset: float,
    inclusive: bool,
) -> Bool[Tensor, "R K"]:
    """Which boxes survive in which class, when all classes share the boxes.

    The overlaps are the same for every class, so each box gets one row of bits (whom it suppresses)
    and all classes walk down their own order together: R steps on (K, R / 64) words instead of K
    separate suppressions. Equal scores: the box with the lower index goes first.
    """
    num_boxes, num_classes = scores.shape
    overlap = pairwise_iou(boxes, boxes, offset)
    limit = torch.tensor(threshold, dtype=torch.float32, device=boxes.device)
    suppresses = pack_bits(overlap >= limit if inclusive else overlap > limit)
    order = scores.sort(dim=0, descending=True, stable=True).indices
    dead = suppresses.new_zeros((num_classes, suppresses.shape[1]))
    kept_in_order = torch.empty_like(order, dtype=torch.bool)
    words, bits = order // WORD_BITS, order % WORD_BITS
    for rank in range(num_boxes):
        word = dead.gather(1, words[rank, :, None])[:, 0]
        alive = ((word >> bits[rank]) & 1) == 0
        kept_in_order[rank] = alive
        # A suppressed box suppresses nobody: its row is masked with zeros (-1 is all ones).
        dead |= suppresses[order[rank]] & -alive.to(torch.int64)[:, None]
    return torch.empty_like(kept_in_order).scatter_(0, order, kept_in_order)


def pack_bits(flags: Bool[Tensor, "R S"]) -> Int64[Tensor, "R W"]:
    """Rows of flags as 64-bit words, lowest bit first; the last word is filled with zeros."""
    num_words = -(-flags.shape[1] // WORD_BITS)
    missing = num_words * WORD_BITS - flags.shape[1]
    padded = torch.nn.functional.pad(flags, (0, missing)).to(torch.int64)
    shifts = torch.arange(WORD_BITS, device=flags.device)
    grouped = padded.reshape(len(flags), num_words, WORD_BITS)
    # The sum of distinct powers of two is their union, the sign bit included (it wraps).
    return (grouped << shifts).sum(dim=-1)


def class_confidence(
    boxes: Float[Tensor, "R 4"],
    foreground: Float[Tensor, "R K"],
    threshold: float,
    *,
    offset: float,
    inclusive: bool,
) -> Float[Tensor, " R"]:
    """The highest probability with which a box survives in some class; 0 where it never does.

    This is the score by which bottom-up attention chooses its regions (Anderson et al. 2018,
    released code).
    """
    kept = nms_every_class(boxes, foreground, threshold, offset=offset, inclusive=inclusive)
    if not len(boxes):
        return foreground.new_zeros(0)
    return torch.where(kept, foreground, 0.0).amax(dim=1)
