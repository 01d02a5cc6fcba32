"""Detectors ready to run: random or loaded weights, and the fingerprint that identifies them."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from vlmill.models.detector_config import DetectorConfig
from vlmill.models.faster_rcnn import FasterRCNN
from vlmill.models.fused import fuse_stages
from vlmill.models.random_detector import randomise
from vlmill.models.resnet import fold_norms
from vlmill.schemas.commands import InputError


@dataclass(frozen=True, kw_only=True)
class Detector:
    """A network in evaluation mode on its device, and what identifies it."""

    model: FasterRCNN
    fingerprint: str
    weights: str  # the file's name, or "random weights, seed S"
    device: torch.device


def open_detector(
    config: DetectorConfig, weights: str | Path | None, *, seed: int = 0, device: str = "cpu"
) -> Detector:
    """Builds a detector with a file's weights, or with random ones.

    Raises InputError for a file that cannot be read or does not fit, and for a device that is not
    there.
    """
    target = usable_device(device)
    model = FasterRCNN(config)
    if weights is None:
        randomise(model, seed)
        source = f"random weights, seed {seed}"
    else:
        load_weights(model, Path(weights))
        source = Path(weights).name
    model.requires_grad_(False).eval()
    fingerprint = fingerprint_of(model)
    fold_norms(model)
    fuse_stages(model)
    model = model.to(target)
    # Channels last with folded norms: 3.5 times less CPU time for the tiny network, 1.6 for the
    # backbone of R-101.
    model = model.to(memory_format=torch.channels_last)
    return Detector(model=model, fingerprint=fingerprint, weights=source, device=target)


def usable_device(name: str) -> torch.device:
    """The device called ``name``, once something has been computed there."""
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).add_(1)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(
            f"--device {name}: {reason}; give cpu, or a device that is there"
        ) from None
    return device


def load_weights(model: FasterRCNN, path: Path) -> None:
    """Loads a safetensors or torch file of the published layout into ``model``."""
    try:
        model.load_published(read_state(path))
    except ValueError as error:
        raise InputError(
            f"--weights {path}: {error}; give the --arch that these weights were trained with"
        ) from None


def read_state(path: Path) -> Mapping[str, Tensor]:
    """The tensors of a file by name; nothing but tensors and plain containers is unpickled."""
    if not path.is_file():
        raise InputError(f"--weights {path}: no such file; give a .safetensors, .pth or .bin file")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, UnpicklingError, SafetensorError) as error:
        reason = str(error).strip().splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"--weights {path} cannot be read ({reason}); give another file") from None
    state = content.get("model", content) if isinstance(content, dict) else None
    if not isinstance(state, dict) or not all(isinstance(v, Tensor) for v in state.values()):
        raise InputError(f"--weights {path} holds no state dict; give the detector's checkpoint")
    return state


def fingerprint_of(model: FasterRCNN) -> str:
    """32 hexadecimal digits over the conventions and every number of the weights."""
    digest = hashlib.sha256()
    digest.update(json.dumps(dataclasses.asdict(model.config), sort_keys=True).encode())
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:32]
