"""Detectron2 as the backend, against our network of its family: same image, weights and rows."""

import dataclasses
import importlib.util
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import save_file
from torch import nn

from vlmill.extract.cli import command
from vlmill.extract.config import ExtractConfig, InputLimits, Selection, Storage
from vlmill.extract.detect.config_file import read_config_file
from vlmill.extract.detect.detector import open_detector
from vlmill.extract.detect.detectron2 import INSTALL, library, load_weights, open_detectron2
from vlmill.extract.detect.predict import extract_regions, predict_regions, start_batch
from vlmill.extract.detect.rows import Query
from vlmill.extract.images.decode import decode
from vlmill.extract.images.resize import NetworkInput, network_input
from vlmill.models.detector.config import detectron2
from vlmill.models.detector.configurations import read_configuration
from vlmill.models.detector.faster_rcnn import FasterRCNN
from vlmill.models.detector.published_names import ANCHORS as CELL_ANCHORS
from vlmill.models.detector.published_names import published_name
from vlmill.models.detector.random_weights import randomise
from vlmill.runtime.readers.regions import RegionReader, RegionRow
from vlmill.schemas.errors import InputError

PROPOSALS = 60
CONFIG = f"""
MODEL:
  META_ARCHITECTURE: GeneralizedRCNN
  MASK_ON: False
  RESNETS:
    DEPTH: 50
  RPN:
    PRE_NMS_TOPK_TEST: 6000
    POST_NMS_TOPK_TEST: {PROPOSALS}
"""
needs_detectron2 = pytest.mark.skipif(
    importlib.util.find_spec("detectron2") is None,
    reason="Detectron2 is not installed (docs/install.md says how to build it)",
)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A configuration of R-50 C4 and random weights in Detectron2's layout."""
    folder = tmp_path_factory.mktemp("d2")
    model = FasterRCNN(detectron2(depth=50, post_nms_top=PROPOSALS))
    randomise(model, 4)
    save_file(model.state_dict(), folder / "model.safetensors")
    (folder / "config.yaml").write_text(CONFIG)
    return folder / "config.yaml", folder / "model.safetensors"


@needs_detectron2
def test_both_backends_give_the_same_rows(
    files: tuple[Path, Path], jpeg: Callable[[int], bytes]
) -> None:
    config = ExtractConfig(
        selection=Selection(threshold=0.0, min_boxes=20, max_boxes=20),
        limits=InputLimits(short_side=128, long_side=200),
        storage=Storage(class_probs="full", dtype="float32", global_feature=True),
    )
    theirs = open_detectron2(*files)
    ours = open_detector(None, files[1], changes={"post_nms_top": PROPOSALS})
    for number in range(3):
        a = extract_regions("x", jpeg(number), theirs, config)
        b = extract_regions("x", jpeg(number), ours, config)
        assert len(a.boxes) == 20
        np.testing.assert_allclose(a.boxes, b.boxes, atol=2e-3)
        for name in ("features", "class_probs", "class_scores", "global_feature"):
            expected, found = getattr(a, name), getattr(b, name)
            assert expected.std() > 0
            np.testing.assert_allclose(found, expected, atol=1e-4 * abs(expected).max())
        assert a.class_ids is not None and b.class_ids is not None
        assert np.array_equal(a.class_ids, b.class_ids)


@needs_detectron2
def test_rows_are_what_detectron2_itself_infers(
    files: tuple[Path, Path], jpeg: Callable[[int], bytes]
) -> None:
    limits = InputLimits(short_side=128, long_side=200)
    rule = Selection(threshold=0.05, min_boxes=0, max_boxes=100)
    config = ExtractConfig(selection=rule, limits=limits, storage=Storage(dtype="float32"))
    detector = open_detectron2(*files)
    row = extract_regions("x", jpeg(1), detector, config)
    network_in = network_input(decode(jpeg(1), limits), detector.model.config, limits)
    mean = torch.tensor(detector.model.config.pixel_mean)[:, None, None]
    sample = {"image": network_in.tensor[0] + mean, "height": 72, "width": 96}
    own = detector.model.get_submodule("model")
    with torch.inference_mode():
        (output,) = own([sample])
    instances = output["instances"]
    assert len(instances) == len(row.boxes) > 0
    np.testing.assert_allclose(row.boxes, instances.pred_boxes.tensor.numpy(), atol=2e-3)
    assert row.class_ids is not None and row.class_scores is not None
    assert np.array_equal(row.class_ids, instances.pred_classes.numpy())
    np.testing.assert_allclose(row.class_scores, instances.scores.numpy(), atol=1e-5)


@needs_detectron2
@pytest.mark.parametrize("with_boxes", [False, True])
def test_images_of_a_batch_have_the_rows_that_each_has_alone(
    with_boxes: bool, files: tuple[Path, Path], jpeg: Callable[[int], bytes]
) -> None:
    config = ExtractConfig(
        selection=Selection(threshold=0.0, min_boxes=20, max_boxes=20),
        limits=InputLimits(short_side=128, long_side=200),
        storage=Storage(dtype="float32", global_feature=True),
    )
    detector = open_detectron2(*files)
    boxes = np.array([[3, 5, 60, 70], [40, 0, 90, 71], [8, 8, 30, 20]], dtype=np.float32)
    queries = []
    for number in (1, 2):  # of which one has two boxes and one has three
        pixels = decode(jpeg(number), config.limits)
        image = network_input(pixels, detector.model.config, config.limits)
        own = boxes[: number + 1] if with_boxes else None
        queries.append(Query(image_id=str(number), image=image, boxes=own))
    batch = start_batch(queries, detector, config)()
    for query, row in zip(queries, batch, strict=True):
        assert isinstance(query.image, NetworkInput)
        alone = predict_regions("x", query.image, detector, config, query.boxes)
        assert isinstance(row, RegionRow) and len(row.boxes) == len(alone.boxes) > 1
        np.testing.assert_allclose(row.boxes, alone.boxes, atol=2e-3)
        for name in ("features", "class_scores", "global_feature"):
            expected, ours = getattr(alone, name), getattr(row, name)
            np.testing.assert_allclose(ours, expected, atol=1e-4 * abs(expected).max())


@needs_detectron2
def test_fast_keeps_what_is_not_computed_in_bfloat16(
    files: tuple[Path, Path], jpeg: Callable[[int], bytes]
) -> None:
    boxes = np.array([[3, 5, 60, 70], [40, 0, 90, 71]], dtype=np.float32)
    exact = ExtractConfig(limits=InputLimits(short_side=128, long_side=200))
    detector = open_detectron2(*files)
    spec, limits = detector.model.config, exact.limits
    image = network_input(decode(jpeg(1), limits), spec, limits)
    one, other = (
        predict_regions("x", image, detector, config, boxes)
        for config in (exact, dataclasses.replace(exact, precision="fast"))
    )
    assert one.features is not None and other.features is not None
    assert np.array_equal(one.boxes, other.boxes)
    np.testing.assert_allclose(other.features, one.features, atol=0.03 * abs(one.features).max())
    assert not np.array_equal(other.features, one.features)


@needs_detectron2
def test_the_command_runs_it(
    files: tuple[Path, Path], jpeg: Callable[[int], bytes], tmp_path: Path
) -> None:
    (tmp_path / "a.jpg").write_bytes(jpeg(0))
    arguments = ["run", str(tmp_path / "a.jpg"), "--output", str(tmp_path / "out")]
    arguments += ["--backend", "detectron2", "--config", str(files[0])]
    arguments += ["--short-side", "64", "--long-side", "100", "--weights", str(files[1])]
    assert command(arguments) == 0
    reader = RegionReader(tmp_path / "out")
    assert "Detectron2" in reader.producer["weights"]
    assert len(reader.image_ids) == 1


# A small network, and what a configuration may say otherwise.
SMALL = {
    "MODEL.RESNETS.DEPTH": 50,
    "MODEL.RESNETS.STEM_OUT_CHANNELS": 8,
    "MODEL.RESNETS.RES2_OUT_CHANNELS": 16,
    "MODEL.RESNETS.WIDTH_PER_GROUP": 8,
    "MODEL.ROI_HEADS.NUM_CLASSES": 12,
    "MODEL.RPN.POST_NMS_TOPK_TEST": PROPOSALS,
    "INPUT.MIN_SIZE_TEST": 128,
    "INPUT.MAX_SIZE_TEST": 200,
}
POOL, ANCHORS = "MODEL.ROI_BOX_HEAD.POOLER_", "MODEL.ANCHOR_GENERATOR."
PYRAMID: dict[str, Any] = {
    "MODEL.BACKBONE.NAME": "build_resnet_fpn_backbone",
    "MODEL.RESNETS.OUT_FEATURES": ["res2", "res3", "res4", "res5"],
    "MODEL.FPN.IN_FEATURES": ["res2", "res3", "res4", "res5"],
    "MODEL.FPN.OUT_CHANNELS": 16,
    f"{ANCHORS}SIZES": [[32], [64], [128], [256], [512]],
    "MODEL.RPN.IN_FEATURES": ["p2", "p3", "p4", "p5", "p6"],
    "MODEL.RPN.PRE_NMS_TOPK_TEST": 100,
    "MODEL.ROI_HEADS.NAME": "StandardROIHeads",
    "MODEL.ROI_HEADS.IN_FEATURES": ["p2", "p3", "p4", "p5"],
    "MODEL.ROI_BOX_HEAD.NAME": "FastRCNNConvFCHead",
    "MODEL.ROI_BOX_HEAD.NUM_FC": 2,
    "MODEL.ROI_BOX_HEAD.FC_DIM": 24,
    f"{POOL}RESOLUTION": 7,
}
OTHERWISE: dict[str, dict[str, Any]] = {
    "plain": {},
    "align": {f"{POOL}TYPE": "ROIAlign"},
    "pool": {f"{POOL}TYPE": "ROIPool", f"{POOL}RESOLUTION": 7},
    "sampling": {f"{POOL}SAMPLING_RATIO": 2},
    "agnostic": {"MODEL.ROI_BOX_HEAD.CLS_AGNOSTIC_BBOX_REG": True},
    "hidden": {"MODEL.RPN.CONV_DIMS": [20]},
    "offset": {f"{ANCHORS}OFFSET": 0.5},
    "anchors": {f"{ANCHORS}SIZES": [[24, 48.5]], f"{ANCHORS}ASPECT_RATIOS": [[0.3, 1, 1.7, 3]]},
    "stride in 3x3": {"MODEL.RESNETS.STRIDE_IN_1X1": False},
    "smallest": {"MODEL.PROPOSAL_GENERATOR.MIN_SIZE": 100},
    "norm": {"MODEL.RESNETS.NORM": "BN"},
    "pixels": {"INPUT.FORMAT": "RGB", "MODEL.PIXEL_STD": [57.0, 58.0, 59.0]},
    "dilation": {"MODEL.RESNETS.RES5_DILATION": 2},
    "weights": {
        "MODEL.ROI_BOX_HEAD.BBOX_REG_WEIGHTS": [5.0, 5.0, 2.0, 2.0],
        "MODEL.RPN.BBOX_REG_WEIGHTS": [2.0, 2.0, 1.0, 1.0],
        "MODEL.RPN.NMS_THRESH": 0.5,
        "MODEL.RPN.PRE_NMS_TOPK_TEST": 100,
    },
    "groups": {"MODEL.RESNETS.NUM_GROUPS": 4, "MODEL.RESNETS.WIDTH_PER_GROUP": 2},
    "pyramid": PYRAMID,
    "pyramid of groups": PYRAMID
    | {
        "MODEL.RESNETS.NUM_GROUPS": 4,
        "MODEL.RESNETS.WIDTH_PER_GROUP": 2,
        "MODEL.RESNETS.STRIDE_IN_1X1": False,
        "MODEL.PIXEL_STD": [57.375, 57.12, 58.395],
    },
}


def nested(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Sections of dotted keys."""
    sections: dict[str, Any] = {}
    for name, value in keys.items():
        *parents, leaf = name.split(".")
        section = sections
        for parent in parents:
            section = section.setdefault(parent, {})
        section[leaf] = value
    return sections


@needs_detectron2
@pytest.mark.parametrize("name", OTHERWISE)
def test_our_network_honours_what_detectron2_does(
    name: str, jpeg: Callable[[int], bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, weights, image = (tmp_path / end for end in ("c.yaml", "w.safetensors", "a.jpg"))
    path.write_text(yaml.safe_dump(nested(SMALL | OTHERWISE[name])))
    model = FasterRCNN(read_config_file(path).configuration().config)
    randomise(model, 3)
    counters = {
        key.replace("running_var", "num_batches_tracked"): torch.tensor(1)
        for key in model.state_dict()
        if key.endswith("running_var") and name == "norm"
    }
    state = {
        published_name(key, model.config.family): value
        for key, value in (model.state_dict() | counters).items()
    }
    save_file(state, weights)
    image.write_bytes(jpeg(1))
    assert command(["compare", "--weights", str(weights), "--config", str(path), str(image)]) == 0
    header, row, _ = capsys.readouterr().out.splitlines()
    found = dict(zip(header.split(), row.split(), strict=True))
    assert int(found["proposals"]) > 5 and int(found["regions"]) > 5
    assert found["other_proposals"] == found["other_regions"] == "0"
    limits = {"proposals_px": 0.02, "refined_px": 0.02}
    for stage in ("feature_map", "proposals_px", "features", "class_probs", "refined_px"):
        assert float(found[stage]) < limits.get(stage, 1e-4), stage


@needs_detectron2
@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("MODEL: {ROI_HEADS: {NAME: CascadeROIHeads}}", "give one with GeneralizedRCNN"),
        ("MODEL: {NO_SUCH: 1}", "is not a Detectron2 configuration"),
        ("!!python/object/apply:os.getcwd []", "would build something else than data"),
        ("MODEL: {RESNETS: {DEPTH: 101}}", "missing backbone.res4.6"),
    ],
)
def test_mistakes(files: tuple[Path, Path], tmp_path: Path, config: str, message: str) -> None:
    (tmp_path / "config.yaml").write_text(config)
    with pytest.raises(InputError, match=message):
        open_detectron2(tmp_path / "config.yaml", files[1])


def network_with_buffers(*, persistent: bool) -> nn.Module:
    """A weight, a mean of pixels and anchors, under the names that Detectron2 gives them."""
    model, part = nn.Linear(2, 1, bias=False), nn.Module()
    part.register_buffer("0", torch.ones(3, 4), persistent=persistent)
    for name in reversed(CELL_ANCHORS.split(".")[:-1]):
        outer = nn.Module()
        outer.add_module(name, part)
        part = outer
    model.add_module("proposal_generator", part.get_submodule("proposal_generator"))
    model.register_buffer("pixel_mean", torch.zeros(3), persistent=persistent)
    return model


@pytest.mark.parametrize("persistent", [False, True])
def test_buffers_that_files_carry_are_compared_as_the_model_has_them(persistent: bool) -> None:
    """In some of its versions the model's own are in its state dict, in others they are not."""
    model, path = network_with_buffers(persistent=persistent), Path("model.pth")
    state = {
        "weight": torch.ones(1, 2),
        "pixel_mean": torch.ones(3),
        CELL_ANCHORS: torch.ones(3, 4),
    }
    load_weights(model, state, path)
    assert model.get_parameter("weight").tolist() == [[1.0, 1.0]]
    assert model.get_buffer("pixel_mean").tolist() == [float(persistent)] * 3
    with pytest.raises(InputError, match="has other anchors than the configuration"):
        load_weights(model, state | {CELL_ANCHORS: torch.zeros(3, 4)}, path)
    with pytest.raises(InputError, match="unexpected other; weight is"):
        load_weights(model, state | {"other": torch.ones(1), "weight": torch.ones(1)}, path)


def test_without_detectron2_the_error_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "detectron2", None)
    monkeypatch.setitem(sys.modules, "detectron2.config", None)
    with pytest.raises(InputError) as caught:
        open_detectron2(tmp_path / "config.yaml", tmp_path / "model.pkl")
    assert INSTALL in str(caught.value) and "02b5c4e2" in str(caught.value)


@needs_detectron2
def test_a_grid_of_deformable_convolutions_is_detectron2s() -> None:
    """The body of grid-feats-vqa's X-152pp, which no detector of Detectron2's own has."""
    keys = {
        "MODEL.RESNETS.DEPTH": 50,
        "MODEL.RESNETS.NUM_GROUPS": 4,
        "MODEL.RESNETS.WIDTH_PER_GROUP": 2,
        "MODEL.RESNETS.STRIDE_IN_1X1": False,
        "MODEL.RESNETS.STEM_OUT_CHANNELS": 8,
        "MODEL.RESNETS.RES2_OUT_CHANNELS": 16,
        "MODEL.RESNETS.OUT_FEATURES": ["res5"],
        "MODEL.RESNETS.DEFORM_ON_PER_STAGE": [False, False, True, True],
    }
    cfg = library("config").get_cfg()
    cfg.merge_from_list([part for pair in keys.items() for part in pair])
    theirs = library("modeling").build_backbone(cfg).eval()
    values = keys | {"MODEL.ROI_HEADS.NAME": "AttributeStandardROIHeads"}
    ours = FasterRCNN(read_configuration(values).config).eval()
    randomise(ours, 1)
    state = ours.backbone.state_dict()
    theirs.load_state_dict(state, strict=True)
    image = 50 * torch.randn(1, 3, 120, 150, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        torch.testing.assert_close(ours.feature_maps(image)[0], theirs(image)["res5"])
