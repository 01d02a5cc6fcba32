"""Steps that are replayed as CUDA graphs on a GPU have the losses and gradients of eager ones."""

import copy
from functools import partial
from pathlib import Path

import pytest
import torch
from benchmarks.gpu_check.training import prepared
from tests.gpu.device import DEVICE, assert_near
from tests.train.objectives.test_no_waits import RECIPES
from tests.train.run.test_graphs import gradients, step_of
from torch import Tensor

from vlmill.train.devices.casts import WeightCasts
from vlmill.train.loading.batch import Batch
from vlmill.train.objectives.pretraining import label_counts
from vlmill.train.run.graphs import StepGraph
from vlmill.train.run.pretraining import PretrainingStep

pytestmark = pytest.mark.gpu
# Of the largest value: eager steps have other shapes, whose sums of bfloat16 round otherwise.
TOLERANCE = 0.03


def compute(step: PretrainingStep, batch: Batch, shares: Tensor) -> dict[str, Tensor]:
    casts = WeightCasts(step, torch.bfloat16)
    with casts.applied(), torch.autocast(DEVICE.type, torch.bfloat16):
        loss, losses = step(batch, shares)
        loss.backward()
    return {"loss": loss.detach(), **{name: value.detach() for name, value in losses.items()}}


@pytest.mark.parametrize("name", ["vilbert", "imagebert", "interbert", "vl-bert-with-texts-alone"])
def test_replayed_steps_are_eager_ones(name: str, tmp_path: Path) -> None:
    make, sizes = RECIPES[name]
    work = prepared(make(), sizes, tmp_path)
    plain = step_of(work).to(DEVICE)
    replayed = copy.deepcopy(plain)
    graph = StepGraph(partial(compute, replayed), list(replayed.parameters()), DEVICE)
    for number in (0, 1, 0, 2, 1, 0):
        batch = work.batches.assembled(number)
        shares = torch.ones(len(label_counts(batch, work.stage.objectives)), device=DEVICE)
        plain.zero_grad(set_to_none=True)
        replayed.zero_grad(set_to_none=True)
        found = {key: value.clone() for key, value in graph(batch, shares).items()}
        expected = compute(plain, batch.to(DEVICE), shares)
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            assert_near(found[key], value, TOLERANCE, key)
        assert gradients(replayed).keys() == gradients(plain).keys()
        for key, value in gradients(plain).items():
            if value.abs().max() > 1e-6:
                assert_near(gradients(replayed)[key], value, TOLERANCE, key)
    assert graph.captured > 0 or DEVICE.type == "cpu"
