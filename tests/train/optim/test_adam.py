"""Optimisers, schedules, groups and the average; parity with recordings stands in tests/parity."""

import math
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from vlmill.train.optim.adam import BertAdam, TransformersAdamW, clip_each_, gradient_norms
from vlmill.train.optim.average import MovingAverage
from vlmill.train.optim.groups import Treatment, parameter_groups
from vlmill.train.run.snapshot import restore_training_state, training_state


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=5), st.floats(0.1, 10))
def test_each_gradient_is_clipped_for_itself(values: list[float], largest: float) -> None:
    gradients = [torch.tensor(values), torch.zeros(3), torch.tensor([0.5 * largest])]
    direction = gradients[0].clone()
    norms = gradient_norms(gradients, [1, 1, 1]).tolist()
    clip_each_(gradients, [1, 1, 1], norms, largest)
    assert gradients[0].norm() <= largest * (1 + 1e-5)
    assert gradients[1].tolist() == [0, 0, 0]
    assert gradients[2].item() == pytest.approx(0.5 * largest)
    if direction.norm() < largest * 0.99:
        assert torch.equal(gradients[0], direction)


@settings(deadline=None)
@given(st.lists(st.floats(-3, 3, width=32), min_size=6, max_size=6))
def test_known_norms_change_no_bit(values: list[float]) -> None:
    """A step clips alike whether it waits for the norms, the loop has read them, or they remain
    on the device.
    """
    results = []
    for known in ("no", "on the host", "on the device"):
        parameters = [nn.Parameter(torch.ones(6)), nn.Parameter(torch.ones(2))]
        groups = [{"params": [parameters[0]], "joins": [3]}, {"params": [parameters[1]]}]
        optimizer = BertAdam(groups, lr=0.1, clip=0.5)
        for scale in (1.0, 0.25):
            parameters[0].grad = torch.tensor(values) * scale
            parameters[1].grad = torch.tensor(values[:2]) * scale
            norms = optimizer.gradient_norms()
            assert len(norms) == 4
            if known != "no":
                optimizer.known_norms = norms if known == "on the device" else norms.tolist()
            optimizer.step()
            assert not len(optimizer.known_norms)
        results.append([p.detach() for p in parameters])
    for waiting, read, unread in zip(*results, strict=True):
        assert torch.equal(waiting, read) and torch.equal(read, unread)


@pytest.mark.parametrize("kind", [BertAdam, TransformersAdamW])
def test_a_step_that_is_not_finite_moves_nothing(kind: type[BertAdam]) -> None:
    """The device decides: a gradient of infinity changes neither weights nor moments."""
    parameter = nn.Parameter(torch.tensor([1.0, 2.0]))
    optimizer, states = kind([parameter], lr=0.1), []
    for gradient, found_inf in ((0.5, 0.0), (torch.inf, 1.0), (0.5, 0.0)):
        parameter.grad = torch.full_like(parameter, gradient)
        optimizer.found_inf = torch.tensor(found_inf)
        optimizer.step()
        moments = [optimizer.state[parameter][key].clone() for key in ("exp_avg", "exp_avg_sq")]
        states.append([parameter.detach().clone(), *moments])
    first, skipped, last = states
    assert all(torch.equal(a, b) for a, b in zip(first, skipped, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(skipped, last, strict=True))


def test_after_a_joined_gradient_the_next_one_is_clipped_by_its_own_norm() -> None:
    joined, other = torch.tensor([[3.0], [0.1], [0.2]]), torch.tensor([4.0])
    norms = gradient_norms([joined, other], [3, 1]).tolist()
    clip_each_([joined, other], [3, 1], norms, 1.0)
    torch.testing.assert_close(joined, torch.tensor([[1.0], [0.1], [0.2]]))
    torch.testing.assert_close(other, torch.tensor([1.0]))


class Calls(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operators that are called inside."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("clip", [0.0, 1e-3, 10.0])
def test_bert_adam_calls_few_operators(clip: float) -> None:
    """Their number does not grow with the number of tensors."""

    def count_calls(number: int) -> int:
        count = 0
        parameters = [nn.Parameter(torch.ones(2, 3)) for _ in range(number)]
        optimizer = BertAdam(parameters, lr=0.1, clip=clip)
        for _ in range(2):  # the first one makes the state
            for parameter in parameters:
                parameter.grad = torch.ones(2, 3)
            optimizer.known_norms = optimizer.gradient_norms().tolist()
            with Calls() as calls:
                optimizer.step()
            count = calls.count
        return count

    assert count_calls(200) == count_calls(2) <= 30


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
    with pytest.raises(ValueError, match=r"expected|negative"):
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
    with pytest.raises(ValueError, match="another model; different: bias"):
        other.load_state_dict({**average.state_dict(), "bias": torch.zeros(1)})
