"""Detectron2 itself as the network: the only file that knows it.

It is no dependency of vlmill and not in the package index (docs/install.md). Proposals, features,
logits and regressions are computed by its own modules from its own configuration; preprocessing,
selection and rows are those of every other detector.
"""

import dataclasses
import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from vlmill.extract.config import Selection
from vlmill.extract.detect.checkpoint import read_checkpoint
from vlmill.extract.detect.config_file import GIVE, ConfigFile, read_config_file
from vlmill.extract.detect.detector import Detector, fingerprint_of, usable_device
from vlmill.extract.detect.precision import computing
from vlmill.extract.pictures.decode import Pixels
from vlmill.models.detector.config import DetectorConfig
from vlmill.models.detector.configurations import config_of, flat
from vlmill.models.detector.faster_rcnn import Detections, FasterRCNN, whole_boxes
from vlmill.models.detector.keys import WrongKey
from vlmill.models.detector.published import ANCHORS
from vlmill.models.detector.resnet import widened
from vlmill.schemas.errors import InputError

INSTALL = (
    "pip install 'setuptools<81' wheel ninja && FORCE_CUDA=0 pip install --no-build-isolation "
    "--no-deps 'git+https://github.com/facebookresearch/detectron2@"
    "02b5c4e295e990042a714712c21dc79b731e8833' && pip install omegaconf 'hydra-core>=1.1' fvcore "
    "iopath pycocotools yacs tabulate cloudpickle termcolor black"
)
HEADS = "Res5ROIHeads"


class Detectron2Network(nn.Module):
    """A Detectron2 model behind the calls that extraction makes of a detector."""

    model: Any

    def __init__(self, model: nn.Module, config: DetectorConfig, cfg: Any) -> None:
        super().__init__()
        self.model, self.config, self.cfg = model, config, cfg

    def forward(
        self,
        pictures: Float[Tensor, "N 3 H W"],
        limits: Float[Tensor, "N 4"],
        min_sides: Float[Tensor, " N"],
        *,
        given_boxes: tuple[Float[Tensor, "N P 4"], Bool[Tensor, "N P"]] | None = None,
        whole: bool = False,
        chunk: int = 50,
    ) -> Detections:
        """Detects as :class:`FasterRCNN` does."""
        features = self.feature_map(pictures)
        regions = (
            self.proposals(features, limits, min_sides) if given_boxes is None else given_boxes
        )
        detections = self.describe(features, *regions, chunk)
        if not whole:
            return detections
        vectors = self.region_means(features, whole_boxes(limits), chunk)[:, 0]
        return dataclasses.replace(detections, whole=vectors)

    def feature_map(self, pictures: Float[Tensor, "N 3 H W"]) -> Float[Tensor, "N C G V"]:
        """Computes the map that proposals and regions share."""
        features: Tensor = self.model.backbone(pictures)[self.level]
        return features

    @property
    def level(self) -> str:
        """Tells Detectron2's name of the map that proposals and regions share."""
        (name,) = self.model.roi_heads.in_features
        assert isinstance(name, str)
        return name

    def proposals(
        self,
        features: Float[Tensor, "N C G V"],
        limits: Float[Tensor, "N 4"],
        min_sides: Float[Tensor, " N"],
    ) -> tuple[Float[Tensor, "N P 4"], Bool[Tensor, "N P"]]:
        """Proposals, best first, and which of their places are taken.

        ``min_sides`` play no part: Detectron2 has its own of its configuration.
        """
        sizes = [(int(height), int(width)) for width, height, *_ in limits.tolist()]
        # Of the images its proposal generator reads the sizes alone.
        images = importlib.import_module("detectron2.structures").ImageList(features, sizes)
        instances, _ = self.model.proposal_generator(images, {self.level: features}, None)
        boxes = [of_picture.proposal_boxes.tensor for of_picture in instances]
        flags = [torch.ones_like(of_one[:, 0], dtype=torch.bool) for of_one in boxes]
        return pad_sequence(boxes, batch_first=True), pad_sequence(flags, batch_first=True)

    def describe(
        self,
        features: Float[Tensor, "N C G V"],
        boxes: Float[Tensor, "N P 4"],
        taken: Bool[Tensor, "N P"],
        chunk: int = 50,
    ) -> Detections:
        """Features, classes and regressions of boxes, ``chunk`` at a time to bound memory."""
        means = self.region_means(features, boxes, chunk)
        logits, deltas = self.model.roi_heads.box_predictor(means.flatten(0, 1))
        return Detections(
            boxes=boxes,
            taken=taken,
            features=means,
            class_probs=widened(logits).softmax(dim=1).view(*taken.shape, -1),
            box_deltas=widened(deltas).view(*taken.shape, -1),
        )

    def region_means(
        self, features: Float[Tensor, "N C G V"], boxes: Float[Tensor, "N P 4"], chunk: int
    ) -> Float[Tensor, "N P D"]:
        """Returns the mean of res5 over each region, ``chunk`` at a time to bound memory."""
        heads, structures = self.model.roi_heads, importlib.import_module("detectron2.structures")
        means = [boxes.new_zeros((0, self.config.feature_size))]
        for number, of_one in enumerate(boxes):
            for part in torch.split(of_one, chunk):
                own_map = features[number : number + 1]
                pooled = heads.pooler([own_map], [structures.Boxes(part)])
                means.append(widened(heads.res5(pooled)).mean(dim=(2, 3)))
        return torch.cat(means).view(*boxes.shape[:2], self.config.feature_size)


def own_rule(detector: Detector) -> Selection:
    """Which regions the configuration itself keeps, in our terms."""
    cfg = cast(Detectron2Network, detector.model).cfg
    most = cfg.TEST.DETECTIONS_PER_IMAGE
    threshold = min(max(cfg.MODEL.ROI_HEADS.SCORE_THRESH_TEST, 0.0), 1.0)
    return Selection(threshold=threshold, min_boxes=0, max_boxes=most if most > 0 else 100_000)


def infer(
    detector: Detector, pixels: Pixels, sides: tuple[int, int]
) -> tuple[Float[Tensor, "N 4"], Int64[Tensor, " N"]]:
    """Boxes and classes by Detectron2 alone, from blue-green-red pixels [H0, W0, 3] on.

    It resizes, detects and selects as its own predictor does; ``sides`` are the shortest and the
    longest of its input.
    """
    network, (short, long) = cast(Detectron2Network, detector.model), sides
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
    cfg = node_of(config, file)
    cfg.MODEL.DEVICE = str(target)
    try:
        spec = config_of("detectron2", dict(flat(cfg)))
    except WrongKey as error:
        raise file.complaint(error, GIVE) from None
    model = library("modeling").build_model(cfg)
    load_weights(model, read_checkpoint(weights), weights)
    network = Detectron2Network(model.eval().requires_grad_(False), spec, cfg)
    version = importlib.import_module("detectron2").__version__
    return Detector(
        # It has what extraction calls; training and parity use our own network alone.
        model=cast(FasterRCNN, network),
        fingerprint=fingerprint_of(cast(FasterRCNN, network)),
        weights=f"{weights.name} (Detectron2 {version}, {config_file.name})",
        device=target,
        config_record=file.record(),
    )


def library(part: str) -> Any:
    """A part of Detectron2. Raises InputError with the install line where it is missing."""
    try:
        return importlib.import_module(f"detectron2.{part}")
    except ImportError as error:
        raise InputError(
            f"--backend detectron2: Detectron2 cannot be imported ({error}); install it with: "
            f"{INSTALL}"
        ) from None


def node_of(config: Any, file: ConfigFile) -> Any:
    """Detectron2's own node of a file, which was read as plain data before."""
    cfg = config.get_cfg()
    try:
        cfg.merge_from_file(str(file.path), allow_unsafe=False)
    except Exception as error:  # yacs's own, assertions among them
        reason = str(error).strip().splitlines()[0] if str(error) else type(error).__name__
        raise InputError(
            f"--config {file.path} is no configuration of Detectron2 ({reason}); give one of its "
            "model zoo's, or one made from them"
        ) from None
    if cfg.MODEL.ROI_HEADS.NAME != HEADS or cfg.MODEL.META_ARCHITECTURE != "GeneralizedRCNN":
        raise InputError(
            f"--config {file.path}: {cfg.MODEL.META_ARCHITECTURE} with {cfg.MODEL.ROI_HEADS.NAME}; "
            f"regions have features in C4 models: give one with GeneralizedRCNN and {HEADS}"
        )
    return cfg


def load_weights(model: nn.Module, state: Mapping[str, Tensor], path: Path) -> None:
    """Loads a state dict; anchors that it carries must be those of the configuration."""
    expected = model.state_dict()
    complaints = [f"missing {key}" for key in expected if key not in state]
    for key, value in state.items():
        if key == ANCHORS:
            anchors = model.get_buffer(key)
            if value.shape != anchors.shape or not torch.allclose(value.float(), anchors.cpu()):
                complaints.append(f"{key} has other anchors than the configuration")
        elif key not in expected and not key.endswith(("pixel_mean", "pixel_std")):
            complaints.append(f"unexpected {key}")
        elif key in expected and expected[key].shape != value.shape:
            complaints.append(f"{key} is {tuple(value.shape)}, want {tuple(expected[key].shape)}")
    if complaints:
        raise InputError(
            f"--weights {path}: they do not fit --config: {'; '.join(complaints)}; give the "
            "configuration that they were trained with"
        )
    model.load_state_dict({key: value for key, value in state.items() if key in expected})
