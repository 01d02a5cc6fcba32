"""Optimisers, schedules, groups and the average; parity with recordings stands in tests/parity."""

import math

import pytest
import torch
from accelerate import Accelerator
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from vlmill.train.checkpoints.state import restore_training_state, training_state
from vlmill.train.optim.adam import BertAdam, TransformersAdamW, clip_each_
from vlmill.train.optim.average import MovingAverage
from vlmill.train.optim.groups import (
    Treatment,
    parameter_groups,
)


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=5), st.floats(0.1, 10))
def test_each_gradient_is_clipped_for_itself(values: list[float], largest: float) -> None:
    gradients = [torch.tensor(values), torch.zeros(3), torch.tensor([0.5 * largest])]
    direction = gradients[0].clone()
    clip_each_(gradients, largest)
    assert gradients[0].norm() <= largest * (1 + 1e-5)
    assert gradients[1].tolist() == [0, 0, 0]
    assert gradients[2].item() == pytest.approx(0.5 * largest)
    if direction.norm() < largest * 0.99:
        assert torch.equal(gradients[0], direction)


def stepped(optimizer: torch.optim.Optimizer, parameter: nn.Parameter, gradient: float) -> float:
    parameter.grad = torch.full_like(parameter, gradient)
    optimizer.step()
    return parameter.item()


def test_bert_adam_by_hand() -> None:
    parameter = nn.Parameter(torch.tensor(1.0))
    optimizer = BertAdam([parameter], lr=0.1, weight_decay=0.01)
    update = 0.05 / (math.sqrt(0.001 * 0.25) + 1e-6) + 0.01
    assert stepped(optimizer, parameter, 0.5) == pytest.approx(1 - 0.1 * update)


def test_transformers_adamw_by_hand() -> None:
    """The first corrected step is the rate, if eps is small; the decay is of what it gives."""
    parameter = nn.Parameter(torch.tensor(1.0))
    optimizer = TransformersAdamW([parameter], lr=0.1, eps=0.0, weight_decay=0.5)
    assert stepped(optimizer, parameter, 3.0) == pytest.approx(0.9 * (1 - 0.1 * 0.5))
    parameter = nn.Parameter(torch.tensor(1.0))
    optimizer = TransformersAdamW([parameter], lr=0.1, eps=0.0, correct_bias=False)
    assert stepped(optimizer, parameter, 3.0) == pytest.approx(1 - 0.1 * 0.1 / math.sqrt(0.001))


def test_each_parameter_counts_its_own_steps() -> None:
    """One that had no gradient at first is corrected as in its first step."""
    late, always = nn.Parameter(torch.tensor(1.0)), nn.Parameter(torch.tensor(1.0))
    optimizer = TransformersAdamW([late, always], lr=0.1, eps=0.0, weight_decay=0.5)
    for _ in range(3):
        stepped(optimizer, always, 3.0)
    always.grad = None
    assert stepped(optimizer, late, 3.0) == pytest.approx(0.9 * (1 - 0.1 * 0.5))


def test_a_rate_of_0_moves_the_moments_alone() -> None:
    """The published runs begin so."""
    for kind in (BertAdam, TransformersAdamW):
        parameter = nn.Parameter(torch.tensor(1.0))
        optimizer = kind([parameter], lr=0.0, weight_decay=0.5)
        assert stepped(optimizer, parameter, 0.5) == 1
        assert optimizer.state[parameter]["exp_avg"].item() == pytest.approx(0.05)


def test_parameters_without_a_gradient_stay() -> None:
    parameter = nn.Parameter(torch.tensor(1.0))
    optimizer = BertAdam([parameter], lr=0.1)
    optimizer.step()
    assert parameter.item() == 1 and not optimizer.state


@pytest.mark.parametrize("kind", [BertAdam, TransformersAdamW])
@pytest.mark.parametrize("bad", [{"lr": -1.0}, {"eps": -1.0}, {"betas": (1.0, 0.9)}])
def test_settings_that_make_no_sense(kind: type[BertAdam], bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"want|negative"):
        kind([nn.Parameter(torch.ones(1))], **{"lr": 0.1, **bad})  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [BertAdam, TransformersAdamW])
def test_a_restored_optimizer_goes_on_as_if_nothing_had_happened(kind: type[BertAdam]) -> None:
    model, again = nn.Linear(2, 3), nn.Linear(2, 3)
    optimizer, other = kind(model.parameters(), lr=0.1), kind(again.parameters(), lr=0.1)
    update(model, optimizer)
    again.load_state_dict(model.state_dict())
    saved = {
        key: value.clone() for key, value in training_state(model, optimizer, Accelerator()).items()
    }
    restore_training_state(again, other, saved, Accelerator())
    for net, one in ((model, optimizer), (again, other)):
        update(net, one)
    assert torch.equal(model.weight, again.weight)


def update(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model(torch.ones(4, 2)).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def test_groups_hold_every_trained_parameter_once() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3))
    model[0].weight.requires_grad_(False)
    groups = parameter_groups(
        model.named_parameters(),
        lambda name, p: Treatment(name == "1.weight", 0.1 if name == "0.bias" else 1.0),
        lr=1.0,
        weight_decay=0.5,
    )
    told = [(g["names"], g["lr"], g["weight_decay"], g["rate"]) for g in groups]
    assert told == [
        (["1.weight"], 1.0, 0.5, 1.0),
        (["1.bias"], 1.0, 0.0, 1.0),
        (["0.bias"], 0.1, 0.0, 0.1),
    ]


def test_the_average_follows_the_weights_and_can_stand_in_for_them() -> None:
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, 1.0)
    average = MovingAverage(model, 0.75)
    nn.init.constant_(model.weight, 5.0)
    average.update(model)
    with average.applied(model):
        assert model.weight.item() == 2
        nn.init.constant_(average.shadow["weight"], 7.0)
        assert model.weight.item() == 2  # a copy
    assert model.weight.item() == 5
    other = MovingAverage(model, 0.75)
    other.load_state_dict(average.state_dict())
    assert other.shadow["weight"].item() == 7
    with pytest.raises(ValueError, match="another model; at fault: bias"):
        other.load_state_dict({**average.state_dict(), "bias": torch.zeros(1)})
