"""Computes the relative position bias of BEiT and VLMo: indices, table, other resolutions.

n patches a side, N = n * n, T text tokens, R rows of a table, L layers, h heads. The image part
comes from BEiT (arXiv:2106.08254, released code); VLMo's released code adds the rows for text. The
papers do not describe it.
"""

import math

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

CLASS_ROWS = 3  # class to patch, patch to class, class to class
MIN_SPAN = 5  # offsets that a bicubic spline needs: more than three


def num_image_rows(side: int) -> int:
    """Returns the number of rows for the offsets between patches, and the class token's three."""
    return (2 * side - 1) ** 2 + CLASS_ROWS


def num_text_rows(max_tokens: int) -> int:
    """Returns the number of rows for offsets of ``max_tokens`` tokens, [CLS] and modalities."""
    return 2 * max_tokens + 2


def image_index(side: int) -> Int[Tensor, "N1 N1"]:
    """Returns the table's row for each query and key of an image, the class token first.

    Patches are counted row by row; rows of the table are by query minus key, vertical offset first.
    """
    span = 2 * side - 1
    position = torch.arange(side)
    offset = position[:, None] - position[None, :] + side - 1
    patches = offset[:, None, :, None] * span + offset[None, :, None, :]
    return _with_class_token(patches.reshape(side * side, side * side), span * span)


def text_index(num_tokens: int, max_tokens: int, image_rows: int) -> Int[Tensor, "T T"]:
    """Returns the row for each query and key of a text, [CLS] first.

    By key minus query (the opposite of the image's), from row ``image_rows + 2`` on; a table for
    ``max_tokens`` works for every shorter text. Raises ValueError for a longer one.
    """
    if not 0 < num_tokens <= max_tokens:
        raise ValueError(
            f"a text of {num_tokens} tokens, the table of relative positions is for 1 to "
            f"max_tokens={max_tokens}"
        )
    position = torch.arange(num_tokens - 1)
    first = image_rows + 2
    offsets = position[None, :] - position[:, None] + max_tokens - 2 + first
    return _with_class_token(offsets, image_rows + num_text_rows(max_tokens) - CLASS_ROWS)


def _with_class_token(inner_index: Int[Tensor, "M M"], first: int) -> Int[Tensor, "M1 M1"]:
    """Adds a class token in front; its three rows begin with ``first``."""
    index = F.pad(inner_index, (1, 0, 1, 0))
    index[0, :] = first
    index[:, 0] = first + 1
    index[0, 0] = first + 2
    return index


def joint_index(
    text: Int[Tensor, "T T"], image: Int[Tensor, "N1 N1"], image_rows: int
) -> Int[Tensor, "M M"]:
    """Returns the row for each query and key of a text with an image after it.

    Text queries to image keys have row ``image_rows``; image queries to text keys the next one.
    """
    to_image = text.new_full((text.shape[0], image.shape[1]), image_rows)
    to_text = text.new_full((image.shape[0], text.shape[1]), image_rows + 1)
    return torch.cat([torch.cat([text, to_image], dim=1), torch.cat([to_text, image], dim=1)])


Biases = Float[Tensor, "layers h _ _"]  # for queries and keys


class RelativeBias(nn.Module):
    """Learns a bias for each offset, layer and head, initially zero.

    All layers share one table: gathering it takes one pass over an [N, N] index, not one per layer.
    """

    def __init__(self, rows: int, num_layers: int, num_heads: int) -> None:
        super().__init__()
        self.num_layers = num_layers
        self.table = nn.Parameter(torch.zeros(rows, num_layers * num_heads))

    def forward(self, index: Int[Tensor, "N M"]) -> Biases:
        """Returns each layer's bias for queries and keys with these rows."""
        # Gathered from the transposed table, so that each head's matrix is contiguous.
        gathered = self.table.t().index_select(1, index.flatten())
        return gathered.view(self.num_layers, -1, *index.shape)


def side_of_table(rows: int) -> int:
    """Returns the patches per side for a table with ``rows`` rows for patches.

    Raises ValueError if no square grid has this number of rows.
    """
    side = (math.isqrt(rows) + 1) // 2
    if rows < 1 or (2 * side - 1) ** 2 != rows:
        raise ValueError(f"{rows} rows of relative positions do not fit a square grid of patches")
    return side


def resize_relative(table: Float[Tensor, "R C"], side: int) -> Float[Tensor, "R2 C"]:
    """Resizes offsets between patches from their grid to one of ``side`` patches a side.

    ``table`` has only the rows of patches. The source's offsets are treated as a geometric
    progression that is dense around 0 and reaches as far as the target's; each column is
    interpolated there by a bicubic spline, in float64 (released code of BEiT, and timm's). From few
    to many patches a side the progression, whose ratio is at most 1.5, ends before the target does:
    offsets beyond it get the values of its end, as in that code.

    Raises ValueError if the source is not square, or has fewer offsets than a spline needs.
    """
    source, target = 2 * side_of_table(table.shape[0]) - 1, 2 * side - 1
    if source == target:
        return table
    if source < MIN_SPAN:
        raise ValueError(
            f"relative positions of {(source + 1) // 2} patches a side cannot be resized to {side}:"
            f" a spline needs {(MIN_SPAN + 1) // 2} patches a side; give an image_size of "
            f"{(source + 1) // 2} times patch_size"
        )
    coordinates = _progression(source, target)
    reach = target // 2
    # Imported here so that scipy is only needed to resize a table.
    from scipy.interpolate import RectBivariateSpline

    target_points = np.arange(-reach, reach + 1, dtype=np.float64)
    columns = table.detach().double().cpu().numpy().T.reshape(-1, source, source)
    resized = [
        RectBivariateSpline(coordinates, coordinates, column, s=0)(
            target_points, target_points
        ).ravel()
        for column in columns
    ]
    return torch.from_numpy(np.stack(resized, axis=1)).to(table)


def _progression(source: int, target: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Returns 0, ±1, ±(1+q), ...: ``source`` coordinates that end near ±``target // 2``."""
    count = source // 2
    low, high = 1.01, 1.5
    while high - low > 1e-6:
        ratio = (low + high) / 2
        if (1.0 - ratio**count) / (1.0 - ratio) > target // 2:
            high = ratio
        else:
            low = ratio
    # Uses the last midpoint that was tried, not the interval's last midpoint, as the reference
    # does.
    positive = np.cumsum(ratio ** np.arange(count))
    return np.concatenate([-positive[::-1], [0.0], positive])


def resize_absolute(positions: Float[Tensor, "1 M D"], side: int) -> Float[Tensor, "1 M2 D"]:
    """Resizes positions of a class token and a square of patches bicubically.

    Raises ValueError if the patches do not form a square.
    """
    patches = positions.shape[1] - 1
    source = math.isqrt(patches)
    if source < 1 or source * source != patches:
        raise ValueError(f"{patches} positions of patches do not form a square")
    if source == side:
        return positions
    grid = positions[:, 1:].view(1, source, source, -1).permute(0, 3, 1, 2)
    resized = F.interpolate(grid, size=(side, side), mode="bicubic", align_corners=False)
    return torch.cat([positions[:, :1], resized.permute(0, 2, 3, 1).flatten(1, 2)], dim=1)
