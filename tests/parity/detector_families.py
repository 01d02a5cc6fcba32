"""Detectors of VinVL, vqa-maskrcnn, Detectron2 with a pyramid, grid features, and Caffe's file."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from tests.conftest import GOLDEN
from tests.models.detector.batches import given
from tests.parity.detector_stages import (
    CHUNK,
    Case,
    check_detections,
    end_to_end,
    open_cases,
    shared_stages,
)
from tests.parity.golden import GoldenSet, expect, read_tensors
from tests.parity.results import Results
from torch import Tensor

from vlmill.extract.config import Selection
from vlmill.extract.detect.checkpoint import read_checkpoint
from vlmill.extract.detect.detector import open_detector
from vlmill.extract.detect.predict import written_features
from vlmill.extract.detect.selection import Frames, SelectedRegions, select
from vlmill.extract.images.resize import resize_pillow
from vlmill.models.convert.caffe_file import read_caffe_layers
from vlmill.models.detector.backbone import Maps
from vlmill.models.detector.config import DetectorConfig
from vlmill.models.detector.configurations import flatten_sections, read_configuration
from vlmill.models.detector.faster_rcnn import Detections, FasterRCNN
from vlmill.models.detector.roi_heads import map_numbers, number_boxes, pool_regions

LEVELS = ("p2", "p3", "p4", "p5", "p6")
STEM_MAPS = 1e-6  # of a folded mean, which is a product of rounded numbers


def taken(chosen: SelectedRegions, column: Tensor) -> Tensor:
    """One image's column without free places."""
    return column[0, chosen.box_mask[0]]


# VinVL.


def vinvl(golden: GoldenSet, results: Results) -> None:
    """VinVL's C4 detector: its selections, and attributes at the boxes that are written."""
    keys = golden.config["sgg_keys"]
    for case in open_cases(golden, results, keys, {"written_boxes": "refined"}):
        case.check("out.image_sizes", torch.tensor(case.sizes()))
        shared_stages(case, features="features", scores="proposal_scores")
        recorded = recorded_by_image(case, "out.features")
        vinvl_selections(case, (case["out.res4"],), recorded, keys)
        for one in (case, case.as_extracted()):
            names = ("features", "probs", "proposal_scores")
            detections = check_detections(one, end_to_end(one), names)
            with torch.inference_mode():
                maps = one.model.feature_maps(one.batch())
            vinvl_selections(one, maps, detections, keys)


def recorded_by_image(case: Case, features: str) -> list[Detections]:
    """What the reference's network gave for each image, its probabilities compared."""
    recorded = []
    for index, number in enumerate(case.numbers):
        probs = case.of_image("out.class_logits", index).softmax(dim=1)
        case.check(f"out.probs{number}", probs)
        recorded.append(case.recorded_detections(index, features, case[f"out.probs{number}"]))
    return recorded


@torch.inference_mode()
def vinvl_selections(
    case: Case, maps: Maps, detections: Sequence[Detections], keys: Mapping[str, Any]
) -> None:
    for number, options in enumerate(case.golden.config["selections"]):
        spec = vinvl_spec(case, keys, options)
        rule = Selection(
            threshold=options["score"], min_boxes=options["min"], max_boxes=options["max"]
        )
        chosen = [
            select(one, spec, case.frames(index), rule) for index, one in enumerate(detections)
        ]
        logits = []
        for index, (one, regions) in enumerate(zip(detections, chosen, strict=True)):
            own_maps = tuple(features[index : index + 1] for features in maps)
            features = written_features(case.model, own_maps, one, regions, spec, CHUNK)
            classes = taken(regions, regions.class_ids) + 1
            predictor = case.model.roi_heads.box_predictor
            logits.append(predictor.score_attributes(taken(regions, features), classes))
            check_vinvl_rows(case, index, one, regions, f"out.sel{number}_")
            probs = taken(regions, case.model.written_attributes(features, regions.class_ids))
            check_attributes(case, probs, f"out.sel{number}_", case.numbers[index])
        case.check(f"out.sel{number}_attr_logits", torch.cat(logits))


def vinvl_spec(case: Case, keys: Mapping[str, Any], options: Mapping[str, Any]) -> DetectorConfig:
    """The network's configuration with one of the recorded selections."""
    own = {
        "MODEL.ROI_HEADS.NMS_FILTER": options["filter"],
        "MODEL.ROI_HEADS.NMS": options["nms"],
        "TEST.IGNORE_BOX_REGRESSION": options["ignore"],
    }
    said = read_configuration(dict(flatten_sections(keys)) | own).config
    names = ("selection", "pair_order", "candidate_share", "class_nms_thresholds", "written_boxes")
    return dataclasses.replace(case.spec, **{name: getattr(said, name) for name in names})


def check_vinvl_rows(
    case: Case, index: int, detections: Detections, chosen: SelectedRegions, key: str
) -> None:
    """One image's regions and their geometry: corners and sides as shares of the image."""
    number, image = case.numbers[index], case.inputs[index]
    assert chosen.network_boxes is not None
    boxes, ids = taken(chosen, chosen.boxes), taken(chosen, chosen.ids)
    corners = boxes / torch.tensor([image.width, image.height] * 2)
    case.check_all(
        {
            f"{key}kept{number}": ids,
            f"{key}net_boxes{number}": taken(chosen, chosen.network_boxes),
            f"{key}boxes{number}": boxes,
            f"{key}labels{number}": taken(chosen, chosen.class_ids) + 1,
            f"{key}scores{number}": taken(chosen, chosen.class_scores),
            f"{key}x{number}": detections.features[0, ids],
            f"{key}geometry{number}": torch.cat((corners, corners[:, 2:] - corners[:, :2]), dim=1),
        }
    )


def check_attributes(case: Case, probs: Tensor, key: str, number: str) -> None:
    """The best attributes above the threshold, best first; of others the label is arbitrary."""
    options = case.golden.config["options"]
    counted = probs.clone()
    counted[:, 0] = 0.0
    counted[counted <= options["attr_threshold"]] = 0.0
    scores, labels = counted.sort(dim=1, descending=True, stable=True)
    scores, labels = (part[:, : options["per_object"]] for part in (scores, labels))
    case.check(f"{key}attr_scores{number}", scores)
    case.check(f"{key}attr_labels{number}", labels.masked_fill(scores == 0, -1))


# A pyramid: what vqa-maskrcnn and Detectron2 share.


@torch.inference_mode()
def pyramid_stages(case: Case, features: str, scores: str) -> None:
    """Image to heads, each stage on what is recorded before it; ``features`` and ``scores`` are the
    family's names.
    """
    model, batch = case.model, case.batch()
    case.check("out.tensor", batch)
    stages = model.backbone.stage_maps(case.golden.tensors.get(f"{case.name}.out.tensor", batch))
    for name, stage in zip(("c2", "c3", "c4", "c5"), stages, strict=True):
        case.check(f"out.{name}", stage)
    for name, level in zip(LEVELS, model.backbone.pyramid(stages), strict=True):
        case.check(f"out.{name}", level)
    maps = recorded_maps(case, "out.{}")
    generator = model.proposal_generator
    for number, (name, level) in enumerate(zip(LEVELS, maps, strict=True)):
        own_logits, own_deltas = generator.rpn_head(level)
        case.check(f"out.rpn_logits_{name}", own_logits)
        case.check(f"out.rpn_deltas_{name}", own_deltas)
        anchors = generator.anchor_generator(*level.shape[-2:], number)
        case.check(f"out.anchors_{name}", anchors)
    heads = recorded_maps(case, "out.rpn_logits_{}"), recorded_maps(case, "out.rpn_deltas_{}")
    for index, image in enumerate(case.numbers):
        frames = case.frames(index)
        logits, deltas = (tuple(level[index : index + 1] for level in kind) for kind in heads)
        boxes, values = generator.propose(logits, deltas, frames.network_limits, frames.min_sides)
        there = values[0] > -torch.inf
        case.check(f"out.proposals{image}", boxes[0, there])
        case.check(f"out.{scores}{image}", values[0, there])
    proposals = [case[f"out.proposals{number}"] for number in case.numbers]
    case.check("out.levels", map_numbers(torch.cat(proposals), case.spec) + 2)
    count = len(case["out.pooled_first"])
    rois = number_boxes(proposals[0][None, :count])
    first_maps = tuple(level[:1] for level in maps)
    case.check("out.pooled_first", pool_regions(first_maps, rois, case.spec))
    rows = [
        model.region_features(tuple(level[i : i + 1] for level in maps), *given(boxes), CHUNK)[0]
        for i, boxes in enumerate(proposals)
    ]
    case.check(f"out.{features}", torch.cat(rows))


def recorded_maps(case: Case, key: str) -> Maps:
    """The recorded maps of all levels."""
    return tuple(case[key.format(name)] for name in LEVELS)


@torch.inference_mode()
def predictors(case: Case, seen: str) -> None:
    """The predictors on the recorded layer that they see."""
    predictor = case.model.roi_heads.box_predictor
    case.check("out.class_logits", predictor.cls_score(case[seen]))
    case.check("out.box_deltas", predictor.bbox_pred(case[seen]))


@torch.inference_mode()
def pooler_alone(golden: GoldenSet, results: Results, spec: DetectorConfig) -> None:
    """Boxes of every level on maps without a network."""
    maps = tuple(golden.tensors[f"levels.in.{name}"] for name in LEVELS[:-1])
    boxes = golden.tensors["levels.in.boxes"]
    results.check("levels.out.level", map_numbers(boxes, spec) + 2)
    results.check("levels.out.pooled", pool_regions(maps, number_boxes(boxes[None]), spec))


def check_pyramid_detections(case: Case, features: str, scores: str) -> list[Detections]:
    """End to end: the same proposals, in the same order, with what is said of them."""
    detections = end_to_end(case)
    for number, ours in zip(case.numbers, detections, strict=True):
        case.check(f"out.proposals{number}", ours.boxes[0])
        case.check(f"out.probs{number}", ours.class_probs[0])
    case.check(f"out.{features}", torch.cat([ours.features[0] for ours in detections]))
    return detections


# vqa-maskrcnn.


def vqa_maskrcnn(golden: GoldenSet, results: Results) -> None:
    """The detector of Pythia, MMF and 12-in-1, with both writers."""
    options, keys = golden.config["options"], golden.config["maskrcnn_keys"]
    sides = {"short_side": options["short"], "long_side": options["long"]}
    cases = open_cases(golden, results, keys, {**sides, "given_scale": "padded"})
    for case in cases:
        scales = [image.scale for image in case.inputs]
        case.check("out.im_scales", torch.tensor(scales, dtype=torch.float64))
        case.check("out.image_sizes", torch.tensor(case.sizes()))
        padded = torch.tensor(case.batch().shape[2:]).expand(len(scales), 2)
        case.check("out.padded_sizes", padded)
        pyramid_stages(case, "fc6", "proposal_scores")
        with torch.inference_mode():
            case.check("out.fc7", case.model.roi_heads.classified(case["out.fc6"]))
        predictors(case, "out.fc7")
        writers(case, recorded_by_image(case, "out.fc6"))
        for one in (case, case.as_extracted()):
            writers(one, check_pyramid_detections(one, "fc6", "proposal_scores"))
        given_regions(case)
    pooler_alone(golden, results, cases[0].spec)
    selections_alone(golden, results, cases[0].spec)


def writers(case: Case, detections: Sequence[Detections]) -> None:
    """What both writers store of each image, without the rows whose confidence is 0."""
    for number, options in enumerate(case.golden.config["selections"]):
        spec, rule = vqa_rule(case.spec, options)
        for index, one in enumerate(detections):
            chosen = select(one, spec, case.frames(index), rule)
            key, image = f"out.sel{number}_", case.numbers[index]
            ids = taken(chosen, chosen.ids)
            probs = one.class_probs[0, ids]
            objects = taken(chosen, chosen.class_ids)
            if options["writer"] == "12-in-1":  # a row is cut where background's column is meant
                objects, stored = probs[1:].argmax(dim=1), probs
            else:
                objects = objects + int(options["background"])
                stored = probs if options["background"] else probs[:, 1:]
            case.check_all(
                {
                    f"{key}num_boxes{image}": torch.tensor(len(ids)),
                    f"{key}kept{image}": ids,
                    f"{key}x{image}": one.features[0, ids],
                    f"{key}bbox{image}": taken(chosen, chosen.boxes),
                    f"{key}cls_prob{image}": stored,
                    f"{key}objects{image}": objects,
                }
            )


def vqa_rule(spec: DetectorConfig, options: Mapping[str, Any]) -> tuple[DetectorConfig, Selection]:
    """The configuration and the bounds of a writer's flags."""
    rule = Selection(threshold=options["conf"], min_boxes=0, max_boxes=options["num"])
    return dataclasses.replace(spec, background_counts=options["background"]), rule


@torch.inference_mode()
def given_regions(case: Case) -> None:
    """Given boxes, scaled with the padding as 12-in-1 does."""
    maps = case.model.feature_maps(case.batch())
    for index, number in enumerate(case.numbers):
        if f"{case.name}.in.given_boxes{number}" not in case.golden.tensors:
            continue
        boxes = case[f"in.given_boxes{number}"] * case.frames(index).given_factors
        case.check(f"out.given_net_boxes{number}", boxes)
        own_maps = tuple(level[index : index + 1] for level in maps)
        found = case.model.describe(own_maps, *given(boxes), CHUNK)
        case.check(f"out.given_fc6{number}", found.features[0])
        case.check(f"out.given_probs{number}", found.class_probs[0])


def selections_alone(golden: GoldenSet, results: Results, spec: DetectorConfig) -> None:
    """The writers' selections on regions without a network."""
    recorded = golden.tensors
    boxes, mask = given(recorded["select.in.proposals"])
    probs = recorded["select.in.class_logits"].softmax(dim=1)[None]
    detections = Detections(boxes=boxes, box_mask=mask, features=boxes, class_probs=probs)
    scale = torch.full((1, 4), float(recorded["select.in.im_scale"]))
    limits = torch.full((1, 4), 1e4)
    frames = Frames(
        min_sides=torch.zeros(1),
        factors=scale,
        network_limits=limits,
        scaled_limits=limits,
        image_limits=limits,
        content_limits=limits,
        given_factors=scale,
    )
    for number, options in enumerate(golden.config["selections"]):
        own, rule = vqa_rule(spec, options)
        chosen = select(detections, own, frames, rule)
        ids, key = taken(chosen, chosen.ids), f"select.out.sel{number}_"
        results.check(f"{key}num_boxes", torch.tensor(len(ids)))
        results.check(f"{key}kept", ids)
        results.check(f"{key}bbox", taken(chosen, chosen.boxes))


# Detectron2 with a pyramid.


def detectron2_fpn(golden: GoldenSet, results: Results) -> None:
    """Detectron2's Faster and Mask R-CNN, by its own keys."""
    keys = golden.config["detectron2_keys"]
    rule = Selection(
        threshold=keys["MODEL.ROI_HEADS"]["SCORE_THRESH_TEST"],
        min_boxes=0,
        max_boxes=keys["TEST.DETECTIONS_PER_IMAGE"],
    )
    cases = open_cases(golden, results, keys)
    for case in cases:
        case.check("out.image_sizes", torch.tensor(case.sizes()))
        check_resized(case)
        pyramid_stages(case, "box_features", "proposal_logits")
        predictors(case, "out.box_features")
        detections_of(case, recorded_by_image(case, "out.box_features"), rule)
        for one in (case, case.as_extracted()):
            detections_of(one, check_pyramid_detections(one, "box_features", "logits"), rule)
    pooler_alone(golden, results, cases[0].spec)


def check_resized(case: Case) -> None:
    for image, number in zip(case.inputs, case.numbers, strict=True):
        pixels = case[f"in.image{number}"].numpy()
        resized = resize_pillow(pixels, *image.tensor.shape[2:])
        case.check(f"out.resized{number}", torch.tensor(resized))


def detections_of(case: Case, detections: Sequence[Detections], rule: Selection) -> None:
    """Detections in the network's and in the image's pixels."""
    for index, (number, one) in enumerate(zip(case.numbers, detections, strict=True)):
        chosen = select(one, case.spec, case.frames(index), rule)
        assert chosen.network_boxes is not None
        ids = taken(chosen, chosen.ids)
        case.check_all(
            {
                f"out.pred_boxes{number}": taken(chosen, chosen.network_boxes),
                f"out.scores{number}": taken(chosen, chosen.class_scores),
                f"out.classes{number}": taken(chosen, chosen.class_ids),
                f"out.kept{number}": ids,
                f"out.detection_features{number}": one.features[0, ids],
                f"out.final_boxes{number}": taken(chosen, chosen.boxes),
                f"out.final_scores{number}": taken(chosen, chosen.class_scores),
                f"out.final_classes{number}": taken(chosen, chosen.class_ids),
            }
        )


# Grid features.


@torch.inference_mode()
def grid_feats(golden: GoldenSet, results: Results) -> None:
    """The cells of C5, by the keys of the repository's own configuration."""
    for case in open_cases(golden, results, golden.config["detectron2_keys"]):
        model, batch = case.model, case.batch()
        case.check("out.tensor", batch)
        case.check("out.image_sizes", torch.tensor(case.sizes()))
        check_resized(case)
        case.check("out.stem", model.backbone.stem(batch))
        stages = model.backbone.stage_maps(batch)
        case.check("out.res4", stages[2])
        last = model.backbone.res5 if case.spec.last_stage == 5 else model.roi_heads.res5
        case.check("out.grid", last(case["out.res4"]))
        for one in (model, case.fast):
            frames = case.frames(0)
            found = one.detect(one.feature_maps(batch), frames.content_limits, frames.min_sides)
            recorded = case["out.grid"]
            expect(bool(found.box_mask.all()), f"{golden.folder}: a cell of padding alone")
            rows = found.features.transpose(1, 2).reshape(recorded.shape)
            results.check(f"{case.name}.out.grid", rows)


# Caffe's own file.


@torch.inference_mode()
def caffe_file(golden: GoldenSet, results: Results) -> None:
    """Blobs bit for bit, the weights of another set, and the body as OpenCV computes it."""
    for stem in ("odd", "old"):
        layers = read_caffe_layers(golden.folder / f"{stem}.caffemodel")
        for layer, blobs in layers.items():
            for number, blob in enumerate(blobs):
                results.check(f"{stem}.out.{layer}.{number}", torch.from_numpy(blob))
    path = golden.folder / "new.caffemodel"
    # The body is compared: any anchors will do, as many as a tiny proposal head has.
    logits = read_checkpoint(path)["proposal_generator.rpn_head.objectness_logits.weight"]
    anchors = {"anchor_scales": (8.0,) * (len(logits) // 2), "anchor_ratios": (1.0,)}
    model = open_detector(None, path, changes=anchors, folded=False).model
    assert isinstance(model, FasterRCNN)
    stem = model.backbone.stem(golden.tensors["body.in.tensor"])
    results.check("body.out.pool1", stem)
    backbone = model.backbone
    results.check("body.out.res4", backbone.res4(backbone.res3(backbone.res2(stem))))
    if (weights := find_weights(golden)) is not None:
        expect_same_weights(path, weights)


def find_weights(golden: GoldenSet) -> Path | None:
    """The weights of the set of which the file is a copy, where that set is at hand."""
    roots = [golden.root, GOLDEN, *map(Path, os.environ.get("VLMILL_GOLDEN", "").split(os.pathsep))]
    name = Path(str(golden.indexed["weights"]), "weights.safetensors")
    return next((root / name for root in roots if (root / name).is_file()), None)


def expect_same_weights(path: Path, weights: Path) -> None:
    """Read, folded and renamed, the file holds another set's weights but for its anchors."""
    ours, theirs = read_checkpoint(path), read_tensors(weights)
    left_out = ("cell_anchors.0", "num_batches_tracked")
    names = {name for name in theirs if not name.endswith(left_out)}
    expect(names == ours.keys(), f"{path}: other names than {weights}: {names ^ ours.keys()}")
    for name in names:
        same = torch.allclose(ours[name], theirs[name], rtol=STEM_MAPS, atol=0)
        expect(same, f"{path}: {name} is not that of {weights}")
