"""Converts configurations of other projects, key by key, to ``DetectorConfig``.

A key is refused unless it sets a field or is known to change nothing at inference. ``key_tables``
has the tables of Detectron2 and its forks, this file those of maskrcnn-benchmark, whose defaults
are those of the family's library.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vlmill.models.detector import key_tables
from vlmill.models.detector.config import (
    BLOCKS,
    DetectorConfig,
    Family,
    airsplay,
    as_grid,
    detectron2,
    detectron2_fpn,
    grid_feats,
    hf_frcnn,
    milvlg,
    milvlg_d2,
    vinvl,
    vqa_maskrcnn,
)
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
    WrongKey,
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


@dataclass(frozen=True, kw_only=True)
class Names:
    """Holds a family's keys: keys that are read, and keys that change nothing."""

    conventions: Callable[..., DetectorConfig]  # sets what no key specifies
    keys: Mapping[str, Key]
    ignored_keys: Sequence[str]
    ignored_sections: Sequence[str] = key_tables.IGNORED_SECTIONS

    def ignores(self, name: str) -> bool:
        """Returns whether a key is known to change nothing."""
        within = any(name.startswith(f"{section}.") for section in self.ignored_sections)
        return within or name in self.ignored_keys or name in self.ignored_sections


NAMES: dict[Family, Names] = {
    "detectron2": Names(
        conventions=detectron2,
        keys=key_tables.DETECTRON2_KEYS,
        ignored_keys=key_tables.IGNORED_KEYS,
    ),
    "airsplay": Names(
        conventions=airsplay,
        keys=key_tables.AIRSPLAY_KEYS,
        ignored_keys=[*key_tables.IGNORED_KEYS, "MODEL.ROI_HEADS.NMS_THRESH_TEST"],
    ),
    "milvlg": Names(
        conventions=milvlg,
        keys=key_tables.MILVLG_KEYS,
        ignored_keys=[
            *key_tables.IGNORED_KEYS,
            "MODEL.BUA.EXTRACT_FEATS",
            *(f"MODEL.BUA.EXTRACTOR.{name}" for name in key_tables.EXTRACTOR),
        ],
    ),
    "milvlg-d2": Names(
        conventions=milvlg_d2,
        keys=key_tables.MILVLG_D2_KEYS,
        ignored_keys=[
            *key_tables.IGNORED_KEYS,
            *(
                "MODEL.BUA.EXTRACT_FEATS",
                "INPUT.MAX_ATTR_PER_INS",
                f"{key_tables.D2_ATTRIBUTES}LOSS_WEIGHT",
            ),
            *("MODEL.ATTRIBUTE_ON", "MODEL.BUA.EXTRACTOR.MODE"),
            *("MODEL.RPN.BBOX_LOSS_WEIGHT", "MODEL.ROI_BOX_HEAD.BBOX_LOSS_WEIGHT"),
            *(f"MODEL.BUA.EXTRACTOR.{name}" for name in key_tables.EXTRACTOR),
        ],
    ),
    "detectron2-fpn": Names(
        conventions=detectron2_fpn,
        keys=key_tables.DETECTRON2_FPN_KEYS,
        ignored_keys=key_tables.IGNORED_KEYS,
    ),
    "grid-feats": Names(
        conventions=grid_feats,
        keys=key_tables.GRID_KEYS,
        ignored_keys=[*key_tables.IGNORED_KEYS, "MODEL.RESNETS.OUT_FEATURES", "MODEL.ATTRIBUTE_ON"],
        ignored_sections=[
            *(*key_tables.IGNORED_SECTIONS, *key_tables.GRID_SECTIONS, "MODEL.PROPOSAL_GENERATOR"),
            *("MODEL.ROI_ATTRIBUTE_HEAD", "INPUT.MAX_ATTR_PER_INS"),
        ],
    ),
    "vinvl": Names(
        conventions=vinvl,
        keys=VINVL_KEYS,
        ignored_keys=IGNORED_MASKRCNN_KEYS,
        ignored_sections=MASKRCNN_SECTIONS,
    ),
    "vqa-maskrcnn": Names(
        conventions=vqa_maskrcnn,
        keys=VQA_MASKRCNN_KEYS,
        ignored_keys=[*IGNORED_MASKRCNN_KEYS, *("INPUT.MIN_SIZE_TEST", "INPUT.MAX_SIZE_TEST")],
        ignored_sections=MASKRCNN_SECTIONS,
    ),
    "hf-frcnn": Names(
        conventions=hf_frcnn,
        keys=key_tables.HF_KEYS,
        ignored_keys=[
            *map(key_tables.lower_name, key_tables.IGNORED_KEYS),
            *("version", "pad_value", "min_detections", "max_detections"),
            "roi_box_head.pooler_type",
        ],
        ignored_sections=[*map(key_tables.lowered_section, key_tables.IGNORED_SECTIONS)],
    ),
}


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """Holds a configuration of another project: its family, its keys and the resulting fields."""

    family: Family
    values: Mapping[str, Value]
    config: DetectorConfig

    def conflict_error(self, field: str, expected: str) -> WrongKey:
        """Returns an error for the key that set a field and contradicts another key or the file."""
        for name, key in NAMES[self.family].keys.items():
            if field in key.fields:
                return WrongKey(name, self.values.get(name, key.default), expected)
        raise AssertionError(f"no key of {self.family} sets {field}")


def flatten_sections(values: Mapping[str, Any], section: str = "") -> Iterator[tuple[str, Value]]:
    """Yields the keys of nested sections by their dotted names; tuples become lists."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from flatten_sections(value, f"{section}{name}.")
        else:
            yield f"{section}{name}", as_lists(value)


def as_lists(value: Any) -> Value:
    """Returns a value with its tuples replaced by lists."""
    return [as_lists(item) for item in value] if isinstance(value, list | tuple) else value


# Grid features are trained with these heads; MILVLG's Detectron2 mode also uses the second, which
# applies res5 to regions.
GRID_HEADS, REGION_HEADS = "AttributeStandardROIHeads", "AttributeRes5ROIHeads"


def recognise_family(values: Mapping[str, Value], *, grid: bool = False) -> Family:
    """Returns the family of a configuration; ``grid``: for the cells of res5 as regions.

    Raises ValueError if the keys belong to no known family.
    """
    names, heads = list(values), values.get("MODEL.ROI_HEADS.NAME")
    if "MODEL.BACKBONE.CONV_BODY" in names or "MODEL.RPN.USE_FPN" in names:
        pyramid = str(values.get("MODEL.BACKBONE.CONV_BODY", "")).endswith("FPN")
        return "vqa-maskrcnn" if pyramid else "vinvl"
    ported = any(name.startswith("MODEL.BUA.") for name in names)
    if heads == GRID_HEADS or (heads == REGION_HEADS and grid and not ported):
        return "grid-feats"
    if values.get("MODEL.BACKBONE.NAME") == "build_resnet_fpn_backbone":
        return "detectron2-fpn"
    if any(name.lower().startswith(("resnets.", "roi_box_head.")) for name in names):
        return "hf-frcnn"
    if heads == REGION_HEADS or any(name.startswith(key_tables.D2_ATTRIBUTES) for name in names):
        return "milvlg-d2"
    if ported:
        return "milvlg"
    if set(names) & (key_tables.AIRSPLAY_KEYS.keys() - key_tables.DETECTRON2_KEYS.keys()):
        return "airsplay"
    if any(name.startswith("MODEL.") for name in names):
        return "detectron2"
    raise ValueError("no section MODEL, and none of resnets")


def read_configuration(values: Mapping[str, Value], *, grid: bool = False) -> Configuration:
    """Converts a configuration by its dotted keys; an omitted key has its library's default.

    ``grid``: the cells of res5 are the regions; the configuration of grid features implies it.
    Raises ValueError for a configuration of no known family, and WrongKey for a key that is
    unknown, has an unsupported value, or contradicts another.
    """
    family = recognise_family(values, grid=grid)
    if family == "hf-frcnn":  # it reads its names in either case
        for name in values:
            if name != name.lower() and name.lower() in values:
                raise WrongKey(name, values[name], "the key once, in one case")
        values = {name.lower(): value for name, value in values.items()}
    names = NAMES[family]
    # Check the architecture's name before the keys that only another architecture has.
    for name, key in names.keys.items():
        if not key.fields:
            key.values(name, values.get(name, key.default))
    for name, value in values.items():
        if name not in names.keys and not names.ignores(name):
            raise WrongKey(name, value, f"a key that a detector of {family} has")
    config = make_config(family, values)
    return Configuration(family=family, values=values, config=as_grid(config) if grid else config)


def make_config(family: Family, values: Mapping[str, Value]) -> DetectorConfig:
    """Returns the fields that the keys of a family set; keys that set no field are not checked."""
    fields: dict[str, Any] = {}
    for name, key in NAMES[family].keys.items():
        if key.fields:
            fields |= key.values(name, values.get(name, key.default))
    if "groups" in fields:  # the key specifies the width of each group
        fields["res2_width"] *= fields["groups"]
    if fields.get("rpn_channels") is None and family != "grid-feats":
        fields["rpn_channels"] = fields.get("fpn_channels") or 4 * fields["res2_channels"]
    draft = Configuration(family=family, values=values, config=NAMES[family].conventions())
    if fields.pop("attributes_on", True):
        if fields.get("num_attributes", 1) < 1:
            raise draft.conflict_error("num_attributes", "their number, where there are attributes")
    else:
        fields["num_attributes"] = 0
    if fields.get("selection") == "kept-class":  # no key sets its overlap
        fields["class_nms_thresholds"] = vinvl().class_nms_thresholds
    if family in ("airsplay", "hf-frcnn"):
        # Layers have these widths regardless of the number of attributes.
        fields["class_embedding_size"] = fields["res2_channels"]
        fields["attribute_hidden_size"] = 2 * fields["res2_channels"]
        if fields["res5_stride"] == 1 and not fields["stride_in_1x1"]:
            # The fork removes the stride only from the first 1x1 and from the shortcut.
            raise draft.conflict_error("stride_in_1x1", "true, where res5 is not halved")
    return NAMES[family].conventions(**fields)
