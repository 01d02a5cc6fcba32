"""What a training starts from: ResNets of three layouts, published detectors, other classes."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from vlmill.models.detector.config import DetectorConfig, detectron2
from vlmill.models.detector.faster_rcnn import FasterRCNN
from vlmill.models.detector.published_names import ANCHORS, published_name
from vlmill.models.detector.random_weights import randomise
from vlmill.models.vlbert.backbone import msra_name, torchvision_name
from vlmill.schemas.errors import InputError
from vlmill.train.detector.settings import RECIPES, TrainingSettings
from vlmill.train.detector.start import Names, class_rows, merge_rows, new_model, start_from

NARROW = {
    "depth": 50,
    "stem_channels": 4,
    "res2_channels": 8,
    "res2_width": 2,
    "rpn_channels": 32,
    "num_classes": 3,
    "num_attributes": 0,
}


def settings(**changes: object) -> TrainingSettings:
    """A narrow detector of Detectron2's."""
    detector = detectron2(**NARROW | changes)
    return dataclasses.replace(RECIPES["coco-r101-c4"](), detector=detector)


def resnet(name: Callable[[str], str], *, statistics: bool) -> dict[str, Tensor]:
    """An ImageNet ResNet of these widths under the names of a layout."""
    model = FasterRCNN(detectron2(**NARROW))
    randomise(model, 7)
    body = model.backbone.state_dict() | model.roi_heads.res5.state_dict(prefix="res5.")
    named = {name(key): value.contiguous() for key, value in body.items()}
    if not statistics:
        named = {k: v for k, v in named.items() if not k.endswith(("_rm", "_riv"))}
    return named | {"fc.weight": torch.zeros(10, 64)}


@pytest.mark.parametrize(("name", "statistics"), [(str, True), (msra_name, False)])
def test_a_resnet_gives_the_body_and_the_heads_begin_anew(
    name: Callable[[str], str], statistics: bool, tmp_path: Path
) -> None:
    save_file(resnet(name, statistics=statistics), tmp_path / "r50.safetensors")
    model = new_model(settings())
    origins = start_from(model, tmp_path / "r50.safetensors", Names())
    assert all(".rpn_head." in one or ".box_predictor." in one for one in origins.new)
    expected, weights = resnet(str, statistics=True), model.state_dict()
    for part, key in (("backbone", "res3.0.conv1.weight"), ("roi_heads", "res5.2.conv3.weight")):
        assert torch.equal(weights[f"{part}.{key}"], expected[key])
    mean = model.backbone.stem.conv1.norm.running_mean
    assert isinstance(mean, Tensor) and not mean.any()


def test_torchvisions_pixels_and_strides_are_asked_for(tmp_path: Path) -> None:
    save_file(resnet(torchvision_name, statistics=True), tmp_path / "r50.safetensors")
    with pytest.raises(InputError) as error:
        start_from(new_model(settings()), tmp_path / "r50.safetensors", Names())
    fields = [word for word in str(error.value).split() if word.startswith("detector.")]
    assert fields[:2] == ["detector.stride_in_1x1=false", "detector.channel_order=rgb"]
    assert fields[2] == "detector.pixel_mean=[123.675,116.28,103.53]"
    own = settings(
        stride_in_1x1=False,
        channel_order="rgb",
        pixel_mean=(123.675, 116.28, 103.53),
        pixel_std=(58.395, 57.12, 57.375),
    )
    assert start_from(new_model(own), tmp_path / "r50.safetensors", Names()).loaded_names


def test_another_resnet_is_refused_with_the_tensor(tmp_path: Path) -> None:
    save_file(resnet(str, statistics=True), tmp_path / "r50.safetensors")
    with pytest.raises(InputError, match=r"is \(4, 3, 7, 7\), expected \(5, 3, 7, 7\)"):
        start_from(new_model(settings(stem_channels=5)), tmp_path / "r50.safetensors", Names())


def test_a_published_detector_with_other_classes_keeps_all_but_their_rows(tmp_path: Path) -> None:
    config = detectron2(**NARROW | {"num_classes": 5})
    theirs = FasterRCNN(config)
    randomise(theirs, 3)
    state = {
        published_name(key, config.family): value
        for key, value in theirs.state_dict().items()
        if key != ANCHORS
    }
    save_file(state, tmp_path / "d2.safetensors")
    model = new_model(settings())
    origins = start_from(model, tmp_path / "d2.safetensors", Names(classes=("a", "b", "c")))
    assert {name.split(".")[-2] for name in origins.new} == {"cls_score", "bbox_pred"}
    ours, own = model.proposal_generator.rpn_head, theirs.proposal_generator.rpn_head
    assert torch.equal(ours.conv.weight, own.conv.weight)


def test_rows_are_mapped_by_name_whatever_the_place_of_background() -> None:
    ours, theirs = DetectorConfig(num_classes=2), detectron2(num_classes=3)
    names = Names(classes=("cat", "dog", "cow")), Names(classes=("cow", "bird"))
    rows = class_rows(names, theirs, ours)
    assert rows == {1: 2, 0: 3}  # cow, and background
    old = torch.arange(4.0)[:, None]
    moved = merge_rows(torch.full((3, 1), -1.0), old, rows, "cls_score")
    assert moved is not None and moved[:, 0].tolist() == [3, 2, -1]
    # Detectron2 regresses no box of background.
    deltas = merge_rows(torch.full((12, 1), -1.0), torch.arange(12.0)[:, None], rows, "bbox_pred")
    assert deltas is not None and deltas[:, 0].tolist() == [-1] * 4 + [8, 9, 10, 11] + [-1] * 4


@pytest.mark.parametrize(("layers", "deviation"), [("detectron2", 0.001), ("caffe", 0.01)])
def test_new_heads_are_drawn_as_the_code_draws_them(
    layers: Literal["detectron2", "caffe"], deviation: float
) -> None:
    own = dataclasses.replace(settings(), new_layers=layers)
    first, again = new_model(own), new_model(own)
    weight = first.roi_heads.box_predictor.bbox_pred.weight
    assert weight.std().item() == pytest.approx(deviation, rel=0.2)
    assert torch.equal(weight, again.roi_heads.box_predictor.bbox_pred.weight)
    assert not first.roi_heads.box_predictor.cls_score.bias.any()
