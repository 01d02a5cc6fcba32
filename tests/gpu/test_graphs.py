"""Steps on a GPU: CUDA graphs have the losses and gradients of eager ones, and so have steps that
queue their update before the host reads their numbers.
"""

import copy
from functools import partial
from pathlib import Path

import pytest
import torch
from benchmarks.gpu_check.measuring import places_of_waits
from benchmarks.gpu_check.training import make_accelerator, new_model, prepared, training_of
from tests.gpu.device import DEVICE, assert_near
from tests.train.objectives.test_no_waits import RECIPES
from tests.train.run.test_graphs import gradients, step_of
from torch import Tensor

from vlmill.train.devices.casts import WeightCasts
from vlmill.train.loading.batch import Batch
from vlmill.train.objectives.pretraining import PretrainingStep, label_counts
from vlmill.train.recipes import change_recipe
from vlmill.train.run.graphs import StepGraph
from vlmill.train.run.loop import StepInputs
from vlmill.train.run.step import train_step, with_graph, with_uploads

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
        losses = graph(graph.prepare(batch), shares)
        found = {key: value.clone() for key, value in losses.items()}
        expected = compute(plain, batch.to(DEVICE), shares)
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            assert_near(found[key], value, TOLERANCE, key)
        assert gradients(replayed).keys() == gradients(plain).keys()
        for key, value in gradients(plain).items():
            if value.abs().max() > 1e-6:
                assert_near(gradients(replayed)[key], value, TOLERANCE, key)
    assert graph.captured > 0 or DEVICE.type == "cpu"


@pytest.mark.parametrize(
    ("name", "kind", "replayed"),
    [("vilbert", "bert-adam", True), ("vilbert", "adamw", False), ("vlmo", "adamw", False)],
)
def test_a_step_ahead_trains_alike_without_a_wait(
    name: str, kind: str, replayed: bool, tmp_path: Path
) -> None:
    make, sizes = RECIPES[name]
    still = ["model.dropout=0", "model.attention_dropout=0"] if name == "vilbert" else []
    changes = [f"optimizer.kind={kind}", "optimizer.clip=0.1", "precision=bf16", *still]
    work = prepared(change_recipe(make(), changes), sizes, tmp_path)
    batches = [work.batches.assembled(number % 3) for number in range(8)]
    results = []
    for ahead in (False, True):
        torch.manual_seed(0)
        accelerator = make_accelerator(work.recipe, DEVICE)
        training = training_of(new_model(work.recipe), work.recipe, accelerator, pack=True)
        training = with_graph(training) if replayed else training
        training = with_uploads(training) if ahead else training
        inputs = StepInputs(iter(batches), 1, training.uploads)
        losses = []
        for step in range(1, len(batches)):
            parts = inputs.take()
            losses.append(train_step(step, parts, training, inputs.fetch)["loss"])
        waits = places_of_waits(partial(train_step, 9, inputs.take(), training))
        assert not (ahead and waits)
        results.append(losses)
    # On a GPU sums of gradients have no fixed order.
    assert results[1] == pytest.approx(results[0], rel=5e-3 if DEVICE.type == "cuda" else 0)
