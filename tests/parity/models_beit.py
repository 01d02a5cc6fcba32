"""BEiT's recordings: masked image modelling and a classifier."""

from typing import Any

import torch
import torch.nn.functional as F
from tests.parity.golden import GoldenSet, Results
from tests.parity.models_vlmo import recorded_layers
from torch import Tensor

from vlmill.models.beit.model import Beit
from vlmill.models.beit.published import links
from vlmill.models.convert.keymap import export_state
from vlmill.models.published import load_reference


def beit(golden: GoldenSet, results: Results) -> None:
    """Either of the sets; which one the configuration tells."""
    results.given("*.in.*")
    model: Any = load_reference("beit", golden.weights, golden.config)
    compare = classes if model.config.num_classes else visual_tokens
    for case in golden.cases:
        inputs = {
            key.removeprefix(f"{case}.in."): value
            for key, value in golden.tensors.items()
            if key.startswith(f"{case}.in.")
        }
        outputs = compare(model, inputs)
        results.check_all({f"{case}.out.{name}": value for name, value in outputs.items()})
        if case == "case0" and golden.gradients:
            outputs["loss"].backward()  # type: ignore[no-untyped-call]
            ours = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
            exported = export_state(ours, links(model))
            assert exported.keys() == golden.gradients.keys()
            results.check_all({key: exported[name] for name, key in golden.gradients.items()})


def classes(model: Beit, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Hidden states of all layers, the pooled vector and the logits."""
    with recorded_layers(model.layers) as layers:
        states = model(inputs["image"])
    pooled = model.pooled(states)
    return {
        "hidden": torch.stack(layers),
        "pooled": pooled,
        "logits": model.class_logits(inputs["image"]),
    }


def visual_tokens(model: Beit, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """States, logits of all and of masked patches, labels and loss."""
    masked = inputs["bool_masked_pos"]
    states = model(inputs["image"], masked)
    patches, labels = states[:, 1:], inputs["visual_tokens"][masked]
    logits = model.visual_logits(patches[masked])
    return {
        "features": states,
        "all_logits": model.visual_logits(patches),
        "masked_logits": logits,
        "labels": labels,
        "loss": F.cross_entropy(logits, labels),
    }
