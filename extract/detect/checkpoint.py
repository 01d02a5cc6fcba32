"""Reads the checkpoints of detectors, with what their release needs to be put right."""

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from vlmill.extract.config import require_weights
from vlmill.models.convert.caffe_file import read_caffe_layers
from vlmill.models.convert.files import (
    Unreadable,
    collect_tensors,
    read_content,
    state_dict_in,
    without_old_norms,
    without_prefix,
)
from vlmill.models.detector.caffe import name_caffe_weights
from vlmill.schemas.errors import InputError

CAFFEMODEL = ".caffemodel"


def read_checkpoint(path: Path, flag: str = "--weights") -> Mapping[str, Tensor]:
    """The tensors of a file by name: of Caffe's by those of milvlg's layout.

    Raises InputError with the remedy.
    """
    require_weights(path, flag)
    try:
        if path.suffix == CAFFEMODEL:
            return name_caffe_weights(read_caffe_layers(path))
        state = state_dict_in(read_content(path))
    except Unreadable as error:
        raise InputError(f"{flag} {path} cannot be read ({error}); give another file") from None
    except ValueError as error:
        raise InputError(f"{flag} {path}: {error}; give the detector's .caffemodel") from None
    try:
        tensors = collect_tensors(state)
    except ValueError:
        raise InputError(
            f"{flag} {path} holds no state dict; give the detector's checkpoint"
        ) from None
    tensors = without_prefix(tensors, "module.")
    return without_old_norms(tensors, getattr(state, "_metadata", None))
