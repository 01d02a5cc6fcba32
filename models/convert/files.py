"""Reads checkpoint files of other people's without executing anything in them."""

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

# What published files wrap their state dict in, the first that is there.
CONTAINERS = ("state_dict", "module", "model", "weights")
TORCH_HEADS = (b"PK", b"\x80")  # a zip archive; a pickle, before PyTorch 1.6


def read_state(path: Path) -> dict[str, Tensor]:
    """The state dict of a ``.safetensors`` file or of a PyTorch file of tensors.

    Raises ValueError, with the remedy, for a file that is neither, and FileNotFoundError.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such checkpoint file")
    with path.open("rb") as file:
        head = file.read(9)
    is_safetensors = head[8:] == b"{"
    if not is_safetensors and not head.startswith(TORCH_HEADS):
        raise ValueError(f"{path} is neither a safetensors file nor one of PyTorch's")
    try:
        if is_safetensors:
            content: Any = load_file(path)
        else:
            content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise ValueError(
            f"{path} holds more than tensors, and reading it would run code from the file; save "
            "its state_dict() alone, as tensors, on a machine where you trust the file"
        ) from None
    except (OSError, RuntimeError, EOFError, ValueError, KeyError, SafetensorError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise ValueError(f"{path} is no readable checkpoint ({reason})") from None
    try:
        return unwrapped(content)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def unwrapped(content: object) -> dict[str, Tensor]:
    """The state dict in ``content``, out of its containers and without ``module.`` prefixes.

    Entries that are no tensors (counters, optimiser states beside it) are left out. Raises
    ValueError if nothing is left.
    """
    if isinstance(content, Mapping):
        for name in CONTAINERS:
            if isinstance(inner := content.get(name), Mapping):
                return unwrapped(inner)
    held = content if isinstance(content, Mapping) else {}
    state = {k: v for k, v in held.items() if isinstance(k, str) and isinstance(v, Tensor)}
    if not state:
        raise ValueError("no state dict: want parameter names with tensors")
    # Trained under a distributed wrapper.
    return without_prefix(state, "module.")


def without_prefix(state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """``state`` with ``prefix`` taken off, if all names have it."""
    if all(name.startswith(prefix) for name in state):
        return {name.removeprefix(prefix): tensor for name, tensor in state.items()}
    return dict(state)
