"""The checkpoints of a training: written whole, found again, and the last one published."""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from vlmill.extract.config import DETECTOR, MODEL, saved_steps
from vlmill.extract.detect.trained_folder import read_saved, save_detector
from vlmill.models.detector.faster_rcnn import FasterRCNN
from vlmill.models.detector.published import load_published
from vlmill.runtime.files.atomic import atomic_folder, link_file
from vlmill.runtime.files.checkpoints import CHECKPOINTS, step_folder
from vlmill.runtime.files.listed import FILE_RECORD, parse_record, require_unchanged
from vlmill.runtime.files.outputs import PLAN
from vlmill.schemas.errors import InputError
from vlmill.schemas.plain_json import parse_json, read_json
from vlmill.schemas.rejects import Reason

LOG, STATE = "log.jsonl", "training_state.safetensors"
METRICS, REPORT = "metrics.json", "report.html"
MOMENTUM, REJECTED = "momentum_buffer", "rejects"
Rejects = Mapping[str, tuple[Reason, str]]  # by image_id: why, and the details


def save_checkpoint(
    output: Path,
    step: int,
    model: FasterRCNN,
    optimizer: torch.optim.Optimizer,
    *,
    classes: Sequence[str],
    attributes: Sequence[str],
    recipe: str,
    rejects: Rejects,
) -> None:
    """Writes the checkpoint after a step, whole or not at all: a detector, its momenta, and the
    images that could not be used so far.
    """
    momenta = {
        name: optimizer.state[parameter][MOMENTUM].detach().cpu().contiguous()
        for name, parameter in model.named_parameters()
        if optimizer.state.get(parameter, {}).get(MOMENTUM) is not None
    }
    with atomic_folder(step_folder(output, step), replace=True) as folder:
        save_file(momenta, folder / STATE, metadata={REJECTED: json.dumps(rejects)})
        save_detector(
            folder,
            model,
            classes=classes,
            attributes=attributes,
            training={"recipe": recipe, "step": step},
            also=(STATE,),
        )


def restore_checkpoint(model: FasterRCNN, folder: Path) -> tuple[dict[str, Tensor], Rejects]:
    """Loads a checkpoint's weights into the network; returns the momenta by parameter, and the
    images that could not be used before.

    Raises InputError for one that is damaged.
    """
    load_published(model, read_saved(folder, "--output").weights)
    try:
        files = parse_record(read_json(folder / DETECTOR).get(FILE_RECORD))
        state_files = [file for file in files if file.name == STATE]
        require_unchanged(folder, state_files, f"--output: {folder}")
        with safe_open(folder / STATE, framework="pt") as state:
            momenta = {name: state.get_tensor(name).clone() for name in state.keys()}  # noqa: SIM118
            stored = parse_json((state.metadata() or {}).get(REJECTED, "{}"))
        return momenta, {key: (Reason(why), detail) for key, (why, detail) in stored.items()}
    except InputError:
        raise
    except (OSError, SafetensorError, ValueError) as error:
        raise InputError(f"--output: {folder} is damaged ({error}); use --fresh") from None


def publish(output: Path, step: int) -> None:
    """Puts a checkpoint's detector at the top of the output, as links."""
    last = saved_steps(output)[step]
    for name in (MODEL, DETECTOR):  # what makes the folder a detector comes last
        link_file(last / name, output / name)


def remove_run(output: Path) -> None:
    """Deletes a run's checkpoints, log and curves, if the folder holds such a run."""
    if not (output / PLAN).is_file():
        return
    for name in (MODEL, DETECTOR, LOG, METRICS, "trackers.json"):
        (output / name).unlink(missing_ok=True)
    for name in (CHECKPOINTS, "tensorboard", "wandb", "mlflow"):
        shutil.rmtree(output / name, ignore_errors=True)
