"""The region network's start: four layouts, the pixels that weights expect, and what is refused."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.models.vlbert.test_end_to_end import NARROW
from torch import Tensor
from torchvision.models.resnet import Bottleneck, ResNet

from vlmill.models.convert.keymap import CheckpointMismatch
from vlmill.models.detector.config import DetectorConfig, airsplay, detectron2, milvlg_r152
from vlmill.models.detector.faster_rcnn import FasterRCNN
from vlmill.models.detector.published_names import published_name
from vlmill.models.detector.random_weights import randomise
from vlmill.models.vlbert.backbone import (
    CONVENTIONS,
    NAMES,
    load_backbone,
    msra_name,
    recognise_backbone,
    torchvision_name,
)
from vlmill.models.vlbert.config import MEAN_BGR, RegionCnnConfig
from vlmill.models.vlbert.region_cnn import RegionCnn

SIZES = {
    "depth": 50,
    "stem_channels": 8,
    "res2_channels": 16,
    "res2_width": 4,
    "rpn_channels": 16,
    "class_embedding_size": 8,
    "attribute_hidden_size": 8,
    "num_classes": 5,
}
NARROW_50 = {"blocks": (3, 4, 6, 3), "widths": (4, 8, 16, 32), "stem_channels": 8}


def randomised_norms(model: torch.nn.Module) -> None:
    """Statistics that a forgotten or misplaced tensor would show in."""
    for name, tensor in model.state_dict().items():
        norm = "norm." in name or "bn" in name or "downsample.1" in name
        if norm and tensor.dtype.is_floating_point:
            tensor.copy_(torch.rand_like(tensor) * 0.5 + 0.75)


def torchvision_resnet(blocks: tuple[int, int, int, int]) -> ResNet:
    torch.manual_seed(0)
    model = ResNet(Bottleneck, list(blocks)).eval()
    randomised_norms(model)
    return model


def close(ours: Tensor, theirs: Tensor) -> None:
    scale = theirs.abs().max().item()
    assert scale > 1e-3
    torch.testing.assert_close(ours / scale, theirs / scale, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_torchvisions_own_network_gives_the_same_features() -> None:
    theirs = torchvision_resnet((3, 4, 6, 3))
    config = RegionCnnConfig(blocks=(3, 4, 6, 3), stride_in_1x1=False, dilated=False)
    cnn = RegionCnn(config)
    table = load_backbone(cnn, theirs.state_dict(), "torchvision")
    assert not table.missing and set(table.unexpected) == {"fc.weight", "fc.bias"}
    # What VL-BERT feeds is its mean colour outside the image, which torchvision's network shall
    # see too: so the image is padded before its first convolution, which then pads no more.
    pixels = torch.rand(1, 3, 90, 70) * 255
    mean = torch.tensor(MEAN_BGR).view(3, 1, 1)
    around = torch.nn.functional.pad(pixels - mean, (3, 3, 3, 3)) + mean
    norm = [torch.tensor(v).view(3, 1, 1) for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))]
    red_first = (around.flip(1) / 255 - norm[0]) / norm[1]
    first = torch.nn.functional.conv2d(red_first, theirs.conv1.weight, stride=2)
    features = theirs.maxpool(theirs.relu(theirs.bn1(first)))
    features = theirs.layer3(theirs.layer2(theirs.layer1(features)))
    ours = cnn.eval().feature_map(pixels - mean)
    close(ours, features)
    close(cnn.res5(ours), theirs.layer4(features))


@torch.no_grad()
def test_the_released_conventions_leave_weights_as_they_are(tmp_path: Path) -> None:
    theirs = torchvision_resnet((1, 1, 1, 1))
    torch.save(theirs.state_dict(), tmp_path / "resnet.pth")
    cnn = RegionCnn(RegionCnnConfig(blocks=(1, 1, 1, 1)))
    load_backbone(cnn, tmp_path / "resnet.pth")
    state = theirs.state_dict()
    for name, tensor in cnn.state_dict().items():
        assert torch.equal(tensor, state[torchvision_name(name)]), name


@torch.no_grad()
def test_norms_of_scale_and_shift_alone(tmp_path: Path) -> None:
    """MSRA's, as Caffe2 keeps them: arrays in a pickle, the mean 0 and the variance 1."""
    cnn = RegionCnn(NARROW)
    torch.manual_seed(0)
    state = {name: torch.randn_like(t.float()) for name, t in cnn.state_dict().items()}
    blobs = {
        msra_name(name): tensor.numpy()
        for name, tensor in state.items()
        if not name.endswith(("running_mean", "running_var", "num_batches_tracked"))
    }
    assert {"conv1_w", "res_conv1_bn_s", "res2_0_branch1_w", "res5_0_branch2c_bn_b"} <= set(blobs)
    blobs["pred_w"] = torch.ones(2, 2).numpy()
    (tmp_path / "R.pkl").write_bytes(pickle.dumps({"blobs": blobs}))
    table = load_backbone(cnn, tmp_path / "R.pkl")
    assert table.unexpected == ("pred_w",)
    x = torch.randn(2, NARROW.stem_channels, 5, 5)
    scale, shift = state["stem.conv1.norm.weight"], state["stem.conv1.norm.bias"]
    expected = x * scale[:, None, None] + shift[:, None, None]
    torch.testing.assert_close(cnn.stem.conv1.norm.eval()(x), expected, atol=1e-5, rtol=1e-5)
    assert torch.equal(cnn.get_parameter("res5.0.conv3.weight"), state["res5.0.conv3.weight"])


def published(model: FasterRCNN) -> dict[str, Tensor]:
    return {published_name(n, model.config.family): t for n, t in model.state_dict().items()}


def detector(config: DetectorConfig) -> FasterRCNN:
    model = FasterRCNN(config).eval()
    randomise(model, 0)
    randomised_norms(model)
    return model


@pytest.mark.parametrize(
    ("config", "dilated"),
    [
        (airsplay(**SIZES, num_attributes=3, stem_ceil_pool=False), True),
        (detectron2(**SIZES | {"rpn_channels": 64}), False),
        (detectron2(**SIZES | {"rpn_channels": 64}, pixel_mean=(10.0, 200.0, 90.0)), False),
    ],
)
@torch.no_grad()
def test_a_detector_gives_its_own_features(config: DetectorConfig, dilated: bool) -> None:
    theirs = detector(config)
    state = published(theirs)
    if config.pixel_mean[0] == 10.0:  # as old Detectron2 wrote it into the file
        state["pixel_mean"] = torch.tensor(config.pixel_mean).view(3, 1, 1)
    cnn = RegionCnn(RegionCnnConfig(**NARROW_50, dilated=dilated))  # type: ignore[arg-type]
    table = load_backbone(cnn, state)
    assert not [n for n in table.missing if not n.endswith("num_batches_tracked")]
    assert any(name.startswith("proposal_generator") for name in table.unexpected)
    theirs, cnn = theirs.double(), cnn.eval().double()  # what differs is not the sums' order
    pixels = torch.rand(1, 3, 90, 70, dtype=torch.double) * 255
    ours, mean = (torch.tensor(m).double().view(3, 1, 1) for m in (MEAN_BGR, config.pixel_mean))
    inside = torch.nn.functional.pad(pixels - ours, (3, 3, 3, 3)) + ours - mean
    stem = theirs.backbone.stem.conv1
    first = torch.nn.functional.conv2d(inside, stem.weight, stride=2)
    pooled = theirs.backbone.stem(pixels - mean)  # the size that is expected
    features = torch.nn.functional.max_pool2d(stem.norm(first).relu(), 3, stride=2, padding=1)
    assert features.shape == pooled.shape
    for stage in (theirs.backbone.res2, theirs.backbone.res3, theirs.backbone.res4):
        features = stage(features)
    found = cnn.feature_map(pixels - ours)
    close(found, features)
    close(cnn.res5(found), theirs.roi_heads.res5(features))


def test_old_frozen_norms_are_put_right(tmp_path: Path) -> None:
    """Detectron2's files before its norms' version 3 hold the variance with eps in it."""
    cnn = RegionCnn(NARROW)
    state = {n: t for n, t in cnn.state_dict().items() if not n.endswith("num_batches_tracked")}
    holder = torch.nn.Module()
    saved: Any = holder.state_dict()
    saved.update(state)
    saved._metadata = {"res2.0.conv1.norm": {"version": 2}}
    torch.save(saved, tmp_path / "old.pth")
    load_backbone(cnn, tmp_path / "old.pth")
    variances = {n: t for n, t in cnn.state_dict().items() if n.endswith("running_var")}
    for name, tensor in variances.items():
        expected = 1 - 1e-5 if name.startswith("res2.0.conv1.") else 1.0
        torch.testing.assert_close(tensor, torch.full_like(tensor, expected), atol=1e-7, rtol=0)


def narrow_state(**changes: Any) -> dict[str, Tensor]:
    return RegionCnn(RegionCnnConfig(**{**vars(NARROW), **changes})).state_dict()


def named(layout: str, state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {NAMES[layout](name): tensor for name, tensor in state.items()}


@pytest.mark.parametrize("layout", NAMES)
def test_layouts_are_told_by_their_names(layout: str) -> None:
    assert recognise_backbone(named(layout, narrow_state())) == layout


def without(state: dict[str, Tensor], name: str) -> dict[str, Tensor]:
    return {n: tensor for n, tensor in state.items() if n != name}


@pytest.mark.parametrize(
    ("make", "asked", "message"),
    [
        (
            lambda: {"embeddings.weight": torch.ones(2)},
            None,
            r"its tensors \(embeddings.weight, ...\) have no known layout: expected "
            r"conv1.weight \(torch",
        ),
        (
            lambda: named("torchvision", narrow_state(blocks=(1, 2, 1, 1))),
            None,
            r"a ResNet other .*\(cnn.blocks=\(1, 1, 2, 1\)\); add cnn.blocks=\[1,2,1,1\]",
        ),
        (
            lambda: named("msra", narrow_state(widths=(2, 4, 8, 32))),
            None,
            r"add cnn.widths=\[2,4,8,32\]",
        ),
        (
            lambda: named("detectron2", narrow_state()),
            "torchvision",
            "stride in the 3x3 of .*; add cnn.stride_in_1x1=false",
        ),
        (
            lambda: named("msra", narrow_state()),
            "released",
            r"the file's layout \(msra\) has its own",
        ),
        (
            lambda: without(named("torchvision", narrow_state()), "layer4.0.conv2.weight"),
            None,
            r"missing     layer4\.0\.conv2\.weight",
        ),
        (
            lambda: published(detector(milvlg_r152(**SIZES | {"depth": 50}, num_attributes=3))),
            None,
            "blocks VL-BERT's network does not have",
        ),
    ],
)
def test_what_does_not_fit_is_refused(
    make: Callable[[], dict[str, Tensor]], asked: str | None, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        load_backbone(RegionCnn(NARROW), make(), asked)


def test_a_stage_of_another_shape_is_refused() -> None:
    state = named("torchvision", narrow_state())
    state["layer3.0.conv2.weight"] = torch.ones(1, 1, 3, 3)
    with pytest.raises(CheckpointMismatch, match=r"shape       res4\.0\.conv2\.weight is"):
        load_backbone(RegionCnn(NARROW), state)


def test_the_conventions_are_those_of_torchvision() -> None:
    from torchvision.models import ResNet101_Weights

    used = ResNet101_Weights.IMAGENET1K_V1.transforms()
    theirs = CONVENTIONS["torchvision"]
    assert theirs.pixel_mean == pytest.approx([255 * v for v in used.mean])
    assert theirs.pixel_std == pytest.approx([255 * v for v in used.std])
