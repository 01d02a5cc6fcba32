"""Defines the inputs of the variants, regions or pixels, and checks them.

B image-text pairs, T text tokens, R regions, D width of a region's feature, S pixels a side. Each
check raises ValueError; the message names the argument and the numbers. Checking shapes and dtypes
costs nothing. Reading values waits for their device, and happens once: see `readable`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vlmill.models.positions import Cells, Positions, find_positions


def copy_to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Copies a host tensor to ``device`` without waiting, which requires pinned memory."""
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


KINDS = {
    "ids": "torch.int64",
    "positions": "torch.int64",
    "mask": "torch.bool with True for real entries",
    "numbers": "floating point",
}
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


def readable(tensor: Tensor) -> bool:
    """Returns whether a forward pass may read values: only on the CPU and untraced."""
    return tensor.device.type == "cpu" and not torch.compiler.is_compiling()


def check_tensor(name: str, value: object, kind: str, remedy: str = "convert them") -> None:
    """Checks that a value is a tensor of a ``kind``: one of `KINDS`.

    A float mask with 1 for real entries would be added to scores.
    """
    if not isinstance(value, Tensor):
        raise ValueError(f"{name} is a {type(value).__name__}, expected a tensor")
    if kind == "numbers":
        if not value.is_floating_point():
            raise ValueError(f"{name} is {value.dtype}, expected {KINDS[kind]}; {remedy}")
    elif value.dtype != (torch.bool if kind == "mask" else torch.int64):
        raise ValueError(f"{name} is {value.dtype}, expected {KINDS[kind]}")


def check_marked(name: str, positions: Tensor, mask_name: str, mask: Tensor) -> None:
    """Checks that indices match a mask: code that changes one of them must change both."""
    if len(positions) != int(mask.sum()) or not bool(mask.flatten()[positions].all()):
        raise ValueError(
            f"{name} holds {len(positions)} positions, but they are not the "
            f"{int(mask.sum())} positions that {mask_name} marks; compute them from "
            "this mask, or give None"
        )


def check_dtype(name: str, values: Tensor, weight: Tensor) -> None:
    """Checks that numbers have the model's dtype; under autocast they may have another."""
    device = values.device.type
    if values.dtype != weight.dtype and not torch.is_autocast_enabled(device):
        raise ValueError(
            f"{name} is {values.dtype}, the model's weights are {weight.dtype}; convert either, or "
            f"run the model under torch.autocast({device!r})"
        )


def check_texts(tokens: Tensor, token_mask: Tensor, segments: Tensor | int = 0) -> None:
    """Checks texts without images: ids and masks have the same shape and at least one position."""
    check_tensor("tokens", tokens, "ids")
    check_tensor("token_mask", token_mask, "mask")
    shape = tuple(tokens.shape)
    if len(shape) != 2 or not shape[1]:
        raise ValueError(
            f"tokens has shape {shape}, expected [texts, tokens] with one token at least"
        )
    if tuple(token_mask.shape) != shape:
        raise ValueError(f"token_mask has shape {tuple(token_mask.shape)}, tokens {shape}")
    if isinstance(segments, Tensor):
        if tuple(segments.shape) != shape:
            raise ValueError(f"segments has shape {tuple(segments.shape)}, tokens {shape}")
        check_tensor("segments", segments, "ids")


def check_occupied(name: str, mask: Tensor, kind: str, items: str = "pairs") -> None:
    """Checks that each row of a mask [B, N] marks at least one position."""
    filled = mask.any(dim=1)
    if not bool(filled.all()):
        empty = (~filled).nonzero().flatten().tolist()
        raise ValueError(
            f"{name}: {len(empty)} of {len(mask)} {items} have no {kind} (first: row {empty[0]}); "
            f"remove such {items} from the batch"
        )


def check_below(name: str, ids: Tensor, count: int, limit: str) -> None:
    """Checks that ids are at least 0 and below ``count``, which messages call ``limit``."""
    if not ids.numel():
        return
    low, high = (int(bound) for bound in ids.aminmax())
    if low < 0 or high >= count:
        wrong = (ids < 0) | (ids >= count)
        row = int(wrong.flatten(1).any(dim=1).nonzero()[0])
        raise ValueError(
            f"{name} has ids from {low} to {high} (first wrong one in row {row}), expected 0 to "
            f"{count - 1} ({limit}={count})"
        )


def check_finite(name: str, values: Tensor, items: str, remedy: str) -> None:
    """Checks that all values of [B, ...] are finite."""
    # The sum reveals NaN and infinity and reads each number once; only then are the values checked
    # in detail.
    if bool(torch.isfinite(values.detach().sum(dtype=torch.float32))):
        return
    bad = (~torch.isfinite(values)).flatten(1).any(dim=1).nonzero().flatten()
    if len(bad):
        raise ValueError(
            f"{name}: {len(bad)} of {len(values)} {items} hold NaN or infinite values (first: row "
            f"{int(bad[0])}); {remedy}"
        )
