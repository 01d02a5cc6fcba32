"""Converts configurations of other projects, key by key, to ``DetectorConfig`` (``key_tables``).

A key is refused unless it sets a field or is known to change nothing at inference.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vlmill.models.detector import key_tables
from vlmill.models.detector.config import (
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
from vlmill.models.detector.keys import Key, Value, WrongKey
from vlmill.models.detector.maskrcnn_keys import (
    IGNORED_MASKRCNN_KEYS,
    MASKRCNN_SECTIONS,
    VINVL_KEYS,
    VQA_MASKRCNN_KEYS,
)


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
