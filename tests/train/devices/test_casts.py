"""Weights that are cast once a step: the same losses and gradients, and few casts."""

import copy
from typing import Any

import pytest
import torch
from tests.models.vlmo.test_model import tiny_model
from tests.train.objectives.test_cached_contrast import ALL, PAIRS, host_batch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from vlmill.models.layers.blocks import post_norm_layers
from vlmill.models.layers.operators import LayerNorm
from vlmill.models.layers.packing import make_layout
from vlmill.train.devices.casts import WeightCasts
from vlmill.train.devices.setup import recompute_activations, use_half_norms
from vlmill.train.run.pretraining import make_step

WIDTH = 16


class Casts(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the tensors that are cast one by one, but for hidden states."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._to_copy.default and ROWS not in args[0].shape[:-1]:
            self.count += 1
        return func(*args, **(kwargs or {}))


ROWS = 7  # of hidden states, a number that no weight has


def layers_step(layers: nn.ModuleList, hidden: Tensor) -> Tensor:
    layout = make_layout(torch.ones(1, ROWS, dtype=torch.bool))
    for layer in layers:
        hidden = layer(hidden[None] if hidden.ndim == 2 else hidden, layout)
    return hidden.square().sum()


def gradients(module: nn.Module) -> dict[str, Tensor]:
    return {n: p.grad for n, p in module.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("recomputed", [False, True])
def test_layers_have_the_same_losses_and_gradients(dtype: torch.dtype, recomputed: bool) -> None:
    torch.manual_seed(0)
    plain = post_norm_layers(2, WIDTH, 2, 32, dropout=0.0, attention_dropout=0.0)
    cast = copy.deepcopy(plain)
    if recomputed:
        recompute_activations(cast)
    hidden = torch.randn(ROWS, WIDTH)
    casts = WeightCasts(cast, dtype)
    for _ in range(2):  # gradients of parts of a step add up
        with torch.autocast("cpu", dtype):
            loss = layers_step(plain, hidden)
        loss.backward()  # type: ignore[no-untyped-call]
        with casts.applied():
            with torch.autocast("cpu", dtype):
                cast_loss = layers_step(cast, hidden)
            cast_loss.backward()  # type: ignore[no-untyped-call]
        assert torch.equal(loss, cast_loss)
    expected = gradients(plain)
    assert gradients(cast).keys() == expected.keys()
    for name, gradient in gradients(cast).items():
        assert gradient.dtype == torch.float32
        assert torch.equal(gradient, expected[name]), name
    assert not any("weight" in vars(part) for part in cast.modules())


def test_norms_in_half_precision_keep_statistics_in_float32() -> None:
    """What comes out is the float32 norm, rounded once for the weights and once for itself."""
    torch.manual_seed(0)
    layers = post_norm_layers(2, WIDTH, 2, 32, dropout=0.0, attention_dropout=0.0)
    hidden, norm = torch.randn(ROWS, WIDTH), layers[0].norm
    assert isinstance(norm, LayerNorm)
    torch.nn.init.normal_(norm.weight)
    exact = norm(hidden + 100)
    use_half_norms(layers)
    assert torch.equal(norm(hidden + 100), exact)  # without autocast
    with torch.autocast("cpu", torch.bfloat16):
        rounded = norm((hidden + 100).bfloat16())
    assert rounded.dtype == torch.bfloat16
    far = (hidden + 100).bfloat16().float()  # the input's own rounding is not the norm's
    expected = torch.nn.functional.layer_norm(far, (WIDTH,), norm.weight, norm.bias, norm.eps)
    torch.testing.assert_close(rounded.float(), expected, rtol=2**-7, atol=2**-7)
    casts = WeightCasts(layers, torch.bfloat16)
    results = []
    for context in (torch.enable_grad(), casts.applied()):
        layers.zero_grad()
        with context:
            with torch.autocast("cpu", torch.bfloat16):
                loss = layers_step(layers, hidden)
            loss.backward()  # type: ignore[no-untyped-call]
        results.append({name: value.clone() for name, value in gradients(layers).items()})
    assert results[0].keys() == results[1].keys()
    for name, gradient in results[1].items():
        assert torch.equal(gradient, results[0][name]), name


def test_vlmo_has_the_same_losses_and_gradients() -> None:
    """Experts, key biases that are left out, patches' convolution, and a frozen layer."""
    torch.manual_seed(0)
    model = tiny_model()
    name, frozen = next((n, p) for n, p in model.named_parameters() if n.endswith("up.weight"))
    frozen.requires_grad_(False)
    batch, shares = host_batch(range(PAIRS)).to("cpu"), torch.ones(3)
    numbers = torch.rand(2, PAIRS)
    results = []
    for is_cast in (False, True):
        step = make_step(copy.deepcopy(model), ALL)
        with WeightCasts(step, torch.bfloat16).applied() if is_cast else torch.enable_grad():
            with torch.autocast("cpu", torch.bfloat16):
                loss, _ = step(batch, shares, numbers)
            loss.backward()
        results.append((loss.detach(), gradients(step)))
    (loss, expected), (cast_loss, found) = results
    assert torch.equal(loss, cast_loss)
    assert found.keys() == expected.keys() and f"model.{name}" not in found
    for name, gradient in found.items():
        # The last layer's product for the rows that are read has a part of the weight, which
        # autocast casts anew for each of VLMo's passes; their gradients add up in float32 then.
        if name.endswith("layers.2.attention.qkv.weight"):
            error = (gradient - expected[name]).norm() / expected[name].norm()
            assert error < 2**-6
        else:
            assert torch.equal(gradient, expected[name]), name


def test_no_weight_is_cast_by_itself() -> None:
    layers = post_norm_layers(2, WIDTH, 2, 32, dropout=0.0, attention_dropout=0.0)
    hidden, counts = torch.randn(ROWS, WIDTH), []
    for casts in (None, WeightCasts(layers, torch.bfloat16)):
        with casts.applied() if casts else torch.enable_grad(), Casts() as counted:
            with torch.autocast("cpu", torch.bfloat16):
                loss = layers_step(layers, hidden)
            loss.backward()  # type: ignore[no-untyped-call]
        counts.append(counted.count)
    weights_and_gradients = 2 * 2 * 8  # two layers of four products with weight and bias
    assert counts == [weights_and_gradients, 0]
