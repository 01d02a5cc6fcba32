"""Samples to planned batches.  B pairs, T tokens, R regions (the whole picture among them), K
classes.

A batch is made in three steps, so that features are copied once on their way to the device.
:func:`plan` gathers what is small in whichever process reads the pairs, and where the features lie;
`features.assemble` copies these from the mapped files into the batch's tensor, as they are stored;
`batch.StoredBatch.to` moves all to the device and there, and nowhere else, makes them what
the model takes: float32, masked, with the whole picture's region.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from vlmill.train.loading.arrays import Array, Arrays, Flags
from vlmill.train.loading.batch import PlannedBatch, Source
from vlmill.train.loading.boxes import padded_locations
from vlmill.train.loading.pictures.boxed import padded_pictures
from vlmill.train.loading.sample import IGNORED, Sample, SampledRegions, global_feature_of
from vlmill.train.recipes.spec import Feeding

NO_BOXES = np.empty((0, 4), dtype=np.float32)


def plan(
    samples: Sequence[Sample],
    sources: Sequence[Source],
    feeding: Feeding,
    *,
    mismatched_words: bool,
    mismatched_regions: bool,
    pad_to: int = 1,
    pixels: Sequence[Arrays] = (),
    num_classes: int | None = None,
    global_features: bool = False,
) -> PlannedBatch:
    """Pad to the longest text and the most regions of the batch, or a multiple of ``pad_to``.

    Texts alone (samples without regions among samples with some) come last. ``pixels`` holds each
    sample's arrays of pixels, which are stacked. With ``global_features`` the rows' come along;
    InputError, naming the picture, where one has none.
    """
    arrays = _texts(samples, pad_to, mismatched_words)
    with_regions = [s.regions for s in samples if s.regions is not None]
    if with_regions:
        arrays |= _regions(samples, feeding, pad_to, mismatched_regions)
        if global_features:
            arrays["global_features"] = _global_features(samples)
    if pixels and "picture" in pixels[0]:
        arrays |= padded_pictures(pixels, arrays["region_mask"].shape[1])
    else:
        for name in pixels[0] if pixels else ():
            arrays[name] = np.stack([one[name] for one in pixels])
        if "patch_mask" in arrays:
            arrays["masked_patches"] = np.flatnonzero(arrays["patch_mask"])
    num_texts = len(samples) - len(with_regions) if with_regions else 0
    arrays["matching"] = np.array(
        [s.matching for s in samples[: len(samples) - num_texts]], dtype=np.float32
    )
    return PlannedBatch(
        arrays=arrays,
        sources=tuple(sources),
        whole_image=feeding.whole_image,
        pair_ids=tuple(s.pair_id for s in samples),
        num_texts=num_texts,
        num_classes=num_classes,
    )


def _padded(length: int, pad_to: int) -> int:
    return -(-length // pad_to) * pad_to


def _texts(samples: Sequence[Sample], pad_to: int, mismatched: bool) -> Arrays:
    lengths = np.array([len(sample.original) for sample in samples])
    longest = _padded(int(lengths.max()), pad_to)
    mask = np.arange(longest) < lengths[:, None]
    tokens, original = np.zeros(mask.shape, dtype=np.int64), np.zeros(mask.shape, dtype=np.int64)
    tokens[mask] = np.concatenate([sample.tokens.tokens for sample in samples])
    original[mask] = np.concatenate([sample.original for sample in samples])
    masked = np.zeros_like(mask)
    masked[mask] = np.concatenate([sample.tokens.masked for sample in samples])
    masked &= _asked(samples, mismatched)
    places = np.flatnonzero(masked)
    return {
        "tokens": tokens,
        "original_tokens": original,
        "token_mask": mask,
        "masked_tokens": places,
        "token_targets": original.ravel()[places],
        "real_tokens": np.flatnonzero(mask),
        "read_tokens": _with_first(masked, lengths > 0),
    }


def _with_first(read: Flags, pooled: Flags) -> npt.NDArray[np.int64]:
    """The places that are read, and the first of each row that is ``pooled`` [B]."""
    first = np.zeros_like(read)
    first[:, :1] = pooled[:, None]
    return np.flatnonzero(read | first)


def _asked(samples: Sequence[Sample], mismatched: bool) -> Flags:
    """Whose masked positions are to be guessed [B, 1]."""
    return np.array([[sample.matching or mismatched] for sample in samples])


def _regions(samples: Sequence[Sample], feeding: Feeding, pad_to: int, mismatched: bool) -> Arrays:
    whole = int(feeding.whole_image != "none")
    found = [sample.regions for sample in samples]
    there = [regions for regions in found if regions is not None]
    counts = np.array([regions.count if regions else 0 for regions in found])
    ends = np.array([whole + regions.kept if regions else 0 for regions in found])
    shown = _padded(int(ends.max()), pad_to)
    read = max(whole + int(counts.max()), shown)
    columns = np.arange(read)
    hidden = np.zeros((len(samples), read), dtype=np.bool_)
    # Rows without regions end before the whole picture's column, so that nothing is put there.
    hidden[(columns >= whole) & (columns < whole + counts[:, None])] = np.concatenate(
        [regions.masks.zeroed for regions in there]
    )
    mask = columns[:shown] < ends[:, None]
    own = mask & (columns[:shown] >= whole)
    masked = np.zeros_like(mask)
    masked[own] = np.concatenate([regions.masks.masked[: regions.kept] for regions in there])
    masked &= _asked(samples, mismatched)
    places = np.flatnonzero(masked)
    background = feeding.region_targets == "distribution"
    classes = np.full(mask.shape, IGNORED, dtype=np.int64)
    classes[own] = np.concatenate([_classes(regions) for regions in there])
    targets = classes.ravel()[places]
    arrays: Arrays = {
        "region_locations": _locations(found, shown),
        "region_mask": mask,
        "hidden": hidden,
        "region_counts": counts,
        "masked_regions": places,
        "real_regions": np.flatnonzero(mask),
        "read_regions": _with_first(masked, ends > 0),
        "class_targets": np.where(targets < 0, IGNORED, targets + background),
    }
    return arrays | (_distributions(found, masked[:, whole:]) if background else {})


def _classes(regions: SampledRegions) -> npt.NDArray[Any]:
    """Of the shown regions; negative where there is none."""
    found = regions.row.class_ids
    if found is None:
        return np.full(regions.kept, IGNORED)
    return found[: regions.kept] if regions.order is None else found[regions.order[: regions.kept]]


def _global_features(samples: Sequence[Sample]) -> npt.NDArray[Any]:
    """Those of whole pictures, as stored [B, G]; zeros for texts alone."""
    found = [global_feature_of(one.regions.row) for one in samples if one.regions is not None]
    held = np.zeros((len(samples), len(found[0])), dtype=found[0].dtype)
    held[[one.regions is not None for one in samples]] = found
    return held


def _locations(found: Sequence[SampledRegions | None], longest: int) -> Array:
    boxes = [regions.boxes if regions else NO_BOXES for regions in found]
    rows = [regions.row if regions else None for regions in found]
    return padded_locations(boxes, [(r.width, r.height) if r else (1, 1) for r in rows], longest)


def _distributions(found: Sequence[SampledRegions | None], masked: Flags) -> Arrays:
    """The stored distributions of the regions to be guessed, of ``masked`` [B, R]; nothing where
    the table has none.
    """
    picked = [
        (regions.row, regions.places(np.flatnonzero(flags)))
        for regions, flags in zip(found, masked, strict=True)
        if regions
    ]
    if any(row.class_probs is None for row, _ in picked):
        return {}
    arrays: Arrays = {}
    for name in ("class_probs", "class_prob_ids"):
        values = [(getattr(row, name), places) for row, places in picked]
        parts = [of_row[at] for of_row, at in values if of_row is not None]
        if parts:
            arrays[name] = np.concatenate(parts)
    return arrays
