"""Samples hard negatives from all processes' pairs, by the contrastive scores.

W processes with B pairs each, this process's pairs before the others'; C = W B candidates.
"""

from collections.abc import Callable

import numpy as np
import torch
import torch.distributed as dist
from accelerate import Accelerator
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vlmill.models.inputs import copy_to_device
from vlmill.train.devices.gather import world_size
from vlmill.train.loading.random import stream_starts, uniforms

NEGATIVES = 1 << 20  # separate from the streams of stages


# Weights [B, C] of the candidate images for each text, and of the texts for each image, to one
# index for each: images, texts.
Draw = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def negative_weights(
    scores: Float[Tensor, "B C"], excluded: Bool[Tensor, "B C"] | None = None
) -> Float[Tensor, "B C"]:
    """Returns each candidate's weight as a hard negative: the softmax, 0 for matching ones.

    scores: contrastive logits against candidates. Candidate b is row b's partner and not a negative
    (sec. 3.3); ``excluded`` candidates are not negatives either. Rows do not sum to 1. A row
    without any negative keeps only its partner: a check for such rows would make a device wait.
    Raises ValueError without a second candidate, except for scores without values: they are used to
    count the products of a part of one pair, whose candidates are in other parts.
    """
    if scores.shape[1] < 2 and not scores.is_meta:
        raise ValueError(
            f"{scores.shape[1]} candidates contain no negative; expected batches of at "
            "least 2 pairs"
        )
    partners = torch.eye(*scores.shape, dtype=torch.bool, device=scores.device)
    # Next to a certain partner all others are 0 in float32, which cannot be sampled from.
    smallest = torch.finfo(torch.float32).tiny
    weights = scores.detach().float().softmax(dim=1).clamp_min(smallest)
    if excluded is None:
        return weights.masked_fill(partners, 0.0)
    right = partners | excluded
    return torch.where(right.all(1, keepdim=True), partners, weights.masked_fill(right, 0.0))


def same_images(keys: Int[Tensor, " C"]) -> Bool[Tensor, "C C"]:
    """Returns which text and image of different pairs match: the images have the same key."""
    is_other_pair = ~torch.eye(len(keys), dtype=torch.bool, device=keys.device)
    return (keys[:, None] == keys[None]) & is_other_pair


def draw_negatives(
    weights_of_images: Float[Tensor, "B C"],
    weights_of_texts: Float[Tensor, "B C"],
    generator: torch.Generator | None = None,
) -> tuple[Int[Tensor, " B"], Int[Tensor, " B"]]:
    """Samples an image for each text and a text for each image by weight; images first."""
    images = torch.multinomial(weights_of_images, 1, generator=generator)
    texts = torch.multinomial(weights_of_texts, 1, generator=generator)
    return images[:, 0], texts[:, 0]


def negative_numbers(
    seed: int, step: int, part: int, pairs: int, accelerator: Accelerator
) -> Tensor:
    """Returns numbers in [0, 1), float32 [2, B], that select negatives of this process's pairs.

    They are functions of the seed, the step, and the pair's position among the pairs of all parts
    and processes: each pair gets the same negative regardless of how pairs are distributed.
    """
    first = (part * accelerator.num_processes + accelerator.process_index) * pairs
    keys = np.arange(first, first + pairs, dtype=np.uint64)
    drawn = uniforms(stream_starts(seed, NEGATIVES, [step], keys), 0, 2)
    # Cut to float32's 24 bits: rounded, a number could become 1.
    numbers = np.floor(drawn.T * 2**24).astype(np.float32) * np.float32(2**-24)
    return copy_to_device(torch.from_numpy(np.ascontiguousarray(numbers)), accelerator.device)


def make_draw(numbers: Tensor) -> Draw:
    """Returns a function that samples negatives by given numbers [2, B], of images and of texts.

    Candidates share the interval from 0 to 1 in proportion to their weights, in the order of all
    processes' pairs.
    """

    def draw(image_weights: Tensor, text_weights: Tensor) -> tuple[Tensor, Tensor]:
        return _pick_columns(image_weights, numbers[0]), _pick_columns(text_weights, numbers[1])

    return draw


def sample_columns(
    weights: Float[Tensor, "B C"], numbers: Float[Tensor, " B"]
) -> Int[Tensor, " B"]:
    """Returns the columns at which the cumulated ``weights`` exceed these shares of their total."""
    # In float64 no number below 1 reaches the total, where the candidates end.
    sums = weights.double().cumsum(1)
    columns = torch.searchsorted(sums, numbers[:, None] * sums[:, -1:], right=True)[:, 0]
    # Sums that are NaN are never exceeded; the step's loss is NaN then, and is reported.
    return columns.clamp(max=weights.shape[1] - 1)


def _pick_columns(weights: Tensor, numbers: Tensor) -> Tensor:
    """Samples columns [B] of weights [B, W B], which begin with this process's pairs."""
    order = _in_order(*weights.shape, device=weights.device)
    return order[sample_columns(weights[:, order], numbers)]


def _in_order(pairs: int, candidates: int, *, device: torch.device) -> Tensor:
    """Returns the columns, which begin with this process's pairs, in the order of ranks."""
    columns = torch.arange(candidates, device=device)
    if world_size() == 1:
        return columns
    end = (dist.get_rank() + 1) * pairs
    return torch.cat([columns[pairs:end], columns[:pairs], columns[end:]])
