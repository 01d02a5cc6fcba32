"""VLMo's recordings: pretraining, the text-only stage, VQA, NLVR2 and retrieval."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from tests.parity.golden import GoldenSet, NotComparable, expect
from tests.parity.networks import Case, compare_gradients, open_model
from tests.parity.results import Results
from torch import Tensor, nn

from vlmill.models import PixelInputs
from vlmill.models.convert.keymap import export_state
from vlmill.models.from_beit import initialise_from_beit
from vlmill.models.layers.packing import Layout, make_layout
from vlmill.models.layers.relative_position import Biases, num_image_rows
from vlmill.models.published import export_reference, load_reference, read_reference
from vlmill.models.vlmo.model import Contrast, Vlmo
from vlmill.models.vlmo.published import links
from vlmill.models.vlmo.tasks import VlmoForNlvr2, VlmoForVqa
from vlmill.train.objectives.contrast import contrast_and_matching
from vlmill.train.objectives.losses import mean_cross_entropy
from vlmill.train.optim.groups import is_trained
from vlmill.train.recipes.vlmo import vlmo_texts
from vlmill.train.tasks.retrieval.dual import compute_contrast, scaled_vectors

BEIT_WEIGHTS = "beit_weights.safetensors"
ITM_WEIGHTS = ("itm.weights_t2i", "itm.weights_i2t")
MLM_WEIGHT = 0.25  # of the released code, and in the name of the recorded loss
STAGES = "stage3_from_stage2"  # the file that says what the stage of pairs takes over
TEXT_POSITIONS = "text_embeddings.position_embeddings.weight"
PAIR_LOSSES = {"itc", "itm", "mlm"}
RESIZED_BOUND = 1e-6  # splines in double, by another routine


def vlmo(golden: GoldenSet, results: Results) -> None:
    """Any of the sets; which one the configuration's losses tell."""
    results.given("*.in.*")
    model: Any = open_model(golden)
    compare_indices(golden, results, model.encoder)
    compare = comparison_of(golden)
    compare_resized(golden, model)
    if (golden.folder / BEIT_WEIGHTS).is_file():
        compare_stages(golden, results, model)
    if (types := "token_type_embeddings_after_load") in golden.tensors:
        results.check(types, types_after_load(golden, model))
    for name in golden.cases:
        model.zero_grad()
        case = Case(name, golden, results, model)
        loss = compare(case)
        if name == golden.gradient_case:
            loss.backward()  # type: ignore[no-untyped-call]
            compare_gradients(golden, results, model, links(model))


def comparison_of(golden: GoldenSet) -> Callable[[Case], Tensor]:
    """What compares a case and gives its total loss; pretraining may leave losses out."""
    asked = {name for name, weight in golden.config["loss_names"].items() if weight}
    alone = {"textmlm": text_stage, "vqa": vqa, "nlvr2": nlvr2, "irtr": retrieval}
    if len(asked) == 1 and asked <= alone.keys():
        return alone[min(asked)]
    if "itc" in asked and asked <= PAIR_LOSSES:
        return pretraining
    raise NotComparable(
        f"{golden.folder / 'config.json'}: loss_names asks for {', '.join(sorted(asked))}; there "
        f"are comparisons for one of {', '.join(alone)}, and for itc with or without itm and mlm"
    )


def compare_indices(golden: GoldenSet, results: Results, encoder: Any) -> None:
    """Rows of the relative table for each query and key."""
    if encoder.relative is None:
        return
    rows = {
        "index.relative_position_index": encoder.image_index,
        "index.text_relative_position_index": encoder.text_index,
        "index.text_imag_relative_position_index": encoder.joint_rows(len(encoder.text_index)),
    }
    results.check_all(rows)


def compare_resized(golden: GoldenSet, model: nn.Module) -> None:
    """The source checkpoint at this set's resolution is this set's, but for the new classifier."""
    source = golden.folder / "source_weights.safetensors"
    if not source.is_file():
        return
    resized = export_reference("vlmo", open_model(golden, source))
    for name, tensor in export_reference("vlmo", model).items():
        if "classifier" not in name:
            expect(
                torch.allclose(resized[name], tensor, rtol=0.0, atol=RESIZED_BOUND),
                f"{source}: {name}, loaded at this set's resolution, is not {golden.weights}'s",
            )


def compare_stages(golden: GoldenSet, results: Results, model: Vlmo) -> None:
    """What the text stage takes from BEiT, and what the stage of pairs takes from it."""
    fresh = Vlmo(model.config)
    origins = initialise_from_beit(fresh, golden.folder / BEIT_WEIGHTS)
    taken = [name for name, origin in origins.items() if origin.names]
    begun, after = export_reference("vlmo", fresh), export_reference("vlmo", model)
    theirs = export_state({name: torch.empty(0) for name in taken}, links(model))
    config = golden.folder / "config.json"
    missing = {*after} - {*theirs}
    expect(
        missing == {*golden.config["missing_keys"]},
        f"{config}: missing_keys and what BEiT leaves new here differ in "
        f"{', '.join(sorted(missing ^ {*golden.config['missing_keys']}))}",
    )
    filled = {name: len(after[name]) for name in theirs}
    filled["relative_position_bias_table"] = num_image_rows(model.config.side)
    other = [n for n, rows in filled.items() if not torch.equal(begun[n][:rows], after[n][:rows])]
    expect(not other, f"{golden.weights}: not what BEiT gives: {', '.join(other)}")
    (stage_of_texts,) = vlmo_texts("base").stages
    weights = [name for name, _ in model.named_parameters()]
    frozen = {name for name in weights if not is_trained(name, stage_of_texts)}
    theirs_frozen = export_state({name: torch.empty(0) for name in frozen}, links(model))
    expect(
        {*theirs_frozen} == {*golden.config["frozen"]},
        f"{config}: frozen and what is frozen here differ in "
        f"{', '.join(sorted({*theirs_frozen} ^ {*golden.config['frozen']}))}",
    )
    if f"{STAGES}:truncated" not in golden.values:
        return
    pairs, table = read_reference("vlmo", after, golden.config | stage_of_pairs(golden))
    exported = export_reference("vlmo", pairs)
    cut = {name for name in after if after[name].shape != exported[name].shape}
    stage = {
        "truncated": cut,
        "loaded_unchanged": {name for names in table.loaded.values() for name in names} - cut,
        "newly_initialised": {name for names in table.missing.values() for name in names},
    }
    for kind, names in stage.items():
        key = f"{STAGES}:{kind}"
        order = golden.values[key]
        results.check(key, sorted(names, key=lambda n: (order.index(n) if n in order else -1, n)))


def stage_of_pairs(golden: GoldenSet) -> dict[str, Any]:
    """The settings of the model that takes over from the text stage, by what is new and cut.

    Its fusion experts start at the first layer that has a new one. How far texts are cut is told
    nowhere, nor does it matter to the names: one token stands for it.
    """
    new, cut = golden.values[f"{STAGES}:newly_initialised"], golden.values[f"{STAGES}:truncated"]
    fused = [int(name.split(".")[2]) for name in new if ".mlp_vl." in name]
    heads = {"itc": "itc_text_proj.", "itm": "itm_score."}
    losses = {loss: int(any(n.startswith(head) for n in new)) for loss, head in heads.items()}
    kept = [*new, *golden.values[f"{STAGES}:loaded_unchanged"], *cut]
    losses["mlm"] = int(any(name.startswith("mlm_score.") for name in kept))
    return {
        "loss_names": losses,
        "vlffn_start_layer_index": min(fused, default=golden.config["depth"]),
        "max_text_len": golden.config["max_text_len"] - int(TEXT_POSITIONS in cut),
    }


def types_after_load(golden: GoldenSet, model: nn.Module) -> Tensor:
    """The type table from a checkpoint of one image: the second image's row is made."""
    state = export_reference("vlmo", model)
    name = "token_type_embeddings.weight"
    pretrained = load_reference("vlmo", state | {name: state[name][:2]}, golden.config)
    return export_reference("vlmo", pretrained)[name]


@contextmanager
def recorded_layers(layers: nn.ModuleList) -> Iterator[list[Tensor]]:
    """Every layer's outputs, in the order in which they come."""
    outputs: list[Tensor] = []
    hooks = [layer.register_forward_hook(lambda *a: outputs.append(a[2])) for layer in layers]
    try:
        yield outputs
    finally:
        for hook in hooks:
            hook.remove()


def pretraining(case: Case) -> Tensor:
    """All outputs and the total loss of the losses asked for; negatives are the recorded ones."""
    model: Vlmo = case.model
    expect(
        model.config.first_vl_layer,
        f"{case.golden.folder / 'config.json'}: vlffn_start_layer_index is 0, with which the "
        "reference starts its second branch from the last layer's states",
    )
    weights: list[Tensor] = []

    def draw(of_images: Tensor, of_texts: Tensor) -> tuple[Tensor, Tensor]:
        weights.extend((of_images, of_texts))
        return case["in.itm_image_neg_idx"], case["in.itm_text_neg_idx"]

    batch, config = pixel_inputs(case), model.config
    masked = case["in.text_ids_mlm"] if config.mlm else None
    step = contrast_and_matching(model, batch, masked, draw, match=config.match, pack=False)
    scale, fused_scale = model.log_scale.exp(), model.fused_scale()
    assert fused_scale is not None
    text = model.encoder.embed_text(batch.tokens)
    image = model.encoder.embed_image(batch.pixels)
    outputs = {
        "text_embeds": text,
        "image_embeds": image,
        "logit_scale_exp": scale,
        "logit_vl_scale_exp": fused_scale,
    }
    layout, on_text = (
        make_layout(batch.token_mask, pack=False),
        model.encoder.text_bias(text.shape[1]),
    )
    outputs |= unimodal(model, "text", step.text, text, layout, on_text)
    layout, on_image = Layout((image.shape[0], image.shape[1])), model.encoder.image_bias()
    outputs |= unimodal(model, "image", step.image, image, layout, on_image)
    outputs |= joint(model, batch)
    outputs |= contrast_outputs(step.text, step.image, scale, fused_scale)
    outputs |= {"loss.itc": step.contrast.loss, "itc_i2t_logits": step.contrast.scores}
    total = step.contrast.loss
    if config.match:
        outputs |= dict(zip(ITM_WEIGHTS, weights, strict=True))
        outputs["itm_logits"] = step.match_logits
        outputs["itm_logits_positive"] = step.match_logits[: len(batch.tokens)]
        outputs["itm_labels"] = match_labels(len(batch.tokens)).float()
        outputs["loss.itm"] = mean_cross_entropy(step.match_logits, step.match_classes)
        total = total + outputs["loss.itm"]
    if config.mlm:
        outputs["mlm_logits"] = model.mlm_logits(step.masked_text)
        outputs["loss.mlm_times_quarter"] = MLM_WEIGHT * F.cross_entropy(
            outputs["mlm_logits"].flatten(0, 1), case["in.text_labels_mlm"].flatten()
        )
        total = total + outputs["loss.mlm_times_quarter"]
    case.check(**outputs, **{"loss.total": total})
    return total


def unimodal(
    model: Vlmo,
    name: str,
    contrast: Contrast,
    embedded: Tensor,
    layout: Layout,
    bias: Biases | None,
) -> dict[str, Tensor]:
    """Hidden states, final norm and vectors of one half of the dual encoder.

    All states come from a pass of their own: contrast computes of the last layer what it reads.
    """
    end = model.config.num_layers
    with recorded_layers(model.encoder.layers) as layers:
        model.encoder.encode_one(name, embedded, layout, bias, also_fused=True)
    assert contrast.fused is not None
    fused = {f"{name}.hidden_vl": torch.stack(layers[end:])} if layers[end:] else {}
    return fused | {
        f"{name}.hidden": torch.stack(layers[:end]),
        f"{name}.feats": model.encoder.norm(layers[end - 1]),
        f"{name}.cls_feats": contrast.unimodal,
        f"{name}.cls_vlffn_feats": contrast.fused,
    }


def joint(model: Vlmo, batch: PixelInputs) -> dict[str, Tensor]:
    """The fusion encoder on the true pairs, alone and not in the batch of four passes."""
    with recorded_layers(model.encoder.layers) as layers:
        encoded = model(batch, pack=False)
    return {
        "joint.hidden": torch.stack(layers),
        "joint.text_feats": encoded.text,
        "joint.image_feats": encoded.regions,
        "joint.raw_cls_feats": encoded.text[:, 0],
        "joint.cls_feats": encoded.pooled,
    }


def contrast_outputs(
    text: Contrast, image: Contrast, scale: Tensor, fused_scale: Tensor
) -> dict[str, Tensor]:
    """Logits and losses of both contrastive pairs."""
    assert text.fused is not None and image.fused is not None
    logits = scale * image.unimodal @ text.unimodal.T
    fused = fused_scale * image.fused @ text.fused.T
    return {
        "itc_t2i_logits": logits.T,
        "itc_vl_i2t_logits": fused,
        "loss.itc_part": symmetric(logits),
        "loss.itc_vl_part": symmetric(fused),
    }


def symmetric(logits: Tensor) -> Tensor:
    """Cross-entropy in both directions; pair b is row b's and column b's."""
    right = torch.arange(len(logits))
    return (F.cross_entropy(logits, right) + F.cross_entropy(logits.T, right)) / 2


def match_labels(pairs: int) -> Tensor:
    """True pairs, then drawn images, then drawn texts."""
    return torch.tensor([1, 0, 0]).repeat_interleave(pairs)


def pixel_inputs(case: Case) -> PixelInputs:
    """The unmasked texts with their images."""
    tokens, most = case["in.text_ids"], case.model.encoder.config.max_text_tokens
    expect(
        tokens.shape[1] == most,
        f"{case.golden.folder}: {case.name}.in.text_ids is {tokens.shape[1]} wide, max_text_len "
        f"{most}; the reference takes that many leading tokens for text",
    )
    return PixelInputs(
        tokens=tokens,
        token_mask=case["in.text_masks"].bool(),
        pixels=case["in.image"],
    )


def text_stage(case: Case) -> Tensor:
    """Masked words of texts alone."""
    model: Vlmo = case.model
    states = model.encode_text(case["in.text_ids_mlm"], case["in.text_masks"].bool(), pack=False)
    logits = model.mlm_logits(states)
    loss = F.cross_entropy(logits.flatten(0, 1), case["in.text_labels_mlm"].flatten())
    case.check(text_feats=states, mlm_logits=logits, loss=loss)
    return loss


def vqa(case: Case) -> Tensor:
    """Logits, loss times the number of answers, and the score of the best answer."""
    model: VlmoForVqa = case.model
    targets, pooled = case["in.vqa_targets"], []
    hook = model.encoder.pooler.register_forward_hook(lambda *a: pooled.append(a[2]))
    logits = model(pixel_inputs(case), pack=False)
    hook.remove()
    loss = F.binary_cross_entropy_with_logits(logits, targets) * targets.shape[1]
    best = case.settle("vqa_score", logits.argmax(1), "vqa_logits", is_choice=False)
    score = targets.gather(1, best[:, None]).mean()
    case.check(cls_feats=pooled[0], vqa_logits=logits, loss=loss, vqa_score=score)
    return loss


def nlvr2(case: Case) -> Tensor:
    """Logits and loss."""
    model: VlmoForNlvr2 = case.model
    pixels = torch.stack([case["in.image_0"], case["in.image_1"]], dim=1)
    logits = model(case["in.text_ids"], case["in.text_masks"].bool(), pixels, pack=False)
    loss = F.cross_entropy(logits, case["in.answers"])
    case.check(nlvr2_logits=logits, loss=loss)
    return loss


def retrieval(case: Case) -> Tensor:
    """The dual encoder's vectors, their products, and the loss."""
    model: Vlmo = case.model
    text = model.text_vectors(case["in.text_ids"], case["in.text_masks"].bool(), pack=False)
    image = model.image_vectors(case["in.image"])
    vectors = scaled_vectors(model, text, image)
    logits, loss = vectors[:, 1] @ vectors[:, 0].T, compute_contrast(vectors)
    case.check(text_vec=text, image_vec=image, loss=loss)
    case.check(i2t_logits=logits, t2i_logits=logits.T)
    return loss
