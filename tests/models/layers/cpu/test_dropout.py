"""Dropout keeps as many as it says, keeps means, and repeats itself from a seed."""

import pytest
import torch

from vlmill.models.layers.cpu.dropout import cpu_dropout, drops_faster
from vlmill.models.layers.operators import Dropout


@pytest.mark.parametrize("rate", [0.1, 0.25, 0.9])
def test_shares_and_means(rate: float) -> None:
    torch.manual_seed(0)
    out = cpu_dropout(torch.ones(400, 1003), rate)
    dropped = (out == 0).float()
    assert dropped.mean().item() == pytest.approx(rate, abs=0.005)
    assert out.mean().item() == pytest.approx(1, abs=0.02)
    scale = 1 / (1 - round(rate * 65536) / 65536)
    assert sorted(set(out.flatten().tolist())) == pytest.approx([0.0, scale])
    # No place in a draw of four is dropped more often than another.
    of_places = dropped.flatten()[: 400 * 1000].view(-1, 4).mean(0)
    assert of_places.tolist() == pytest.approx([rate] * 4, abs=0.01)


def test_gradients_pass_where_numbers_did() -> None:
    hidden = torch.randn(5, 7, requires_grad=True)
    out = cpu_dropout(hidden, 0.5)
    out.sum().backward()  # type: ignore[no-untyped-call]
    assert hidden.grad is not None
    assert torch.equal(hidden.grad != 0, out != 0)


def test_the_same_seed_gives_the_same() -> None:
    hidden, results = torch.randn(3, 5), []
    for _ in range(2):
        torch.manual_seed(4)
        results.append([cpu_dropout(hidden, 0.3), cpu_dropout(hidden, 0.3)])
    assert torch.equal(results[0][0], results[1][0])
    assert not torch.equal(results[0][0], results[0][1])


def test_nothing_changes_in_evaluation_and_at_rate_0() -> None:
    hidden = torch.randn(3)
    assert Dropout(0.5).eval()(hidden) is hidden
    assert Dropout(0.0).train()(hidden) is hidden
    assert cpu_dropout(torch.empty(0, 3), 0.5).shape == (0, 3)


def test_a_rate_that_is_no_share_is_refused() -> None:
    with pytest.raises(ValueError, match=r"dropout rate 1\.0: expected a share"):
        Dropout(1.0)


def test_other_kinds_of_numbers_are_left_to_pytorch() -> None:
    hidden = torch.ones(64, 64)
    assert drops_faster(hidden)
    assert not drops_faster(hidden.double()) and not drops_faster(hidden.to("meta"))
    torch.manual_seed(0)
    assert set(Dropout(0.5).train()(hidden.double()).flatten().tolist()) == {0.0, 2.0}
