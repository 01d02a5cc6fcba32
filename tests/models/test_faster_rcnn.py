"""The detector against recordings of the reference (tests/golden/frcnn/bua_caffe)."""

import dataclasses
import json
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from vlmill.extract.config import InputLimits, Selection
from vlmill.extract.preprocess import network_input
from vlmill.extract.selection import choose_regions
from vlmill.models.boxes import clip_boxes, decode_boxes
from vlmill.models.detector_config import ARCHITECTURES, DetectorConfig
from vlmill.models.faster_rcnn import FasterRCNN
from vlmill.models.nms import class_confidence
from vlmill.models.random_detector import randomise
from vlmill.models.resnet import fold_norms

GOLDEN = Path(__file__).parents[1] / "golden"
SET = GOLDEN / "frcnn/bua_caffe"
OPTIONS = json.loads((SET / "config.json").read_text())["options"]
TOLERANCES = json.loads((GOLDEN / "index.json").read_text())["sets"]["frcnn/bua_caffe"]["tolerance"]
CASES = load_file(SET / "cases.safetensors")
CONFIG = DetectorConfig(
    depth=OPTIONS["depth"],
    stem_channels=OPTIONS["stem"],
    res2_channels=OPTIONS["res2"],
    res2_width=OPTIONS["width"],
    num_classes=OPTIONS["classes"],
    num_attributes=OPTIONS["attrs"],
    rpn_channels=OPTIONS["hid"],
    anchor_scales=tuple(map(float, OPTIONS["scales"])),
    pre_nms_top=OPTIONS["pre"],
    post_nms_top=OPTIONS["post"],
)
LIMITS = InputLimits(short_side=OPTIONS["short"], long_side=OPTIONS["long"])


def check(key: str, ours: Tensor) -> None:
    """Compares with a recorded tensor; the first pattern that fits its key gives the tolerance."""
    recorded = CASES[key]
    assert ours.shape == recorded.shape, key
    if not recorded.is_floating_point():
        assert torch.equal(ours, recorded), key
        return
    bounds = next(bounds for pattern, bounds in TOLERANCES if fnmatchcase(key, pattern))
    allowed = bounds.get("abs", 0) + bounds.get("of_max", 0) * recorded.abs().max()
    allowed = allowed + bounds.get("rel", 0) * recorded.abs()
    assert ((ours - recorded).abs() <= allowed).all(), (key, (ours - recorded).abs().max())


@pytest.fixture(scope="module", autouse=True)
def _inference() -> Iterator[None]:
    torch.set_grad_enabled(False)
    yield
    torch.set_grad_enabled(True)


@pytest.fixture(scope="module", params=["as published", "folded, channels last"])
def model(request: pytest.FixtureRequest) -> FasterRCNN:
    model = FasterRCNN(CONFIG).eval()
    model.load_published(load_file(SET / "weights.safetensors"))
    if request.param != "as published":
        fold_norms(model)
        model = model.to(memory_format=torch.channels_last)
    return model


@pytest.fixture(params=["case0", "case1"])
def case(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_preprocessing(case: str) -> None:
    pixels = CASES[f"{case}.in.image"].numpy()
    picture = network_input(pixels, CONFIG.pixel_mean, LIMITS, min_side=3)
    check(f"{case}.out.tensor", picture.tensor)
    check(f"{case}.out.im_scale", torch.tensor(picture.scale, dtype=torch.float64))


def test_backbone_stage_by_stage(model: FasterRCNN, case: str) -> None:
    backbone = model.backbone
    check(f"{case}.out.stem", backbone.stem(CASES[f"{case}.out.tensor"]))
    stages = torch.nn.Sequential(backbone.res2, backbone.res3, backbone.res4)
    check(f"{case}.out.res4", stages(CASES[f"{case}.out.stem"]))


def test_region_proposals(model: FasterRCNN, case: str) -> None:
    generator = model.proposal_generator
    logits, deltas = generator.rpn_head(CASES[f"{case}.out.res4"])
    check(f"{case}.out.rpn_logits", logits)
    check(f"{case}.out.rpn_deltas", deltas)
    check(f"{case}.out.anchors", generator.anchor_generator(*logits.shape[-2:]))
    boxes, scores = propose(model, case)
    check(f"{case}.out.proposals", boxes)
    check(f"{case}.out.proposal_scores", scores)


def test_the_original_proposal_layer(case: str) -> None:
    """Caffe differs in two fields: growth is unbounded, and a box of the smallest size stays."""
    config = dataclasses.replace(CONFIG, max_log_scale=None, min_size_inclusive=True)
    boxes, scores = propose(FasterRCNN(config).eval(), case)
    check(f"{case}.caffe.rois", boxes)
    check(f"{case}.caffe.roi_scores", scores)


def propose(model: FasterRCNN, case: str) -> tuple[Tensor, Tensor]:
    height, width = CASES[f"{case}.out.tensor"].shape[-2:]
    return model.proposal_generator.propose(
        CASES[f"{case}.out.rpn_logits"],
        CASES[f"{case}.out.rpn_deltas"],
        height,
        width,
        CASES[f"{case}.out.im_scale"].item(),
    )


def test_region_heads(model: FasterRCNN, case: str) -> None:
    proposals, res4 = CASES[f"{case}.out.proposals"], CASES[f"{case}.out.res4"]
    check(f"{case}.out.pooled_first", model.roi_heads.pool(res4, proposals[:2]))
    found = model.describe(res4, proposals, chunk=7)
    check(f"{case}.out.features", found.features)
    predictor = model.roi_heads.box_predictor
    features = CASES[f"{case}.out.features"]
    logits = predictor.cls_score(features)
    check(f"{case}.out.class_logits", logits)
    check(f"{case}.out.box_deltas", predictor.bbox_pred(features))
    check(f"{case}.out.class_probs", found.class_probs)
    recorded_logits = CASES[f"{case}.out.class_logits"]
    attributes = predictor.attribute_logits(features, recorded_logits).softmax(dim=1)
    check(f"{case}.out.attr_probs", attributes)
    check(f"{case}.caffe.class_probs", class_probs(model, res4, CASES[f"{case}.caffe.rois"]))


def class_probs(model: FasterRCNN, res4: Tensor, boxes: Tensor) -> Tensor:
    return model.describe(res4, boxes).class_probs


def test_given_boxes(model: FasterRCNN, case: str) -> None:
    boxes = CASES[f"{case}.in.given_boxes"] * CASES[f"{case}.out.im_scale"].item()
    found = model.describe(CASES[f"{case}.out.res4"], boxes)
    check(f"{case}.out.given_features", found.features)
    check(f"{case}.out.given_class_probs", found.class_probs)
    check(f"{case}.out.given_attr_probs", found.attribute_probs)


def test_refined_boxes(case: str) -> None:
    """The original does not bound the growth, and clips to the picture instead of its input."""
    scale = CASES[f"{case}.out.im_scale"].item()
    height, width = (side / scale for side in CASES[f"{case}.out.tensor"].shape[-2:])
    own_size = [float(side) for side in CASES[f"{case}.in.image"].shape[:2]]
    for key, boxes, bound, size in (
        ("out.refined", "out.proposals", CONFIG.max_log_scale, (height, width)),
        ("caffe.pred_boxes", "caffe.rois", None, own_size),
    ):
        decoded = decode_boxes(
            CASES[f"{case}.{boxes}"] / scale,
            CASES[f"{case}.out.box_deltas"],
            weights=CONFIG.box_weights,
            offset=1.0,
            max_log_scale=bound,
        )
        check(f"{case}.{key}", clip_boxes(decoded, size[0], size[1], 1.0))


def test_selection_on_refined_boxes(case: str) -> None:
    """The port's "bboxes" mode: each region's best class refines it, then the highest are taken."""
    probs = CASES[f"{case}.out.class_probs"]
    best = probs[:, 1:].argmax(dim=1) + 1
    boxes = CASES[f"{case}.out.refined"].reshape(len(probs), -1, 4)[torch.arange(len(probs)), best]
    limit = OPTIONS["sel"][0][1]
    highest = Selection(threshold=0.0, min_boxes=limit, max_boxes=limit)
    check(f"{case}.out.bboxes_mode", boxes[choose_regions(confidence_of(boxes, probs), highest)])


@pytest.mark.parametrize("number", range(len(OPTIONS["sel"])))
def test_selection(case: str, number: int) -> None:
    boxes = CASES[f"{case}.out.proposals"] / CASES[f"{case}.out.im_scale"].item()
    probs = CASES[f"{case}.out.class_probs"]
    chosen = choose_regions(confidence_of(boxes, probs), rule(number))
    check_selection(case, number, boxes, CASES[f"{case}.out.features"], probs, chosen)


@pytest.mark.parametrize("number", range(len(OPTIONS["sel"])))
def test_selection_of_the_original_code(case: str, number: int) -> None:
    boxes = CASES[f"{case}.caffe.rois"] / CASES[f"{case}.out.im_scale"].item()
    confidence = confidence_of(boxes, CASES[f"{case}.caffe.class_probs"])
    check(f"{case}.caffe.max_conf", confidence)
    check(f"{case}.caffe.sel{number}_ids", choose_regions(confidence, rule(number)))


def test_end_to_end(model: FasterRCNN, case: str) -> None:
    pixels = CASES[f"{case}.in.image"].numpy()
    picture = network_input(pixels, CONFIG.pixel_mean, LIMITS, min_side=3)
    found = model(picture.tensor, picture.scale)
    boxes = found.boxes / picture.scale
    confidence = confidence_of(boxes, found.class_probs)
    for number in range(len(OPTIONS["sel"])):
        chosen = choose_regions(confidence, rule(number))
        probs = found.class_probs
        check_selection(case, number, boxes, found.features, probs, chosen)
        scores, ids = found.attribute_probs[chosen, 1:].max(dim=1)
        check(f"{case}.out.sel{number}_attrs_id", ids)
        check(f"{case}.out.sel{number}_attrs_conf", scores)


def rule(number: int) -> Selection:
    low, high = OPTIONS["sel"][number]
    return Selection(threshold=OPTIONS["thr"], min_boxes=low, max_boxes=high)


def confidence_of(boxes: Tensor, probs: Tensor) -> Tensor:
    return class_confidence(boxes, probs[:, 1:], 0.3, offset=1.0, inclusive=True)


def check_selection(
    case: str, number: int, boxes: Tensor, features: Tensor, probs: Tensor, chosen: Tensor
) -> None:
    key = f"{case}.out.sel{number}"
    scores, ids = probs[chosen, 1:].max(dim=1)
    check(f"{key}_num_bbox", torch.tensor(len(chosen)))
    check(f"{key}_bbox", boxes[chosen])
    check(f"{key}_x", features[chosen])
    check(f"{key}_objects_id", ids)
    check(f"{key}_objects_conf", scores)


def test_a_state_dict_that_does_not_fit_names_every_key() -> None:
    state = load_file(SET / "weights.safetensors")
    del state["backbone.stem.conv1.weight"]
    state["backbone.fpn.weight"] = torch.zeros(1)
    state["roi_heads.box_predictor.cls_score.bias"] = torch.zeros(3)
    with pytest.raises(ValueError, match="do not fit") as error:
        FasterRCNN(CONFIG).load_published(state)
    assert "missing backbone.stem.conv1.weight" in str(error.value)
    assert "unexpected backbone.fpn.weight" in str(error.value)
    assert "cls_score.bias is (3,), want (31,)" in str(error.value)


def test_published_layout_of_the_full_size() -> None:
    """The published R-101 file has 616 tensors, counters of res4 and res5 included."""
    with torch.device("meta"):
        state = FasterRCNN(ARCHITECTURES["r101"]).state_dict()
    shapes = {name: tuple(tensor.shape) for name, tensor in state.items()}
    norms_with_counters = sum(
        name.endswith("running_mean") and (".res4." in name or ".res5." in name) for name in shapes
    )
    assert len(shapes) + norms_with_counters == 616
    assert shapes["proposal_generator.rpn_head.objectness_logits.weight"] == (24, 512, 1, 1)
    assert shapes["roi_heads.box_predictor.attr_linear1.weight"] == (512, 2304)
    assert shapes["roi_heads.box_predictor.bbox_pred.weight"] == (6404, 2048)


def test_a_picture_without_proposals_has_empty_outputs() -> None:
    """5 pixels are below the smallest proposal size at every scale."""
    model = FasterRCNN(CONFIG).eval()
    randomise(model, 0)
    found = model(torch.zeros(1, 3, 5, 5), 1.0)
    assert found.boxes.shape == (0, 4)
    assert found.features.shape == (0, CONFIG.feature_size)
    assert confidence_of(found.boxes, found.class_probs).shape == (0,)


def test_random_weights_follow_the_seed_and_keep_regions_apart() -> None:
    generator = torch.Generator().manual_seed(0)
    coarse = torch.randn(1, 3, 8, 10, generator=generator) * 64
    picture = torch.nn.functional.interpolate(coarse, size=(128, 160), mode="bilinear")
    outputs = []
    for seed in (0, 0, 1):
        model = FasterRCNN(ARCHITECTURES["tiny"]).eval()
        randomise(model, seed)
        outputs.append(model(picture, 0.5))
    first, again, other = outputs
    assert torch.equal(first.features, again.features)
    assert first.features.shape != other.features.shape or not torch.equal(
        first.features, other.features
    )
    spread = first.features.var(dim=0).sum() / first.features.mean(dim=0).square().sum()
    assert spread > 0.02  # regions differ; it is 0 where activations have collapsed
    assert 0.02 < first.features.square().mean().sqrt() < 10
    assert first.class_probs.max() > 10 / first.class_probs.shape[1]


@pytest.mark.parametrize(
    ("make", "field"),
    [(lambda: DetectorConfig(depth=34), "depth"), (lambda: DetectorConfig(box_offset=0.5), "box_")],
)
def test_conventions_that_do_not_exist_are_refused(make: Callable[[], object], field: str) -> None:
    with pytest.raises(ValueError, match=field):
        make()
