"""Trains retrieval by a model that reads a text and an image together.

Input: a caption with its image, and pairs that do not belong together. Head: how well a pair fits;
pretraining's head, or a new one (ViLBERT's code; ImageBERT has both). Loss: each pair alone, the
pair among its candidates, or the hardest of these by a margin. Metric: recall, where each text of
some held-out images is scored with each of these images.

S captions, P candidates of each, K heads.

The first candidate of a pair (column 0) is the pair itself. Losses over a pair and its negatives
are ImageBERT's (arXiv:2001.07966, sec. 4.2). The paper prints other signs for the first and third,
and the third without margin and difference: misprints.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn

from vlmill.models.registry import get_variant
from vlmill.models.rows import get_part
from vlmill.schemas.errors import InputError
from vlmill.train.loading.arrays import Ids
from vlmill.train.loading.batch import LABEL, Batch, HostBatch
from vlmill.train.loading.order import Visit
from vlmill.train.loading.pairing import StagePairs, draw_row
from vlmill.train.loading.random import Draws, Uniforms
from vlmill.train.loading.sample import Sample
from vlmill.train.loading.stage_batches import Rows
from vlmill.train.loading.store.table import SampleTable
from vlmill.train.loading.undecodable import Undecodable
from vlmill.train.tasks.retrieval.base import (
    NAME,
    RetrievalTask,
    measure_recalls,
    one_row_each,
    scores_of_candidates,
)
from vlmill.train.tasks.retrieval.settings import MARGIN, RetrievalSettings
from vlmill.train.tasks.scores import require_finite
from vlmill.train.tasks.task import Prediction, SampleSource


def candidate_losses(
    scores: Float[Tensor, "S P K"], names: Sequence[str], margin: float = MARGIN
) -> dict[str, Float[Tensor, ""]]:
    """Returns the losses of these names: pairs by the first head, candidates by the last one."""
    losses: dict[str, Callable[[], Tensor]] = {
        "binary": lambda: binary_candidates(scores[..., 0]),
        "softmax": lambda: softmax_candidates(scores[..., -1]),
        "triplet": lambda: hardest_triplet(scores[..., -1], margin),
    }
    return {name: losses[name]() for name in names}


def binary_candidates(logits: Float[Tensor, "S P"]) -> Float[Tensor, ""]:
    """Returns the mean over all pairs of the binary cross-entropy, the paper's best loss.

    For log odds that are the difference of two logits it is the cross-entropy of their two classes
    (InterBERT's code).
    """
    targets = torch.zeros_like(logits)
    targets[:, 0] = 1.0
    total = F.binary_cross_entropy_with_logits(logits, targets, reduction="sum")
    return total / max(logits.numel(), 1)


def softmax_candidates(scores: Float[Tensor, "S P"]) -> Float[Tensor, ""]:
    """Returns the mean over S of the cross-entropy among P candidates (its multi-class loss)."""
    target = torch.zeros(len(scores), dtype=torch.int64, device=scores.device)
    return F.cross_entropy(scores, target, reduction="sum") / max(len(scores), 1)


def hardest_triplet(scores: Float[Tensor, "S P"], margin: float = MARGIN) -> Float[Tensor, ""]:
    """Returns the mean over S of max(0, margin + s(hardest negative) - s(positive)), s between 0
    and 1.

    The losses of negative texts and of negative images in one sample are computed separately and
    added. Without a negative it is 0.
    """
    bounded = scores.sigmoid()
    if not scores.numel() or scores.shape[1] < 2:
        return bounded.sum() * 0.0
    hardest = bounded[:, 1:].max(dim=1).values
    return (margin + hardest - bounded[:, 0]).clamp(min=0).mean()


TEXT, IMAGE, NEAR_TEXT = "text", "picture", "near text"


class Candidate(NamedTuple):
    """Holds a pair of a text and an image by the rows that they come from."""

    text_row: int
    image_row: int


def draw_candidates(
    row: int, pool: Ids, pairs: StagePairs, draws: Draws, settings: RetrievalSettings
) -> list[Candidate]:
    """Returns a row's pair and its negatives, as many as the settings specify, from the rows of
    ``pool``.

    No negative is a caption of its image, and none repeats. Raises InputError where there are too
    few.
    """
    candidates, texts, images = [Candidate(row, row)], {row}, {row}
    for kind in choose_negative_kinds(settings, draws):
        near = pairs.near_caption(row, draws) if kind == NEAR_TEXT else None
        met = images if kind == IMAGE else texts
        other = near if near is not None else _other(row, pool, pairs, draws, met, kind)
        if other is None:
            raise InputError(
                f"--examples: {pairs.table.pair_id(row)} finds {len(candidates) - 1} of the "
                f"{settings.num_candidates - 1} negatives of settings.num_candidates="
                f"{settings.num_candidates} among {len(pool)} pairs; give captions of more "
                "images, or fewer candidates"
            )
        met.add(other)
        candidates.append(Candidate(row, other) if kind == IMAGE else Candidate(other, row))
    return candidates


def choose_negative_kinds(settings: RetrievalSettings, draws: Draws) -> list[str]:
    """Returns which part of the pair each of a sample's negatives replaces."""
    if settings.negatives == "alignment":
        # The near one first: the one sampled from all is then another.
        return [NEAR_TEXT if settings.nearest else TEXT, TEXT, IMAGE]
    kind = TEXT if settings.negatives == "texts" else IMAGE
    if settings.negatives == "both":
        kind = TEXT if draws.random() < 0.5 else IMAGE
    return [kind] * (settings.num_candidates - 1)


def _other(
    row: int, pool: Ids, pairs: StagePairs, draws: Draws, met: Set[int], kind: str
) -> int | None:
    """Returns a random row of the pool that does not match; if sampling fails, the first of all."""
    table = pairs.table
    keys = {get_key(table, used_row, kind) for used_row in met}

    def is_negative(other: int) -> bool:
        if get_key(table, other, kind) in keys:
            return False
        return not (pairs.matches(row, other) if kind == IMAGE else pairs.matches(other, row))

    drawn = draw_row(pool, draws, is_negative)
    if drawn is None:
        drawn = next((other for other in np.unique(pool).tolist() if is_negative(other)), None)
    return drawn


def get_key(table: SampleTable, row: int, kind: str) -> int:
    """Returns the key that two negatives of a sample may not share: the image, or the words."""
    return int(table.image_keys[row] if kind == IMAGE else table.text_keys[row])


TWO_HEADS = "match and score"  # each pair alone, and among candidates


def pair_scores(model: Any, variant: str, pooled: Tensor) -> Float[Tensor, "B K"]:
    """Returns the scores of pairs by a variant's heads: for ImageBERT the scores by its two heads
    (pairs alone, pairs among others), for other variants those by the ranking head
    (`vlmill.models.rows`).
    """
    if get_variant(variant).heads.get(NAME) == TWO_HEADS:
        return torch.stack([model.match_logit(pooled), model.scores(pooled)], dim=-1)
    logit: Callable[[Tensor], Tensor] = get_part(model, get_variant(variant).match_logit)
    return logit(pooled)[:, None]


@dataclass(kw_only=True)
class CandidateRetrieval(RetrievalTask):
    """Distinguishes a caption's image from candidates, by a variant's heads.

    ``ranks_by`` is the head, -1 for the last one, by which images are ranked.
    """

    settings: RetrievalSettings
    variant: str
    losses: tuple[str, ...]
    ranks_by: int = 0

    # Input

    @property
    def negatives(self) -> str:
        """Describes the table of negatives: one of ViLBERT's is a caption of a similar image."""
        if self.settings.negatives != "alignment" or not self.settings.nearest:
            return ""
        return (
            "the captions of the nearest images are the negatives; give the output of "
            "`python -m vlmill.pipelines.nearest_images`, or set settings.nearest=false for "
            "captions of any image"
        )

    def samples(self, batches: SampleSource, visit: Visit, draws: Uniforms) -> Rows | Undecodable:
        """Returns a caption's candidates, its matching pair first; if held out, all images."""
        new_samples = list[Sample]()
        for candidate in self._candidates(batches, visit, draws):
            text = batches.text(candidate.text_row)
            sample = batches.example(candidate.image_row, draws, text)
            if isinstance(sample, Undecodable):
                return sample
            new_samples.append(
                dataclasses.replace(
                    sample,
                    pair_id=batches.table.pair_id(visit.row),
                    source=batches.table.source(visit.row),
                    row=visit.row,
                    matching=not new_samples,
                )
            )
        return tuple(new_samples)

    def _candidates(self, batches: SampleSource, visit: Visit, draws: Uniforms) -> list[Candidate]:
        row = visit.row
        if batches.training:
            return draw_candidates(row, visit.near, batches.pairs, draws, self.settings)
        keys = batches.table.image_keys
        other_rows = one_row_each(batches.table, visit.near)
        other_rows = other_rows[keys[other_rows] != keys[row]]
        return [Candidate(row, row), *(Candidate(row, other) for other in other_rows.tolist())]

    def make_label_tensors(
        self, table: SampleTable, samples: Sequence[Sample]
    ) -> Mapping[str, Tensor]:
        """Returns the index of each caption's matching pair in the batch; its candidates follow."""
        firsts = [index for index, sample in enumerate(samples) if sample.matching]
        return {f"{LABEL}firsts": torch.tensor(firsts)}

    # Head and loss

    def count_labels(self, batch: HostBatch) -> dict[str, int]:
        """Returns the number of captions."""
        return dict.fromkeys(self.losses, len(batch.tensors[f"{LABEL}firsts"]))

    def outputs(self, model: nn.Module, batch: Batch) -> Float[Tensor, "S P K"]:
        """Returns the scores of each head for each candidate."""
        scores = pair_scores(model, self.variant, model(batch.inputs).pooled).float()
        num_captions = len(batch.labels["firsts"])
        return scores.view(num_captions, len(scores) // num_captions, scores.shape[1])

    def compute(self, outputs: Float[Tensor, "S P K"], batch: Batch) -> dict[str, Tensor]:
        """Returns each loss as a mean over the captions."""
        return candidate_losses(outputs, self.losses, self.settings.margin)

    # Metric

    def validation_batch_size(self, table: SampleTable, rows: Sequence[int], size: int) -> int:
        """Returns the captions per batch: about a step's pairs, with all images; at least one."""
        num_pictures = len(one_row_each(table, np.array(rows, dtype=np.int64)))
        return max(size * self.settings.num_candidates // max(num_pictures, 1), 1)

    def predict(self, outputs: Float[Tensor, "S P K"], batch: Batch) -> list[NDArray[np.floating]]:
        """Returns the scores of each caption with its candidates, float32 [P]."""
        scores = outputs[..., self.ranks_by].float().cpu().numpy()
        require_finite(
            dict(zip(batch.pair_ids[:: scores.shape[1]], scores, strict=True)), "--checkpoint"
        )
        return list(scores)

    def measure(self, table: SampleTable, predicted: Sequence[Prediction]) -> dict[str, float]:
        """Returns recalls in both directions, and the accuracy of ViLBERT's choice among four."""
        return measure_recalls(*scores_of_candidates(table, predicted), alignment=True)
