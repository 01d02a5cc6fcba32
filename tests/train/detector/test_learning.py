"""Rates, groups and clips by hand."""

import pytest
import torch
from torch import nn

from vlmill.train.detector.learning import clip_gradients, make_optimizer, rate_factor, treatment
from vlmill.train.detector.settings import RECIPES, Solver


def test_the_warm_up_rises_to_what_the_schedule_says_at_its_end() -> None:
    solver = Solver(warmup=10, warmup_from=0.0, drops=(5, 50))
    assert rate_factor(0, 100, solver) == 0
    assert rate_factor(5, 100, solver) == pytest.approx(0.05)  # a drop inside lowers all of it
    assert rate_factor(10, 100, solver) == pytest.approx(0.1)
    assert rate_factor(50, 100, solver) == pytest.approx(0.01)


def test_a_millionth_of_the_run_before_its_end_the_warm_up_is_over() -> None:
    """As a drop is reached: Detectron2 allows for rounding, which is steps in a long run."""
    solver = Solver(warmup=1000, drops=(2_000_000,))
    assert rate_factor(996, 3_000_000, solver) < 1
    assert rate_factor(998, 3_000_000, solver) == 1
    assert rate_factor(1_999_998, 3_000_000, solver) == pytest.approx(0.1)
    assert rate_factor(0, 3_000_000, Solver(warmup=0)) == 1


def test_a_constant_warm_up_a_cosine_and_a_rescaled_schedule() -> None:
    constant = Solver(warmup=10, warmup_from=0.25, warmup_method="constant")
    assert [rate_factor(at, 100, constant) for at in (0, 9, 10)] == [0.25, 0.25, 1.0]
    cosine = Solver(warmup=0, schedule="cosine", end=0.2)
    assert rate_factor(50, 100, cosine) == pytest.approx(0.6)
    rescaled = Solver(warmup=20, drops=(50,), rescale=True)
    assert [rate_factor(at, 100, rescaled) for at in (59, 60)] == pytest.approx([1.0, 0.1])


def test_biases_and_norms_have_their_own_rules() -> None:
    solver = Solver(weight_decay=0.5, norm_decay=0.1, bias_rate=2.0, bias_decay=0.0)
    norms = {"norm.weight", "norm.bias"}
    assert treatment("conv.weight", norms, solver) == (1.0, 0.5)
    assert treatment("norm.weight", norms, solver) == (1.0, 0.1)
    assert treatment("norm.bias", norms, solver) == (2.0, 0.0)


def test_frozen_parameters_are_in_no_group() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Conv2d(4, 2, 1))
    model[0].requires_grad_(False)
    grouped = [p for group in make_optimizer(model, Solver()).param_groups for p in group["params"]]
    assert {id(p) for p in grouped} == {id(p) for p in model.parameters() if p.requires_grad}


@pytest.mark.parametrize(
    ("clip", "expected"),
    [
        ("none", [3.0, 4.0, 0.5]),
        ("value", [1.0, 1.0, 0.5]),
        ("norm", [0.6, 0.8, 0.5]),
        ("global", [0.59702, 0.79603, 0.09950]),
    ],
)
def test_clips(clip: str, expected: list[float]) -> None:
    first, second = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(1))
    first.grad, second.grad = torch.tensor([3.0, 4.0]), torch.tensor([0.5])
    clip_gradients([first, second], Solver(clip=clip))  # type: ignore[arg-type]
    assert torch.cat([first.grad, second.grad]).tolist() == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_are_named_as_they_are_and_drop_within_their_steps(name: str) -> None:
    settings = RECIPES[name]()
    assert settings.name == name
    assert all(drop < settings.steps for drop in settings.solver.drops)
    assert settings.detector.short_side in settings.short_sides
