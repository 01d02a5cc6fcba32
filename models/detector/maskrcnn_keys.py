"""Holds the key tables of maskrcnn-benchmark's configurations: VinVL's and vqa-maskrcnn's.

Keys set a field, require a value or are ignored. Defaults are those of the family's library.
"""

from vlmill.models.detector.config import BLOCKS
from vlmill.models.detector.key_tables import (
    C4,
    FPN,
    MAX_ANCHORS,
    MAX_BOXES,
    MAX_CHANNELS,
    MAX_CLASSES,
    MAX_POOL,
    MAX_SAMPLING,
    MAX_SIDE,
    PLAIN,
    STRIDES,
)
from vlmill.models.detector.keys import (
    Key,
    Value,
    as_tuple,
    each,
    each_level,
    fixed_key,
    flag,
    integer,
    less_one,
    lookup,
    number,
    numbers,
    one_level,
    sets,
    without,
)


def nest_numbers(value: Value) -> Value:
    """Returns a list of numbers as one list per number."""
    return [[item] for item in value] if isinstance(value, list) else value


# maskrcnn-benchmark: class counts include background; only the body determines the widths.
SIZE_KEYS: dict[str, Key] = {
    "INPUT.MIN_SIZE_TEST": sets("short_side", 800, integer(3, MAX_SIDE)),
    "INPUT.MAX_SIZE_TEST": sets("long_side", 1333, integer(3, MAX_SIDE)),
    "INPUT.PIXEL_MEAN": sets("pixel_mean", [102.9801, 115.9465, 122.7717], numbers(3, -1e4, 1e4)),
    "INPUT.PIXEL_STD": sets("pixel_std", [1.0, 1.0, 1.0], numbers(3, 1e-4, 1e4)),
    "INPUT.TO_BGR255": fixed_key(True, True, "pixels are blue-green-red, up to 255"),
}
MASKRCNN_KEYS: dict[str, Key] = SIZE_KEYS | {
    "MODEL.RPN_ONLY": fixed_key(False, False, "regions are described"),
    "MODEL.RETINANET_ON": fixed_key(False, False, "regions come from a proposal network"),
    "MODEL.MASK_ON": fixed_key(False, False, "this family has no mask head"),
    "MODEL.KEYPOINT_ON": fixed_key(False, False, "this family has no keypoint head"),
    "MODEL.CLS_AGNOSTIC_BBOX_REG": fixed_key(False, False, "boxes of this family are of classes"),
    "MODEL.RESNETS.NUM_GROUPS": sets("groups", 1, integer(1, MAX_CHANNELS)),
    "MODEL.RESNETS.WIDTH_PER_GROUP": sets("res2_width", 64, integer(1, MAX_CHANNELS)),
    "MODEL.RESNETS.STRIDE_IN_1X1": sets("stride_in_1x1", True, flag),
    "MODEL.RESNETS.RES2_OUT_CHANNELS": sets("res2_channels", 256, integer(1, MAX_CHANNELS // 8)),
    "MODEL.RESNETS.STEM_OUT_CHANNELS": sets("stem_channels", 64, integer(1, MAX_CHANNELS)),
    "MODEL.RESNETS.TRANS_FUNC": fixed_key(
        "BottleneckWithFixedBatchNorm", "BottleneckWithFixedBatchNorm", "batch normalisation"
    ),
    "MODEL.RESNETS.STEM_FUNC": fixed_key(
        "StemWithFixedBatchNorm", "StemWithFixedBatchNorm", "batch normalisation"
    ),
    "MODEL.RESNETS.RES5_DILATION": fixed_key(1, 1, "res5 of this family is not dilated"),
    "MODEL.RESNETS.STAGE_WITH_DCN": fixed_key([False] * 4, [False] * 4, PLAIN),
    "MODEL.RPN.ASPECT_RATIOS": sets(
        "anchor_ratios", [0.5, 1.0, 2.0], each(number(1e-3, 1e3), MAX_ANCHORS)
    ),
    "MODEL.RPN.PRE_NMS_TOP_N_TEST": sets("pre_nms_top", 6000, integer(1, MAX_BOXES)),
    "MODEL.RPN.NMS_THRESH": sets("rpn_nms_threshold", 0.7, number(0.0, 1.0)),
    "MODEL.RPN.MIN_SIZE": sets("min_proposal_size", 0, number(0.0, 1e4)),
    "MODEL.RPN.RPN_HEAD": fixed_key("SingleConvRPNHead", "SingleConvRPNHead", "one convolution"),
    "MODEL.RPN.FORCE_BOXES": fixed_key(False, False, "--boxes says boxes from elsewhere"),
    "MODEL.ROI_HEADS.BBOX_REG_WEIGHTS": sets(
        "box_weights", [10.0, 10.0, 5.0, 5.0], numbers(4, 1e-6, 1e6)
    ),
    "MODEL.ROI_BOX_HEAD.POOLER_RESOLUTION": sets("pool_size", 14, integer(1, MAX_POOL)),
    "MODEL.ROI_BOX_HEAD.POOLER_SAMPLING_RATIO": sets("sampling_ratio", 0, integer(0, MAX_SAMPLING)),
    "MODEL.ROI_BOX_HEAD.NUM_CLASSES": sets("num_classes", 81, less_one(integer(2, MAX_CLASSES))),
    "MODEL.ROI_BOX_HEAD.USE_GN": fixed_key(False, False, "the head has no normalisation"),
}
IGNORED_MASKRCNN = {
    "INPUT.": (
        *("MIN_SIZE_TRAIN", "MAX_SIZE_TRAIN", "BRIGHTNESS", "CONTRAST", "SATURATION", "HUE"),
        *("HORIZONTAL_FLIP_PROB_TRAIN", "VERTICAL_FLIP_PROB_TRAIN"),
    ),
    "MODEL.": ("WEIGHT", "DEVICE", "RELATION_ON", "USE_FREQ_PRIOR"),
    "MODEL.BACKBONE.": ("FREEZE_CONV_BODY_AT", "USE_GN"),
    "MODEL.RESNETS.": ("BACKBONE_OUT_CHANNELS", "WITH_MODULATED_DCN", "DEFORMABLE_GROUPS"),
    "MODEL.RPN.": (
        *("STRADDLE_THRESH", "FG_IOU_THRESHOLD", "BG_IOU_THRESHOLD", "BATCH_SIZE_PER_IMAGE"),
        *("POSITIVE_FRACTION", "PRE_NMS_TOP_N_TRAIN", "POST_NMS_TOP_N_TRAIN"),
        *("FPN_POST_NMS_TOP_N_TRAIN", "FPN_POST_NMS_TOP_N_TEST", "FPN_POST_NMS_PER_BATCH"),
    ),
    "MODEL.ROI_HEADS.": (
        *("FG_IOU_THRESHOLD", "BG_IOU_THRESHOLD", "BATCH_SIZE_PER_IMAGE", "POSITIVE_FRACTION"),
        # Flags of extract-rois replace these: --threshold, --min-boxes, --max-boxes.
        *("SCORE_THRESH", "DETECTIONS_PER_IMG", "MIN_DETECTIONS_PER_IMG", "NMS"),
    ),
    "MODEL.ROI_BOX_HEAD.": (
        *("MLP_HEAD_DIM", "CONV_HEAD_DIM", "NUM_STACKED_CONVS"),
        *("RETURN_FC_FEATS", "ATTR", "NUM_ATTR"),
    ),
    "MODEL.ROI_ATTRIBUTE_HEAD.": (
        *("FEATURE_EXTRACTOR", "PREDICTOR", "MLP_HEAD_DIM", "LOSS_WEIGHT"),
        *("POOLER_RESOLUTION", "POOLER_SAMPLING_RATIO", "POOLER_SCALES"),
        *("MAX_NUM_ATTR_PER_IMG", "MAX_NUM_ATTR_PER_OBJ", "POSTPROCESS_ATTRIBUTES_THRESHOLD"),
    ),
}
MASKRCNN_SECTIONS = (
    *("SOLVER", "DATASETS", "DATALOADER", "TEST", "MODEL.FPN", "MODEL.GROUP_NORM"),
    *("MODEL.ROI_MASK_HEAD", "MODEL.ROI_KEYPOINT_HEAD", "MODEL.RETINANET", "MODEL.FBNET"),
    *("MODEL.ROI_RELATION_HEAD", "MODEL.VIT"),
)
IGNORED_MASKRCNN_KEYS = (
    *("OUTPUT_DIR", "PATHS_CATALOG", "DATA_DIR", "LOG_DIR", "DISTRIBUTED_BACKEND", "DTYPE"),
    *("AMP_VERBOSE", "DEBUG", "HOVER"),
    *(section + name for section, names in IGNORED_MASKRCNN.items() for name in names),
)
# VinVL's command line sets NMS_FILTER 1 and proposals; its file does not.
VINVL_KEYS = MASKRCNN_KEYS | {
    "MODEL.META_ARCHITECTURE": Key(
        "GeneralizedRCNN", lookup(dict.fromkeys(("AttrRCNN", "GeneralizedRCNN"))), ()
    ),
    "MODEL.BACKBONE.CONV_BODY": sets(
        "depth", "R-50-C4", lookup({f"R-{depth}-C4": depth for depth in BLOCKS})
    ),
    "MODEL.RPN.USE_FPN": fixed_key(False, False, C4),
    "MODEL.ROI_HEADS.USE_FPN": fixed_key(False, False, C4),
    "MODEL.RPN.ANCHOR_SIZES": sets(
        "anchor_scales",
        [32, 64, 128, 256, 512],
        lambda value: one_level(1e-3, 1e4, MAX_ANCHORS, 1 / 16)([value]),
    ),
    "MODEL.RPN.ANCHOR_STRIDE": fixed_key([16], [16], C4),
    "MODEL.RPN.POST_NMS_TOP_N_TEST": sets("post_nms_top", 1000, integer(1, MAX_BOXES)),
    "MODEL.ROI_HEADS.NMS_FILTER": Key(
        1,
        lookup(
            {
                0: ("class-pairs", "class", 0.0),
                1: ("kept-class", "score", 0.0),
                2: ("best-class", "score", 0.01),
            }
        ),
        ("selection", "pair_order", "candidate_share"),
    ),
    "MODEL.ROI_HEADS.NMS": sets("class_nms_thresholds", 0.5, as_tuple(number(0.0, 1.0))),
    "TEST.IGNORE_BOX_REGRESSION": sets(
        "written_boxes", True, lookup({True: "proposals", False: "refined"})
    ),
    "DATALOADER.SIZE_DIVISIBILITY": sets("size_divisibility", 0, integer(0, 1024)),
    "MODEL.ROI_BOX_HEAD.FEATURE_EXTRACTOR": fixed_key(
        "ResNet50Conv5ROIFeatureExtractor", "ResNet50Conv5ROIFeatureExtractor", C4
    ),
    "MODEL.ROI_BOX_HEAD.PREDICTOR": fixed_key("FastRCNNPredictor", "FastRCNNPredictor", C4),
    "MODEL.ROI_BOX_HEAD.POOLER_SCALES": fixed_key([1 / 16], [1 / 16], C4),
    "MODEL.ROI_BOX_HEAD.DILATION": fixed_key(1, 1, "res5 of this family is not dilated"),
    "MODEL.ROI_BOX_HEAD.FORCE_BOXES": fixed_key(False, False, "--boxes says boxes from elsewhere"),
    "MODEL.ATTRIBUTE_ON": sets("attributes_on", False, flag),
    "MODEL.ROI_ATTRIBUTE_HEAD.SHARE_BOX_FEATURE_EXTRACTOR": fixed_key(
        True, True, "attributes share res5"
    ),
    "MODEL.ROI_ATTRIBUTE_HEAD.NUM_ATTRIBUTES": sets(
        "num_attributes", 525, less_one(integer(2, MAX_CLASSES))
    ),
    "MODEL.ROI_ATTRIBUTE_HEAD.CLS_EMD_DIM": sets(
        "class_embedding_size", 256, integer(1, MAX_CHANNELS)
    ),
    "MODEL.ROI_ATTRIBUTE_HEAD.ATTR_EMD_DIM": sets(
        "attribute_hidden_size", 512, integer(1, MAX_CHANNELS)
    ),
}
# vqa-maskrcnn: its extraction script has its own sizes and overlap (0.5), regardless of the file.
VQA_MASKRCNN_KEYS = without(MASKRCNN_KEYS, "INPUT.MIN_SIZE_TEST", "INPUT.MAX_SIZE_TEST") | {
    "MODEL.META_ARCHITECTURE": fixed_key("GeneralizedRCNN", "GeneralizedRCNN", FPN),
    "MODEL.BACKBONE.CONV_BODY": sets(
        "depth", "R-50-C4", lookup({f"R-{depth}-FPN": depth for depth in BLOCKS})
    ),
    "MODEL.BACKBONE.OUT_CHANNELS": sets("fpn_channels", 1024, integer(1, MAX_CHANNELS)),
    "MODEL.RPN.USE_FPN": fixed_key(False, True, FPN),
    "MODEL.ROI_HEADS.USE_FPN": fixed_key(False, True, FPN),
    "MODEL.RPN.ANCHOR_SIZES": sets(
        "anchor_scales",
        [32, 64, 128, 256, 512],
        lambda value: each_level(STRIDES, 1e-3, 1e4, 1)(nest_numbers(value)),
    ),
    "MODEL.RPN.ANCHOR_STRIDE": fixed_key([16], list(STRIDES), FPN),
    "MODEL.RPN.POST_NMS_TOP_N_TEST": sets("map_nms_top", 1000, integer(1, MAX_BOXES)),
    "MODEL.RPN.FPN_POST_NMS_TOP_N_TEST": sets("post_nms_top", 2000, integer(1, MAX_BOXES)),
    "MODEL.ROI_BOX_HEAD.FEATURE_EXTRACTOR": fixed_key(
        "ResNet50Conv5ROIFeatureExtractor", "FPN2MLPFeatureExtractor", FPN
    ),
    "MODEL.ROI_BOX_HEAD.PREDICTOR": fixed_key("FastRCNNPredictor", "FPNPredictor", FPN),
    "MODEL.ROI_BOX_HEAD.POOLER_SCALES": fixed_key([1 / 16], [0.25, 0.125, 0.0625, 0.03125], FPN),
    "MODEL.ROI_BOX_HEAD.MLP_HEAD_DIM": sets("fc_channels", 1024, integer(1, MAX_CHANNELS)),
}
