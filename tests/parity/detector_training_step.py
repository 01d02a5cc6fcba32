"""One whole training step of a detector: pixels to losses, gradients and moved weights."""

import copy
import dataclasses
from collections.abc import Mapping, Sequence

import torch
from tests.parity.detector_stages import config_of_keys
from tests.parity.detector_training import Recorded, cases
from tests.parity.detector_training_keys import keys_of, settings_of
from tests.parity.golden import GoldenSet, expect, read_tensors
from tests.parity.results import Results
from torch import Tensor

from vlmill.extract.images.resize import normalise_pixels
from vlmill.models.detector.config import DetectorConfig
from vlmill.models.detector.faster_rcnn import FasterRCNN
from vlmill.models.detector.published import load_published
from vlmill.models.detector.published_names import published_name
from vlmill.train.detector.batches import padded_batch
from vlmill.train.detector.learning import clip_gradients, make_optimizer
from vlmill.train.detector.settings import TrainingSettings
from vlmill.train.detector.step import AnchorTargets, Batch, DetectorStep, Outputs, Truth
from vlmill.train.detector.targets import Draw, Regions, candidates, match_regions

LOSSES = {
    "rpn_class": "loss_rpn_cls",
    "rpn_box": "loss_rpn_loc",
    "class": "loss_cls",
    "box": "loss_box_reg",
    "attribute": "loss_attr",
}


def train_step(golden: GoldenSet, results: Results) -> None:
    """Stage by stage on the recorded outputs, then once more from the images on."""
    for case in cases(golden, results):
        settings, model = opened(golden, case.name)
        batch = batch_of(case, model.config)
        # A copy, for normalisations that learn move their statistics.
        stages(case, DetectorStep(copy.deepcopy(model), settings), batch)
        end_to_end(case, DetectorStep(model, settings), batch, settings)


def opened(golden: GoldenSet, name: str) -> tuple[TrainingSettings, FasterRCNN]:
    """The settings that a case's keys say, and the network with the set's weights."""
    keys = keys_of(golden, name)
    inference = {k: v for k, v in keys.items() if not k.startswith("SOLVER.")}
    config = config_of_keys(golden, inference, any_family=True)
    config = dataclasses.replace(
        config,
        frozen_stages=min(keys["MODEL.BACKBONE.FREEZE_AT"], 4),
        # The other kinds gather statistics over processes, of which a recording has one.
        batch_norm="frozen" if keys["MODEL.RESNETS.NORM"] == "FrozenBN" else "trained",
    )
    model = FasterRCNN(config)
    load_published(model, read_tensors(golden.weights))
    return settings_of(keys, config), model.train()


def batch_of(case: Recorded, config: DetectorConfig) -> Batch:
    """The images of a case at the network's size, and what is annotated in them."""
    images, truths = [], []
    for i in case.numbers("in.image"):
        pixels = case[f"in.image{i}"].numpy()
        images.append(normalise_pixels(pixels, 1.0, pixels.shape[:2], config).permute(2, 0, 1))
        attributes = torch.full((len(case[f"in.gt_boxes{i}"]), 0), -1)
        if f"in.gt_attributes{i}" in case:
            attributes = case[f"in.gt_attributes{i}"]
        truths.append(
            Truth(
                boxes=case[f"in.gt_boxes{i}"],
                classes=case[f"in.gt_classes{i}"],
                attributes=attributes,
            )
        )
    names = [str(i) for i in range(len(images))]
    scales = [1.0] * len(images)
    return padded_batch(names, images, truths, scales, config)


def stages(case: Recorded, step: DetectorStep, batch: Batch) -> None:
    """Each stage on what is recorded before it, as far as it is."""
    model = step.model
    case.check("out.tensor", batch.images)
    draws = case.draws("rpn_", "roi_")
    if "out.res4" not in case:
        return
    with torch.no_grad():
        case.check("out.res4", model.feature_maps(case["out.tensor"])[0])
        logits, deltas = model.proposal_generator.rpn_head(case["out.res4"])
        case.check("out.rpn_logits", logits)
        case.check("out.rpn_deltas", deltas)
        anchors = model.proposal_generator.anchor_generator(*case["out.res4"].shape[-2:])
        case.check("out.anchors", anchors)
        targets = step.anchor_targets(batch, anchors, draws)
        check_anchors(case, targets)
        proposals = step.proposals(batch, case["out.rpn_logits"], case["out.rpn_deltas"])
        for i, (boxes, _) in enumerate(proposals):
            case.check(f"out.proposals{i}", boxes)
        recorded = [case[f"out.proposals{i}"] for i in range(len(proposals))]
        regions = step.regions(batch, recorded, draws)
        check_matched(case, step, batch, recorded)
        for i, one in enumerate(regions):
            check_sampled(case, str(i), one)
        given = [
            Regions(case[f"out.rois{i}"], case[f"out.roi_classes{i}"], one.sources, one.matched)
            for i, one in enumerate(regions)
        ]
        outputs = step.describe(case["out.res4"], given)
        check_outputs(case, outputs)


def check_anchors(case: Recorded, targets: AnchorTargets) -> None:
    """The labels of all anchors, before and after sampling."""
    for i, one in enumerate(targets.matches):
        case.check(f"out.rpn_labels_before{i}", one.labels)
        case.check(f"out.rpn_labels{i}", targets.labels[i])


def check_matched(
    case: Recorded, step: DetectorStep, batch: Batch, proposals: Sequence[Tensor]
) -> None:
    """The true box of every candidate."""
    offset = step.model.config.box_offset
    for i, (own, truth) in enumerate(zip(proposals, batch.truths, strict=True)):
        there = candidates(own, truth.boxes, step.roi)
        case.check(f"out.roi_matched{i}", match_regions(there, truth.boxes, step.roi, offset).boxes)


def check_sampled(case: Recorded, number: str, regions: Regions) -> None:
    case.check(f"out.sampled{number}", regions.sources)
    case.check(f"out.rois{number}", regions.boxes)
    case.check(f"out.roi_classes{number}", regions.classes)


def check_outputs(case: Recorded, outputs: Outputs) -> None:
    case.check("out.box_features", outputs.features)
    case.check("out.class_logits", outputs.class_logits)
    case.check("out.box_deltas", outputs.deltas)
    if outputs.attribute_logits is not None:
        case.check("out.attribute_logits", outputs.attribute_logits)


class Watched(DetectorStep):
    """A step that compares what it computes on its way."""

    case: Recorded

    def anchor_targets(self, batch: Batch, anchors: Tensor, draw: Draw) -> AnchorTargets:
        targets = super().anchor_targets(batch, anchors, draw)
        check_anchors(self.case, targets)
        return targets

    def proposals(
        self, batch: Batch, logits: Tensor, deltas: Tensor
    ) -> list[tuple[Tensor, Tensor]]:
        proposals = super().proposals(batch, logits, deltas)
        for i, (boxes, scores) in enumerate(proposals):
            self.case.check(f"out.proposals{i}", boxes)
            self.case.check(f"out.proposal_logits{i}", scores)
        return proposals

    def regions(self, batch: Batch, proposals: Sequence[Tensor], draw: Draw) -> list[Regions]:
        check_matched(self.case, self, batch, proposals)
        sampled = super().regions(batch, proposals, draw)
        for i, one in enumerate(sampled):
            check_sampled(self.case, str(i), one)
        return sampled

    def describe(self, features: Tensor, regions: Sequence[Regions]) -> Outputs:
        outputs = super().describe(features, regions)
        check_outputs(self.case, outputs)
        return outputs


def end_to_end(
    case: Recorded, step: DetectorStep, batch: Batch, settings: TrainingSettings
) -> None:
    """The same decisions, the recorded losses, gradients and weights after one update."""
    watched = Watched(step.model, settings)
    watched.case = case
    draws = case.draws("rpn_", "roi_")
    losses = watched.losses(batch, draws)
    expect(not draws.permutations, f"{case.name}: recorded draws are left")
    total = torch.stack(list(losses.values())).sum()
    total.backward()  # type: ignore[no-untyped-call]
    for name, loss in losses.items():
        case.check(f"out.{LOSSES[name]}", loss)
    case.check("out.total_loss", total)
    check_gradients(case, step.model)
    optimizer = make_optimizer(step.model, settings.solver)
    trained = [p for p in step.model.parameters() if p.requires_grad]
    clip_gradients(trained, settings.solver)
    optimizer.step()
    for name, tensor in step.model.state_dict().items():  # statistics of normalisations, too
        case.check(f"out.after.{published_name(name, step.model.config.family)}", tensor)


def named(model: FasterRCNN) -> Mapping[str, torch.nn.Parameter]:
    """The parameters by the reference's names."""
    family = model.config.family
    return {published_name(name, family): p for name, p in model.named_parameters()}


def check_gradients(case: Recorded, model: FasterRCNN) -> None:
    """Every recorded gradient and norm; -1 says that a parameter is frozen."""
    golden, results = case.golden, case.results
    indexed = case.name == golden.gradient_case
    for name, parameter in named(model).items():
        grad = parameter.grad
        norm = torch.tensor(-1.0) if grad is None else grad.norm()
        case.check(f"out.gradnorm.{name}", norm)
        if indexed and name in golden.gradient_norms:
            results.check(golden.gradient_norms[name], norm)
        if indexed and name in golden.gradients and grad is not None:
            results.check(golden.gradients[name], grad)
