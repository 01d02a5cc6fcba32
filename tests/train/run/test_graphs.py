"""Batches that are padded to the fixed shapes of a CUDA graph keep their losses and gradients."""

import copy
import dataclasses
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks.gpu_check.counts import count_shapes
from benchmarks.gpu_check.training import Work, prepared
from tests.train.objectives.test_no_waits import META, RECIPES
from torch import Tensor, nn

from vlmill.models import VARIANTS
from vlmill.train.loading.batch import Batch, HostBatch
from vlmill.train.loading.budgets import find_budget, pad_small
from vlmill.train.objectives.pretraining import PretrainingStep, label_counts
from vlmill.train.run.graphs import StepGraph
from vlmill.train.run.pretraining import make_step

OF_REGIONS = ("vilbert", "imagebert", "interbert", "vl-bert-with-texts-alone")
CPU = torch.device("cpu")
BATCHES = 4


@pytest.fixture(params=OF_REGIONS)
def work(request: pytest.FixtureRequest, tmp_path: Path) -> Work:
    make, sizes = RECIPES[request.param]
    return prepared(make(), sizes, tmp_path)


def step_of(work: Work) -> PretrainingStep:
    """Without dropout, whose draws depend on shapes."""
    torch.manual_seed(0)
    model = VARIANTS[work.recipe.variant].model(work.recipe.model)
    return make_step(model, work.stage.objectives).eval()


def as_double(batch: Batch) -> Batch:
    def wide(value: Any) -> Any:
        is_float = isinstance(value, Tensor) and value.is_floating_point()
        return value.double() if is_float else value

    fields = {f.name: wide(getattr(batch, f.name)) for f in dataclasses.fields(batch)}
    return Batch(**fields | {"inputs": batch.inputs.map(wide)})


def compute(step: PretrainingStep, batch: Batch, shares: Tensor) -> dict[str, Tensor]:
    loss, losses = step(as_double(batch), shares)
    loss.backward()
    return {"loss": loss.detach(), **{name: value.detach() for name, value in losses.items()}}


def gradients(module: nn.Module) -> dict[str, Tensor]:
    return {n: p.grad for n, p in module.named_parameters() if p.grad is not None}


def shares_of(work: Work, batch: HostBatch) -> Tensor:
    numbers = len(label_counts(batch, work.stage.objectives))
    return torch.linspace(0.3, 1.0, numbers, dtype=torch.float64)


def test_padded_batches_keep_losses_and_gradients(work: Work) -> None:
    plain = step_of(work).double()
    padded = copy.deepcopy(plain)
    graph = StepGraph(partial(compute, padded), list(padded.parameters()), CPU)
    for number in (*range(BATCHES), 0):  # the first one again, after other ones in its place
        batch = work.batches.assembled(number)
        shares = shares_of(work, batch)
        plain.zero_grad()
        padded.zero_grad()
        expected = compute(plain, batch.to(CPU), shares)
        found = graph(graph.prepare(batch), shares)
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(gradients(padded), gradients(plain), rtol=1e-9, atol=1e-11)


def test_batches_of_a_run_have_few_shapes(work: Work) -> None:
    """And on a device they have them without asking it for values."""
    step, budget, shapes = step_of(work).train().to(META), None, set()
    for number in range(2 * BATCHES):
        batch = work.batches.assembled(number)
        budget = find_budget(batch, budget)
        small = pad_small(batch, budget)
        shapes.add(tuple((name, tensor.shape) for name, tensor in small.tensors.items()))
    assert len(shapes) <= 3
    graph = StepGraph(partial(_on_meta, step), list(step.parameters()), META)
    losses = graph(graph.prepare(batch), torch.ones(len(step.names), device=META))
    assert losses["loss"].is_meta


def _on_meta(step: PretrainingStep, batch: Batch, shares: Tensor) -> dict[str, Tensor]:
    loss, losses = step(batch, shares)
    loss.backward()
    return {"loss": loss.detach(), **losses}


@pytest.mark.parametrize(("pairs", "regions", "share"), [(64, 36, 0.5), (256, 100, 0.25)])
def test_a_thousand_batches_have_few_shapes(pairs: int, regions: int, share: float) -> None:
    """Of as many tokens, regions and labels as published runs have; without any values."""
    random = np.random.default_rng(0)

    def batch() -> HostBatch:
        tokens = random.normal(14, 4, pairs).astype(int).clip(4, 36)
        counts = random.integers(10, regions + 1, pairs)
        real = {"tokens": int(tokens.sum()), "regions": int(counts.sum())}
        masked = {kind: int(random.binomial(n, share / 4)) for kind, n in real.items()}
        lengths = {
            **{f"real_{kind}": n for kind, n in real.items()},
            **{f"masked_{kind}": n for kind, n in masked.items()},
            **{f"read_{kind}": n + pairs for kind, n in masked.items()},
        }
        tensors = {name: torch.empty(n, device=META) for name, n in lengths.items()}
        grids = {"tokens": tokens.max(), "region_mask": counts.max(), "hidden": counts.max()}
        tensors |= {k: torch.empty(pairs, int(n), device=META) for k, n in grids.items()}
        return HostBatch(tensors={**tensors, "features": tensors["hidden"]}, pair_ids=())

    found = count_shapes(batch() for _ in range(1000))
    assert found["shapes_without_padding"] > 900 > 30 > found["shapes"]
    assert found["without_graph"] < 60 and found["padding"] < (0.2 if pairs == 64 else 0.08)


def test_pixels_have_no_budget(tmp_path: Path) -> None:
    make, sizes = RECIPES["vlmo"]
    with pytest.raises(ValueError, match="without regions' features"):
        find_budget(prepared(make(), sizes, tmp_path).batches.assembled(0))
