"""Defines the inputs of the variants: regions, or pixels.

B image-text pairs, T text tokens, R regions, D width of a region's feature, S pixels a side.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vlmill.models.checks import (
    check_below,
    check_finite,
    check_marked,
    check_occupied,
    check_tensor,
    readable,
)
from vlmill.models.positions import Cells, Positions, find_positions


def copy_to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Copies a host tensor to ``device`` without waiting, which requires pinned memory."""
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


Inputs = TypeVar("Inputs", bound="TextInputs")

# The indices of real positions, and the mask that marks them.
POSITION_MASKS = {"real_tokens": "token_mask", "real_regions": "region_mask"}


@dataclass(frozen=True, kw_only=True)
class TextInputs:
    """Holds the texts of a padded batch, and moves a batch of either type.

    tokens: int64 word-piece ids, [CLS] first; token_mask: True where a token is real. real_tokens:
    int64 indices that ``token_mask`` marks, as in `Cells`. A model on a GPU packs with them without
    waiting for the GPU; without them padding is computed there. `to` adds them when it copies from
    the host.
    """

    tokens: Int[Tensor, "B T"]
    token_mask: Bool[Tensor, "B T"]
    real_tokens: Positions | None = None

    def map(self: Inputs, change: Callable[[Tensor], Tensor]) -> Inputs:
        """Returns the same batch with ``change`` applied to each tensor."""
        return type(self)(**{name: change(value) for name, value in _tensors(self).items()})

    def to(self: Inputs, device: torch.device | str) -> Inputs:
        """Copies the batch to ``device``; copying from the host adds the real positions' indices.

        Does not wait for the copies.
        """
        tensors = _tensors(self)
        if torch.device(device).type != "cpu" and readable(self.tokens):
            for field, mask in POSITION_MASKS.items():
                if mask in tensors and field not in tensors:
                    tensors[field] = find_positions(tensors[mask])
        copies = {name: value.to(device, non_blocking=True) for name, value in tensors.items()}
        return type(self)(**copies)


@dataclass(frozen=True, kw_only=True)
class VLInputs(TextInputs):
    """Holds a padded batch of image-text pairs.

    Texts as in `TextInputs`. region_features: the detector's pooled features. region_locations:
    corners and area as fractions of the image, (x1/W, y1/H, x2/W, y2/H, area/(W*H)) (ImageBERT,
    arXiv:2001.07966, sec. 3.2). region_mask: True where a region is real; real_regions: its
    indices. segments: int64 segment ids of the tokens, None where all are 0. Variants with a
    full-image region have it in row 0 of the regions. Values in padding have no effect, as long as
    they are finite.

    Only VL-BERT reads the next two. masked_regions: True where a region is to be predicted and its
    appearance replaced; None without such a region. text_regions: int64 rows of the regions that
    the tokens refer to (VCR), None if all have the full image's, 0. Only ImageBERT reads
    global_features: the concatenated features of image-level networks (its sec. 5.3).

    read_tokens, read_regions: int64 indices where the last hidden states are read, as in `Cells`;
    None if all may be. Other positions may be returned as zeros.

    Raises ValueError if the shapes or dtypes do not fit together.
    """

    region_features: Float[Tensor, "B R D"]
    region_locations: Float[Tensor, "B R 5"]
    region_mask: Bool[Tensor, "B R"]
    segments: Int[Tensor, "B T"] | None = None
    masked_regions: Bool[Tensor, "B R"] | None = None
    text_regions: Int[Tensor, "B T"] | None = None
    global_features: Float[Tensor, "B G"] | None = None
    real_regions: Positions | None = None
    read_tokens: Positions | None = None
    read_regions: Positions | None = None

    def __post_init__(self) -> None:
        tensors = _tensors(self)
        for name, value in tensors.items():
            check_tensor(name, value, _KINDS[name])
            if _KINDS[name] == "positions" and value.ndim != 1:
                raise ValueError(
                    f"{name} has shape {tuple(value.shape)}, expected one row of positions"
                )
        if self.tokens.ndim != 2 or self.region_features.ndim != 3:
            raise ValueError(
                f"tokens has shape {tuple(self.tokens.shape)} and region_features "
                f"{tuple(self.region_features.shape)}; expected [pairs, tokens] and "
                "[pairs, regions, feature width]"
            )
        _check_pairs(self.tokens)
        for name, shape in self._shapes().items():
            if name in tensors and (actual := tuple(tensors[name].shape)) != shape:
                raise ValueError(
                    f"{name} has shape {actual}, expected {shape} with region_features "
                    f"{tuple(self.region_features.shape)} and tokens {tuple(self.tokens.shape)}"
                )

    @property
    def real(self) -> Cells | None:
        """Returns the indices of real positions, if both are known."""
        if self.real_tokens is None or self.real_regions is None:
            return None
        return Cells(self.real_tokens, self.real_regions)

    @property
    def read(self) -> Cells | None:
        """Returns the indices that are read, if both are known."""
        if self.read_tokens is None or self.read_regions is None:
            return None
        return Cells(self.read_tokens, self.read_regions)

    def _shapes(self) -> dict[str, tuple[Any, ...]]:
        """Returns the shapes that follow from the features and tokens: SymInt in an export."""
        batch, regions = self.region_features.shape[:2]
        texts, images = (batch, self.tokens.shape[1]), (batch, regions)
        shapes: dict[str, tuple[Any, ...]] = {
            **dict.fromkeys(("tokens", "token_mask", "segments", "text_regions"), texts),
            **dict.fromkeys(("region_mask", "masked_regions"), images),
            "region_locations": (*images, 5),
        }
        if self.global_features is not None:
            shapes["global_features"] = (batch, *self.global_features.shape[-1:])
        return shapes

    def replace_regions(
        self, features: Float[Tensor, "B R D"], locations: Float[Tensor, "B R 5"]
    ) -> "VLInputs":
        """Returns the same batch with other features and locations of its regions."""
        regions = {"region_features": features, "region_locations": locations}
        return VLInputs(**(_tensors(self) | regions))

    def validate(
        self,
        *,
        need_text: bool = True,
        need_regions: bool = True,
        vocab_size: int | None = None,
        num_segments: int | None = None,
    ) -> "VLInputs":
        """Checks the values too, and returns the batch.

        Reads every value once and waits for the device, so call it where batches are created;
        forward passes call it on the CPU only (`check`). Raises ValueError for a pair without a
        token or, where the variant needs one, without a region; for features or locations that are
        not finite; for ids beyond ``vocab_size`` or ``num_segments``, if these are given, for
        ``text_regions`` beyond the regions, and for indices that differ from the mask.
        """
        if need_text:
            check_occupied("token_mask", self.token_mask, "token")
        if need_regions:
            check_occupied("region_mask", self.region_mask, "region")
        for name in ("region_features", "region_locations", "global_features"):
            if (values := getattr(self, name)) is not None:
                check_finite(name, values, "pairs", "extract these images' regions again")
        for name, mask in POSITION_MASKS.items():
            if (positions := getattr(self, name)) is not None:
                check_marked(name, positions, mask, getattr(self, mask))
        regions = self.region_mask.shape[1]
        for name, count, limit in (
            ("tokens", vocab_size, "vocab_size"),
            ("segments", num_segments, "num_segments"),
            ("text_regions", regions, "regions"),
        ):
            if (ids := getattr(self, name)) is not None and count is not None:
                check_below(name, ids, count, limit)
        return self

    def check(
        self,
        *,
        need_text: bool = True,
        need_regions: bool,
        vocab_size: int,
        num_segments: int | None,
    ) -> None:
        """Calls `validate` where reading values costs almost nothing: on the CPU, untraced.

        The variant itself handles a modality without any position.
        """
        if readable(self.tokens):
            self.validate(
                need_text=need_text and self.tokens.shape[1] > 0,
                need_regions=need_regions and self.region_mask.shape[1] > 0,
                vocab_size=vocab_size,
                num_segments=num_segments,
            )


@dataclass(frozen=True, kw_only=True)
class PixelInputs(TextInputs):
    """Holds a padded batch of texts with their images, for a variant that reads pixels.

    Texts as in `TextInputs`. pixels: RGB, resized to S x S and normalised as the model's
    configuration specifies (VLMo: (x - 0.5) / 0.5 of values in 0..1). Raises ValueError if the
    shapes or dtypes do not fit together.
    """

    pixels: Float[Tensor, "B 3 S S"]

    def __post_init__(self) -> None:
        for name, value in _tensors(self).items():
            check_tensor(name, value, _KINDS[name], "scale and normalise them")
        shape, token_shape = tuple(self.pixels.shape), tuple(self.tokens.shape)
        if len(shape) != 4 or shape[1] != 3 or shape[2] != shape[3]:
            raise ValueError(f"pixels has shape {shape}, expected [pairs, 3, size, size]")
        if (
            len(token_shape) != 2
            or token_shape[0] != shape[0]
            or tuple(self.token_mask.shape) != token_shape
        ):
            raise ValueError(
                f"tokens has shape {token_shape} and token_mask "
                f"{tuple(self.token_mask.shape)}, expected [pairs, tokens] for both, "
                f"with pixels {shape}"
            )
        _check_pairs(self.tokens)
        if self.real_tokens is not None and self.real_tokens.ndim != 1:
            raise ValueError(
                f"real_tokens has shape {tuple(self.real_tokens.shape)}, expected one row of "
                "positions"
            )

    def validate(self, *, vocab_size: int | None = None) -> "PixelInputs":
        """Checks the values too, and returns the batch; call it where batches are created.

        Raises ValueError for a pair without a token, for pixels that are not finite, for indices
        that differ from the mask and for word ids beyond ``vocab_size``, if it is given.
        """
        check_occupied("token_mask", self.token_mask, "token")
        check_finite("pixels", self.pixels, "images", "decode these images again")
        if self.real_tokens is not None:
            check_marked("real_tokens", self.real_tokens, "token_mask", self.token_mask)
        if vocab_size is not None:
            check_below("tokens", self.tokens, vocab_size, "vocab_size")
        return self

    def check(self, *, vocab_size: int) -> None:
        """Calls `validate` where reading values costs almost nothing: on the CPU, untraced."""
        if self.tokens.shape[1] and readable(self.tokens):
            self.validate(vocab_size=vocab_size)


def _check_pairs(tokens: Tensor) -> None:
    if not tokens.shape[0]:
        raise ValueError(f"tokens has shape {tuple(tokens.shape)}, expected at least one pair")


_KINDS = {
    **dict.fromkeys(("tokens", "segments", "text_regions"), "ids"),
    **dict.fromkeys(("real_tokens", "real_regions", "read_tokens", "read_regions"), "positions"),
    **dict.fromkeys(("token_mask", "region_mask", "masked_regions"), "mask"),
    **dict.fromkeys(("region_features", "region_locations", "global_features"), "numbers"),
    "pixels": "numbers",
}

# Not dataclasses.fields, which torch.compile does not trace.
_FIELDS: dict[type[TextInputs], tuple[str, ...]] = {
    kind: tuple(kind.__dataclass_fields__) for kind in (VLInputs, PixelInputs)
}
_OPTIONAL = {
    name
    for kind in (VLInputs, PixelInputs)
    for name, field in kind.__dataclass_fields__.items()
    if field.default is None
}


def _tensors(inputs: TextInputs) -> dict[str, Any]:
    """Returns a batch's fields by name, without the optional ones that are None."""
    values = {name: getattr(inputs, name) for name in _FIELDS[type(inputs)]}
    return {n: value for n, value in values.items() if value is not None or n not in _OPTIONAL}


@dataclass(frozen=True, kw_only=True)
class ImageRegions:
    """Holds images with boxes.

    images: normalised, padded on the right and at the bottom. sizes: (width, height) in pixels
    without padding. boxes: (x1, y1, x2, y2) in those pixels, the full image (0, 0, W - 1, H - 1)
    first. instance_masks: objects' outlines, rasterised to the cells of their boxes (VCR).

    Raises ValueError if the shapes do not fit together.
    """

    images: Float[Tensor, "B 3 H W"]
    sizes: Float[Tensor, "B 2"]
    boxes: Float[Tensor, "B R 4"]
    region_mask: Bool[Tensor, "B R"]
    instance_masks: Float[Tensor, "B R P P"] | None = None

    def __post_init__(self) -> None:
        shape = tuple(self.boxes.shape)
        shapes: dict[str, tuple[int, ...]] = {
            "boxes": (len(self.images), *shape[1:2], 4),
            "sizes": (len(self.images), 2),
            "region_mask": shape[:2],
        }
        for name, want in shapes.items():
            if (actual := tuple(getattr(self, name).shape)) != want:
                raise ValueError(
                    f"{name} has shape {actual}, expected {want} with images "
                    f"{tuple(self.images.shape)}"
                )
        if self.instance_masks is not None and tuple(self.instance_masks.shape[:2]) != shape[:2]:
            raise ValueError(
                f"instance_masks has shape {tuple(self.instance_masks.shape)}, boxes {shape}"
            )

    def locations(self) -> Float[Tensor, "B R 5"]:
        """Returns locations in the form of `VLInputs`: corners as fractions, and area."""
        corners = self.boxes / self.sizes.repeat(1, 2)[:, None]
        corners = corners.masked_fill(~self.region_mask[..., None], 0.0)
        area = (corners[..., 2:] - corners[..., :2]).prod(dim=-1, keepdim=True)
        return torch.cat([corners, area], dim=-1)
