"""Checks VLMo with both settings, attention's kernel and compiled blocks, in a process of its own
(test_biased_attention.py).

    TRITON_INTERPRET=1 python -m tests.models.layers.kernel_blocks_case
"""

from contextlib import nullcontext
from copy import deepcopy
from dataclasses import replace
from unittest.mock import Mock

import torch
from tests.models.layers.bias_kernel_cases import (
    assert_near,
    drawn,
    gradients_of,
    look_at_no_value,
    make_interpreter_exact,
    model_inputs,
    use_kernels,
)
from torch import Tensor
from torch._dynamo.utils import counters

from vlmill.models import PixelInputs
from vlmill.models.layers.gpu import bias_kernels as kernels
from vlmill.models.vlmo.config import vlmo_small
from vlmill.models.vlmo.model import Vlmo
from vlmill.train.devices.casts import WeightCasts
from vlmill.train.devices.setup import compile_blocks
from vlmill.train.objectives.contrast import contrast_and_matching

MOST_GRAPHS = 14
LENGTHS = (7, 9)


def check_blocks(*, half: bool) -> list[int]:
    """The losses and gradients of eager blocks without the kernel, and graphs that serve all
    lengths; in bfloat16 as a GPU computes it, with weights that are cast once, if ``half``.
    Returns the number of graphs after each batch.
    """
    torch._dynamo.reset()
    counters.clear()
    torch.manual_seed(0)
    config = vlmo_small(vocab_size=50, image_size=32, num_layers=3, first_vl_layer=2, width=64)
    model = Vlmo(replace(config, init_std=0.2, layer_scale=0.5, drop_path=0.3)).train()
    plain = deepcopy(model)
    use_kernels(model, on=True)
    mix, graphs = Mock(wraps=kernels.mix), []
    original, kernels.mix = kernels.mix, mix
    compile_blocks(model, backend="aot_eager")
    for length in LENGTHS:
        inputs = model_inputs(config, length)
        found, expected = (losses(one, inputs, half=half) for one in (model, plain))
        assert_near(found, expected, 0.05 if half else 1e-4)
        graphs.append(counters["stats"]["unique_graphs"])
    kernels.mix = original
    assert mix.call_count >= 3 * len(LENGTHS) and not counters["graph_break"]
    return graphs


def losses(model: Vlmo, inputs: PixelInputs, *, half: bool) -> list[Tensor]:
    """The loss of a step's passes and, in float32, the weights' gradients."""
    torch.manual_seed(1)  # of drop path
    with WeightCasts(model, torch.bfloat16).applied() if half else nullcontext():
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            step = contrast_and_matching(model, inputs, inputs.tokens, lambda *_: drawn())
        words = step.masked_text[inputs.token_mask].float()
        loss = step.contrast.loss + step.match_logits.float().sin().mean() + words.sin().mean()
        found = gradients_of(loss, model)
    return found[:1] if half else found  # sums of bfloat16 in another order


if __name__ == "__main__":
    make_interpreter_exact()
    look_at_no_value()
    for half in (False, True):
        graphs = check_blocks(half=half)
        print(half, graphs)
        assert graphs[0] == graphs[-1] <= MOST_GRAPHS
