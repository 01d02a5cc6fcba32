"""Runs Detectron2 itself as the detector, with its own configuration, weights and predictor.

It is not a dependency of vlmill and not in the package index (docs/install.md).

`Detectron2Network` has the detector methods that extraction calls. Proposals, features, logits and
regressions are computed by its own modules from its own configuration; preprocessing, selection and
rows are the same as for every other detector.
"""

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from vlmill.extract.config import Selection
from vlmill.extract.detect.checkpoint import read_checkpoint
from vlmill.extract.detect.config_file import GIVE, ConfigFile, read_config_file
from vlmill.extract.detect.detector import Detector, compute_fingerprint, usable_device
from vlmill.extract.detect.predict import computing
from vlmill.extract.images.decode import Pixels
from vlmill.models.detector.backbone import Maps
from vlmill.models.detector.config import DetectorConfig, Family
from vlmill.models.detector.configurations import flatten_sections, make_config
from vlmill.models.detector.faster_rcnn import Detections, DetectorNetwork
from vlmill.models.detector.keys import WrongKey
from vlmill.models.detector.published_names import CELL_ANCHORS, describe_mismatches
from vlmill.models.detector.resnet import widen
from vlmill.models.detector.roi_heads import pooled_of
from vlmill.schemas.errors import InputError


class Detectron2Network(DetectorNetwork):
    """Runs the steps of a detector with a model of Detectron2."""

    model: Any

    def __init__(self, model: nn.Module, config: DetectorConfig, cfg: Any) -> None:
        super().__init__()
        self.model, self.config, self.cfg = model, config, cfg

    def feature_maps(self, images: Float[Tensor, "N 3 H W"]) -> Maps:
        """Computes the maps that proposals and regions share."""
        features = self.model.backbone(images)
        return tuple(features[level] for level in self.levels)

    @property
    def levels(self) -> list[str]:
        """Returns Detectron2's names of the feature maps for proposals."""
        return list(self.model.proposal_generator.in_features)

    def proposals(
        self, maps: Maps, limits: Float[Tensor, "N 4"], min_sides: Float[Tensor, " N"]
    ) -> tuple[Float[Tensor, "N P 4"], Bool[Tensor, "N P"]]:
        """Returns proposals, best first, and which of the slots are used.

        ``min_sides`` is ignored: Detectron2 uses the value of its configuration.
        """
        sizes = [(int(height), int(width)) for width, height, *_ in limits.tolist()]
        # Its proposal generator reads only the sizes of the images.
        images = importlib.import_module("detectron2.structures").ImageList(maps[0], sizes)
        features = dict(zip(self.levels, maps, strict=True))
        instances, _ = self.model.proposal_generator(images, features, None)
        boxes = [instance.proposal_boxes.tensor for instance in instances]
        flags = [torch.ones_like(image_boxes[:, 0], dtype=torch.bool) for image_boxes in boxes]
        return pad_sequence(boxes, batch_first=True), pad_sequence(flags, batch_first=True)

    def describe(
        self,
        maps: Maps,
        boxes: Float[Tensor, "N P 4"],
        box_mask: Bool[Tensor, "N P"],
        chunk: int = 50,
    ) -> Detections:
        """Returns features, classes and regressions of boxes, in chunks to bound memory."""
        features = self.region_features(maps, boxes, box_mask, chunk)
        logits, deltas = self.model.roi_heads.box_predictor(features.flatten(0, 1))
        return Detections(
            boxes=boxes,
            box_mask=box_mask,
            features=features,
            class_probs=widen(logits).softmax(dim=1).view(*box_mask.shape, -1),
            box_deltas=widen(deltas).view(*box_mask.shape, -1),
        )

    def region_features(
        self,
        maps: Maps,
        boxes: Float[Tensor, "N P 4"],
        box_mask: Bool[Tensor, "N P"],
        chunk: int = 50,
    ) -> Float[Tensor, "N P D"]:
        """Returns the features of each region, ``chunk`` at a time to bound memory: the mean of
        res5, or the output of the box head.
        """
        structures = importlib.import_module("detectron2.structures")
        rows = [boxes.new_zeros((0, self.config.feature_size))]
        for number, image_boxes in enumerate(boxes):
            own = [features[number : number + 1] for features in pooled_of(maps, self.config)]
            for part in torch.split(image_boxes, chunk):
                rows.append(self.describe_boxes(own, structures.Boxes(part)))
        return torch.cat(rows).view(*boxes.shape[:2], self.config.feature_size)

    def describe_boxes(self, maps: list[Tensor], boxes: Any) -> Float[Tensor, "R D"]:
        """Returns the features of Detectron2's ``boxes`` on the maps of one image."""
        heads = self.model.roi_heads
        if self.config.feature_layer == "res5":
            return widen(heads.res5(heads.pooler(maps, [boxes]))).mean(dim=(2, 3))
        return widen(heads.box_head(heads.box_pooler(maps, [boxes])))


INSTALL = (
    "clone https://github.com/facebookresearch/detectron2 at commit 02b5c4e2, and run "
    "docker/install_detectron2.sh with its folder (docs/install.md#detectron2)"
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
    """Returns boxes and classes computed only by Detectron2, from BGR pixels [H0, W0, 3].

    It resizes, detects and selects like its own predictor; ``sides`` are the shortest and the
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

    Raises InputError with the install command if Detectron2 is missing, and for a configuration or
    weights that do not fit.
    """
    target = usable_device(device)
    config = library("config")
    file = read_config_file(config_file)
    cfg = load_cfg_node(config, file)
    cfg.MODEL.DEVICE = str(target)
    try:
        spec = make_config(HEADS[cfg.MODEL.ROI_HEADS.NAME], dict(flatten_sections(cfg)))
    except WrongKey as error:
        raise file.make_error(error, GIVE) from None
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
    """Returns Detectron2's own node of a file that was first read as plain data."""
    cfg = config.get_cfg()
    try:
        cfg.merge_from_file(str(file.path), allow_unsafe=False)
    except Exception as error:  # yacs's errors, including assertions
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
    """Loads a state dict; anchors in it must equal the configuration's."""
    expected = model.state_dict()
    # Files may have buffers that the model creates itself.
    tensors = {
        key: value
        for key, value in state.items()
        if key in expected
        or not (key.startswith(CELL_ANCHORS) or key.endswith(("pixel_mean", "pixel_std")))
    }
    mismatch = describe_mismatches(expected, tensors)
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
