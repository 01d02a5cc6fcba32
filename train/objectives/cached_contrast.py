"""Contrasts all pairs of a step that is computed in parts (GradCache, arXiv:2101.06983).

A first pass computes the vectors of every part without a graph. The contrast of all vectors gives a
gradient for each of them. The second pass is the step's own: it computes a part again, with the
same dropout, and continues the gradient from the part's vectors. The losses and gradients therefore
equal those from one part, and activations are kept for one part at a time.

A parts of W processes with B pairs each: C = A W B pairs, ordered by part, process and row, which
is their order in one part of one process. P contrastive pairs of vectors, H width, T tokens, S
pixels per side.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from jaxtyping import Bool, Float, Int, Shaped, UInt8
from torch import Tensor, nn

from vlmill.models.inputs import copy_to_device
from vlmill.train.devices.gather import gather_parts, longest_of_all, own_parts
from vlmill.train.loading.batch import HostBatch
from vlmill.train.objectives.losses import contrast, contrast_logits
from vlmill.train.objectives.negatives import negative_weights, same_images, sample_columns


@dataclass(frozen=True, kw_only=True)
class StepContrast:
    """Describes the contrast of a training step.

    ``same_picture_negatives``: other captions of a pair's image are its negatives. ``match``: a
    matching objective samples hard negatives by the contrast.
    """

    same_picture_negatives: bool
    match: bool = False


@dataclass(frozen=True, kw_only=True)
class StepNegatives:
    """Holds the hard negatives of a part's pairs: row numbers in the pairs of the whole step.

    ``images`` are for the part's texts, ``texts`` for its images; ``classes`` of both, in this
    order, are 1 where a pair has no negative and gets its own image or text. ``pixels`` are as
    loaded.
    """

    tokens: Int[Tensor, "C T"]
    token_mask: Bool[Tensor, "C T"]
    pixels: UInt8[Tensor, "C 3 S S"]
    images: Int[Tensor, " B"]
    texts: Int[Tensor, " B"]
    classes: Int[Tensor, " B2"]


@dataclass(frozen=True, kw_only=True)
class CachedContrast:
    """Holds the results of the first pass of all parts that the second pass of a part needs.

    ``loss``: the contrast of the whole step. ``gradients``: of ``loss`` with respect to the part's
    vectors, multiplied by A W, because label shares divide it again. ``seed``: of the part's
    dropout.
    """

    loss: Float[Tensor, ""]
    gradients: Float[Tensor, "B *P 2 H"]
    seed: int
    negatives: StepNegatives | None = None

    def part_loss(self, vectors: Float[Tensor, "B *P 2 H"]) -> Float[Tensor, ""]:
        """Returns the step's contrast, with its gradient with respect to the part's vectors."""
        linear = (vectors * self.gradients).sum()
        return self.loss + (linear - linear.detach())


def vectors_contrast(
    vectors: Float[Tensor, "C *P 2 H"], excluded: Bool[Tensor, "C C"] | None = None
) -> Float[Tensor, ""]:
    """Returns the mean contrast of pairs of text and image vectors.

    The texts are multiplied by the temperature. ``excluded`` as in `losses.contrast`.
    """
    texts, images = vectors.reshape(len(vectors), -1, 2, vectors.shape[-1]).unbind(2)
    one = vectors.new_ones(())
    pairs = zip(texts.unbind(1), images.unbind(1), strict=True)
    return torch.stack([contrast(text, image, one, excluded) for text, image in pairs]).mean()


def cache_contrast(
    module: nn.Module,
    parts: Sequence[HostBatch],
    step: StepContrast | None,
    numbers: Sequence[Float[Tensor, "2 B"]],
    accelerator: Accelerator,
) -> list[CachedContrast | None]:
    """Runs the first pass over this process's parts; returns the input of each part's second pass.

    ``module`` is the wrapped step. ``numbers`` choose the negatives (`negative_numbers`). A step in
    one part, with texts only or without a contrast needs no first pass: its parts get None.
    """
    if step is None or len(parts) == 1 or "pixels" not in parts[0].tensors:
        return [None] * len(parts)
    seeds = [int(torch.randint(2**62, ())) for _ in parts]
    vectors = torch.stack(
        [
            first_pass(module, part, seed, accelerator)
            for part, seed in zip(parts, seeds, strict=True)
        ]
    )
    excluded = _excluded(parts, step, accelerator.device)
    everyones = gather_parts(vectors).requires_grad_()
    with torch.enable_grad():
        loss = vectors_contrast(everyones, excluded)
    (gradients,) = torch.autograd.grad(loss, everyones)
    gradients = own_parts(gradients, len(parts)) * (len(everyones) // vectors.shape[1])
    negatives: list[StepNegatives] | list[None] = [None] * len(parts)
    if step.match:
        negatives = _negatives(parts, everyones.detach(), excluded, numbers, accelerator.device)
    return [
        CachedContrast(loss=loss.detach(), gradients=gradient, seed=seed, negatives=negative)
        for gradient, seed, negative in zip(gradients, seeds, negatives, strict=True)
    ]


@torch.no_grad()
def first_pass(
    module: nn.Module, part: HostBatch, seed: int, accelerator: Accelerator
) -> Float[Tensor, "B *P 2 H"]:
    """Returns a part's vectors, in float32."""
    # A separate autocast: the second pass would find weights cast here, without their gradients.
    with accelerator.autocast(), seed_dropout(seed, accelerator.device):
        vectors, _ = module(part.to(accelerator.device))
    result: Tensor = vectors.float()
    return result


@contextmanager
def seed_dropout(seed: int, device: torch.device) -> Iterator[None]:
    """Seeds dropout's random numbers with ``seed``; afterwards the generators are restored."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


def _excluded(
    parts: Sequence[HostBatch], step: StepContrast, device: torch.device
) -> Bool[Tensor, "C C"] | None:
    """Marks texts and images of different pairs that match, where these are excluded."""
    if step.same_picture_negatives or "image_keys" not in parts[0].tensors:
        return None
    return same_images(gather_parts(_stacked(parts, "image_keys", device)))


def _negatives(
    parts: Sequence[HostBatch],
    vectors: Float[Tensor, "C P 2 H"],
    excluded: Bool[Tensor, "C C"] | None,
    numbers: Sequence[Float[Tensor, "2 B"]],
    device: torch.device,
) -> list[StepNegatives]:
    """Samples each part's hard negatives from all pairs, by the first pair of vectors."""
    scores = contrast_logits(vectors[:, 0, 1], vectors[:, 0, 0], vectors.new_ones(()))
    rows = own_parts(torch.arange(len(vectors), device=device), len(parts))
    tokens = gather_parts(_stacked(parts, "original_tokens", device))
    token_mask = gather_parts(_stacked(parts, "token_mask", device).long()).bool()
    pixels = gather_parts(_stacked(parts, "pixels", device))
    images, texts = (
        sample_columns(negative_weights(one, excluded)[rows.flatten()], shares).view_as(rows)
        for one, shares in zip((scores.T, scores), torch.cat(list(numbers), 1), strict=True)
    )
    return [
        StepNegatives(
            tokens=tokens,
            token_mask=token_mask,
            pixels=pixels,
            images=image_rows,
            texts=text_rows,
            classes=torch.cat([image_rows == own, text_rows == own]).long(),
        )
        for image_rows, text_rows, own in zip(images, texts, rows, strict=True)
    ]


def _stacked(
    parts: Sequence[HostBatch], name: str, device: torch.device
) -> Shaped[Tensor, " A B *rest"]:
    """Returns a tensor of all parts on the device, texts padded to the longest one."""
    tensors = [part.tensors[name] for part in parts]
    if name in ("original_tokens", "token_mask"):
        longest = longest_of_all(max(one.shape[1] for one in tensors), device)
        tensors = [F.pad(one, (0, longest - one.shape[1])) for one in tensors]
    return torch.stack([copy_to_device(one, device) for one in tensors])
