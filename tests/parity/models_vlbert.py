"""VL-BERT's sets: geometry, encoder, pretraining, tasks, the region network, BERT's weights."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from safetensors.torch import load_file
from tests.parity.golden import GoldenSet, Results
from tests.parity.vl_cases import Case, check_gradients, on_grid, open_cases
from torch import Tensor
from torch.nn import functional as F

from vlmill.models import VLInputs
from vlmill.models.compaction import compact
from vlmill.models.initialise import initialise_from_bert
from vlmill.models.interface import Encoded
from vlmill.models.reference import FAMILIES, export_reference, load_reference
from vlmill.models.reference.vlbert import links
from vlmill.models.vlbert_end_to_end import PictureRegions
from vlmill.models.vlbert_regions import box_numbers, geometry_embedding
from vlmill.models.vlbert_tasks import ChoiceInputs
from vlmill.models.vlbert_text import SpecialIds, TaskText, expression_text, vcr_text, vqa_text

BOXES = 4  # the leading columns of recorded boxes
NEVER = -10000.0  # the reference's logits of regions that it cut away


def vlbert(golden: GoldenSet, results: Results) -> None:
    """Every set of family ``vl-bert``."""
    name = golden.name.split("/")[1]
    if name in ALONE:
        ALONE[name](golden, results)
        return
    kind = golden.config["class"]
    is_whole = kind.split()[-1].startswith("ResNet")
    for case in (open_cases if is_whole else open_part)(golden, results):
        WITH_MODEL[kind](case)


def open_part(golden: GoldenSet, results: Results) -> list[Case]:
    """The same of a part of the network, saved by itself; ours has what is around it, too."""
    model = load_reference(golden.family, golden.weights, golden.config)
    recorded = FAMILIES[golden.family].prepare(load_file(golden.weights))
    exported = export_reference(golden.family, model)
    changed = [name for name in recorded if not torch.equal(recorded[name], exported[name])]
    assert not changed, f"exported with other values: {', '.join(changed)}"
    return [Case(name, golden, results, model) for name in golden.cases]


def coordinates(golden: GoldenSet, results: Results) -> None:
    """Geometry of boxes, at two numbers of wavelengths."""
    for case in golden.cases:
        boxes, dim = golden.tensors[f"{case}.in.boxes"], golden.tensors[f"{case}.in.dim"]
        numbers = box_numbers(located(boxes[:, :4], boxes[:, 4:]))
        flat = geometry_embedding(numbers, int(dim))
        results.check(f"{case}.out.flat", flat)
        results.check(f"{case}.out.embedding", flat.view(len(boxes), 4, -1))


def located(boxes: Tensor, sizes: Tensor) -> Tensor:
    """Corners and area of [..., 4] pixels as fractions of (width, height) [..., 2]."""
    corners = boxes.double() / torch.cat([sizes, sizes], dim=-1).double()
    area = (corners[..., 2:] - corners[..., :2]).prod(dim=-1, keepdim=True)
    return torch.cat([corners, area], dim=-1).float()


def initialisation(golden: GoldenSet, results: Results) -> None:
    """A model from BERT's file: what that file decides."""
    family = FAMILIES[golden.family]
    config = {"class": "VisualLinguisticBertForPretraining", "heads": ["relationship"]}
    for case in golden.cases:
        prefix = f"{case}.in."
        given = {k.removeprefix(prefix): v for k, v in golden.tensors.items() if prefix in k}
        model = family.build(family.configure(golden.config | config))
        initialise_from_bert(model, given)
        ours = export_reference(golden.family, model)
        for key in golden.tensors:
            name, _, rows = key.removeprefix(f"{case}.out.").partition("[")
            if not key.startswith(prefix):
                tensor = ours[f"vlbert.{name}"]
                results.check(key, tensor[: int(rows.strip("]").split(":")[1])] if rows else tensor)


@dataclass
class States:
    """What a model's layers were fed and gave, and their layout, while it ran."""

    model: Any
    fed: list[Tensor] = field(default_factory=list)
    given: list[Tensor] = field(default_factory=list)

    def run(self, call: Callable[[], Encoded]) -> Encoded:
        def note(_: Any, args: tuple[Tensor, ...], output: Tensor) -> None:
            self.fed.append(args[0])
            self.given.append(output)

        handles = [layer.register_forward_hook(note) for layer in self.model.layers]
        try:
            return call()
        finally:
            for handle in handles:
                handle.remove()


def run_elements(case: Case) -> tuple[States, Encoded]:
    """The encoder on recorded tokens and visual vectors, padding included."""
    model, objects = case.model, case["in.object_vl_embeddings"]
    width = model.config.vector_width
    states = States(model)
    encoded = states.run(
        lambda: model.encode_elements(
            case["in.text_input_ids"],
            case["in.text_mask"],
            case["in.text_visual_embeddings"],
            objects[..., width:],
            objects[..., :width],
            case["in.object_mask"],
            segments=case["in.text_token_type_ids"],
            pack=False,
        )
    )
    return states, encoded


def encoder(case: Case) -> None:
    states, encoded = run_elements(case)
    text, regions = case["in.text_mask"], case["in.object_mask"]
    real = torch.cat([text, regions, torch.ones(len(text), 1, dtype=torch.bool)], dim=1)
    packing = compact(real, pack=False)
    cells = torch.arange(packing.layout.shape[1])
    text_end = text.sum(1, keepdim=True)
    region_end = text_end + regions.sum(1, keepdim=True)
    case.check(
        attention_mask=cells <= region_end,
        text_positions=cells < text_end,
        object_positions=(cells >= text_end) & (cells < region_end),
        embedding_output=states.fed[0],
        encoded_layers=torch.stack(states.given),
        text_output=states.given[-1][:, : text.shape[1]],
        object_output=encoded.regions,
    )
    if "out.pooled_output" in case:
        case.check(pooled_output=encoded.pooled)


def encoder_with_heads(case: Case) -> None:
    states, encoded = run_elements(case)
    model, last = case.model, states.given[-1]
    num_tokens = case["in.text_mask"].shape[1]
    case.check(
        mlm_logits=on_grid(model.mlm_logits, last[:, :num_tokens]),
        mvrc_logits=on_grid(model.region_class_logits, encoded.regions),
        relationship_logits=model.match_logits(encoded.pooled),
    )


def pretraining_inputs(case: Case) -> VLInputs:
    """Captions and, below them, texts alone."""
    texts = [case["in.text"]]
    while f"in.aux{len(texts) - 1}_text" in case:
        texts.append(case[f"in.aux{len(texts) - 1}_text"])
    tokens = stacked(texts, 0)
    boxes, sizes = case["in.boxes"], case["in.im_info"][:, None, :2]
    mask = boxes[..., 0] > -1.5
    missing = len(tokens) - len(boxes)

    def below(tensor: Tensor) -> Tensor:
        return F.pad(tensor, [0, 0] * (tensor.ndim - 1) + [0, missing])

    locations = located(boxes[..., :BOXES], sizes.expand(-1, boxes.shape[1], -1))
    return VLInputs(
        tokens=tokens,
        token_mask=tokens > 0,
        region_features=below(boxes[..., BOXES:].contiguous()),
        region_locations=below(locations),
        region_mask=below(mask),
        masked_regions=below((case["in.mvrc_ops"] == 1) & mask),
    )


def stacked(parts: list[Tensor], padding: int) -> Tensor:
    """Rows of several widths below each other."""
    width = max(part.shape[1] for part in parts)
    return torch.cat([F.pad(p, [0, width - p.shape[1]], value=padding) for p in parts])


def pretraining(case: Case) -> None:
    model, inputs = case.model, pretraining_inputs(case)
    captions = len(case["in.text"])
    states = States(model)
    encoded = states.run(lambda: model(inputs, pack=False))
    words = on_grid(model.mlm_logits, states.given[-1][:, : inputs.tokens.shape[1]])
    classes = on_grid(model.region_class_logits, encoded.regions[:captions])
    losses = {"mvrc_loss": region_loss(case, classes)}
    outputs = {"mvrc_logits": uncut(case, classes, inputs.region_mask[:captions])}
    if "out.relationship_logits" in case:
        outputs["relationship_logits"] = matching = model.match_logits(encoded.pooled)
        losses["relationship_loss"] = F.cross_entropy(matching, case["in.relationship_label"])
    if "out.obj_reps" in case:
        outputs["obj_reps"] = model.embed_regions(
            inputs.region_features,
            inputs.region_locations,
            inputs.region_mask,
            inputs.masked_regions,
            pack=False,
        )
    if "out.mlm_logits" in case:
        outputs["mlm_logits"] = words
        losses["mlm_loss"] = word_loss(case, words, case["in.mlm_labels"])
    else:
        texts = [case[f"in.aux{n}_mlm_labels"] for n in range(2) if f"in.aux{n}_text" in case]
        labels = stacked([case["in.mlm_labels"], *texts], -1)
        for key, rows in (("wvc", slice(captions)), ("aux", slice(captions, None))):
            outputs[f"mlm_label_{key}"] = labels[rows]
            outputs[f"mlm_logits_{key}"] = words[rows]
            losses[f"mlm_loss_{key}"] = word_loss(case, words[rows], labels[rows])
        outputs["mvrc_label"] = case["in.mvrc_labels"]
    finish(case, outputs, losses)


def settings(case: Case) -> dict[str, Any]:
    """The switches under which a case was recorded."""
    changes = case.golden.entry.get("overrides", {}).get(case.name, {})
    return {**case.golden.config["network"], **changes.get("network", {})}


def uncut(case: Case, logits: Tensor, region_mask: Tensor) -> Tensor:
    """The reference cuts columns that hold no region, and writes -10000 there."""
    kept = int(region_mask.sum(dim=1).max())
    logits = logits.clone()
    logits[:, kept:] = NEVER
    return logits


def word_loss(case: Case, logits: Tensor, labels: Tensor) -> Tensor:
    """Mean over all labelled words, or over samples of their means."""
    labelled = labels != -1
    losses = F.cross_entropy(
        logits.flatten(0, 1), labels.flatten(), ignore_index=-1, reduction="none"
    ).view_as(labels)
    return reduced(losses, labelled, settings(case)["MLM_LOSS_NORM_IN_BATCH_FIRST"])


def region_loss(case: Case, logits: Tensor) -> Tensor:
    """The same of cross-entropies with the detector's distributions."""
    target = case["in.mvrc_labels"]
    labelled = (target.sum(-1) - 1).abs() < 0.1
    losses = -(target * logits.log_softmax(-1)).sum(-1).masked_fill(~labelled, 0.0)
    return reduced(losses, labelled, settings(case)["MVRC_LOSS_NORM_IN_BATCH_FIRST"])


def reduced(losses: Tensor, labelled: Tensor, samples_first: bool) -> Tensor:
    counts = labelled.sum(1)
    if not samples_first:
        return losses.sum() / counts.sum()
    of_samples = losses.sum(1) / (counts + 1e-4)
    return of_samples.sum() / ((counts != 0).sum() + 1e-4)


def finish(case: Case, outputs: dict[str, Tensor], losses: dict[str, Tensor]) -> None:
    """Compares outputs, losses, their sum, and the gradients of that."""
    loss = torch.stack(list(losses.values())).sum()
    case.check(**outputs, **losses, loss=loss)
    if not any(key.split(":")[-1].startswith(case.name) for key in case.golden.gradients.values()):
        return
    gradients = check_gradients(case, loss, links(case.model))
    for name, key in case.golden.gradient_norms.items():
        norm = gradients[name].norm() if name in gradients else torch.tensor(-1.0)
        case.results.check(key, norm.reshape(case.golden.tensors[key].shape))


def special_ids(case: Case) -> SpecialIds:
    ids = case.golden.config["tokens"]
    return SpecialIds(cls=ids["cls_id"], sep=ids["sep_id"], mask=ids["mask_id"])


def ids_of(padded: Tensor) -> list[list[int]]:
    return [row[row > 0].tolist() for row in padded]


def task_inputs(case: Case, text: TaskText) -> VLInputs:
    boxes, sizes = case["in.boxes"], case["in.im_info"][:, None, :2]
    mask = boxes[..., 0] > -1.5
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
    label = case["in.label"]
    loss = F.binary_cross_entropy_with_logits(logits, label) * label.shape[1]
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
    text = expression_text(ids_of(case["in.expression"]), special_ids(case))
    inputs, label = task_inputs(case, text), case["in.label"]
    logits = case.model.candidate_logits(case.model.body(inputs, pack=False).regions)
    ours = case.model(inputs)
    assert inputs.region_mask.gather(1, ours.argmax(1, keepdim=True)).all()
    torch.testing.assert_close(
        ours[inputs.region_mask], logits[inputs.region_mask], atol=1e-5, rtol=1e-5
    )
    valid = label >= 0
    best = case["in.boxes"][torch.arange(len(logits)), logits.argmax(1), :BOXES]
    scale = case["in.im_info"][:, 2:4].repeat(1, 2)
    outputs = {"label_logits": logits, "pred_boxes": best / scale}
    loss = F.binary_cross_entropy_with_logits(logits[valid], label[valid])
    finish(case, outputs, {"cls_loss": loss})


def vcr(case: Case) -> None:
    questions, choices = case["in.question"], case["in.answer_choices"]
    pieces = [pairs_of(row) for row in questions]
    pairs = [(pieces[n], pairs_of(c)) for n, four in enumerate(choices) for c in four]
    text = vcr_text(pairs, special_ids(case))
    shape = choices.shape[:2]
    boxes, sizes = case["in.boxes"], case["in.im_info"][:, None, :2]
    inputs = ChoiceInputs(
        tokens=text.tokens.view(*shape, -1),
        token_mask=text.token_mask.view(*shape, -1),
        segments=text.segments.view(*shape, -1),
        text_regions=text.text_regions.view(*shape, -1),
        region_features=case["in.object_features"],
        region_locations=located(boxes[..., :BOXES], sizes.expand(-1, boxes.shape[1], -1)),
        region_mask=boxes[..., 3] > -0.5,
    )
    output = case.model(inputs, pack=False)
    categories = boxes[output.pictures, output.regions, 5].long()
    right, switches = case["in.answer_label"], settings(case)
    answer_loss = F.cross_entropy(output.answer_logits, right)
    if switches["CLASSIFIER_SIGMOID"]:
        wanted = F.one_hot(right, shape[1]).float()
        answer_loss = F.binary_cross_entropy_with_logits(output.answer_logits, wanted)
    losses = {
        "ans_loss": answer_loss,
        "cnn_regularization_loss": F.cross_entropy(output.category_logits, categories),
    }
    like = case["out.text_input_ids"]
    outputs = {
        "label_logits": output.answer_logits,
        "text_input_ids": wider(inputs.tokens, like),
        "text_mask": wider(inputs.token_mask, like),
        "text_tags": wider(inputs.text_regions, like),
        "text_token_type_ids": wider(inputs.segments, like),
    }
    finish(case, outputs, losses)


def pairs_of(padded: Tensor) -> list[tuple[int, int]]:
    return [(int(i), int(tag)) for i, tag, _ in padded if i > 0]


def region_network(case: Case) -> None:
    """Each stage on what ours made before it, from the pixels on."""
    cnn, body = case.model.cnn, case.model.model
    mask = case.mask("in.box_mask", case["in.boxes"][..., 0])
    regions = PictureRegions(
        pictures=case["in.images"],
        sizes=case["in.im_info"][:, :2],
        boxes=case["in.boxes"],
        region_mask=mask,
        instance_masks=case.golden.tensors.get(f"{case.name}.in.segms"),
    )
    body4 = cnn.feature_map(regions.pictures)
    pooled = cnn.pool(body4, regions.boxes, mask)
    appearance = cnn(regions.pictures, regions.boxes, mask, regions.instance_masks)
    case.check(
        body4=body4,
        roi_align=pooled,
        conv5=cnn.res5(pooled).mean(dim=(2, 3)),
        obj_reps_raw=appearance,
        obj_reps=body.embed_regions(appearance, regions.locations(), mask, pack=False),
    )


ALONE: dict[str, Callable[[GoldenSet, Results], None]] = {
    "coordinate_embeddings": coordinates,
    "bert_initialisation": initialisation,
}
WITH_MODEL: dict[str, Callable[[Case], None]] = {
    "VisualLinguisticBert": encoder,
    "VisualLinguisticBertForPretraining": encoder_with_heads,
    "ResNetVLBERTForPretraining": pretraining,
    "ResNetVLBERTForPretrainingMultitask": pretraining,
    "vqa ResNetVLBERT": vqa,
    "refcoco ResNetVLBERT": refcoco,
    "vcr ResNetVLBERT": vcr,
    "FastRCNN with narrowed ResNet (stage 2-4 + RoI conv5)": region_network,
}
