"""Samples to batches.  B pairs, T tokens, R regions (the whole picture among them), D feature
width, S pixels a side; N, M masked positions, K classes.

A batch is made in three steps, so that features are copied once on their way to the device.
``plan`` gathers what is small in whichever process reads the pairs, and where the features lie;
``assemble`` copies these from the mapped files into the batch's tensor, as they are stored;
:meth:`StoredBatch.to` moves all to the device and there, and nowhere else, makes them what the
model takes: float32, masked, with the whole picture's region.
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

from vlmill.models.inputs import PixelInputs, VLInputs
from vlmill.models.vlbert_end_to_end import PictureRegions
from vlmill.schemas.commands import InputError
from vlmill.schemas.region_groups import RegionGroup
from vlmill.schemas.regions import RegionReader, RegionRow
from vlmill.train.boxed_pictures import padded_pictures, picture_regions_of
from vlmill.train.masking import Ids
from vlmill.train.recipes.base import Feeding
from vlmill.train.samples import IGNORED, Sample, SampledRegions, box_locations, classes_of

Array = npt.NDArray[np.float32]
STORED = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}
NO_BOXES = np.empty((0, 4), dtype=np.float32)
NOT_FINITE = {2: 0x7C00, 4: 0x7F800000}  # the least bits of an infinity or NaN, by size
BFLOAT16_NOT_FINITE = 0x7F80


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
    stored = torch.empty(row.features[:count].shape, dtype=getattr(torch, row.features.dtype.name))
    stored.numpy()[...] = row.features[:count]
    return Regions(
        features=stored.float().numpy(),  # PyTorch's conversion is 40 times as fast as NumPy's
        locations=box_locations(row.boxes[:count], row.width, row.height),
        class_ids=classes_of(row, np.arange(count), background=False),
    )


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where the features of a picture's first ``count`` regions lie, or the bytes themselves."""

    image_id: str
    count: int
    place: tuple[int, int, int] | None
    data: npt.NDArray[np.uint8] | None = None


@dataclass(frozen=True, kw_only=True)
class PlannedBatch:
    """A batch without its features: plain arrays, small enough to be sent between processes."""

    arrays: dict[str, npt.NDArray[Any]]
    sources: tuple[Source, ...]
    whole_image: str
    pair_ids: tuple[str, ...]
    num_texts: int
    num_classes: int | None  # of a whole distribution of which the highest are kept


def plan(
    samples: Sequence[Sample],
    sources: Sequence[Source],
    feeding: Feeding,
    *,
    mismatched_words: bool,
    mismatched_regions: bool,
    pad_to: int = 1,
    pixels: Sequence[dict[str, npt.NDArray[Any]]] = (),
    num_classes: int | None = None,
) -> PlannedBatch:
    """Pad to the longest text and the most regions of the batch, or a multiple of ``pad_to``.

    Texts alone (samples without regions among samples with some) come last. ``pixels`` holds each
    sample's arrays of pixels, which are stacked.
    """
    arrays = _texts(samples, pad_to, mismatched_words)
    with_regions = [s.regions for s in samples if s.regions is not None]
    if with_regions:
        arrays |= _regions(samples, feeding, pad_to, mismatched_regions)
    if pixels and "picture" in pixels[0]:
        arrays |= padded_pictures(pixels, arrays["region_mask"].shape[1])
    else:
        for name in pixels[0] if pixels else ():
            arrays[name] = np.stack([one[name] for one in pixels])
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


def _texts(
    samples: Sequence[Sample], pad_to: int, mismatched_words: bool
) -> dict[str, npt.NDArray[Any]]:
    longest = _padded(max(len(s.original) for s in samples), pad_to)
    shape = (len(samples), longest)
    tokens, original = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
    mask = np.zeros(shape, dtype=np.bool_)
    places, targets = [], []
    for i, sample in enumerate(samples):
        count = len(sample.original)
        tokens[i, :count], original[i, :count] = sample.tokens.tokens, sample.original
        mask[i, :count] = True
        if sample.matching or mismatched_words:
            at = np.flatnonzero(sample.tokens.masked)
            places.append(at + i * longest)
            targets.append(sample.original[at])
    return {
        "tokens": tokens,
        "original_tokens": original,
        "token_mask": mask,
        "masked_tokens": _joined(places),
        "token_targets": _joined(targets),
    }


def _regions(
    samples: Sequence[Sample], feeding: Feeding, pad_to: int, mismatched_regions: bool
) -> dict[str, npt.NDArray[Any]]:
    whole = int(feeding.whole_image != "none")
    found = [s.regions for s in samples]
    shown = _padded(whole + max(r.kept for r in found if r), pad_to)
    read = max(whole + max(r.count for r in found if r), shown)
    rows = len(samples)
    ends = np.array([whole + r.kept if r else 0 for r in found])
    mask = np.arange(shown) < ends[:, None]
    hidden = np.zeros((rows, read), dtype=np.bool_)
    counts = np.zeros(rows, dtype=np.int64)
    places, classes, picked = [], [], list[tuple[SampledRegions, Ids]]()
    background = feeding.region_targets == "distribution"
    for i, (sample, regions) in enumerate(zip(samples, found, strict=True)):
        if regions is None:
            continue
        hidden[i, whole : whole + regions.count] = regions.masks.zeroed
        counts[i] = regions.count
        asked = sample.matching or mismatched_regions
        at = np.flatnonzero(regions.masks.masked[: regions.kept] & asked)
        places.append(at + whole + i * shown)
        classes.append(classes_of(regions.row, at, background=background))
        picked.append((regions, at))
    return {
        "region_locations": _locations(
            [r.boxes if r else NO_BOXES for r in found],
            [(r.row.width, r.row.height) if r else (1, 1) for r in found],
            shown,
        ),
        "region_mask": mask,
        "hidden": hidden,
        "region_counts": counts,
        "masked_regions": _joined(places),
        "class_targets": _joined(classes),
    } | (_distributions(picked) if background else {})


def _locations(boxes: Sequence[Array], sizes: Sequence[tuple[int, int]], longest: int) -> Array:
    """:func:`~vlmill.train.samples.box_locations` of all pictures at once, padded with zeros:
    [B, R, 5]. One by one they would cost as much as the features.
    """
    corners = np.zeros((len(boxes), longest, 4), dtype=np.float32)
    for i, of_picture in enumerate(boxes):
        corners[i, : len(of_picture)] = of_picture
    size = np.maximum(np.array(sizes, dtype=np.float32).reshape(-1, 2), 1)
    corners /= np.concatenate([size, size], axis=1)[:, None]
    np.clip(corners, 0, 1, out=corners)
    found = np.empty((len(boxes), longest, 5), dtype=np.float32)
    found[..., :4] = corners
    found[..., 4] = (corners[..., 2] - corners[..., 0]) * (corners[..., 3] - corners[..., 1])
    return found


def _distributions(
    picked: Sequence[tuple[SampledRegions, Ids]],
) -> dict[str, npt.NDArray[Any]]:
    """The stored distributions of the regions to be guessed; nothing where the table has none."""
    if any(regions.row.class_probs is None for regions, _ in picked):
        return {}
    arrays: dict[str, npt.NDArray[Any]] = {}
    for name in ("class_probs", "class_prob_ids"):
        found = [
            (values, at)
            for regions, at in picked
            if (values := getattr(regions.row, name)) is not None
        ]
        if found:
            arrays[name] = np.concatenate([values[at] for values, at in found])
    return arrays


def _joined(parts: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)


def assemble(
    planned: PlannedBatch, reader: RegionReader | None, *, pin_memory: bool = False
) -> StoredBatch:
    """Copy the features from the mapped files, each picture's bytes in one piece.

    Raises InputError, naming the picture, for features that are not finite.
    """
    # Allocated by torch, whose memory is aligned: sums over numpy's may differ in the last bit from
    # one run to the next, as the order of a vectorised sum depends on where its input begins.
    tensors = {name: torch.from_numpy(value).clone() for name, value in planned.arrays.items()}
    if pin_memory:
        tensors = {name: tensor.pin_memory() for name, tensor in tensors.items()}
    if "hidden" in tensors:
        assert reader is not None
        shape = (*tensors["hidden"].shape, reader.feature_dim)
        dtype = STORED[reader.arrays["features"]["dtype"]]
        features = torch.empty(shape, dtype=dtype, pin_memory=pin_memory)
        fill(features, planned.sources, reader, whole=int(planned.whole_image != "none"))
        tensors["features"] = features
    return StoredBatch(
        tensors=tensors,
        whole_image=planned.whole_image,
        pair_ids=planned.pair_ids,
        num_texts=planned.num_texts,
        num_classes=planned.num_classes,
    )


def region_batch(
    reader: RegionReader, numbers: Sequence[int], max_regions: int, *, pin_memory: bool = False
) -> dict[str, Tensor]:
    """The regions of some rows, with no text and no masks: for evaluation and fine-tuning.

    ``features`` [B, R, D] as stored, ``locations`` float32 [B, R, 5], ``mask`` bool [B, R].
    """
    places = [reader.located(number) for number in numbers]
    boxes = [group.boxes(at)[:max_regions] for group, at in places]
    counts = [len(found) for found in boxes]
    sources = [
        source_of(group, at, count) for (group, at), count in zip(places, counts, strict=True)
    ]
    shape = (len(places), max(counts, default=0))
    mask = np.arange(shape[1]) < np.array(counts)[:, None]
    locations = _locations(boxes, [group.size(at) for group, at in places], shape[1])
    dtype = STORED[reader.arrays["features"]["dtype"]]
    features = torch.empty(*shape, reader.feature_dim, dtype=dtype, pin_memory=pin_memory)
    fill(features, sources, reader)
    found = {"locations": torch.from_numpy(locations), "mask": torch.from_numpy(mask)}
    found = {name: tensor.clone() for name, tensor in found.items()}  # aligned, as in `assemble`
    if pin_memory:
        found = {name: tensor.pin_memory() for name, tensor in found.items()}
    return {"features": features, **found}


def source_of(group: RegionGroup, at: int, count: int) -> Source:
    """Where the features of a row's first ``count`` regions lie. InputError if it has none."""
    place, data = group.place("features", at), None
    if place is None:
        data = group.stored_bytes("features", at)
        if data is None:
            raise InputError(
                f"--regions: {group.image_id(at)} has no features; extract them with them"
            )
    where = None if place is None else (group.shard_number, *place)
    return Source(image_id=group.image_id(at), count=count, place=where, data=data)


def fill(
    features: Tensor, sources: Sequence[Source], reader: RegionReader, *, whole: int = 0
) -> None:
    """Copy each source's features into ``features`` [B, R, D], after ``whole`` rows; the rest is
    set to zero.
    """
    size = features.element_size()
    kind = "<u2" if size == 2 else "<u4"
    rows = features.view(torch.int16 if size == 2 else torch.int32).numpy().view(kind)
    flat = rows.view(np.uint8).reshape(len(rows), rows.shape[1], -1)
    least = BFLOAT16_NOT_FINITE if features.dtype == torch.bfloat16 else NOT_FINITE[size]
    for i, source in enumerate(sources):
        end = whole + source.count
        data = source.data if source.place is None else reader.bytes_at(*source.place)
        assert data is not None
        flat[i, whole:end] = data[: source.count * flat.shape[2]].reshape(source.count, -1)
        flat[i, :whole] = flat[i, end:] = 0
        if source.count and not _finite(rows[i, whole:end], least):
            raise InputError(
                f"--regions: {source.image_id} has features that are not finite; extract its "
                "regions again, or leave its pairs out"
            )
    flat[len(sources) :] = 0


def _finite(bits: npt.NDArray[Any], least: int) -> bool:
    """Whether floats, given as unsigned integers, are finite: those that are not have the highest
    numbers of their sign. Features after a ReLU have no sign, so that one maximum tells.
    """
    highest, sign = int(bits.max()), 1 << (8 * bits.itemsize - 1)
    if highest < least:
        return True
    return highest < sign + least and int(bits.view(f"<i{bits.itemsize}").max()) < least


@dataclass(frozen=True, kw_only=True)
class StoredBatch:
    """A batch as it is stored, in host memory."""

    tensors: dict[str, Tensor]
    whole_image: str
    pair_ids: tuple[str, ...]
    num_texts: int = 0
    num_classes: int | None = None

    def to(self, device: torch.device | str) -> PretrainBatch:
        """On ``device`` as the model takes it."""
        held = {k: v.to(device, non_blocking=True) for k, v in self.tensors.items()}
        batch, tokens = len(held["tokens"]), held["tokens"]
        if "features" in held:
            features, targets, locations, mask, hidden = self._features(held)
        else:
            features = torch.zeros(batch, 0, 1, device=device)
            locations = torch.zeros(batch, 0, 5, device=device)
            mask = torch.zeros(batch, 0, dtype=torch.bool, device=device)
            targets, hidden = features.new_zeros(0, 1), None
        none = tokens.new_zeros(0)
        return PretrainBatch(
            inputs=VLInputs(
                tokens=tokens,
                token_mask=held["token_mask"],
                region_features=features,
                region_locations=locations,
                region_mask=mask,
                masked_regions=hidden if self.whole_image == "rest" else None,
            ),
            masked_tokens=held["masked_tokens"],
            token_targets=held["token_targets"],
            masked_regions=held.get("masked_regions", none),
            class_targets=held.get("class_targets", none),
            feature_targets=targets,
            matching=held["matching"],
            pair_ids=self.pair_ids,
            original_tokens=held["original_tokens"],
            class_distributions=self._distributions(held),
            pixels=_normalised(held.get("pixels")),
            token_pixels=_unit(held.get("token_pixels")),
            patch_mask=held.get("patch_mask"),
            num_texts=self.num_texts,
            picture_regions=picture_regions_of(held),
        )

    def _features(self, held: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        features, hidden = held["features"].float(), held["hidden"]
        locations, mask = held["region_locations"], held["region_mask"]
        shown = mask.shape[1]
        targets = features[:, :shown].flatten(0, 1)[held["masked_regions"]]
        # Only the feature goes: location, segment and position stay (a choice the papers leave).
        features.masked_fill_(hidden[..., None], 0)
        if self.whole_image != "none":
            features[:, 0] = whole_picture(
                features[:, 1:], held["region_counts"], hidden, self.whole_image
            )
        return features[:, :shown], targets, locations, mask, hidden[:, :shown]

    def _distributions(self, held: dict[str, Tensor]) -> Tensor | None:
        if "class_probs" not in held:
            return None
        probs = held["class_probs"].float()
        if "class_prob_ids" not in held or self.num_classes is None:
            return probs
        whole = probs.new_zeros(len(probs), self.num_classes)
        return whole.scatter_(1, held["class_prob_ids"].long(), probs)


def whole_picture(features: Tensor, counts: Tensor, hidden: Tensor, kind: str) -> Tensor:
    """The picture's feature [B, D] from those of its regions [B, R, D], hidden ones zeros.

    ``mean`` counts hidden regions too (ViLBERT, InterBERT), ``rest`` does not (VL-BERT, where
    nothing left gives zeros).
    """
    left = counts if kind == "mean" else counts - hidden.sum(1)
    divisor = left.clamp(min=1) if kind == "mean" else left + 1e-5
    total: Tensor = features.sum(1) / divisor[:, None]
    return torch.where(left[:, None] > 0, total, 0)


def _unit(pixels: Tensor | None) -> Tensor | None:
    return None if pixels is None else pixels.float() / 255


def _normalised(pixels: Tensor | None) -> Tensor | None:
    """VLMo's and BEiT's: (x - 0.5) / 0.5 of values in 0..1."""
    return None if pixels is None else pixels.float() / 127.5 - 1


@dataclass(frozen=True, kw_only=True)
class PretrainBatch:
    """Inputs with masks applied, and what is to be guessed.

    ``masked_tokens`` int64 [N] are positions in the flattened [B * T] text, ``masked_regions``
    int64 [M] in the flattened [B * R] regions: of matching pairs only, unless the masking asks in
    mismatched ones too. ``token_targets`` int64 [N], ``class_targets`` int64 [M] (-100: none; with
    distributions class 0 is background), ``feature_targets`` float32 [M, D]. ``matching`` float32,
    1 for pairs that belong together, of all rows but the last ``num_texts``, which are texts alone.

    ``inputs`` has no regions (R = 0) where pairs come with pixels, or texts alone. What a batch
    lacks is None: ``original_tokens`` int64 [B, T] before masking, ``class_distributions`` float32
    [M, K], ``pixels`` float32 [B, 3, S, S] normalised, ``token_pixels`` [B, 3, S', S'] in 0..1 and
    ``patch_mask`` bool [B, n, n] of masked picture modelling. ``picture_regions``: the pictures of
    all rows but the texts alone, for a model that computes the regions' features itself.
    """

    inputs: VLInputs
    masked_tokens: Tensor
    token_targets: Tensor
    masked_regions: Tensor
    class_targets: Tensor
    feature_targets: Tensor
    matching: Tensor
    pair_ids: tuple[str, ...]
    original_tokens: Tensor | None = None
    class_distributions: Tensor | None = None
    pixels: Tensor | None = None
    token_pixels: Tensor | None = None
    patch_mask: Tensor | None = None
    num_texts: int = 0
    picture_regions: PictureRegions | None = None

    def pixel_inputs(self, *, masked: bool) -> PixelInputs:
        """Texts, ``masked`` or as they are, with their pictures' pixels."""
        assert self.pixels is not None and self.original_tokens is not None
        tokens = self.inputs.tokens if masked else self.original_tokens
        return PixelInputs(tokens=tokens, token_mask=self.inputs.token_mask, pixels=self.pixels)

    def to(self, device: torch.device | str) -> PretrainBatch:
        """The same batch on ``device``."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        for name, value in values.items():
            if isinstance(value, Tensor):
                values[name] = value.to(device, non_blocking=True)
        return PretrainBatch(**{**values, "inputs": self.inputs.to(device)})


__all__ = [
    "IGNORED",
    "PlannedBatch",
    "PretrainBatch",
    "Regions",
    "Source",
    "StoredBatch",
    "assemble",
    "box_locations",
    "fill",
    "plan",
    "region_batch",
    "regions_of",
    "source_of",
    "whole_picture",
]
