"""Holds the key tables of other projects' configurations: the keys that set a field, require a
value or are ignored.

Several families share Detectron2's names and differ in some: Detectron2 itself (C4 and FPN),
airsplay's fork, the port of MILVLG (its Caffe and its Detectron2 mode), grid features, and the port
in Hugging Face's research projects, which writes the names in lower case and without ``MODEL``.
Defaults are those of the family's library.
"""

from vlmill.models.detector.config import BLOCKS
from vlmill.models.detector.keys import (
    MISSING,
    Key,
    as_tuple,
    each,
    each_level,
    either,
    fixed_key,
    flag,
    flagged_stages,
    integer,
    less_one,
    lookup,
    number,
    numbers,
    one_level,
    sets,
    single,
    without,
)

# Limits for a network that can be built. Class ids are stored in 16 bits.
MAX_CHANNELS, MAX_CLASSES, MAX_BOXES, MAX_SIDE = 8192, 32_766, 100_000, 10_000
MAX_POOL, MAX_SAMPLING, MAX_ANCHORS = 64, 16, 32

C4 = "regions have their features from ResNet C4 models alone"
FPN = "regions have their features from Faster R-CNN with FPN and two linear layers"
NO_GROUPS = "convolutions of this family have no groups"
PLAIN = "there are no deformable convolutions in this family"
LEVELS = ["p2", "p3", "p4", "p5", "p6"]
STRIDES = (4, 8, 16, 32, 64)
POOLINGS = {"ROIPool": "pool", "ROIAlign": "align-legacy", "ROIAlignV2": "align"}
ORDERS = {"BGR": "bgr", "RGB": "rgb"}
HALVED = {True: (2, 1), False: (1, 2)}  # res5's stride and dilation
RPN_WIDTH = either(lookup({-1: None}), integer(1, MAX_CHANNELS))  # None: as wide as its input
# These are the same at inference: constants for each channel.
BATCH_NORMS = ("FrozenBN", "BN", "SyncBN", "nnSyncBN", "naiveSyncBN", "naiveSyncBN_N")

# Sections and keys that change nothing in a C4 model's features at inference, or that flags of
# extract-rois replace: SCORE_THRESH_TEST and TEST.DETECTIONS_PER_IMAGE are --threshold and
# --max-boxes.
IGNORED_SECTIONS = (
    "SOLVER",
    "DATASETS",
    "DATALOADER",
    "TEST",
    "GLOBAL",
    "INPUT.CROP",
    "MODEL.FPN",
    "MODEL.ROI_BOX_CASCADE_HEAD",
    "MODEL.ROI_MASK_HEAD",
    "MODEL.ROI_KEYPOINT_HEAD",
    "MODEL.SEM_SEG_HEAD",
    "MODEL.PANOPTIC_FPN",
    "MODEL.RETINANET",
)
LOSSES = ("BBOX_REG_LOSS_TYPE", "BBOX_REG_LOSS_WEIGHT", "SMOOTH_L1_BETA")
SAMPLING = ("IOU_THRESHOLDS", "IOU_LABELS", "BATCH_SIZE_PER_IMAGE", "POSITIVE_FRACTION")
TOP = ("PRE_NMS_TOPK_TRAIN", "POST_NMS_TOPK_TRAIN")
OTHER_HEADS = ("NAME", "NUM_FC", "FC_DIM", "NUM_CONV", "CONV_DIM", "NORM", "TRAIN_ON_PRED_BOXES")
FEDERATED = ("USE_FED_LOSS", "FED_LOSS_FREQ_WEIGHT_POWER", "FED_LOSS_NUM_CLASSES")
SIZES = ("MIN_SIZE_TRAIN", "MIN_SIZE_TRAIN_SAMPLING", "MAX_SIZE_TRAIN")
IGNORED_IN = {
    "INPUT.": (*SIZES, "RANDOM_FLIP", "MASK_FORMAT"),
    "MODEL.": ("DEVICE", "WEIGHTS"),
    "MODEL.BACKBONE.": ("FREEZE_AT",),
    # Keys of res5 in the backbone, which a C4 model does not build, and of deformable convolutions.
    "MODEL.RESNETS.": ("RES5_DILATION", "DEFORM_MODULATED", "DEFORM_NUM_GROUPS"),
    "MODEL.ANCHOR_GENERATOR.": ("ANGLES",),
    "MODEL.RPN.": ("BOUNDARY_THRESH", "LOSS_WEIGHT", *TOP, *SAMPLING, *LOSSES),
    "MODEL.ROI_HEADS.": ("PROPOSAL_APPEND_GT", "SCORE_THRESH_TEST", *SAMPLING),
    "MODEL.ROI_BOX_HEAD.": (*OTHER_HEADS, *LOSSES, *FEDERATED),
}
IGNORED_KEYS = (
    *("OUTPUT_DIR", "SEED", "CUDNN_BENCHMARK", "FLOAT32_PRECISION", "VIS_PERIOD"),
    *(section + name for section, names in IGNORED_IN.items() for name in names),
)
EXTRACTOR = ("MIN_BOXES", "MAX_BOXES", "CONF_THRESH", "OUTPUT_DIR")

DETECTRON2_KEYS: dict[str, Key] = {
    "VERSION": fixed_key(2, 2, "older ones name other keys"),
    "MODEL.META_ARCHITECTURE": fixed_key("GeneralizedRCNN", "GeneralizedRCNN", C4),
    "MODEL.BACKBONE.NAME": fixed_key("build_resnet_backbone", "build_resnet_backbone", C4),
    "MODEL.RESNETS.OUT_FEATURES": fixed_key(["res4"], ["res4"], C4),
    "MODEL.PROPOSAL_GENERATOR.NAME": fixed_key("RPN", "RPN", C4),
    "MODEL.RPN.HEAD_NAME": fixed_key("StandardRPNHead", "StandardRPNHead", C4),
    "MODEL.RPN.IN_FEATURES": fixed_key(["res4"], ["res4"], C4),
    "MODEL.ROI_HEADS.NAME": fixed_key("Res5ROIHeads", "Res5ROIHeads", C4),
    "MODEL.ROI_HEADS.IN_FEATURES": fixed_key(["res4"], ["res4"], C4),
    # Mask and keypoint heads run after the detections and do not change them.
    "MODEL.MASK_ON": Key(False, flag, ()),
    "MODEL.KEYPOINT_ON": Key(False, flag, ()),
    "MODEL.LOAD_PROPOSALS": fixed_key(False, False, "--boxes says boxes from elsewhere"),
    "MODEL.RESNETS.NUM_GROUPS": sets("groups", 1, integer(1, MAX_CHANNELS)),
    "MODEL.RESNETS.NORM": Key("FrozenBN", lookup(dict.fromkeys(BATCH_NORMS)), ()),
    "MODEL.RESNETS.DEFORM_ON_PER_STAGE": fixed_key([False] * 4, [False] * 4, PLAIN),
    "MODEL.ANCHOR_GENERATOR.NAME": fixed_key(
        "DefaultAnchorGenerator", "DefaultAnchorGenerator", "anchors here have no angles"
    ),
    "MODEL.ROI_BOX_HEAD.USE_SIGMOID_CE": fixed_key(False, False, "classes here share a softmax"),
    "MODEL.PIXEL_MEAN": sets("pixel_mean", [103.53, 116.28, 123.675], numbers(3, -1e4, 1e4)),
    "MODEL.PIXEL_STD": sets("pixel_std", [1.0, 1.0, 1.0], numbers(3, 1e-4, 1e4)),
    "INPUT.MIN_SIZE_TEST": sets("short_side", 800, integer(3, MAX_SIDE)),
    "INPUT.MAX_SIZE_TEST": sets("long_side", 1333, integer(3, MAX_SIDE)),
    "INPUT.FORMAT": sets("channel_order", "BGR", lookup(ORDERS)),
    "MODEL.RESNETS.DEPTH": sets("depth", 50, lookup({depth: depth for depth in BLOCKS})),
    "MODEL.RESNETS.WIDTH_PER_GROUP": sets("res2_width", 64, integer(1, MAX_CHANNELS)),
    "MODEL.RESNETS.STRIDE_IN_1X1": sets("stride_in_1x1", True, flag),
    "MODEL.RESNETS.RES2_OUT_CHANNELS": sets("res2_channels", 256, integer(1, MAX_CHANNELS // 8)),
    "MODEL.RESNETS.STEM_OUT_CHANNELS": sets("stem_channels", 64, integer(1, MAX_CHANNELS)),
    "MODEL.PROPOSAL_GENERATOR.MIN_SIZE": sets("min_proposal_size", 0, number(0.0, 1e4)),
    "MODEL.ANCHOR_GENERATOR.SIZES": sets(
        "anchor_scales", [[32, 64, 128, 256, 512]], one_level(1e-3, 1e4, MAX_ANCHORS, 1 / 16)
    ),
    "MODEL.ANCHOR_GENERATOR.ASPECT_RATIOS": sets(
        "anchor_ratios", [[0.5, 1.0, 2.0]], one_level(1e-3, 1e3, MAX_ANCHORS)
    ),
    "MODEL.ANCHOR_GENERATOR.OFFSET": sets("anchor_offset", 0.0, number(0.0, 0.999)),
    "MODEL.RPN.BBOX_REG_WEIGHTS": sets("rpn_box_weights", [1.0] * 4, numbers(4, 1e-6, 1e6)),
    "MODEL.RPN.PRE_NMS_TOPK_TEST": sets("pre_nms_top", 6000, integer(1, MAX_BOXES)),
    "MODEL.RPN.POST_NMS_TOPK_TEST": sets("post_nms_top", 1000, integer(1, MAX_BOXES)),
    "MODEL.RPN.NMS_THRESH": sets("rpn_nms_threshold", 0.7, number(0.0, 1.0)),
    "MODEL.RPN.CONV_DIMS": sets("rpn_channels", [-1], single(RPN_WIDTH)),
    "MODEL.ROI_HEADS.NUM_CLASSES": sets("num_classes", 80, integer(1, MAX_CLASSES)),
    "MODEL.ROI_HEADS.NMS_THRESH_TEST": sets(
        "class_nms_thresholds", 0.5, as_tuple(number(0.0, 1.0))
    ),
    "MODEL.ROI_BOX_HEAD.BBOX_REG_WEIGHTS": sets(
        "box_weights", [10.0, 10.0, 5.0, 5.0], numbers(4, 1e-6, 1e6)
    ),
    "MODEL.ROI_BOX_HEAD.POOLER_TYPE": sets("pooling", "ROIAlignV2", lookup(POOLINGS)),
    "MODEL.ROI_BOX_HEAD.POOLER_RESOLUTION": sets("pool_size", 14, integer(1, MAX_POOL)),
    "MODEL.ROI_BOX_HEAD.POOLER_SAMPLING_RATIO": sets("sampling_ratio", 0, integer(0, MAX_SAMPLING)),
    "MODEL.ROI_BOX_HEAD.CLS_AGNOSTIC_BBOX_REG": sets(
        "class_specific_boxes", False, lookup({False: True, True: False})
    ),
}

# Detectron2's models with a feature pyramid, and Mask R-CNN's, without running the mask head.
DETECTRON2_FPN_KEYS = DETECTRON2_KEYS | {
    "MODEL.BACKBONE.NAME": fixed_key("build_resnet_backbone", "build_resnet_fpn_backbone", FPN),
    "MODEL.RESNETS.OUT_FEATURES": fixed_key(["res4"], ["res2", "res3", "res4", "res5"], FPN),
    "MODEL.RESNETS.RES5_DILATION": fixed_key(1, 1, FPN),
    "MODEL.FPN.IN_FEATURES": fixed_key([], ["res2", "res3", "res4", "res5"], FPN),
    "MODEL.FPN.NORM": fixed_key("", "", "a pyramid here has no normalisation"),
    "MODEL.FPN.FUSE_TYPE": fixed_key("sum", "sum", "maps of a pyramid here are added"),
    "MODEL.FPN.OUT_CHANNELS": sets("fpn_channels", 256, integer(1, MAX_CHANNELS)),
    "MODEL.RPN.IN_FEATURES": fixed_key(["res4"], LEVELS, FPN),
    "MODEL.ANCHOR_GENERATOR.SIZES": sets(
        "anchor_scales", [[32, 64, 128, 256, 512]], each_level(STRIDES, 1e-3, 1e4, MAX_ANCHORS)
    ),
    "MODEL.ROI_HEADS.NAME": fixed_key("Res5ROIHeads", "StandardROIHeads", FPN),
    "MODEL.ROI_HEADS.IN_FEATURES": fixed_key(["res4"], LEVELS[:-1], FPN),
    "MODEL.ROI_BOX_HEAD.NAME": fixed_key("", "FastRCNNConvFCHead", FPN),
    "MODEL.ROI_BOX_HEAD.NUM_FC": fixed_key(0, 2, FPN),
    "MODEL.ROI_BOX_HEAD.NUM_CONV": fixed_key(0, 0, FPN),
    "MODEL.ROI_BOX_HEAD.NORM": fixed_key("", "", FPN),
    "MODEL.ROI_BOX_HEAD.FC_DIM": sets("fc_channels", 1024, integer(1, MAX_CHANNELS)),
}

# Grid features: only the backbone and the position of res5 matter.
GRID_SECTIONS = ("MODEL.RPN", "MODEL.ANCHOR_GENERATOR", "MODEL.ROI_HEADS", "MODEL.ROI_BOX_HEAD")
GRID_KEYS = {
    name: key
    for name, key in without(DETECTRON2_KEYS, "MODEL.RESNETS.OUT_FEATURES").items()
    if not name.startswith((*GRID_SECTIONS, "MODEL.PROPOSAL_GENERATOR"))
} | {
    "MODEL.RESNETS.DEFORM_ON_PER_STAGE": sets("deformable_stages", [False] * 4, flagged_stages),
    "MODEL.RESNETS.DEFORM_MODULATED": fixed_key(False, False, "offsets here have no weights"),
    "MODEL.RESNETS.DEFORM_NUM_GROUPS": fixed_key(1, 1, "offsets here have one group"),
    "MODEL.ROI_HEADS.NAME": sets(
        "last_stage",
        "AttributeStandardROIHeads",
        lookup({"AttributeStandardROIHeads": 5, "AttributeRes5ROIHeads": 4}),
    ),
}

# airsplay's fork: its scripts raise the overlap themselves, regardless of NMS_THRESH_TEST.
AIRSPLAY_KEYS = without(
    DETECTRON2_KEYS, "MODEL.RPN.CONV_DIMS", "MODEL.ROI_HEADS.NMS_THRESH_TEST"
) | {
    "MODEL.RESNETS.NUM_GROUPS": fixed_key(1, 1, NO_GROUPS),
    "MODEL.CAFFE_MAXPOOL": sets("stem_ceil_pool", False, flag),
    "MODEL.PROPOSAL_GENERATOR.HID_CHANNELS": sets("rpn_channels", -1, RPN_WIDTH),
    "MODEL.ROI_BOX_HEAD.RES5HALVE": Key(True, lookup(HALVED), ("res5_stride", "res5_dilation")),
    "MODEL.ROI_BOX_HEAD.ATTR": sets("attributes_on", False, flag),
    "MODEL.ROI_BOX_HEAD.NUM_ATTRS": sets("num_attributes", -1, integer(-1, MAX_CLASSES)),
}

# MILVLG's port: the counts of classes and attributes include background. Anchors come with its
# weights; SIZES are those of the original, in cells of 16 pixels.
MILVLG_KEYS = without(DETECTRON2_KEYS, "MODEL.RPN.CONV_DIMS") | {
    "MODEL.RESNETS.NUM_GROUPS": fixed_key(1, 1, NO_GROUPS),
    "MODEL.META_ARCHITECTURE": fixed_key(
        "GeneralizedRCNN", "GeneralizedBUARCNN", "the port's Caffe mode"
    ),
    "MODEL.BUA.CAFFE": fixed_key(True, True, "the port's Caffe mode"),
    "MODEL.BACKBONE.NAME": fixed_key("build_resnet_backbone", "build_bua_resnet_backbone", C4),
    "MODEL.PROPOSAL_GENERATOR.NAME": fixed_key("RPN", "BUARPN", C4),
    "MODEL.RPN.HEAD_NAME": fixed_key("StandardRPNHead", "StandardBUARPNHead", C4),
    "MODEL.ROI_HEADS.NAME": fixed_key("Res5ROIHeads", "BUACaffeRes5ROIHeads", C4),
    "MODEL.BUA.EXTRACTOR.MODE": fixed_key(1, 1, "features of proposals; --boxes says others"),
    "INPUT.MIN_SIZE_TEST": sets("short_side", 600, integer(3, MAX_SIDE)),
    "INPUT.MAX_SIZE_TEST": sets("long_side", 1000, integer(3, MAX_SIDE)),
    "MODEL.BUA.RESNET_VERSION": Key(
        1, lookup({1: (False, 1e-5), 2: (True, 2e-5)}), ("pre_activation", "norm_eps")
    ),
    "MODEL.BUA.RPN.CONV_OUT_CHANNELS": sets("rpn_channels", 512, integer(1, MAX_CHANNELS)),
    "MODEL.BUA.ATTRIBUTE_ON": sets("attributes_on", False, flag),
    "MODEL.BUA.ATTRIBUTE.NUM_CLASSES": sets(
        "num_attributes", 401, less_one(integer(2, MAX_CLASSES))
    ),
    "MODEL.RESNETS.RES5_DILATION": Key(
        1, lookup({1: (2, 1), 2: (1, 2)}), ("res5_stride", "res5_dilation")
    ),
    "MODEL.ANCHOR_GENERATOR.SIZES": sets(
        "anchor_scales", [[32, 64, 128, 256, 512]], one_level(1e-3, 1e4, MAX_ANCHORS)
    ),
    "MODEL.ROI_HEADS.NUM_CLASSES": sets("num_classes", 80, less_one(integer(2, MAX_CLASSES))),
    "MODEL.ROI_HEADS.NMS_THRESH_TEST": sets(
        "class_nms_thresholds", 0.3, as_tuple(number(0.0, 1.0))
    ),
}


# The same port's Detectron2 mode: the counts of classes and attributes exclude background.
D2_ATTRIBUTES = "MODEL.ROI_ATTRIBUTE_HEAD."
MILVLG_D2_KEYS = DETECTRON2_KEYS | {
    "MODEL.ROI_HEADS.NAME": fixed_key("Res5ROIHeads", "AttributeRes5ROIHeads", C4),
    "MODEL.BUA.CAFFE": fixed_key(False, False, "the port's Detectron2 mode"),
    "MODEL.BUA.ATTRIBUTE_ON": fixed_key(True, True, "weights of this layout have attributes"),
    "INPUT.MIN_SIZE_TEST": sets("short_side", 600, integer(3, MAX_SIDE)),
    "INPUT.MAX_SIZE_TEST": sets("long_side", 1000, integer(3, MAX_SIDE)),
    f"{D2_ATTRIBUTES}NUM_CLASSES": sets("num_attributes", 400, integer(1, MAX_CLASSES)),
    f"{D2_ATTRIBUTES}OBJ_EMBED_DIM": sets("class_embedding_size", 256, integer(1, MAX_CHANNELS)),
    f"{D2_ATTRIBUTES}FC_DIM": sets("attribute_hidden_size", 512, integer(1, MAX_CHANNELS)),
}


def lower_name(name: str) -> str:
    """Returns the Hugging Face port's name for a key of Detectron2."""
    parts = name.lower().split(".")
    return ".".join(parts[1:] if len(parts) > 2 and parts[0] == "model" else parts)


def lowered_section(name: str) -> str:
    """Returns the Hugging Face port's name for a section of Detectron2."""
    return name.lower().removeprefix("model.")


# The port has no defaults: its file sets every key. It pools one way regardless of POOLER_TYPE.
HF_KEYS = {
    lower_name(name): key if not key.fields else Key(MISSING, key.read, key.fields)
    for name, key in without(
        AIRSPLAY_KEYS,
        "VERSION",
        "MODEL.CAFFE_MAXPOOL",
        "MODEL.PROPOSAL_GENERATOR.HID_CHANNELS",
        "MODEL.ROI_BOX_HEAD.POOLER_TYPE",
    ).items()
} | {
    "size_divisibility": fixed_key(0, 0, "nothing is padded"),
    "resnets.norm": Key("BN", lookup(dict.fromkeys(("BN", "nnSyncBN"))), ()),
    "model.max_pool": sets("stem_ceil_pool", MISSING, flag),
    "proposal_generator.hidden_channels": sets("rpn_channels", MISSING, RPN_WIDTH),
    "roi_heads.nms_thresh_test": sets(
        "class_nms_thresholds",
        MISSING,
        either(as_tuple(number(0.0, 1.0)), each(number(0.0, 1.0), 32)),
    ),
}
