"""Initialises VL-BERT's region network from the weights of a ResNet or a detector.

The released code copies a ResNet-101 under torchvision's names, whose ``layer4`` becomes conv5. Its
file comes from the bottom-up-attention detector, so its conventions are Caffe's: pixels in BGR
order, 0 to 255 minus their mean, and the stride in a stage's first 1x1 convolution. Four layouts
are read:

===========  ====================  ===============================================================
torchvision  ``conv1.weight``      the released file; torchvision's own have other conventions
detectron2   ``stem.conv1.weight`` a ResNet under Detectron2's names
msra         ``conv1_w``           Caffe2's names of MSRA's ResNets: norms of scale and shift alone
detector     ``backbone.stem...``  a detector of :mod:`vlmill.models.detector.published`
===========  ====================  ===============================================================

Only the names of the last two show with which conventions they were trained.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from vlmill.models.convert import files
from vlmill.models.convert.keymap import CheckpointMismatch, Link, LoadTable, import_state
from vlmill.models.detector.config import DetectorConfig
from vlmill.models.vlbert.config import MEAN_BGR, RegionCnnConfig
from vlmill.models.vlbert.region_cnn import NORM, RegionCnn

STEM = "stem.conv1.weight"
STEM_MEAN = "stem.conv1.norm.running_mean"
STAGES = (2, 3, 4, 5)


@dataclass(frozen=True, kw_only=True)
class Conventions:
    """Holds how a ResNet was trained, if its weights do not show it. Defaults are VL-BERT's.

    ``pixel_mean`` and ``pixel_std`` refer to pixels of 0 to 255, in ``channel_order``.
    """

    stride_in_1x1: bool = True
    channel_order: Literal["bgr", "rgb"] = "bgr"
    pixel_mean: tuple[float, float, float] = MEAN_BGR
    pixel_std: tuple[float, float, float] = (1.0, 1.0, 1.0)


CONVENTIONS = {
    "released": Conventions(),
    # Its ImageNet weights: (pixels of 0..1 - (0.485, 0.456, 0.406)) / (0.229, 0.224, 0.225), times
    # 255.
    "torchvision": Conventions(
        stride_in_1x1=False,
        channel_order="rgb",
        pixel_mean=(123.675, 116.28, 103.53),
        pixel_std=(58.395, 57.12, 57.375),
    ),
}


def torchvision_name(parameter: str) -> str:
    """Renames ``res3.0.conv1.norm.bias`` to ``layer2.0.bn1.bias``, and so on."""
    name = parameter.removeprefix("stem.")
    name = re.sub(r"^res(\d)", lambda stage: f"layer{int(stage[1]) - 1}", name)
    name = name.replace("shortcut.norm", "downsample.1").replace("shortcut", "downsample.0")
    return re.sub(r"conv(\d)\.norm", r"bn\1", name)


def msra_name(parameter: str) -> str:
    """Renames ``res3.0.conv1.norm.bias`` to ``res3_0_branch2a_bn_b``, and so on."""
    module, _, part = parameter.removeprefix("stem.").rpartition(".")
    ending = {
        "weight": "s" if module.endswith("norm") else "w",
        "bias": "b",
        "running_mean": "rm",
        "running_var": "riv",
    }.get(part, part)
    if module == "conv1.norm":
        return f"res_conv1_bn_{ending}"
    module = module.replace("shortcut", "branch1").replace(".norm", "_bn")
    for number, letter in enumerate("abc", start=1):
        if parameter.startswith("res"):
            module = module.replace(f"conv{number}", f"branch2{letter}")
    return f"{module}_{ending}".replace(".", "_")


def detector_name(parameter: str) -> str:
    """Renames ``res4.…`` to ``backbone.res4.…``; res5 belongs to the heads."""
    return f"roi_heads.{parameter}" if parameter.startswith("res5.") else f"backbone.{parameter}"


NAMES: dict[str, Callable[[str], str]] = {
    "torchvision": torchvision_name,
    "detectron2": str,
    "msra": msra_name,
    "detector": detector_name,
}


def recognise_backbone(state: Mapping[str, Any]) -> str:
    """Returns the layout of a state dict, a name of `NAMES`, from its first convolution.

    Raises ValueError for other keys.
    """
    for layout, name in NAMES.items():
        if name(STEM) in state:
            return layout
    expected = ", ".join(f"{name(STEM)} ({layout})" for layout, name in NAMES.items())
    first = ", ".join(sorted(state)[:2])
    raise ValueError(f"its tensors ({first}, ...) have no known layout: expected {expected}")


def load_backbone(
    cnn: RegionCnn, source: Mapping[str, Any] | str | Path, conventions: str | None = None
) -> LoadTable:
    """Initialises the region network from a ResNet or a detector; returns a table of the tensors.

    source: a state dict or file, such as the released ``resnet101-pt-vgbua-0000.model``.
    conventions: a name of `CONVENTIONS` for a ResNet under torchvision's or Detectron2's names,
    None for the released ones. Weights for other pixels are converted to VL-BERT's, which is exact
    except for the colour around an image: zeros are VL-BERT's mean there. Classifiers and other
    parts of a detector are unexpected in the table.

    Raises ValueError for an unknown layout, a ResNet that differs from the network's, or other
    conventions; CheckpointMismatch (a ValueError) if a tensor is missing or has another shape;
    Unreadable for a file that is not a checkpoint.
    """
    content = files.read_content(Path(source)) if isinstance(source, str | Path) else source
    raw_state = files.state_dict_in(content)
    state = files.without_prefix(files.collect_tensors(raw_state), "module.")
    layout = recognise_backbone(state)
    if layout in ("detectron2", "detector"):
        state = files.without_old_norms(state, getattr(raw_state, "_metadata", None))
    name = NAMES[layout]
    rules = choose_conventions(state, layout, conventions)
    check_sizes(cnn.config, state, name)
    if rules.stride_in_1x1 != cnn.config.stride_in_1x1:
        raise ValueError(
            f"these weights stride in the {'1x1' if rules.stride_in_1x1 else '3x3'} of a stage's "
            f"first block, the network does not; add "
            f"cnn.stride_in_1x1={str(rules.stride_in_1x1).lower()}"
        )
    if layout == "msra":
        state = with_statistics(state)
    links = [Link(parameter, (name(parameter),)) for parameter in cnn.state_dict()]
    table = import_state(cnn, links, for_our_pixels(state, name, rules))
    missing = [n for n in table.missing if not n.endswith("num_batches_tracked")]
    if missing or table.mismatched:
        raise CheckpointMismatch("the weights do not belong to this ResNet", table)
    return table


def choose_conventions(
    state: Mapping[str, Tensor], layout: str, requested: str | None
) -> Conventions:
    """Returns the conventions of the layout, else the requested ones. Raises ValueError."""
    if layout in ("torchvision", "detectron2"):
        return CONVENTIONS[requested or "released"]
    if requested is not None:
        raise ValueError(f"conventions {requested}: the file's layout ({layout}) has its own")
    if layout == "msra":
        return CONVENTIONS["released"]
    from vlmill.models.detector.published import config_of_weights  # imports torchvision

    return read_detector_conventions(config_of_weights(state))


def read_detector_conventions(config: DetectorConfig) -> Conventions:
    """Returns a detector's conventions. Raises ValueError if its ResNet is of another type."""
    other = config.pre_activation or config.groups > 1 or config.last_stage == 5
    if other or config.norm_eps != NORM.eps:
        raise ValueError(
            f"a detector of the family {config.family} whose blocks VL-BERT's network "
            "does not have (pre-activation, groups, a pyramid, or norms with "
            f"eps={config.norm_eps:g}); give a plain ResNet-50, 101 or 152"
        )
    return Conventions(
        stride_in_1x1=config.stride_in_1x1,
        channel_order=config.channel_order,
        pixel_mean=config.pixel_mean,
        pixel_std=config.pixel_std,
    )


def check_sizes(
    config: RegionCnnConfig, state: Mapping[str, Tensor], name: Callable[[str], str]
) -> None:
    """Raises ValueError, with the fields to set, for a ResNet with other blocks or widths.

    Damaged files and missing stages are found by the comparison of names.
    """
    blocks = [  # that follow each other
        next(i for i in count() if name(f"res{stage}.{i}.conv1.weight") not in state)
        for stage in STAGES
    ]
    if not all(blocks):
        return
    sizes = {
        "blocks": tuple(blocks),
        "widths": tuple(len(state[name(f"res{s}.0.conv1.weight")]) for s in STAGES),
        "stem_channels": len(state[name(STEM)]),
    }
    other = {field: size for field, size in sizes.items() if size != getattr(config, field)}
    if other:
        configured = ", ".join(f"cnn.{field}={getattr(config, field)}" for field in other)
        fields = " ".join(f"cnn.{field}={size}".replace(" ", "") for field, size in other.items())
        fields = fields.replace("(", "[").replace(")", "]")
        raise ValueError(f"a ResNet other than the network's ({configured}); add {fields}")


def with_statistics(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Adds statistics to Caffe2's norms, a scale and a shift: mean 0, and variance + eps = 1."""
    scales = {name: tensor for name, tensor in state.items() if name.endswith("_bn_s")}
    means = {f"{name[:-1]}rm": torch.zeros_like(scale) for name, scale in scales.items()}
    variances = {
        f"{name[:-1]}riv": torch.full_like(scale, 1 - NORM.eps) for name, scale in scales.items()
    }
    return {**means, **variances, **state}


def for_our_pixels(
    state: Mapping[str, Tensor], name: Callable[[str], str], rules: Conventions
) -> Mapping[str, Tensor]:
    """Returns ``state`` with a first convolution and norm for VL-BERT's pixels.

    With x = p - M (ours, BGR) and u = (p - m) / s (theirs), w * u is (w / s) * x and the constant
    (w / s) * (M - m), which is subtracted from the mean of the norm.
    """
    if rules == CONVENTIONS["released"] or (name(STEM_MEAN) not in state):
        return state
    weight, mean = state[name(STEM)].double(), state[name(STEM_MEAN)].double()
    target_mean = MEAN_BGR if rules.channel_order == "bgr" else MEAN_BGR[::-1]
    by_channel = [torch.tensor(v, dtype=torch.double) for v in (target_mean, rules.pixel_mean)]
    scaled = weight / torch.tensor(rules.pixel_std, dtype=torch.double)[:, None, None]
    constant = scaled.sum(dim=(2, 3)) @ (by_channel[0] - by_channel[1])
    blue_first = scaled if rules.channel_order == "bgr" else scaled.flip(1)
    kind = state[name(STEM)].dtype
    return {
        **state,
        name(STEM): blue_first.to(kind),
        name(STEM_MEAN): (mean - constant).to(state[name(STEM_MEAN)].dtype),
    }
