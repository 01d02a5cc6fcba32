"""Computes VLMo's pretraining step over all pairs (arXiv:2111.02358, sec. 3.3; its code).

W processes with B pairs each, this process's pairs before the others'; C = W B candidates; T
tokens, M image positions, H width.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vlmill.models.inputs import PixelInputs
from vlmill.models.layers.relative_position import Biases
from vlmill.models.outputs import Encoded
from vlmill.models.positions import Cells, first_cells
from vlmill.models.vlmo.model import Contrast, Vlmo
from vlmill.train.devices.gather import gather_first, is_shared, longest_of_all
from vlmill.train.loading.batch import normalise_pixels
from vlmill.train.objectives.cached_contrast import CachedContrast, StepNegatives
from vlmill.train.objectives.losses import contrast, contrast_logits
from vlmill.train.objectives.negatives import Draw, draw_negatives, negative_weights, same_images


@dataclass(frozen=True, kw_only=True)
class GlobalContrast:
    """Holds the contrast of this process's pairs with all pairs.

    scores: the logits of every image with every text by the first pair of vectors; no rows in a
    part of a step, whose negatives are chosen earlier. loss: the mean over the one or two pairs of
    vectors. excluded: images and texts of different pairs that are not negatives; symmetric.
    """

    scores: Float[Tensor, "C C"]
    loss: Float[Tensor, ""]
    excluded: Bool[Tensor, "C C"] | None = None

    def weights(self, pairs: int) -> tuple[Float[Tensor, "B C"], Float[Tensor, "B C"]]:
        """Returns the sampling weights of images, and of texts, for this process's pairs."""
        excluded = None if self.excluded is None else self.excluded[:pairs]
        image_weights = negative_weights(self.scores.T[:pairs], excluded)
        return image_weights, negative_weights(self.scores[:pairs], excluded)


def global_contrast(
    model: Vlmo,
    text: Contrast,
    image: Contrast,
    image_keys: Int[Tensor, " B"] | None = None,
    *,
    exact: bool = True,
) -> GlobalContrast:
    """Contrasts this process's vectors [B, H] with all; ``exact`` as in `gather.gather_first`.

    Pairs with the same one of the ``image_keys`` are not negatives of each other; without keys
    every pair counts as a different image.
    """
    texts, images = (gather_first(vectors.unimodal, exact=exact) for vectors in (text, image))
    excluded = None if image_keys is None else same_images(gather_first(image_keys))
    scale = model.log_scale.exp()
    losses = [contrast(texts, images, scale, excluded)]
    fused_scale = model.fused_scale()
    if fused_scale is not None:
        assert text.fused is not None and image.fused is not None
        fused = [gather_first(vectors, exact=exact) for vectors in (text.fused, image.fused)]
        losses.append(contrast(fused[0], fused[1], fused_scale, excluded))
    scores = contrast_logits(images, texts, scale)
    return GlobalContrast(scores=scores, loss=torch.stack(losses).mean(), excluded=excluded)


@dataclass(frozen=True, kw_only=True)
class ContrastAndMatching:
    """Holds the outputs that the three pretraining objectives need (sec. 3.3).

    text, image: unit vectors of this process's pairs. contrast: their contrast with all processes'
    pairs. masked_text: last hidden states of the masked texts with their own images. match_logits:
    of the true pairs, of texts with sampled images, and of sampled texts with images, in this
    order. match_classes: the classes of these; 1 is a match. A sampled partner is a match if a pair
    has no negative and its own partner is used again. The last three have no rows if they were not
    requested.
    """

    text: Contrast
    image: Contrast
    contrast: GlobalContrast
    masked_text: Float[Tensor, "B T H"]
    match_logits: Float[Tensor, "B3 2"]
    match_classes: Int[Tensor, " B3"]


class DualEncoding(NamedTuple):
    """Holds the dual encoder's outputs of a step, which the fusion encoder uses.

    texts: embedded; the masked ones, if requested, after the original ones. image: embedded. bias:
    of ``longest`` tokens with an image.
    """

    texts: tuple[Float[Tensor, "B T H"], ...]
    image: Float[Tensor, "B M H"]
    bias: Biases | None
    text: Contrast
    image_vectors: Contrast


def _encode_apart(
    model: Vlmo,
    inputs: PixelInputs,
    masked_tokens: Int[Tensor, "B T"] | None,
    longest: int,
    *,
    pack: bool,
) -> DualEncoding:
    """Embeds texts and images once and encodes each separately.

    A step in parts calls this in both passes, so that dropout uses the same random numbers in each.
    """
    inputs.check(vocab_size=model.config.vocab_size)
    _check_masked(inputs.tokens, masked_tokens)
    pairs, length = inputs.tokens.shape
    tokens = [inputs.tokens, *([] if masked_tokens is None else [masked_tokens])]
    embedded = torch.split(model.encoder.embed_text(torch.cat(tokens)), pairs)
    image = model.encoder.embed_image(inputs.pixels)
    bias = model.encoder.joint_bias(longest)
    text = model.contrast_text(
        embedded[0],
        inputs.token_mask,
        real=inputs.real_tokens,
        bias=None if bias is None else bias[..., :length, :length],
        pack=pack,
    )
    on_images = None if bias is None else bias[..., longest:, longest:]
    images = model.contrast_image(image, bias=on_images)
    return DualEncoding(embedded, image, bias, text, images)


def contrast_vectors(
    model: Vlmo,
    inputs: PixelInputs,
    masked_tokens: Int[Tensor, "B T"] | None = None,
    *,
    pack: bool = True,
) -> Float[Tensor, "B P 2 H"]:
    """Returns the vectors of texts, multiplied by the temperature, and images: a step's first pass.

    ``masked_tokens`` as in the second pass, `contrast_and_matching`.
    """
    made = _encode_apart(model, inputs, masked_tokens, inputs.tokens.shape[1], pack=pack)
    return _scaled_vectors(model, made.text, made.image_vectors)


def _scaled_vectors(model: Vlmo, text: Contrast, image: Contrast) -> Float[Tensor, "B P 2 H"]:
    pairs = [torch.stack([model.log_scale.exp().float() * text.unimodal, image.unimodal], 1)]
    fused_scale = model.fused_scale()
    if fused_scale is not None:
        assert text.fused is not None and image.fused is not None
        pairs.append(torch.stack([fused_scale.float() * text.fused, image.fused], 1))
    return torch.stack(pairs, 1)


def contrast_and_matching(
    model: Vlmo,
    inputs: PixelInputs,
    masked_tokens: Int[Tensor, "B T"] | None = None,
    draw: Draw = draw_negatives,
    *,
    image_keys: Int[Tensor, " B"] | None = None,
    cached: CachedContrast | None = None,
    match: bool = True,
    exact: bool = True,
    pack: bool = True,
) -> ContrastAndMatching:
    """Returns a pretraining step's outputs, with hard negatives from the pairs of all processes.

    Texts and images are embedded once and the bias is gathered once. The joint passes (masked,
    true, negative image, negative text) run as one batch; without ``masked_tokens`` or with
    ``match=False`` it has only the remaining passes. ``draw`` samples negatives by the first
    contrastive pair's scores. ``image_keys`` as in `global_contrast`; ``exact`` as in
    `gather.gather_first`, for the contrast's vectors. ``cached``: contrast and negatives of the
    step that contains the pairs, used in place of the pairs' own.

    Raises ValueError for masked texts of another shape, a single pair among all processes, and a
    head that the configuration omits.
    """
    pairs, length = inputs.tokens.shape
    given = None if cached is None else cached.negatives
    longest = _joint_length(inputs.tokens, given) if match else length
    made = _encode_apart(model, inputs, masked_tokens, longest, pack=pack)
    image, texts, images = made.image, made.text, made.image_vectors
    if cached is None:
        contrast_result = global_contrast(model, texts, images, image_keys, exact=exact)
    else:
        loss = cached.part_loss(_scaled_vectors(model, texts, images))
        contrast_result = GlobalContrast(scores=loss.new_zeros(0, 0), loss=loss)
    more = longest - length
    mask = F.pad(inputs.token_mask, (0, more))
    true, *passes = (Pairs(F.pad(text, (0, 0, 0, more)), mask, image) for text in made.texts)
    num_masked = len(passes) * pairs
    classes = inputs.tokens.new_zeros(0)
    if match and given is None:
        drawn = draw(*contrast_result.weights(pairs))
        passes += [true, *_negatives(model, inputs, true, *drawn)]
        classes = _match_classes(*drawn)
    elif match and given is not None:
        passes += [true, *_given_negatives(model, true, given)]
        classes = F.pad(given.classes, (pairs, 0), value=1)
    joint = _joint(model, passes, num_masked, made.bias, pack=pack) if passes else None
    return ContrastAndMatching(
        text=texts,
        image=images,
        contrast=contrast_result,
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
    """Holds embedded texts, their mask, and the embedded images that they are read with."""

    text: Float[Tensor, "B T H"]
    mask: Bool[Tensor, "B T"]
    image: Float[Tensor, "B M H"]


def _negatives(
    model: Vlmo, inputs: PixelInputs, pairs: Pairs, images: Tensor, texts: Tensor
) -> list[Pairs]:
    """Returns texts with the sampled ``images`` [B], and sampled ``texts`` [B] with images.

    Indices count all processes' pairs, this process's first. Other processes' pixels and words are
    sent, and embedded here: half the size of their embeddings with the gradients of these.
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


def _joint_length(tokens: Int[Tensor, "B T"], given: StepNegatives | None) -> int:
    """Returns the padded length of texts in the joint passes: negatives may be longer."""
    if given is not None:
        return given.tokens.shape[1]
    return longest_of_all(tokens.shape[1], tokens.device)


def _given_negatives(model: Vlmo, pairs: Pairs, given: StepNegatives) -> list[Pairs]:
    """Pairs and embeds texts and images of any part of the step, as :func:`_negatives` does."""
    words = model.encoder.embed_text(given.tokens[given.texts])
    other = model.encoder.embed_image(normalise_pixels(given.pixels[given.images]))
    return [
        Pairs(pairs.text, pairs.mask, other),
        Pairs(words, given.token_mask[given.texts], pairs.image),
    ]


def _joint(
    model: Vlmo, passes: list[Pairs], num_masked: int, bias: Biases | None, *, pack: bool
) -> Encoded:
    """Runs the fusion encoder over all ``passes`` in one batch; reads words of the first pairs."""
    text, mask, image = (torch.cat(tensors) for tensors in zip(*passes, strict=True))
    masked = torch.arange(num_masked * mask.shape[1], device=mask.device)
    firsts = first_cells((len(mask), mask.shape[1]), mask)
    read = Cells(torch.cat([masked, firsts[num_masked:]]), masked[:0])
    return model.encoder.fuse(text, mask, image, bias=bias, pack=pack, read=read)


def _match_classes(images: Int[Tensor, " B"], texts: Int[Tensor, " B"]) -> Int[Tensor, " B3"]:
    """Returns 1 for true pairs, and for a pair's own partner where it had no negative."""
    partners = torch.arange(len(images), device=images.device)
    return torch.cat([torch.ones_like(images), images == partners, texts == partners])
