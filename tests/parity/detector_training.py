"""Training rules of the detectors, one by one, on recorded inputs."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from tests.parity.detector_training_keys import keys_of, loss_config, roi_rules, rpn_rules
from tests.parity.golden import GoldenSet, expect, read_tensors
from tests.parity.results import Results
from torch import Tensor, nn

from vlmill.models.detector.proposals import grid_anchors, make_cell_anchors
from vlmill.models.detector.roi_heads import BoxPredictor
from vlmill.train.detector.losses import attribute_loss, region_losses, rpn_losses
from vlmill.train.detector.targets import (
    Regions,
    attribute_targets,
    candidates,
    encode_boxes,
    mask_labels,
    match_anchors,
    match_regions,
    sample,
    sample_regions,
)

TRUTH_LOGIT = torch.log(torch.tensor((1.0 - 1e-10) / (1 - (1.0 - 1e-10)), dtype=torch.float64))


@dataclass
class RecordedDraws:
    """Permutations from a list, in the order in which they were drawn."""

    permutations: list[Tensor]

    def __call__(self, count: int) -> Tensor:
        expect(self.permutations, "a permutation is drawn that the recording has not drawn")
        drawn = self.permutations.pop(0)
        expect(
            len(drawn) == count,
            f"a permutation of {count} is drawn, the recording's is of {len(drawn)}",
        )
        return drawn


@dataclass(frozen=True)
class Recorded:
    """The tensors of one case, and where to compare."""

    name: str
    golden: GoldenSet
    results: Results

    def __getitem__(self, key: str) -> Tensor:
        return self.golden.tensors[f"{self.name}.{key}"]

    def __contains__(self, key: str) -> bool:
        return f"{self.name}.{key}" in self.golden.tensors

    def check(self, key: str, ours: Tensor) -> None:
        recorded = self.golden.tensors.get(f"{self.name}.{key}")
        if recorded is not None and not recorded.is_floating_point():
            ours = ours.to(recorded.dtype)
        self.results.check(f"{self.name}.{key}", ours)

    def numbers(self, key: str) -> Iterator[int]:
        """The numbers i for which there is a ``key{i}``."""
        for number in range(1000):
            if f"{key}{number}" not in self:
                return
            yield number

    def draws(self, *prefixes: str) -> RecordedDraws:
        """The permutations in order: for each prefix those of all images, positive first."""
        drawn = [
            self[f"in.{prefix}perm_{sign}{i}"]
            for prefix in prefixes
            for i in self.numbers(f"in.{prefix}perm_pos")
            for sign in ("pos", "neg")
        ]
        return RecordedDraws(drawn)


def cases(golden: GoldenSet, results: Results) -> Iterator[Recorded]:
    """The cases of a set, which tell what they say in config.json."""
    expect(golden.cases, f"{golden.folder}: no cases")
    for name in golden.cases:
        yield Recorded(name, golden, results)


def anchors(golden: GoldenSet, results: Results) -> None:
    """Matcher, border rule and sampling of anchors."""
    for case in cases(golden, results):
        keys = keys_of(golden, case.name)
        rows, columns = case["in.map"].tolist()
        config, rules = loss_config(keys), rpn_rules(keys)
        stride, offset = golden.config["stride"], config.anchor_offset
        grid = grid_anchors(make_cell_anchors(config), rows, columns, stride, offset)
        case.check("out.anchors", grid)
        draws = case.draws("")
        for i in case.numbers("in.gt_boxes"):
            boxes, size = case[f"in.gt_boxes{i}"], tuple(case[f"in.image_size{i}"].tolist())
            matches = match_anchors(grid, boxes, size, rules, config.box_offset)
            case.check(f"out.overlap{i}", matches.overlaps)
            case.check(f"out.matched{i}", matches.boxes)
            case.check(f"out.labels_before{i}", matches.labels)
            chosen = sample(matches.labels, rules.matching, draws)
            case.check(f"out.labels{i}", mask_labels(matches, chosen))
            case.check(f"out.positives{i}", chosen.positives.sort().values)
            case.check(f"out.negatives{i}", chosen.negatives.sort().values)
            if f"out.targets{i}" in case:
                at = chosen.positives.sort().values
                to = boxes[matches.boxes[at]]
                deltas = encode_boxes(grid[at], to, config.rpn_box_weights, config.box_offset)
                case.check(f"out.targets{i}", deltas)
        expect(not draws.permutations, f"{case.name}: recorded draws are left")


def rpn_set(golden: GoldenSet, results: Results) -> None:
    """Losses of the proposal network and their gradients."""
    for case in cases(golden, results):
        keys = keys_of(golden, case.name)
        logits, deltas = leaves(case["in.rpn_logits"], case["in.rpn_deltas"])
        losses = rpn_losses(
            logits,
            deltas,
            case["in.anchors"],
            case["in.labels"].long(),
            case["in.matched_boxes"],
            rpn_rules(keys),
            loss_config(keys),
        )
        sum(losses.values()).backward()  # type: ignore[union-attr]
        case.check("out.loss_rpn_cls", losses["rpn_class"])
        case.check("out.loss_rpn_loc", losses["rpn_box"])
        case.check("out.grad_rpn_logits", gradient(logits))
        case.check("out.grad_rpn_deltas", gradient(deltas))


def leaves(*tensors: Tensor) -> list[Tensor]:
    """Copies that gather gradients."""
    return [tensor.clone().requires_grad_() for tensor in tensors]


def gradient(leaf: Tensor) -> Tensor:
    """What reached a tensor; a loss that is not connected to it is a defect."""
    expect(leaf.grad is not None, "a loss has no gradient")
    assert leaf.grad is not None
    return leaf.grad


def roi_sampling(golden: GoldenSet, results: Results) -> None:
    """Matching and sampling of proposals."""
    for case in cases(golden, results):
        keys = keys_of(golden, case.name)
        rules, classes = roi_rules(keys), keys["MODEL.ROI_HEADS.NUM_CLASSES"]
        draws = case.draws("")
        for i in case.numbers("in.proposals"):
            boxes = case[f"in.gt_boxes{i}"]
            there = candidates(case[f"in.proposals{i}"], boxes, rules)
            matches = match_regions(there, boxes, rules, 0.0)
            case.check(f"out.matched{i}", matches.boxes)
            # Without boxes the matcher's label is its lowest band's, whatever that is called; all
            # are background all the same.
            lowest = torch.full_like(matches.labels, rules.matching.labels[0])
            case.check(f"out.matched_labels{i}", matches.labels if len(boxes) else lowest)
            regions = sample_regions(
                there, matches, case[f"in.gt_classes{i}"], rules, background=classes, draw=draws
            )
            check_regions(case, str(i), regions)
            logits = case[f"in.proposal_logits{i}"]
            truth = TRUTH_LOGIT.to(logits.dtype).expand(len(there) - len(logits))
            case.check(f"out.objectness{i}", torch.cat((logits, truth))[regions.sources])
            if len(boxes):
                case.check(f"out.gt_boxes{i}", boxes[regions.matched])
            if len(boxes) and f"in.gt_attributes{i}" in case:
                attributes = case[f"in.gt_attributes{i}"]
                case.check(f"out.gt_attributes{i}", attributes[regions.matched])
        expect(not draws.permutations, f"{case.name}: recorded draws are left")


def check_regions(case: Recorded, number: str, regions: Regions) -> None:
    """Which candidates were drawn, as what."""
    case.check(f"out.sampled{number}", regions.sources)
    case.check(f"out.boxes{number}", regions.boxes)
    case.check(f"out.classes{number}", regions.classes)


def box_set(golden: GoldenSet, results: Results) -> None:
    """Losses of the box head and their gradients."""
    for case in cases(golden, results):
        keys = keys_of(golden, case.name)
        logits, deltas = leaves(case["in.class_logits"], case["in.box_deltas"])
        numbers = list(case.numbers("in.proposals"))
        boxes = [case[f"in.proposals{i}"] for i in numbers]
        matched = [
            case[key] if (key := f"in.gt_boxes{i}") in case else case[f"in.proposals{i}"]
            for i in numbers
        ]
        losses = region_losses(
            logits,
            deltas,
            torch.cat(boxes),
            torch.cat([case[f"in.classes{i}"] for i in numbers]),
            torch.cat(matched),
            roi_rules(keys),
            loss_config(keys),
        )
        sum(losses.values()).backward()  # type: ignore[union-attr]
        case.check("out.loss_cls", losses["class"])
        case.check("out.loss_box_reg", losses["box"])
        case.check("out.grad_class_logits", gradient(logits))
        case.check("out.grad_box_deltas", gradient(deltas))


# The reference's names of the attribute head, and ours in the predictor.
HEAD = {
    "attribute_predictor.obj_embed": "cls_embed",
    "attribute_predictor.fc.0": "attr_linear1",
    "attribute_predictor.attr_score": "attr_linear2",
}


def attributes(golden: GoldenSet, results: Results) -> None:
    """The attribute head on true classes, its loss and every gradient."""
    weights = read_tensors(golden.weights)
    for case in cases(golden, results):
        keys, number = keys_of(golden, case.name), int(case.name.removeprefix("case"))
        config = loss_config(keys)
        predictor = BoxPredictor(config)
        predictor.register_module("cls_score", None)
        predictor.register_module("bbox_pred", None)
        head, channels = {}, golden.config["cases"][number]["channels"]
        first = nn.Linear(channels + config.class_embedding_size, config.attribute_hidden_size)
        predictor.attr_linear1 = first
        for theirs, ours in HEAD.items():
            for name in ("weight", "bias"):
                if (key := f"{case.name}.{theirs}.{name}") in weights:
                    head[f"{ours}.{name}"] = weights[key]
        predictor.load_state_dict(head)
        (features,) = leaves(case["in.box_features"])
        classes = [case[f"in.classes{i}"] for i in case.numbers("in.classes")]
        targets = torch.cat(
            [
                attribute_targets(
                    case[f"in.gt_attributes{i}"],
                    Regions(
                        torch.zeros(len(of), 4), of, torch.arange(len(of)), torch.arange(len(of))
                    ),
                    background=config.num_classes,
                    shift=False,
                )
                for i, of in enumerate(classes)
            ]
        )
        everyone = torch.cat(classes)
        foreground = everyone < config.num_classes
        case.check("out.embedded_classes", everyone[foreground])
        logits = predictor.score_attributes(features[foreground], everyone[foreground])
        case.check("out.attribute_logits", logits)
        loss = attribute_loss(logits, targets[foreground]) * roi_rules(keys).attribute_weight
        loss.backward()  # type: ignore[no-untyped-call]
        case.check("out.loss_attr", loss)
        case.check("out.grad_box_features", gradient(features))
        parameters = dict(predictor.named_parameters())
        for theirs, ours in HEAD.items():
            for name in ("weight", "bias"):
                if f"{ours}.{name}" in parameters:
                    case.check(f"out.grad.{theirs}.{name}", gradient(parameters[f"{ours}.{name}"]))
