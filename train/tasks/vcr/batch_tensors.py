"""Builds the tensors of a batch of questions, and computes the outputs of VCR's heads for it.

B questions, C choices, T tokens, R regions with the full image in row 0, L regions whose categories
are predicted, N masked words.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vlmill.models.positions import Cells
from vlmill.models.vlbert.tasks import ChoiceInputs
from vlmill.train.loading.arrays import Flags, Ids
from vlmill.train.loading.batch import Batch
from vlmill.train.loading.sample import SampledRegions
from vlmill.train.objectives.losses import IGNORED
from vlmill.train.settings.parts import Feeding
from vlmill.train.tasks.vcr.examples import ChoiceSample
from vlmill.train.tasks.vcr.settings import VcrSettings
from vlmill.train.tasks.vcr.texts import WHOLE, find_category


def choice_tensors(
    samples: Sequence[ChoiceSample],
    feeding: Feeding,
    settings: VcrSettings,
) -> dict[str, Tensor]:
    """Returns the tensors of a batch: ``tokens``, ``token_mask``, ``segments`` and ``text_regions``
    [B, C, T]; ``right`` [B], -100 where no label is public; the ``categories`` [L] of regions to
    predict, by their ``region_sequences`` and ``region_rows``; ``word_places`` [N] in the flattened
    texts, and their ``word_targets`` [N]; the images' ``sizes`` [B, 2].
    """
    object_rows = [
        find_object_rows(sample.regions, len(sample.question.object_names), feeding)
        for sample in samples
    ]
    texts = [text for sample in samples for text in sample.texts]
    count, choices = len(texts), len(samples[0].texts)
    longest = max(len(text.tokens) for text in texts)
    arrays = {
        name: np.zeros((count, longest), dtype=np.int64)
        for name in ("tokens", "segments", "text_regions", "original")
    }
    masks = {name: np.zeros((count, longest), dtype=np.bool_) for name in ("real", "masked")}
    for i, text in enumerate(texts):
        end = len(text.tokens)
        arrays["tokens"][i, :end], arrays["original"][i, :end] = text.tokens, text.original
        arrays["segments"][i, :end] = text.segments
        arrays["text_regions"][i, :end] = object_rows[i // choices][text.objects]
        masks["real"][i, :end], masks["masked"][i, :end] = True, text.masked
    tensors = {
        name: torch.from_numpy(arrays[name]).view(-1, choices, longest)
        for name in ("tokens", "segments", "text_regions")
    }
    words = np.flatnonzero(masks["masked"])
    categories, region_flags = region_labels(samples, object_rows, settings)
    labels = [
        sample.question.label if sample.question.label >= 0 else IGNORED for sample in samples
    ]
    return tensors | {
        "token_mask": torch.from_numpy(masks["real"]).view(-1, choices, longest),
        "right": torch.tensor(labels),
        **asked_regions(categories, region_flags, choices),
        "word_places": torch.from_numpy(words),
        "sizes": torch.tensor([get_size(sample) for sample in samples]),
        "word_targets": torch.from_numpy(arrays["original"].ravel()[words]),
    }


def asked_regions(categories: Ids, region_flags: Flags, choices: int) -> dict[str, Tensor]:
    """Returns the indices of the regions that are ``region_flags`` [B, R] in the sequences of all
    choices, and their categories.
    """
    sequences, rows = np.repeat(region_flags, choices, axis=0).nonzero()
    return {
        "region_sequences": torch.from_numpy(sequences),
        "region_rows": torch.from_numpy(rows),
        "categories": torch.from_numpy(categories[sequences // choices, rows]),
    }


def get_size(sample: ChoiceSample) -> tuple[int, int]:
    """Returns the width and height of a sample's image."""
    assert sample.regions is not None
    return sample.regions.row.width, sample.regions.row.height


def find_object_rows(regions: SampledRegions | None, num_objects: int, feeding: Feeding) -> Ids:
    """Returns the row of the region of each object, counted from 1: int64 [objects + 1].

    0 means no object, and has the full image's row, like objects that are not shown.
    """
    assert regions is not None
    numbers = np.arange(num_objects + 1)
    if feeding.boxes == "detected":
        return np.zeros_like(numbers)
    num_shown = regions.num_shown - regions.first_annotated
    offset = int(feeding.whole_image != "none")
    rows = offset + regions.first_annotated + numbers - 1
    return np.where((numbers > 0) & (numbers <= num_shown), rows, 0)


def region_labels(
    samples: Sequence[ChoiceSample],
    object_rows: Sequence[Ids],
    settings: VcrSettings,
) -> tuple[Ids, Flags]:
    """Returns each region's category, the full image's among them, -100 for regions without an
    object of COCO's categories; and which of them are predicted [B, R].
    """
    width = 1 + max(sample.regions.num_shown if sample.regions else 0 for sample in samples)
    categories = np.full((len(samples), width), IGNORED, dtype=np.int64)
    masked = np.zeros((len(samples), width), dtype=np.bool_)
    categories[:, 0] = WHOLE
    for i, sample in enumerate(samples):
        for name, row in zip(sample.question.object_names, object_rows[i][1:], strict=True):
            if row:
                number = find_category(name)
                categories[i, row] = IGNORED if number is None else number
        if sample.regions is not None:
            num_shown = sample.regions.num_shown
            masked[i, 1 : num_shown + 1] = sample.regions.masks.masked[:num_shown]
    known = categories != IGNORED
    none = np.zeros_like(known)
    return categories, {"all": known, "masked": known & masked, "none": none}[settings.regions]


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
