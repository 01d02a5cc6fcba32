"""How a step is computed: gradients added over processes once, the prefetch on its own GPU."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from vlmill.models import VARIANTS, preset
from vlmill.models.layers.attention import SelfAttention
from vlmill.models.layers.experts import PreNormBlock
from vlmill.train.devices import setup
from vlmill.train.loading import loader as batch_loader
from vlmill.train.run.step import sync_gradients


@pytest.fixture
def only_process(tmp_path: Path) -> Iterator[None]:
    place = f"file://{tmp_path / 'meeting'}"
    dist.init_process_group("gloo", rank=0, world_size=1, init_method=place)
    yield
    dist.destroy_process_group()


def test_divided_gradients_are_reduced_in_the_last_part_alone(only_process: None) -> None:
    module, whole = nn.Linear(4, 3), nn.Linear(4, 3)
    whole.load_state_dict(module.state_dict())
    fully_shard(module, mesh=init_device_mesh("cpu", (1,)))
    unused: Any = None  # the accelerator, which divided models do without
    for number in range(3):
        inputs = torch.randn(2, 4)
        with sync_gradients(module, unused, last=number == 2):
            module(inputs).square().sum().backward()
        whole(inputs).square().sum().backward()
        assert (module.weight.grad is not None) == (number == 2)
    assert isinstance(module.weight.grad, DTensor)
    torch.testing.assert_close(module.weight.grad.full_tensor(), whole.weight.grad)


def test_the_prefetch_is_on_its_process_s_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[int] = []
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    batches: Any = ["first", "second"]
    assert list(batch_loader._ahead(iter(batches), gpu=3)) == batches
    assert chosen == [3]


@pytest.mark.parametrize(
    ("device", "compiles", "expected"),
    [("cuda", True, True), ("cuda", False, False), ("cpu", True, False)],
)
def test_kernels_of_our_own_are_used_where_they_can_be_compiled(
    device: str, compiles: bool, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setup, "can_compile", lambda work: compiles)
    config = preset("vlmo-small", vocab_size=50, num_layers=2, first_vl_layer=1)
    model = VARIANTS["vlmo"].model(config)
    setup.use_attention_kernel(model, torch.device(device))
    attentions = [part for part in model.modules() if isinstance(part, SelfAttention)]
    assert [part.bias_kernel for part in attentions] == [expected] * 2
    setup.use_residual_kernel(model, torch.device(device))
    blocks = [part for part in model.modules() if isinstance(part, PreNormBlock)]
    assert [part.residual_kernel for part in blocks] == [expected] * 2


def test_a_compiler_without_the_private_setting_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.fx.experimental._config", None)
    module = nn.Linear(2, 3)
    rows = torch.ones(4, 2)
    run = setup.compile_step(module)
    assert isinstance(run, torch._dynamo.OptimizedModule)
    torch.testing.assert_close(run._orig_mod(rows), module(rows))


def test_blocks_are_compiled_with_and_without_the_private_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits = torch._dynamo.config
    monkeypatch.setattr(limits, "recompile_limit", 3)
    setup._allow_graphs(5)
    setup._allow_graphs(4)
    assert limits.recompile_limit == 5
    monkeypatch.delattr(torch._dynamo, "config")
    monkeypatch.setitem(sys.modules, "torch._dynamo.config", None)
    setup._allow_graphs(9)
    assert limits.recompile_limit == 5
