"""Caffe's layers by the names of the PyTorch port, and a detector from such a file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from tests.models.convert.caffe_bytes import caffemodel
from torch import Tensor

from vlmill.extract.detect.detector import open_detector
from vlmill.models.convert.caffe_file import parse_layers
from vlmill.models.detector.caffe import LAYERS, name_caffe_weights
from vlmill.models.detector.config import caffe
from vlmill.models.detector.faster_rcnn import FasterRCNN
from vlmill.models.detector.random_weights import randomise
from vlmill.schemas.errors import InputError

Array = npt.NDArray[np.float32]
CONV = np.full((4, 3, 1, 1), 2.0, np.float32)
MEAN = WEIGHT = np.full(4, 2.0, np.float32)


def norm(factor: float, suffix: str = "_conv1") -> dict[str, list[Array]]:
    constants = [MEAN, MEAN + MEAN + MEAN, np.array([factor], np.float32)]
    return {f"bn{suffix}": constants, f"scale{suffix}": [WEIGHT, WEIGHT + np.float32(8)]}


@pytest.mark.parametrize(("factor", "mean", "variance"), [(4.0, 0.5, 1.5), (0.0, 0.0, 0.0)])
def test_sums_are_divided_by_the_third_blob(factor: float, mean: float, variance: float) -> None:
    state = name_caffe_weights({"conv1": [CONV], **norm(factor)})
    prefix = "backbone.stem.conv1."
    assert torch.equal(state[f"{prefix}weight"], torch.from_numpy(CONV))
    values = {name: float(state[f"{prefix}norm.{name}"][0]) for name in NORM}
    assert values == dict(zip(NORM, (2.0, 10.0, mean, variance), strict=True))


NORM = ("weight", "bias", "running_mean", "running_var")


def test_a_convolutions_bias_moves_the_mean() -> None:
    state = name_caffe_weights({"conv1": [CONV, WEIGHT], **norm(4.0)})
    assert float(state["backbone.stem.conv1.norm.running_mean"][0]) == 0.5 - 2.0
    assert "backbone.stem.conv1.bias" not in state


@pytest.mark.parametrize(
    ("layer", "name"),
    [
        ("res2a_branch1", "backbone.res2.0.shortcut"),
        ("res2c_branch2b", "backbone.res2.2.conv2"),
        ("res4b22_branch2c", "backbone.res4.22.conv3"),
        ("res4f_branch2a", "backbone.res4.5.conv1"),
        ("res5a_branch1", "roi_heads.res5.0.shortcut"),
    ],
)
def test_blocks_of_both_namings(layer: str, name: str) -> None:
    layers = {layer: [CONV], **norm(1.0, layer.removeprefix("res"))}
    state = name_caffe_weights(layers)
    assert {f"{name}.weight", f"{name}.norm.running_var"} <= state.keys()


@pytest.mark.parametrize(
    ("layers", "said"),
    [
        ({"fc6": [CONV]}, "layer 'fc6': unknown"),
        ({"res4c3_branch2a": [CONV]}, "blocks are called"),
        ({"res6a_branch1": [CONV]}, "unknown"),
        (norm(1.0), "without a convolution"),
        ({"scale_conv1": [WEIGHT, WEIGHT]}, "without a batch normalisation"),
        ({"conv1": [CONV], "bn_conv1": [MEAN], "scale_conv1": [WEIGHT, WEIGHT]}, "1 blobs"),
        ({"cls_score": [CONV[:, :, 0, 0], WEIGHT, WEIGHT]}, "3 blobs"),
        ({"cls_score": [CONV]}, r"a blob of \(4, 3, 1, 1\); expected 2 dimensions"),
    ],
)
def test_other_layers_are_named(layers: Mapping[str, list[Array]], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        name_caffe_weights(layers)


SIZES: dict[str, Any] = {
    "depth": 50,
    "stem_channels": 4,
    "res2_channels": 8,
    "res2_width": 4,
    "num_classes": 6,
    "num_attributes": 4,
    "rpn_channels": 5,
    "class_embedding_size": 3,
    "attribute_hidden_size": 7,
}


def layers_of(state: Mapping[str, Tensor], factor: float) -> dict[str, list[Array]]:
    """A network's weights as Caffe's layers."""
    layers: dict[str, list[Array]] = {}
    ours = {name: layer for layer, (name, _) in LAYERS.items()}
    for key, tensor in state.items():
        parameter, _, kind = key.rpartition(".")
        values = tensor.numpy()
        if parameter in ours:
            layers.setdefault(ours[parameter], []).append(values)
        elif kind == "weight" and not parameter.endswith("norm"):
            suffix = block_name(parameter)
            layers["conv1" if suffix == "_conv1" else f"res{suffix}"] = [values]
            norm = {name: state[f"{parameter}.norm.{name}"].numpy() for name in NORM}
            scale = np.float32(factor)
            sums = [norm["running_mean"] * scale, norm["running_var"] * scale]
            layers[f"bn{suffix}"] = [*sums, np.array([factor], np.float32)]
            layers[f"scale{suffix}"] = [norm["weight"], norm["bias"]]
    return layers


def block_name(parameter: str) -> str:
    if parameter == "backbone.stem.conv1":
        return "_conv1"
    *_, stage, index, conv = parameter.split(".")
    branch = {"shortcut": "1", "conv1": "2a", "conv2": "2b", "conv3": "2c"}[conv]
    return f"{stage.removeprefix('res')}{chr(ord('a') + int(index))}_branch{branch}"


def test_a_whole_file_is_a_detector_of_the_original_rules(tmp_path: Path) -> None:
    model = FasterRCNN(caffe(**SIZES))
    randomise(model, 3)
    state = {k: v for k, v in model.state_dict().items() if "cell_anchors" not in k}
    path = tmp_path / "resnet50_final.caffemodel"
    path.write_bytes(caffemodel(layers_of(state, 4.0)))  # a power of 2: nothing is rounded
    named = name_caffe_weights(parse_layers(path.read_bytes()))
    assert named.keys() == state.keys()
    assert all(torch.equal(named[key], state[key]) for key in state)
    detector = open_detector(None, path, folded=False)
    assert detector.model.config == model.config
    assert "family caffe, ResNet-50" in detector.summary
    path.write_bytes(caffemodel({"conv1": [CONV]}))
    with pytest.raises(InputError, match=r"missing backbone.res2.0.conv1.weight"):
        open_detector(None, path)
    path.write_bytes(caffemodel({"ip1": [CONV]}))
    with pytest.raises(InputError, match=r"layer 'ip1': unknown.*give the detector's .caffemodel"):
        open_detector(None, path)
    path.write_bytes(b"<html>")
    with pytest.raises(InputError, match="not a Caffe file, or it is damaged"):
        open_detector(None, path)
