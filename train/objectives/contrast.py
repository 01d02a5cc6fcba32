"""VLMo's contrast and hard negatives over all processes (arXiv:2111.02358, sec. 3.3; its code).

W processes with B pairs each, one's own before the others'; H width.
"""

from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
from accelerate import Accelerator
from torch import Tensor, nn

from vlmill.models.inputs import PixelInputs, sent
from vlmill.models.vlmo.model import Contrast, Draw, Vlmo, draw_negatives, negative_weights
from vlmill.train.devices.gather import gather_first, world_size
from vlmill.train.loading.random import stream_starts, uniforms
from vlmill.train.objectives.losses import contrast, mean_cross_entropy

NEGATIVES = 1 << 20  # apart from the streams of stages
PLACE_BITS = 32  # of a pair's place among those of all processes


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
    found = torch.searchsorted(sums, numbers[:, None] * sums[:, -1:], right=True)[:, 0]
    return order[found]


def _in_order(pairs: int, candidates: int, *, device: torch.device) -> Tensor:
    """Columns with one's own pairs first, in the order of ranks."""
    columns = torch.arange(candidates, device=device)
    if world_size() == 1:
        return columns
    end = (dist.get_rank() + 1) * pairs
    return torch.cat([columns[pairs:end], columns[:pairs], columns[end:]])


@dataclass(frozen=True, kw_only=True)
class GlobalContrast:
    """``scores`` [W B, W B] of every image with every text, by the first pair of vectors.

    ``loss``: of the one or two pairs of vectors, their mean.
    """

    scores: Tensor
    loss: Tensor

    def weights(self, pairs: int) -> tuple[Tensor, Tensor]:
        """How likely each image is drawn for one's own texts [B, W B], and texts for images."""
        return negative_weights(self.scores.T[:pairs]), negative_weights(self.scores[:pairs])


def global_contrast(
    model: Vlmo, text: Contrast, image: Contrast, *, exact: bool = True
) -> GlobalContrast:
    """Contrast of one's own vectors [B, H] with all; ``exact`` as in `gather.gather_first`."""
    texts, images = (gather_first(one.own, exact=exact) for one in (text, image))
    scale = model.log_scale.exp()
    losses = [contrast(texts, images, scale)]
    fused_scale = model.fused_scale()
    if fused_scale is not None:
        assert text.fused is not None and image.fused is not None
        fused = [gather_first(one, exact=exact) for one in (text.fused, image.fused)]
        losses.append(contrast(fused[0], fused[1], fused_scale))
    scores = scale * images.float() @ texts.float().T
    return GlobalContrast(scores=scores, loss=torch.stack(losses).mean())


def matching_pairs(inputs: PixelInputs, images: Tensor, texts: Tensor) -> PixelInputs:
    """3 B pairs: the true ones, texts with the drawn ``images`` [B], drawn ``texts`` with images.

    Numbers count all processes' pairs, one's own first; other processes' pixels and words are sent.
    """
    inputs = _as_long(inputs)
    pixels, tokens, mask = (
        gather_first(x.detach()) for x in (inputs.pixels, inputs.tokens, inputs.token_mask.long())
    )
    return PixelInputs(
        tokens=torch.cat([inputs.tokens, inputs.tokens, tokens[texts]]),
        token_mask=torch.cat([inputs.token_mask, inputs.token_mask, mask[texts].bool()]),
        pixels=torch.cat([inputs.pixels, pixels[images], inputs.pixels]),
    )


def _as_long(inputs: PixelInputs) -> PixelInputs:
    """With texts padded to the longest of all processes, which can be gathered only alike."""
    if world_size() == 1:
        return inputs
    longest = torch.tensor(inputs.tokens.shape[1], device=inputs.tokens.device)
    dist.all_reduce(longest, op=dist.ReduceOp.MAX)
    more = (0, int(longest.item()) - inputs.tokens.shape[1])
    return PixelInputs(
        tokens=nn.functional.pad(inputs.tokens, more),
        token_mask=nn.functional.pad(inputs.token_mask, more),
        pixels=inputs.pixels,
    )


def matching_loss(logits: Tensor) -> Tensor:
    """Mean over 3 B of the cross-entropy [3 B, 2] of :func:`matching_pairs`; class 1 is a match."""
    pairs = len(logits) // 3
    belongs = torch.arange(3 * pairs, device=logits.device) < pairs
    return mean_cross_entropy(logits, belongs.long())


def contrast_and_matching(
    model: Vlmo,
    inputs: PixelInputs,
    draw: Draw = draw_negatives,
    *,
    match: bool = True,
    exact: bool = True,
) -> tuple[GlobalContrast, Tensor]:
    """The contrast of a step, and its matching logits [3 B, 2] with hard negatives of all.

    With ``match=False`` these have no rows.
    """
    embedded = model.encoder.embed_text(inputs.tokens)
    text = model.contrast_text(embedded, inputs.token_mask, real=inputs.real_tokens)
    image = model.contrast_image(model.encoder.embed_image(inputs.pixels))
    found = global_contrast(model, text, image, exact=exact)
    if not match:
        return found, found.loss.new_zeros(0, 2)
    images, texts = draw(*found.weights(len(inputs.tokens)))
    pooled = model(matching_pairs(inputs, images, texts)).pooled
    return found, model.match_logits(pooled)
