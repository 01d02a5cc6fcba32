"""Configurations of other projects: what their keys become, and which are refused."""

from collections.abc import Mapping
from typing import Any

import pytest

from vlmill.models.detector.config import ARCHITECTURES, airsplay, detectron2, milvlg, milvlg_r152
from vlmill.models.detector.configurations import flatten_sections, read_configuration
from vlmill.models.detector.keys import WrongKey, format_value, number, one_level

# What the published files say, their training left out.
C4 = {
    "MODEL": {
        "META_ARCHITECTURE": "GeneralizedRCNN",
        "RPN": {"PRE_NMS_TOPK_TEST": 6000, "POST_NMS_TOPK_TEST": 1000},
        "ROI_HEADS": {"NAME": "Res5ROIHeads"},
    },
    "VERSION": 2,
}
VISUAL_GENOME = {
    "MODEL.CAFFE_MAXPOOL": True,
    "MODEL.PIXEL_MEAN": [102.9801, 115.9465, 122.7717],
    "MODEL.RESNETS.DEPTH": 101,
    "MODEL.PROPOSAL_GENERATOR.HID_CHANNELS": 512,
    "MODEL.ANCHOR_GENERATOR.SIZES": [[64, 128, 256, 512]],
    "MODEL.ROI_HEADS.NUM_CLASSES": 1600,
    "MODEL.ROI_BOX_HEAD.RES5HALVE": False,
    "MODEL.ROI_BOX_HEAD.POOLER_TYPE": "ROIPool",
    "MODEL.ROI_BOX_HEAD.ATTR": True,
    "MODEL.ROI_BOX_HEAD.NUM_ATTRS": 400,
}
BOTTOM_UP = {
    "MODEL.META_ARCHITECTURE": "GeneralizedBUARCNN",
    "MODEL.BACKBONE.NAME": "build_bua_resnet_backbone",
    "MODEL.PROPOSAL_GENERATOR.NAME": "BUARPN",
    "MODEL.PROPOSAL_GENERATOR.MIN_SIZE": 16,
    "MODEL.RPN.HEAD_NAME": "StandardBUARPNHead",
    "MODEL.RPN.POST_NMS_TOPK_TEST": 300,
    "MODEL.ROI_HEADS.NAME": "BUACaffeRes5ROIHeads",
    "MODEL.ROI_HEADS.NUM_CLASSES": 1601,
    "MODEL.ROI_HEADS.SCORE_THRESH_TEST": -1.0,
    "MODEL.ROI_BOX_HEAD.POOLER_TYPE": "ROIPool",
    "MODEL.ROI_BOX_HEAD.BBOX_REG_WEIGHTS": [1.0, 1.0, 1.0, 1.0],
    "MODEL.ANCHOR_GENERATOR.SIZES": [[4, 8, 16, 32]],
    "MODEL.PIXEL_MEAN": [102.9801, 115.9465, 122.7717],
    "MODEL.RESNETS.DEPTH": 101,
    "MODEL.RESNETS.NORM": "BN",
    "MODEL.RESNETS.RES5_DILATION": 2,
    "MODEL.BUA.ATTRIBUTE_ON": True,
    "MODEL.BUA.EXTRACTOR.MIN_BOXES": 10,
    "INPUT.MIN_SIZE_TEST": 600,
    "INPUT.MAX_SIZE_TEST": 1000,
}
HUGGING_FACE: dict[str, Any] = {
    "model": {"pixel_mean": [102.9801, 115.9465, 122.7717], "pixel_std": [1, 1, 1]}
    | {"max_pool": True, "device": "cuda"},
    "input": {"format": "BGR", "min_size_test": 800, "max_size_test": 1333},
    "backbone": {"freeze_at": 2},
    "resnets": {"norm": "BN", "depth": 101, "num_groups": 1, "width_per_group": 64}
    | {"stem_out_channels": 64, "res2_out_channels": 256, "out_features": ["res4"]}
    | {"stride_in_1x1": True, "res5_dilation": 1},
    "anchor_generator": {"sizes": [[64, 128, 256, 512]], "aspect_ratios": [[0.5, 1.0, 2.0]]}
    | {"offset": 0.0},
    "proposal_generator": {"hidden_channels": 512, "min_size": 0},
    "rpn": {"in_features": ["res4"], "nms_thresh": 0.7, "bbox_reg_weights": [1.0, 1.0, 1.0, 1.0]}
    | {"pre_nms_topk_test": 6000, "post_nms_topk_test": 300, "boundary_thresh": -1},
    "roi_heads": {"num_classes": 1600, "in_features": ["res4"], "score_thresh_test": 0.2}
    | {"nms_thresh_test": [0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]},
    "roi_box_head": {"bbox_reg_weights": [10.0, 10.0, 5.0, 5.0], "pooler_resolution": 14}
    | {"pooler_sampling_ratio": 0, "cls_agnostic_bbox_reg": False, "res5halve": False}
    | {"attr": True, "num_attrs": 400},
    "size_divisibility": 0,
    "pad_value": 0.0,
    "min_detections": 36,
    "max_detections": 36,
}


def keys(nested: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    """Dotted keys, with changes in which two underscores stand for a dot."""
    return dict(flatten_sections(nested)) | {
        name.replace("__", "."): v for name, v in changes.items()
    }


def test_detectron2s_own_model_is_ours() -> None:
    found = read_configuration(keys(C4, MODEL__RESNETS__DEPTH=101))
    assert found.family == "detectron2" and found.config == detectron2()


def test_airsplays_model_is_ours_with_the_proposals_that_the_file_says() -> None:
    found = read_configuration(keys(C4) | VISUAL_GENOME)
    assert found.family == "airsplay"
    assert found.config == airsplay(post_nms_top=1000)


def test_milvlgs_models_are_ours() -> None:
    found = read_configuration(BOTTOM_UP)
    assert found.family == "milvlg" and found.config == milvlg()
    r152 = {
        "MODEL.BUA.RESNET_VERSION": 2,
        "MODEL.RESNETS.DEPTH": 152,
        "MODEL.RESNETS.STRIDE_IN_1X1": False,
        "MODEL.RESNETS.RES5_DILATION": 1,
        "MODEL.PIXEL_MEAN": [0, 0, 0],
    }
    assert read_configuration(BOTTOM_UP | r152).config == milvlg_r152()


def test_hugging_faces_model_is_ours() -> None:
    found = read_configuration(keys(HUGGING_FACE))
    assert found.family == "hf-frcnn"
    expected = airsplay(family="hf-frcnn", resize="torch")
    assert found.config == expected
    upper = {name.upper(): value for name, value in keys(HUGGING_FACE).items()}
    assert read_configuration(upper).config == expected


@pytest.mark.parametrize(
    ("key", "value", "fields"),
    [
        ("ROI_BOX_HEAD.POOLER_TYPE", "ROIAlign", {"pooling": "align-legacy"}),
        ("ROI_BOX_HEAD.POOLER_TYPE", "ROIPool", {"pooling": "pool"}),
        ("ROI_BOX_HEAD.POOLER_RESOLUTION", 7, {"pool_size": 7}),
        ("ROI_BOX_HEAD.POOLER_SAMPLING_RATIO", 2, {"sampling_ratio": 2}),
        ("ROI_BOX_HEAD.CLS_AGNOSTIC_BBOX_REG", True, {"class_specific_boxes": False}),
        ("ROI_BOX_HEAD.BBOX_REG_WEIGHTS", [1, 2, 3, 4], {"box_weights": (1.0, 2.0, 3.0, 4.0)}),
        ("RPN.BBOX_REG_WEIGHTS", [1, 2, 3, 4], {"rpn_box_weights": (1.0, 2.0, 3.0, 4.0)}),
        ("RPN.NMS_THRESH", "6e-1", {"rpn_nms_threshold": 0.6}),
        ("RPN.PRE_NMS_TOPK_TEST", 12, {"pre_nms_top": 12}),
        ("RPN.POST_NMS_TOPK_TEST", 11, {"post_nms_top": 11}),
        ("RPN.CONV_DIMS", [512], {"rpn_channels": 512}),
        ("ROI_HEADS.NUM_CLASSES", 1600, {"num_classes": 1600}),
        ("ROI_HEADS.NMS_THRESH_TEST", 0.3, {"class_nms_thresholds": (0.3,)}),
        ("ANCHOR_GENERATOR.OFFSET", 0.5, {"anchor_offset": 0.5}),
        ("ANCHOR_GENERATOR.SIZES", [[24, 40]], {"anchor_scales": (1.5, 2.5)}),
        ("ANCHOR_GENERATOR.ASPECT_RATIOS", [[1, 3]], {"anchor_ratios": (1.0, 3.0)}),
        ("RESNETS.STRIDE_IN_1X1", False, {"stride_in_1x1": False}),
        ("RESNETS.NORM", "BN", {}),
        ("RESNETS.RES5_DILATION", 2, {}),
        ("RESNETS.RES2_OUT_CHANNELS", 32, {"res2_channels": 32, "rpn_channels": 128}),
        ("RESNETS.WIDTH_PER_GROUP", 8, {"res2_width": 8}),
        ("RESNETS.STEM_OUT_CHANNELS", 8, {"stem_channels": 8}),
        ("PROPOSAL_GENERATOR.MIN_SIZE", 9, {"min_proposal_size": 9.0, "min_size_of": "input"}),
        ("PIXEL_MEAN", [1, 2, 3], {"pixel_mean": (1.0, 2.0, 3.0)}),
        ("PIXEL_STD", [1, 2, 3], {"pixel_std": (1.0, 2.0, 3.0)}),
        ("WEIGHTS", "detectron2://x.pkl", {}),
        ("ROI_HEADS.SCORE_THRESH_TEST", 0.7, {}),
        ("RETINANET.NUM_CLASSES", 7, {}),
    ],
)
def test_a_key_sets_its_fields_and_no_other(
    key: str, value: object, fields: dict[str, object]
) -> None:
    config = read_configuration(keys(C4) | {f"MODEL.{key}": value}).config
    assert config == detectron2(**{"depth": 50} | fields)


def test_keys_of_the_input_set_its_sizes_and_order() -> None:
    own = {"INPUT.MIN_SIZE_TEST": 500, "INPUT.MAX_SIZE_TEST": 900, "INPUT.FORMAT": "RGB"}
    config = read_configuration(keys(C4) | own | {"INPUT.MIN_SIZE_TRAIN": [1, 2]}).config
    expected = detectron2(depth=50, short_side=500, long_side=900, channel_order="rgb")
    assert config == expected


def test_halved_res5_and_single_thresholds_and_the_other_pool() -> None:
    own = {
        "roi_box_head.res5halve": True,
        "roi_heads.nms_thresh_test": 0.5,
        "model.max_pool": False,
        "proposal_generator.hidden_channels": -1,
        "roi_box_head.attr": False,
    }
    config = read_configuration(keys(HUGGING_FACE) | own).config
    assert (config.res5_stride, config.res5_dilation) == (2, 1)
    assert config.class_nms_thresholds == (0.5,)
    assert not config.stem_ceil_pool and config.rpn_channels == 1024
    assert config.num_attributes == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"MODEL.META_ARCHITECTURE": "RetinaNet"}, "expected 'GeneralizedRCNN'"),
        ({"MODEL.BACKBONE.NAME": "build_resnet_fpn_backbone"}, "expected .'res2', 'res3', 'res4'"),
        ({"MODEL.BACKBONE.NAME": "build_mobilenet_backbone"}, "build_resnet_backbone"),
        ({"MODEL.MASK_ON": "yes"}, "MASK_ON is 'yes'; expected true or false"),
        ({"MODEL.ROI_HEADS.NAME": "CascadeROIHeads"}, "expected 'Res5ROIHeads'"),
        ({"MODEL.RESNETS.OUT_FEATURES": ["res5"]}, r"expected \['res4'\]"),
        (VISUAL_GENOME | {"MODEL.RESNETS.NUM_GROUPS": 32}, "no groups"),
        ({"MODEL.RESNETS.NORM": "GN"}, "NORM is 'GN'; expected 'FrozenBN' or 'BN'"),
        ({"MODEL.RESNETS.DEPTH": 18}, "DEPTH is 18; expected 50 or 101 or 152"),
        ({"MODEL.RESNETS.DEPTH": True}, "DEPTH is True"),
        ({"MODEL.RESNETS.DEFORM_ON_PER_STAGE": [False, True, True, True]}, "deformable"),
        ({"MODEL.RESNETS.WIDTH_PER_GROUP": 10**9}, "a whole number from 1 to 8192"),
        ({"MODEL.RPN.NMS_TRESH": 0.7}, "NMS_TRESH is 0.7; expected a key that a detector"),
        ({"MODEL.RPN.NMS_THRESH": float("nan")}, "expected a number from 0 to 1"),
        ({"MODEL.RPN.CONV_DIMS": [512, 512]}, "expected a list of one"),
        ({"MODEL.ANCHOR_GENERATOR.SIZES": [[32], [64]]}, "one list in a list"),
        ({"MODEL.ANCHOR_GENERATOR.OFFSET": 1.0}, "from 0 to 0.999"),
        ({"MODEL.ROI_BOX_HEAD.POOLER_TYPE": "ROIAlignRotated"}, "'ROIPool' or 'ROIAlign'"),
        ({"MODEL.ROI_BOX_HEAD.BBOX_REG_WEIGHTS": [1.0, 0.0, 1.0, 1.0]}, "a number from"),
        ({"INPUT.FORMAT": "YUV-BT.601"}, "expected 'BGR' or 'RGB'"),
        ({"INPUT.MIN_SIZE_TEST": 0}, "a whole number from 3"),
        ({"VERSION": 1}, "VERSION is 1; expected 2"),
        (VISUAL_GENOME | {"MODEL.ROI_BOX_HEAD.NUM_ATTRS": -1}, "NUM_ATTRS is -1; expected their"),
        (VISUAL_GENOME | {"MODEL.RESNETS.STRIDE_IN_1X1": False}, "where res5 is not halved"),
    ],
)
def test_what_cannot_be_honoured_is_named(changes: dict[str, object], message: str) -> None:
    with pytest.raises(WrongKey, match=message):
        read_configuration(keys(C4) | changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"MODEL.META_ARCHITECTURE": "GeneralizedRCNN"}, "the port's Caffe mode"),
        ({"MODEL.BUA.EXTRACTOR.MODE": 2}, "MODE is 2; expected 1"),
        ({"MODEL.BUA.RESNET_VERSION": 3}, "expected 1 or 2"),
        ({"MODEL.RESNETS.RES5_DILATION": 4}, "expected 1 or 2"),
    ],
)
def test_the_port_has_values_of_its_own(changes: dict[str, object], message: str) -> None:
    with pytest.raises(WrongKey, match=message):
        read_configuration(BOTTOM_UP | changes)


def test_hugging_faces_file_says_everything_once() -> None:
    values = keys(HUGGING_FACE)
    del values["resnets.depth"]
    with pytest.raises(WrongKey, match=r"resnets.depth is missing; expected a value"):
        read_configuration(values)
    with pytest.raises(WrongKey, match="the key once"):
        read_configuration(keys(HUGGING_FACE) | {"RESNETS.DEPTH": 50})


def test_keys_of_nobody_are_no_configuration() -> None:
    with pytest.raises(ValueError, match="no section MODEL"):
        read_configuration({"learning_rate": 0.1})


def test_values_are_shown_in_one_short_line() -> None:
    assert len(format_value("x" * 1000)) == 60
    with pytest.raises(ValueError, match="a number from 0 to 1"):
        number(0.0, 1.0)("none")
    with pytest.raises(ValueError, match="1 to 2 numbers"):
        one_level(0.0, 1.0, 2)([[0.1, 0.2, 0.3]])


# sgg_configs/vgattr/vinvl_x152c4.yaml of microsoft/scene_graph_benchmark, what counts of it.
VINVL = {
    "MODEL.META_ARCHITECTURE": "AttrRCNN",
    "MODEL.WEIGHT": "model.pth",
    "MODEL.BACKBONE.CONV_BODY": "R-152-C4",
    "MODEL.RESNETS.BACKBONE_OUT_CHANNELS": 1024,
    "MODEL.RESNETS.STRIDE_IN_1X1": False,
    "MODEL.RESNETS.NUM_GROUPS": 32,
    "MODEL.RESNETS.WIDTH_PER_GROUP": 8,
    "MODEL.RPN.PRE_NMS_TOP_N_TEST": 6000,
    "MODEL.RPN.POST_NMS_TOP_N_TEST": 300,
    "MODEL.ROI_HEADS.SCORE_THRESH": 0.2,
    "MODEL.ROI_HEADS.DETECTIONS_PER_IMG": 100,
    "MODEL.ROI_HEADS.MIN_DETECTIONS_PER_IMG": 10,
    "MODEL.ROI_BOX_HEAD.NUM_CLASSES": 1595,
    "MODEL.ROI_ATTRIBUTE_HEAD.NUM_ATTRIBUTES": 525,
    "MODEL.ATTRIBUTE_ON": True,
    "INPUT.MIN_SIZE_TEST": 600,
    "INPUT.MAX_SIZE_TEST": 1000,
    "INPUT.PIXEL_MEAN": [103.530, 116.280, 123.675],
    "DATASETS.LABELMAP_FILE": "labels.json",
    "TEST.SAVE_RESULTS_TO_TSV": True,
    "DATA_DIR": "datasets",
}
VQA = {
    "MODEL.META_ARCHITECTURE": "GeneralizedRCNN",
    "MODEL.BACKBONE.CONV_BODY": "R-152-FPN",
    "MODEL.BACKBONE.OUT_CHANNELS": 512,
    "MODEL.RESNETS.STRIDE_IN_1X1": False,
    "MODEL.RESNETS.NUM_GROUPS": 32,
    "MODEL.RESNETS.WIDTH_PER_GROUP": 8,
    "MODEL.RPN.USE_FPN": True,
    "MODEL.RPN.ANCHOR_STRIDE": [4, 8, 16, 32, 64],
    "MODEL.RPN.PRE_NMS_TOP_N_TEST": 1000,
    "MODEL.RPN.POST_NMS_TOP_N_TEST": 1000,
    "MODEL.RPN.FPN_POST_NMS_TOP_N_TEST": 1000,
    "MODEL.ROI_HEADS.USE_FPN": True,
    "MODEL.ROI_BOX_HEAD.POOLER_RESOLUTION": 7,
    "MODEL.ROI_BOX_HEAD.POOLER_SCALES": [0.25, 0.125, 0.0625, 0.03125],
    "MODEL.ROI_BOX_HEAD.POOLER_SAMPLING_RATIO": 2,
    "MODEL.ROI_BOX_HEAD.FEATURE_EXTRACTOR": "FPN2MLPFeatureExtractor",
    "MODEL.ROI_BOX_HEAD.PREDICTOR": "FPNPredictor",
    "MODEL.ROI_BOX_HEAD.NUM_CLASSES": 1601,
    "MODEL.ROI_BOX_HEAD.MLP_HEAD_DIM": 2048,
    "DATALOADER.SIZE_DIVISIBILITY": 32,
}
# Base-RCNN-FPN.yaml of Detectron2 with mask_rcnn_R_50_FPN_3x.yaml over it.
FPN = {
    "MODEL.META_ARCHITECTURE": "GeneralizedRCNN",
    "MODEL.BACKBONE.NAME": "build_resnet_fpn_backbone",
    "MODEL.RESNETS.OUT_FEATURES": ["res2", "res3", "res4", "res5"],
    "MODEL.RESNETS.DEPTH": 50,
    "MODEL.FPN.IN_FEATURES": ["res2", "res3", "res4", "res5"],
    "MODEL.ANCHOR_GENERATOR.SIZES": [[32], [64], [128], [256], [512]],
    "MODEL.ANCHOR_GENERATOR.ASPECT_RATIOS": [[0.5, 1.0, 2.0]],
    "MODEL.RPN.IN_FEATURES": ["p2", "p3", "p4", "p5", "p6"],
    "MODEL.RPN.PRE_NMS_TOPK_TRAIN": 2000,
    "MODEL.RPN.PRE_NMS_TOPK_TEST": 1000,
    "MODEL.RPN.POST_NMS_TOPK_TEST": 1000,
    "MODEL.ROI_HEADS.NAME": "StandardROIHeads",
    "MODEL.ROI_HEADS.IN_FEATURES": ["p2", "p3", "p4", "p5"],
    "MODEL.ROI_BOX_HEAD.NAME": "FastRCNNConvFCHead",
    "MODEL.ROI_BOX_HEAD.NUM_FC": 2,
    "MODEL.ROI_BOX_HEAD.POOLER_RESOLUTION": 7,
    "MODEL.ROI_MASK_HEAD.NUM_CONV": 4,
    "MODEL.MASK_ON": True,
    "VERSION": 2,
}
X101 = {
    "MODEL.RESNETS.DEPTH": 101,
    "MODEL.RESNETS.NUM_GROUPS": 32,
    "MODEL.RESNETS.WIDTH_PER_GROUP": 8,
    "MODEL.RESNETS.STRIDE_IN_1X1": False,
    "MODEL.PIXEL_STD": [57.375, 57.120, 58.395],
}
# Base-RCNN-grid.yaml with X-152-challenge.yaml over it; Base-RCNN-updn.yaml; the port's X-152.
GRID = {
    "MODEL.ATTRIBUTE_ON": True,
    "MODEL.RESNETS.OUT_FEATURES": ["res5"],
    "MODEL.RESNETS.RES5_DILATION": 2,
    "MODEL.RESNETS.DEPTH": 152,
    "MODEL.RESNETS.NUM_GROUPS": 32,
    "MODEL.RESNETS.WIDTH_PER_GROUP": 8,
    "MODEL.RESNETS.STRIDE_IN_1X1": False,
    "MODEL.RESNETS.DEFORM_ON_PER_STAGE": [False, False, True, True],
    "MODEL.RPN.IN_FEATURES": ["res5"],
    "MODEL.RPN.BBOX_LOSS_WEIGHT": 0.5,
    "MODEL.ROI_HEADS.NAME": "AttributeStandardROIHeads",
    "MODEL.ROI_HEADS.IN_FEATURES": ["res5"],
    "MODEL.ROI_BOX_HEAD.NAME": "AttributeFastRCNNConvFCHead",
    "MODEL.ROI_BOX_HEAD.POOLER_RESOLUTION": 1,
    "INPUT.MIN_SIZE_TEST": 600,
    "INPUT.MAX_SIZE_TEST": 1000,
}
UPDN = {
    "MODEL.META_ARCHITECTURE": "GeneralizedRCNN",
    "MODEL.ATTRIBUTE_ON": True,
    "MODEL.ROI_HEADS.NAME": "AttributeRes5ROIHeads",
    "MODEL.ROI_HEADS.NUM_CLASSES": 1600,
    "MODEL.ROI_BOX_HEAD.POOLER_SAMPLING_RATIO": 2,
    "INPUT.MIN_SIZE_TEST": 600,
    "INPUT.MAX_SIZE_TEST": 1000,
}
PORT_X152 = UPDN | {
    "MODEL.BUA.ATTRIBUTE_ON": True,
    "MODEL.BUA.EXTRACTOR.MODE": 1,
    "MODEL.RESNETS.STRIDE_IN_1X1": False,
    "MODEL.RESNETS.NUM_GROUPS": 32,
    "MODEL.RESNETS.WIDTH_PER_GROUP": 8,
    "MODEL.RESNETS.DEPTH": 152,
    "MODEL.ROI_BOX_HEAD.NAME": "FastRCNNConvFCHead",
    "MODEL.ROI_BOX_HEAD.NUM_FC": 2,
    "MODEL.ROI_BOX_HEAD.POOLER_RESOLUTION": 7,
}


@pytest.mark.parametrize(
    ("values", "arch", "grid"),
    [
        (VINVL, "vinvl", False),
        (VINVL | {"TEST.IGNORE_BOX_REGRESSION": False}, "vinvl-refined", False),
        (VINVL | {"MODEL.ROI_HEADS.NMS_FILTER": 2}, "vinvl-fast", False),
        (VQA, "vqa-maskrcnn-x152", False),
        (FPN, "detectron2-r50-fpn", False),
        (FPN | X101, "detectron2-x101-fpn", False),
        (GRID, "grid-x152-challenge", False),
        (PORT_X152, "milvlg-d2-x152", False),
    ],
)
def test_published_configurations_are_their_architectures(
    values: dict[str, object], arch: str, grid: bool
) -> None:
    assert read_configuration(values, grid=grid).config == ARCHITECTURES[arch]


def test_one_file_is_a_detector_or_a_grid() -> None:
    """grid-feats-vqa's R-50-updn and MILVLG's Detectron2 mode have the same keys."""
    assert read_configuration(UPDN).family == "milvlg-d2"
    grid = read_configuration(UPDN, grid=True)
    assert grid.family == "grid-feats" and grid.config.last_stage == 4
    assert read_configuration(PORT_X152, grid=True).family == "milvlg-d2"
    assert read_configuration(keys(C4), grid=True).config.regions == "grid"


def test_the_third_selection_of_vinvl() -> None:
    config = read_configuration(VINVL | {"MODEL.ROI_HEADS.NMS_FILTER": 0}).config
    assert (config.selection, config.pair_order) == ("class-pairs", "class")
    assert config.class_nms_thresholds == (0.5,) and not config.clips_written


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (FPN | {"MODEL.ANCHOR_GENERATOR.SIZES": [[32, 64]]}, "5 lists, one for each feature map"),
        (
            FPN | {"MODEL.ANCHOR_GENERATOR.SIZES": [[32, 40], [64], [1], [2], [3]]},
            "as many numbers for each feature map",
        ),
        (FPN | {"MODEL.ROI_HEADS.NAME": "CascadeROIHeads"}, "expected 'StandardROIHeads'"),
        (FPN | {"MODEL.FPN.NORM": "GN"}, "a pyramid here has no normalisation"),
        (FPN | {"MODEL.ROI_BOX_HEAD.NUM_CONV": 4}, "expected 0"),
        (VINVL | {"MODEL.ROI_HEADS.NMS_FILTER": 3}, "expected 0 or 1 or 2"),
        (VINVL | {"MODEL.RESNETS.STAGE_WITH_DCN": [False, True, True, True]}, "deformable"),
        (VINVL | {"MODEL.RELATION": 1}, "a key that a detector of vinvl has"),
        (VQA | {"MODEL.RPN.ANCHOR_SIZES": [32]}, "5 lists, one for each feature map"),
        (VQA | {"MODEL.MASK_ON": True}, "this family has no mask head"),
        (GRID | {"MODEL.RESNETS.DEFORM_MODULATED": True}, "offsets here have no weights"),
        (GRID | {"MODEL.RESNETS.DEFORM_ON_PER_STAGE": [True]}, "for each of res2 to res5"),
    ],
)
def test_what_other_families_cannot_honour(values: dict[str, object], message: str) -> None:
    with pytest.raises(WrongKey, match=message):
        read_configuration(values)
