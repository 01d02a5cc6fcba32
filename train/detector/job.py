"""Defines the job of training a detector: its inputs, and the settings that decide its output."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accelerate import Accelerator

from vlmill.extract.detect.checkpoint import weights_files
from vlmill.runtime.console.process_group import open_accelerator
from vlmill.runtime.files.digests import file_input, table_input
from vlmill.runtime.files.inputs import Input
from vlmill.runtime.settings.plain_fields import flatten, to_plain
from vlmill.schemas.errors import InputError
from vlmill.schemas.tables import BOXES, IMAGES
from vlmill.train.detector.settings import ADDED, NO_EFFECT, TrainingSettings
from vlmill.train.detector.start import Names

JOB = "extract-rois train"


@dataclass(frozen=True, kw_only=True)
class TrainJob:
    """Holds the settings, the inputs and the output of a training."""

    boxes: str
    images: str
    output: Path
    settings: TrainingSettings  # with the vocabularies' sizes
    names: Names
    init: Path | None = None

    def inputs(self) -> list[Input]:
        """Returns the run's inputs."""
        inputs = [
            table_input("--boxes", self.boxes, BOXES),
            table_input("--images", self.images, IMAGES),
        ]
        if self.init is not None:
            inputs += [file_input("--init", file) for file in weights_files(self.init)]
        return inputs

    def plan(self, inputs: Sequence[Input]) -> dict[str, Any]:
        """Returns the settings that decide the output: the fields, and the inputs by content."""
        flat = flatten(to_plain(self.settings))
        fields = {
            k: v
            for k, v in flat.items()
            if k.split(".")[0] not in NO_EFFECT and not (k in ADDED and v == ADDED[k])
        }
        return fields | {
            "inputs": {
                item.flag: ", ".join(str(i.digest) for i in inputs if i.flag == item.flag)
                for item in inputs
            },
            "classes": list(self.names.classes),
            "attributes": list(self.names.attributes),
        }


def make_accelerator(settings: TrainingSettings) -> Accelerator:
    """Opens devices and processes. Raises InputError for batches that cannot be divided evenly."""
    accelerator = open_accelerator(settings.precision)
    if settings.batch_size % (settings.accumulation * accelerator.num_processes):
        raise InputError(
            f"batch_size={settings.batch_size} is not a multiple of "
            f"accumulation={settings.accumulation} times {accelerator.num_processes} "
            "processes; change one of them of them"
        )
    return accelerator
