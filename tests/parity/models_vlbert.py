"""VL-BERT's sets: geometry, BERT's weights, encoder and pretraining; the tasks are beside."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from tests.parity.golden import GoldenSet, NotComparable, expect, read_tensors
from tests.parity.models_vlbert_tasks import (
    BOXES,
    finish,
    located,
    real_boxes,
    refcoco,
    region_network,
    settings,
    uncut,
    vcr,
    vqa,
)
from tests.parity.networks import Case, open_cases, open_model
from tests.parity.results import Results
from tests.parity.vl_cases import on_grid
from torch import Tensor
from torch.nn import functional as F

from vlmill.models import VLInputs
from vlmill.models.from_bert import initialise_from_bert
from vlmill.models.layers.packing import compact
from vlmill.models.outputs import Encoded
from vlmill.models.published import FAMILIES, export_reference
from vlmill.models.vlbert.encoder import box_numbers, geometry_embedding
from vlmill.train.objectives.losses import (
    IGNORED,
    are_whole,
    mean_cross_entropy,
    mean_soft_cross_entropy,
    soft_cross_entropies,
)


def vlbert(golden: GoldenSet, results: Results) -> None:
    """Every set of family ``vl-bert``: without a network by its kind, else by the class."""
    if golden.kind in WITHOUT_MODEL:
        WITHOUT_MODEL[golden.kind](golden, results)
        return
    kind = str(golden.config["class"])
    compare = next((c for name, c in WITH_MODEL.items() if kind.startswith(name)), None)
    if compare is None:
        raise NotComparable(
            f"{golden.folder / 'config.json'}: class is {kind!r}, there are comparisons for "
            f"{', '.join(WITH_MODEL)}"
        )
    for case in (open_cases if is_whole(golden, kind) else open_part)(golden, results):
        compare(case)


def is_whole(golden: GoldenSet, kind: str) -> bool:
    """Whether the weights are of every part that our network has."""
    if not kind.split()[-1].startswith("ResNet"):
        return False
    network = golden.config["network"]
    return not kind.startswith("vcr") or bool(network.get("ENABLE_CNN_REG_LOSS", True))


def open_part(golden: GoldenSet, results: Results) -> list[Case]:
    """The cases of a part of the network, saved by itself; ours has what is around it, too."""
    model = open_model(golden)
    recorded = FAMILIES[golden.family].prepare(read_tensors(golden.weights))
    exported = export_reference(golden.family, model)
    without = sorted(recorded.keys() - exported.keys())
    expect(not without, f"{golden.weights}: our network has no {', '.join(without)}")
    changed = [name for name in recorded if not torch.equal(recorded[name], exported[name])]
    expect(not changed, f"{golden.weights}: exported with other values: {', '.join(changed)}")
    return [Case(name, golden, results, model) for name in golden.cases]


def coordinates(golden: GoldenSet, results: Results) -> None:
    """Geometry of boxes, at two numbers of wavelengths."""
    for case in golden.cases:
        boxes, dim = golden.tensors[f"{case}.in.boxes"], golden.tensors[f"{case}.in.dim"]
        numbers = box_numbers(located(boxes[:, :4], boxes[:, 4:]))
        flat = geometry_embedding(numbers, int(dim))
        results.check(f"{case}.out.flat", flat)
        results.check(
            f"{case}.out.embedding", flat.view(len(boxes), numbers.shape[-1], 2 * int(dim))
        )


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
            case["in.text_mask"].bool(),
            case["in.text_visual_embeddings"],
            objects[..., width:],
            objects[..., :width],
            case["in.object_mask"].bool(),
            segments=case["in.text_token_type_ids"],
            pack=False,
        )
    )
    return states, encoded


def encoder(case: Case) -> None:
    states, encoded = run_elements(case)
    text, regions = case["in.text_mask"].bool(), case["in.object_mask"].bool()
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
    )
    if "out.relationship_logits" in case:
        case.check(relationship_logits=model.match_logits(encoded.pooled))


def pretraining_inputs(case: Case) -> VLInputs:
    """Captions and, below them, texts alone."""
    tokens = stacked([case["in.text"], *texts_alone(case, "text")], 0)
    boxes, sizes = case["in.boxes"], case["in.im_info"][:, None, :2]
    mask = real_boxes(boxes)
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


def texts_alone(case: Case, name: str) -> list[Tensor]:
    """A recorded input of each corpus without images: ``aux0``, ``aux1``, ..."""
    parts: list[Tensor] = []
    while (key := f"in.aux{len(parts)}_{name}") in case:
        parts.append(case[key])
    return parts


def stacked(parts: list[Tensor], padding: int) -> Tensor:
    """Rows of several widths below each other."""
    width = max(part.shape[1] for part in parts)
    return torch.cat([F.pad(p, [0, width - p.shape[1]], value=padding) for p in parts])


def pretraining(case: Case) -> None:
    model, inputs = case.model, pretraining_inputs(case)
    captions = len(case["in.text"])
    states = States(model)
    encoded = states.run(lambda: model(inputs, pack=False))
    outputs, losses = region_outputs(case, encoded.regions[:captions], inputs)
    if "out.relationship_logits" in case:
        outputs["relationship_logits"] = matching = model.match_logits(encoded.pooled[:captions])
        losses["relationship_loss"] = mean_cross_entropy(matching, case["in.relationship_label"])
    if "out.obj_reps" in case:
        outputs["obj_reps"] = model.embed_regions(
            inputs.region_features,
            inputs.region_locations,
            inputs.region_mask,
            inputs.masked_regions,
            pack=False,
        )
    word_outputs, word_losses = word_parts(case, states.given[-1][:, : inputs.tokens.shape[1]])
    finish(case, outputs | word_outputs, losses | word_losses)


Parts = tuple[dict[str, Tensor], dict[str, Tensor]]  # outputs and losses


def region_outputs(case: Case, hidden: Tensor, inputs: VLInputs) -> Parts:
    """Of masked regions; a loss that is off is 0."""
    if case.model.class_head is None:
        return {}, {"mvrc_loss": hidden.new_zeros(())}
    classes = on_grid(case.model.region_class_logits, hidden)
    outputs = {"mvrc_logits": uncut(classes, inputs.region_mask[: len(hidden)])}
    if "out.mvrc_label" in case:
        outputs["mvrc_label"] = case["in.mvrc_labels"]
    return outputs, {"mvrc_loss": region_loss(case, classes)}


def word_parts(case: Case, hidden: Tensor) -> Parts:
    """Of masked words: captions', or captions' and those of texts alone; off it is 0."""
    if case.model.mlm_head is None:
        return {}, {"mlm_loss": hidden.new_zeros(())}
    words = on_grid(case.model.mlm_logits, hidden)
    if "out.mlm_logits" in case:
        return {"mlm_logits": words}, {"mlm_loss": word_loss(case, words, case["in.mlm_labels"])}
    captions = len(case["in.text"])
    outputs, losses = {}, {}
    labels = stacked([case["in.mlm_labels"], *texts_alone(case, "mlm_labels")], -1)
    for key, rows in (("wvc", slice(captions)), ("aux", slice(captions, None))):
        outputs[f"mlm_label_{key}"] = labels[rows]
        outputs[f"mlm_logits_{key}"] = words[rows]
        losses[f"mlm_loss_{key}"] = word_loss(case, words[rows], labels[rows])
    return outputs, losses


def word_loss(case: Case, logits: Tensor, labels: Tensor) -> Tensor:
    """Mean over all labelled words, or over samples of their means.

    Without any, the reference's mean over all words is 0 / 0, and ours 0.
    """
    labelled = labels != -1
    if not (labelled.any() or settings(case).get("MLM_LOSS_NORM_IN_BATCH_FIRST")):
        return logits.new_tensor(float("nan"))
    labels = labels.masked_fill(~labelled, IGNORED)
    if not settings(case).get("MLM_LOSS_NORM_IN_BATCH_FIRST"):
        return mean_cross_entropy(logits.flatten(0, 1), labels.flatten())
    losses = F.cross_entropy(logits.transpose(1, 2), labels, ignore_index=IGNORED, reduction="none")
    return mean_of_samples(losses, labelled)


def region_loss(case: Case, logits: Tensor) -> Tensor:
    """The same of cross-entropies with the detector's distributions."""
    flat, target = logits.flatten(0, 1), case["in.mvrc_labels"].flatten(0, 1)
    if not settings(case).get("MVRC_LOSS_NORM_IN_BATCH_FIRST"):
        return mean_soft_cross_entropy(flat, target)
    losses, counted = soft_cross_entropies(flat, target), are_whole(target)
    return mean_of_samples(losses.view(logits.shape[:2]), counted.view(logits.shape[:2]))


def mean_of_samples(losses: Tensor, counted: Tensor) -> Tensor:
    """A mean of losses [B, N] for each sample, then over samples, with the code's 1e-4 in both.

    The code's other reduction, which no published setting turns on, and no run of ours has.
    """
    number = counted.sum(-1)
    means = (losses * counted).sum(-1) / (number + 1e-4)
    return means.sum() / ((number > 0).sum() + 1e-4)


WITHOUT_MODEL: dict[str, Callable[[GoldenSet, Results], None]] = {
    "operators": coordinates,
    "initialisation": initialisation,
}
# By the beginning of the class's name, the longest of several that fit first.
WITH_MODEL: dict[str, Callable[[Case], None]] = {
    "VisualLinguisticBertForPretraining": encoder_with_heads,
    "VisualLinguisticBert": encoder,
    "ResNetVLBERTForPretraining": pretraining,
    "vqa ResNetVLBERT": vqa,
    "refcoco ResNetVLBERT": refcoco,
    "vcr ResNetVLBERT": vcr,
    "FastRCNN": region_network,
}
