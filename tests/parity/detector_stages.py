"""A detector's stages on recorded inputs, and the network from the image on: for every family."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tests.models.detector.batches import each_image, given
from tests.parity.golden import GoldenSet, NotComparable, expect, read_tensors
from tests.parity.proposal_ties import Bounds, ProposalTies, proposal_ties
from tests.parity.results import Results
from tests.parity.ties import settle
from torch import Tensor
from torch.nn import functional

from vlmill.extract.config import InputLimits
from vlmill.extract.detect.detector import open_detector
from vlmill.extract.detect.rows import Query
from vlmill.extract.detect.selection import Frames
from vlmill.extract.detect.transfer import compute_measures, make_frames, pad_images
from vlmill.extract.images.resize import NetworkInput, network_input, resize_pillow
from vlmill.models.detector.config import DetectorConfig
from vlmill.models.detector.configurations import flatten_sections, read_configuration
from vlmill.models.detector.faster_rcnn import Detections, FasterRCNN
from vlmill.models.detector.proposals import ProposalGenerator
from vlmill.models.detector.published import fit_configuration
from vlmill.models.detector.resnet import widen
from vlmill.models.detector.roi_heads import number_boxes, pool_regions

CHUNK = 7  # regions at a time: fewer than there are, so that parts have to fit together


@dataclass(frozen=True)
class Case:
    """One batch of a set: its recorded tensors and our inputs for its images."""

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
        """What the names of single images' tensors end with: nothing, or the image's number."""
        numbered = f"{self.name}.in.image" not in self.golden.tensors
        return [str(i) if numbered else "" for i in range(len(self.inputs))]

    def __getitem__(self, key: str) -> Tensor:
        return self.golden.tensors[f"{self.name}.{key}"]

    def check(self, key: str, ours: Tensor) -> None:
        if not (self.decisions_only and ours.is_floating_point()):
            self.results.check(f"{self.name}.{key}", ours)

    def check_all(self, ours: Mapping[str, Tensor]) -> None:
        """Several at once."""
        for key, column in ours.items():
            self.check(key, column)

    def in_place(self, ours: Mapping[str, Tensor]) -> bool:
        """Whether rows are the recorded ones, each in its place and within its tolerance."""
        named = {f"{self.name}.{key}": column for key, column in ours.items()}
        return all(
            self.results.deviation(key, self.golden.tensors[key], column)["ok"]
            for key, column in named.items()
            if key in self.golden.tensors
        )

    def bounds(self, key: str) -> Bounds:
        """How far numbers may be off that are like those recorded as ``key``."""
        name = f"{self.name}.{key}"
        most = self.results.most_allowed(name)
        return lambda values: self.golden.allowed(name, values).clamp(max=most)

    def as_extracted(self) -> "Case":
        """The same case for the network that extract-rois runs."""
        return dataclasses.replace(self, model=self.fast, decisions_only=True)

    def batch(self) -> Tensor:
        """Our inputs, padded to the right and below with zeros."""
        tensors = [image.tensor for image in self.inputs]
        height, width = (max(t.shape[axis] for t in tensors) for axis in (2, 3))
        padded = [
            functional.pad(t, (0, width - t.shape[3], 0, height - t.shape[2])) for t in tensors
        ]
        return pad_images(torch.cat(padded), self.spec)

    def sizes(self) -> list[tuple[int, int]]:
        return [(p.tensor.shape[2], p.tensor.shape[3]) for p in self.inputs]

    def frames(self, index: int) -> Frames:
        """The sizes of one image, as a batch of one."""
        return make_frames(self.measures()[index : index + 1])

    def measures(self) -> Tensor:
        queries = [Query(image_id="", image=image) for image in self.inputs]
        rows = torch.tensor([compute_measures(query, self.spec) for query in queries])
        if self.spec.clipped_to == "padded":  # of the whole batch, where the reference has several
            height, width = self.batch().shape[2:]
            rows[:, 5:9] = torch.tensor([width, height] * 2) - self.spec.box_offset
            if self.spec.given_scale == "padded":
                own = torch.tensor([[p.width, p.height] * 2 for p in self.inputs])
                rows[:, 21:25] = torch.tensor([width, height] * 2) / own
        return rows

    def of_image(self, key: str, number: int) -> Tensor:
        """The rows of one image in a tensor that holds those of the whole batch."""
        counts = [len(self[f"out.proposals{i}"]) for i in self.numbers]
        return torch.split(self[key], counts)[number]

    def recorded_detections(self, number: int, features: str, probs: Tensor) -> Detections:
        """What the reference's network gave, for our selection: a batch of one image."""
        boxes, taken = given(self[f"out.proposals{self.numbers[number]}"])
        return Detections(
            boxes=boxes,
            box_mask=taken,
            features=self.of_image(features, number)[None],
            class_probs=probs[None],
            box_deltas=self.of_image("out.box_deltas", number)[None],
        )


def open_cases(
    golden: GoldenSet,
    results: Results,
    keys: Mapping[str, Any],
    changes: Mapping[str, Any] | None = None,
) -> list[Case]:
    """The cases of a set, its network opened as a user's with the keys of its configuration.

    ``changes`` are of fields in which the reference's code departs from its own configuration.
    """
    grid = golden.family == "grid-feats"
    config = dataclasses.replace(config_of_keys(golden, keys, grid=grid), **changes or {})
    model, fast = (
        open_detector(config, golden.weights, folded=folded).model for folded in (False, True)
    )
    assert isinstance(model, FasterRCNN) and isinstance(fast, FasterRCNN)
    limits = InputLimits(short_side=config.short_side, long_side=config.long_side)
    cases = []
    for name in golden.cases:
        images = sorted(k for k in golden.tensors if k.startswith(f"{name}.in.image"))
        expect(images, f"{golden.folder}: no tensor {name}.in.image, which the network needs")
        pixels = [golden.tensors[key].numpy() for key in images]
        inputs = [network_input(one, model.config, limits) for one in pixels]
        cases.append(Case(name, golden, results, model, fast, inputs))
    return cases


def config_of_keys(
    golden: GoldenSet, keys: Mapping[str, Any], *, any_family: bool = False, grid: bool = False
) -> DetectorConfig:
    """Our configuration by the keys of the reference's, whose sizes have to be the weights'.

    Raises NotComparable with the key that is not honoured, contradicts the weights, or belongs to
    another family.
    """
    file = golden.folder / "config.json"
    try:
        configuration = read_configuration(dict(flatten_sections(keys)), grid=grid)
        config = fit_configuration(configuration, read_tensors(golden.weights))
    except ValueError as error:
        raise NotComparable(f"{file} and {golden.weights}: {error}") from None
    expect(
        any_family or configuration.family == golden.family,
        f"{file}: the keys are of family {configuration.family}, the set is of {golden.family}",
    )
    return config


@torch.inference_mode()
def shared_stages(case: Case, *, features: str, scores: str) -> None:
    """Image to heads; ``features`` and ``scores`` are the family's names of these tensors."""
    model, spec = case.model, case.spec
    batch = case.batch()
    case.check("out.tensor", batch)
    if spec.resize == "pillow":
        for image, number in zip(case.inputs, case.numbers, strict=True):
            pixels = case[f"in.image{number}"].numpy()
            if spec.channel_order == "rgb":  # turned before it is resized
                pixels = pixels[:, :, ::-1].copy()
            resized = resize_pillow(pixels, *image.tensor.shape[2:])
            case.check(f"out.resized{number}", torch.tensor(resized))
    backbone = model.backbone
    stem = backbone.stem(case.golden.tensors.get(f"{case.name}.out.tensor", batch))
    case.check("out.stem", stem)
    stem = case.golden.tensors.get(f"{case.name}.out.stem", stem)
    case.check("out.res4", model.activate((backbone.res4(backbone.res3(backbone.res2(stem))),))[0])
    generator = model.proposal_generator
    logits, deltas = generator.rpn_head(case["out.res4"])
    case.check("out.rpn_logits", logits)
    case.check("out.rpn_deltas", deltas)
    case.check("out.anchors", generator.anchor_generator(*logits.shape[-2:]))
    for index, number in enumerate(case.numbers):
        check_proposals(case, generator, index, (f"out.proposals{number}", f"out.{scores}{number}"))
    heads(case, features)


def check_proposals(
    case: Case, generator: ProposalGenerator, index: int, keys: tuple[str, str]
) -> None:
    """Proposals of one image by recorded outputs of the head; ``keys``: of boxes and scores."""
    frames = case.frames(index)
    logits, deltas = recorded_head(case, index)
    boxes, scores = generator.propose((logits,), (deltas,), frames.network_limits, frames.min_sides)
    taken = scores[0] > -torch.inf
    ours = dict(zip(keys, (boxes[0, taken], scores[0, taken]), strict=True))
    if not case.in_place(ours) and (ties := ties_of(case, generator, index, keys)):
        anchors, margins = ties.recorded_anchors() or (None, [])
        if anchors is not None:
            case.results.exchange(f"{case.name}.{keys[0]}", margins)
            everyone = ties.suppression.boxes, ties.suppression.scores
            ours = {key: column[anchors] for key, column in zip(keys, everyone, strict=True)}
    case.check_all(ours)


def recorded_head(case: Case, index: int) -> tuple[Tensor, Tensor]:
    """The recorded outputs of the proposal head for one image."""
    return case["out.rpn_logits"][index : index + 1], case["out.rpn_deltas"][index : index + 1]


def ties_of(
    case: Case, generator: ProposalGenerator, index: int, keys: tuple[str, str]
) -> ProposalTies | None:
    """What near ties may do to one image's proposals; None where too little is recorded."""
    if not all(f"{case.name}.{key}" in case.golden.tensors for key in keys):
        return None
    return proposal_ties(
        generator,
        case.frames(index),
        recorded_head(case, index),
        (case[keys[0]], case[keys[1]]),
        (case.bounds(keys[0]), case.bounds(keys[1])),
    )


def heads(case: Case, features: str) -> None:
    """Pooling, res5 and the predictors, each on what is recorded before it."""
    heads, predictor = case.model.roi_heads, case.model.roi_heads.box_predictor
    proposals = [case[f"out.proposals{number}"] for number in case.numbers]
    res4 = case["out.res4"]
    first = len(case["out.pooled_first"])
    rois = number_boxes(proposals[0][None, :first])
    case.check("out.pooled_first", pool_regions((res4[:1],), rois, case.spec))
    ours = [
        heads.region_features((res4[i : i + 1],), *given(boxes), CHUNK)[0]
        for i, boxes in enumerate(proposals)
    ]
    case.check(f"out.{features}", torch.cat(ours))
    recorded = case[f"out.{features}"]
    case.check("out.class_logits", predictor.cls_score(recorded))
    case.check("out.box_deltas", predictor.bbox_pred(recorded))
    if case.spec.num_attributes:
        attributes = predictor.attribute_logits(recorded, case["out.class_logits"])
        case.check("out.attr_logits", attributes)
        case.check("out.attr_probs", predictor.attribute_probs(attributes))


@torch.inference_mode()
def end_to_end(case: Case) -> list[Detections]:
    """Our own detections of each image, from the images on, all of them in one batch."""
    frames = make_frames(case.measures())
    batch = case.model(case.batch(), frames.network_limits, frames.min_sides, chunk=CHUNK)
    return each_image(batch)


@torch.inference_mode()
def check_detections(
    case: Case,
    detections: Sequence[Detections],
    names: tuple[str, str, str],
) -> list[Detections]:
    """End to end: the same proposals in the same order, and what is said of them.

    ``names`` are the family's of features, class probabilities and objectness. Gives our
    detections of the recorded proposals, where near ties put others into their places.
    """
    features, probs, scores = (f"out.{name}" for name in names)
    settled = []
    for index, (number, ours) in enumerate(zip(case.numbers, detections, strict=True)):
        keys = f"out.proposals{number}", f"{scores}{number}"
        ours = of_recorded_proposals(case, index, ours, keys)
        case.check(keys[0], ours.boxes[0])
        case.check(f"{probs}{number}", ours.class_probs[0])
        settled.append(of_recorded_classes(case, index, ours))
    case.check(features, torch.cat([one.features[0] for one in settled]))
    return settled


def of_recorded_proposals(
    case: Case, index: int, ours: Detections, keys: tuple[str, str]
) -> Detections:
    """What our network says of the recorded proposals, if near ties alone gave it others."""
    generator = case.model.proposal_generator
    if case.in_place({keys[0]: ours.boxes[0]}):
        return ours
    ties = ties_of(case, generator, index, keys)
    recorded = ties.recorded_anchors() if ties else None
    if ties is None or recorded is None:
        return ours
    (features,) = case.model.feature_maps(case.batch())
    own_map = features[index : index + 1]
    logits, deltas = generator.rpn_head(own_map)
    anchors, boxes = ties.our_anchors(widen(logits), widen(deltas))
    margins = None if anchors is None else ties.margins(anchors)
    if anchors is None or margins is None or torch.equal(anchors, recorded[0]):
        return ours
    case.results.exchange(f"{case.name}.{keys[0]}", margins)
    return case.model.describe((own_map,), *given(boxes[recorded[0]]), CHUNK)


def of_recorded_classes(case: Case, index: int, ours: Detections) -> Detections:
    """Our detections with the attributes of the recorded class, where two classes nearly tie."""
    logits = case.of_image("out.class_logits", index)
    if ours.attribute_probs is None or ours.class_probs[0].shape != logits.shape:
        return ours
    mine, key = ours.class_probs[0].argmax(dim=1), f"{case.name}.out.class_logits"
    classes = settle(case.results, f"{key}{case.numbers[index]}", mine, key, logits)
    if torch.equal(classes, mine):
        return ours
    predictor = case.model.roi_heads.box_predictor
    one_hot = functional.one_hot(classes, logits.shape[1])[None]
    attributes = predictor.attribute_probs(predictor.attribute_logits(ours.features, one_hot))
    return dataclasses.replace(ours, attribute_probs=widen(attributes))


@torch.inference_mode()
def given_boxes(case: Case) -> None:
    """Features of boxes in the image's pixels, where the set has such boxes."""
    if f"{case.name}.in.given_boxes" not in case.golden.tensors:
        return
    factors = torch.tensor(case.inputs[0].factors * 2)
    regions = case.model.describe((case["out.res4"],), *given(case["in.given_boxes"] * factors))
    case.check("out.given_features", regions.features[0])
    case.check("out.given_class_probs", regions.class_probs[0])
    if regions.attribute_probs is not None:
        case.check("out.given_attr_probs", regions.attribute_probs[0])
