"""VLMo's recordings: pretraining, the text-only stage, VQA, NLVR2 and retrieval."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from tests.parity.golden import GoldenSet, Results
from torch import Tensor, nn

from vlmill.models import PixelInputs
from vlmill.models.convert.keymap import export_state
from vlmill.models.from_beit import initialise_from_beit
from vlmill.models.layers.packing import Layout, layout_of
from vlmill.models.layers.relative_position import Biases, num_image_rows
from vlmill.models.published import export_reference, load_reference, read_reference
from vlmill.models.vlmo.model import Contrast, Vlmo
from vlmill.models.vlmo.published import links
from vlmill.models.vlmo.tasks import VlmoForNlvr2, VlmoForVqa
from vlmill.train.objectives.contrast import contrast_and_matching, matching_loss
from vlmill.train.optim.groups import is_trained
from vlmill.train.recipes.vlmo import vlmo_texts_base

# The recordings' model of pairs, which takes over from the text stage.
STAGE_OF_PAIRS = {"vlffn_start_layer_index": 3, "max_text_len": 10}
BEIT_WEIGHTS = "beit_weights.safetensors"
ITM_WEIGHTS, MLM_WEIGHT = ("itm.weights_t2i", "itm.weights_i2t"), 0.25


def vlmo(golden: GoldenSet, results: Results) -> None:
    """Any of the sets; which one the configuration's losses tell."""
    results.given("*.in.*")
    model: Any = load_reference("vlmo", golden.weights, golden.config)
    compare_indices(golden, results, model.encoder)
    asked = {name for name, weight in golden.config["loss_names"].items() if weight}
    compare: Any = {
        frozenset({"itm", "itc", "mlm"}): pretraining,
        frozenset({"textmlm"}): text_stage,
        frozenset({"vqa"}): vqa,
        frozenset({"nlvr2"}): nlvr2,
        frozenset({"irtr"}): retrieval,
    }[frozenset(asked)]
    compare_resized(golden, model)
    if (golden.folder / BEIT_WEIGHTS).is_file():
        compare_stages(golden, results, model)
    if (types := "token_type_embeddings_after_load") in golden.tensors:
        results.check(types, types_after_load(golden, model))
    for case in golden.cases:
        model.zero_grad()
        inputs = {
            key.removeprefix(f"{case}.in."): value
            for key, value in golden.tensors.items()
            if key.startswith(f"{case}.in.")
        }
        outputs, loss = compare(model, inputs)
        results.check_all({f"{case}.out.{name}": value for name, value in outputs.items()})
        if case == "case0" and golden.gradients:
            loss.backward()
            compare_gradients(golden, results, model)


def compare_indices(golden: GoldenSet, results: Results, encoder: Any) -> None:
    """Rows of the relative table for each query and key."""
    if encoder.relative is None:
        return
    rows = {
        "index.relative_position_index": encoder.image_index,
        "index.text_relative_position_index": encoder.text_index,
        "index.text_imag_relative_position_index": encoder.joint_rows(len(encoder.text_index)),
    }
    results.check_all({key: value for key, value in rows.items() if key in golden.tensors})


def compare_resized(golden: GoldenSet, model: nn.Module) -> None:
    """The source checkpoint at this set's resolution is this set's, but for the new classifier."""
    source = golden.folder / "source_weights.safetensors"
    if not source.is_file():
        return
    resized = export_reference("vlmo", load_reference("vlmo", source, golden.config))
    for name, tensor in export_reference("vlmo", model).items():
        if "classifier" not in name:
            torch.testing.assert_close(resized[name], tensor, rtol=0.0, atol=1e-6)


def compare_stages(golden: GoldenSet, results: Results, model: Vlmo) -> None:
    """What the text stage takes from BEiT, and what the stage of pairs takes from it."""
    fresh = Vlmo(model.config)
    origins = initialise_from_beit(fresh, golden.folder / BEIT_WEIGHTS)
    taken = [name for name, origin in origins.items() if origin.names]
    begun, after = export_reference("vlmo", fresh), export_reference("vlmo", model)
    theirs = export_state({name: torch.empty(0) for name in taken}, links(model))
    missing = {*after} - {*theirs}
    assert missing == {*golden.config["missing_keys"]}
    filled = {name: len(after[name]) for name in theirs}
    filled["relative_position_bias_table"] = num_image_rows(model.config.side)
    assert all(torch.equal(begun[n][:rows], after[n][:rows]) for n, rows in filled.items())
    (stage_of_texts,) = vlmo_texts_base().stages
    weights = [name for name, _ in model.named_parameters()]
    frozen = {name for name in weights if not is_trained(name, stage_of_texts.trained)}
    names = export_state({name: torch.empty(0) for name in frozen}, links(model))
    assert {*names} == {*golden.config["frozen"]}
    changes = {"loss_names": {"itc": 1, "itm": 1, "mlm": 1}, **STAGE_OF_PAIRS}
    pairs, table = read_reference("vlmo", after, golden.config | changes)
    exported = export_reference("vlmo", pairs)
    cut = {name for name in after if after[name].shape != exported[name].shape}
    stage = {
        "truncated": cut,
        "loaded_unchanged": {name for names in table.loaded.values() for name in names} - cut,
        "newly_initialised": {name for names in table.missing.values() for name in names},
    }
    for kind, found in stage.items():
        key = f"stage3_from_stage2:{kind}"
        order = golden.values[key]
        results.check(key, sorted(found, key=lambda n: (order.index(n) if n in order else -1, n)))


def types_after_load(golden: GoldenSet, model: nn.Module) -> Tensor:
    """The type table from a checkpoint of one image: the second image's row is made."""
    state = export_reference("vlmo", model)
    name = "token_type_embeddings.weight"
    pretrained = load_reference("vlmo", state | {name: state[name][:2]}, golden.config)
    return export_reference("vlmo", pretrained)[name]


def compare_gradients(golden: GoldenSet, results: Results, model: nn.Module) -> None:
    """Under the reference's names; no gradient where none was recorded."""
    ours = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    exported = export_state(ours, links(model))
    assert exported.keys() == golden.gradients.keys()
    for name, key in golden.gradients.items():
        results.check(key, exported[name])


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


def pretraining(model: Vlmo, inputs: dict[str, Tensor]) -> tuple[dict[str, Tensor], Tensor]:
    """All outputs and the total loss; negatives are the recorded ones."""
    weights: list[Tensor] = []

    def draw(of_images: Tensor, of_texts: Tensor) -> tuple[Tensor, Tensor]:
        weights.extend((of_images, of_texts))
        return inputs["itm_image_neg_idx"], inputs["itm_text_neg_idx"]

    batch = pixel_inputs(inputs, inputs["image"])
    made = contrast_and_matching(model, batch, inputs["text_ids_mlm"], draw, pack=False)
    scale, fused_scale = model.log_scale.exp(), model.fused_scale()
    assert fused_scale is not None
    text = model.encoder.embed_text(batch.tokens)
    image = model.encoder.embed_image(batch.pixels)
    outputs = {
        "text_embeds": text,
        "image_embeds": image,
        "logit_scale_exp": scale,
        "logit_vl_scale_exp": fused_scale,
        "itm_logits": made.match_logits,
        "itm_logits_positive": made.match_logits[: len(batch.tokens)],
        "itm_labels": match_labels(len(batch.tokens)).float(),
    }
    outputs |= dict(zip(ITM_WEIGHTS, weights, strict=True))
    on_text = model.encoder.text_bias(text.shape[1])
    outputs |= unimodal(
        model, "text", made.text, text, layout_of(batch.token_mask, pack=False), on_text
    )
    on_image = model.encoder.image_bias()
    outputs |= unimodal(
        model, "image", made.image, image, Layout((image.shape[0], image.shape[1])), on_image
    )
    outputs |= joint(model, batch)
    outputs["mlm_logits"] = model.mlm_logits(made.masked_text)
    outputs |= contrast_outputs(made.text, made.image, scale, fused_scale)
    outputs |= {"loss.itc": made.contrast.loss, "itc_i2t_logits": made.contrast.scores}
    mlm = MLM_WEIGHT * F.cross_entropy(
        outputs["mlm_logits"].flatten(0, 1), inputs["text_labels_mlm"].flatten()
    )
    itm = matching_loss(made.match_logits)
    total = made.contrast.loss + itm + mlm
    return outputs | {"loss.itm": itm, "loss.mlm_times_quarter": mlm, "loss.total": total}, total


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
    return {
        f"{name}.hidden": torch.stack(layers[:end]),
        f"{name}.hidden_vl": torch.stack(layers[end:]),
        f"{name}.feats": model.encoder.norm(layers[end - 1]),
        f"{name}.cls_feats": contrast.own,
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
    logits = scale * image.own @ text.own.T
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


def pixel_inputs(inputs: dict[str, Tensor], pixels: Tensor) -> PixelInputs:
    """The unmasked texts with these pictures."""
    return PixelInputs(
        tokens=inputs["text_ids"], token_mask=inputs["text_masks"].bool(), pixels=pixels
    )


def text_stage(model: Vlmo, inputs: dict[str, Tensor]) -> tuple[dict[str, Tensor], Tensor]:
    """Masked words of texts alone."""
    states = model.encode_text(inputs["text_ids_mlm"], inputs["text_masks"].bool(), pack=False)
    logits = model.mlm_logits(states)
    loss = F.cross_entropy(logits.flatten(0, 1), inputs["text_labels_mlm"].flatten())
    return {"text_feats": states, "mlm_logits": logits, "loss": loss}, loss


def vqa(model: VlmoForVqa, inputs: dict[str, Tensor]) -> tuple[dict[str, Tensor], Tensor]:
    """Logits, loss times the number of answers, and the score of the best answer."""
    batch, targets = pixel_inputs(inputs, inputs["image"]), inputs["vqa_targets"]
    pooled: list[Tensor] = []
    hook = model.encoder.pooler.register_forward_hook(lambda *a: pooled.append(a[2]))
    logits = model(batch, pack=False)
    hook.remove()
    loss = F.binary_cross_entropy_with_logits(logits, targets) * targets.shape[1]
    score = targets.gather(1, logits.argmax(1, keepdim=True)).mean()
    return {"cls_feats": pooled[0], "vqa_logits": logits, "loss": loss, "vqa_score": score}, loss


def nlvr2(model: VlmoForNlvr2, inputs: dict[str, Tensor]) -> tuple[dict[str, Tensor], Tensor]:
    """Logits and loss."""
    pixels = torch.stack([inputs["image_0"], inputs["image_1"]], dim=1)
    logits = model(inputs["text_ids"], inputs["text_masks"].bool(), pixels, pack=False)
    loss = F.cross_entropy(logits, inputs["answers"])
    return {"nlvr2_logits": logits, "loss": loss}, loss


def retrieval(model: Vlmo, inputs: dict[str, Tensor]) -> tuple[dict[str, Tensor], Tensor]:
    """The dual encoder's vectors, their products, and the loss."""
    text = model.text_vectors(inputs["text_ids"], inputs["text_masks"].bool(), pack=False)
    image = model.image_vectors(inputs["image"])
    logits = model.log_scale.exp() * image @ text.T
    loss = symmetric(logits)
    outputs = {"text_vec": text, "image_vec": image, "loss": loss}
    return outputs | {"i2t_logits": logits, "t2i_logits": logits.T}, loss
