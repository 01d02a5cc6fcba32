"""Counts how many questions a model answers right. B rows of a batch."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from probes.questions import Question
from probes.rows import Shown, batches
from vlmill.models.layers.blocks import FeedForward
from vlmill.models.outputs import Encoded
from vlmill.models.vlmo.model import Vlmo
from vlmill.train.loading.arrays import Flags
from vlmill.train.loading.batch import Batch
from vlmill.train.loading.sample import IGNORED
from vlmill.train.loading.vocabulary import MASK


@dataclass(frozen=True, kw_only=True)
class Score:
    """Counts how many of the questions ``asked`` were answered right."""

    right: int
    asked: int

    @property
    def share(self) -> float:
        """Returns the share of right answers; 0 where nothing was asked."""
        return self.right / max(self.asked, 1)


def answers(model: Any, batch: Batch) -> tuple[Flags, Flags]:
    """Says for each row [B] whether anything was asked, and whether all of it was guessed right."""
    rows = len(batch.pair_ids)
    asked, right = np.zeros(rows, dtype=np.bool_), np.ones(rows, dtype=np.bool_)
    states = _encoded(model, batch)
    if len(batch.masked_tokens):
        logits = model.mlm_logits(states.text.flatten(0, 1)[batch.masked_tokens])
        place = batch.masked_tokens // states.text.shape[1]
        _mark(asked, right, place, logits.argmax(-1) == batch.token_targets)
    if len(batch.masked_regions):
        known = batch.class_targets != IGNORED
        places = batch.masked_regions[known]
        logits = model.region_class_logits(states.regions.flatten(0, 1)[places])
        hits = logits.argmax(-1) == batch.class_targets[known]
        _mark(asked, right, places // states.regions.shape[1], hits)
    return asked, asked & right


def _encoded(model: Any, batch: Batch) -> Encoded:
    inputs = batch.pixel_inputs(masked=True) if isinstance(model, Vlmo) else batch.inputs
    states: Encoded = model(inputs)
    return states


def _mark(asked: Flags, right: Flags, rows: Tensor, hits: Tensor) -> None:
    places, good = rows.cpu().numpy(), hits.cpu().numpy()
    asked[places] = True
    right[places[~good]] = False


@torch.inference_mode()
def scores(
    model: Any,
    questions: Sequence[Question],
    shown: Shown,
    tokenizer: Tokenizer,
    *,
    device: torch.device | str = "cpu",
    batch_size: int = 64,
) -> dict[str, Score]:
    """Answers by group. A word counts as right if each of its pieces is the first choice of all."""
    mask_id = tokenizer.token_to_id(MASK)
    assert mask_id is not None
    by_group: dict[str, Score] = {}
    asking = iter(questions)
    for batch in batches(questions, shown, mask_id, batch_size):
        for asked, right in zip(*answers(model, batch.to(device)), strict=True):
            group = next(asking).group
            score = by_group.get(group, Score(right=0, asked=0))
            by_group[group] = Score(right=score.right + int(right), asked=score.asked + int(asked))
    return by_group


def switch_off(model: Vlmo, expert: str) -> None:
    """Makes an expert (``text``, ``image`` or ``vl``) add nothing to what passes it, in all layers.

    Raises ValueError where the model has no such expert.
    """
    parts = [
        part
        for name, part in model.encoder.named_modules()
        if name.endswith(f".experts.{expert}") and isinstance(part, FeedForward)
    ]
    if not parts:
        raise ValueError(f"expert {expert!r}: the model has none of that name")
    for part in parts:
        for parameter in part.down.parameters():
            torch.nn.init.zeros_(parameter)
