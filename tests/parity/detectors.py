"""The detector families: each against its recordings, stage by stage and from the picture on."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from tests.models.detector.batches import given
from tests.parity.detector_stages import (
    Case,
    Regions,
    check_detections,
    detectron2_fields,
    end_to_end,
    expect_same_rows,
    expect_sizes,
    given_boxes,
    open_cases,
    propose,
    shared_stages,
    taken_of,
)
from tests.parity.golden import GoldenSet, Results
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
from vlmill.models.detector.config import RISING_THRESHOLDS, airsplay_pairs
from vlmill.models.detector.faster_rcnn import Detections, foreground_attributes, foreground_classes
from vlmill.models.detector.nms import class_confidence
from vlmill.models.detector.proposals import ProposalGenerator

# milvlg: the port of the original detector, and the original's own layers (caffe.*).


def milvlg(golden: GoldenSet, results: Results) -> None:
    """The sets ``frcnn/bua_caffe`` and ``frcnn/bua_caffe_r152v2``."""
    options, keys = golden.config["options"], golden.config["keys"]
    fields = detectron2_fields(keys)
    fields["class_nms_thresholds"] = (keys["ROI_HEADS"]["NMS_THRESH_TEST"],)
    for case in open_cases(golden, results, fields, (options["short"], options["long"])):
        expect_sizes(
            case.spec,
            keys["RESNETS"],
            num_classes=options["classes"],
            num_attributes=options["attrs"],
            rpn_channels=options["hid"],
        )
        assert case.spec.pre_activation == (keys["BUA"]["RESNET_VERSION"] == 2)
        shared_stages(case, features="features", scores="proposal_scores", first=2)
        scale = case.inputs[0].scale
        case.check("out.im_scale", torch.tensor(scale, dtype=torch.float64))
        case.check("out.class_probs", case["out.class_logits"].softmax(dim=1))
        with torch.inference_mode():
            given_boxes(case)
            original_layers(case)
        recorded = case.recorded_detections(0, "out.features", case["out.class_probs"])
        attributes = case["out.attr_probs"]
        milvlg_selections(case, dataclasses.replace(recorded, attribute_probs=attributes[None]))
        refined_boxes(case, recorded)
        found = end_to_end(case)
        check_detections(case, found, "features", "class_probs")
        milvlg_selections(case, found[0])
        extracted = case.as_extracted()
        found = end_to_end(extracted)
        milvlg_selections(extracted, found[0])
        expect_same_rows(extracted, found[0], recorded)


def milvlg_selections(case: Case, found: Detections) -> None:
    """The npz content of every configured selection."""
    options = case.golden.config["options"]
    for number, (low, high) in enumerate(options["sel"]):
        rule = Selection(threshold=options["thr"], min_boxes=low, max_boxes=high)
        chosen = taken_of(select(found, case.spec, case.frames(0), rule))
        assert found.attribute_probs is not None
        attributes = foreground_attributes(found.attribute_probs[0, chosen.ids], case.spec)
        key = f"out.sel{number}"
        case.check(f"{key}_num_bbox", torch.tensor(len(chosen.ids)))
        case.check(f"{key}_bbox", chosen.boxes)
        case.check(f"{key}_x", found.features[0, chosen.ids])
        case.check(f"{key}_objects_id", chosen.class_ids)
        case.check(f"{key}_objects_conf", chosen.class_scores)
        case.check(f"{key}_attrs_id", attributes.max(dim=1).indices)
        case.check(f"{key}_attrs_conf", attributes.max(dim=1).values)


def refined_boxes(case: Case, recorded: Detections) -> None:
    """Refined boxes in the picture's pixels, and the mode that selects among them."""
    decoded = decoded_in_picture(case, "out.proposals", case.spec.max_log_scale)
    assert case.spec.box_offset == 1.0
    case.check("out.refined", clipped_layers(decoded, case.frames(0).scaled_limits))
    limit = case.golden.config["options"]["sel"][0][1]
    highest = Selection(threshold=0.0, min_boxes=limit, max_boxes=limit)
    spec = dataclasses.replace(case.spec, written_boxes="refined")
    case.check("out.bboxes_mode", taken_of(select(recorded, spec, case.frames(0), highest)).boxes)


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
    rois = case["caffe.rois"]
    case.check(
        "caffe.class_probs", case.model.describe(case["out.res4"], *given(rois)).class_probs[0]
    )
    decoded = decoded_in_picture(case, "caffe.rois", spec.max_log_scale)
    case.check("caffe.pred_boxes", clipped_layers(decoded, case.frames(0).picture_limits))
    boxes, taken = given(rois)
    found = Detections(
        boxes=boxes,
        taken=taken,
        features=case["out.features"][None],
        class_probs=case["caffe.class_probs"][None],
    )
    confidence = class_confidence(
        case.frames(0).to_pictures(boxes),
        foreground_classes(found.class_probs, spec),
        spec.class_nms_thresholds[0],
        offset=spec.box_offset,
        inclusive=spec.nms_inclusive,
    )
    case.check("caffe.max_conf", confidence[0])
    for number, (low, high) in enumerate(options["sel"]):
        rule = Selection(threshold=options["thr"], min_boxes=low, max_boxes=high)
        chosen = taken_of(select(found, spec, case.frames(0), rule))
        case.check(f"caffe.sel{number}_ids", chosen.ids)


# airsplay, hf-frcnn and detectron2: background last, refined boxes.


def airsplay(golden: GoldenSet, results: Results) -> None:
    """The set ``frcnn/airsplay_vg_attr``: both published selections."""
    options, keys = golden.config["options"], golden.config["keys"]
    fields = detectron2_fields(keys)
    fields["stem_ceil_pool"] = keys["CAFFE_MAXPOOL"]
    sides = golden.config["INPUT"]["MIN_SIZE_TEST"], golden.config["INPUT"]["MAX_SIZE_TEST"]
    for case in open_cases(golden, results, fields, sides):
        expect_sizes(
            case.spec,
            keys["RESNETS"],
            num_classes=options["classes"],
            num_attributes=options["attrs"],
            rpn_channels=keys["PROPOSAL_GENERATOR"]["HID_CHANNELS"],
        )
        assert case.spec.family == "airsplay"
        shared_stages(case, features="features", scores="proposal_logits", first=2)
        case.check("out.probs", case["out.class_logits"].softmax(dim=1))
        predictor = case.model.roi_heads.box_predictor
        case.check("out.attr_probs", predictor.attribute_probs(case["out.attr_logits"]))
        case.check("out.decoded", decoded_boxes(case, 0))
        with torch.inference_mode():
            given_boxes(case)
        airsplay_selections(case, case.recorded_detections(0, "out.features", case["out.probs"]))
        found = end_to_end(case)
        check_detections(case, found, "features", "probs")
        airsplay_selections(case, found[0])
        extracted = case.as_extracted()
        airsplay_selections(extracted, end_to_end(extracted)[0])


def airsplay_selections(case: Case, found: Detections) -> None:
    options, frames = case.golden.config["options"], case.frames(0)
    count = options["N"]
    pairs = dataclasses.replace(
        case.spec,
        selection="class-pairs",
        class_nms_thresholds=airsplay_pairs().class_nms_thresholds,
    )
    notebook = Selection(threshold=options["score"], min_boxes=0, max_boxes=count)
    chosen = by_class_pairs(found, pairs, frames, notebook)
    check_chosen(case, "out.selA", taken_of(chosen))
    # The reference scales these boxes in place: it records the picture's pixels under both names.
    boxes = taken_of(in_pictures(chosen, pairs, frames)).boxes
    case.check("out.selA_boxes", boxes)
    case.check("out.selA_boxes_picture", boxes)
    script = Selection(threshold=0.0, min_boxes=count, max_boxes=count)
    best = taken_of(by_best_class(found, case.spec, frames, script))
    check_chosen(case, "out.selB", best)
    case.check("out.selB_boxes", best.boxes)


def check_chosen(case: Case, key: str, chosen: Regions) -> None:
    case.check(f"{key}_classes", chosen.class_ids)
    case.check(f"{key}_ids", chosen.ids)
    case.check(f"{key}_scores", chosen.class_scores)
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
    """The sets ``frcnn/d2_r50c4`` and ``frcnn/d2_r101c4``."""
    keys = golden.config["detectron2_keys"]
    fields = detectron2_fields(keys, "MODEL.")
    heads = keys["MODEL.ROI_HEADS"]
    fields["class_nms_thresholds"] = (heads["NMS_THRESH_TEST"],)
    sides = keys["INPUT"]["MIN_SIZE_TEST"], keys["INPUT"]["MAX_SIZE_TEST"]
    rule = Selection(
        threshold=heads["SCORE_THRESH_TEST"],
        min_boxes=0,
        max_boxes=keys["TEST.DETECTIONS_PER_IMAGE"],
    )
    for case in open_cases(golden, results, fields, sides):
        expect_sizes(case.spec, keys["MODEL.RESNETS"], num_classes=heads["NUM_CLASSES"])
        assert case.spec.family == "detectron2"
        case.check("out.image_sizes", torch.tensor(case.sizes()))
        shared_stages(case, features="box_features", scores="proposal_logits", first=3)
        found = end_to_end(case)
        check_detections(case, found, "box_features", "probs")
        extracted = case.as_extracted()
        for index, one in enumerate(end_to_end(extracted)):
            detectron2_selection(extracted, index, one, rule)
        for index, number in enumerate(case.numbers):
            probs = case.of_picture("out.class_logits", index).softmax(dim=1)
            case.check(f"out.probs{number}", probs)
            case.check(f"out.decoded{number}", decoded_boxes(case, index))
            recorded = case.recorded_detections(
                index, "out.box_features", case[f"out.probs{number}"]
            )
            detectron2_selection(case, index, recorded, rule)
            detectron2_selection(case, index, found[index], rule)


def detectron2_selection(case: Case, index: int, found: Detections, rule: Selection) -> None:
    number, frames = case.numbers[index], case.frames(index)
    pairs = by_class_pairs(found, case.spec, frames, rule)
    chosen = taken_of(pairs)
    case.check(f"out.pred_boxes{number}", chosen.boxes)
    case.check(f"out.scores{number}", chosen.class_scores)
    case.check(f"out.classes{number}", chosen.class_ids)
    case.check(f"out.kept{number}", chosen.ids)
    final = taken_of(in_pictures(pairs, case.spec, frames))
    case.check(f"out.final_boxes{number}", final.boxes)
    case.check(f"out.final_scores{number}", final.class_scores)
    case.check(f"out.final_classes{number}", final.class_ids)


def hf_frcnn(golden: GoldenSet, results: Results) -> None:
    """The set ``frcnn/hf_frcnn``; its pictures went in red-green-blue (a defect of the code)."""
    config = golden.config
    fields = hf_fields(config)
    sides = config["input"]["min_size_test"], config["input"]["max_size_test"]
    rule = Selection(
        threshold=0.0, min_boxes=config["min_detections"], max_boxes=config["max_detections"]
    )
    for case in open_cases(golden, results, fields, sides):
        resnets = {name.upper(): value for name, value in config["resnets"].items()}
        expect_sizes(
            case.spec,
            resnets,
            num_classes=config["roi_heads"]["num_classes"],
            num_attributes=config["roi_box_head"]["num_attrs"],
            rpn_channels=config["proposal_generator"]["hidden_channels"],
        )
        assert case.spec.family == "hf-frcnn"
        case.check("out.sizes", torch.tensor(case.sizes()))
        factors = torch.tensor([picture.factors[::-1] for picture in case.inputs])
        case.check("out.scales_yx", 1 / factors)
        shared_stages(case, features="features", scores="proposal_logits", first=2)
        found = end_to_end(case)
        check_detections(case, found, "features", "probs")
        extracted = case.as_extracted()
        for index, one in enumerate(end_to_end(extracted)):
            hf_selection(extracted, index, one, rule)
        predictor = case.model.roi_heads.box_predictor
        attributes = predictor.attribute_probs(case["out.attr_logits"])
        counts = [one.boxes.shape[1] for one in found]
        for index, own in enumerate(torch.split(attributes, counts)):
            probs = case.of_picture("out.class_logits", index).softmax(dim=1)
            recorded = case.recorded_detections(index, "out.features", probs)
            with_attributes = dataclasses.replace(recorded, attribute_probs=own[None])
            hf_selection(case, index, with_attributes, rule)
            hf_selection(case, index, found[index], rule)


def hf_fields(config: Mapping[str, Any]) -> dict[str, Any]:
    """Our fields for the released configuration's names, which are Detectron2's in lower case."""
    upper = {
        section.upper(): {name.upper(): value for name, value in values.items()}
        for section, values in config.items()
        if isinstance(values, dict)
    }
    fields = detectron2_fields({**upper, "PIXEL_MEAN": config["model"]["pixel_mean"]})
    thresholds = config["roi_heads"]["nms_thresh_test"]
    fields["class_nms_thresholds"] = tuple(thresholds)
    assert fields["class_nms_thresholds"] == RISING_THRESHOLDS
    fields["stem_ceil_pool"] = config["model"]["max_pool"]
    fields["channel_order"] = "rgb" if config["input"]["format"] == "BGR" else "bgr"
    return fields


def hf_selection(case: Case, index: int, found: Detections, rule: Selection) -> None:
    number, picture = case.numbers[index], case.inputs[index]
    chosen = taken_of(select(found, case.spec, case.frames(index), rule))
    assert found.attribute_probs is not None
    scores, attributes = found.attribute_probs[0, chosen.ids].max(dim=1)
    case.check(f"out.boxes{number}", chosen.boxes)
    case.check(f"out.obj_ids{number}", chosen.class_ids)
    case.check(f"out.obj_probs{number}", chosen.class_scores)
    case.check(f"out.attr_ids{number}", attributes)
    case.check(f"out.attr_probs{number}", scores)
    case.check(f"out.roi_features{number}", found.features[0, chosen.ids])
    size = torch.tensor([picture.width, picture.height] * 2)
    case.check_if_recorded(f"out.normalized_boxes{number}", chosen.boxes / size)
    missing = rule.max_boxes - len(chosen.ids)
    padded = functional.pad(chosen.boxes, (0, 0, 0, missing))[None]
    case.check_if_recorded("out.padded_boxes", padded)
    probs = functional.pad(chosen.class_scores, (0, missing))[None]
    case.check_if_recorded("out.padded_obj_probs", probs)
    case.check_if_recorded("out.padded_preds_per_image", torch.tensor([len(chosen.ids)]))
