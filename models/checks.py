"""Checks batches; each function raises ValueError.

The message names the argument and the numbers. B texts or images, T tokens. Checking shapes and
dtypes costs nothing. Reading values waits for their device, and happens once: see `readable`.
"""

import torch
from torch import Tensor

KINDS = {
    "ids": "torch.int64",
    "positions": "torch.int64",
    "mask": "torch.bool with True for real entries",
    "numbers": "floating point",
}


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
