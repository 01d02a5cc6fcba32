"""Reads and writes a trained detector's folder: weights under the family's names, and metadata.

``detector.json`` holds every field of the network's configuration and the names of its classes and
attributes; ``model.safetensors`` the weights. ``--weights`` takes the folder, the file, or the
output of ``extract-rois train``.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from vlmill.extract.config import DETECTOR, MODEL
from vlmill.models.detector.config import DetectorConfig
from vlmill.models.detector.published_names import published_name
from vlmill.runtime.files.atomic import write_json
from vlmill.runtime.files.listed import FILE_RECORD, parse_record, record_files, require_unchanged
from vlmill.runtime.files.shards import SOFTWARE
from vlmill.runtime.settings.plain_fields import from_plain, to_plain
from vlmill.schemas.errors import InputError
from vlmill.schemas.plain_json import read_json

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
