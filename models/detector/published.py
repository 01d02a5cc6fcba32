"""Loads published detector weights: recognises a state dict's layout and reads its sizes.

Layouts are recognised by their keys (:mod:`~vlmill.models.detector.published_names`):

=================  =================================================================
detectron2         no attribute head
airsplay           ``cls_embedding``, ``fc_attr``, ``attr_score``; background is last
hf-frcnn           the same names, and a counter of batches in every normalisation
milvlg             ``cls_embed``, ``attr_linear1``, ``attr_linear2``; background is first
milvlg-d2          ``attribute_predictor`` next to the box predictor; background is last
detectron2-fpn     ``backbone.bottom_up``, ``fpn_lateral``, ``box_head.fc1``
vinvl              ``backbone.body``, and res5 as the head of regions
vqa-maskrcnn       ``backbone.body``, ``fpn_inner``, and fc6 as the head of regions
grid-feats         res5 in the backbone without a pyramid
=================  =================================================================

milvlg's ResNet-152 ("milvlg-r152") is recognised by its blocks. A file of Caffe ("caffe") gets
milvlg's names when it is read (:mod:`~vlmill.models.detector.caffe`), and has its own conventions.
The layout of milvlg-d2 is also that of grid features of a C4 detector ("grid-feats-updn").
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from vlmill.models.detector.config import (
    BLOCKS,
    CONVENTIONS,
    X101_STD,
    Box4,
    DetectorConfig,
    as_grid,
)
from vlmill.models.detector.configurations import Configuration
from vlmill.models.detector.faster_rcnn import FasterRCNN
from vlmill.models.detector.proposals import make_cell_anchors
from vlmill.models.detector.published_names import (
    CELL_ANCHORS,
    D2_MODE,
    HEAD,
    PREDICTOR,
    RENAMED,
    SHARED_AGAIN,
    describe_mismatches,
    published_name,
)

PRE_ACTIVATION = "backbone.stem.norm.weight"  # only ResNet v2 has it
# Keys that are not loaded: the counters of training batches, and the pixels' statistics, which
# belong to the configuration (config_of_weights).
IGNORED_SUFFIXES = ("num_batches_tracked", "pixel_mean", "pixel_std")
# Heads that run after the detections and do not change them.
LATER_HEADS = ("roi_heads.mask_head.", "roi_heads.keypoint_head.")
LATER_NAMES = ("mask head", "keypoint head")
# Attributes of vqa-maskrcnn: used in training, and never run where features are extracted.
UNUSED_ATTRIBUTES = tuple(f"roi_heads.box.predictor.{name}." for name in RENAMED)
# Parts that are not run for a grid of res5's cells.
REGION_PARTS = (
    *("proposal_generator.", "roi_heads.box_head.", PREDICTOR, D2_MODE, "rpn."),
    *("roi_heads.box.predictor.", f"{HEAD}fc", "attribute.", "backbone.fpn"),
)
CASCADE = "roi_heads.box_head.0."


def recognise_layout(state: Mapping[str, Tensor], *, grid: bool = False) -> str:
    """Returns the layout's name in :data:`CONVENTIONS`; ``grid``: for the cells of res5 as regions.

    Raises ValueError with the unknown or missing keys if no layout matches.
    """
    if "backbone.body.stem.conv1.weight" in state:
        return recognise_maskrcnn(state)
    if "backbone.bottom_up.stem.conv1.weight" in state:
        if any(key.startswith(CASCADE) for key in state):
            raise ValueError(f"{CASCADE}* is a cascade's head, which is not a Faster R-CNN's")
        require_keys(state, "detectron2-fpn", "backbone.fpn_lateral2.weight")
        return "detectron2-fpn"
    if any(key.startswith("backbone.res5.") for key in state):
        if not grid:
            raise ValueError(
                "backbone.res5 without a pyramid: grid features, whose regions are the cells of "
                "res5 (--grid)"
            )
        return "grid-feats"
    if any(key.startswith(D2_MODE) for key in state):
        return "grid-feats-updn" if grid else "milvlg-d2"
    names = {key.removeprefix(PREDICTOR).split(".")[0] for key in state if PREDICTOR in key}
    if names & set(RENAMED):
        return "milvlg-r152" if PRE_ACTIVATION in state else "milvlg"
    counters = any(key.endswith("num_batches_tracked") for key in state)
    if names & set(RENAMED.values()):
        return "hf-frcnn" if counters else "airsplay"
    hidden = state.get("proposal_generator.rpn_head.conv.weight")
    if "cls_score" not in names or hidden is None:
        raise ValueError(
            f"no published layout ({', '.join(KNOWN)}): missing "
            f"{PREDICTOR}cls_score.weight or proposal_generator.rpn_head.conv.weight; it begins "
            f"with {', '.join(sorted(state)[:3])}"
        )
    # Detectron2's own proposal head is as wide as its input; only the fork's can be narrower.
    return "detectron2" if hidden.shape[0] == hidden.shape[1] else "airsplay"


KNOWN = ("detectron2", "detectron2-fpn", "airsplay", "milvlg", "hf-frcnn", "vinvl", "vqa-maskrcnn")


def recognise_maskrcnn(state: Mapping[str, Tensor]) -> str:
    """Returns the maskrcnn-benchmark family of a state dict."""
    if any(key.startswith("backbone.fpn.") for key in state):
        require_keys(state, "vqa-maskrcnn", f"{HEAD}fc6.weight")
        return "vqa-maskrcnn"
    require_keys(state, "vinvl", f"{HEAD}head.layer4.0.conv1.weight")
    return "vinvl"


def require_keys(state: Mapping[str, Tensor], layout: str, *keys: str) -> None:
    """Raises ValueError unless a state dict has the keys that identify the layout."""
    if missing := [key for key in keys if key not in state]:
        raise ValueError(f"not a published layout: {missing[0]} is missing, which {layout} has")


def config_of_weights(
    state: Mapping[str, Tensor], *, layout: str | None = None, grid: bool = False, **changes: Any
) -> DetectorConfig:
    """Returns the layout's conventions, with sizes from the tensors' shapes and anchors from the
    file.

    ``layout`` is given if names do not identify it; ``grid``: the cells of res5 are the regions.
    ``changes`` set fields that the file lacks or specifies otherwise. Raises ValueError for an
    unknown layout, a missing key, or anchors that neither the file nor the family determines.
    """
    layout = layout or recognise_layout(state, grid=grid)
    family = CONVENTIONS[layout]().family
    sizes = infer_sizes(state, family, grid=grid)
    fields: dict[str, Any] = {**sizes, **conventions_of_sizes(layout, sizes)}
    fields |= read_pixel_statistics(state)
    names = anchor_names(state, family)
    if names and not grid:
        fields["cell_anchors"] = boxes_in(state, names)
    config = CONVENTIONS[layout](**fields | changes)
    if grid:
        return as_grid(config)
    per_cell = anchors_per_cell(state, config)
    if per_cell != config.num_anchors:
        raise ValueError(
            f"missing {published_name(CELL_ANCHORS, family)}0: the weights have "
            f"{per_cell} anchors per cell, the {layout} family has {config.num_anchors}"
        )
    return config


def conventions_of_sizes(layout: str, sizes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns conventions that keys do not show, those of a layout's published grouped networks.

    Raises ValueError if no such file was published; then a configuration has to specify them.
    """
    grouped = sizes["groups"] > 1
    if layout in ("vinvl", "vqa-maskrcnn") and not grouped:
        raise ValueError(
            "convolutions without groups: their keys do not show which convolution of a "
            "stage has the stride; give --config"
        )
    if not grouped or layout in ("vinvl", "vqa-maskrcnn"):
        return {}
    stride = {"stride_in_1x1": False}
    if layout == "detectron2-fpn" or (layout == "grid-feats" and sizes["depth"] == 101):
        return stride | {"pixel_std": X101_STD}
    if layout in ("grid-feats", "grid-feats-updn"):
        return stride
    if layout == "milvlg-d2":
        return stride | {"pool_size": 7}
    raise ValueError(
        f"{sizes['groups']} groups, which no published file of {layout} has: its keys "
        "do not show the pixels' standard deviation; give --config"
    )


# Widths of the attribute head that are not in any configuration.
UNNAMED_SIZES = ("class_embedding_size", "attribute_hidden_size")


def fit_configuration(configuration: Configuration, state: Mapping[str, Tensor]) -> DetectorConfig:
    """Returns a configuration's fields, with the anchors and the unnamed widths of the weights.

    Raises WrongKey for a key whose size is not that of the weights, and ValueError for a missing
    tensor.
    """
    config, family = configuration.config, configuration.family
    grid = config.regions == "grid"
    sizes = infer_sizes(state, family, grid=grid)
    sizes.pop("class_specific_boxes", None)  # no shape shows it if there is one class
    unnamed = {name: sizes.pop(name) for name in UNNAMED_SIZES if name in sizes}
    for field, size in sizes.items():
        if getattr(config, field) != size:
            raise configuration.conflict_error(field, f"{field} {size}, as the weights have")
    if config.pre_activation != (PRE_ACTIVATION in state):
        raise configuration.conflict_error(
            "pre_activation", "the other value, as the keys of the weights show"
        )
    for field, values in read_pixel_statistics(state).items():
        if not torch.allclose(torch.tensor(getattr(config, field)), torch.tensor(values)):
            raise configuration.conflict_error(field, f"{values}, as the weights have")
    if grid:
        return config
    regressed = get_shape(state, published_name(f"{PREDICTOR}bbox_pred.weight", family))[0] // 4
    if config.num_regressed != regressed:
        raise configuration.conflict_error(
            "class_specific_boxes", f"{regressed} regressed boxes, as the weights have"
        )
    return dataclasses.replace(config, **unnamed, cell_anchors=fitted_anchors(configuration, state))


def fitted_anchors(
    configuration: Configuration, state: Mapping[str, Tensor]
) -> tuple[Box4, ...] | None:
    """Returns the anchors that the weights contain, if any. Raises WrongKey if the keys contradict
    them.

    The ports load their anchors from the weights; Detectron2 computes them from the keys.
    """
    config, family = configuration.config, configuration.family
    per_cell = anchors_per_cell(state, config)
    if per_cell != config.num_anchors:
        raise configuration.conflict_error(
            "anchor_scales", f"{per_cell} anchors, as the weights have"
        )
    names = anchor_names(state, family)
    if not names:
        return None
    boxes = boxes_in(state, names)
    if family not in ("detectron2", "detectron2-fpn"):
        return boxes
    anchors = torch.tensor(boxes)
    expected = torch.cat([make_cell_anchors(config, n) for n in range(len(config.strides))])
    if anchors.shape != expected.shape or not torch.allclose(anchors, expected, atol=1e-3):
        raise configuration.conflict_error(
            "anchor_scales", f"the anchors of the weights ({names[0]})"
        )
    return None


def anchor_names(state: Mapping[str, Tensor], family: str) -> list[str]:
    """Returns the names of the anchors in a file, in the order of its feature maps."""
    first = published_name(CELL_ANCHORS, family)
    numbers = [int(k.removeprefix(first)) for k in state if k.startswith(first)]
    return [f"{first}{number}" for number in sorted(numbers)]


def boxes_in(state: Mapping[str, Tensor], names: list[str]) -> tuple[Box4, ...]:
    """Returns the anchors of one cell of each map in the weights. Raises ValueError if they are not
    boxes.
    """
    for name in names:
        if state[name].ndim != 2 or state[name].shape[1] != 4:
            raise ValueError(f"{name} is {tuple(state[name].shape)}; expected rows of 4")
    return tuple((a, b, c, d) for name in names for a, b, c, d in state[name].tolist())


def anchors_per_cell(state: Mapping[str, Tensor], config: DetectorConfig) -> int:
    """Returns the number of anchors that the proposal head of the weights scores."""
    name = "proposal_generator.rpn_head.objectness_logits.weight"
    logits = get_shape(state, published_name(name, config.family))[0]
    return logits // (2 if config.objectness == "softmax" else 1)


def infer_sizes(state: Mapping[str, Tensor], family: str, *, grid: bool = False) -> dict[str, Any]:
    """Returns the depth, widths and numbers of outputs, from the shapes."""

    def shape(key: str) -> tuple[int, ...]:
        return get_shape(state, published_name(key, family))

    width = shape("backbone.res2.0.conv1.weight")[0]
    sizes: dict[str, Any] = {
        "depth": infer_depth(state, family),
        "stem_channels": shape("backbone.stem.conv1.weight")[0],
        "res2_channels": shape("backbone.res2.0.conv3.weight")[0],
        "res2_width": width,
        "groups": width // max(shape("backbone.res2.0.conv2.weight")[1], 1),
        "deformable_stages": deformable_stages(state),
    }
    if grid:
        return sizes
    boxes = shape(f"{PREDICTOR}bbox_pred.weight")[0]
    sizes |= {
        "rpn_channels": shape("proposal_generator.rpn_head.conv.weight")[0],
        "num_classes": shape(f"{PREDICTOR}cls_score.weight")[0] - 1,
        "class_specific_boxes": boxes != 4,
        "num_attributes": 0,
    }
    if family in ("detectron2-fpn", "vqa-maskrcnn"):
        sizes["fpn_channels"] = shape("backbone.fpn_lateral2.weight")[0]
        sizes["fc_channels"] = shape("roi_heads.box_head.fc1.weight")[0]
    second = f"{PREDICTOR}attr_linear2.weight"
    if published_name(second, family) in state and family != "vqa-maskrcnn":
        sizes["num_attributes"] = shape(second)[0] - (family != "milvlg-d2")
        sizes["attribute_hidden_size"] = shape(f"{PREDICTOR}attr_linear1.weight")[0]
        sizes["class_embedding_size"] = shape(f"{PREDICTOR}cls_embed.weight")[1]
    return sizes


def stage_prefix(state: Mapping[str, Tensor], family: str, number: int) -> str:
    """Returns the prefix of the names of a stage's tensors; res5 is in the backbone or applied to
    regions.
    """
    own = published_name(f"backbone.res{number}.", family)
    if number == 5 and not any(key.startswith(own) for key in state):
        return published_name("roi_heads.res5.", family)
    return own


def infer_depth(state: Mapping[str, Tensor], family: str) -> int:
    """Returns the ResNet's depth, from the number of blocks in its stages."""
    blocks = []
    for number in range(2, 6):
        stage = stage_prefix(state, family, number)
        blocks.append(
            len({key[len(stage) :].split(".")[0] for key in state if key.startswith(stage)})
        )
    for depth, expected in BLOCKS.items():
        if tuple(blocks) == expected:
            return depth
    raise ValueError(
        f"res2 to res5 have {blocks} blocks; a ResNet here has one of {list(BLOCKS.values())}"
    )


def deformable_stages(state: Mapping[str, Tensor]) -> tuple[int, ...]:
    """Returns the stages with deformable convolutions."""
    suffix = ".0.conv2_offset.weight"
    return tuple(
        number for number in range(2, 6) if any(f"res{number}{suffix}" in key for key in state)
    )


def read_pixel_statistics(state: Mapping[str, Tensor]) -> dict[str, tuple[float, ...]]:
    """Returns the mean and deviation of the pixels, which old versions of Detectron2 stored."""
    return {
        name: tuple(state[name].reshape(-1).tolist())
        for name in ("pixel_mean", "pixel_std")
        if name in state
    }


def get_shape(state: Mapping[str, Tensor], key: str) -> tuple[int, ...]:
    """Returns a tensor's shape. Raises ValueError with the tensor's name if it is missing or has
    too few dimensions for a weight.
    """
    if key not in state:
        raise ValueError(f"missing {key}")
    if state[key].ndim < 2:
        raise ValueError(f"{key} is {tuple(state[key].shape)}; expected a weight")
    return tuple(state[key].shape)


def load_published(model: FasterRCNN, state: Mapping[str, Tensor]) -> None:
    """Loads a state dict in the layout of the model's family, including its anchors.

    Missing anchors are replaced by the configured ones. Raises ValueError with the first missing
    and unexpected keys and tensors of another shape, by their names in the file.
    """
    family, grid = model.config.family, model.config.regions == "grid"
    tensors = {key: value for key, value in state.items() if not is_ignored(key, family, grid=grid)}
    if family == "vinvl":
        tensors = without_shared(tensors)
    expected = {
        published_name(key, family): (key, value)
        for key, value in model.state_dict().items()
        if not key.endswith(IGNORED_SUFFIXES)
    }
    anchors = published_name(CELL_ANCHORS, family)
    want = {
        key: tensor
        for key, (_, tensor) in expected.items()
        if not key.startswith(anchors) or key in tensors
    }
    if mismatch := describe_mismatches(want, tensors):
        raise ValueError(f"the weights do not fit the detector: {mismatch}")
    # Not strict: counters and anchors may be absent, everything else was checked above.
    model.load_state_dict({expected[key][0]: value for key, value in tensors.items()}, strict=False)


def find_later_heads(names: Iterable[str]) -> tuple[str, ...]:
    """Returns the names of the heads in a file that run after the detections."""
    names = list(names)
    return tuple(
        words
        for head, words in zip(LATER_HEADS, LATER_NAMES, strict=True)
        if any(name.startswith(head) for name in names)
    )


def is_ignored(key: str, family: str, *, grid: bool) -> bool:
    """Returns whether a tensor of a family's file is not used in extraction."""
    if key.endswith(IGNORED_SUFFIXES) or (grid and key.startswith(REGION_PARTS)):
        return True
    if family in ("detectron2", "detectron2-fpn", "milvlg-d2"):
        return key.startswith(LATER_HEADS)
    return family == "vqa-maskrcnn" and key.startswith(UNUSED_ATTRIBUTES)


def without_shared(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns tensors without res5's duplicate names. Raises ValueError if the duplicates
    differ.
    """
    for key, tensor in tensors.items():
        if key.startswith(SHARED_AGAIN):
            first = f"{HEAD}head.{key.removeprefix(SHARED_AGAIN)}"
            if first not in tensors or not torch.equal(tensors[first], tensor):
                raise ValueError(f"{key} and {first} differ; both are one shared res5")
    return {key: tensor for key, tensor in tensors.items() if not key.startswith(SHARED_AGAIN)}
