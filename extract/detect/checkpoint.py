"""Reads the checkpoints of detectors, with what their release needs to be put right."""

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from vlmill.extract.config import require_weights
from vlmill.models.convert.files import (
    Unreadable,
    collect_tensors,
    read_content,
    state_dict_in,
    without_old_norms,
)
from vlmill.schemas.errors import InputError


def read_checkpoint(path: Path, flag: str = "--weights") -> Mapping[str, Tensor]:
    """The tensors of a file by name. Raises InputError with the remedy."""
    require_weights(path, flag)
    try:
        state = state_dict_in(read_content(path))
    except Unreadable as error:
        raise InputError(f"{flag} {path} cannot be read ({error}); give another file") from None
    try:
        tensors = collect_tensors(state)
    except ValueError:
        raise InputError(
            f"{flag} {path} holds no state dict; give the detector's checkpoint"
        ) from None
    return without_old_norms(tensors, getattr(state, "_metadata", None))
