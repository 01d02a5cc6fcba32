"""Trains retrieval by a model that reads pairs, with all other pairs of a step as negatives.

Every caption of a step is scored with every image of it: B x B pairs for B captions, where the
candidates of `matching` would be B x P. What depends on a text or an image alone is computed once
where the model allows it (ViLBERT's streams before co-attention).

B pairs, T tokens, R regions, P width of pooled vectors, K heads.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from vlmill.models.inputs import VLInputs
from vlmill.models.layers.pair_heads import fuse
from vlmill.models.positions import first_cells
from vlmill.models.registry import find_variant, get_variant
from vlmill.train.loading.batch import Batch
from vlmill.train.loading.order import Visit
from vlmill.train.loading.random import Uniforms
from vlmill.train.loading.stage_batches import Rows
from vlmill.train.loading.undecodable import Undecodable
from vlmill.train.objectives.negatives import same_images
from vlmill.train.tasks.retrieval.settings import MARGIN
from vlmill.train.tasks.retrieval.task import CandidateRetrieval, pair_scores
from vlmill.train.tasks.task import SampleSource


def step_losses(
    scores: Float[Tensor, "B B K"],
    names: Sequence[str],
    excluded: Bool[Tensor, "B B"] | None = None,
    margin: float = MARGIN,
) -> dict[str, Float[Tensor, ""]]:
    """Returns the losses of these names; texts are rows, images columns, pairs the diagonal.

    Heads as in `candidate_losses`. ``excluded`` pairs are neither matching nor negatives. softmax:
    the mean of the cross-entropies among images and among texts. binary: the mean of the losses of
    matching pairs and of all others, with equal weights. triplet: the hardest image and the hardest
    text of each pair, added.
    """
    num_pairs = len(scores)
    matching = torch.eye(num_pairs, dtype=torch.bool, device=scores.device)
    others = ~matching if excluded is None else ~(matching | excluded)
    losses = {}
    for name in names:
        logits = scores[..., 0 if name == "binary" else -1]
        if name == "binary":
            right = F.softplus(-logits.diagonal()).mean()
            wrong = (F.softplus(logits) * others).sum() / others.sum().clamp(min=1)
            losses[name] = (right + wrong) / 2
        elif name == "softmax":
            left = logits if excluded is None else logits.masked_fill(excluded, -torch.inf)
            target = torch.arange(num_pairs, device=scores.device)
            losses[name] = (F.cross_entropy(left, target) + F.cross_entropy(left.T, target)) / 2
        else:
            bounded = logits.sigmoid()
            wrong = bounded.masked_fill(~others, 0.0)
            hardest = torch.stack([wrong.amax(0), wrong.amax(1)])
            losses[name] = (margin + hardest - bounded.diagonal()).clamp(min=0).sum(0).mean()
    return losses


def encode_all_pairs(model: Any, inputs: VLInputs) -> Float[Tensor, "B B P"]:
    """Returns the pooled vector of each text with each image; texts are rows."""
    num_pairs = len(inputs.tokens)
    body = get_variant(find_variant(model)).get_body(model)
    if get_variant(find_variant(body)).scores_pairs == "streams":
        pooled = _join_streams(body, inputs)
    else:
        pooled = body(pair_all(inputs)).pooled
    return pooled.view(num_pairs, num_pairs, -1)


def _join_streams(body: Any, inputs: VLInputs) -> Float[Tensor, "pairs P"]:
    """Reads each text and image once; without co-attention no part depends on both."""
    texts, images = _all_numbers(inputs)
    # Without the real positions: to take packed streams would wait for a GPU.
    text = body.read_text(inputs.tokens, inputs.token_mask, inputs.segments)
    embedded = body.embed_regions(inputs.region_features, inputs.region_locations)
    regions = body.read_regions(embedded, inputs.region_mask)
    if body.config.co_attention:
        both = text.take(texts).pooled_alone(), regions.take(images).pooled_alone()
        pooled: Tensor = body.join(*both).pooled
        return pooled
    pooled_texts = body.pool_text(text.pooled_alone())
    pooled_regions = body.pool_regions(regions.pooled_alone())
    return fuse(pooled_texts[texts], pooled_regions[images], body.config.fusion)


def _all_numbers(inputs: VLInputs) -> tuple[Tensor, Tensor]:
    """Returns the number of the text and of the image of all B x B pairs, texts in turn."""
    numbers = torch.arange(len(inputs.tokens), device=inputs.tokens.device)
    return numbers.repeat_interleave(len(numbers)), numbers.repeat(len(numbers))


TEXTS = ("tokens", "token_mask", "segments", "text_regions")
IMAGES = ("region_features", "region_locations", "region_mask", "global_features")


def pair_all(inputs: VLInputs) -> VLInputs:
    """Returns all B x B pairs, of which only pooled vectors are read. Nothing is masked."""
    texts, images = _all_numbers(inputs)
    chosen: dict[str, Any] = {}
    for names, rows in ((TEXTS, texts), (IMAGES, images)):
        values = {name: getattr(inputs, name) for name in names}
        chosen |= {name: None if v is None else v[rows] for name, v in values.items()}
    num_pairs, (count, columns) = len(texts), inputs.tokens.shape
    regions = inputs.region_mask.shape[1]
    every = torch.arange(count, device=texts.device)
    if (real := inputs.real_tokens) is not None:  # text t is in the pairs t B, t B + 1, ...
        first = real // columns * count * columns + real % columns
        chosen["real_tokens"] = (first[:, None] + every * columns).flatten().sort().values
    if (real := inputs.real_regions) is not None:  # image i is in the pairs i, B + i, ...
        chosen["real_regions"] = (every[:, None] * count * regions + real).flatten()
    return replace(
        inputs,
        **chosen,
        masked_regions=None,
        read_tokens=first_cells((num_pairs, columns), texts),
        read_regions=first_cells((num_pairs, regions), texts),
    )


@dataclass(kw_only=True)
class StepRetrieval(CandidateRetrieval):
    """Distinguishes a caption's image from the step's other images, and the other way round.

    Held-out captions are measured among all held-out images, as with candidates.
    """

    def samples(self, batches: SampleSource, visit: Visit, draws: Uniforms) -> Rows | Undecodable:
        """Returns a caption with its image alone; if held out, with all images."""
        if not batches.training:
            return super().samples(batches, visit, draws)
        sample = batches.example(visit.row, draws)
        return sample if isinstance(sample, Undecodable) else (replace(sample, matching=True),)

    def outputs(self, model: nn.Module, batch: Batch) -> Float[Tensor, "S P K"]:
        """Returns the scores of each caption with its candidates: in training the step's images."""
        if not self._is_step(batch):
            return super().outputs(model, batch)
        pooled = encode_all_pairs(model, batch.inputs)
        scores = pair_scores(model, self.variant, pooled.flatten(0, 1)).float()
        return scores.view(*pooled.shape[:2], scores.shape[1])

    def compute(self, outputs: Float[Tensor, "S P K"], batch: Batch) -> dict[str, Tensor]:
        """Returns each loss as a mean over the captions."""
        if not self._is_step(batch):
            return super().compute(outputs, batch)
        keys = None if self.settings.same_picture_negatives else batch.image_keys
        excluded = None if keys is None else same_images(keys)
        return step_losses(outputs, self.losses, excluded, self.settings.margin)

    @staticmethod
    def _is_step(batch: Batch) -> bool:
        """Returns whether every row is a matching pair, so that the rows are each other's
        candidates.
        """
        return len(batch.labels["firsts"]) == len(batch.inputs.tokens) > 1
