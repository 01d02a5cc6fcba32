"""Vectors of two processes in one."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from tests.forked import run_script
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from vlmill.train.devices.gather import gather_first, gather_tensor, world_size
from vlmill.train.objectives.losses import contrast
from vlmill.train.objectives.negatives import same_images
from vlmill.train.optim.adam import BertAdam

PAIRS, WORLD = 3, 2
IMAGES = torch.tensor([4, 7, 9, 7, 2, 9])  # two of them with a caption on each process


def vectors() -> tuple[Tensor, Tensor, Tensor]:
    """Texts, images, and a scale that the processes share."""
    generator = torch.Generator().manual_seed(0)
    texts, images = torch.randn(2, PAIRS * WORLD, 4, generator=generator)
    return texts, images, torch.tensor(2.0)


def after_a_step(mesh: DeviceMesh | None = None) -> Tensor:
    """A joined weight that BertAdam has moved, divided among processes or whole."""
    generator = torch.Generator().manual_seed(1)
    start, gradient = torch.randn(2, 9, 4, generator=generator)
    gradient[3:6] *= 100
    weight, bias = nn.Parameter(start.clone()), nn.Parameter(start[:, 0].clone())
    grads = [gradient, gradient[:, 0].clone()]
    if mesh is not None:
        weight, bias = (
            nn.Parameter(distribute_tensor(p, mesh, [Shard(0)])) for p in (weight, bias)
        )
        grads = [distribute_tensor(grad, mesh, [Shard(0)]) for grad in grads]
    weight.grad, bias.grad = grads
    BertAdam([{"params": [weight, bias], "joins": [3, 1]}], lr=0.1).step()
    return torch.cat([gather_tensor(weight.detach()), gather_tensor(bias.detach())[:, None]], dim=1)


RANK = """
import sys
from tests.forked import run_script
from tests.train.devices.test_gather import run
run(sys.argv[1])
"""


def run(folder: str) -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    own = slice(rank * PAIRS, (rank + 1) * PAIRS)
    results: dict[str, Tensor] = {"numbers": gather_first(torch.tensor([rank]))}
    texts, images, scale = vectors()
    excluded = same_images(gather_first(IMAGES[own]))
    results["sparing"] = contrast(
        gather_first(texts[own]), gather_first(images[own]), scale, excluded
    )
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
    results["divided"] = after_a_step(init_device_mesh("cpu", (WORLD,)))
    torch.save(results, Path(folder) / f"{rank}.pt")
    dist.destroy_process_group()


def test_alone_nothing_is_gathered() -> None:
    local = torch.ones(2, 3)
    assert world_size() == 1 and gather_first(local) is local


@pytest.mark.slow
def test_two_processes_compute_what_one_does(tmp_path: Path) -> None:
    """Exactly: the mean of their gradients is that of one. As VLMo's code: half of it."""
    done = run_script(RANK, tmp_path, ranks=WORLD)
    assert done.returncode == 0, done.stderr
    texts, images, scale = (x.requires_grad_() for x in vectors())
    loss = contrast(texts, images, scale)
    loss.backward()  # type: ignore[no-untyped-call]
    ranks = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(WORLD)]
    sparing = contrast(*vectors(), same_images(IMAGES))
    assert [rank["numbers"].tolist() for rank in ranks] == [[0, 1], [1, 0]]
    for rank in ranks:
        torch.testing.assert_close(rank["sparing"], sparing)
        torch.testing.assert_close(rank["divided"], after_a_step())
    for exact, share in ((True, 1.0), (False, 0.5)):
        for rank in ranks:
            torch.testing.assert_close(rank[f"loss{exact}"], loss.detach())
            torch.testing.assert_close(rank[f"scale{exact}"], scale.grad)
        mean = torch.stack([rank[f"texts{exact}"] for rank in ranks]).mean(0)
        assert texts.grad is not None
        torch.testing.assert_close(mean, texts.grad * share)
