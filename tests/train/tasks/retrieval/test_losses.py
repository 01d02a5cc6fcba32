"""Losses over candidates, by hand."""

import math

import pytest
import torch
from torch import Tensor

from vlmill.train.tasks.retrieval.dual import compute_contrast
from vlmill.train.tasks.retrieval.task import (
    binary_candidates,
    candidate_losses,
    hardest_triplet,
    softmax_candidates,
)


def logits(*shares: float) -> Tensor:
    """Logits whose sigmoids are these."""
    return torch.tensor([shares]).logit().requires_grad_()


def test_binary_by_hand() -> None:
    loss = binary_candidates(logits(0.9, 0.2, 0.5))
    expected = -(math.log(0.9) + math.log(0.8) + math.log(0.5)) / 3
    assert loss.item() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("candidates", [1, 2, 4])
def test_equal_scores_give_the_logarithm_of_their_number(candidates: int) -> None:
    loss = softmax_candidates(torch.full((3, candidates), 1.7))
    assert loss.item() == pytest.approx(math.log(candidates), abs=1e-6)


def test_the_triplet_loss_sees_the_hardest_negative_only() -> None:
    scores = logits(0.6, 0.3, 0.55, 0.1)
    loss = hardest_triplet(scores)
    assert loss.item() == pytest.approx(0.2 + 0.55 - 0.6, abs=1e-6)
    loss.backward()  # type: ignore[no-untyped-call]
    assert scores.grad is not None
    assert scores.grad[0].nonzero().flatten().tolist() == [0, 2]


def test_the_triplet_loss_is_zero_beyond_the_margin() -> None:
    scores = logits(0.9, 0.65, 0.2)
    loss = hardest_triplet(scores)
    assert loss.item() == 0
    loss.backward()  # type: ignore[no-untyped-call]
    assert scores.grad is not None and not scores.grad.any()
    assert hardest_triplet(logits(0.9, 0.65), margin=0.3).item() == pytest.approx(0.05, abs=1e-6)


def test_each_loss_reads_the_head_that_it_trains() -> None:
    by_itself, among = logits(0.9, 0.2), torch.tensor([[1.0, 3.0]])
    both = torch.stack([by_itself, among], dim=-1)
    losses = candidate_losses(both, ("binary", "softmax", "triplet"), margin=0.5)
    assert list(losses) == ["binary", "softmax", "triplet"]
    assert losses["binary"].item() == pytest.approx(-(math.log(0.9) + math.log(0.8)) / 2)
    assert losses["softmax"].item() == pytest.approx(math.log(1 + math.exp(2.0)))
    bounded = among.sigmoid()[0]
    assert losses["triplet"].item() == pytest.approx((0.5 + bounded[1] - bounded[0]).item())
    one_head = candidate_losses(by_itself[..., None], ("binary", "softmax"))
    assert one_head["binary"].item() == losses["binary"].item()
    assert one_head["softmax"].item() == pytest.approx(math.log(1 + 0.25 / 9))


def test_contrast_of_scaled_vectors_by_hand() -> None:
    """Logits 2, 0 and 0, 2 in both directions; the pairs of an image leave each other out."""
    unit = torch.eye(2)
    vectors = torch.stack([2 * unit, unit], dim=1)
    expected = math.log(1 + math.exp(-2.0))
    assert compute_contrast(vectors).item() == pytest.approx(expected, abs=1e-6)
    keys = torch.tensor([4, 4])
    assert compute_contrast(vectors, keys).item() == pytest.approx(0.0, abs=1e-6)
    assert compute_contrast(vectors, torch.tensor([4, 5])).item() == pytest.approx(
        expected, abs=1e-6
    )


@pytest.mark.parametrize("loss", [binary_candidates, softmax_candidates, hardest_triplet])
@pytest.mark.parametrize("shape", [(0, 3), (2, 1)])
def test_nothing_to_compare_is_finite(loss: object, shape: tuple[int, int]) -> None:
    assert callable(loss)
    scores = torch.zeros(shape, requires_grad=True)
    value = loss(scores)
    assert value.isfinite()
    value.backward()
