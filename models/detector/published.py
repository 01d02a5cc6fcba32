"""Loads published detector weights: recognises a state dict's layout and reads its sizes.

Five layouts share Detectron2's names for the body and the box predictor and differ in the rest:

=============  ====================================================================
detectron2     no attribute head
airsplay       ``cls_embedding``, ``fc_attr``, ``attr_score``; background is last
hf-frcnn       the same names, and a counter of batches in every normalisation
milvlg         ``cls_embed``, ``attr_linear1``, ``attr_linear2``; background is first
milvlg-d2      an ``attribute_predictor`` beside the box predictor; background is last
=============  ====================================================================

milvlg's ResNet-152 ("milvlg-r152") is known by its blocks.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from vlmill.models.detector.anchors import make_cell_anchors
from vlmill.models.detector.config import BLOCKS, CONVENTIONS, Box4, DetectorConfig, Family
from vlmill.models.detector.configurations import Configuration
from vlmill.models.detector.faster_rcnn import FasterRCNN
from vlmill.models.detector.fit import misfits

PREDICTOR = "roi_heads.box_predictor."
ANCHORS = "proposal_generator.anchor_generator.cell_anchors.0"
PRE_ACTIVATION = "backbone.stem.norm.weight"  # which only ResNet v2 has
# Our name and the layout's, where they differ.
RENAMED = {"cls_embed": "cls_embedding", "attr_linear1": "fc_attr", "attr_linear2": "attr_score"}
RENAMED_IN = ("airsplay", "hf-frcnn")
# Of the port's second mode (bua-d2-*): attributes beside the box predictor.
D2_MODE = "roi_heads.attribute_predictor."
D2_RENAMED = {"cls_embed": "obj_embed", "attr_linear1": "fc.0", "attr_linear2": "attr_score"}
# Keys that carry nothing to load: how many batches training saw, and the pixels' statistics, which
# belong to the configuration (config_of_weights).
IGNORED_SUFFIXES = ("num_batches_tracked", "pixel_mean", "pixel_std")


def recognise_layout(state: Mapping[str, Tensor]) -> str:
    """Returns the layout's name in :data:`CONVENTIONS`. Raises ValueError for keys of none of
    them.
    """
    if any(key.startswith(D2_MODE) for key in state):
        return "milvlg-d2"
    names = {key.removeprefix(PREDICTOR).split(".")[0] for key in state if PREDICTOR in key}
    if names & set(RENAMED):
        return "milvlg-r152" if PRE_ACTIVATION in state else "milvlg"
    counters = any(key.endswith("num_batches_tracked") for key in state)
    if names & set(RENAMED.values()):
        return "hf-frcnn" if counters else "airsplay"
    hidden = state.get("proposal_generator.rpn_head.conv.weight")
    if "cls_score" not in names or hidden is None:
        raise ValueError(
            "no published layout (detectron2, airsplay, milvlg, hf-frcnn): missing "
            f"{PREDICTOR}cls_score.weight or proposal_generator.rpn_head.conv.weight"
        )
    # Detectron2's own proposal head is as wide as its input; only the fork's can be narrower.
    return "detectron2" if hidden.shape[0] == hidden.shape[1] else "airsplay"


def config_of_weights(state: Mapping[str, Tensor], **changes: Any) -> DetectorConfig:
    """Returns the layout's conventions, with sizes from the tensors' shapes and anchors from the
    file.

    ``changes`` set fields that the file cannot say, or says otherwise. Raises ValueError for an
    unknown layout, a missing key, or anchors that neither the file nor the family decides.
    """
    layout = recognise_layout(state)
    fields: dict[str, Any] = {**infer_sizes(state, layout), **read_pixel_statistics(state)}
    if ANCHORS in state:
        fields["cell_anchors"] = boxes_in(state)
    config = CONVENTIONS[layout](**fields | changes)
    per_cell = anchors_per_cell(state, config)
    if per_cell != config.num_anchors:
        raise ValueError(
            f"missing {ANCHORS}: the weights have {per_cell} anchors a cell, the {layout} family's "
            f"own are {config.num_anchors}"
        )
    return config


# Widths of the attribute head, which no configuration names.
UNNAMED_SIZES = ("class_embedding_size", "attribute_hidden_size")


def fit_configuration(configuration: Configuration, state: Mapping[str, Tensor]) -> DetectorConfig:
    """Returns what a configuration says, with the anchors and the unnamed widths of the weights.

    Raises WrongKey for a key whose size is not that of the weights, and ValueError for a missing
    tensor.
    """
    config, sizes = configuration.config, infer_sizes(state, configuration.family)
    del sizes["class_specific_boxes"]  # which no shape tells where there is one class
    unnamed = {name: sizes.pop(name) for name in UNNAMED_SIZES if name in sizes}
    for field, size in sizes.items():
        if getattr(config, field) != size:
            raise configuration.blame(field, f"{field} {size}, as the weights have")
    regressed = get_shape(state, f"{PREDICTOR}bbox_pred.weight")[0] // 4
    if config.num_regressed != regressed:
        raise configuration.blame(
            "class_specific_boxes", f"{regressed} regressed boxes, as the weights have"
        )
    if config.pre_activation != (PRE_ACTIVATION in state):
        raise configuration.blame("pre_activation", "the other, as the weights' keys say")
    for field, values in read_pixel_statistics(state).items():
        if not torch.allclose(torch.tensor(getattr(config, field)), torch.tensor(values)):
            raise configuration.blame(field, f"{values}, as the weights have")
    return dataclasses.replace(config, **unnamed, cell_anchors=fitted_anchors(configuration, state))


def fitted_anchors(
    configuration: Configuration, state: Mapping[str, Tensor]
) -> tuple[Box4, ...] | None:
    """Returns the anchors that the weights carry, if any. Raises WrongKey where the keys
    contradict.

    The ports load their anchors from the weights; Detectron2 makes its own, as the keys say.
    """
    config = configuration.config
    per_cell = anchors_per_cell(state, config)
    if per_cell != config.num_anchors:
        raise configuration.blame("anchor_scales", f"{per_cell} anchors, as the weights have")
    if ANCHORS not in state:
        return None
    anchors = state[ANCHORS].float()
    expected = make_cell_anchors(config)
    if configuration.family == "detectron2":
        if anchors.shape != expected.shape or not torch.allclose(anchors, expected, atol=1e-3):
            raise configuration.blame("anchor_scales", f"the anchors of the weights ({ANCHORS})")
        return None
    return boxes_in(state)


def boxes_in(state: Mapping[str, Tensor]) -> tuple[Box4, ...]:
    """Returns the anchors of one cell that weights carry. Raises ValueError for what are no
    boxes.
    """
    if state[ANCHORS].ndim != 2 or state[ANCHORS].shape[1] != 4:
        raise ValueError(f"{ANCHORS} is {tuple(state[ANCHORS].shape)}; expected rows of 4")
    return tuple((a, b, c, d) for a, b, c, d in state[ANCHORS].tolist())


def anchors_per_cell(state: Mapping[str, Tensor], config: DetectorConfig) -> int:
    """Returns how many anchors the proposal head of the weights scores."""
    logits = get_shape(state, "proposal_generator.rpn_head.objectness_logits.weight")[0]
    return logits // (2 if config.objectness == "softmax" else 1)


def infer_sizes(state: Mapping[str, Tensor], layout: str) -> dict[str, Any]:
    """Returns the depth, widths and numbers of outputs, from the shapes."""
    family = "milvlg" if layout == "milvlg-r152" else layout
    boxes = get_shape(state, f"{PREDICTOR}bbox_pred.weight")[0]
    sizes = {
        "depth": infer_depth(state),
        "stem_channels": get_shape(state, "backbone.stem.conv1.weight")[0],
        "res2_channels": get_shape(state, "backbone.res2.0.conv3.weight")[0],
        "res2_width": get_shape(state, "backbone.res2.0.conv1.weight")[0],
        "rpn_channels": get_shape(state, "proposal_generator.rpn_head.conv.weight")[0],
        "num_classes": get_shape(state, f"{PREDICTOR}cls_score.weight")[0] - 1,
        "class_specific_boxes": boxes != 4,
        "num_attributes": 0,
    }
    second = published_name(f"{PREDICTOR}attr_linear2.weight", family)
    if second in state:
        first = published_name(f"{PREDICTOR}attr_linear1.weight", family)
        embedding = published_name(f"{PREDICTOR}cls_embed.weight", family)
        sizes["num_attributes"] = get_shape(state, second)[0] - (family != "milvlg-d2")
        sizes["attribute_hidden_size"] = get_shape(state, first)[0]
        sizes["class_embedding_size"] = get_shape(state, embedding)[1]
    return sizes


def infer_depth(state: Mapping[str, Tensor]) -> int:
    """Returns the ResNet's depth, by the blocks of its stages."""
    blocks = []
    for stage in ("backbone.res2.", "backbone.res3.", "backbone.res4.", "roi_heads.res5."):
        blocks.append(len({key[len(stage) :].split(".")[0] for key in state if stage in key}))
    for depth, expected in BLOCKS.items():
        if tuple(blocks) == expected:
            return depth
    raise ValueError(
        f"res2 to res5 have {blocks} blocks; a ResNet here has one of {list(BLOCKS.values())}"
    )


def read_pixel_statistics(state: Mapping[str, Tensor]) -> dict[str, tuple[float, ...]]:
    """Returns the mean and deviation of the pixels, where old Detectron2 stored them."""
    return {
        name: tuple(state[name].reshape(-1).tolist())
        for name in ("pixel_mean", "pixel_std")
        if name in state
    }


def get_shape(state: Mapping[str, Tensor], key: str) -> tuple[int, ...]:
    """Returns a tensor's shape. Raises ValueError, which names the tensor, if it is missing."""
    if key not in state:
        raise ValueError(f"missing {key}")
    return tuple(state[key].shape)


def published_name(key: str, family: Family | str) -> str:
    """Says what the family's files call our parameter ``key``."""
    name = key.removeprefix(PREDICTOR).split(".")[0]
    if family == "milvlg-d2" and key.startswith(PREDICTOR) and name in D2_RENAMED:
        return key.replace(f"{PREDICTOR}{name}", f"{D2_MODE}{D2_RENAMED[name]}")
    if family in RENAMED_IN and key.startswith(PREDICTOR) and name in RENAMED:
        return key.replace(f"{PREDICTOR}{name}", f"{PREDICTOR}{RENAMED[name]}")
    return key


def load_published(model: FasterRCNN, state: Mapping[str, Tensor]) -> None:
    """Loads a state dict of the layout of the model's family, its anchors included.

    Anchors that it lacks are the configured ones. Raises ValueError that names the first missing
    keys, unexpected ones and tensors of another shape, as the file calls them.
    """
    tensors = {key: value for key, value in state.items() if not key.endswith(IGNORED_SUFFIXES)}
    family = model.config.family
    expected = {
        published_name(key, family): (key, value)
        for key, value in model.state_dict().items()
        if not key.endswith(IGNORED_SUFFIXES)
    }
    want = {
        key: tensor for key, (_, tensor) in expected.items() if key != ANCHORS or key in tensors
    }
    if mismatch := misfits(want, tensors):
        raise ValueError(f"the weights do not fit the detector: {mismatch}")
    # Not strict: counters and anchors may be absent, everything else was checked above.
    model.load_state_dict({expected[key][0]: value for key, value in tensors.items()}, strict=False)
