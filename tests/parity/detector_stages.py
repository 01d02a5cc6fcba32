"""A detector's stages on recorded inputs, and the network from the picture on: for every family."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tests.models.detector.batches import each_picture, given
from tests.parity.golden import GoldenSet, Results
from torch import Tensor
from torch.nn import functional

from vlmill.extract.config import InputLimits, Selection
from vlmill.extract.detect.detector import open_detector
from vlmill.extract.detect.query import Query
from vlmill.extract.detect.selection import Chosen, Frames, select
from vlmill.extract.detect.transfer import frames_of, measures_of
from vlmill.extract.pictures.resize import NetworkInput, network_input, resize_pillow
from vlmill.models.detector.config import DetectorConfig
from vlmill.models.detector.faster_rcnn import (
    Detections,
    FasterRCNN,
    numbered,
    pool_regions,
)
from vlmill.models.detector.proposals import ProposalGenerator


@dataclass(frozen=True)
class Case:
    """One batch of a set: its recorded tensors and our inputs for its pictures."""

    name: str
    golden: GoldenSet
    results: Results
    model: FasterRCNN  # in the published arithmetic
    fast: FasterRCNN  # as extract-rois runs it: other roundings, so only its decisions count
    inputs: Sequence[NetworkInput]
    decisions_only: bool = False

    @property
    def spec(self) -> DetectorConfig:
        return self.model.config

    @property
    def numbers(self) -> list[str]:
        """What the names of single pictures' tensors end with: nothing, or the picture's number."""
        numbered = f"{self.name}.in.image" not in self.golden.tensors
        return [str(i) if numbered else "" for i in range(len(self.inputs))]

    def __getitem__(self, key: str) -> Tensor:
        return self.golden.tensors[f"{self.name}.{key}"]

    def check(self, key: str, ours: Tensor) -> None:
        if not (self.decisions_only and self[key].is_floating_point()):
            self.results.check(f"{self.name}.{key}", ours)

    def as_extracted(self) -> "Case":
        """The same case for the network that extract-rois runs."""
        return dataclasses.replace(self, model=self.fast, decisions_only=True)

    def check_if_recorded(self, key: str, ours: Tensor) -> None:
        if f"{self.name}.{key}" in self.golden.tensors:
            self.check(key, ours)

    def batch(self) -> Tensor:
        """Our inputs, padded to the right and below with zeros."""
        tensors = [picture.tensor for picture in self.inputs]
        height, width = (max(t.shape[axis] for t in tensors) for axis in (2, 3))
        padded = [
            functional.pad(t, (0, width - t.shape[3], 0, height - t.shape[2])) for t in tensors
        ]
        return torch.cat(padded)

    def sizes(self) -> list[tuple[int, int]]:
        return [(p.tensor.shape[2], p.tensor.shape[3]) for p in self.inputs]

    def frames(self, index: int) -> Frames:
        """The sizes of one picture, as a batch of one."""
        return frames_of(self.measures()[index : index + 1])

    def measures(self) -> Tensor:
        queries = [Query(image_id="", picture=picture) for picture in self.inputs]
        return torch.tensor([measures_of(query, self.spec) for query in queries])

    def of_picture(self, key: str, number: int) -> Tensor:
        """The rows of one picture in a tensor that holds those of the whole batch."""
        counts = [len(self[f"out.proposals{i}"]) for i in self.numbers]
        return torch.split(self[key], counts)[number]

    def recorded_detections(self, number: int, features: str, probs: Tensor) -> Detections:
        """What the reference's network gave, for our selection: a batch of one picture."""
        boxes, taken = given(self[f"out.proposals{self.numbers[number]}"])
        return Detections(
            boxes=boxes,
            taken=taken,
            features=self.of_picture(features, number)[None],
            class_probs=probs[None],
            box_deltas=self.of_picture("out.box_deltas", number)[None],
        )


def open_cases(
    golden: GoldenSet, results: Results, changes: Mapping[str, Any], sides: tuple[int, int]
) -> list[Case]:
    """The cases of a set, its network opened as a user opens published weights."""
    model, fast = (
        open_detector(None, golden.weights, changes=changes, folded=folded).model
        for folded in (False, True)
    )
    limits = InputLimits(short_side=sides[0], long_side=sides[1])
    cases = []
    for name in golden.cases:
        keys = sorted(k for k in golden.tensors if k.startswith(f"{name}.in.image"))
        pixels = [golden.tensors[key].numpy() for key in keys]
        inputs = [network_input(one, model.config, limits) for one in pixels]
        cases.append(Case(name, golden, results, model, fast, inputs))
    return cases


@torch.inference_mode()
def shared_stages(case: Case, *, features: str, scores: str, first: int) -> None:
    """Picture to heads; ``features`` and ``scores`` are the family's names of these tensors."""
    model, spec = case.model, case.spec
    case.check("out.tensor", case.batch())
    if spec.resize == "pillow":
        for picture, number in zip(case.inputs, case.numbers, strict=True):
            pixels = case[f"in.image{number}"].numpy()
            resized = resize_pillow(pixels, *picture.tensor.shape[2:])
            case.check(f"out.resized{number}", torch.tensor(resized))
    backbone = model.backbone
    stem = backbone.stem(case["out.tensor"])
    case.check_if_recorded("out.stem", stem)
    stem = case.golden.tensors.get(f"{case.name}.out.stem", stem)
    case.check("out.res4", model.activate(backbone.res4(backbone.res3(backbone.res2(stem)))))
    generator = model.proposal_generator
    logits, deltas = generator.rpn_head(case["out.res4"])
    case.check("out.rpn_logits", logits)
    case.check("out.rpn_deltas", deltas)
    case.check("out.anchors", generator.anchor_generator(*logits.shape[-2:]))
    for index, number in enumerate(case.numbers):
        boxes, objectness = propose(case, generator, index)
        case.check(f"out.proposals{number}", boxes)
        case.check(f"out.{scores}{number}", objectness)
    heads(case, features, first)


def propose(case: Case, generator: ProposalGenerator, index: int) -> tuple[Tensor, Tensor]:
    """Proposals of one picture, from recorded outputs of the proposal head."""
    frames = case.frames(index)
    boxes, scores = generator.propose(
        case["out.rpn_logits"][index : index + 1],
        case["out.rpn_deltas"][index : index + 1],
        frames.network_limits,
        frames.min_sides,
    )
    taken = scores > -torch.inf
    return boxes[taken], scores[taken]


def heads(case: Case, features: str, first: int) -> None:
    """Pooling, res5 and the predictors, each on what is recorded before it."""
    heads, predictor = case.model.roi_heads, case.model.roi_heads.box_predictor
    proposals = [case[f"out.proposals{number}"] for number in case.numbers]
    res4 = case["out.res4"]
    rois = numbered(proposals[0][None, :first])
    case.check("out.pooled_first", pool_regions(res4[:1], rois, case.spec))
    ours = [
        heads.region_features(res4[i : i + 1], *given(boxes), 7)[0]
        for i, boxes in enumerate(proposals)
    ]
    case.check(f"out.{features}", torch.cat(ours))
    recorded, logits = case[f"out.{features}"], case["out.class_logits"]
    case.check("out.class_logits", predictor.cls_score(recorded))
    case.check("out.box_deltas", predictor.bbox_pred(recorded))
    if case.spec.num_attributes:
        attributes = predictor.attribute_logits(recorded, logits)
        case.check_if_recorded("out.attr_logits", attributes)
        case.check_if_recorded("out.attr_probs", predictor.attribute_probs(attributes))


@torch.inference_mode()
def end_to_end(case: Case) -> list[Detections]:
    """Our own detections of each picture, from the pictures on, all of them in one batch."""
    frames = frames_of(case.measures())
    batch = case.model(case.batch(), frames.network_limits, frames.min_sides, chunk=16)
    return each_picture(batch)


def expect_same_rows(case: Case, found: Detections, recorded: Detections) -> None:
    """The rows that extract-rois writes come from the proposals that the reference's do."""
    rule = Selection(threshold=0.0, min_boxes=0, max_boxes=12)
    ours, reference = (
        taken_of(select(one, case.spec, case.frames(0), rule)).ids for one in (found, recorded)
    )
    assert torch.equal(ours, reference), f"{case.name}: extract-rois keeps other rows"


@dataclass(frozen=True)
class Regions:
    """The regions of one picture, as recordings have them."""

    ids: Tensor
    boxes: Tensor
    class_ids: Tensor
    class_scores: Tensor
    nms_threshold: Tensor


def taken_of(chosen: Chosen) -> Regions:
    """The regions of a batch's only picture, without free places."""
    taken = chosen.taken[0]
    return Regions(
        ids=chosen.ids[0, taken],
        boxes=chosen.boxes[0, taken],
        class_ids=chosen.class_ids[0, taken],
        class_scores=chosen.class_scores[0, taken],
        nms_threshold=chosen.nms_threshold[0],
    )


def check_detections(case: Case, found: Sequence[Detections], features: str, probs: str) -> None:
    """End to end: the same proposals in the same order, and what is said of them."""
    for number, one in zip(case.numbers, found, strict=True):
        case.check(f"out.proposals{number}", one.boxes[0])
        case.check_if_recorded(f"out.{probs}{number}", one.class_probs[0])
    case.check(f"out.{features}", torch.cat([one.features[0] for one in found]))


def given_boxes(case: Case) -> None:
    """Features of boxes in the picture's pixels."""
    factors = torch.tensor(case.inputs[0].factors * 2)
    found = case.model.describe(case["out.res4"], *given(case["in.given_boxes"] * factors))
    case.check("out.given_features", found.features[0])
    case.check("out.given_class_probs", found.class_probs[0])
    assert found.attribute_probs is not None
    case.check("out.given_attr_probs", found.attribute_probs[0])


def expect_sizes(spec: DetectorConfig, resnets: Mapping[str, Any], **sizes: int) -> None:
    """What was read off the shapes is what the reference was built with."""
    expected = {
        "depth": resnets["DEPTH"],
        "stem_channels": resnets["STEM_OUT_CHANNELS"],
        "res2_channels": resnets["RES2_OUT_CHANNELS"],
        "res2_width": resnets["WIDTH_PER_GROUP"],
        **sizes,
    }
    assert {name: getattr(spec, name) for name in expected} == expected


def detectron2_fields(keys: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Our fields for settings in Detectron2's names."""
    rpn, heads = keys[f"{prefix}RPN"], keys[f"{prefix}ROI_BOX_HEAD"]
    anchors = keys[f"{prefix}ANCHOR_GENERATOR"]
    return {
        "pixel_mean": tuple(float(v) for v in keys[f"{prefix}PIXEL_MEAN"]),
        "stride_in_1x1": keys[f"{prefix}RESNETS"]["STRIDE_IN_1X1"],
        "pre_nms_top": rpn["PRE_NMS_TOPK_TEST"],
        "post_nms_top": rpn["POST_NMS_TOPK_TEST"],
        "rpn_nms_threshold": rpn["NMS_THRESH"],
        "rpn_box_weights": tuple(rpn["BBOX_REG_WEIGHTS"]),
        "box_weights": tuple(heads["BBOX_REG_WEIGHTS"]),
        "min_proposal_size": float(keys[f"{prefix}PROPOSAL_GENERATOR"]["MIN_SIZE"]),
        "pool_size": heads["POOLER_RESOLUTION"],
        "sampling_ratio": heads["POOLER_SAMPLING_RATIO"],
        "anchor_scales": tuple(size / 16 for size in anchors["SIZES"][0]),
        "anchor_ratios": tuple(anchors["ASPECT_RATIOS"][0]),
        "anchor_offset": anchors["OFFSET"],
    }
