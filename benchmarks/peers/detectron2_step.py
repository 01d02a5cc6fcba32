"""A training step of our detector and Detectron2's, on the same weights and images.

N images, M true boxes. Detectron2 is no dependency: where it cannot be imported, our step alone
is there (docs/install.md says how to install it).
"""

import importlib
import importlib.util
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.models import resnet50, resnet101
from torchvision.models.detection import FasterRCNN
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor
from torchvision.ops import FrozenBatchNorm2d, MultiScaleRoIAlign

from vlmill.extract.images.resize import normalise_pixels
from vlmill.models.detector.config import DetectorConfig
from vlmill.train.detector.batches import drawing, padded_batch
from vlmill.train.detector.learning import make_optimizer, rate_factor
from vlmill.train.detector.settings import TrainingSettings, find_recipe
from vlmill.train.detector.start import new_model
from vlmill.train.detector.step import Batch, DetectorStep, Truth

Step = Callable[[bool], dict[str, float]]  # whether the weights move, too; the losses
# What Detectron2 calls our losses.
LOSSES = {
    "rpn_class": "loss_rpn_cls",
    "rpn_box": "loss_rpn_loc",
    "class": "loss_cls",
    "box": "loss_box_reg",
}
BOXES_OF_IMAGE = 7  # COCO's mean


@dataclass(frozen=True, kw_only=True)
class Work:
    """Says what a step computes: images of noise, all of one size, with boxes anywhere."""

    depth: int
    images: int
    height: int
    width: int
    regions: int  # sampled of each image
    seed: int = 0
    device: str = "cpu"
    narrow: bool = False  # an eighth of the channels: for tests
    precision: str = "float32"  # bfloat16: of the forward pass alone

    def settings(self) -> TrainingSettings:
        """Returns Detectron2's recipe for COCO, with as many regions."""
        recipe = find_recipe("coco-r101-c4")
        detector = replace(recipe.detector, depth=self.depth)
        if self.narrow:
            detector = replace(
                detector, stem_channels=16, res2_channels=32, res2_width=8, rpn_channels=128
            )
        matching = replace(recipe.roi.matching, batch=self.regions)
        return replace(recipe, detector=detector, roi=replace(recipe.roi, matching=matching))

    def pixels(self) -> list[Tensor]:
        """Returns the images, uint8 blue-green-red [H, W, 3]."""
        generator = torch.Generator().manual_seed(self.seed)
        shape = (self.height, self.width, 3)
        return [
            torch.randint(256, shape, generator=generator, dtype=torch.uint8)
            for _ in range(self.images)
        ]

    def truths(self, config: DetectorConfig) -> list[Truth]:
        """Returns what is in the images."""
        generator = torch.Generator().manual_seed(self.seed + 1)
        limits = torch.tensor([self.width, self.height] * 2, dtype=torch.float32)
        instances = []
        for _ in range(self.images):
            ends = torch.rand(2, BOXES_OF_IMAGE, 2, generator=generator)
            low, high = ends.amin(0) * 0.8, ends.amax(0)
            boxes = torch.cat((low, torch.maximum(high, low + 0.1)), dim=1) * limits
            classes = torch.randint(config.num_classes, (BOXES_OF_IMAGE,), generator=generator)
            instances.append(
                Truth(boxes=boxes, classes=classes, attributes=torch.full((BOXES_OF_IMAGE, 0), -1))
            )
        return instances


def batch_of(work: Work, config: DetectorConfig) -> Batch:
    """Returns the work as our step takes it."""
    sizes = (work.height, work.width)
    images = [
        normalise_pixels(pixels.numpy(), 1.0, sizes, config).permute(2, 0, 1)
        for pixels in work.pixels()
    ]
    names = [str(number) for number in range(work.images)]
    scales = [1.0] * work.images
    return padded_batch(names, images, work.truths(config), scales, config)


def computing(work: Work) -> Any:
    """Returns the context of the forward pass."""
    wanted = work.precision != "float32"
    return torch.autocast(work.device, dtype=torch.bfloat16, enabled=wanted)


def our_step(work: Work) -> tuple[nn.Module, Step]:
    """Returns our network and its step."""
    settings = work.settings()
    device = torch.device(work.device)
    model = new_model(settings).to(device)
    step, optimizer = DetectorStep(model, settings), make_optimizer(model, settings.solver)
    for group in optimizer.param_groups:
        group["lr"] = group["lr"] * rate_factor(0, settings.steps, settings.solver)
    batch, draw = batch_of(work, settings.detector), drawing(work.seed, 1, 0)

    def take(moving: bool) -> dict[str, float]:
        with computing(work):
            losses = step.losses(batch.to(device), draw)
        return moved(losses, optimizer if moving else None)

    return model, take


def moved(losses: dict[str, Tensor], optimizer: torch.optim.Optimizer | None) -> dict[str, float]:
    """Computes gradients, and moves the weights where there is an optimiser; the losses."""
    torch.stack(list(losses.values())).sum().backward()  # type: ignore[no-untyped-call]
    if optimizer is not None:
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return {name: float(loss.detach()) for name, loss in losses.items()}


def is_there() -> bool:
    """Says whether Detectron2 can be imported."""
    return importlib.util.find_spec("detectron2") is not None


def their_step(work: Work) -> tuple[nn.Module, Step]:
    """Returns Detectron2's network with our weights, and its step. Raises ImportError without it.

    Permutations are drawn by our rule, so that both sides sample alike.
    """
    structures = importlib.import_module("detectron2.structures")
    settings = work.settings()
    cfg = their_configuration(settings, work.device)
    model = importlib.import_module("detectron2.modeling").build_model(cfg).train()
    ours = new_model(settings).state_dict()
    model.load_state_dict({name: ours[name] for name in model.state_dict() if name in ours})
    optimizer = importlib.import_module("detectron2.solver").build_optimizer(cfg, model)
    for group in optimizer.param_groups:
        group["lr"] = settings.solver.lr * settings.solver.warmup_from
    inputs = []
    for pixels, truth in zip(work.pixels(), work.truths(settings.detector), strict=True):
        instances = structures.Instances((work.height, work.width))
        instances.gt_boxes = structures.Boxes(truth.boxes)
        instances.gt_classes = truth.classes
        inputs.append({"image": pixels.permute(2, 0, 1), "instances": instances})
    draw = drawing(work.seed, 1, 0)

    def take(moving: bool) -> dict[str, float]:
        with computing(work), drawn_by(draw):
            theirs = model(inputs)
        losses = {name: theirs[loss] for name, loss in LOSSES.items()}
        return moved(losses, optimizer if moving else None)

    return model, take


@contextmanager
def drawn_by(draw: Callable[[int], Tensor]) -> Iterator[None]:
    """Has ``torch.randperm`` return our permutations."""
    real = torch.randperm

    def permutation(count: int, *, device: Any = None, generator: Any = None) -> Tensor:
        if generator is not None:  # it is the rule itself that asks
            return real(count, generator=generator)
        return draw(count).to(device or "cpu")

    torch.randperm = permutation  # type: ignore[assignment]
    try:
        # Detectron2's own storage of what it counts in a step.
        events = importlib.import_module("detectron2.utils.events")
        with events.EventStorage():
            yield
    finally:
        torch.randperm = real


def their_configuration(settings: TrainingSettings, device: str) -> Any:
    """Returns Detectron2's configuration of a recipe that is made after one of its own."""
    detector, rpn, roi, solver = settings.detector, settings.rpn, settings.roi, settings.solver
    cfg = importlib.import_module("detectron2.config").get_cfg()
    sizes = [scale * detector.stride for scale in detector.anchor_scales]
    stage = {"RPN": rpn.matching, "ROI_HEADS": roi.matching}
    keys: dict[str, Any] = {
        "MODEL.DEVICE": device,
        "MODEL.META_ARCHITECTURE": "GeneralizedRCNN",
        "MODEL.PIXEL_MEAN": list(detector.pixel_mean),
        "MODEL.PIXEL_STD": list(detector.pixel_std),
        "MODEL.BACKBONE.FREEZE_AT": detector.frozen_stages,
        "MODEL.RESNETS.DEPTH": detector.depth,
        "MODEL.RESNETS.STEM_OUT_CHANNELS": detector.stem_channels,
        "MODEL.RESNETS.RES2_OUT_CHANNELS": detector.res2_channels,
        "MODEL.RESNETS.WIDTH_PER_GROUP": detector.res2_width,
        "MODEL.RESNETS.STRIDE_IN_1X1": detector.stride_in_1x1,
        "MODEL.ANCHOR_GENERATOR.SIZES": [sizes],
        "MODEL.ANCHOR_GENERATOR.ASPECT_RATIOS": [list(detector.anchor_ratios)],
        "MODEL.ANCHOR_GENERATOR.OFFSET": detector.anchor_offset,
        "MODEL.RPN.CONV_DIMS": [detector.rpn_channels],
        "MODEL.RPN.PRE_NMS_TOPK_TRAIN": rpn.pre_nms_top,
        "MODEL.RPN.POST_NMS_TOPK_TRAIN": rpn.post_nms_top,
        "MODEL.RPN.NMS_THRESH": detector.rpn_nms_threshold,
        "MODEL.RPN.SMOOTH_L1_BETA": rpn.beta,
        "MODEL.RPN.BOUNDARY_THRESH": -1 if rpn.border is None else rpn.border,
        "MODEL.ROI_HEADS.NAME": "Res5ROIHeads",
        "MODEL.ROI_HEADS.NUM_CLASSES": detector.num_classes,
        "MODEL.ROI_HEADS.PROPOSAL_APPEND_GT": roi.append_truth,
        "MODEL.ROI_BOX_HEAD.POOLER_RESOLUTION": detector.pool_size,
        "MODEL.ROI_BOX_HEAD.POOLER_SAMPLING_RATIO": detector.sampling_ratio,
        "MODEL.ROI_BOX_HEAD.BBOX_REG_WEIGHTS": list(detector.box_weights),
        "MODEL.ROI_BOX_HEAD.SMOOTH_L1_BETA": roi.beta,
        "SOLVER.BASE_LR": solver.lr,
        "SOLVER.MOMENTUM": solver.momentum,
        "SOLVER.WEIGHT_DECAY": solver.weight_decay,
    }
    for name, matching in stage.items():
        keys |= {
            f"MODEL.{name}.IOU_THRESHOLDS": list(matching.thresholds),
            f"MODEL.{name}.IOU_LABELS": list(matching.labels),
            f"MODEL.{name}.BATCH_SIZE_PER_IMAGE": matching.batch,
            f"MODEL.{name}.POSITIVE_FRACTION": matching.positives,
        }
    cfg.merge_from_list([part for pair in keys.items() for part in pair])
    return cfg


NETWORKS = {50: resnet50, 101: resnet101}


class Body(nn.Module):
    """The layers up to res4, as a map by name."""

    out_channels = 1024

    def __init__(self, resnet: Any) -> None:
        super().__init__()
        stem = (resnet.conv1, resnet.bn1, resnet.relu, resnet.maxpool)
        self.frozen = nn.Sequential(*stem, resnet.layer1).requires_grad_(False)
        self.trained = nn.Sequential(resnet.layer2, resnet.layer3)

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        """Returns res4."""
        return OrderedDict({"0": self.trained(self.frozen(images))})


class Head(nn.Module):
    """Res5 and its mean over each region."""

    def __init__(self, layer4: nn.Module) -> None:
        super().__init__()
        self.layer4 = layer4

    def forward(self, regions: Tensor) -> Tensor:
        """Returns the regions' features."""
        means: Tensor = self.layer4(regions).mean(dim=(2, 3))
        return means


def makers(work: Work) -> dict[str, Callable[[], tuple[nn.Module, Step]]]:
    """Returns what makes our side and the peer that is there, to be called in processes of their
    own: Detectron2, or else torchvision.
    """
    ours: dict[str, Callable[[], tuple[nn.Module, Step]]] = {"ours": partial(our_step, work)}
    if is_there():
        return ours | {"detectron2": partial(their_step, work)}
    return ours if work.narrow else ours | {"torchvision": partial(torchvision_step, work)}


def torchvision_step(work: Work) -> tuple[nn.Module, Step]:
    """Returns the network and its step."""
    settings = work.settings()
    detector, rpn, solver = settings.detector, settings.rpn, settings.solver
    resnet = NETWORKS[work.depth](norm_layer=FrozenBatchNorm2d)
    sizes = tuple(int(scale * detector.stride) for scale in detector.anchor_scales)
    model = FasterRCNN(
        Body(resnet),
        min_size=min(work.height, work.width),
        max_size=max(work.height, work.width),
        rpn_anchor_generator=AnchorGenerator((sizes,), (detector.anchor_ratios,)),
        rpn_pre_nms_top_n_train=rpn.pre_nms_top,
        rpn_post_nms_top_n_train=rpn.post_nms_top,
        rpn_batch_size_per_image=rpn.matching.batch,
        box_roi_pool=MultiScaleRoIAlign(["0"], detector.pool_size, detector.sampling_ratio),
        box_head=Head(resnet.layer4),
        box_predictor=FastRCNNPredictor(detector.feature_size, detector.num_classes + 1),
        box_batch_size_per_image=work.regions,
    ).to(work.device)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    rate = solver.lr * solver.warmup_from
    optimizer = torch.optim.SGD(trained, rate, solver.momentum, weight_decay=solver.weight_decay)
    device = torch.device(work.device)
    images = [pixels.permute(2, 0, 1).to(device) / 255 for pixels in work.pixels()]
    targets = [
        {"boxes": truth.boxes.to(device), "labels": truth.classes.to(device) + 1}
        for truth in work.truths(detector)
    ]

    def take(moving: bool) -> dict[str, float]:
        with computing(work):
            losses = model(images, targets)
        return moved(losses, optimizer if moving else None)

    return model.train(), take
