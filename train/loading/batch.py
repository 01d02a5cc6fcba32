"""Holds a batch in host memory, and as the model takes it.

B pairs, T tokens, R regions (the full image among them), D feature width, S pixels per side; N, M
masked positions, K classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from vlmill.models.inputs import PixelInputs, VLInputs
from vlmill.models.vlbert.region_cnn import ImageRegions
from vlmill.runtime.readers.region_rows import LARGEST
from vlmill.schemas.errors import InputError
from vlmill.train.loading.images.boxed import make_image_regions
from vlmill.train.loading.sample import StoredFeatures
from vlmill.train.loading.undecodable import NAMED, Undecodable

LABEL = "label."  # prefix of the names of a task's tensors


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Holds the masked inputs and the targets of a batch.

    ``masked_tokens`` int64 [N] are positions in the flattened [B * T] text, ``masked_regions``
    int64 [M] in the flattened [B * R] regions. Only matching pairs have them, unless the masking
    also includes mismatched pairs. ``token_targets`` int64 [N], ``class_targets`` int64 [M] (-100:
    none; with distributions class 0 is background), ``feature_targets`` float32 [M, D].
    ``matching`` float32 has 1 for matching pairs; it covers all rows except the last ``num_texts``,
    which are texts without images.

    ``inputs`` records where losses and pooling read the last hidden states. It has R = 0 regions
    for pairs with pixels, and for texts only. A missing tensor is None: ``original_tokens`` int64
    [B, T] before masking, ``class_distributions`` float32 [M, K], ``pixels`` float32 [B, 3, S, S]
    normalised, ``token_pixels`` [B, 3, S', S'] in 0..1 and ``patch_mask`` bool [B, n, n] of masked
    image modelling. ``masked_patches`` int64 are the positions in ``patch_mask``, counted row by
    row. ``image_regions`` are the images of all rows except texts without images, for a model that
    computes the regions' features. ``image_keys`` int64 [B] are equal for pairs of one image; a
    text without an image has a unique key. ``labels`` are the tensors that a task adds.
    ``labelled_regions`` bool [M] marks the masked regions that count, where padding was added
    (`budgets.pad_small`).
    """

    inputs: VLInputs
    masked_tokens: Int[Tensor, " N"]
    token_targets: Int[Tensor, " N"]
    masked_regions: Int[Tensor, " M"]
    class_targets: Int[Tensor, " M"]
    feature_targets: Float[Tensor, "M D"]
    matching: Float[Tensor, " P"]
    pair_ids: tuple[str, ...]
    original_tokens: Int[Tensor, "B T"] | None = None
    class_distributions: Float[Tensor, "M K"] | None = None
    pixels: Float[Tensor, "B 3 S S"] | None = None
    token_pixels: Float[Tensor, "B 3 S2 S2"] | None = None
    patch_mask: Bool[Tensor, "B n n"] | None = None
    masked_patches: Int[Tensor, " Q"] | None = None
    num_texts: int = 0
    image_regions: ImageRegions | None = None
    image_keys: Int[Tensor, " B"] | None = None
    labelled_regions: Bool[Tensor, " M"] | None = None
    labels: dict[str, Tensor] = field(default_factory=dict)

    def pixel_inputs(self, *, masked: bool) -> PixelInputs:
        """Returns the texts, ``masked`` or original, with the pixels of their images."""
        assert self.pixels is not None and self.original_tokens is not None
        tokens = self.inputs.tokens if masked else self.original_tokens
        return PixelInputs(
            tokens=tokens,
            token_mask=self.inputs.token_mask,
            pixels=self.pixels,
            real_tokens=self.inputs.real_tokens,
        )


@dataclass(frozen=True, kw_only=True)
class HostBatch:
    """Holds a batch in host memory, before and after its features are read.

    `collate` makes it from samples, small enough to be sent between processes: ``stored`` locates
    the features of the images ``image_ids``. `features.read_features` returns it with the stored
    features among the ``tensors`` and an empty ``stored``. ``num_classes`` is the size of a full
    distribution when only its highest probabilities are stored. The images in ``undecodable`` were
    replaced by other images.
    """

    tensors: dict[str, Tensor]
    pair_ids: tuple[str, ...]
    sources: tuple[str, ...] = ()  # of the pairs
    whole_image: str = "none"
    image_ids: tuple[str, ...] = ()
    stored: tuple[StoredFeatures, ...] = ()
    num_texts: int = 0
    num_classes: int | None = None
    undecodable: tuple[Undecodable, ...] = ()

    def __getstate__(self) -> dict[str, Any]:
        # As arrays: PyTorch would send each tensor in its own block of shared memory.
        return vars(self) | {"tensors": {name: t.numpy() for name, t in self.tensors.items()}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        tensors = {name: torch.from_numpy(array) for name, array in state["tensors"].items()}
        vars(self).update(state | {"tensors": tensors})

    def not_finite(self, *, quick: bool = False) -> list[str]:
        """Returns the images with a feature or box that is not finite, or above
        `region_rows.LARGEST`.

        ``quick`` takes a hundredth of the time, and misses large values whose sum is small.
        """
        is_bad = torch.zeros(len(self.image_ids), dtype=torch.bool)
        for name in ("features", "region_locations", "global_features"):
            if name not in self.tensors:
                continue
            rows = self.tensors[name][: len(is_bad)].flatten(1)
            suspects = ~is_bad
            if quick:  # a sum never hides NaN and infinity
                suspects &= ~(rows.sum(1, dtype=torch.float32).abs() <= LARGEST)
            for index in torch.nonzero(suspects).flatten():
                is_bad[index] = not bool((rows[index].float().abs() <= LARGEST).all())
        return [self.image_ids[index] for index in is_bad.nonzero().flatten().tolist()]

    def require_finite(self) -> "HostBatch":
        """Returns the batch. Raises InputError for images that :meth:`not_finite` names."""
        if bad := self.not_finite(quick=True):
            raise InputError(describe_not_finite(bad))
        return self

    def to(self, device: torch.device | str) -> Batch:
        """Moves the batch to ``device`` and converts it to the model's input.

        On a CPU it calls :meth:`require_finite` first: models refuse such values there and cannot
        name the image. On other devices reading the values would make the device wait; there the
        loss reveals them.
        """
        if torch.device(device).type == "cpu":
            self.require_finite()
        tensors = {k: v.to(device, non_blocking=True) for k, v in self.tensors.items()}
        batch, tokens = len(tensors["tokens"]), tensors["tokens"]
        if "features" in tensors:
            features, targets, locations, mask, hidden = self._features(tensors)
        else:
            features = torch.zeros(batch, 0, 1, device=device)
            locations = torch.zeros(batch, 0, 5, device=device)
            mask = torch.zeros(batch, 0, dtype=torch.bool, device=device)
            targets, hidden = features.new_zeros(0, 1), None
        none = tokens.new_zeros(0)
        global_features = tensors.get("global_features")
        return Batch(
            inputs=VLInputs(
                tokens=tokens,
                token_mask=tensors["token_mask"],
                region_features=features,
                region_locations=locations,
                region_mask=mask,
                segments=tensors.get("segments"),
                text_regions=tensors.get("text_regions"),
                masked_regions=hidden if self.whole_image == "rest" else None,
                global_features=None if global_features is None else global_features.float(),
                real_tokens=tensors["real_tokens"],
                real_regions=tensors.get("real_regions", none),
                read_tokens=tensors["read_tokens"],
                read_regions=tensors.get("read_regions", none),
            ),
            masked_tokens=tensors["masked_tokens"],
            token_targets=tensors["token_targets"],
            masked_regions=tensors.get("masked_regions", none),
            class_targets=tensors.get("class_targets", none),
            feature_targets=targets,
            matching=tensors["matching"],
            pair_ids=self.pair_ids,
            original_tokens=tensors["original_tokens"],
            class_distributions=self._distributions(tensors) if "class_probs" in tensors else None,
            pixels=normalise_pixels(tensors["pixels"]) if "pixels" in tensors else None,
            token_pixels=tensors["token_pixels"].float() / 255
            if "token_pixels" in tensors
            else None,
            patch_mask=tensors.get("patch_mask"),
            masked_patches=tensors.get("masked_patches"),
            num_texts=self.num_texts,
            image_regions=make_image_regions(tensors) if "pictures" in tensors else None,
            image_keys=tensors.get("image_keys"),
            labelled_regions=tensors.get("labelled_regions"),
            labels={
                name.removeprefix(LABEL): tensor
                for name, tensor in tensors.items()
                if name.startswith(LABEL)
            },
        )

    def _features(
        self, tensors: dict[str, Tensor]
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        features, hidden = tensors["features"].float(), tensors["hidden"]
        locations, mask = tensors["region_locations"], tensors["region_mask"]
        num_shown = mask.shape[1]
        targets = features[:, :num_shown].flatten(0, 1)[tensors["masked_regions"]]
        # Only the feature is zeroed: location, segment and position stay (the papers leave this
        # open).
        features.masked_fill_(hidden[..., None], 0)
        if self.whole_image != "none":
            features[:, 0] = full_image(
                features[:, 1:],
                tensors["region_counts"],
                hidden,
                self.whole_image,
                tensors.get("region_weights"),
            )
        return features[:, :num_shown], targets, locations, mask, hidden[:, :num_shown]

    def _distributions(self, tensors: dict[str, Tensor]) -> Tensor:
        probs = tensors["class_probs"].float()
        if "class_prob_ids" not in tensors or self.num_classes is None:
            return probs
        all_probs = probs.new_zeros(len(probs), self.num_classes)
        return all_probs.scatter_(1, tensors["class_prob_ids"].long(), probs)


def describe_not_finite(image_ids: Sequence[str]) -> str:
    """Returns the error message for images that are not finite, with the remedy."""
    more = f" and {len(image_ids) - NAMED} others" if len(image_ids) > NAMED else ""
    return (
        f"--regions: {', '.join(image_ids[:NAMED])}{more}: features or boxes are not finite, or "
        f"above {LARGEST:g}; "
        "extract these regions again, or remove their pairs"
    )


def full_image(
    features: Float[Tensor, "B R D"],
    counts: Int[Tensor, " B"],
    hidden: Bool[Tensor, "B R2"],
    kind: str,
    weights: Float[Tensor, "B R"] | None = None,
) -> Float[Tensor, "B D"]:
    """Returns the image's feature [B, D], computed from its regions [B, R, D], hidden ones zeros.

    ``mean`` includes hidden regions (ViLBERT, InterBERT), each with its share in ``weights`` if
    given. ``rest`` excludes them (VL-BERT; zeros if all regions are hidden).
    """
    if weights is not None and kind == "mean":
        return torch.einsum("br,brd->bd", weights, features)
    left = counts if kind == "mean" else counts - hidden.sum(1)
    divisor = left.clamp(min=1) if kind == "mean" else left + 1e-5
    total: Tensor = features.sum(1) / divisor[:, None]
    return torch.where(left[:, None] > 0, total, 0)


def normalise_pixels(pixels: Shaped[Tensor, "B 3 S S"]) -> Float[Tensor, "B 3 S S"]:
    """Returns pixels 0..255 normalised for VLMo and BEiT: (x - 0.5) / 0.5 of values in 0..1."""
    return pixels.float() / 127.5 - 1
