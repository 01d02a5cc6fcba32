"""Computes the outputs of VCR's heads for a batch.

B questions, C choices, T tokens, R regions with the full image in row 0, L and N labels.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vlmill.models.positions import Cells
from vlmill.models.vlbert.tasks import ChoiceInputs
from vlmill.train.loading.batch import Batch
from vlmill.train.objectives.losses import IGNORED
from vlmill.train.tasks.vcr.settings import VcrSettings


class ChoiceOutputs(NamedTuple):
    """Holds the logits of the choices, and where predicted of regions' categories and masked
    words.
    """

    choices: Float[Tensor, "B C"]
    categories: Float[Tensor, "L K"] | None = None
    words: Float[Tensor, "N V"] | None = None


def own_outputs(model: Any, batch: Batch, settings: VcrSettings) -> ChoiceOutputs:
    """Returns VL-BERT's outputs: the logits of each sequence's choice, and the other
    heads' outputs.
    """
    labels, inputs = batch.labels, batch.inputs
    texts = ChoiceInputs(
        tokens=labels["tokens"],
        token_mask=labels["token_mask"],
        segments=labels["segments"],
        text_regions=labels["text_regions"],
        region_features=inputs.region_features,
        region_locations=inputs.region_locations,
        region_mask=inputs.region_mask,
        masked_regions=inputs.masked_regions if settings.regions == "masked" else None,
    )
    region_cells = (labels["region_sequences"], labels["region_rows"])
    if (images := batch.image_regions) is None:
        output, heads = model(texts, category_regions=region_cells), model
    else:
        output = model(images, texts, real=inputs.real_regions, category_regions=region_cells)
        heads = model.model
    outputs = ChoiceOutputs(choices=output.answer_logits)
    if settings.regions != "none":
        outputs = outputs._replace(categories=output.category_logits)
    if settings.words:
        hidden = output.text.flatten(0, 1)[labels["word_places"]]
        outputs = outputs._replace(words=heads.word_logits(hidden))
    return outputs


def pooled_scores(model: Any, batch: Batch, options: Mapping[str, Any]) -> Float[Tensor, "B C"]:
    """Returns the scores of ViLBERT, its baseline and InterBERT: a linear layer on the pooled
    vector of each pair; the image's regions are embedded once for its choices, with the variant's
    ``choice_options``.
    """
    labels, inputs = batch.labels, batch.inputs
    choices = labels["tokens"].shape[1]
    regions = model.trunk.embed_regions(inputs.region_features, inputs.region_locations, **options)
    encoded = model.trunk.encode(
        labels["tokens"].flatten(0, 1),
        labels["token_mask"].flatten(0, 1),
        regions.repeat_interleave(choices, dim=0),
        inputs.region_mask.repeat_interleave(choices, dim=0),
        segments=labels["segments"].flatten(0, 1),
        read=find_first_cells(labels["token_mask"].flatten(0, 1), inputs.region_mask),
    )
    scores: Tensor = model.scores(encoded.pooled)
    return scores.view(-1, choices)


def find_first_cells(token_mask: Bool[Tensor, "BC T"], region_mask: Bool[Tensor, "B R"]) -> Cells:
    """Returns the positions that are pooled: the first token and the first region of each pair."""
    pairs = torch.arange(len(token_mask), device=token_mask.device)
    return Cells(pairs * token_mask.shape[1], pairs * region_mask.shape[1])


def mean_of_choices(logits: Float[Tensor, "B C"], right: Int[Tensor, " B"]) -> Float[Tensor, ""]:
    """Returns the mean binary cross-entropy of every choice of the questions with a label."""
    known = right != IGNORED
    targets = F.one_hot(right.clamp(min=0), logits.shape[1]).to(logits.dtype)
    losses = F.binary_cross_entropy_with_logits(logits, targets, reduction="none")
    return (losses * known[:, None]).sum() / (known.sum() * logits.shape[1]).clamp(min=1)
