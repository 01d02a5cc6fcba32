"""Detectron2 itself as the network: the only file that knows it.

It is no dependency of vlmill and not in the package index (docs/install.md). Proposals, features,
logits and regressions are computed by its own modules from its own configuration; preprocessing,
selection and rows are those of every other detector.
"""

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from vlmill.extract.detect.checkpoint import read_checkpoint
from vlmill.extract.detect.detector import Detector, fingerprint_of, usable_device
from vlmill.models.detector.config import DetectorConfig, detectron2
from vlmill.models.detector.faster_rcnn import Detections, FasterRCNN
from vlmill.models.detector.published import ANCHORS
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

    def __init__(self, model: nn.Module, config: DetectorConfig) -> None:
        super().__init__()
        self.model, self.config = model, config

    def forward(
        self,
        pictures: Float[Tensor, "N 3 H W"],
        limits: Float[Tensor, "N 4"],
        min_sides: Float[Tensor, " N"],
        *,
        given: tuple[Float[Tensor, "N P 4"], Bool[Tensor, "N P"]] | None = None,
        whole: bool = False,
        chunk: int = 50,
    ) -> Detections:
        """Detects as :class:`FasterRCNN` does; ``min_sides`` play no part here."""
        features = self.model.backbone(pictures)[self.level]
        boxes, taken = self.proposals(features, pictures) if given is None else given
        means = self.region_means(features, boxes, chunk)
        logits, deltas = self.model.roi_heads.box_predictor(means.flatten(0, 1))
        frames = torch.cat((torch.zeros_like(limits[:, :2]), limits[:, 2:]), dim=1)[:, None]
        return Detections(
            boxes=boxes,
            taken=taken,
            features=means,
            class_probs=logits.softmax(dim=1).view(*taken.shape, -1),
            box_deltas=deltas.view(*taken.shape, -1),
            whole=self.region_means(features, frames, chunk)[:, 0] if whole else None,
        )

    @property
    def level(self) -> str:
        """Detectron2's name of the map that proposals and regions share."""
        (name,) = self.model.roi_heads.in_features
        assert isinstance(name, str)
        return name

    def proposals(
        self, features: Float[Tensor, "N C G V"], pictures: Float[Tensor, "N 3 H W"]
    ) -> tuple[Float[Tensor, "N P 4"], Bool[Tensor, "N P"]]:
        """Proposals, best first, and which of their places are taken."""
        images = importlib.import_module("detectron2.structures").ImageList(
            pictures, [tuple(pictures.shape[2:])] * len(pictures)
        )
        instances, _ = self.model.proposal_generator(images, {self.level: features}, None)
        boxes = [of_picture.proposal_boxes.tensor for of_picture in instances]
        flags = [torch.ones_like(own[:, 0], dtype=torch.bool) for own in boxes]
        return pad_sequence(boxes, batch_first=True), pad_sequence(flags, batch_first=True)

    def region_means(
        self, features: Float[Tensor, "N C G V"], boxes: Float[Tensor, "N P 4"], chunk: int
    ) -> Float[Tensor, "N P D"]:
        """The mean of res5 over each region, ``chunk`` at a time to bound memory."""
        heads, structures = self.model.roi_heads, importlib.import_module("detectron2.structures")
        means = [features.new_zeros((0, self.config.feature_size))]
        for number, own in enumerate(boxes):
            for part in torch.split(own, chunk):
                own_map = features[number : number + 1]
                pooled = heads.pooler([own_map], [structures.Boxes(part)])
                means.append(heads.res5(pooled).mean(dim=(2, 3)))
        return torch.cat(means).view(*boxes.shape[:2], self.config.feature_size)


def open_detectron2(config_file: Path, weights: Path, *, device: str = "cpu") -> Detector:
    """Builds the model of a Detectron2 configuration with a file's weights.

    Raises InputError with the install line where Detectron2 is missing, and for a configuration or
    weights that do not fit.
    """
    target = usable_device(device)
    cfg = read_config(config_file)
    cfg.MODEL.DEVICE = str(target)
    model = importlib.import_module("detectron2.modeling").build_model(cfg)
    load_weights(model, read_checkpoint(weights), weights)
    network = Detectron2Network(model.eval().requires_grad_(False), config_of(cfg))
    version = importlib.import_module("detectron2").__version__
    return Detector(
        # It has what extraction calls; training and parity use our own network alone.
        model=cast(FasterRCNN, network),
        fingerprint=fingerprint_of(cast(FasterRCNN, network)),
        weights=f"{weights.name} (Detectron2 {version}, {config_file.name})",
        device=target,
    )


def read_config(path: Path) -> Any:
    """Detectron2's node of a YAML file, which is read without executing anything of it."""
    try:
        library = importlib.import_module("detectron2.config")
    except ImportError as error:
        raise InputError(
            f"--backend detectron2: Detectron2 cannot be imported ({error}); install it with: "
            f"{INSTALL}"
        ) from None
    if path.suffix not in (".yaml", ".yml") or not path.is_file():
        raise InputError(f"--d2-config {path}: give the .yaml file of a Detectron2 model")
    cfg = library.get_cfg()
    try:
        cfg.merge_from_file(str(path), allow_unsafe=False)
    except Exception as error:  # yaml's and yacs's own, assertions among them
        reason = str(error).strip().splitlines()[0] if str(error) else type(error).__name__
        raise InputError(
            f"--d2-config {path} is no configuration of Detectron2 ({reason}); give one of its "
            "model zoo's, or one made from them"
        ) from None
    if cfg.MODEL.ROI_HEADS.NAME != HEADS or cfg.MODEL.META_ARCHITECTURE != "GeneralizedRCNN":
        raise InputError(
            f"--d2-config {path}: {cfg.MODEL.META_ARCHITECTURE} with {cfg.MODEL.ROI_HEADS.NAME}; "
            f"regions have features in C4 models: give one with GeneralizedRCNN and {HEADS}"
        )
    return cfg


def config_of(cfg: Any) -> DetectorConfig:
    """What extraction must know of the model, from its configuration."""
    net, heads, rpn = cfg.MODEL.RESNETS, cfg.MODEL.ROI_HEADS, cfg.MODEL.RPN
    box, generator = cfg.MODEL.ROI_BOX_HEAD, cfg.MODEL.ANCHOR_GENERATOR
    return detectron2(
        depth=net.DEPTH,
        stem_channels=net.STEM_OUT_CHANNELS,
        res2_channels=net.RES2_OUT_CHANNELS,
        res2_width=net.NUM_GROUPS * net.WIDTH_PER_GROUP,
        stride_in_1x1=net.STRIDE_IN_1X1,
        num_classes=heads.NUM_CLASSES,
        short_side=cfg.INPUT.MIN_SIZE_TEST,
        long_side=cfg.INPUT.MAX_SIZE_TEST,
        channel_order="bgr" if cfg.INPUT.FORMAT == "BGR" else "rgb",
        pixel_mean=tuple(cfg.MODEL.PIXEL_MEAN),
        pixel_std=tuple(cfg.MODEL.PIXEL_STD),
        anchor_scales=tuple(size / 16 for size in generator.SIZES[0]),
        anchor_ratios=tuple(generator.ASPECT_RATIOS[0]),
        pre_nms_top=rpn.PRE_NMS_TOPK_TEST,
        post_nms_top=rpn.POST_NMS_TOPK_TEST,
        rpn_nms_threshold=rpn.NMS_THRESH,
        pool_size=box.POOLER_RESOLUTION,
        sampling_ratio=box.POOLER_SAMPLING_RATIO,
        box_weights=tuple(box.BBOX_REG_WEIGHTS),
        class_specific_boxes=not box.CLS_AGNOSTIC_BBOX_REG,
        class_nms_thresholds=(heads.NMS_THRESH_TEST,),
    )


def load_weights(model: nn.Module, state: Mapping[str, Tensor], path: Path) -> None:
    """Loads a state dict; anchors that it carries must be those of the configuration."""
    own = model.state_dict()
    complaints = [f"missing {key}" for key in own if key not in state]
    for key, value in state.items():
        if key == ANCHORS:
            anchors = model.get_buffer(key)
            if value.shape != anchors.shape or not torch.allclose(value.float(), anchors.cpu()):
                complaints.append(f"{key} has other anchors than the configuration")
        elif key not in own and not key.endswith(("pixel_mean", "pixel_std")):
            complaints.append(f"unexpected {key}")
        elif key in own and own[key].shape != value.shape:
            complaints.append(f"{key} is {tuple(value.shape)}, want {tuple(own[key].shape)}")
    if complaints:
        raise InputError(
            f"--weights {path}: they do not fit --d2-config: {'; '.join(complaints)}; give the "
            "configuration that they were trained with"
        )
    model.load_state_dict({key: value for key, value in state.items() if key in own})
