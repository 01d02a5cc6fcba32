"""Published layouts: told by their keys, sized by their shapes, loaded whole or refused."""

import dataclasses
from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

from vlmill.models.detector.config import CONVENTIONS, DetectorConfig
from vlmill.models.detector.faster_rcnn import FasterRCNN
from vlmill.models.detector.published import config_of_weights, load_published, recognise_layout
from vlmill.models.detector.published_names import ANCHORS, CELL_ANCHORS, published_name
from vlmill.models.detector.random_weights import randomise

SIZES = {
    "depth": 50,
    "stem_channels": 4,
    "res2_channels": 8,
    "res2_width": 2,
    "num_classes": 6,
    "rpn_channels": 5,
    "class_embedding_size": 3,
    "attribute_hidden_size": 7,
}

FPN = {"fpn_channels": 6, "fc_channels": 9}


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
    unsaid = ("class_embedding_size", "attribute_hidden_size")
    unsaid += ("num_classes", "rpn_channels") if grid else ()
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
    with pytest.raises(ValueError, match=r"missing .*cell_anchors.0.* 9 anchors a cell.* 15"):
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
        "roi_heads.box_predictor.cls_embedding.weight is (3, 3), want (7, 3)",
    ):
        assert complaint in str(error.value)
