"""Collates samples into a batch.

B rows, T tokens, R regions (the full image among them), K classes.

A batch is made in three steps, so that features are copied once before they reach the device.
:func:`collate` gathers the small tensors in the process that reads the pairs, and the locations of
the features. `features.read_features` copies the features from the mapped files into the batch's
tensor, as stored. `batch.HostBatch.to` moves all tensors to the device; only there they become the
model's input: float32, masked, with the full image's region.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from vlmill.train.loading.arrays import Array, Arrays, Flags, Ids
from vlmill.train.loading.batch import HostBatch
from vlmill.train.loading.images.boxed import padded_images
from vlmill.train.loading.sample import IGNORED, Sample, SampledRegions, get_global_feature
from vlmill.train.settings.parts import Feeding

NO_BOXES = np.empty((0, 4), dtype=np.float32)


def collate(
    samples: Sequence[Sample],
    feeding: Feeding,
    *,
    mismatched_words: bool = False,
    mismatched_regions: bool = False,
    pad_to: int = 1,
    num_classes: int | None = None,
    global_features: bool = False,
) -> HostBatch:
    """Pads to the longest text and the most regions of the batch, or a multiple of ``pad_to``.

    Texts without images (samples without regions in a batch with regions) come last. Masked
    positions of mismatched pairs are targets only with ``mismatched_words`` and
    ``mismatched_regions``. With ``global_features`` the features of full images are included;
    raises InputError with the image's id if one has no such feature.
    """
    matching = np.array([sample.matching for sample in samples])
    arrays = _texts(samples, pad_to, matching | mismatched_words)
    images = [sample.regions for sample in samples if sample.regions is not None]
    if images:
        arrays |= _regions(samples, feeding, pad_to, matching | mismatched_regions)
        if global_features:
            arrays["global_features"] = _global_features(samples)
    if pixels := [sample.pixels for sample in samples if sample.pixels]:
        arrays |= _pixels(pixels, arrays)
    num_texts = len(samples) - len(images) if images else 0
    arrays["matching"] = matching[: len(samples) - num_texts].astype(np.float32)
    keys = [sample.image_key for sample in samples if sample.image_key is not None]
    if len(keys) == len(samples):
        arrays["image_keys"] = np.array(keys, dtype=np.uint64).view(np.int64)
    return HostBatch(
        tensors={name: torch.from_numpy(array) for name, array in arrays.items()},
        pair_ids=tuple(sample.pair_id for sample in samples),
        sources=tuple(sample.source for sample in samples),
        whole_image=feeding.whole_image,
        image_ids=tuple(regions.row.image_id for regions in images),
        stored=tuple(regions.features for regions in images),
        num_texts=num_texts,
        num_classes=num_classes,
    )


def _pixels(images: Sequence[Arrays], arrays: Arrays) -> Arrays:
    """Returns padded images with boxes for the regions of ``arrays``; equal sizes are stacked."""
    if "picture" in images[0]:
        return padded_images(images, arrays["region_mask"].shape[1])
    stacked = {name: np.stack([image[name] for image in images]) for name in images[0]}
    if "patch_mask" in stacked:
        stacked["masked_patches"] = np.flatnonzero(stacked["patch_mask"])
    return stacked


def _padded(length: int, pad_to: int) -> int:
    return -(-length // pad_to) * pad_to


def _texts(samples: Sequence[Sample], pad_to: int, labelled: Flags) -> Arrays:
    """Returns the padded texts; masked tokens of ``labelled`` samples [B] are targets."""
    texts = [sample.text for sample in samples]
    lengths = np.array([len(text.tokens) for text in texts])
    longest = _padded(int(lengths.max()), pad_to)
    mask = np.arange(longest) < lengths[:, None]
    tokens, original = np.zeros(mask.shape, dtype=np.int64), np.zeros(mask.shape, dtype=np.int64)
    tokens[mask] = np.concatenate([text.tokens for text in texts])
    original[mask] = np.concatenate([text.original for text in texts])
    masked = np.zeros_like(mask)
    masked[mask] = np.concatenate([text.masked for text in texts])
    masked &= labelled[:, None]
    positions = np.flatnonzero(masked)
    return {
        "tokens": tokens,
        "original_tokens": original,
        "token_mask": mask,
        "masked_tokens": positions,
        "token_targets": original.ravel()[positions],
        "real_tokens": np.flatnonzero(mask),
        "read_tokens": _with_first(masked, lengths > 0),
    }


def _with_first(read: Flags, pooled: Flags) -> Ids:
    """Returns the positions that are read, and the first one of each row that is ``pooled`` [B]."""
    first = np.zeros_like(read)
    first[:, :1] = pooled[:, None]
    return np.flatnonzero(read | first)


def _regions(samples: Sequence[Sample], feeding: Feeding, pad_to: int, labelled: Flags) -> Arrays:
    """Returns the padded regions; masked regions of ``labelled`` samples [B] are targets."""
    region_offset = int(feeding.whole_image != "none")
    images = [sample.regions for sample in samples]
    present = [regions for regions in images if regions is not None]
    counts = np.array([len(regions.boxes) if regions else 0 for regions in images])
    ends = np.array([region_offset + regions.num_shown if regions else 0 for regions in images])
    shown_length = _padded(int(ends.max()), pad_to)
    read = max(region_offset + int(counts.max()), shown_length)
    columns = np.arange(read)
    hidden = np.zeros((len(samples), read), dtype=np.bool_)
    # Rows without regions end before the full image's column, so that it stays empty.
    hidden[(columns >= region_offset) & (columns < region_offset + counts[:, None])] = (
        np.concatenate([regions.masks.zeroed for regions in present])
    )
    mask = columns[:shown_length] < ends[:, None]
    is_region = mask & (columns[:shown_length] >= region_offset)
    masked = np.zeros_like(mask)
    masked[is_region] = np.concatenate([r.masks.masked[: r.num_shown] for r in present])
    masked &= labelled[:, None]
    positions = np.flatnonzero(masked)
    background = feeding.region_targets == "distribution"
    classes = np.full(mask.shape, IGNORED, dtype=np.int64)
    classes[is_region] = np.concatenate([_classes(regions) for regions in present])
    targets = classes.ravel()[positions]
    arrays: Arrays = {
        "region_locations": _locations(images, feeding, shown_length),
        "region_mask": mask,
        "hidden": hidden,
        "region_counts": counts,
        "masked_regions": positions,
        "real_regions": np.flatnonzero(mask),
        "read_regions": _with_first(masked, ends > 0),
        "class_targets": np.where(targets < 0, IGNORED, targets + background),
    }
    if any(regions.weights is not None for regions in present):
        arrays["region_weights"] = _weights(images, read - region_offset)
    return arrays | (_distributions(images, masked[:, region_offset:]) if background else {})


def _weights(images: Sequence[SampledRegions | None], columns: int) -> Array:
    """Returns each region's share in the image's feature [B, R], where the shares differ."""
    weights = np.zeros((len(images), columns), dtype=np.float32)
    for i, regions in enumerate(images):
        if regions is not None and (count := len(regions.boxes)):
            shares = np.full(count, 1 / count) if regions.weights is None else regions.weights
            weights[i, :count] = shares
    return weights


def _classes(regions: SampledRegions) -> npt.NDArray[Any]:
    """Returns the classes of the shown regions; negative for regions without a class."""
    classes, order = regions.row.class_ids, regions.features.order
    if classes is None:
        return np.full(regions.num_shown, IGNORED)
    return classes[slice(regions.num_shown) if order is None else order[: regions.num_shown]]


def _global_features(samples: Sequence[Sample]) -> npt.NDArray[Any]:
    """Returns the features of full images, as stored [B, G]; zeros for texts alone."""
    has_image = [sample.regions is not None for sample in samples]
    stored = [get_global_feature(s.regions.row) for s in samples if s.regions is not None]
    features = np.zeros((len(samples), len(stored[0])), dtype=stored[0].dtype)
    features[has_image] = stored
    return features


def _locations(images: Sequence[SampledRegions | None], feeding: Feeding, longest: int) -> Array:
    """Returns the shown regions' locations; VL-BERT's full image ends at the last pixel."""
    boxes = [regions.boxes[: regions.num_shown] if regions else NO_BOXES for regions in images]
    rows = [regions.row if regions else None for regions in images]
    first = None
    if feeding.whole_image != "none":
        less = int(feeding.whole_image == "rest")
        corners = [(0, 0, r.width - less, r.height - less) if r else (0,) * 4 for r in rows]
        first = np.array(corners, dtype=np.float32)
    sizes = [(row.width, row.height) if row else (1, 1) for row in rows]
    return padded_locations(boxes, sizes, longest, first=first)


def padded_locations(
    boxes: Sequence[Array],
    sizes: Sequence[tuple[int, int]],
    longest: int,
    *,
    first: Array | None = None,
) -> Array:
    """Returns corners and areas as fractions of the images, padded with zeros [B, R, 5] (ImageBERT,
    sec. 3.2).

    ``first`` [B, 4] are boxes that precede the others. All images are computed in one pass: one by
    one they would take as long as the features.
    """
    corners = np.zeros((len(boxes), longest, 4), dtype=np.float32)
    start = 0
    if first is not None and longest:
        start, corners[:, 0] = 1, first
    for i, image_boxes in enumerate(boxes):
        corners[i, start : start + len(image_boxes)] = image_boxes
    size = np.maximum(np.array(sizes, dtype=np.float32).reshape(-1, 2), 1)
    corners /= np.concatenate([size, size], axis=1)[:, None]
    np.clip(corners, 0, 1, out=corners)
    locations = np.empty((len(boxes), longest, 5), dtype=np.float32)
    locations[..., :4] = corners
    locations[..., 4] = (corners[..., 2] - corners[..., 0]) * (corners[..., 3] - corners[..., 1])
    return locations


def _distributions(images: Sequence[SampledRegions | None], masked: Flags) -> Arrays:
    """Returns the stored distributions of the target regions, selected by ``masked`` [B, R]; empty
    if the table has no distributions.
    """
    picked = [
        (regions.row, regions.features.find_positions(np.flatnonzero(flags)))
        for regions, flags in zip(images, masked, strict=True)
        if regions
    ]
    if any(row.class_probs is None for row, _ in picked):
        return {}
    arrays: Arrays = {}
    for name in ("class_probs", "class_prob_ids"):
        values = [(getattr(row, name), positions) for row, positions in picked]
        parts = [stored[indices] for stored, indices in values if stored is not None]
        if parts:
            arrays[name] = np.concatenate(parts)
    return arrays
