"""Reads the checkpoints of detectors, with what their release needs to be put right."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from vlmill.models.convert.files import Unreadable, read_content, state_dict_in, tensors_of
from vlmill.schemas.errors import InputError


def read_checkpoint(path: Path) -> Mapping[str, Tensor]:
    """The tensors of a file by name. Raises InputError with the remedy."""
    if not path.is_file():
        raise InputError(
            f"--weights {path}: no such file; give a .pth, .pkl, .bin or .safetensors file"
        )
    try:
        state = state_dict_in(read_content(path))
    except Unreadable as error:
        raise InputError(f"--weights {path} cannot be read ({error}); give another file") from None
    try:
        tensors = tensors_of(state)
    except ValueError:
        raise InputError(
            f"--weights {path} holds no state dict; give the detector's checkpoint"
        ) from None
    return without_old_norms(tensors, getattr(state, "_metadata", None))


def without_old_norms(state: dict[str, Tensor], metadata: Any) -> dict[str, Tensor]:
    """Undoes what Detectron2's frozen norms stored before their version 3: variance plus eps.

    Only modules that say so in the checkpoint's metadata; nn.BatchNorm2d, whose version is 2 too,
    is known by its counter of batches.
    """
    if not isinstance(metadata, Mapping):
        return state
    for module in metadata:
        notes, key = metadata[module], f"{module}.running_var"
        old = isinstance(notes, Mapping) and "version" in notes and notes["version"] in (1, 2)
        if old and key in state and f"{module}.num_batches_tracked" not in state:
            state[key] = state[key] - 1e-5
    return state
