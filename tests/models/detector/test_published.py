"""Published layouts: told by their keys, sized by their shapes, loaded whole or refused."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from vlmill.models.detector.config import CONVENTIONS, DetectorConfig
from vlmill.models.detector.faster_rcnn import FasterRCNN
from vlmill.models.detector.published import config_of_weights, load_published, recognise_layout
from vlmill.models.detector.published_names import (
    ANCHORS,
    CELL_ANCHORS,
    describe_mismatches,
    published_name,
)
from vlmill.models.detector.random_weights import randomise

SIZES: dict[str, Any] = {
    "depth": 50,
    "stem_channels": 4,
    "res2_channels": 8,
    "res2_width": 2,
    "num_classes": 6,
    "rpn_channels": 5,
    "class_embedding_size": 3,
    "attribute_hidden_size": 7,
}

FPN: dict[str, Any] = {"fpn_channels": 6, "fc_channels": 9}


def small(layout: str) -> DetectorConfig:
    if layout in ("detectron2", "detectron2-fpn"):  # its proposal head is as wide as its input
        sizes = {**SIZES, "rpn_channels": 32 if layout == "detectron2" else 6}
        return CONVENTIONS[layout](**sizes, **({} if layout == "detectron2" else FPN))
    if layout == "vqa-maskrcnn":
        return CONVENTIONS[layout](**{**SIZES, "groups": 2, "depth": 152}, **FPN)
    if layout == "vinvl":
        return CONVENTIONS[layout](**{**SIZES, "groups": 2}, num_attributes=4)
    if layout.startswith("grid"):
        return CONVENTIONS[layout](**SIZES)
    return CONVENTIONS[layout](**SIZES, num_attributes=4)


def published(config: DetectorConfig) -> dict[str, Tensor]:
    """A random state dict as the family's files name it."""
    model = FasterRCNN(config)
    randomise(model, 1)
    state = {published_name(k, config.family): v for k, v in model.state_dict().items()}
    if config.family in ("hf-frcnn", "milvlg"):
        norms = [key for key in state if key.endswith("running_var") and ".res2." not in key]
        counters = [key.replace("running_var", "num_batches_tracked") for key in norms]
        state |= {key: torch.tensor(1) for key in counters}
    if config.family in ("detectron2", "detectron2-fpn"):
        state = {key: value for key, value in state.items() if CELL_ANCHORS not in key}
    return state


# A grid's sizes are those of its body; Caffe's names are milvlg's once they are read.
@pytest.mark.parametrize("layout", [name for name in CONVENTIONS if name != "caffe"])
def test_a_layout_says_conventions_and_sizes(layout: str) -> None:
    config, state = small(layout), published(small(layout))
    grid = layout.startswith("grid")
    if layout == "grid-feats-updn":  # which has the heads of milvlg-d2
        state |= {"roi_heads.attribute_predictor.fc.0.weight": torch.zeros(3, 3)}
    assert recognise_layout(state, grid=grid) == layout
    found = config_of_weights(state, grid=grid)
    unsaid = ["class_embedding_size", "attribute_hidden_size"]
    unsaid += ["num_classes", "rpn_channels"] if grid else []
    assert dataclasses.replace(found, cell_anchors=None) == dataclasses.replace(
        config, **{name: getattr(found, name) for name in unsaid}
    )
    if config.num_attributes:
        assert (found.class_embedding_size, found.attribute_hidden_size) == (3, 7)
    model = FasterRCNN(found)
    load_published(model, state)
    for key, value in model.state_dict().items():
        name = published_name(key, config.family)
        assert CELL_ANCHORS in name or torch.equal(value, state[name]), key


def test_names_differ_where_the_published_files_do() -> None:
    names = {name: set(published(small(name))) for name in ("milvlg", "airsplay")}
    ours, theirs = (
        {key.split(".")[2] for key in keys if "box_predictor" in key} for keys in names.values()
    )
    assert ours - theirs == {"cls_embed", "attr_linear1", "attr_linear2"}
    assert theirs - ours == {"cls_embedding", "fc_attr", "attr_score"}


def test_a_fork_without_attributes_is_told_by_its_narrow_proposal_head() -> None:
    config = dataclasses.replace(small("airsplay"), num_attributes=0)
    state = published(config)
    assert recognise_layout(state) == "airsplay"
    assert config_of_weights(state).num_attributes == 0


def test_the_ports_other_mode_has_attributes_beside_the_box_predictor() -> None:
    config = small("milvlg-d2")
    state = published(config)
    assert state["roi_heads.attribute_predictor.attr_score.weight"].shape[0] == 4
    assert recognise_layout(state) == "milvlg-d2"
    read = config_of_weights(state)
    assert (read.num_attributes, read.num_attribute_outputs) == (4, 4)
    load_published(FasterRCNN(read), state)


def test_the_files_anchors_count() -> None:
    state = published(small("milvlg"))
    state[ANCHORS] = state[ANCHORS] + 0.5
    config = config_of_weights(state)
    assert config.cell_anchors == tuple(tuple(row) for row in state[ANCHORS].tolist())
    model = FasterRCNN(dataclasses.replace(config, cell_anchors=None))
    load_published(model, state)
    assert torch.equal(model.state_dict()[ANCHORS], state[ANCHORS])


def test_anchors_that_nothing_decides_are_refused() -> None:
    config = dataclasses.replace(small("detectron2"), anchor_scales=(2.0, 4.0, 8.0))
    state = published(config)
    with pytest.raises(ValueError, match=r"missing .*cell_anchors.0.* 9 anchors per cell.* 15"):
        config_of_weights(state)
    assert config_of_weights(state, anchor_scales=(2.0, 4.0, 8.0)).num_anchors == 9


def test_one_regression_for_all_classes_is_seen() -> None:
    state = published(dataclasses.replace(small("detectron2"), class_specific_boxes=False))
    assert not config_of_weights(state).class_specific_boxes


def test_stored_pixel_statistics_count() -> None:
    state = published(small("detectron2"))
    state |= {"pixel_mean": torch.tensor([[[1.0]], [[2.0]], [[3.0]]])}
    config = config_of_weights(state)
    assert config.pixel_mean == (1.0, 2.0, 3.0)
    load_published(FasterRCNN(config), state)


def without(state: Mapping[str, Tensor], part: str) -> dict[str, Tensor]:
    return {key: value for key, value in state.items() if part not in key}


@pytest.mark.parametrize(
    ("layout", "part", "said"),
    [
        ("milvlg", "bbox_pred", "missing roi_heads.box_predictor.bbox_pred.weight"),
        ("airsplay", "fc_attr", "missing roi_heads.box_predictor.fc_attr.weight"),
        ("detectron2", "rpn_head", "no published layout"),
        ("detectron2", "res4.5.", r"\[3, 4, 5, 3\] blocks"),
    ],
)
def test_what_no_size_can_be_read_from_is_refused(layout: str, part: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        config_of_weights(without(published(small(layout)), part))


def test_every_key_that_does_not_fit_is_named_as_in_the_file() -> None:
    config = small("hf-frcnn")
    state = published(config)
    del state["backbone.res3.1.conv2.norm.bias"]
    del state["roi_heads.box_predictor.attr_score.bias"]
    state["backbone.fpn.weight"] = torch.zeros(1)
    state["roi_heads.box_predictor.cls_embedding.weight"] = torch.zeros(3, 3)
    with pytest.raises(ValueError, match="do not fit") as error:
        load_published(FasterRCNN(config), state)
    for complaint in (
        "missing backbone.res3.1.conv2.norm.bias, roi_heads.box_predictor.attr_score.bias;",
        "unexpected backbone.fpn.weight",
        "roi_heads.box_predictor.cls_embedding.weight is (3, 3), expected (7, 3)",
    ):
        assert complaint in str(error.value)


def test_a_file_of_vinvl_has_one_res5_under_two_names() -> None:
    config = small("vinvl")
    state = published(config)
    head = "roi_heads.box.feature_extractor.head."
    again = {
        key.replace(head, "attribute.feature_extractor.head."): value.clone()
        for key, value in state.items()
        if key.startswith(head)
    }
    load_published(FasterRCNN(config_of_weights(state | again)), state | again)
    again["attribute.feature_extractor.head.layer4.0.conv1.weight"][0] += 1
    with pytest.raises(ValueError, match=r"layer4.0.conv1.weight differ; both are one"):
        load_published(FasterRCNN(config), state | again)


def test_vinvl_without_attributes_is_read_by_its_sizes() -> None:
    config = dataclasses.replace(small("vinvl"), num_attributes=0)
    assert config_of_weights(published(config)).num_attributes == 0


def test_names_of_maskrcnn_benchmark() -> None:
    names = {published_name(key, "vinvl") for key in FasterRCNN(small("vinvl")).state_dict()}
    assert {
        "backbone.body.stem.conv1.weight",
        "backbone.body.stem.bn1.running_var",
        "backbone.body.layer1.0.downsample.0.weight",
        "backbone.body.layer3.5.bn3.bias",
        "backbone.body.layer2.0.downsample.1.running_mean",
        "roi_heads.box.feature_extractor.head.layer4.2.conv2.weight",
        "roi_heads.box.predictor.bbox_pred.bias",
        "rpn.head.cls_logits.weight",
        "rpn.anchor_generator.cell_anchors.0",
        "attribute.predictor.cls_embedding.weight",
        "attribute.predictor.attr_score.bias",
    } <= names
    fpn = {
        published_name(k, "vqa-maskrcnn") for k in FasterRCNN(small("vqa-maskrcnn")).state_dict()
    }
    assert {
        "backbone.fpn.fpn_inner1.weight",
        "backbone.fpn.fpn_layer4.bias",
        "backbone.body.layer4.2.bn2.weight",
        "rpn.anchor_generator.cell_anchors.4",
        "roi_heads.box.feature_extractor.fc6.weight",
        "roi_heads.box.feature_extractor.fc7.bias",
    } <= fpn


def test_heads_that_follow_the_detections_are_left_out() -> None:
    masks = {"roi_heads.mask_head.deconv.weight": torch.zeros(2, 2)}
    attributes = {"roi_heads.box.predictor.attr_linear2.weight": torch.zeros(4, 3)}
    for layout, more in (
        ("detectron2", masks),
        ("detectron2-fpn", masks),
        ("vqa-maskrcnn", attributes),
    ):
        state = published(small(layout)) | more
        load_published(FasterRCNN(config_of_weights(state)), state)
    with pytest.raises(ValueError, match=r"unexpected roi_heads.mask_head"):
        load_published(FasterRCNN(small("airsplay")), published(small("airsplay")) | masks)


@pytest.mark.parametrize(
    ("layout", "changes", "said"),
    [
        ("detectron2-fpn", {"roi_heads.box_head.0.fc1.weight": torch.zeros(2, 2)}, "a cascade"),
        ("grid-feats", {}, r"grid features, whose regions are the cells of res5 .--grid"),
    ],
)
def test_other_architectures_are_named(
    layout: str, changes: Mapping[str, Tensor], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        config_of_weights(published(small(layout)) | dict(changes))


@pytest.mark.parametrize(
    ("layout", "part", "said"),
    [
        ("detectron2-fpn", "fpn_lateral2", "backbone.fpn_lateral2.weight is missing, which"),
        ("vqa-maskrcnn", "fc6", "roi_heads.box.feature_extractor.fc6.weight is missing, which vqa"),
        ("vinvl", "head.layer4", "roi_heads.box.feature_extractor.head.layer4.* is missing"),
        ("vinvl", "cell_anchors", ""),
    ],
)
def test_what_tells_a_layout_is_named(layout: str, part: str, said: str) -> None:
    state = without(published(small(layout)), part)
    if not said:  # the family's own anchors fit
        assert config_of_weights(state).cell_anchors is None
        return
    with pytest.raises(ValueError, match=said):
        config_of_weights(state)


def test_groups_tell_the_conventions_of_what_was_published() -> None:
    """ResNeXt's stride is in the 3x3; Detectron2's and the grid's X-101 alone have deviations."""
    grouped: dict[str, Any] = {"groups": 2, "stride_in_1x1": False}
    d2 = dataclasses.replace(small("detectron2-fpn"), **grouped)
    found = config_of_weights(published(d2))
    assert not found.stride_in_1x1 and found.pixel_std == (57.375, 57.12, 58.395)
    for depth, std in ((50, 1.0), (101, 57.375), (152, 1.0)):
        grid = dataclasses.replace(small("grid-feats"), depth=depth, **grouped)
        assert config_of_weights(published(grid), grid=True).pixel_std[0] == std
    port = config_of_weights(published(dataclasses.replace(small("milvlg-d2"), **grouped)))
    assert (port.stride_in_1x1, port.pool_size, port.pixel_std[0]) == (False, 7, 1.0)


@pytest.mark.parametrize(
    ("layout", "groups", "said"),
    [
        ("vinvl", 1, r"without groups: .* the stride; give --config"),
        ("vqa-maskrcnn", 1, "without groups"),
        ("airsplay", 2, "2 groups, which no published file of airsplay has"),
    ],
)
def test_what_was_never_published_needs_its_configuration(
    layout: str, groups: int, said: str
) -> None:
    config = dataclasses.replace(small(layout), groups=groups)
    with pytest.raises(ValueError, match=said):
        config_of_weights(published(config))


@pytest.mark.parametrize("layout", ["milvlg", "detectron2-fpn", "vqa-maskrcnn", "vinvl"])
def test_a_grid_takes_the_body_of_any_detector(layout: str) -> None:
    state = published(small(layout))
    config = config_of_weights(state, grid=True)
    assert config.regions == "grid" and config.family == small(layout).family
    model = FasterRCNN(config)
    load_published(model, state)
    with torch.no_grad():
        (cells,) = model.feature_maps(torch.randn(1, 3, 64, 96))
    assert cells.shape == ((1, 64, 4, 6) if layout == "milvlg" else (1, 64, 2, 3))


def test_deformable_stages_are_seen() -> None:
    config = dataclasses.replace(small("grid-feats"), deformable_stages=(4, 5))
    state = published(config)
    assert state["backbone.res5.0.conv2_offset.weight"].shape[0] == 18
    found = config_of_weights(state, grid=True)
    assert found.deformable_stages == (4, 5)
    load_published(FasterRCNN(found), state)


def test_tensors_that_fit_have_nothing_said_of_them() -> None:
    ours = {"a": torch.ones(2), "b": torch.ones(3, 1)}
    assert describe_mismatches(ours, {name: tensor + 1 for name, tensor in ours.items()}) == ""


def test_each_kind_is_named_and_most_are_counted() -> None:
    ours = {**{f"w{i}": torch.ones(2) for i in range(200)}, "b": torch.ones(3, 1)}
    said = describe_mismatches(ours, {"b": torch.ones(1, 3), "c": torch.ones(1)})
    assert said == "missing w0, w1, w2 and 197 more; unexpected c; b is (1, 3), expected (3, 1)"
