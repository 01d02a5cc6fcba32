"""The rate of each step of a run."""

from dataclasses import replace

import pytest

from vlmill.train.optim.schedule import constant, cosine, learning_rate, milestones, polynomial
from vlmill.train.recipes import RECIPES, Optimizer, recipe_named


def test_the_schedule_by_hand() -> None:
    """From the updates made before: the first step has rate 0 and the last one not."""
    settings = Optimizer(lr=1.0, warmup=0.2)
    rates = [learning_rate(s, steps=10, settings=settings) for s in range(1, 12)]
    assert rates == pytest.approx([0, 0.5, 1, 7 / 8, 6 / 8, 5 / 8, 4 / 8, 3 / 8, 2 / 8, 1 / 8, 0])


def test_drops_at_epochs_by_hand() -> None:
    """ViLBERT's: up over a tenth, a tenth of the peak from epoch 12, a hundredth from 16."""
    settings = Optimizer(lr=1.0, schedule="milestones", drops=(12, 16), warmup=0.1)
    rates = [
        learning_rate(s, steps=60, settings=settings, epoch_steps=3.0)
        for s in (1, 4, 7, 36, 37, 49)
    ]
    assert rates == pytest.approx([0, 0.5, 1, 1, 0.1, 0.01])
    with pytest.raises(ValueError, match="expected drops"):
        Optimizer(lr=1.0, drops=(12,))


def test_bert_adams_warm_up_is_a_share_of_the_steps_and_others_have_whole_steps() -> None:
    """By the reference's formula on t = step / steps: t / warmup, then (t - 1) / (warmup - 1), or 1
    for the constant schedule; a quarter of 9 steps is 2.25 steps.
    """
    shares = [step / 9 for step in range(9)]
    rising = [t / 0.25 for t in shares if t < 0.25]
    linear = Optimizer(lr=1.0, kind="bert-adam", warmup=0.25)
    rates = [learning_rate(s, steps=9, settings=linear) for s in range(1, 10)]
    assert rates == pytest.approx([*rising, *((t - 1) / (0.25 - 1) for t in shares[3:])])
    constant = replace(linear, schedule="constant")
    rates = [learning_rate(s, steps=9, settings=constant) for s in range(1, 10)]
    assert rates == pytest.approx([*rising, *[1] * 6])
    adamw = Optimizer(lr=1.0, warmup=0.25)
    rates = [learning_rate(s, steps=9, settings=adamw) for s in range(1, 5)]
    assert rates == pytest.approx([0, 1 / 2, 1, 6 / 7])


def test_drops_multiply_bert_adams_warm_up() -> None:
    """ViLBERT's and InterBERT's fine-tuning: 0.1 of 45 steps is 4.5 steps."""
    settings = Optimizer(lr=1.0, kind="bert-adam", schedule="milestones", drops=(2,), warmup=0.1)
    rates = [learning_rate(s, steps=45, settings=settings, epoch_steps=9.0) for s in (5, 6, 19)]
    assert rates == pytest.approx([4 / 4.5, 1, 0.1])


def test_a_warm_up_in_whole_steps_is_not_a_share() -> None:
    settings = Optimizer(lr=1.0, kind="bert-adam", warmup=0.25, warmup_steps=3)
    rates = [learning_rate(s, steps=9, settings=settings) for s in (1, 2, 3, 4)]
    assert rates == pytest.approx([0, 1 / 3, 2 / 3, 1])


def test_steps_counted_from_1() -> None:
    settings = Optimizer(lr=1.0, warmup=0.2, first_step=1)
    rates = [learning_rate(s, steps=10, settings=settings) for s in range(1, 11)]
    assert rates == pytest.approx([0.5, 1, 7 / 8, 6 / 8, 5 / 8, 4 / 8, 3 / 8, 2 / 8, 1 / 8, 0])


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("warmup", [0.0, 1.0])
def test_schedules_of_one_line(warmup: float, first: int) -> None:
    settings = Optimizer(lr=1.0, warmup=warmup, first_step=1 if first else 0)
    rates = [learning_rate(s, steps=4, settings=settings) for s in range(1, 5)]
    up, down = [0, 0.25, 0.5, 0.75, 0], [1, 0.75, 0.5, 0.25, 0]
    assert rates == (up if warmup else down)[first : first + 4]


def test_a_warm_up_in_steps_and_other_ways_down() -> None:
    cosine = Optimizer(lr=2.0, warmup_steps=2, schedule="cosine", end=0.1)
    rates = [learning_rate(s, steps=6, settings=cosine) for s in range(1, 8)]
    assert rates[:3] == pytest.approx([0, 1, 2])
    assert rates[4] == pytest.approx(2 * (0.1 + 0.9 / 2))
    assert rates[6] == pytest.approx(0.2)
    constant = Optimizer(lr=1.0, warmup_steps=1, schedule="constant")
    assert [learning_rate(s, steps=3, settings=constant) for s in (1, 2, 3)] == [0, 1, 1]


def test_a_single_step_without_warm_up_has_the_whole_rate() -> None:
    assert learning_rate(1, steps=1, settings=Optimizer(lr=1.0)) == 1


def test_schedules_by_hand() -> None:
    assert [polynomial(i, warmup=2, total=6) for i in range(8)] == [
        0,
        0.5,
        1,
        0.75,
        0.5,
        0.25,
        0,
        0,
    ]
    assert [constant(i, warmup=2) for i in range(4)] == [0, 0.5, 1, 1]
    squares = [polynomial(i, warmup=0, total=2, power=2, end=0.5) for i in range(4)]
    assert squares == [1, 0.625, 0.5, 0.5]
    assert [cosine(i, warmup=1, total=3) for i in range(4)] == pytest.approx([0, 1, 0.5, 0])
    dropped = [milestones(i, warmup=2, drops=(1, 3)) for i in range(4)]
    assert dropped == pytest.approx([0, 0.05, 0.1, 0.01])


@pytest.mark.parametrize(
    "name", [name for name in RECIPES if not name.endswith(("-small", "-hour"))]
)
def test_the_first_step_of_published_recipes(name: str) -> None:
    """VL-BERT's code begins above 0; those of the others, and BERT's, at 0."""
    recipe = recipe_named(name)
    for stage in recipe.stages:
        rate = learning_rate(1, steps=10**6, settings=stage.optimizer)
        assert (rate > 0) == recipe.variant.startswith("vl-bert")
