"""Runs with the detectors of other families: recognised by their files, and cells of a grid."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import save_file
from torch import Tensor

from vlmill.extract.cli import command
from vlmill.models.detector.config import (
    DetectorConfig,
    detectron2_fpn,
    grid_feats,
    milvlg_d2,
    vinvl,
    vqa_maskrcnn,
)
from vlmill.models.detector.faster_rcnn import FasterRCNN
from vlmill.models.detector.published_names import published_name
from vlmill.models.detector.random_weights import randomise
from vlmill.runtime.console.command import run_command
from vlmill.runtime.readers.regions import RegionReader

SIZES: dict[str, Any] = {
    "depth": 50,
    "stem_channels": 4,
    "res2_channels": 8,
    "res2_width": 4,
    "num_classes": 6,
    "rpn_channels": 8,
}
GROUPS: dict[str, Any] = {"groups": 2, "stride_in_1x1": False}
FPN: dict[str, Any] = {"fpn_channels": 8, "fc_channels": 10}
ATTRIBUTES: dict[str, Any] = {
    "num_attributes": 5,
    "class_embedding_size": 3,
    "attribute_hidden_size": 4,
}
FAMILIES: dict[str, tuple[DetectorConfig, int]] = {
    "vinvl": (vinvl(**SIZES, **GROUPS, **ATTRIBUTES), 64),
    "vqa-maskrcnn": (vqa_maskrcnn(**SIZES, **GROUPS, **FPN), 10),
    "detectron2-fpn": (detectron2_fpn(**SIZES, **FPN), 10),
}
SIDES = ["--short-side", "64", "--long-side", "100"]


def state_of(config: DetectorConfig) -> dict[str, Tensor]:
    """Random weights as the family's files name them."""
    model = FasterRCNN(config)
    randomise(model, 2)
    return {published_name(k, config.family): v for k, v in model.state_dict().items()}


def extract_rois(*arguments: object) -> int:
    return run_command(command, [str(argument) for argument in arguments])


@pytest.fixture
def image(jpeg: Callable[[int], bytes], tmp_path: Path) -> Path:
    path = tmp_path / "a.jpg"
    path.write_bytes(jpeg(0))
    return path


@pytest.mark.parametrize("prefix", ["", "module."])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_file_tells_its_family(
    family: str, prefix: str, image: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, width = FAMILIES[family]
    path, output = tmp_path / "model.pth", tmp_path / "regions"
    state = {f"{prefix}{key}": value for key, value in state_of(config).items()}
    torch.save({"model": state, "iteration": 3}, path)
    assert extract_rois("run", image, "--output", output, "--weights", path, *SIDES) == 0
    assert f"model.pth: a detector of the family {family}" in capsys.readouterr().err
    reader = RegionReader(output)
    (row,) = reader
    assert reader.producer["detector"]["family"] == family
    assert row.features is not None and len(row.boxes) > 0
    assert row.features.shape == (len(row.boxes), width)
    assert (row.attribute_ids is not None) == (family == "vinvl")
    assert extract_rois("verify", output) == 0


def test_boxes_may_reach_into_the_padding_and_no_further(image: Path, tmp_path: Path) -> None:
    """Of an image that is as small as can be against its padding."""
    from vlmill.extract.verify import padding_px

    path, output = tmp_path / "model.safetensors", tmp_path / "regions"
    save_file(state_of(FAMILIES["vqa-maskrcnn"][0]), path)
    sides = ["--short-side", "33", "--long-side", "44"]
    assert extract_rois("run", image, "--output", output, "--weights", path, *sides) == 0
    reader = RegionReader(output)
    (row,) = reader
    assert float(row.boxes[:, 3].max()) > row.height
    assert padding_px(row, reader.producer) == pytest.approx(32 * row.height / 33, rel=0.05)
    assert extract_rois("verify", output) == 0


GRIDS: dict[str, tuple[DetectorConfig, str]] = {
    "backbone": (grid_feats(**SIZES), "grid-feats"),
    "regions": (milvlg_d2(**SIZES, **ATTRIBUTES), "grid-feats"),
    "pyramid": (FAMILIES["detectron2-fpn"][0], "detectron2-fpn"),
}


@pytest.mark.parametrize("name", GRIDS)
def test_cells_of_the_last_map_are_regions(name: str, image: Path, tmp_path: Path) -> None:
    config, family = GRIDS[name]
    path, output = tmp_path / "model.safetensors", tmp_path / "regions"
    heads = {"roi_heads.box_predictor.cls_score.weight": torch.zeros(7, 64)}
    save_file((heads if name == "backbone" else {}) | state_of(config), path)
    arguments = ["--weights", path, *SIDES, "--grid", "--dtype", "float32"]
    assert extract_rois("run", image, "--output", output, *arguments) == 0
    reader = RegionReader(output)
    (row,) = reader
    assert reader.producer["detector"]["family"] == family
    assert reader.producer["detector"]["regions"] == "grid"
    assert row.class_ids is None and row.attribute_ids is None
    rows, columns = 2, round(len(row.boxes) / 2)
    assert row.features is not None and row.features.shape == (rows * columns, 64)
    assert row.boxes[0, :2].tolist() == [0, 0]
    assert row.boxes[-1, 2:].tolist() == pytest.approx([row.width, row.height], abs=1e-3)
    areas = (row.boxes[:, 2:] - row.boxes[:, :2]).prod(axis=1)
    assert areas.sum() == pytest.approx(row.width * row.height, rel=1e-4)  # each pixel once
    assert extract_rois("verify", output) == 0


def test_a_grid_is_asked_for(
    image: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, config = tmp_path / "model.safetensors", tmp_path / "grid.yaml"
    save_file(state_of(GRIDS["backbone"][0]), path)
    config.write_text(
        yaml.safe_dump({"MODEL": {"ROI_HEADS": {"NAME": "AttributeStandardROIHeads"}}})
    )
    run = ["run", image, "--output", tmp_path / "out"]
    for arguments, said in (
        (["--weights", path], "whose regions are the cells of res5 (--grid)"),
        (["--config", config], "grid features, whose regions are cells; add --grid"),
        (["--grid", "--class-probs", "full"], "--class-probs full: a grid's cells have no classes"),
        (["--grid", "--global-feature"], "--global-feature: the cells of a grid cover"),
        (["--arch", "grid-r50", "--boxes", path], "--boxes: the regions of --grid are its cells"),
        (["--grid", "--backend", "detectron2"], "--grid: --backend detectron2"),
    ):
        assert extract_rois(*run, *arguments) == 2
        assert said in capsys.readouterr().err.splitlines()[-1]
    assert extract_rois("serve", "--grid", "--port", "1") == 2
    assert "use `run` for the cells of a grid" in capsys.readouterr().err


def test_an_architecture_is_a_grid_without_the_flag(image: Path, tmp_path: Path) -> None:
    arguments = ["--arch", "grid-r50", "--short-side", "40", "--long-side", "60"]
    assert extract_rois("run", image, "--output", tmp_path / "out", *arguments) == 0
    (row,) = RegionReader(tmp_path / "out")
    assert row.features is not None and row.class_ids is None
    assert row.features.shape == (len(row.boxes), 2048)


def test_rows_are_those_of_the_map(image: Path, tmp_path: Path) -> None:
    """``--grid`` of a detector, against its body run by hand."""
    from vlmill.extract.config import InputLimits
    from vlmill.extract.detect.detector import open_detector
    from vlmill.extract.images.decode import decode
    from vlmill.extract.images.resize import network_input

    path, output = tmp_path / "model.safetensors", tmp_path / "regions"
    save_file(state_of(GRIDS["regions"][0]), path)
    arguments = ["--weights", path, *SIDES, "--grid", "--dtype", "float32"]
    assert extract_rois("run", image, "--output", output, *arguments) == 0
    (row,) = RegionReader(output)
    limits = InputLimits(short_side=64, long_side=100)
    model = open_detector(None, path, grid=True, folded=False).model
    pixels = network_input(decode(image.read_bytes(), limits), model.config, limits)
    with torch.inference_mode():
        (cells,) = model.feature_maps(pixels.tensor)
    expected = cells[0].flatten(1).T.numpy()
    assert row.features is not None
    np.testing.assert_allclose(row.features, expected, rtol=1e-4, atol=1e-4)
