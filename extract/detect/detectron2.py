"""Runs Detectron2 itself as the detector, with its own configuration, weights and predictor.

It is not a dependency of vlmill and not in the package index (docs/install.md).
"""

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from vlmill.extract.config import Selection
from vlmill.extract.detect.checkpoint import read_checkpoint
from vlmill.extract.detect.config_file import GIVE, ConfigFile, read_config_file
from vlmill.extract.detect.detector import Detector, compute_fingerprint, usable_device
from vlmill.extract.detect.detectron2_network import Detectron2Network
from vlmill.extract.detect.precision import computing
from vlmill.extract.images.decode import Pixels
from vlmill.models.detector.config import Family
from vlmill.models.detector.configurations import flat, make_config
from vlmill.models.detector.fit import misfits
from vlmill.models.detector.keys import WrongKey
from vlmill.models.detector.published_names import CELL_ANCHORS
from vlmill.schemas.errors import InputError

INSTALL = (
    "pip install 'setuptools<81' wheel ninja && FORCE_CUDA=0 pip install --no-build-isolation "
    "--no-deps 'git+https://github.com/facebookresearch/detectron2@"
    "02b5c4e295e990042a714712c21dc79b731e8833' && pip install omegaconf 'hydra-core>=1.1' fvcore "
    "iopath pycocotools yacs tabulate cloudpickle termcolor black"
)
HEADS: dict[str, Family] = {"Res5ROIHeads": "detectron2", "StandardROIHeads": "detectron2-fpn"}


def get_network(detector: Detector) -> Detectron2Network:
    """Returns the network of a detector that :func:`open_detectron2` has opened."""
    assert isinstance(detector.model, Detectron2Network)
    return detector.model


def read_selection(detector: Detector) -> Selection:
    """Returns the selection rule of the configuration itself."""
    cfg = get_network(detector).cfg
    max_boxes = cfg.TEST.DETECTIONS_PER_IMAGE
    threshold = min(max(cfg.MODEL.ROI_HEADS.SCORE_THRESH_TEST, 0.0), 1.0)
    return Selection(
        threshold=threshold, min_boxes=0, max_boxes=max_boxes if max_boxes > 0 else 100_000
    )


def infer(
    detector: Detector, pixels: Pixels, sides: tuple[int, int]
) -> tuple[Float[Tensor, "N 4"], Int64[Tensor, " N"]]:
    """Boxes and classes by Detectron2 alone, from blue-green-red pixels [H0, W0, 3] on.

    It resizes, detects and selects as its own predictor does; ``sides`` are the shortest and the
    longest of its input.
    """
    network, (short, long) = get_network(detector), sides
    image = pixels if network.config.channel_order == "bgr" else pixels[:, :, ::-1]
    resize = library("data.transforms").ResizeShortestEdge([short, short], long)
    resized = resize.get_transform(image).apply_image(image).transpose(2, 0, 1)
    sample = {
        "image": torch.from_numpy(np.ascontiguousarray(resized)).float(),
        "height": pixels.shape[0],
        "width": pixels.shape[1],
    }
    with computing("exact", detector.device):
        (output,) = network.model([sample])
    instances = output["instances"].to("cpu")
    return instances.pred_boxes.tensor, instances.pred_classes


def open_detectron2(config_file: Path, weights: Path, *, device: str = "cpu") -> Detector:
    """Builds the model of a Detectron2 configuration with a file's weights.

    Raises InputError with the install line where Detectron2 is missing, and for a configuration or
    weights that do not fit.
    """
    target = usable_device(device)
    config = library("config")
    file = read_config_file(config_file)
    cfg = load_cfg_node(config, file)
    cfg.MODEL.DEVICE = str(target)
    try:
        spec = make_config(HEADS[cfg.MODEL.ROI_HEADS.NAME], dict(flat(cfg)))
    except WrongKey as error:
        raise file.complaint(error, GIVE) from None
    model = library("modeling").build_model(cfg)
    load_weights(model, read_checkpoint(weights), weights)
    network = Detectron2Network(model.eval().requires_grad_(False), spec, cfg)
    version = importlib.import_module("detectron2").__version__
    return Detector(
        model=network,
        fingerprint=compute_fingerprint(network),
        weights=f"{weights.name} (Detectron2 {version}, {config_file.name})",
        device=target,
        config_record=file.record(),
    )


def library(part: str) -> Any:
    """Returns a module of Detectron2. Raises InputError with the install command if it is
    missing.
    """
    try:
        return importlib.import_module(f"detectron2.{part}")
    except ImportError as error:
        raise InputError(
            f"--backend detectron2: Detectron2 cannot be imported ({error}); install it with: "
            f"{INSTALL}"
        ) from None


def load_cfg_node(config: Any, file: ConfigFile) -> Any:
    """Detectron2's own node of a file, which was read as plain data before."""
    cfg = config.get_cfg()
    try:
        cfg.merge_from_file(str(file.path), allow_unsafe=False)
    except Exception as error:  # yacs's own, assertions among them
        reason = str(error).strip().splitlines()[0] if str(error) else type(error).__name__
        raise InputError(
            f"--config {file.path} is not a Detectron2 configuration ({reason}); give one of its "
            "model zoo's, or one made from them"
        ) from None
    model = cfg.MODEL
    if model.ROI_HEADS.NAME not in HEADS or model.META_ARCHITECTURE != "GeneralizedRCNN":
        raise InputError(
            f"--config {file.path}: {model.META_ARCHITECTURE} with {model.ROI_HEADS.NAME}; give "
            f"one with GeneralizedRCNN and {' or '.join(HEADS)}"
        )
    return cfg


def load_weights(model: nn.Module, state: Mapping[str, Tensor], path: Path) -> None:
    """Loads a state dict; anchors in it must equal those of the configuration."""
    expected = model.state_dict()
    # Files may have buffers that the model creates itself.
    tensors = {
        key: value
        for key, value in state.items()
        if key in expected
        or not (key.startswith(CELL_ANCHORS) or key.endswith(("pixel_mean", "pixel_std")))
    }
    mismatch = misfits(expected, tensors)
    buffers = dict(model.named_buffers())
    for name in filter(lambda key: key.startswith(CELL_ANCHORS), state):
        anchors, file_anchors = buffers.get(name), state[name].float()
        same = anchors is not None and file_anchors.shape == anchors.shape
        if anchors is None or not same or not torch.allclose(file_anchors, anchors.cpu()):
            other = f"{name} has other anchors than the configuration"
            mismatch = f"{mismatch}; {other}" if mismatch else other
    if mismatch:
        raise InputError(
            f"--weights {path}: they do not fit --config: {mismatch}; give the configuration that "
            "they "
            "were trained with"
        )
    model.load_state_dict({key: value for key, value in state.items() if key in expected})
