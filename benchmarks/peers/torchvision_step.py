"""A training step of a Faster R-CNN of torchvision's parts, in the sizes of a C4 detector.

It is there where Detectron2 is not: the same layers and numbers of examples, but its own rules of
proposals and its own draws, so that losses are not to be compared.
"""

from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from peers.detectron2_step import Step, Work, computing, is_there, moved, our_step, their_step
from torch import Tensor, nn
from torchvision.models import resnet50, resnet101
from torchvision.models.detection import FasterRCNN
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor
from torchvision.ops import FrozenBatchNorm2d, MultiScaleRoIAlign

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
