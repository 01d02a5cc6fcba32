"""The detector families: each against its recordings, stage by stage and from the picture on."""

import dataclasses
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from tests.models.detector.batches import given
from tests.parity.detector_stages import (
    Case,
    Regions,
    check_detections,
    end_to_end,
    given_boxes,
    open_cases,
    propose,
    settled_attributes,
    settled_choice,
    shared_stages,
    taken_of,
)
from tests.parity.golden import GoldenSet, expect
from tests.parity.results import Results
from torch import Tensor
from torch.nn import functional

from vlmill.extract.config import Selection
from vlmill.extract.detect.selection import (
    by_best_class,
    by_class_pairs,
    in_pictures,
    select,
)
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


def milvlg(golden: GoldenSet, results: Results) -> None:
    """The port's Caffe mode, whose settings stand in ``keys`` without ``MODEL``."""
    options, keys = golden.config["options"], golden.config["keys"]
    sides = {"MIN_SIZE_TEST": options["short"], "MAX_SIZE_TEST": options["long"]}
    model = CAFFE_MODE | keys | {"BUA": CAFFE_MODE["BUA"] | keys["BUA"]}
    for case in open_cases(golden, results, {"MODEL": model, "INPUT": sides}):
        shared_stages(case, features="features", scores="proposal_scores")
        scale = case.inputs[0].scale
        case.check("out.im_scale", torch.tensor(scale, dtype=torch.float64))
        case.check("out.class_probs", case["out.class_logits"].softmax(dim=1))
        with torch.inference_mode():
            given_boxes(case)
            original_layers(case)
        recorded = dataclasses.replace(
            case.recorded_detections(0, "out.features", case["out.class_probs"]),
            attribute_probs=case["out.attr_probs"][None],
        )
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
        choose = partial(select, spec=case.spec, frames=case.frames(0), rule=rule)
        chosen = taken_of(settled_choice(case, key, ours, recorded, choose))
        assert ours.attribute_probs is not None and recorded.attribute_probs is not None
        attributes, scores = settled_attributes(
            case,
            f"{key}_attrs_id",
            foreground_attributes(ours.attribute_probs[0], case.spec),
            foreground_attributes(recorded.attribute_probs[0], case.spec),
            chosen.ids,
        )
        case.check(f"{key}_num_bbox", torch.tensor(len(chosen.ids)))
        rows = {
            f"{key}_bbox": chosen.boxes,
            f"{key}_x": ours.features[0, chosen.ids],
            f"{key}_objects_id": chosen.class_ids,
            f"{key}_objects_conf": chosen.class_scores,
            f"{key}_attrs_id": attributes,
            f"{key}_attrs_conf": scores,
        }
        case.check_rows(rows, [f"{key}_bbox"], f"{key}_objects_conf")


def expect_same_rows(case: Case, ours: Detections, recorded: Detections) -> None:
    """The rows that extract-rois writes come from the proposals that the reference's do."""
    high = min(most for _, most in case.golden.config["options"]["sel"])
    choose = partial(
        select,
        spec=case.spec,
        frames=case.frames(0),
        rule=Selection(threshold=0.0, min_boxes=0, max_boxes=high),
    )
    rows = settled_choice(case, "rows", ours, recorded, choose)
    expect(
        torch.equal(taken_of(rows).ids, taken_of(choose(recorded)).ids),
        f"{case.golden.folder}: {case.name}: extract-rois keeps other rows than the recorded",
    )


def refined_boxes(case: Case, recorded: Detections) -> None:
    """Refined boxes in the picture's pixels, and the mode that selects among them."""
    frames = case.frames(0)
    decoded = decoded_in_picture(case, "out.proposals", case.spec.max_log_scale)
    case.check("out.refined", clipped_layers(decoded, frames.scaled_limits))
    limit = case.golden.config["options"]["sel"][0][1]
    highest = Selection(threshold=0.0, min_boxes=limit, max_boxes=limit)
    spec = dataclasses.replace(case.spec, written_boxes="refined")
    case.check("out.bboxes_mode", taken_of(select(recorded, spec, frames, highest)).boxes)


def clipped_layers(decoded: Tensor, limits: Tensor) -> Tensor:
    """Several boxes a row [R, B * 4], inside one picture."""
    return clip_boxes(decoded.view(len(decoded), -1, 4), limits).flatten(1)


def decoded_in_picture(case: Case, boxes: str, bound: float | None) -> Tensor:
    return decode_boxes(
        case[boxes] / case.inputs[0].scale,
        case["out.box_deltas"],
        weights=case.spec.box_weights,
        offset=case.spec.box_offset,
        max_log_scale=bound,
    )


def original_layers(case: Case) -> None:
    """The original's proposal layer, box decoding and selection: Caffe's conventions."""
    options = case.golden.config["options"]
    spec = dataclasses.replace(
        case.spec, family="caffe", max_log_scale=None, min_size_inclusive=True
    )
    boxes, scores = propose(case, ProposalGenerator(spec), 0)
    case.check("caffe.rois", boxes)
    case.check("caffe.roi_scores", scores)
    rois, taken = given(case["caffe.rois"])
    described = case.model.describe(case["out.res4"], rois, taken)
    case.check("caffe.class_probs", described.class_probs[0])
    frames = case.frames(0)
    decoded = decoded_in_picture(case, "caffe.rois", spec.max_log_scale)
    case.check("caffe.pred_boxes", clipped_layers(decoded, frames.picture_limits))
    recorded = Detections(
        boxes=rois,
        taken=taken,
        features=case["out.features"][None],
        class_probs=case["caffe.class_probs"][None],
    )
    confidence = class_confidence(
        frames.to_pictures(rois),
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
        with torch.inference_mode():
            given_boxes(case)
        recorded = case.recorded_detections(0, "out.features", case["out.probs"])
        airsplay_selections(case, recorded, recorded)
        for one in (case, case.as_extracted()):
            names = ("features", "probs", "proposal_logits")
            (ours,) = check_detections(one, end_to_end(one), names)
            airsplay_selections(one, ours, recorded)


def airsplay_selections(case: Case, ours: Detections, recorded: Detections) -> None:
    options, frames = case.golden.config["options"], case.frames(0)
    count = options["N"]
    of_pairs = dataclasses.replace(
        case.spec,
        selection="class-pairs",
        class_nms_thresholds=airsplay_pairs().class_nms_thresholds,
    )
    notebook = Selection(threshold=options["score"], min_boxes=0, max_boxes=count)
    choose = partial(by_class_pairs, spec=of_pairs, frames=frames, rule=notebook)
    chosen = settled_choice(case, "out.selA", ours, recorded, choose)
    # The reference scales these boxes in place: it records the picture's pixels under both names.
    boxes = taken_of(in_pictures(chosen, of_pairs, frames)).boxes
    both = {"out.selA_boxes": boxes, "out.selA_boxes_picture": boxes}
    check_chosen(case, "out.selA", taken_of(chosen), both)
    script = Selection(threshold=0.0, min_boxes=count, max_boxes=count)
    choose = partial(by_best_class, spec=case.spec, frames=frames, rule=script)
    best = taken_of(settled_choice(case, "out.selB", ours, recorded, choose))
    check_chosen(case, "out.selB", best, {"out.selB_boxes": best.boxes})


def check_chosen(case: Case, key: str, chosen: Regions, boxes: Mapping[str, Tensor]) -> None:
    rows = {
        f"{key}_classes": chosen.class_ids,
        f"{key}_ids": chosen.ids,
        f"{key}_scores": chosen.class_scores,
    }
    case.check_rows({**rows, **boxes}, [f"{key}_ids", f"{key}_classes"], f"{key}_scores")
    case.check(f"{key}_nms", chosen.nms_threshold)


def decoded_boxes(case: Case, index: int) -> Tensor:
    """Class boxes of one picture, in the network's pixels, before clipping."""
    return decode_boxes(
        case[f"out.proposals{case.numbers[index]}"],
        case.of_picture("out.box_deltas", index),
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
            probs = case.of_picture("out.class_logits", index).softmax(dim=1)
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
    number, frames = case.numbers[index], case.frames(index)
    choose = partial(by_class_pairs, spec=case.spec, frames=frames, rule=rule)
    settled = settled_choice(case, f"out.kept{number}", ours, recorded, choose)
    chosen, final = taken_of(settled), taken_of(in_pictures(settled, case.spec, frames))
    rows = {
        f"out.pred_boxes{number}": chosen.boxes,
        f"out.scores{number}": chosen.class_scores,
        f"out.classes{number}": chosen.class_ids,
        f"out.kept{number}": chosen.ids,
    }
    case.check_rows(rows, [f"out.kept{number}", f"out.classes{number}"], f"out.scores{number}")
    rows = {
        f"out.final_boxes{number}": final.boxes,
        f"out.final_scores{number}": final.class_scores,
        f"out.final_classes{number}": final.class_ids,
    }
    case.check_rows(
        rows,
        [f"out.final_boxes{number}", f"out.final_classes{number}"],
        f"out.final_scores{number}",
    )


def hf_frcnn(golden: GoldenSet, results: Results) -> None:
    """The port, whose pictures went in red-green-blue (a defect of the code)."""
    config = golden.config
    fed = {"channel_order": "rgb" if config["input"]["format"] == "BGR" else "bgr"}
    rule = Selection(
        threshold=0.0, min_boxes=config["min_detections"], max_boxes=config["max_detections"]
    )
    for case in open_cases(golden, results, config, fed):
        case.check("out.sizes", torch.tensor(case.sizes()))
        factors = torch.tensor([picture.factors[::-1] for picture in case.inputs])
        case.check("out.scales_yx", 1 / factors)
        shared_stages(case, features="features", scores="proposal_logits")
        attributes = case.model.roi_heads.box_predictor.attribute_probs(case["out.attr_logits"])
        counts = [len(case[f"out.proposals{number}"]) for number in case.numbers]
        recorded = []
        for index, own in enumerate(torch.split(attributes, counts)):
            probs = case.of_picture("out.class_logits", index).softmax(dim=1)
            one = case.recorded_detections(index, "out.features", probs)
            recorded.append(dataclasses.replace(one, attribute_probs=own[None]))
            hf_selection(case, index, recorded[-1], recorded[-1], rule)
        for which in (case, case.as_extracted()):
            names = ("features", "probs", "proposal_logits")
            detections = check_detections(which, end_to_end(which), names)
            for index, ours in enumerate(detections):
                hf_selection(which, index, ours, recorded[index], rule)


def hf_selection(
    case: Case, index: int, ours: Detections, recorded: Detections, rule: Selection
) -> None:
    number, picture = case.numbers[index], case.inputs[index]
    choose = partial(select, spec=case.spec, frames=case.frames(index), rule=rule)
    chosen = taken_of(settled_choice(case, f"out.obj_ids{number}", ours, recorded, choose))
    assert ours.attribute_probs is not None and recorded.attribute_probs is not None
    attributes, scores = settled_attributes(
        case,
        f"out.attr_ids{number}",
        ours.attribute_probs[0],
        recorded.attribute_probs[0],
        chosen.ids,
    )
    size = torch.tensor([picture.width, picture.height] * 2)
    rows = {
        f"out.boxes{number}": chosen.boxes,
        f"out.obj_ids{number}": chosen.class_ids,
        f"out.obj_probs{number}": chosen.class_scores,
        f"out.attr_ids{number}": attributes,
        f"out.attr_probs{number}": scores,
        f"out.roi_features{number}": ours.features[0, chosen.ids],
        f"out.normalized_boxes{number}": chosen.boxes / size,
    }
    place = case.check_rows(rows, [f"out.boxes{number}"], f"out.obj_probs{number}")
    if f"{case.name}.out.padded_boxes" not in case.golden.tensors:
        return
    boxes, probs = chosen.boxes, chosen.class_scores
    if place is not None:
        boxes, probs = boxes[place], probs[place]
    missing = rule.max_boxes - len(boxes)
    case.check("out.padded_boxes", functional.pad(boxes, (0, 0, 0, missing))[None])
    case.check("out.padded_obj_probs", functional.pad(probs, (0, missing))[None])
    case.check("out.padded_preds_per_image", torch.tensor([len(boxes)]))
