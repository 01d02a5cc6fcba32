"""Reads the checkpoints of detectors, with corrections for their releases."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from vlmill.extract.config import MODEL, require_weights, saved_folder
from vlmill.models.convert import files
from vlmill.models.convert.caffe_file import read_caffe_layers
from vlmill.models.detector.caffe import name_caffe_weights
from vlmill.schemas.errors import InputError

CAFFEMODEL = ".caffemodel"


def read_checkpoint(path: Path, flag: str = "--weights") -> Mapping[str, Tensor]:
    """Returns the tensors of a file by name, or of all files of an index (``.index.json``).

    Tensors of Caffe files have the names of milvlg's layout. Containers and the prefixes of
    wrappers are removed. Raises InputError with the remedy.
    """
    require_weights(path, flag)
    try:
        if path.suffix == CAFFEMODEL:
            return name_caffe_weights(read_caffe_layers(path))
        states = [
            files.state_dict_in(files.read_content(file)) for file in weights_files(path, flag)
        ]
    except files.Unreadable as error:
        raise InputError(f"{flag} {path} cannot be read ({error}); give another file") from None
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{flag} {path}: {error}; give the detector's .caffemodel") from None
    try:
        tensors = {name: t for state in states for name, t in files.collect_tensors(state).items()}
    except ValueError:
        raise InputError(
            f"{flag} {path} holds no state dict; give the detector's checkpoint"
        ) from None
    notes = dict[Any, Any]()
    for state in states:
        metadata = getattr(state, "_metadata", None)
        notes |= metadata if isinstance(metadata, dict) else {}
    while prefix := files.wrapping_prefix(tensors, files.PREFIXES):
        tensors = {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
        notes = {
            name.removeprefix(prefix) if isinstance(name, str) else name: note
            for name, note in notes.items()
        }
    return files.without_old_norms(tensors, notes)


def weights_files(path: Path, flag: str = "--weights") -> list[Path]:
    """Returns the files with the weights that ``path`` names: itself, the file of a trained
    detector's folder, or an index and its files.

    Raises InputError for an index that cannot be read, or lists a missing file.
    """
    folder = saved_folder(path)
    if folder is not None:
        return [folder / MODEL]
    if not path.name.endswith(files.INDEX):
        return [path]
    try:
        return files.shard_files(path)
    except (ValueError, OSError) as error:
        raise InputError(f"{flag} {error}; give a complete folder") from None
