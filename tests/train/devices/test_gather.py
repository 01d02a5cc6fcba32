"""Vectors of two processes in one."""

import os
import socket
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.multiprocessing.spawn import spawn

from vlmill.train.devices.gather import gather_first, world_size
from vlmill.train.objectives.losses import contrast

PAIRS, WORLD = 3, 2


def vectors() -> tuple[Tensor, Tensor, Tensor]:
    """Texts, images, and a scale that the processes share."""
    generator = torch.Generator().manual_seed(0)
    texts, images = torch.randn(2, PAIRS * WORLD, 4, generator=generator)
    return texts, images, torch.tensor(2.0)


def run(rank: int, folder: str, port: int) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=rank, world_size=WORLD)
    own = slice(rank * PAIRS, (rank + 1) * PAIRS)
    results: dict[str, Tensor] = {"numbers": gather_first(torch.tensor([rank]))}
    for exact in (True, False):
        texts, images, scale = (x.requires_grad_() for x in vectors())
        all_texts, all_images = (gather_first(x[own], exact=exact) for x in (texts, images))
        loss = contrast(all_texts, all_images, scale)
        loss.backward()  # type: ignore[no-untyped-call]
        assert texts.grad is not None and scale.grad is not None
        results |= {
            f"loss{exact}": loss.detach(),
            f"texts{exact}": texts.grad,
            f"scale{exact}": scale.grad,
        }
    torch.save(results, Path(folder) / f"{rank}.pt")
    dist.destroy_process_group()


def test_alone_nothing_is_gathered() -> None:
    local = torch.ones(2, 3)
    assert world_size() == 1 and gather_first(local) is local


@pytest.mark.slow
def test_two_processes_compute_the_loss_of_one(tmp_path: Path) -> None:
    """Exactly: the mean of their gradients is that of one. As VLMo's code: half of it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    spawn(run, args=(str(tmp_path), port), nprocs=WORLD)  # type: ignore[no-untyped-call]
    texts, images, scale = (x.requires_grad_() for x in vectors())
    loss = contrast(texts, images, scale)
    loss.backward()  # type: ignore[no-untyped-call]
    ranks = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(WORLD)]
    assert [rank["numbers"].tolist() for rank in ranks] == [[0, 1], [1, 0]]
    for exact, share in ((True, 1.0), (False, 0.5)):
        for rank in ranks:
            torch.testing.assert_close(rank[f"loss{exact}"], loss.detach())
            torch.testing.assert_close(rank[f"scale{exact}"], scale.grad)
        mean = torch.stack([rank[f"texts{exact}"] for rank in ranks]).mean(0)
        assert texts.grad is not None
        torch.testing.assert_close(mean, texts.grad * share)
