import pytest
import torch
from torch import nn

from vlmill.train.optim import (
    learning_rate,
    make_optimizer,
    restore_training_state,
    training_state,
)
from vlmill.train.recipes import Optimizer


def test_the_schedule_by_hand() -> None:
    rates = [learning_rate(s, steps=10, peak=1.0, warmup=0.2) for s in range(1, 12)]
    assert rates == pytest.approx([0.5, 1, 1, 7 / 8, 6 / 8, 5 / 8, 4 / 8, 3 / 8, 2 / 8, 1 / 8, 0])


@pytest.mark.parametrize("warmup", [0.0, 1.0])
def test_schedules_of_one_line(warmup: float) -> None:
    rates = [learning_rate(s, steps=4, peak=1.0, warmup=warmup) for s in range(1, 5)]
    assert rates == (sorted(rates) if warmup else sorted(rates, reverse=True))
    assert max(rates) == 1 and min(rates) == 0.25


def test_biases_and_layer_norms_are_not_decayed() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3), nn.Embedding(4, 3))
    optimizer = make_optimizer(model, Optimizer(lr=1e-3))
    decayed, others = optimizer.param_groups
    assert [p.shape for p in decayed["params"]] == [(3, 2), (4, 3)]
    assert {tuple(p.shape) for p in others["params"]} == {(3,)}
    assert (decayed["weight_decay"], others["weight_decay"]) == (0.01, 0.0)
    assert (decayed["betas"], decayed["eps"]) == ((0.9, 0.999), 1e-6)


def step(model: nn.Module, optimizer: torch.optim.AdamW) -> None:
    model(torch.rand(4, 2)).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def test_a_restored_optimizer_goes_on_as_if_nothing_had_happened() -> None:
    torch.manual_seed(0)
    model = nn.Linear(2, 3)
    optimizer = make_optimizer(model, Optimizer(lr=1e-2))
    step(model, optimizer)
    weights = {k: v.clone() for k, v in model.state_dict().items()}
    state = {k: v.clone() for k, v in training_state(model, optimizer).items()}
    step(model, optimizer)
    expected = model.weight.detach().clone()
    again = nn.Linear(2, 3)
    again.load_state_dict(weights)
    other = make_optimizer(again, Optimizer(lr=1e-2))
    restore_training_state(again, other, state)
    step(again, other)
    assert torch.equal(again.weight, expected)
