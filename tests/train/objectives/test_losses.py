"""Losses by hand and by their definitions."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.distributions import Categorical, kl_divergence

from vlmill.train.objectives import losses
from vlmill.train.objectives.losses import IGNORED


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_missing_classes_do_not_count() -> None:
    logits = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
    alone = losses.mean_cross_entropy(logits[:1], torch.tensor([0]))
    assert losses.mean_cross_entropy(logits, torch.tensor([0, IGNORED])) == alone


@pytest.mark.parametrize(
    "loss",
    [
        lambda x: losses.mean_cross_entropy(x, torch.zeros(0, dtype=torch.int64)),
        lambda x: losses.mean_divergence(x, x),
        lambda x: losses.mean_soft_cross_entropy(x, x),
        lambda x: losses.mean_squared_error(x, x),
        lambda x: losses.summed_squared_error(x, x),
        lambda x: losses.summed_binary_cross_entropy(x, x),
    ],
)
def test_nothing_to_guess_costs_nothing(loss: object) -> None:
    logits = torch.zeros(0, 5, requires_grad=True)
    value = loss(logits)  # type: ignore[operator]
    value.backward()
    assert value.item() == 0 and logits.grad is not None


@given(st.integers(0, 2**32))
def test_divergence_is_that_of_the_distributions(seed: int) -> None:
    logits, targets = random(4, 6, seed=seed), random(4, 6, seed=seed + 1).softmax(-1)
    targets[0] = torch.tensor([0, 0, 1.0, 0, 0, 0])  # 0 log 0 is 0
    expected = -logits.log_softmax(-1)[0, 2]
    expected += kl_divergence(Categorical(targets[1:]), Categorical(logits=logits[1:])).sum()
    torch.testing.assert_close(losses.mean_divergence(logits, targets), expected / 4)


def test_regions_count_whose_distribution_sums_to_one() -> None:
    logits = random(4, 2)
    targets = torch.tensor([[0.5, 0.45], [0.0, 0.0], [0.3, 0.3], [1.0, 0.2]])
    expected = -(targets[0] * logits[0].log_softmax(-1)).sum()
    torch.testing.assert_close(losses.mean_soft_cross_entropy(logits, targets), expected)
    assert losses.are_whole(targets).tolist() == [True, False, False, False]


@given(st.integers(0, 2**32))
def test_cross_entropy_with_distributions_has_the_gradient_of_the_divergence(seed: int) -> None:
    targets = random(4, 6, seed=seed + 1).softmax(-1)
    gradients = []
    for loss in (losses.mean_divergence, losses.mean_soft_cross_entropy):
        logits = random(4, 6, seed=seed).requires_grad_()
        loss(logits, targets).backward()  # type: ignore[no-untyped-call]
        gradients.append(logits.grad)
    torch.testing.assert_close(gradients[0], gradients[1])


def test_squared_errors_by_hand() -> None:
    predicted, targets = torch.tensor([[1.0, 2.0], [0.0, 0.0]]), torch.zeros(2, 2)
    assert losses.mean_squared_error(predicted, targets) == 5 / 4
    assert losses.summed_squared_error(predicted, targets) == 5 / 2


@pytest.mark.parametrize(("matching_class", "classes"), [(0, [0, 1]), (1, [1, 0])])
def test_classes_of_matching(matching_class: int, classes: list[int]) -> None:
    targets = losses.matching_classes(torch.tensor([1.0, 0.0]), matching_class=matching_class)
    assert targets.tolist() == classes
    logits = random(2, 2)
    odds = logits[:, matching_class] - logits[:, 1 - matching_class]
    torch.testing.assert_close(
        losses.mean_cross_entropy(logits, targets),
        losses.mean_matching(odds, torch.tensor([1.0, 0.0])),
    )


@given(st.integers(2, 5), st.integers(0, 2**32))
def test_contrast_does_not_depend_on_the_order_of_pairs(pairs: int, seed: int) -> None:
    texts, images = random(pairs, 4, seed=seed), random(pairs, 4, seed=seed + 1)
    scale, order = torch.tensor(3.0), torch.randperm(pairs)
    both = losses.contrast(texts, images, scale)
    torch.testing.assert_close(losses.contrast(texts[order], images[order], scale), both)
    torch.testing.assert_close(losses.contrast(images, texts, scale), both)


def test_contrast_by_hand() -> None:
    same = torch.ones(2, 1)
    assert losses.contrast(same, same, torch.tensor(1.0)).item() == pytest.approx(0.6931472)


def test_answers_cost_the_sum_over_answers() -> None:
    value = losses.summed_binary_cross_entropy(torch.zeros(2, 3), torch.zeros(2, 3))
    assert value.item() == pytest.approx(3 * 0.6931472)
