"""Samples to padded batches.  B pairs, T tokens, R regions, D feature width; N, M masked positions.

The only place, with ``batches.py``, that knows both the tables' rows and the models' inputs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vlmill.models import VLInputs
from vlmill.schemas.commands import InputError
from vlmill.schemas.regions import RegionRow
from vlmill.train.masking import MaskedTokens
from vlmill.train.region_masking import MaskedRegions

Array = npt.NDArray[np.float32]
IGNORED = -100


@dataclass(frozen=True, kw_only=True)
class Regions:
    """A picture's regions as the model takes them: float32 [R, D] and [R, 5], int64 [R]."""

    features: Array
    locations: Array
    class_ids: npt.NDArray[np.int64]


def regions_of(row: RegionRow, max_regions: int) -> Regions:
    """The first ``max_regions`` of a picture; a class that is missing or negative is ignored.

    Raises InputError if the row has no features.
    """
    if row.features is None:
        raise InputError(f"--regions: {row.image_id} has no features; extract them with them")
    count = min(len(row.boxes), max_regions)
    classes = np.full(count, IGNORED, dtype=np.int64)
    if row.class_ids is not None:
        classes[:] = row.class_ids[:count]
        classes[classes < 0] = IGNORED
    return Regions(
        features=row.features[:count].astype(np.float32),
        locations=box_locations(row.boxes[:count], row.width, row.height),
        class_ids=classes,
    )


def box_locations(boxes: npt.NDArray[np.float32], width: int, height: int) -> Array:
    """Corners and area as fractions of the picture [R, 5] (ImageBERT, sec. 3.2)."""
    size = np.array([width, height, width, height], dtype=np.float32)
    corners = np.clip(boxes.reshape(-1, 4) / np.maximum(size, 1), 0, 1).astype(np.float32)
    area = (corners[:, 2] - corners[:, 0]) * (corners[:, 3] - corners[:, 1])
    return np.concatenate([corners, area[:, None]], axis=1)


@dataclass(frozen=True, kw_only=True)
class PretrainSample:
    """A text with a picture, masked; ``matching`` says whether they belong together."""

    pair_id: str
    original_tokens: npt.NDArray[np.int64]
    tokens: MaskedTokens
    regions: Regions
    region_masks: MaskedRegions
    matching: bool


@dataclass(frozen=True, kw_only=True)
class PretrainBatch:
    """Inputs with masks applied, and what is to be guessed.

    ``masked_tokens`` int64 [N] are positions in the flattened [B * T] text, ``masked_regions``
    int64 [M] in the flattened [B * R] regions, both of matching pairs only; ``token_targets``
    int64 [N], ``class_targets`` int64 [M] (-100: none), ``feature_targets`` float32 [M, D];
    ``matching`` float32 [B], 1 for pairs that belong together.
    """

    inputs: VLInputs
    masked_tokens: Tensor
    token_targets: Tensor
    masked_regions: Tensor
    class_targets: Tensor
    feature_targets: Tensor
    matching: Tensor
    pair_ids: tuple[str, ...]

    def to(self, device: torch.device | str) -> PretrainBatch:
        """The same batch on ``device``."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        for name, value in values.items():
            if isinstance(value, Tensor):
                values[name] = value.to(device, non_blocking=True)
        return PretrainBatch(**{**values, "inputs": self.inputs.to(device)})


def collate(samples: Sequence[PretrainSample]) -> PretrainBatch:
    """Pad to the longest text and the most regions of the batch."""
    inputs = _padded(samples)
    num_tokens, num_regions = inputs.tokens.shape[1], inputs.region_mask.shape[1]
    # Conditional masking: only words and regions of matching pairs are to be guessed.
    words = [np.flatnonzero(s.tokens.masked & s.matching) for s in samples]
    masked = [np.flatnonzero(s.region_masks.masked & s.matching) for s in samples]
    regions = [s.regions for s in samples]
    return PretrainBatch(
        inputs=inputs,
        masked_tokens=_joined([at + i * num_tokens for i, at in enumerate(words)]),
        token_targets=_joined(
            [s.original_tokens[at] for s, at in zip(samples, words, strict=True)]
        ),
        masked_regions=_joined([at + i * num_regions for i, at in enumerate(masked)]),
        class_targets=_joined([r.class_ids[at] for r, at in zip(regions, masked, strict=True)]),
        feature_targets=_joined([r.features[at] for r, at in zip(regions, masked, strict=True)]),
        matching=torch.tensor([float(s.matching) for s in samples]),
        pair_ids=tuple(s.pair_id for s in samples),
    )


def _padded(samples: Sequence[PretrainSample]) -> VLInputs:
    num_tokens = max(len(s.original_tokens) for s in samples)
    num_regions = max(len(s.regions.features) for s in samples)
    width = samples[0].regions.features.shape[1]
    # Allocated by torch, whose memory is aligned: sums over numpy's may differ in the last bit from
    # one run to the next, as the order of a vectorised sum depends on where its input begins.
    batch = VLInputs(
        tokens=torch.zeros(len(samples), num_tokens, dtype=torch.int64),
        token_mask=torch.zeros(len(samples), num_tokens, dtype=torch.bool),
        region_features=torch.zeros(len(samples), num_regions, width),
        region_locations=torch.zeros(len(samples), num_regions, 5),
        region_mask=torch.zeros(len(samples), num_regions, dtype=torch.bool),
    )
    tokens, features, locations = (
        tensor.numpy() for tensor in (batch.tokens, batch.region_features, batch.region_locations)
    )
    for i, sample in enumerate(samples):
        words, count = len(sample.original_tokens), len(sample.regions.features)
        tokens[i, :words] = sample.tokens.tokens
        batch.token_mask[i, :words] = True
        features[i, :count] = sample.regions.features
        # Only the feature goes: location, segment and position stay (a choice the paper leaves).
        features[i, :count][sample.region_masks.zeroed] = 0
        locations[i, :count] = sample.regions.locations
        batch.region_mask[i, :count] = True
    return batch


def _joined(parts: Sequence[npt.NDArray[Any]]) -> Tensor:
    return torch.from_numpy(np.concatenate(parts)).clone()  # aligned, as above
