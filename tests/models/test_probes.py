"""Private functions of PyTorch: each is probed by a call, and where that fails the plain path gives
the same numbers.
"""

import os
from collections.abc import Callable, Iterator
from importlib.util import find_spec

import pytest
import torch
from torch import Tensor, nn

from vlmill.extract.detect import predict
from vlmill.models import probes
from vlmill.models.detector import folded, fused_stages
from vlmill.models.detector.resnet import Bottleneck, Norm
from vlmill.models.layers import attention
from vlmill.models.layers.cpu import attention as cpu_attention
from vlmill.models.layers.cpu import linear
from vlmill.models.layers.packing import make_layout
from vlmill.models.probes import works

CACHED = (
    linear.has_onednn_linear,
    linear.packs_weights,
    folded.has_fused_convolutions,
    folded.rectifies_products,
    fused_stages.sees_moves,
)


@pytest.fixture(autouse=True)
def probed_anew() -> Iterator[None]:
    """What a test has had probed is forgotten, and so is what others have."""
    for probe in CACHED:
        probe.cache_clear()
    yield
    for probe in CACHED:
        probe.cache_clear()


def gone(*_: object, **__: object) -> Tensor:
    raise AttributeError("no such function")


def other_arguments(*_: object, **__: object) -> Tensor:
    raise TypeError("takes 5 arguments")


def other_numbers(first: Tensor, second: Tensor, *_: object, **__: object) -> Tensor:
    return first.new_zeros(len(first), len(second))


BROKEN = [gone, other_arguments, other_numbers]


def test_what_raises_or_gives_something_else_does_not_work() -> None:
    assert works(lambda: True) and not works(lambda: False)
    assert not works(gone) and not works(other_arguments)
    with pytest.raises(KeyError):  # a mistake of ours, no library's
        works(lambda: os.environ["VLMILL_NOTHING"])


def test_all_work_in_the_version_that_is_tested() -> None:
    if torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        assert all(probe() for probe in CACHED)
    assert attention.HAS_FLASH
    assert cpu_attention.SCORE_GRADIENTS is cpu_attention._fused_score_gradients


@pytest.mark.parametrize("broken", BROKEN)
def test_linear_layers(broken: Callable[..., Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    rows, layer = torch.randn(5, 8), nn.Linear(8, 3)
    expected = layer(rows)
    monkeypatch.setattr(linear, "_product", broken)
    assert not linear.has_onednn_linear() and not linear.packs_weights()
    assert not linear.is_faster(rows, layer.weight)
    with torch.no_grad(), linear.cache_packed_weights(linear.WORTH):
        assert linear._get_packed_weight(layer.weight, 5) is layer.weight
    from vlmill.models.layers.operators import linear as chosen

    torch.testing.assert_close(chosen(rows, layer.weight, layer.bias), expected)


@pytest.mark.parametrize("name", ["_relu", "_add_relu"])
@pytest.mark.parametrize("broken", BROKEN)
def test_convolutions(
    broken: Callable[..., Tensor], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, conv = folded._probed()
    shortcut = torch.randn(1, 3, 3, 3)
    with torch.no_grad():
        expected = folded.conv_relu(conv, x), folded.conv_add_relu(conv, x, shortcut.clone())
        monkeypatch.setattr(
            folded, name, lambda conv, x, *_: broken(x.flatten(1), conv.weight.flatten(1))
        )
        folded.has_fused_convolutions.cache_clear()
        assert not folded.can_fuse(x)
        plain = folded.conv_relu(conv, x), folded.conv_add_relu(conv, x, shortcut)
    torch.testing.assert_close(plain, expected)


@pytest.mark.parametrize("broken", BROKEN)
def test_rectified_products(broken: Callable[..., Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of GPUs: here their question is answered for them."""
    x, conv = folded._probed()
    monkeypatch.setattr(folded, "multiplies_rows", lambda *_: True)
    with torch.no_grad():
        expected = folded.conv_relu(conv, x)
        monkeypatch.setattr(
            torch, "_addmm_activation", lambda _, rows, columns: broken(rows, columns.T)
        )
        folded.rectifies_products.cache_clear()
        assert not folded.rectifies_products()
        torch.testing.assert_close(folded.conv_relu(conv, x), expected)


def test_bfloat16_convolutions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", gone)
    assert not folded.has_bfloat16_convolutions()
    x, conv = folded._probed()
    half = folded.FoldedConv(**{**vars(conv), "weight": conv.weight.bfloat16(), "bias": None})
    with torch.no_grad():
        assert folded.conv_relu(half, x.bfloat16()).dtype == torch.bfloat16


def test_packed_rows_go_the_way_of_others_without_the_kernel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = torch.ones(2, 8, dtype=torch.bool, device="meta")
    layout = make_layout(real, torch.zeros(9, dtype=torch.int64, device="meta"))
    rows = torch.zeros(9, 4, 16, dtype=torch.bfloat16, device="meta")
    assert attention.reads_packed(rows, layout, layout)
    monkeypatch.setattr(attention, "HAS_FLASH", False)
    assert not attention.reads_packed(rows, layout, layout)


@pytest.mark.parametrize("broken", [gone, other_arguments])
def test_the_kernel_is_asked_without_a_device(
    broken: Callable[..., Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert works(attention._probe_flash)
    monkeypatch.setattr(torch.ops.aten, "_flash_attention_forward", broken)
    assert not works(attention._probe_flash)


@pytest.mark.parametrize("broken", BROKEN)
def test_gradients_of_attention(
    broken: Callable[..., Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    gradients = []
    for function in (cpu_attention._fused_score_gradients, cpu_attention._plain_score_gradients):
        monkeypatch.setattr(cpu_attention, "SCORE_GRADIENTS", function)
        generator = torch.Generator().manual_seed(0)
        numbers = torch.randn(3, 2, 5, 2, 4, generator=generator)
        q, k, v = (rows.requires_grad_() for rows in numbers.unbind())
        mask = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
        mixed = cpu_attention.cpu_attention(q, k, v, mask)
        mixed.sin().sum().backward()  # type: ignore[no-untyped-call]
        gradients.append([q.grad, k.grad, v.grad])
    torch.testing.assert_close(gradients[0], gradients[1])
    monkeypatch.setattr(torch, "_softmax_backward_data", broken)
    assert not works(cpu_attention._probe_score_gradients)


def test_units_for_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux says the same of a processor as PyTorch."""
    cpu = torch.device("cpu")
    expected = predict.lacks_bfloat16_units(cpu)
    for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        monkeypatch.setattr(torch.cpu, name, gone)
    assert predict.lacks_bfloat16_units(cpu) == expected


def test_weights_of_stages_are_converted_anew_where_moves_are_not_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(0)
    block = Bottleneck(8, 4, 16, Norm(), stride=1, dilation=1, stride_in_1x1=True)
    stage = fused_stages.FusedStage(block).eval()
    x = torch.randn(1, 8, 6, 6).bfloat16()
    with torch.no_grad():
        assert stage.folded_blocks(x) is stage.folded_blocks(x)
        monkeypatch.setattr(nn.Module, "_apply", gone)
        fused_stages.sees_moves.cache_clear()
        assert not fused_stages.sees_moves()
        (before,) = stage.folded_blocks(x)
        stage.blocks()[0].conv1.weight.mul_(2)
        (after,) = stage.folded_blocks(x)
    assert torch.equal(after.conv1.weight, 2 * before.conv1.weight)


def test_a_view_of_a_weight_is_not_cached_where_its_base_is_unknown() -> None:
    class Plain(Tensor):
        @property
        def _base(self) -> Tensor:  # type: ignore[override]
            raise AttributeError("_base")

    part = nn.Linear(8, 3).weight.detach()[1:].as_subclass(Plain)
    with torch.no_grad(), linear.cache_packed_weights(linear.WORTH):
        assert linear._get_packed_weight(part, 5) is part


def test_where_triton_cannot_compile_others_compute(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on this machine, without a GPU; and where it is not there at all."""
    can_compile = probes.can_compile.__wrapped__
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    if not torch.cuda.is_available() and find_spec("triton") is not None:
        message = r"Triton cannot compile here .+ sums will be slower; install gcc"
        with pytest.warns(UserWarning, match=message):
            assert not can_compile("sums")
    monkeypatch.setattr(probes, "find_spec", lambda name: None)
    assert not can_compile("sums")
