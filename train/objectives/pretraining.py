"""Computes the objectives of pretraining on a batch.

B pairs, N masked words, M masked regions, K classes, W positions of words of width H, J objectives.

Every loss is a mean. :func:`label_counts` returns its number of labels, from the batch's masks
alone, so that means of parts can be weighted to the mean of the whole.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from vlmill.models import VLInputs
from vlmill.models.beit.model import Beit
from vlmill.models.bert.model import Bert
from vlmill.models.outputs import Encoded, RegionModel
from vlmill.models.registry import find_variant, get_variant
from vlmill.models.vlbert.end_to_end import VlBertEndToEnd, without_pixels
from vlmill.models.vlmo.model import Vlmo
from vlmill.train.loading.batch import Batch, HostBatch
from vlmill.train.loading.images.tokenizer import ImageTokens
from vlmill.train.objectives.cached_contrast import CachedContrast, StepContrast
from vlmill.train.objectives.contrast import contrast_and_matching, contrast_vectors
from vlmill.train.objectives.losses import (
    IGNORED,
    are_whole,
    mean_cross_entropy,
    mean_divergence,
    mean_matching,
    mean_soft_cross_entropy,
    mean_squared_error,
)
from vlmill.train.objectives.negatives import Draw, draw_negatives, make_draw
from vlmill.train.settings.parts import Objectives


@cache
def list_weighted(weights: Objectives) -> tuple[str, ...]:
    """Names the objectives with a weight above 0."""
    return tuple(field.name for field in fields(weights) if getattr(weights, field.name))


def label_counts(batch: HostBatch, weights: Objectives) -> dict[str, int]:
    """Returns each weighted objective's number of labels in the batch, read on the host."""
    tensors = batch.tensors
    width = tensors["tokens"].shape[1] if "tokens" in tensors else 1
    # Without regions and pixels all rows are texts without images.
    paired = "region_mask" in tensors or "pixels" in tensors
    pairs = len(batch.pair_ids) - batch.num_texts if paired else 0
    masked = tensors.get("masked_tokens", torch.empty(0))
    probs = tensors.get("class_probs")

    def count_classes() -> int:
        targets = tensors.get("class_targets")
        return 0 if targets is None else int((targets != IGNORED).sum())

    # Only the requested counts: the sums of a thousand distributions keep all cores of the host
    # busy.
    counts: dict[str, Callable[[], int]] = {
        "mlm": lambda: int((masked < pairs * width).sum()),
        "text_mlm": lambda: int((masked >= pairs * width).sum()),
        "moc": count_classes,
        "mrkl": lambda: count_classes() if probs is None else len(probs),
        "mrce": lambda: count_classes() if probs is None else int(are_whole(probs).sum()),
        "mrfr": lambda: len(tensors.get("class_targets", ())),
        "itm": lambda: pairs,
        "itc": lambda: pairs,
        "mim": lambda: int(tensors["patch_mask"].sum()) if "patch_mask" in tensors else 0,
    }
    return {name: counts[name]() for name in list_weighted(weights)}


@dataclass(frozen=True, kw_only=True)
class Options:
    """Holds the inputs that some losses need in addition to model and batch.

    ``image_tokens`` computes the targets of masked image modelling, ``draw`` samples the negatives
    of VLMo's matching. ``same_picture_negatives``: other captions of a pair's image are also its
    negatives. Without ``pack`` padding is computed too. ``cached``: of the step that contains the
    batch.
    """

    image_tokens: ImageTokens | None = None
    draw: Draw = draw_negatives
    same_picture_negatives: bool = False
    pack: bool = True
    cached: CachedContrast | None = None


NamedLosses = dict[str, Float[Tensor, ""]]  # each loss by its objective
Losses = Callable[[Any, Batch, Objectives, Options], NamedLosses]
DEFAULTS = Options()


class PretrainingStep(nn.Module):
    """Wraps a model and its objectives in one module, for several devices and for compiling.

    ``losses`` are those that the model's variant is trained by. ``names`` are the objectives with a
    weight, in the order of their shares.
    """

    def __init__(
        self,
        model: nn.Module,
        weights: Objectives,
        losses: Losses,
        image_tokens: ImageTokens | None = None,
        *,
        same_picture_negatives: bool = False,
        pack: bool = True,
    ) -> None:
        super().__init__()
        self.model, self.weights, self.pack = model, weights, pack
        self.image_tokens = image_tokens
        self.same_picture_negatives = same_picture_negatives
        self.names, self.losses = list_weighted(weights), losses
        self.contrast: StepContrast | None = None
        if get_variant(find_variant(model)).contrasts and (weights.itc or weights.itm):
            match = bool(weights.itm)
            self.contrast = StepContrast(same_picture_negatives=same_picture_negatives, match=match)

    def forward(
        self,
        batch: Batch,
        shares: Float[Tensor, " J"] | None = None,
        numbers: Float[Tensor, "2 B"] | None = None,
        cached: CachedContrast | None = None,
    ) -> tuple[Tensor, NamedLosses]:
        """Returns the weighted sum, and each loss unweighted.

        ``shares``, one for each of ``names``: the batch's share of all labels. They are a tensor,
        because a compiled step would be compiled again for every new number. Without them, returns
        the vectors of a batch's pairs [B, P, 2, H] and no loss: the first pass of a step in parts;
        the second pass has ``cached``. ``numbers`` sample VLMo's negatives; without them, PyTorch's
        generator does.
        """
        if shares is None:
            inputs, masked = batch.pixel_inputs(masked=False), batch.inputs.tokens
            masked_tokens = masked if self.weights.mlm else None
            vlmo = cast(Vlmo, self.model)
            return contrast_vectors(vlmo, inputs, masked_tokens, pack=self.pack), {}
        draw = draw_negatives if numbers is None else make_draw(numbers)
        options = Options(
            image_tokens=self.image_tokens,
            draw=draw,
            same_picture_negatives=self.same_picture_negatives,
            pack=self.pack,
            cached=cached,
        )
        unshared = self.losses(self.model, batch, self.weights, options)
        shares_by_name = dict(zip(self.names, shares.unbind(), strict=True))
        losses = {name: loss * shares_by_name[name] for name, loss in unshared.items()}
        terms = [loss * getattr(self.weights, name) for name, loss in losses.items()]
        return torch.stack(terms).sum(), losses


def region_losses(
    model: RegionModel, batch: Batch, weights: Objectives, options: Options = DEFAULTS
) -> NamedLosses:
    """Returns a region model's losses on words, regions and pairs that the recipe weights."""
    encoded = model(batch.inputs, pack=options.pack)
    return _compute_encoded_losses(model, batch, weights, encoded)


def end_to_end_losses(
    model: VlBertEndToEnd, batch: Batch, weights: Objectives, options: Options = DEFAULTS
) -> NamedLosses:
    """Returns :func:`region_losses` with features computed by the model (VL-BERT)."""
    variant = cast(RegionModel, model.model)
    encoded = variant(with_features(model, batch), pack=options.pack)
    return _compute_encoded_losses(variant, batch, weights, encoded)


def with_features(model: VlBertEndToEnd, batch: Batch) -> VLInputs:
    """Returns the inputs with features computed from images; none for texts without images."""
    regions, inputs = batch.image_regions, batch.inputs
    if regions is None or inputs.masked_regions is None:
        raise ValueError("VL-BERT end to end needs feeding.kind=picture-regions with whole_image")
    pairs, num_shown = regions.region_mask.shape
    images = without_pixels(regions.images, regions.boxes, inputs.masked_regions[:pairs])
    features = model.cnn(images, regions.boxes, regions.region_mask, real=inputs.real_regions)
    rows = len(inputs.tokens) - pairs
    none = features.new_zeros(rows, num_shown, features.shape[2])
    locations = regions.locations()
    return inputs.replace_regions(
        torch.cat([features, none]),
        torch.cat([locations, locations.new_zeros(rows, num_shown, 5)]),
    )


def _compute_encoded_losses(
    model: RegionModel, batch: Batch, weights: Objectives, encoded: Encoded
) -> NamedLosses:
    """Returns means of MLM over words, of MOC, MRKL, MRCE, MRFR over regions, of ITM over pairs."""
    words, pairs = encoded.text.flatten(0, 1), len(batch.inputs.tokens) - batch.num_texts
    losses = _word_losses(model, words, encoded.text.shape[1] * pairs, batch, weights)
    regions = encoded.regions.flatten(0, 1)[batch.masked_regions]
    if weights.moc or weights.mrkl or weights.mrce:
        logits = model.region_class_logits(regions)
        if weights.moc:
            losses["moc"] = mean_cross_entropy(logits, batch.class_targets)
        for name, loss in SOFT.items():
            if getattr(weights, name):
                losses[name] = _from_distributions(loss, logits, batch)
    if weights.mrfr:
        predicted = model.region_features(regions)
        losses["mrfr"] = mean_squared_error(
            predicted, batch.feature_targets, batch.labelled_regions
        )
    if weights.itm:
        logit = model.match_logit(encoded.pooled[:pairs])
        losses["itm"] = mean_matching(logit, batch.matching)
    return losses


def image_losses(
    model: Beit, batch: Batch, weights: Objectives, options: Options = DEFAULTS
) -> NamedLosses:
    """Returns the loss of masked image modelling (arXiv:2106.08254, sec. 2.3), a mean over
    patches.
    """
    if options.image_tokens is None or batch.pixels is None or batch.patch_mask is None:
        raise ValueError("objectives.mim needs images and a picture_tokenizer")
    assert batch.token_pixels is not None and batch.masked_patches is not None
    targets = options.image_tokens(batch.token_pixels).flatten()[batch.masked_patches]
    states = model(batch.pixels, batch.patch_mask.flatten(1))[:, 1:].flatten(0, 1)
    logits = model.visual_logits(states[batch.masked_patches])
    return {"mim": mean_cross_entropy(logits, targets)}


SoftLoss = Callable[
    [Float[Tensor, "M K"], Float[Tensor, "M K"], Bool[Tensor, " M"] | None], Float[Tensor, ""]
]
SOFT: dict[str, SoftLoss] = {"mrkl": mean_divergence, "mrce": mean_soft_cross_entropy}


def _from_distributions(
    loss: SoftLoss, logits: Float[Tensor, "M K"], batch: Batch
) -> Float[Tensor, ""]:
    """Returns the loss by distributions, or by classes where there are no distributions.

    Classes that are certain give the same loss. The detector may have fewer classes than the model.
    """
    distributions = batch.class_distributions
    if distributions is None:
        return mean_cross_entropy(logits, batch.class_targets)
    return loss(logits[:, : distributions.shape[1]], distributions, batch.labelled_regions)


def _word_losses(
    model: Any, words: Float[Tensor, "W H"], end: int, batch: Batch, weights: Objectives
) -> NamedLosses:
    """Returns MLM over words of pairs, at positions before ``end``, and over texts only."""
    losses: NamedLosses = {}
    if not (weights.mlm or weights.text_mlm):
        return losses
    logits = model.mlm_logits(words[batch.masked_tokens])
    in_pairs = batch.masked_tokens < end
    for name, chosen in (("mlm", in_pairs), ("text_mlm", ~in_pairs)):
        if getattr(weights, name):
            targets = torch.where(chosen, batch.token_targets, IGNORED)
            losses[name] = mean_cross_entropy(logits, targets)
    return losses


def text_losses(
    model: Bert, batch: Batch, weights: Objectives, options: Options = DEFAULTS
) -> NamedLosses:
    """Returns MLM of texts without images (Devlin et al. 2018, sec. 3.1, task 1)."""
    inputs = batch.inputs
    encoded = model(inputs.tokens, inputs.token_mask, real=inputs.real_tokens, pack=options.pack)
    return _word_losses(model, encoded.text.flatten(0, 1), 0, batch, weights)


def vlmo_losses(
    model: Vlmo, batch: Batch, weights: Objectives, options: Options = DEFAULTS
) -> NamedLosses:
    """Returns contrast, hard-negative matching and MLM (arXiv:2111.02358, sec. 3.3), or MLM."""
    inputs, mask, pack = batch.inputs, batch.inputs.token_mask, options.pack
    if batch.pixels is None:
        hidden = model.encode_text(inputs.tokens, mask, real=inputs.real_tokens, pack=pack)
        return _word_losses(model, hidden.flatten(0, 1), 0, batch, weights)
    masked = batch.pixel_inputs(masked=True)
    if not (weights.itc or weights.itm):
        words = model(masked, pack=pack).text.flatten(0, 1)
        return _word_losses(model, words, len(words), batch, weights)
    tokens = masked.tokens if weights.mlm else None
    step = contrast_and_matching(
        model,
        batch.pixel_inputs(masked=False),
        tokens,
        options.draw,
        image_keys=None if options.same_picture_negatives else batch.image_keys,
        cached=options.cached,
        match=bool(weights.itm),
        pack=pack,
    )
    losses: NamedLosses = {}
    if weights.itc:
        losses["itc"] = step.contrast.loss
    if weights.itm:
        losses["itm"] = mean_cross_entropy(step.match_logits, step.match_classes)
    if weights.mlm:
        words = step.masked_text.flatten(0, 1)
        losses |= _word_losses(model, words, len(words), batch, weights)
    return losses
