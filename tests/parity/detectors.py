"""The detector families: each against its recordings, stage by stage and from the image on."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from tests.models.detector.batches import given
from tests.parity.detector_choices import (
    choice_of,
    rows_by_boxes,
    rows_by_ids,
    settled_attributes,
    settled_choice,
)
from tests.parity.detector_stages import (
    Case,
    check_detections,
    check_proposals,
    end_to_end,
    given_boxes,
    open_cases,
    shared_stages,
)
from tests.parity.golden import GoldenSet, expect
from tests.parity.region_ties import Regions, taken_of
from tests.parity.results import Results
from torch import Tensor
from torch.nn import functional

from vlmill.extract.config import Selection
from vlmill.extract.detect.selection import select
from vlmill.models.detector.boxes import clip_boxes, decode_boxes
from vlmill.models.detector.config import airsplay_pairs
from vlmill.models.detector.faster_rcnn import Detections, foreground_attributes, foreground_classes
from vlmill.models.detector.nms import class_confidence
from vlmill.models.detector.proposals import ProposalGenerator

# milvlg: the port of the original detector, and the original's own layers (caffe.*).


# What the port's Caffe mode says besides sizes and settings, which its sets leave out.
CAFFE_MODE: dict[str, Any] = {
    "META_ARCHITECTURE": "GeneralizedBUARCNN",
    "BACKBONE": {"NAME": "build_bua_resnet_backbone"},
    "BUA": {"CAFFE": True, "ATTRIBUTE_ON": True},
}


def milvlg_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    """The port's own keys, of those that a set writes."""
    options, keys = config["options"], config["keys"]
    sides = {"MIN_SIZE_TEST": options["short"], "MAX_SIZE_TEST": options["long"]}
    model = CAFFE_MODE | keys | {"BUA": CAFFE_MODE["BUA"] | keys["BUA"]}
    return {"MODEL": model, "INPUT": sides}


def milvlg(golden: GoldenSet, results: Results) -> None:
    """The port's Caffe mode, whose settings stand in ``keys`` without ``MODEL``."""
    for case in open_cases(golden, results, milvlg_keys(golden.config)):
        shared_stages(case, features="features", scores="proposal_scores")
        scale = case.inputs[0].scale
        case.check("out.im_scale", torch.tensor(scale, dtype=torch.float64))
        case.check("out.class_probs", case["out.class_logits"].softmax(dim=1))
        given_boxes(case)
        if f"{case.name}.caffe.rois" in golden.tensors:
            original_layers(case)
        recorded = case.recorded_detections(0, "out.features", case["out.class_probs"])
        if case.spec.num_attributes:
            attributes = case["out.attr_probs"][None]
            recorded = dataclasses.replace(recorded, attribute_probs=attributes)
        milvlg_selections(case, recorded, recorded)
        refined_boxes(case, recorded)
        names = ("features", "class_probs", "proposal_scores")
        (ours,) = check_detections(case, end_to_end(case), names)
        milvlg_selections(case, ours, recorded)
        extracted = case.as_extracted()
        (ours,) = check_detections(extracted, end_to_end(extracted), names)
        milvlg_selections(extracted, ours, recorded)
        expect_same_rows(extracted, ours, recorded)


def milvlg_selections(case: Case, ours: Detections, recorded: Detections) -> None:
    """The npz content of every configured selection."""
    options = case.golden.config["options"]
    for number, (low, high) in enumerate(options["sel"]):
        rule = Selection(threshold=options["thr"], min_boxes=low, max_boxes=high)
        key = f"out.sel{number}"
        choice = choice_of(case, 0, rule, f"{key}_bbox", f"{key}_objects_conf")
        rows = rows_by_boxes(case, choice, recorded, f"{key}_bbox", f"{key}_objects_conf")
        chosen = settled_choice(case, key, choice, ours, recorded, rows)
        case.check_all(
            {
                f"{key}_num_bbox": torch.tensor(len(chosen.ids)),
                f"{key}_bbox": chosen.boxes,
                f"{key}_x": ours.features[0, chosen.ids],
                f"{key}_objects_id": chosen.class_ids,
                f"{key}_objects_conf": chosen.class_scores,
            }
        )
        if ours.attribute_probs is not None and recorded.attribute_probs is not None:
            attributes, scores = settled_attributes(
                case,
                f"{key}_attrs_id",
                foreground_attributes(ours.attribute_probs[0], case.spec),
                foreground_attributes(recorded.attribute_probs[0], case.spec),
                chosen.ids,
            )
            case.check(f"{key}_attrs_id", attributes)
            case.check(f"{key}_attrs_conf", scores)


def expect_same_rows(case: Case, ours: Detections, recorded: Detections) -> None:
    """The rows that extract-rois writes come from the proposals that the reference's do."""
    high = min(most for _, most in case.golden.config["options"]["sel"])
    rule = Selection(threshold=0.0, min_boxes=0, max_boxes=high)
    choice = choice_of(case, 0, rule, "out.proposals", "out.class_probs")
    rows = settled_choice(case, "rows", choice, ours, recorded, None)
    expect(
        torch.equal(rows.ids, choice.choose(recorded).ids),
        f"{case.golden.folder}: {case.name}: extract-rois keeps other rows than the recorded",
    )


def refined_boxes(case: Case, recorded: Detections) -> None:
    """Refined boxes in the image's pixels, and the mode that selects among them."""
    frames = case.frames(0)
    decoded = decoded_in_image(case, "out.proposals", case.spec.max_log_scale)
    case.check("out.refined", clipped_layers(decoded, frames.scaled_limits))
    limit = case.golden.config["options"]["sel"][0][1]
    highest = Selection(threshold=0.0, min_boxes=limit, max_boxes=limit)
    spec = dataclasses.replace(case.spec, written_boxes="refined")
    case.check("out.bboxes_mode", taken_of(select(recorded, spec, frames, highest)).boxes)


def clipped_layers(decoded: Tensor, limits: Tensor) -> Tensor:
    """Several boxes a row [R, B * 4], inside one image."""
    return clip_boxes(decoded.view(len(decoded), -1, 4), limits).flatten(1)


def decoded_in_image(case: Case, boxes: str, bound: float | None) -> Tensor:
    return decode_boxes(
        case[boxes] / case.inputs[0].scale,
        case["out.box_deltas"],
        weights=case.spec.box_weights,
        offset=case.spec.box_offset,
        max_log_scale=bound,
    )


@torch.inference_mode()
def original_layers(case: Case) -> None:
    """The original's proposal layer, box decoding and selection: Caffe's conventions."""
    options = case.golden.config["options"]
    spec = dataclasses.replace(
        case.spec, family="caffe", max_log_scale=None, min_size_inclusive=True
    )
    check_proposals(case, ProposalGenerator(spec), 0, ("caffe.rois", "caffe.roi_scores"))
    rois, taken = given(case["caffe.rois"])
    described = case.model.describe((case["out.res4"],), rois, taken)
    case.check("caffe.class_probs", described.class_probs[0])
    frames = case.frames(0)
    decoded = decoded_in_image(case, "caffe.rois", spec.max_log_scale)
    case.check("caffe.pred_boxes", clipped_layers(decoded, frames.image_limits))
    recorded = Detections(
        boxes=rois,
        box_mask=taken,
        features=case["out.features"][None],
        class_probs=case["caffe.class_probs"][None],
    )
    confidence = class_confidence(
        frames.to_images(rois),
        foreground_classes(recorded.class_probs, spec),
        spec.class_nms_thresholds[0],
        offset=spec.box_offset,
        inclusive=spec.nms_inclusive,
    )
    case.check("caffe.max_conf", confidence[0])
    for number, (low, high) in enumerate(options["sel"]):
        rule = Selection(threshold=options["thr"], min_boxes=low, max_boxes=high)
        chosen = taken_of(select(recorded, spec, frames, rule))
        case.check(f"caffe.sel{number}_ids", chosen.ids)


# airsplay, hf-frcnn and detectron2: background last, refined boxes.


def airsplay(golden: GoldenSet, results: Results) -> None:
    """The fork, in both published selections; settings stand in ``keys`` without ``MODEL``."""
    config = golden.config
    for case in open_cases(golden, results, {"MODEL": config["keys"], "INPUT": config["INPUT"]}):
        shared_stages(case, features="features", scores="proposal_logits")
        case.check("out.probs", case["out.class_logits"].softmax(dim=1))
        if case.spec.num_attributes:
            predictor = case.model.roi_heads.box_predictor
            case.check("out.attr_probs", predictor.attribute_probs(case["out.attr_logits"]))
        case.check("out.decoded", decoded_boxes(case, 0))
        given_boxes(case)
        recorded = case.recorded_detections(0, "out.features", case["out.probs"])
        airsplay_selections(case, recorded, recorded)
        for one in (case, case.as_extracted()):
            names = ("features", "probs", "proposal_logits")
            (ours,) = check_detections(one, end_to_end(one), names)
            airsplay_selections(one, ours, recorded)


def airsplay_selections(case: Case, ours: Detections, recorded: Detections) -> None:
    options = case.golden.config["options"]
    count = options["N"]
    of_pairs = dataclasses.replace(
        case.spec,
        selection="class-pairs",
        class_nms_thresholds=airsplay_pairs().class_nms_thresholds,
    )
    notebook = Selection(threshold=options["score"], min_boxes=0, max_boxes=count)
    script = Selection(threshold=0.0, min_boxes=count, max_boxes=count)
    for key, spec, rule in (("out.selA", of_pairs, notebook), ("out.selB", case.spec, script)):
        choice = choice_of(case, 0, rule, f"{key}_boxes", f"{key}_scores", spec)
        rows = rows_by_ids(case, f"{key}_ids", f"{key}_classes")
        chosen = settled_choice(case, key, choice, ours, recorded, rows)
        case.check_all(
            {
                f"{key}_classes": chosen.class_ids,
                f"{key}_ids": chosen.ids,
                f"{key}_scores": chosen.class_scores,
                f"{key}_nms": chosen.nms_threshold,
            }
        )
        # The reference scales these boxes in place: both names record the image's pixels.
        written = chosen.in_image(choice, drop=True) if spec is of_pairs else chosen
        case.check(f"{key}_boxes", written.boxes)
        case.check(f"{key}_boxes_picture", written.boxes)


def decoded_boxes(case: Case, index: int) -> Tensor:
    """Class boxes of one image, in the network's pixels, before clipping."""
    return decode_boxes(
        case[f"out.proposals{case.numbers[index]}"],
        case.of_image("out.box_deltas", index),
        weights=case.spec.box_weights,
        offset=case.spec.box_offset,
        max_log_scale=case.spec.max_log_scale,
    )


def detectron2(golden: GoldenSet, results: Results) -> None:
    """Detectron2 itself, by its own keys."""
    keys = golden.config["detectron2_keys"]
    rule = Selection(
        threshold=keys["MODEL.ROI_HEADS"]["SCORE_THRESH_TEST"],
        min_boxes=0,
        max_boxes=keys["TEST.DETECTIONS_PER_IMAGE"],
    )
    for case in open_cases(golden, results, keys):
        case.check("out.image_sizes", torch.tensor(case.sizes()))
        shared_stages(case, features="box_features", scores="proposal_logits")
        recorded = []
        for index, number in enumerate(case.numbers):
            probs = case.of_image("out.class_logits", index).softmax(dim=1)
            case.check(f"out.probs{number}", probs)
            case.check(f"out.decoded{number}", decoded_boxes(case, index))
            probs = case[f"out.probs{number}"]
            recorded.append(case.recorded_detections(index, "out.box_features", probs))
            detectron2_selection(case, index, recorded[-1], recorded[-1], rule)
        for one in (case, case.as_extracted()):
            names = ("box_features", "probs", "proposal_logits")
            for index, ours in enumerate(check_detections(one, end_to_end(one), names)):
                detectron2_selection(one, index, ours, recorded[index], rule)


def detectron2_selection(
    case: Case, index: int, ours: Detections, recorded: Detections, rule: Selection
) -> None:
    number = case.numbers[index]
    choice = choice_of(case, index, rule, f"out.pred_boxes{number}", f"out.scores{number}")
    rows = rows_by_ids(case, f"out.kept{number}", f"out.classes{number}")
    chosen = settled_choice(case, f"out.kept{number}", choice, ours, recorded, rows)
    final = chosen.in_image(choice, drop=True)
    case.check_all(
        {
            f"out.pred_boxes{number}": chosen.boxes,
            f"out.scores{number}": chosen.class_scores,
            f"out.classes{number}": chosen.class_ids,
            f"out.kept{number}": chosen.ids,
            f"out.final_boxes{number}": final.boxes,
            f"out.final_scores{number}": final.class_scores,
            f"out.final_classes{number}": final.class_ids,
        }
    )


def hf_frcnn(golden: GoldenSet, results: Results) -> None:
    """The port, whose images went in red-green-blue (a defect of the code)."""
    config = golden.config
    fed = {"channel_order": "rgb" if config["input"]["format"] == "BGR" else "bgr"}
    rule = Selection(
        threshold=0.0, min_boxes=config["min_detections"], max_boxes=config["max_detections"]
    )
    for case in open_cases(golden, results, config, fed):
        case.check("out.sizes", torch.tensor(case.sizes()))
        factors = torch.tensor([image.factors[::-1] for image in case.inputs])
        case.check("out.scales_yx", 1 / factors)
        shared_stages(case, features="features", scores="proposal_logits")
        recorded = [hf_recorded(case, index) for index in range(len(case.inputs))]
        hf_selections(case, recorded, recorded, rule)
        for which in (case, case.as_extracted()):
            names = ("features", "probs", "proposal_logits")
            hf_selections(which, check_detections(which, end_to_end(which), names), recorded, rule)


def hf_recorded(case: Case, index: int) -> Detections:
    """What the port's network gave for one image; it records logits."""
    probs = case.of_image("out.class_logits", index).softmax(dim=1)
    recorded = case.recorded_detections(index, "out.features", probs)
    if not case.spec.num_attributes:
        return recorded
    logits = case.of_image("out.attr_logits", index)
    attributes = case.model.roi_heads.box_predictor.attribute_probs(logits)
    return dataclasses.replace(recorded, attribute_probs=attributes[None])


def hf_selections(
    case: Case, ours: Sequence[Detections], recorded: Sequence[Detections], rule: Selection
) -> None:
    """The chosen regions of each image, and of all in one tensor."""
    chosen = [
        hf_selection(case, index, *pair, rule)
        for index, pair in enumerate(zip(ours, recorded, strict=True))
    ]
    missing = [rule.max_boxes - len(one.ids) for one in chosen]
    ends = list(zip(chosen, missing, strict=True))
    boxes = [functional.pad(one.boxes, (0, 0, 0, free)) for one, free in ends]
    scores = [functional.pad(one.class_scores, (0, free)) for one, free in ends]
    case.check("out.padded_boxes", torch.stack(boxes))
    case.check("out.padded_obj_probs", torch.stack(scores))
    case.check("out.padded_preds_per_image", torch.tensor([len(one.ids) for one in chosen]))


def hf_selection(
    case: Case, index: int, ours: Detections, recorded: Detections, rule: Selection
) -> Regions:
    number, image = case.numbers[index], case.inputs[index]
    boxes, scores = f"out.boxes{number}", f"out.obj_probs{number}"
    choice = choice_of(case, index, rule, boxes, scores)
    rows = rows_by_boxes(case, choice, recorded, boxes, scores)
    settled = settled_choice(case, f"out.obj_ids{number}", choice, ours, recorded, rows)
    chosen = settled.in_image(choice, drop=True)
    size = torch.tensor([image.width, image.height] * 2)
    case.check_all(
        {
            boxes: chosen.boxes,
            f"out.obj_ids{number}": chosen.class_ids,
            scores: chosen.class_scores,
            f"out.roi_features{number}": ours.features[0, chosen.ids],
            f"out.normalized_boxes{number}": chosen.boxes / size,
        }
    )
    if ours.attribute_probs is not None and recorded.attribute_probs is not None:
        probs = ours.attribute_probs[0], recorded.attribute_probs[0]
        key = f"out.attr_ids{number}"
        attributes, certainties = settled_attributes(case, key, *probs, chosen.ids)
        case.check(key, attributes)
        case.check(f"out.attr_probs{number}", certainties)
    return chosen
