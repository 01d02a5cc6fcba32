"""What the variants are fed: regions, or pixels.

B image-text pairs, T text tokens, R regions, D width of a region's feature, S pixels a side.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class VLInputs:
    """A padded batch of image-text pairs.

    tokens: int64 word-piece ids, [CLS] first; token_mask: True where a token is real.
    region_features: the detector's pooled features. region_locations: corners and area as
    fractions of the picture, (x1/W, y1/H, x2/W, y2/H, area/(W*H)) (ImageBERT, arXiv:2001.07966,
    sec. 3.2). region_mask: True where a region is real. segments: int64 segment ids of the tokens,
    None where all are 0. Variants with a whole-image region have it in row 0 of the regions. What
    padding holds never matters, as long as it is finite.

    Only VL-BERT reads the next two. masked_regions: True where a region is to be guessed and its
    appearance replaced; None where none is. text_regions: int64 rows of the regions that the
    tokens speak of (VCR), None where all have the whole picture's, 0. Only ImageBERT reads
    global_features: those of whole-picture networks, side by side (its sec. 5.3).

    Raises ValueError if the shapes or dtypes do not fit together.
    """

    tokens: Int[Tensor, "B T"]
    token_mask: Bool[Tensor, "B T"]
    region_features: Float[Tensor, "B R D"]
    region_locations: Float[Tensor, "B R 5"]
    region_mask: Bool[Tensor, "B R"]
    segments: Int[Tensor, "B T"] | None = None
    masked_regions: Bool[Tensor, "B R"] | None = None
    text_regions: Int[Tensor, "B T"] | None = None
    global_features: Float[Tensor, "B G"] | None = None

    def __post_init__(self) -> None:
        if self.tokens.ndim != 2 or self.region_features.ndim != 3:
            raise ValueError(
                f"tokens has shape {tuple(self.tokens.shape)} and region_features "
                f"{tuple(self.region_features.shape)}; want [pairs, tokens] and "
                "[pairs, regions, feature width]"
            )
        batch, regions = self.region_features.shape[:2]
        wanted = {
            "tokens": (batch, self.tokens.shape[1]),
            "token_mask": (batch, self.tokens.shape[1]),
            "region_locations": (batch, regions, 5),
            "region_mask": (batch, regions),
        }
        for name, like in (
            ("segments", "tokens"),
            ("text_regions", "tokens"),
            ("masked_regions", "region_mask"),
        ):
            if getattr(self, name) is not None:
                wanted[name] = wanted[like]
        if self.global_features is not None:
            wanted["global_features"] = (batch, self.global_features.shape[-1])
        for name, shape in wanted.items():
            came = tuple(getattr(self, name).shape)
            if came != shape:
                raise ValueError(
                    f"{name} has shape {came}, want {shape} beside region_features "
                    f"{tuple(self.region_features.shape)} and tokens {tuple(self.tokens.shape)}"
                )
        for name in ("tokens", "segments", "text_regions"):
            ids = getattr(self, name)
            if ids is not None and ids.dtype != torch.int64:
                raise ValueError(f"{name} is {ids.dtype}, want torch.int64")
        for name in ("token_mask", "region_mask", "masked_regions"):
            mask = getattr(self, name)
            if mask is not None and (dtype := mask.dtype) != torch.bool:
                raise ValueError(f"{name} is {dtype}, want torch.bool with True for real entries")

    def to(self, device: torch.device | str) -> "VLInputs":
        """The same batch on ``device``."""
        return self.map(lambda tensor: tensor.to(device, non_blocking=True))

    def map(self, change: Callable[[Tensor], Tensor]) -> "VLInputs":
        """The same batch with ``change`` applied to each tensor."""
        held: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self)}
        changed = {name: change(value) for name, value in held.items() if value is not None}
        return VLInputs(**changed)

    def validate(self, *, need_regions: bool = True) -> "VLInputs":
        """Check the values too, and return the batch.

        Reads every value once and waits for the device, so it belongs to where batches are made
        and not into ``forward``. Raises ValueError for a pair without a token or, where the
        variant needs one, without a region, and for features or locations that are not finite.
        """
        masks = [("token_mask", self.token_mask, "token")]
        if need_regions:
            masks.append(("region_mask", self.region_mask, "region"))
        for name, mask, kind in masks:
            empty = (~mask.any(dim=1)).nonzero().flatten().tolist()
            if empty:
                raise ValueError(
                    f"{name}: {len(empty)} of {len(mask)} pairs have no {kind} (first: row "
                    f"{empty[0]}); leave such pairs out of the batch"
                )
        for name in ("region_features", "region_locations", "global_features"):
            if getattr(self, name) is None:
                continue
            bad = (~torch.isfinite(getattr(self, name))).flatten(1).any(dim=1).nonzero().flatten()
            if len(bad):
                raise ValueError(
                    f"{name}: {len(bad)} of {len(self.tokens)} pairs hold NaN or infinite values "
                    f"(first: row {int(bad[0])}); extract these pictures' regions again"
                )
        return self


@dataclass(frozen=True, kw_only=True)
class PixelInputs:
    """A padded batch of texts with their pictures, for a variant that reads pixels.

    tokens: int64 word-piece ids, [CLS] first; token_mask: True where a token is real. pixels: RGB,
    resized to S x S and normalised as the model's configuration says (VLMo: (x - 0.5) / 0.5 of
    values in 0..1). Raises ValueError if the shapes or dtypes do not fit together.
    """

    tokens: Int[Tensor, "B T"]
    token_mask: Bool[Tensor, "B T"]
    pixels: Float[Tensor, "B 3 S S"]

    def __post_init__(self) -> None:
        shape, came = tuple(self.pixels.shape), tuple(self.tokens.shape)
        if len(shape) != 4 or shape[1] != 3 or shape[2] != shape[3]:
            raise ValueError(f"pixels has shape {shape}, want [pairs, 3, size, size]")
        if len(came) != 2 or came[0] != shape[0] or tuple(self.token_mask.shape) != came:
            raise ValueError(
                f"tokens has shape {came} and token_mask {tuple(self.token_mask.shape)}, want "
                f"[pairs, tokens] twice, beside pixels {shape}"
            )
        if self.tokens.dtype != torch.int64:
            raise ValueError(f"tokens is {self.tokens.dtype}, want torch.int64")
        if self.token_mask.dtype != torch.bool:
            raise ValueError(
                f"token_mask is {self.token_mask.dtype}, want torch.bool with True for real entries"
            )
        if not self.pixels.is_floating_point():
            raise ValueError(
                f"pixels is {self.pixels.dtype}, want floating point; scale and normalise them"
            )

    def to(self, device: torch.device | str) -> "PixelInputs":
        """The same batch on ``device``."""
        return self.map(lambda tensor: tensor.to(device, non_blocking=True))

    def map(self, change: Callable[[Tensor], Tensor]) -> "PixelInputs":
        """The same batch with ``change`` applied to each tensor."""
        return PixelInputs(
            tokens=change(self.tokens),
            token_mask=change(self.token_mask),
            pixels=change(self.pixels),
        )

    def validate(self) -> "PixelInputs":
        """Check the values too, and return the batch; belongs to where batches are made.

        Raises ValueError for a pair without a token and for pixels that are not finite.
        """
        empty = (~self.token_mask.any(dim=1)).nonzero().flatten()
        if len(empty):
            raise ValueError(
                f"token_mask: {len(empty)} of {len(self.tokens)} pairs have no token (first: row "
                f"{int(empty[0])}); leave such pairs out of the batch"
            )
        bad = (~torch.isfinite(self.pixels)).flatten(1).any(dim=1).nonzero().flatten()
        if len(bad):
            raise ValueError(
                f"pixels: {len(bad)} of {len(self.tokens)} pictures hold NaN or infinite values "
                f"(first: row {int(bad[0])}); decode these pictures again"
            )
        return self
