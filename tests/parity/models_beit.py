"""BEiT's recordings: masked image modelling and a classifier."""

from typing import Any

import torch
import torch.nn.functional as F
from tests.parity.golden import GoldenSet
from tests.parity.models_vlmo import recorded_layers
from tests.parity.networks import Case, compare_gradients, open_model
from tests.parity.results import Results
from torch import Tensor

from vlmill.models.beit.model import Beit
from vlmill.models.beit.published import links


def beit(golden: GoldenSet, results: Results) -> None:
    """Either of the sets; which one the configuration tells."""
    results.given("*.in.*")
    model: Any = open_model(golden)
    compare = classes if model.config.num_classes else visual_tokens
    for name in golden.cases:
        outputs = compare(case := Case(name, golden, results, model))
        case.check(**outputs)
        if name == golden.gradient_case:
            outputs["loss"].backward()  # type: ignore[no-untyped-call]
            compare_gradients(golden, results, model, links(model))


def classes(case: Case) -> dict[str, Tensor]:
    """Hidden states of all layers, the pooled vector and the logits."""
    model: Beit = case.model
    with recorded_layers(model.layers) as layers:
        states = model(case["in.image"])
    pooled = model.pooled(states)
    return {
        "hidden": torch.stack(layers),
        "pooled": pooled,
        "logits": model.class_logits(case["in.image"]),
    }


def visual_tokens(case: Case) -> dict[str, Tensor]:
    """States, logits of all and of masked patches, labels and loss."""
    model: Beit = case.model
    masked = case["in.bool_masked_pos"].bool()
    states = model(case["in.image"], masked)
    patches, labels = states[:, 1:], case["in.visual_tokens"][masked]
    logits = model.visual_logits(patches[masked])
    return {
        "features": states,
        "all_logits": model.visual_logits(patches),
        "masked_logits": logits,
        "labels": labels,
        "loss": F.cross_entropy(logits, labels),
    }
