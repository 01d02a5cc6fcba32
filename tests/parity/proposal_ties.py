"""Which proposals there are, where that hangs on near ties.

Every anchor is a candidate, also those beyond the cuts. A decision is judged by recorded outputs of
the proposal head.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from tests.parity.suppression import Gate, Suppression, among_best, flags, matching, order_margins
from torch import Tensor

from vlmill.extract.detect.selection import Frames
from vlmill.models.detector.proposals import ProposalGenerator

Bounds = Callable[[Tensor], Tensor]  # how far numbers may be off
SAME = 1e-4  # pixels and scores: the same anchor computed among others


def every_proposal(
    generator: ProposalGenerator, logits: Tensor, deltas: Tensor, frames: Frames
) -> tuple[Tensor, Tensor]:
    """Box [C, 4] and score [C] of every anchor of one image, before any cut."""
    anchors = generator.anchor_generator(*logits.shape[-2:])[None]
    regressions = deltas.permute(0, 2, 3, 1).reshape(anchors.shape)
    boxes = generator.decode(anchors, regressions, frames.network_limits)
    return boxes[0], generator.objectness(logits)[0]


@dataclass(frozen=True)
class ProposalTies:
    """The proposals of one image among all anchors, by recorded outputs of the head."""

    generator: ProposalGenerator
    frames: Frames
    suppression: Suppression
    recorded: tuple[Tensor, Tensor]  # boxes and scores
    bounds: tuple[Tensor, Tensor]

    def recorded_anchors(self) -> tuple[Tensor, list[float]] | None:
        """Whose anchors [R] the recorded proposals are, and the margins of ties among them.

        None where one is nobody's, or should not be there by more than near ties.
        """
        rows = list(zip(self.recorded, self.bounds, strict=True))
        places = matching(rows, (self.suppression.boxes, self.suppression.scores))
        margins = None if places is None else self.margins(places)
        return None if places is None or margins is None else (places, margins)

    def margins(self, places: Tensor) -> list[float] | None:
        """The margins of the decisions in which these anchors are not the rule's own."""
        most, rule = self.generator.config.post_nms_top, self.suppression
        if len(places) > most:
            return None
        scores, full = rule.scores[places], len(places) == most
        decided = rule.margins(
            flags(places, rule.scores), float(scores.min()) if full else -torch.inf
        )
        turned = order_margins(scores, rule.score_bounds[places])
        return None if decided is None or turned is None else decided + turned

    def our_anchors(self, logits: Tensor, deltas: Tensor) -> tuple[Tensor | None, Tensor]:
        """Whose anchors our proposals are, by our own outputs of the head; the anchors' boxes."""
        frames = self.frames
        rows = self.generator.propose((logits,), (deltas,), frames.network_limits, frames.min_sides)
        taken = rows[1] > -torch.inf
        everyone = every_proposal(self.generator, logits, deltas, frames)
        near = [(row[taken], torch.full_like(row[taken], SAME)) for row in rows]
        return matching(near, everyone), everyone[0]


def proposal_ties(
    generator: ProposalGenerator,
    frames: Frames,
    head: tuple[Tensor, Tensor],
    recorded: tuple[Tensor, Tensor],
    bounds: tuple[Bounds, Bounds],
) -> ProposalTies:
    """``head``: recorded outputs; ``recorded``: boxes and scores; ``bounds`` of such numbers."""
    config = generator.config
    boxes, scores = every_proposal(generator, *head, frames)
    box_bounds, score_bounds = (of(t) for of, t in zip(bounds, (boxes, scores), strict=True))
    size = Gate(
        generator.large_enough(boxes[None], frames.min_sides[:, None, None])[0],
        ((boxes[:, 2:] - boxes[:, :2]).amin(dim=1) + config.box_offset - frames.min_sides).abs(),
        2 * box_bounds.amax(dim=1),
    )
    ranked = scores.masked_fill(~size.met, -torch.inf) if config.filter_before_top else scores
    suppression = Suppression(
        boxes=boxes,
        scores=scores,
        box_bounds=box_bounds,
        score_bounds=score_bounds,
        gates=[size, among_best(ranked, config.pre_nms_top, score_bounds)],
        threshold=config.rpn_nms_threshold,
        offset=config.box_offset,
        inclusive=config.nms_inclusive,
    )
    own = tuple(of(t) for of, t in zip(bounds, recorded, strict=True))
    return ProposalTies(generator, frames, suppression, recorded, (own[0], own[1]))
