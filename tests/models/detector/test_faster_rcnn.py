"""The detector beside its parity with the published ones: shapes, limits, training."""

from collections.abc import Callable

import pytest
import torch
from tests.models.detector.batches import detect, given, limits_of, min_sides_of
from torch import Tensor, nn
from torchvision import ops

from vlmill.models.detector.config import ARCHITECTURES, CONVENTIONS, DetectorConfig
from vlmill.models.detector.faster_rcnn import FasterRCNN, refine_boxes
from vlmill.models.detector.fused_stages import fuse_stages
from vlmill.models.detector.random_weights import randomise
from vlmill.models.detector.resnet import FrozenBatchNorm, Norm, PreActivationBottleneck, fold_norms

# Every convention at the smallest size that keeps the structure.
SMALL = {
    "depth": 50,
    "stem_channels": 4,
    "res2_channels": 8,
    "res2_width": 4,
    "num_classes": 6,
    "rpn_channels": 8,
    "class_embedding_size": 3,
    "attribute_hidden_size": 5,
    "min_proposal_size": 0.0,
    "pre_nms_top": 60,
    "post_nms_top": 9,
}


# Those that find regions, which a grid's cells are without.
FAMILIES = [name for name, conventions in CONVENTIONS.items() if conventions().regions != "grid"]
# Maps of a pyramid from which the small boxes here are not pooled.
COARSER = tuple(f"backbone.fpn_output{number}" for number in (3, 4, 5))
WIDTHS = {"milvlg": 5, "milvlg-r152": 5, "caffe": 5, "airsplay": 4, "hf-frcnn": 4, "milvlg-d2": 4}


def small(family: str, **changes: object) -> DetectorConfig:
    sizes = {**SMALL, "num_attributes": 4}
    if CONVENTIONS[family]().num_attributes == 0:
        sizes["num_attributes"] = 0
    if CONVENTIONS[family]().groups > 1:
        sizes["groups"] = 2
    if CONVENTIONS[family]().fpn_channels:
        sizes |= {"fpn_channels": 6, "fc_channels": 10}
    return CONVENTIONS[family](**{**sizes, **changes})


def random_model(config: DetectorConfig, seed: int = 0) -> FasterRCNN:
    model = FasterRCNN(config).eval()
    randomise(model, seed)
    return model


def image(height: int, width: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.randn(1, 3, 6, 8, generator=generator) * 64
    return nn.functional.interpolate(coarse, size=(height, width), mode="bilinear")


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_detects(family: str) -> None:
    spec = small(family)
    (found,) = detect(random_model(spec), image(96, 128), [1.0], chunk=4)
    count = found.boxes.shape[1]
    assert 0 < count <= 9
    assert found.features.shape == (1, count, spec.feature_size)
    torch.testing.assert_close(found.class_probs.sum(dim=2), torch.ones(1, count))
    attributes = WIDTHS.get(family)
    if attributes is None:
        assert found.attribute_probs is None
    else:
        assert found.attribute_probs is not None
        assert found.attribute_probs.shape == (1, count, attributes)
    if spec.written_boxes == "refined":
        assert found.box_deltas is not None
        limits = limits_of([(96, 128)], 0.0)
        refined = refine_boxes(found.boxes, found.box_deltas, limits, spec)
        assert refined.shape == (1, count, 6, 4)
        assert refined.min() >= 0 and refined[..., 2].max() <= 128 and refined[..., 3].max() <= 96


@pytest.mark.parametrize("family", FAMILIES)
def test_folding_changes_roundings_only(family: str) -> None:
    model = random_model(small(family))
    boxes = torch.tensor([[3.0, 5.0, 60.0, 70.0], [40.0, 0.0, 100.0, 90.0]])
    with torch.no_grad():
        before = model.describe(model.feature_maps(image(96, 128)), *given(boxes)).features
        fold_norms(model)
        after = model.describe(model.feature_maps(image(96, 128)), *given(boxes)).features
    assert not any(isinstance(m.norm, FrozenBatchNorm) for m in model.modules() if is_conv(m))
    torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-4 * float(before.abs().max()))


def is_conv(module: nn.Module) -> bool:
    return isinstance(module, nn.Conv2d) and hasattr(module, "norm")


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_reach_every_stage(family: str) -> None:
    """Given boxes, as VL-BERT trains its Fast R-CNN: everything but the proposal head learns."""
    model = random_model(small(family)).train()
    boxes = torch.tensor([[3.0, 5.0, 60.0, 70.0], [40.0, 0.0, 100.0, 90.0]])
    found = model.describe(model.feature_maps(image(96, 128)), *given(boxes))
    loss = found.features.square().mean() - found.class_probs[..., 0].log().mean()
    if found.attribute_probs is not None:
        loss = loss - found.attribute_probs[..., 0].log().mean()
    if found.box_deltas is not None:
        loss = loss + found.box_deltas.square().mean()
    loss.backward()  # type: ignore[no-untyped-call]
    for name, parameter in model.named_parameters():
        attributes = "attr_" in name or "cls_embed" in name
        idle = (
            "proposal_generator" in name
            or name.startswith(COARSER)
            or ("bbox_pred" in name and model.config.written_boxes == "proposals")
            or (attributes and model.config.attribute_boxes == "written")
        )
        learns = parameter.grad is not None and bool(parameter.grad.abs().sum() > 0)
        assert learns != idle, name


def test_proposals_are_constants_and_their_head_learns() -> None:
    model = random_model(small("milvlg")).train()
    features = model.feature_maps(image(96, 128))
    logits, deltas = model.proposal_generator.rpn_head(features[0])
    limits, sides = limits_of([(96, 128)], 1.0), min_sides_of([1.0], model.config)
    boxes, scores = model.proposal_generator.propose((logits,), (deltas,), limits, sides)
    assert not boxes.requires_grad and not scores.requires_grad
    (logits.square().mean() + deltas.square().mean()).backward()
    for parameter in model.proposal_generator.parameters():
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0


@pytest.mark.parametrize("stages", [0, 1, 3])
def test_frozen_stages_and_trained_norms(stages: int) -> None:
    model = FasterRCNN(small("milvlg", frozen_stages=stages, batch_norm="trained")).train()
    assert not any(isinstance(m, FrozenBatchNorm) for m in model.roi_heads.modules())
    boxes = torch.tensor([[3.0, 5.0, 60.0, 70.0]])
    model.describe(model.feature_maps(image(96, 128)), *given(boxes))
    backbone = model.backbone
    parts = (backbone.stem, backbone.res2, backbone.res3, backbone.res4)
    for number, part in enumerate(parts, start=1):
        frozen = number <= stages
        assert all(p.requires_grad != frozen for p in part.parameters())
        means = [m.get_buffer("running_mean") for m in part.modules() if type(m) is nn.BatchNorm2d]
        assert any(mean.any() for mean in means) != frozen


def test_a_state_dict_is_the_same_for_frozen_and_trained_norms() -> None:
    frozen = FasterRCNN(small("milvlg")).state_dict()
    trained = FasterRCNN(small("milvlg", batch_norm="trained")).state_dict()
    assert set(frozen) == {key for key in trained if not key.endswith("num_batches_tracked")}


@pytest.mark.parametrize("family", ["milvlg", "airsplay", "detectron2"])
def test_images_of_a_batch_are_what_they_are_alone(family: str) -> None:
    """Some places stay free: each image has its own least size of proposals."""
    model = random_model(small(family, min_proposal_size=20.0, post_nms_top=40), seed=2)
    images = torch.cat([image(96, 128, seed=seed) for seed in (1, 4, 5)])
    scales = [1.0, 2.0, 0.5]
    with torch.inference_mode():
        together = detect(model, images, scales, chunk=4)
        for number, found in enumerate(together):
            own = images[number : number + 1]
            (alone,) = detect(model, own, scales[number : number + 1])
            torch.testing.assert_close(found.boxes, alone.boxes, rtol=1e-4, atol=1e-3)
            torch.testing.assert_close(found.features, alone.features, rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(found.class_probs, alone.class_probs, rtol=1e-4, atol=1e-5)
    assert len({found.boxes.shape[1] for found in together}) > 1


def test_proposals_of_a_padded_image_stay_in_the_image() -> None:
    model = random_model(small("detectron2"))
    padded = nn.functional.pad(image(64, 80), (0, 48, 0, 32))
    with torch.no_grad():
        (found,) = detect(model, padded, [1.0], sizes=[(64, 80)])
    assert found.boxes.shape[1] > 0
    assert found.boxes[..., [0, 2]].max() <= 80 and found.boxes[..., [1, 3]].max() <= 64


@pytest.mark.parametrize(("offset", "family"), [(1.0, "milvlg"), (0.0, "airsplay")])
def test_the_full_images_as_regions(offset: float, family: str) -> None:
    model = random_model(small(family))
    images = torch.cat((image(96, 128), image(96, 128, seed=4)))
    limits = limits_of([(96, 128)] * 2, offset)
    with torch.no_grad():
        features = model.feature_maps(images)
        found = model.full_images(features, limits)
        boxes = torch.tensor([[0.0, 0.0, 128 - offset, 96 - offset]]).expand(2, 1, 4)
        described = model.describe(features, boxes, torch.ones(2, 1, dtype=torch.bool))
    assert torch.equal(found, described.features[:, 0])


def test_only_taken_places_are_computed_on_a_cpu() -> None:
    model = random_model(small("milvlg"))
    boxes = torch.tensor([[3.0, 5.0, 60.0, 70.0], [torch.nan] * 4, [40.0, 0.0, 100.0, 90.0]])
    taken = torch.tensor([True, False, True])
    with torch.inference_mode():
        features = model.feature_maps(image(96, 128))
        found = model.describe(features, boxes[None], taken[None]).features
        expected = model.describe(features, *given(boxes[taken])).features
    assert torch.equal(found[:, taken], expected) and not found[:, ~taken].any()


def test_res5_dilates_or_strides_as_configured() -> None:
    pooled = torch.randn(2, 64, 14, 14)
    for stride, dilation, side in ((1, 2, 14), (1, 1, 14), (2, 1, 7)):
        config = small("milvlg", res2_channels=16, res5_stride=stride, res5_dilation=dilation)
        heads = FasterRCNN(config).roi_heads
        assert heads.res5(pooled).shape == (2, 128, side, side)


def test_one_regression_for_all_classes() -> None:
    spec = small("detectron2", class_specific_boxes=False)
    (found,) = detect(random_model(spec), image(96, 128), [1.0])
    assert found.box_deltas is not None and found.box_deltas.shape == found.boxes.shape


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


def test_nothing_is_refined_to_nothing() -> None:
    spec = small("airsplay")
    refined = refine_boxes(torch.zeros(2, 0, 4), torch.zeros(2, 0, 24), torch.ones(2, 4), spec)
    assert refined.shape == (2, 0, 6, 4)


@pytest.mark.parametrize(("of", "smallest"), [("picture", 32.0), ("input", 16.0)])
def test_the_smallest_proposal_is_meant_before_or_after_resizing(of: str, smallest: float) -> None:
    spec = small("detectron2", min_proposal_size=16.0, min_size_of=of, post_nms_top=60)
    assert spec.min_input_size(2.0) == smallest
    (large,) = detect(random_model(spec), image(96, 128), [2.0])
    sides = large.boxes[..., 2:] - large.boxes[..., :2]
    assert sides.shape[1] > 5 and sides.min() > smallest
    everything = random_model(small("detectron2", post_nms_top=60))
    (every,) = detect(everything, image(96, 128), [2.0])
    assert (every.boxes[..., 2:] - every.boxes[..., :2]).min() < smallest


@pytest.mark.parametrize(("dilation", "in_1x1"), [(1, True), (2, True), (2, False)])
def test_a_pre_activation_block_strides_and_dilates_as_told(dilation: int, in_1x1: bool) -> None:
    """Against the plain operators, with normalisations that change nothing."""
    block = PreActivationBottleneck(
        4, 3, 8, Norm(eps=0.0), stride=2, dilation=dilation, stride_in_1x1=in_1x1
    )
    x = torch.randn(1, 4, 9, 7, generator=torch.Generator().manual_seed(0))
    strides = (2, 1) if in_1x1 else (1, 2)
    rectified = x.relu()
    with torch.no_grad():
        y = nn.functional.conv2d(rectified, block.conv1.weight, stride=strides[0]).relu()
        y = nn.functional.conv2d(
            y, block.conv2.weight, stride=strides[1], padding=dilation, dilation=dilation
        ).relu()
        shortcut = nn.functional.conv2d(rectified, block.shortcut.weight, stride=2)
        expected = nn.functional.conv2d(y, block.conv3.weight) + shortcut
        torch.testing.assert_close(block(x), expected)


@pytest.mark.parametrize("size", [7, 14])
@pytest.mark.parametrize("sampling", [0, 2])
@pytest.mark.parametrize("pooling", ["pool", "align", "align-legacy"])
def test_regions_are_pooled_by_the_operator_that_is_named(
    pooling: str, sampling: int, size: int
) -> None:
    """In the network as extraction runs it too, which pools by other means on a CPU."""
    spec = small("detectron2", pooling=pooling, sampling_ratio=sampling, pool_size=size)
    model = random_model(spec)
    boxes = torch.tensor([[3.0, 5.0, 60.0, 70.0], [40.0, 0.5, 100.0, 90.0], [8.0, 8.0, 9.0, 9.0]])
    with torch.no_grad():
        features = model.feature_maps(image(96, 128))
        if pooling == "pool":
            pooled = ops.roi_pool(features[0], [boxes], size, 1 / 16)
        else:
            aligned = pooling == "align"
            pooled = ops.roi_align(features[0], [boxes], size, 1 / 16, sampling, aligned)
        expected = model.roi_heads.res5(pooled).mean(dim=(2, 3))
        torch.testing.assert_close(model.describe(features, *given(boxes)).features[0], expected)
        fold_norms(model)
        fuse_stages(model)
        extracted = model.describe(features, *given(boxes)).features[0]
    torch.testing.assert_close(extracted, expected, rtol=1e-4, atol=1e-5 * float(expected.max()))


def test_a_image_without_proposals_has_empty_outputs() -> None:
    """5 pixels are below the smallest proposal size at every scale."""
    spec = small("milvlg", min_proposal_size=16.0)
    (found,) = detect(random_model(spec), torch.zeros(1, 3, 5, 5), [1.0])
    assert found.boxes.shape == (1, 0, 4)
    assert found.features.shape == (1, 0, spec.feature_size)
    assert found.class_probs.shape == (1, 0, 7)


def test_random_weights_follow_the_seed_and_keep_regions_apart() -> None:
    generator = torch.Generator().manual_seed(0)
    coarse = torch.randn(1, 3, 8, 10, generator=generator) * 64
    image = torch.nn.functional.interpolate(coarse, size=(128, 160), mode="bilinear")
    outputs = []
    for seed in (0, 0, 1):
        model = FasterRCNN(ARCHITECTURES["tiny"]).eval()
        randomise(model, seed)
        outputs.append(detect(model, image, [0.5])[0])
    first, again, other = outputs
    assert torch.equal(first.features, again.features)
    assert first.features.shape != other.features.shape or not torch.equal(
        first.features, other.features
    )
    features = first.features[0]
    spread = features.var(dim=0).sum() / features.mean(dim=0).square().sum()
    assert spread > 0.02  # regions differ; it is 0 where activations have collapsed
    assert 0.02 < first.features.square().mean().sqrt() < 10
    assert first.class_probs.max() > 10 / first.class_probs.shape[2]


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: DetectorConfig(depth=34), "depth"),
        (lambda: DetectorConfig(box_offset=0.5), "box_offset"),
        (lambda: DetectorConfig(frozen_stages=5), "frozen_stages"),
        (lambda: DetectorConfig(class_nms_thresholds=()), "class_nms_thresholds"),
    ],
)
def test_conventions_that_do_not_exist_are_refused(make: Callable[[], object], field: str) -> None:
    with pytest.raises(ValueError, match=field):
        make()
