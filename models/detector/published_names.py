"""Maps the network's parameter names to the names in each family's files.

=================  =================================================================
detectron2         the network's names; milvlg's are the same
airsplay           ``cls_embedding``, ``fc_attr``, ``attr_score`` for attributes
milvlg-d2          attributes in ``roi_heads.attribute_predictor``
detectron2-fpn     the ResNet in ``backbone.bottom_up``
vinvl              maskrcnn-benchmark's: ``layer1`` to ``layer4`` in ``backbone.body``, ``bn``
vqa-maskrcnn       the same, with ``fpn_inner``, ``fpn_layer``, ``fc6``, ``fc7``
=================  =================================================================
"""

import re
from collections.abc import Mapping, Sequence

from torch import Tensor

PREDICTOR = "roi_heads.box_predictor."
CELL_ANCHORS = "proposal_generator.anchor_generator.cell_anchors."  # then the map's number
ANCHORS = f"{CELL_ANCHORS}0"
# The network's name and the layout's, where they differ.
RENAMED = {"cls_embed": "cls_embedding", "attr_linear1": "fc_attr", "attr_linear2": "attr_score"}
RENAMED_IN = ("airsplay", "hf-frcnn")
# MILVLG's second mode (bua-d2-*): attributes next to the box predictor.
D2_MODE = "roi_heads.attribute_predictor."
D2_RENAMED = {"cls_embed": "obj_embed", "attr_linear1": "fc.0", "attr_linear2": "attr_score"}
# maskrcnn-benchmark: prefixes of the network's name and of the file's; the first match is used.
HEAD = "roi_heads.box.feature_extractor."
MASKRCNN = (
    (CELL_ANCHORS, "rpn.anchor_generator.cell_anchors."),
    ("proposal_generator.rpn_head.conv.", "rpn.head.conv."),
    ("proposal_generator.rpn_head.objectness_logits.", "rpn.head.cls_logits."),
    ("proposal_generator.rpn_head.anchor_deltas.", "rpn.head.bbox_pred."),
    *((f"{PREDICTOR}{ours}.", f"attribute.predictor.{name}.") for ours, name in RENAMED.items()),
    (PREDICTOR, "roi_heads.box.predictor."),
    ("roi_heads.box_head.fc1.", f"{HEAD}fc6."),
    ("roi_heads.box_head.fc2.", f"{HEAD}fc7."),
    ("roi_heads.res5.", f"{HEAD}head.layer4."),
    ("backbone.stem.", "backbone.body.stem."),
    *((f"backbone.res{n}.", f"backbone.body.layer{n - 1}.") for n in range(2, 6)),
    *((f"backbone.fpn_lateral{n}.", f"backbone.fpn.fpn_inner{n - 1}.") for n in range(2, 6)),
    *((f"backbone.fpn_output{n}.", f"backbone.fpn.fpn_layer{n - 1}.") for n in range(2, 6)),
)
# VinVL's files contain res5 a second time, under the attributes' name.
SHARED_AGAIN = "attribute.feature_extractor.head."


def published_name(key: str, family: str) -> str:
    """Returns the name of parameter ``key`` in the family's files."""
    if family in ("vinvl", "vqa-maskrcnn"):
        return maskrcnn_name(key)
    if family == "detectron2-fpn" and re.match(r"backbone\.(stem|res\d)\.", key):
        return key.replace("backbone.", "backbone.bottom_up.", 1)
    name = key.removeprefix(PREDICTOR).split(".")[0]
    if family == "milvlg-d2" and key.startswith(PREDICTOR) and name in D2_RENAMED:
        return key.replace(f"{PREDICTOR}{name}", f"{D2_MODE}{D2_RENAMED[name]}")
    if family in RENAMED_IN and key.startswith(PREDICTOR) and name in RENAMED:
        return key.replace(f"{PREDICTOR}{name}", f"{PREDICTOR}{RENAMED[name]}")
    return key


def maskrcnn_name(key: str) -> str:
    """Returns the name of parameter ``key`` in maskrcnn-benchmark."""
    for ours, theirs in MASKRCNN:
        if key.startswith(ours):
            key = theirs + key.removeprefix(ours)
            break
    if not key.startswith(("backbone.body.", f"{HEAD}head.")):
        return key
    key = re.sub(r"\bconv(\d)\.norm\.", r"bn\1.", key)
    key = re.sub(r"\bshortcut\.norm\.", "downsample.1.", key)
    return re.sub(r"\bshortcut\.", "downsample.0.", key)


MOST_NAMED = 3  # per type of difference: a file of another network differs in hundreds of names


def describe_mismatches(expected: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> str:
    """Describes the differences in names and shapes: the first few of each type, "" if there are
    none.
    """
    shapes = [
        f"{name} is {tuple(tensors[name].shape)}, expected {tuple(tensor.shape)}"
        for name, tensor in expected.items()
        if name in tensors and tensors[name].shape != tensor.shape
    ]
    kinds = {
        "missing ": [name for name in expected if name not in tensors],
        "unexpected ": [name for name in tensors if name not in expected],
        "": shapes,
    }
    return "; ".join(kind + _first(items) for kind, items in kinds.items() if items)


def _first(items: Sequence[str]) -> str:
    more = len(items) - MOST_NAMED
    return ", ".join(items[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
