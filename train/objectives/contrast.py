"""VLMo's pretraining step over all processes' pairs (arXiv:2111.02358, sec. 3.3; its code).

W processes with B pairs each, one's own before the others'; C = W B candidates; T tokens, M image
positions, H width.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from accelerate import Accelerator
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vlmill.models.inputs import PixelInputs, sent
from vlmill.models.layers.relative_position import Biases
from vlmill.models.outputs import Encoded
from vlmill.models.places import Cells, first_cells
from vlmill.models.vlmo.model import Contrast, Vlmo
from vlmill.train.devices.gather import gather_first, is_shared, world_size
from vlmill.train.loading.random import stream_starts, uniforms
from vlmill.train.objectives.losses import contrast, contrast_logits

NEGATIVES = 1 << 20  # apart from the streams of stages
PLACE_BITS = 32  # of a pair's place among those of all processes

# Given weights [B, C] of the candidate images for each text, and of the texts for each image, one
# index for each: images, texts.
Draw = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def negative_weights(
    scores: Float[Tensor, "B C"], excluded: Bool[Tensor, "B C"] | None = None
) -> Float[Tensor, "B C"]:
    """How likely each candidate is as a hard negative: the softmax without the right ones.

    scores: contrastive logits against candidates, of which number b is row b's partner and no
    negative (sec. 3.3), nor are those that are ``excluded``. Rows do not sum to 1. A row without
    any negative has its partner alone: finding such rows out would make a device wait. Raises
    ValueError without a second candidate.
    """
    if scores.shape[1] < 2:
        raise ValueError(f"{scores.shape[1]} candidates hold no negative; want batches of 2 pairs")
    partners = torch.eye(*scores.shape, dtype=torch.bool, device=scores.device)
    # Next to a sure partner all others are 0 in float32, which nothing can be drawn from.
    smallest = torch.finfo(torch.float32).tiny
    weights = scores.detach().float().softmax(dim=1).clamp_min(smallest)
    if excluded is None:
        return weights.masked_fill(partners, 0.0)
    right = partners | excluded
    return torch.where(right.all(1, keepdim=True), partners, weights.masked_fill(right, 0.0))


def same_pictures(keys: Int[Tensor, " C"]) -> Bool[Tensor, "C C"]:
    """Which text and image of different pairs belong together: the pairs' pictures have one key."""
    others = ~torch.eye(len(keys), dtype=torch.bool, device=keys.device)
    return (keys[:, None] == keys[None]) & others


def draw_negatives(
    weights_of_images: Float[Tensor, "B C"],
    weights_of_texts: Float[Tensor, "B C"],
    generator: torch.Generator | None = None,
) -> tuple[Int[Tensor, " B"], Int[Tensor, " B"]]:
    """One image for each text and one text for each image, by their weights; images first."""
    images = torch.multinomial(weights_of_images, 1, generator=generator)
    texts = torch.multinomial(weights_of_texts, 1, generator=generator)
    return images[:, 0], texts[:, 0]


def negative_numbers(
    seed: int, step: int, part: int, pairs: int, accelerator: Accelerator
) -> Tensor:
    """Numbers from 0 to below 1, float32 [2, B], that one's own pairs draw their negatives by.

    Functions of the seed, the step with its part, and the pair's place among those of all
    processes: however pairs are dealt out, each draws the same negative.
    """
    first = accelerator.process_index * pairs
    keys = np.arange(first, first + pairs, dtype=np.uint64) + np.uint64(part << PLACE_BITS)
    drawn = uniforms(stream_starts(seed, NEGATIVES, [step], keys), 0, 2)
    # Cut to float32's 24 bits: rounded, a number could become 1.
    numbers = np.floor(drawn.T * 2**24).astype(np.float32) * np.float32(2**-24)
    return sent(torch.from_numpy(np.ascontiguousarray(numbers)), accelerator.device)


def drawn_by(numbers: Tensor) -> Draw:
    """Draws negatives by given numbers [2, B], of images and of texts.

    A candidate's share of the way from 0 to 1 is its weight's, and candidates stand along it in the
    order of all processes' pairs.
    """

    def draw(of_images: Tensor, of_texts: Tensor) -> tuple[Tensor, Tensor]:
        return _at(of_images, numbers[0]), _at(of_texts, numbers[1])

    return draw


def _at(weights: Tensor, numbers: Tensor) -> Tensor:
    """The columns [B] of weights [B, W B] at which their sums pass these shares of the whole."""
    order = _in_order(*weights.shape, device=weights.device)
    # In float64 no number below 1 gives the whole, past which there is no candidate.
    sums = weights[:, order].double().cumsum(1)
    places = torch.searchsorted(sums, numbers[:, None] * sums[:, -1:], right=True)[:, 0]
    return order[places]


def _in_order(pairs: int, candidates: int, *, device: torch.device) -> Tensor:
    """Columns with one's own pairs first, in the order of ranks."""
    columns = torch.arange(candidates, device=device)
    if world_size() == 1:
        return columns
    end = (dist.get_rank() + 1) * pairs
    return torch.cat([columns[pairs:end], columns[:pairs], columns[end:]])


@dataclass(frozen=True, kw_only=True)
class GlobalContrast:
    """This is the contrast of one's own pairs with all.

    scores: the logits of every image with every text by the first pair of vectors. loss: of the one
    or two pairs of vectors, their mean. excluded: which images and texts of different pairs are no
    negatives; symmetric.
    """

    scores: Float[Tensor, "C C"]
    loss: Float[Tensor, ""]
    excluded: Bool[Tensor, "C C"] | None = None

    def weights(self, pairs: int) -> tuple[Float[Tensor, "B C"], Float[Tensor, "B C"]]:
        """How likely each image is drawn for one's own texts, and each text for one's images."""
        excluded = None if self.excluded is None else self.excluded[:pairs]
        of_images = negative_weights(self.scores.T[:pairs], excluded)
        return of_images, negative_weights(self.scores[:pairs], excluded)


def global_contrast(
    model: Vlmo,
    text: Contrast,
    image: Contrast,
    picture_keys: Int[Tensor, " B"] | None = None,
    *,
    exact: bool = True,
) -> GlobalContrast:
    """Contrast of one's own vectors [B, H] with all; ``exact`` as in `gather.gather_first`.

    Pairs of one of the ``picture_keys`` are no negatives of each other; without keys every pair has
    a picture of its own.
    """
    texts, images = (gather_first(one.own, exact=exact) for one in (text, image))
    excluded = None if picture_keys is None else same_pictures(gather_first(picture_keys))
    scale = model.log_scale.exp()
    losses = [contrast(texts, images, scale, excluded)]
    fused_scale = model.fused_scale()
    if fused_scale is not None:
        assert text.fused is not None and image.fused is not None
        fused = [gather_first(one, exact=exact) for one in (text.fused, image.fused)]
        losses.append(contrast(fused[0], fused[1], fused_scale, excluded))
    scores = contrast_logits(images, texts, scale)
    return GlobalContrast(scores=scores, loss=torch.stack(losses).mean(), excluded=excluded)


@dataclass(frozen=True, kw_only=True)
class ContrastAndMatching:
    """The three pretraining objectives need this (sec. 3.3).

    text, image: one's own unit vectors. contrast: theirs with all processes'. masked_text: last
    hidden states of the masked texts with their own images. match_logits: of the true pairs, of
    texts with drawn images, and of drawn texts with images, in this order. match_classes: theirs; 1
    is a match, which what is drawn is where a pair has no negative and is taken once more. The last
    three have no rows where they were not asked for.
    """

    text: Contrast
    image: Contrast
    contrast: GlobalContrast
    masked_text: Float[Tensor, "B T H"]
    match_logits: Float[Tensor, "B3 2"]
    match_classes: Int[Tensor, " B3"]


def contrast_and_matching(
    model: Vlmo,
    inputs: PixelInputs,
    masked_tokens: Int[Tensor, "B T"] | None = None,
    draw: Draw = draw_negatives,
    *,
    picture_keys: Int[Tensor, " B"] | None = None,
    match: bool = True,
    exact: bool = True,
    pack: bool = True,
) -> ContrastAndMatching:
    """Returns a pretraining step's outputs, with hard negatives from the pairs of all processes.

    Texts and images are embedded once and the bias is gathered once; the joint passes (masked,
    true, negative image, negative text) run as one batch: without ``masked_tokens`` or with
    ``match=False`` only those that are left. ``draw`` picks negatives by the first contrastive
    pair's scores. ``picture_keys`` as in `global_contrast`; ``exact`` as in `gather.gather_first`,
    of the contrast's vectors.

    Raises ValueError for masked texts of another shape, a single pair among all processes, and a
    head that the configuration leaves out.
    """
    inputs.check(vocab_size=model.config.vocab_size)
    _check_masked(inputs.tokens, masked_tokens)
    pairs, length = inputs.tokens.shape
    tokens = [inputs.tokens, *([] if masked_tokens is None else [masked_tokens])]
    embedded = torch.split(model.encoder.embed_text(torch.cat(tokens)), pairs)
    image = model.encoder.embed_image(inputs.pixels)
    longest = _longest_text(inputs.tokens) if match else length
    bias = model.encoder.joint_bias(longest)
    texts = model.contrast_text(
        embedded[0],
        inputs.token_mask,
        real=inputs.real_tokens,
        bias=bias and [one[:, :length, :length] for one in bias],
        pack=pack,
    )
    images = model.contrast_image(image, bias=bias and [one[:, longest:, longest:] for one in bias])
    of_all = global_contrast(model, texts, images, picture_keys, exact=exact)
    more = longest - length
    mask = F.pad(inputs.token_mask, (0, more))
    true, *passes = (Pairs(F.pad(text, (0, 0, 0, more)), mask, image) for text in embedded)
    num_masked = len(passes) * pairs
    classes = inputs.tokens.new_zeros(0)
    if match:
        drawn = draw(*of_all.weights(pairs))
        passes += [true, *_negatives(model, inputs, true, *drawn)]
        classes = _match_classes(*drawn)
    joint = _joint(model, passes, num_masked, bias, pack=pack) if passes else None
    return ContrastAndMatching(
        text=texts,
        image=images,
        contrast=of_all,
        masked_text=image[:0] if joint is None else joint.text[:num_masked, :length],
        match_logits=model.match_logits(joint.pooled[num_masked:])
        if match and joint is not None
        else image.new_zeros(0, 2),
        match_classes=classes,
    )


def _check_masked(tokens: Tensor, masked_tokens: Tensor | None) -> None:
    if masked_tokens is not None and masked_tokens.shape != tokens.shape:
        raise ValueError(
            f"masked_tokens has shape {tuple(masked_tokens.shape)}, tokens {tuple(tokens.shape)}"
        )


class Pairs(NamedTuple):
    """Embedded texts, their mask, and the embedded images that they are read with."""

    text: Float[Tensor, "B T H"]
    mask: Bool[Tensor, "B T"]
    image: Float[Tensor, "B M H"]


def _longest_text(tokens: Tensor) -> int:
    """The longest padded length of all processes: texts can be gathered only alike."""
    if not is_shared(tokens):
        return tokens.shape[1]
    longest = torch.tensor(tokens.shape[1], device=tokens.device)
    dist.all_reduce(longest, op=dist.ReduceOp.MAX)
    return int(longest.item())


def _negatives(
    model: Vlmo, inputs: PixelInputs, pairs: Pairs, images: Tensor, texts: Tensor
) -> list[Pairs]:
    """Texts with the drawn ``images`` [B], and drawn ``texts`` [B] with images.

    Numbers count all processes' pairs, one's own first. Other processes' pixels and words are sent,
    and embedded here: half as much as their embeddings with the gradients of these.
    """
    if not is_shared(inputs.pixels):
        other, words, mask = pairs.image[images], pairs.text[texts], pairs.mask[texts]
    else:
        more = pairs.mask.shape[1] - inputs.tokens.shape[1]
        tokens = gather_first(F.pad(inputs.tokens, (0, more)))
        words = model.encoder.embed_text(tokens[texts])
        mask = gather_first(pairs.mask.long())[texts].bool()
        other = model.encoder.embed_image(gather_first(inputs.pixels.detach())[images])
    return [Pairs(pairs.text, pairs.mask, other), Pairs(words, mask, pairs.image)]


def _joint(
    model: Vlmo, passes: list[Pairs], num_masked: int, bias: Biases | None, *, pack: bool
) -> Encoded:
    """The fusion encoder over all ``passes`` at once: words are read of the first pairs alone."""
    text, mask, image = (torch.cat(some) for some in zip(*passes, strict=True))
    masked = torch.arange(num_masked * mask.shape[1], device=mask.device)
    firsts = first_cells((len(mask), mask.shape[1]), mask)
    read = Cells(torch.cat([masked, firsts[num_masked:]]), masked[:0])
    return model.encoder.fuse(text, mask, image, bias=bias, pack=pack, read=read)


def _match_classes(images: Int[Tensor, " B"], texts: Int[Tensor, " B"]) -> Int[Tensor, " B3"]:
    """1 for the true pairs, and for what is drawn where it is one's partner: there was no other."""
    partners = torch.arange(len(images), device=images.device)
    return torch.cat([torch.ones_like(images), images == partners, texts == partners])
