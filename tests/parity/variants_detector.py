"""Detectors of other sizes and options than the recorded ones, as sets by our own network.

Small: 96 features, two ratios and four sizes of anchors half a cell off, regions of 7 x 7 bins.
"""

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from tests.conftest import GOLDEN
from tests.parity.detectors import milvlg_keys
from tests.parity.golden import GoldenSet, read_index
from tests.parity.variants import recorded, write_detector, write_set
from torch import Tensor

from vlmill.models.detector.config import DetectorConfig
from vlmill.models.detector.configurations import flatten_sections, read_configuration

SETS = {golden.name: golden for golden in read_index(GOLDEN)}
MODELS = {
    "detectron2": "frcnn/d2_r50c4",
    "hf-frcnn": "frcnn/hf_frcnn",
    "milvlg": "frcnn/bua_caffe",
}
TOLERANCE = SETS["frcnn/d2_r50c4"].entry["tolerance"]
SIDES = {"MIN_SIZE_TEST": 64, "MAX_SIZE_TEST": 90}
SMALL: dict[str, dict[str, Any]] = {
    "RESNETS": {
        "WIDTH_PER_GROUP": 4,
        "RES2_OUT_CHANNELS": 12,
        "STEM_OUT_CHANNELS": 6,
        "NORM": "BN",
    },
    "ANCHOR_GENERATOR": {
        "SIZES": [[16, 32, 48, 96]],
        "ASPECT_RATIOS": [[0.5, 1.5]],
        "OFFSET": 0.5,
    },
    "RPN": {"PRE_NMS_TOPK_TEST": 60, "POST_NMS_TOPK_TEST": 11},
    "ROI_HEADS": {"NUM_CLASSES": 5, "SCORE_THRESH_TEST": 0.02},
    "ROI_BOX_HEAD": {
        "POOLER_RESOLUTION": 7,
        "POOLER_SAMPLING_RATIO": 2,
        "CLS_AGNOSTIC_BBOX_REG": True,
    },
}
GIVEN = torch.tensor([[1.0, 2.0, 30.0, 40.0], [5.0, 5.0, 9.0, 60.0]])

Sections = Mapping[str, Any]


def merged(*layers: Sections) -> dict[str, Any]:
    """Sections in which the later layers' keys stand in place of the earlier ones'."""
    result: dict[str, Any] = {}
    for layer in layers:
        for name, value in layer.items():
            before = result.get(name)
            if isinstance(before, Mapping) and isinstance(value, Mapping):
                result[name] = merged(before, value)
            else:
                result[name] = copy.deepcopy(value)
    return result


def without_model(sections: Sections) -> dict[str, Any]:
    return {name.removeprefix("MODEL."): value for name, value in sections.items()}


def config_of_family(family: str, changes: Sections) -> dict[str, Any]:
    """config.json of a small set; ``changes`` of sections, in Detectron2's names."""
    model = SETS[MODELS.get(family, "frcnn/d2_r50c4")].config
    if family == "detectron2":
        inside = {f"MODEL.{name}": value for name, value in merged(SMALL, changes).items()}
        ends = {"INPUT": SIDES | {"FORMAT": "BGR"}, "TEST.DETECTIONS_PER_IMAGE": 6}
        return {"detectron2_keys": merged(model["detectron2_keys"], inside, ends)}
    if family == "airsplay":
        return airsplay_config(merged(SMALL, changes))
    if family == "hf-frcnn":
        return hf_config(model, merged(SMALL, changes))
    options = {"short": 64, "long": 90, "thr": 0.2, "sel": [[2, 8], [9, 9], [1, 3]]}
    own = {"ANCHOR_GENERATOR": {"SIZES": [[1, 2, 3, 6]], "OFFSET": 0.0}}
    own |= {"ROI_BOX_HEAD": {"CLS_AGNOSTIC_BBOX_REG": False}}
    own |= {"ROI_HEADS": {"SCORE_THRESH_TEST": -1.0}, "PROPOSAL_GENERATOR": {"MIN_SIZE": 8}}
    attributes = {"BUA": {"RPN": {"CONV_OUT_CHANNELS": 14}, "ATTRIBUTE": {"NUM_CLASSES": 4}}}
    return {"keys": merged(model["keys"], SMALL, own, attributes, changes), "options": options}


def airsplay_config(sections: Sections) -> dict[str, Any]:
    keys = without_model(merged(SETS["frcnn/d2_r50c4"].config["detectron2_keys"]))
    del keys["INPUT"], keys["TEST.DETECTIONS_PER_IMAGE"], keys["RPN"]["CONV_DIMS"]
    own = {
        "CAFFE_MAXPOOL": True,
        "PROPOSAL_GENERATOR": {"NAME": "RPN", "HID_CHANNELS": 14, "MIN_SIZE": 0},
        "ROI_BOX_HEAD": {
            "ATTR": True,
            "NUM_ATTRS": 3,
            "RES5HALVE": False,
            "POOLER_TYPE": "ROIPool",
        },
    }
    return {
        "keys": merged(keys, own, sections),
        "INPUT": SIDES | {"FORMAT": "BGR"},
        "options": {"N": 4, "score": 0.02},
    }


def hf_config(model: Sections, sections: Sections) -> dict[str, Any]:
    """The released nested layout, in lower case."""
    lower = {name.lower(): lowered(value) for name, value in sections.items()}
    own = {
        "input": lowered(SIDES),
        "proposal_generator": {"hidden_channels": 14},
        "roi_box_head": {"num_attrs": 3},
        "min_detections": 3,
        "max_detections": 5,
    }
    lower.setdefault("roi_box_head", {}).pop("pooler_type", None)
    return merged(model, own, lower)


def lowered(section: Any) -> Any:
    is_section = isinstance(section, Mapping)
    return {name.lower(): value for name, value in section.items()} if is_section else section


def keys_of(family: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """The reference's keys of a set's config.json."""
    if family == "detectron2":
        return dict(config["detectron2_keys"])
    if family == "airsplay":
        return {"MODEL": config["keys"], "INPUT": config["INPUT"]}
    return milvlg_keys(config) if family == "milvlg" else dict(config)


def network_config(family: str, config: Mapping[str, Any]) -> DetectorConfig:
    """The network of a set, as its keys say."""
    return read_configuration(dict(flatten_sections(keys_of(family, config)))).config


def images(*sizes: tuple[int, int]) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randint(0, 256, (*size, 3), dtype=torch.uint8) for size in sizes]


def small_set(
    root: Path, family: str, changes: Sections, *, counters: bool = True, seed: int = 1
) -> tuple[GoldenSet, DetectorConfig]:
    """A whole set: one batch of images, of two sizes where the family is recorded in batches."""
    config = config_of_family(family, changes)
    network = network_config(family, config)
    several = family in ("detectron2", "hf-frcnn")
    sizes = ((50, 70), (80, 60))[: 1 + several]
    tensors = {
        f"case0.in.image{number if several else ''}": image
        for number, image in enumerate(images(*sizes))
    }
    if not several:
        tensors["case0.in.given_boxes"] = GIVEN
    bins, channels = network.pool_size, 4 * network.res2_channels
    tensors["case0.out.pooled_first"] = torch.zeros(3, channels, bins, bins)
    entry = {"part": "detector", "family": family, "tolerance": TOLERANCE}
    golden = write_set(root, f"frcnn/{family}", entry, config, tensors)
    write_detector(golden, network, counters=counters, seed=seed)
    return recorded(golden), network
