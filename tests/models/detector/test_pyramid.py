"""A pyramid's maps, proposals and pooling by hand, and the switches of maskrcnn-benchmark."""

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor
from torchvision import ops

from vlmill.models.detector.backbone import Backbone
from vlmill.models.detector.boxes import decode_boxes
from vlmill.models.detector.config import (
    DetectorConfig,
    as_grid,
    detectron2_fpn,
    vinvl,
    vqa_maskrcnn,
)
from vlmill.models.detector.faster_rcnn import grid_cells
from vlmill.models.detector.proposals import ProposalGenerator, make_cell_anchors, stack_maps
from vlmill.models.detector.resnet import Bottleneck, FrozenBatchNorm, Norm
from vlmill.models.detector.roi_heads import map_numbers, pool_regions

SMALL: dict[str, Any] = {
    "depth": 50,
    "stem_channels": 4,
    "res2_channels": 8,
    "fpn_channels": 6,
    "rpn_channels": 6,
}
D2 = detectron2_fpn(**SMALL, res2_width=4)


def test_published_anchors() -> None:
    """The tables of vqa-maskrcnn's and VinVL's code."""
    p2, p6 = (make_cell_anchors(vqa_maskrcnn(), number) for number in (0, 4))
    assert p2.tolist() == [[-22, -10, 25, 13], [-14, -14, 17, 17], [-10, -22, 13, 25]]
    assert p6[0].tolist() == [-332, -152, 395, 215] and p6[2].tolist() == [-148, -328, 211, 391]
    one = make_cell_anchors(vinvl())
    assert one.shape == (15, 4)
    assert one[[0, 4, 14]].tolist() == [
        [-15, -4, 30, 19],
        [-360, -184, 375, 199],
        [-168, -344, 183, 359],
    ]


def test_anchors_of_each_map_have_its_stride() -> None:
    assert make_cell_anchors(D2, 3)[1].tolist() == [-128, -128, 128, 128]
    with pytest.raises(ValueError, match="6 anchor scales or anchors for 5 feature maps"):
        detectron2_fpn(anchor_scales=(8.0,) * 6)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"feature_layer": "res5"}, "a pyramid needs last_stage 5"),
        ({"fpn_channels": 0}, "proposals of res5 have no features"),
        ({"groups": 3}, "groups 3: expected a divisor"),
    ],
)
def test_contradictions_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        detectron2_fpn(**changes)


def test_a_decoded_box_may_end_a_pixel_earlier() -> None:
    boxes, still = torch.tensor([[10.0, 20.0, 29.0, 59.0]]), torch.zeros(1, 4)
    rules: dict[str, Any] = {"weights": (1.0,) * 4, "offset": 1.0, "max_log_scale": None}
    assert decode_boxes(boxes, still, **rules).tolist() == [[10, 20, 30, 60]]
    assert decode_boxes(boxes, still, **rules, end=1.0).tolist() == boxes.tolist()


def test_a_norm_without_epsilon() -> None:
    norm = FrozenBatchNorm(1, 0.0)
    norm.running_var.fill_(1e-6)
    assert norm(torch.ones(1, 1, 2, 2)).flatten()[0] == pytest.approx(1000.0)


def test_maps_of_a_pyramid_are_summed_from_the_top() -> None:
    backbone = Backbone(D2).eval()
    with torch.no_grad():
        for name, parameter in backbone.named_parameters():
            if "fpn" in name:
                parameter.fill_(0.0)
        backbone.get_parameter("fpn_lateral5.bias").fill_(1.0)
        backbone.get_parameter("fpn_lateral3.bias").fill_(2.0)
        for number in range(2, 6):  # the middle of the 3x3 convolution: each map as it is
            weight = backbone.get_parameter(f"fpn_output{number}.weight")
            weight[torch.arange(6), torch.arange(6), 1, 1] = 1.0
        maps = backbone(torch.zeros(1, 3, 64, 96))
    assert [tuple(one.shape[2:]) for one in maps] == [(16, 24), (8, 12), (4, 6), (2, 3), (1, 2)]
    assert [one.unique().tolist() for one in maps] == [[3.0], [3.0], [1.0], [1.0], [1.0]]


def test_the_size_of_a_region_says_its_map() -> None:
    """112 x 112 pixels are p3's; with whole pixels a side of 111 already is."""
    boxes = torch.tensor([[0.0, 0.0, side, side] for side in (1, 111.5, 112, 223, 224, 2000)])
    assert map_numbers(boxes, D2).tolist() == [0, 0, 1, 1, 2, 3]
    inclusive = dataclasses.replace(D2, box_offset=1.0)
    assert map_numbers(torch.tensor([[0.0, 0, 223, 223]]), inclusive).tolist() == [2]


@pytest.mark.parametrize("pooling", ["align", "align-legacy"])
def test_regions_are_pooled_from_their_own_maps(pooling: Any) -> None:
    """Whether the host may ask how many each map has or not."""
    config = dataclasses.replace(D2, pooling=pooling, sampling_ratio=2)
    generator = torch.Generator().manual_seed(0)
    maps = tuple(torch.randn(2, 6, 64 // n, 96 // n, generator=generator) for n in (1, 2, 4, 8, 16))
    rois = torch.tensor(
        [[0, 3, 4, 40, 50], [1, 0, 0, 380, 250], [0, 10, 10, 250, 240], [1, 0, 0, 150, 150]],
        dtype=torch.float32,
    )
    pooled = pool_regions(maps, rois, config, may_wait=True)
    assert torch.equal(pooled, pool_regions(maps, rois, config))
    for row, number in enumerate(map_numbers(rois[:, 1:], config).tolist()):
        expected = ops.roi_align(
            maps[number], rois[row : row + 1], 7, 1 / (4 * 2**number), 2, pooling == "align"
        )
        torch.testing.assert_close(pooled[row : row + 1], expected)


def test_maps_of_other_sizes_are_suppressed_side_by_side() -> None:
    first = torch.ones(2, 3, 4), torch.tensor([[3.0, 2, 1], [6, 5, 4]])
    second = torch.zeros(2, 1, 4), torch.tensor([[9.0], [8.0]])
    boxes, scores = stack_maps([first, second])
    assert boxes.shape == (4, 3, 4) and boxes[:, 0, 0].tolist() == [1, 0, 1, 0]
    inf = -torch.inf
    assert scores.tolist() == [[3, 2, 1], [9, inf, inf], [6, 5, 4], [8, inf, inf]]


def head(sizes: list[tuple[int, int]]) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    generator = torch.Generator().manual_seed(1)
    logits = tuple(torch.randn(1, 3, *size, generator=generator) for size in sizes)
    deltas = tuple(0.2 * torch.randn(1, 12, *size, generator=generator) for size in sizes)
    return logits, deltas


@pytest.mark.parametrize("per_map", [None, 4])
def test_proposals_of_all_maps_are_each_maps_best(per_map: int | None) -> None:
    """Against torchvision's suppression, map by map."""
    sizes = [(16, 24), (8, 12), (4, 6), (2, 3), (1, 2)]
    config = dataclasses.replace(D2, pre_nms_top=30, post_nms_top=25, map_nms_top=per_map)
    generator = ProposalGenerator(config)
    limits, sides = torch.tensor([[90.0, 60.0] * 2]), torch.zeros(1)
    logits, deltas = head(sizes)
    boxes, scores = generator.propose(logits, deltas, limits, sides)
    kept = []
    for number in range(5):
        own, values = generator.candidates(
            number, logits[number], deltas[number], limits, sides, 30
        )
        there = values[0] > -torch.inf
        own, values = own[0, there], values[0, there]
        for index in ops.nms(own, values, 0.7)[: per_map or 25].tolist():
            kept.append((float(values[index]), own[index].tolist()))
    kept.sort(reverse=True)
    taken = scores[0] > -torch.inf
    assert int(taken.sum()) == min(len(kept), 25)
    assert scores[0, taken].tolist() == [value for value, _ in kept[:25]]
    assert boxes[0, taken].tolist() == [box for _, box in kept[:25]]


def test_objectness_may_be_a_probability() -> None:
    config = vinvl(depth=50, groups=2, res2_width=4, res2_channels=8, stem_channels=4)
    scores = ProposalGenerator(config).objectness(torch.tensor([[[[0.0]]] * 14 + [[[40.0]]]]))
    assert scores[0, 0] == 0.5 and scores[0, -1] == 1.0


def test_groups_and_offsets_of_a_bottleneck() -> None:
    plain = Bottleneck(4, 8, 16, Norm(), stride=2, dilation=1, stride_in_1x1=False, groups=4)
    assert plain.conv2.weight.shape == (8, 2, 3, 3) and plain.conv2.stride == (2, 2)
    deformable = Bottleneck(
        4, 8, 16, Norm(), stride=2, dilation=1, stride_in_1x1=False, groups=4, deformable=True
    )
    names = {key for key in deformable.state_dict() if key.startswith("conv2_offset")}
    assert names == {"conv2_offset.weight", "conv2_offset.bias"}
    with torch.no_grad():  # without offsets it is a convolution
        deformable.load_state_dict(plain.state_dict(), strict=False)
        deformable.conv2_offset.weight.zero_()
        deformable.conv2_offset.bias.zero_()  # type: ignore[union-attr]
        x = torch.randn(1, 4, 9, 10, generator=torch.Generator().manual_seed(0))
        torch.testing.assert_close(deformable(x), plain(x), rtol=1e-4, atol=1e-5)


def test_cells_of_a_grid_cover_the_image_and_no_padding() -> None:
    config = as_grid(DetectorConfig(depth=50, res5_stride=2, res5_dilation=1, box_offset=0.0))
    features = torch.arange(2 * 3 * 4.0).reshape(1, 2, 3, 4)
    cells = grid_cells(features, torch.tensor([[100.0, 64.0, 100.0, 64.0]]), config)
    assert cells.box_mask[0].tolist() == [True] * 8 + [False] * 4
    assert cells.boxes[0, [0, 3, 7]].tolist() == [
        [0, 0, 32, 32],
        [96, 0, 100, 32],
        [96, 32, 100, 64],
    ]
    assert cells.features[0, 5].tolist() == features[0, :, 1, 1].tolist()
    assert cells.class_probs.shape == (1, 12, 0)
