"""Reads the checkpoints of detectors, with corrections for their releases."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from vlmill.extract.config import DETECTOR, MODEL, require_weights, saved_folder
from vlmill.models.convert import files
from vlmill.models.convert.caffe_file import read_caffe_layers
from vlmill.models.detector.caffe import name_caffe_weights
from vlmill.models.detector.config import DetectorConfig
from vlmill.models.detector.published_names import published_name
from vlmill.runtime.files.atomic import write_json
from vlmill.runtime.files.listed import FILE_RECORD, parse_record, record_files, require_unchanged
from vlmill.runtime.files.shards import SOFTWARE
from vlmill.runtime.settings.plain_fields import from_plain, to_plain
from vlmill.schemas.errors import InputError
from vlmill.schemas.plain_json import read_json

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


# --- the folder of a trained detector -------------------------------------------------------------

FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class SavedDetector:
    """Holds the content of a trained detector's folder."""

    config: DetectorConfig  # as the network was trained
    classes: tuple[str, ...]
    attributes: tuple[str, ...]
    training: Mapping[str, Any]  # recipe, step, ... for people
    weights: Mapping[str, Tensor]

    @property
    def inference(self) -> DetectorConfig:
        """Returns the configuration for extraction, where normalisations are frozen."""
        return dataclasses.replace(self.config, batch_norm="frozen", frozen_stages=0)


def save_detector(
    folder: Path,
    config: DetectorConfig,
    weights: Mapping[str, Tensor],
    *,
    classes: Sequence[str],
    attributes: Sequence[str],
    training: Mapping[str, Any],
    also: Sequence[str] = (),
) -> None:
    """Writes a network's state dict into an existing folder; the file that readers check is last.

    ``also`` names further files of the folder whose digests are recorded.
    """
    state = {
        published_name(name, config.family): tensor.detach().cpu().contiguous()
        for name, tensor in weights.items()
        if not name.endswith("num_batches_tracked")
    }
    save_file(state, folder / MODEL)
    write_json(
        folder / DETECTOR,
        {
            "format": FORMAT,
            "software": SOFTWARE,
            "detector": to_plain(config),
            "classes": list(classes),
            "attributes": list(attributes),
            "training": dict(training),
            FILE_RECORD: record_files(folder, (MODEL, *also)),
        },
    )


def read_saved(folder: Path, flag: str = "--weights") -> SavedDetector:
    """Reads a trained detector's folder. Raises InputError that names the file and the remedy."""
    try:
        metadata = read_json(folder / DETECTOR)
        if metadata["format"] != FORMAT:
            raise ValueError(f"format {metadata['format']}, this vlmill reads {FORMAT}")
        files = [file for file in parse_record(metadata.get(FILE_RECORD)) if file.name == MODEL]
        require_unchanged(folder, files, f"{flag} {folder}")
        return SavedDetector(
            config=from_plain(DetectorConfig, metadata["detector"], "detector"),
            classes=tuple(metadata["classes"]),
            attributes=tuple(metadata["attributes"]),
            training=metadata["training"],
            # Copied: mapped tensors are not aligned, and sums over them may differ in the last bit.
            weights={name: value.clone() for name, value in load_file(folder / MODEL).items()},
        )
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        if isinstance(error, InputError) and str(error).startswith(flag):
            raise
        reason = " ".join(str(error).split())[:300]
        raise InputError(f"{flag} {folder} is damaged ({reason}); give another detector") from None
