"""Negatives of VLMo's matching, drawn by numbers that belong to pairs."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from vlmill.train.objectives import contrast as global_contrast
from vlmill.train.objectives.contrast import drawn_by, negative_numbers


def dealt(process: int, processes: int) -> Any:
    """What `negative_numbers` asks of an accelerator."""
    return SimpleNamespace(
        process_index=process, num_processes=processes, device=torch.device("cpu")
    )


def test_numbers_belong_to_pairs_whoever_has_them() -> None:
    whole = negative_numbers(3, 7, 0, 6, dealt(0, 1))
    parts = [negative_numbers(3, 7, 0, 3, dealt(process, 2)) for process in (0, 1)]
    assert whole.shape == (2, 6) and torch.equal(whole, torch.cat(parts, 1))
    assert float(whole.min()) >= 0 and float(whole.max()) < 1
    for other in ((4, 7, 0), (3, 8, 0), (3, 7, 1)):
        assert not torch.equal(whole, negative_numbers(*other, 6, dealt(0, 1)))


def test_candidates_are_drawn_by_their_weights() -> None:
    weights = torch.tensor([[0.0, 1.0, 3.0, 0.0]]).expand(8, 4)
    numbers = torch.tensor([0, 0.1, 0.24, 0.25, 0.26, 0.5, 0.9, 1 - 2**-24])
    images, texts = drawn_by(torch.stack([numbers, numbers.flip(0)]))(weights, weights)
    assert images.tolist() == [1, 1, 1, 2, 2, 2, 2, 2]
    assert texts.tolist() == images.tolist()[::-1]


def test_one_candidate_of_any_weight_is_taken() -> None:
    weights = torch.tensor([[0.0, torch.finfo(torch.float32).tiny, 0.0]])
    ((image,), (text,)) = drawn_by(torch.tensor([[0.0], [1 - 2**-24]]))(weights, weights)
    assert (image, text) == (1, 1)


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_processes_draw_as_one(rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns with one's own pairs first mean the same candidates."""
    pairs, world = 2, 3
    weights = torch.rand(6, 6, generator=torch.Generator().manual_seed(0)).fill_diagonal_(0)
    numbers = torch.rand(2, 6, generator=torch.Generator().manual_seed(1))
    expected = drawn_by(numbers)(weights, weights.T)
    own = torch.arange(rank * pairs, (rank + 1) * pairs)
    first = torch.cat([own, torch.tensor([i for i in range(6) if i not in own])])
    monkeypatch.setattr(global_contrast, "world_size", lambda: world)
    monkeypatch.setattr("torch.distributed.get_rank", lambda: rank)
    found = drawn_by(numbers[:, own])(weights[own][:, first], weights.T[own][:, first])
    drawn: list[Tensor] = [first[columns] for columns in found]
    assert torch.equal(drawn[0], expected[0][own]) and torch.equal(drawn[1], expected[1][own])
