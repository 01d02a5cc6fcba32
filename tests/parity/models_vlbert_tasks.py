"""VL-BERT's task modules and its region network, and what all its sets share."""

from typing import Any

import torch
from tests.parity.golden import expect
from tests.parity.networks import Case, check_gradients
from torch import Tensor
from torch.nn import functional as F

from vlmill.models import VLInputs
from vlmill.models.positions import find_positions
from vlmill.models.vlbert.published import links
from vlmill.models.vlbert.region_cnn import ImageRegions
from vlmill.models.vlbert.tasks import ChoiceInputs
from vlmill.train.objectives.losses import mean_cross_entropy, summed_binary_cross_entropy
from vlmill.train.tasks.vlbert_texts import SpecialIds, TaskText, vcr_text, vqa_text

BOXES = 4  # the leading columns of recorded boxes
LOSS_WEIGHTS = {"ans_loss": "ANS_LOSS_WEIGHT", "cnn_regularization_loss": "CNN_LOSS_WEIGHT"}
NEVER = -10000.0  # the reference's logits of regions that it cut away


def located(boxes: Tensor, sizes: Tensor) -> Tensor:
    """Corners and area of [..., 4] pixels as fractions of (width, height) [..., 2]."""
    corners = boxes.double() / torch.cat([sizes, sizes], dim=-1).double()
    area = (corners[..., 2:] - corners[..., :2]).prod(dim=-1, keepdim=True)
    return torch.cat([corners, area], dim=-1).float()


def real_boxes(boxes: Tensor) -> Tensor:
    """Which rows of [..., 4 or more] hold a box: corners of padding are -2, and -1 in VCR."""
    return boxes[..., :BOXES].amax(dim=-1) > -0.5


def settings(case: Case) -> dict[str, Any]:
    """The switches under which a case was recorded."""
    changes = case.golden.entry.get("overrides", {}).get(case.name, {})
    return {**case.golden.config["network"], **changes.get("network", {})}


def finish(case: Case, outputs: dict[str, Tensor], losses: dict[str, Tensor]) -> None:
    """Compares outputs, losses, their sum (each by its weight), and the gradients of that."""
    switches = settings(case)
    weights = {name: float(switches.get(key, 1.0)) for name, key in LOSS_WEIGHTS.items()}
    loss = torch.stack([weights.get(n, 1.0) * each for n, each in losses.items()]).sum()
    case.check(**outputs, **losses, loss=loss)
    if case.name != case.golden.gradient_case:
        return
    gradients = check_gradients(case, loss, links(case.model))
    for name, key in case.golden.gradient_norms.items():
        norm = gradients[name].norm() if name in gradients else torch.tensor(-1.0)
        case.results.check(key, norm.reshape(case.golden.tensors[key].shape))


def uncut(logits: Tensor, region_mask: Tensor) -> Tensor:
    """The reference cuts columns that hold no region, and writes -10000 there."""
    kept = int(region_mask.sum(dim=1).max())
    logits = logits.clone()
    logits[:, kept:] = NEVER
    return logits


def special_ids(case: Case) -> SpecialIds:
    ids = case.golden.config["tokens"]
    return SpecialIds(cls=ids["cls_id"], sep=ids["sep_id"], mask=ids["mask_id"])


def ids_of(padded: Tensor) -> list[list[int]]:
    return [row[row > 0].tolist() for row in padded]


def task_inputs(case: Case, text: TaskText) -> VLInputs:
    boxes, sizes = case["in.boxes"], case["in.im_info"][:, None, :2]
    mask = real_boxes(boxes)
    return VLInputs(
        tokens=text.tokens,
        token_mask=text.token_mask,
        segments=text.segments,
        region_features=boxes[..., BOXES:].contiguous(),
        region_locations=located(boxes[..., :BOXES], sizes.expand(-1, boxes.shape[1], -1)),
        region_mask=mask,
    )


def wider(text: Tensor, like: Tensor) -> Tensor:
    """The reference makes room for the longest of each part, in whichever texts they are."""
    return F.pad(text, [0, like.shape[-1] - text.shape[-1]])


def vqa(case: Case) -> None:
    text = vqa_text(ids_of(case["in.question"]), special_ids(case))
    assert text.answers is not None
    logits = case.model(task_inputs(case, text), text.answers, pack=False)
    loss = summed_binary_cross_entropy(logits, case["in.label"])
    outputs = {
        "label_logits": logits,
        "answer_position": text.answers,
        "text_input_ids": wider(text.tokens, case["out.text_input_ids"]),
        "text_token_type_ids": wider(text.segments, case["out.text_input_ids"]),
        "text_mask": wider(text.token_mask, case["out.text_input_ids"]),
    }
    finish(case, outputs, {"ans_loss": loss})


def refcoco(case: Case) -> None:
    """The reference's choice among all slots, padding too; ours must leave that out."""
    # [CLS] expression [SEP], as the tokenizer gives every text.
    no_choice: list[tuple[int, int]] = []
    plain = [
        ([(piece, 0) for piece in pieces], no_choice) for pieces in ids_of(case["in.expression"])
    ]
    text = vcr_text(plain, special_ids(case), one_sentence=True)
    inputs, label = task_inputs(case, text), case["in.label"]
    regions = case.model.body(inputs, pack=False).regions
    logits = uncut(case.model.candidate_logits(regions), inputs.region_mask)
    ours = case.model(inputs)
    chosen_is_real = inputs.region_mask.gather(1, ours.argmax(1, keepdim=True)).all()
    expect(chosen_is_real, f"{case.golden.folder}: {case.name}: our choice falls on padding")
    case.results.check(f"{case.name}.out.label_logits", ours.where(inputs.region_mask, logits))
    valid = label >= 0
    best = case.settle("pred_boxes", logits.argmax(1), "label_logits", is_choice=False)
    boxes = case["in.boxes"][torch.arange(len(logits)), best, :BOXES]
    scale = case["in.im_info"][:, 2:4].repeat(1, 2)
    outputs = {"label_logits": logits, "pred_boxes": boxes / scale}
    loss = F.binary_cross_entropy_with_logits(logits[valid], label[valid])
    finish(case, outputs, {"cls_loss": loss})


def choice_text(case: Case, switches: dict[str, Any]) -> TaskText:
    """Each question with each of its choices, in the order and sentences of the recording."""
    in_image = not switches.get("NO_GROUNDING")
    pairs = []
    for question, choices in zip(case["in.question"], case["in.answer_choices"], strict=True):
        for choice in choices:
            pair = pairs_of(question, in_image), pairs_of(choice, in_image)
            pairs.append(pair[::-1] if switches.get("ANSWER_FIRST") else pair)
    one_sentence = bool(switches.get("QA_ONE_SENT"))
    return vcr_text(pairs, special_ids(case), one_sentence=one_sentence)


def vcr(case: Case) -> None:
    choices, switches = case["in.answer_choices"], settings(case)
    text = choice_text(case, switches)
    shape = choices.shape[:2]
    boxes, sizes = case["in.boxes"], case["in.im_info"][:, None, :2]
    inputs = ChoiceInputs(
        tokens=text.tokens.view(*shape, -1),
        token_mask=text.token_mask.view(*shape, -1),
        segments=text.segments.view(*shape, -1),
        text_regions=text.text_regions.view(*shape, -1),
        region_features=case["in.object_features"],
        region_locations=located(boxes[..., :BOXES], sizes.expand(-1, boxes.shape[1], -1)),
        region_mask=real_boxes(boxes),
    )
    output = case.model(inputs, pack=False)
    losses = {"ans_loss": choice_loss(switches, output.answer_logits, case["in.answer_label"])}
    if switches.get("ENABLE_CNN_REG_LOSS", True):
        categories = boxes[output.images, output.regions, 5].long()
        category_loss = mean_cross_entropy(output.category_logits, categories)
        losses["cnn_regularization_loss"] = category_loss
    like = case["out.text_input_ids"]
    outputs = {
        "label_logits": output.answer_logits,
        "text_input_ids": wider(inputs.tokens, like),
        "text_mask": wider(inputs.token_mask, like),
        "text_tags": wider(inputs.text_regions, like),
        "text_token_type_ids": wider(inputs.segments, like),
    }
    finish(case, outputs, losses)


def choice_loss(switches: dict[str, Any], logits: Tensor, right: Tensor) -> Tensor:
    """Of all choices together, or of each by itself with the right ones' weight."""
    if not switches["CLASSIFIER_SIGMOID"]:
        return mean_cross_entropy(logits, right)
    target = F.one_hot(right, logits.shape[1]).float()
    weight = float(switches.get("CLASSIFIER_SIGMOID_LOSS_POSITIVE_WEIGHT", 1.0))
    weights = 1.0 + (weight - 1.0) * target
    loss = F.binary_cross_entropy_with_logits(logits, target, weight=weights)
    return loss * (weight + 1.0) / (2.0 * weight)


def pairs_of(padded: Tensor, in_image: bool) -> list[tuple[int, int]]:
    """Word pieces and their regions, row 0 for each if none is ``in_image``."""
    return [(int(i), int(tag) * in_image) for i, tag, _ in padded if i > 0]


def region_network(case: Case) -> None:
    """Each stage on what ours made before it, from the pixels on."""
    cnn, body = case.model.cnn, case.model.model
    mask = case.mask("in.box_mask", case["in.boxes"][..., 0])
    regions = ImageRegions(
        images=case["in.images"],
        sizes=case["in.im_info"][:, :2],
        boxes=case["in.boxes"],
        region_mask=mask,
        instance_masks=case.optional("in.segms"),
    )
    body4 = cnn.feature_map(regions.images)
    pooled = cnn.pool(body4, regions.boxes, find_positions(mask))
    appearance = cnn(regions.images, regions.boxes, mask, regions.instance_masks)
    case.check(
        body4=body4,
        roi_align=pooled,
        conv5=cnn.res5(pooled).mean(dim=(2, 3)),
        obj_reps_raw=appearance,
        obj_reps=body.embed_regions(appearance, regions.locations(), mask, pack=False),
    )
