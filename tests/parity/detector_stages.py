"""A detector's stages on recorded inputs, and the network from the picture on: for every family."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tests.models.detector.batches import each_picture, given
from tests.parity.golden import GoldenSet, NotComparable, expect, read_tensors
from tests.parity.results import Results
from tests.parity.ties import Rows, places, settle
from torch import Tensor
from torch.nn import functional

from vlmill.extract.config import InputLimits
from vlmill.extract.detect.detector import open_detector
from vlmill.extract.detect.query import Query
from vlmill.extract.detect.selection import Chosen, Frames
from vlmill.extract.detect.transfer import frames_of, measures_of
from vlmill.extract.pictures.resize import NetworkInput, network_input, resize_pillow
from vlmill.models.detector.config import DetectorConfig
from vlmill.models.detector.configurations import configuration_of, flat
from vlmill.models.detector.faster_rcnn import Detections, FasterRCNN, numbered, pool_regions
from vlmill.models.detector.proposals import ProposalGenerator
from vlmill.models.detector.published import fitted

CHUNK = 7  # regions at a time: fewer than there are, so that parts have to fit together


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
        if not (self.decisions_only and ours.is_floating_point()):
            self.results.check(f"{self.name}.{key}", ours)

    def check_rows(
        self, ours: Mapping[str, Tensor], identity: Sequence[str], score: str
    ) -> Tensor | None:
        """Compares columns of rows, near ties of ``score`` as recorded; gives our rows' places.

        ``identity`` are the columns that tell rows apart.
        None where the rows stand as they are recorded, or differ by more than near ties.
        """
        place = self.places(ours, identity, score)
        for key, column in ours.items():
            theirs = self.golden.tensors.get(f"{self.name}.{key}")
            if place is not None and theirs is not None:
                column = column[place]
            self.check(key, column)
        return place

    def places(
        self, ours: Mapping[str, Tensor], identity: Sequence[str], score: str
    ) -> Tensor | None:
        columns = {
            key: self.golden.tensors[name]
            for key in {*identity, score}
            if (name := f"{self.name}.{key}") in self.golden.tensors
        }
        told = columns.keys() == {*identity, score} and all(key in ours for key in identity)
        floating = told and any(columns[key].is_floating_point() for key in identity)
        if not told or (self.decisions_only and floating):
            return None
        bounds = {key: self.golden.allowed(f"{self.name}.{key}", t) for key, t in columns.items()}
        recorded = Rows(columns, bounds, score)
        in_place = recorded.same(ours, identity).diagonal()
        if len(in_place) == len(recorded) == len(ours[identity[0]]) and in_place.all():
            return None
        found = places(recorded, ours, identity)
        if found is None:
            return None
        self.results.exchange(f"{self.name}.{identity[0]}", found[1])
        return found[0]

    def as_extracted(self) -> "Case":
        """The same case for the network that extract-rois runs."""
        return dataclasses.replace(self, model=self.fast, decisions_only=True)

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
    golden: GoldenSet,
    results: Results,
    keys: Mapping[str, Any],
    changes: Mapping[str, Any] | None = None,
) -> list[Case]:
    """The cases of a set, its network opened as a user's with the keys of its configuration.

    ``changes`` are of fields in which the reference's code departs from its own configuration.
    """
    config = dataclasses.replace(config_of_keys(golden, keys), **changes or {})
    model, fast = (
        open_detector(config, golden.weights, folded=folded).model for folded in (False, True)
    )
    limits = InputLimits(short_side=config.short_side, long_side=config.long_side)
    cases = []
    for name in golden.cases:
        pictures = sorted(k for k in golden.tensors if k.startswith(f"{name}.in.image"))
        expect(pictures, f"{golden.folder}: no tensor {name}.in.image, which the network needs")
        pixels = [golden.tensors[key].numpy() for key in pictures]
        inputs = [network_input(one, model.config, limits) for one in pixels]
        cases.append(Case(name, golden, results, model, fast, inputs))
    return cases


def config_of_keys(golden: GoldenSet, keys: Mapping[str, Any]) -> DetectorConfig:
    """Our configuration by the keys of the reference's, whose sizes have to be the weights'.

    Raises NotComparable with the key that is not honoured, contradicts the weights, or belongs to
    another family.
    """
    file = golden.folder / "config.json"
    try:
        configuration = configuration_of(dict(flat(keys)))
        config = fitted(configuration, read_tensors(golden.weights))
    except ValueError as error:
        raise NotComparable(f"{file} and {golden.weights}: {error}") from None
    expect(
        configuration.family == golden.family,
        f"{file}: the keys are of family {configuration.family}, the set is of {golden.family}",
    )
    return config


@torch.inference_mode()
def shared_stages(case: Case, *, features: str, scores: str) -> None:
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
    case.check("out.stem", stem)
    stem = case.golden.tensors.get(f"{case.name}.out.stem", stem)
    case.check("out.res4", model.activate(backbone.res4(backbone.res3(backbone.res2(stem)))))
    generator = model.proposal_generator
    logits, deltas = generator.rpn_head(case["out.res4"])
    case.check("out.rpn_logits", logits)
    case.check("out.rpn_deltas", deltas)
    case.check("out.anchors", generator.anchor_generator(*logits.shape[-2:]))
    for index, number in enumerate(case.numbers):
        boxes, objectness = propose(case, generator, index)
        ours = {f"out.proposals{number}": boxes, f"out.{scores}{number}": objectness}
        key = f"out.{scores}{number}"
        case.check_rows(ours, [f"out.proposals{number}"], key)
    heads(case, features)


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


def heads(case: Case, features: str) -> None:
    """Pooling, res5 and the predictors, each on what is recorded before it."""
    heads, predictor = case.model.roi_heads, case.model.roi_heads.box_predictor
    proposals = [case[f"out.proposals{number}"] for number in case.numbers]
    res4 = case["out.res4"]
    first = len(case["out.pooled_first"])
    rois = numbered(proposals[0][None, :first])
    case.check("out.pooled_first", pool_regions(res4[:1], rois, case.spec))
    ours = [
        heads.region_features(res4[i : i + 1], *given(boxes), CHUNK)[0]
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
    """Our own detections of each picture, from the pictures on, all of them in one batch."""
    frames = frames_of(case.measures())
    batch = case.model(case.batch(), frames.network_limits, frames.min_sides, chunk=CHUNK)
    return each_picture(batch)


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


def check_detections(
    case: Case,
    detections: Sequence[Detections],
    names: tuple[str, str, str],
) -> list[Detections]:
    """End to end: the same proposals in the same order, and what is said of them.

    ``names`` are the family's of features, class probabilities and objectness. Gives our
    detections in the recorded order, where near ties put proposals into another.
    """
    features, probs, scores = (f"out.{name}" for name in names)
    settled = []
    for number, ours in zip(case.numbers, detections, strict=True):
        boxes = f"out.proposals{number}"
        place = case.check_rows({boxes: ours.boxes[0]}, [boxes], f"{scores}{number}")
        settled.append(ours if place is None else reordered(ours, place))
        case.check(f"{probs}{number}", settled[-1].class_probs[0])
    case.check(features, torch.cat([one.features[0] for one in settled]))
    return settled


def reordered(ours: Detections, place: Tensor) -> Detections:
    """Our detections in the order of the recorded rows."""
    columns: dict[str, Any] = vars(ours)
    moved = {name: column[:, place] for name, column in columns.items() if column is not None}
    return dataclasses.replace(ours, **moved)


def settled_choice(
    case: Case,
    key: str,
    ours: Detections,
    recorded: Detections,
    choose: Callable[[Detections], Chosen],
) -> Chosen:
    """Our choice of regions; the choice by recorded numbers, where ours are as near as they may be.

    Then no rule but a near tie has parted them: of two scores, or of one with a threshold or cut.
    The margin is how far our probabilities are off at most.
    """
    mine, theirs = choose(ours), choose(recorded)
    here, there = pairs(mine), pairs(theirs)
    if here == there or not is_near(case, ours, recorded):
        return mine
    off = (ours.class_probs.double() - recorded.class_probs.double()).abs().max()
    rows = abs(len(here) - len(there))
    rows += sum(pair[0] != pair[1] for pair in zip(here, there, strict=False))
    case.results.exchange(f"{case.name}.{key}", [float(off)] * rows)
    return theirs


def pairs(chosen: Chosen) -> list[tuple[int, int]]:
    regions = taken_of(chosen)
    return list(zip(regions.ids.tolist(), regions.class_ids.tolist(), strict=True))


def is_near(case: Case, ours: Detections, recorded: Detections) -> bool:
    """Whether everything that decides on regions is within its tolerance."""
    for name, key in (
        ("boxes", "proposals"),
        ("class_probs", "class_probs"),
        ("box_deltas", "box_deltas"),
    ):
        mine, theirs = getattr(ours, name), getattr(recorded, name)
        if mine is None or theirs is None:
            continue
        allowed = case.golden.allowed(f"{case.name}.out.{key}", theirs)
        if mine.shape != theirs.shape or not ((mine - theirs).abs() <= allowed).all():
            return False
    return True


def settled_attributes(
    case: Case, key: str, ours: Tensor, recorded: Tensor | None, ids: Tensor
) -> tuple[Tensor, Tensor]:
    """The best attribute [N] of the regions ``ids`` and its probability, near ties as recorded."""
    mine = ours[ids].max(dim=1).indices
    if recorded is not None:
        choice = case.golden.tensors.get(f"{case.name}.{key}")
        same = choice is not None and choice.shape == mine.shape
        scores = f"{case.name}.out.attr_probs"
        mine = settle(
            case.results,
            f"{case.name}.{key}",
            mine,
            scores,
            recorded[ids],
            choice if same else None,
        )
    return mine, ours[ids].gather(1, mine[:, None])[:, 0]


def given_boxes(case: Case) -> None:
    """Features of boxes in the picture's pixels."""
    factors = torch.tensor(case.inputs[0].factors * 2)
    regions = case.model.describe(case["out.res4"], *given(case["in.given_boxes"] * factors))
    case.check("out.given_features", regions.features[0])
    case.check("out.given_class_probs", regions.class_probs[0])
    if regions.attribute_probs is not None:
        case.check("out.given_attr_probs", regions.attribute_probs[0])
