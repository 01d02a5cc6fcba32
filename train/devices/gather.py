"""What all processes hold is brought together.  W processes, B pairs each, D width.

Vectors for contrast, and parameters of which each process holds a part.
"""

from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Float, Shaped
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor


class _Gather(torch.autograd.Function):
    """All processes' rows; backward adds what every process has for one's own."""

    @staticmethod
    def forward(ctx: Any, local: Float[Tensor, " B *rest"]) -> Float[Tensor, "W B *rest"]:
        parts = [torch.empty_like(local) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, local.contiguous())
        return torch.stack(parts)

    @staticmethod
    def backward(ctx: Any, *grads: Float[Tensor, "W B *rest"]) -> Float[Tensor, " B *rest"]:
        summed = grads[0].contiguous()
        dist.all_reduce(summed)
        return summed[dist.get_rank()]


def world_size() -> int:
    """Processes that train together; 1 without any set up."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def is_shared(local: Shaped[Tensor, " B *rest"]) -> bool:
    """Whether other processes hold such rows too; what has no values is never sent."""
    return world_size() > 1 and local.device.type != "meta"


def gather_first(
    local: Shaped[Tensor, " B *rest"], *, exact: bool = True
) -> Shaped[Tensor, " WB *rest"]:
    """Gathers the rows of all processes, W times B, one's own first, the others by rank.

    Every process has to give as many. ``exact``: gradients flow to all processes, so that their
    mean is that of one process with all pairs. Without it they flow to one's own rows alone, as in
    VLMo's code, and the encoders' is that over W (a temperature's is exact either way). Whole
    numbers have no gradient.
    """
    if not is_shared(local):
        return local
    rank = dist.get_rank()
    if local.is_floating_point() and exact:
        parts: list[Tensor] = list(_Gather.apply(local))
    else:
        parts = [torch.empty_like(local) for _ in range(world_size())]
        dist.all_gather(parts, local.detach().contiguous())
        parts[rank] = local
    return torch.cat([parts[rank], *parts[:rank], *parts[rank + 1 :]])


def gather_parts(local: Shaped[Tensor, " A B *rest"]) -> Shaped[Tensor, " AWB *rest"]:
    """Gathers the rows of all processes' parts of a step, by part, then by process, without
    gradients.

    That is their order in one part of one process. Every process has to give as many.
    """
    local = local.detach()
    if not is_shared(local):
        return local.flatten(0, 1)
    received = [torch.empty_like(local) for _ in range(world_size())]
    dist.all_gather(received, local.contiguous())
    return torch.stack(received, 1).flatten(0, 2)


def own_parts(rows: Shaped[Tensor, " AWB *rest"], parts: int) -> Shaped[Tensor, " A B *rest"]:
    """Returns this process's rows of what :func:`gather_parts` gives."""
    rank = dist.get_rank() if world_size() > 1 else 0
    return rows.reshape(parts, world_size(), -1, *rows.shape[1:])[:, rank]


def longest_of_all(length: int, device: torch.device) -> int:
    """Returns the largest ``length`` of all processes: texts can be gathered only if padded to it.

    What has no values (the meta device) is never sent.
    """
    if world_size() == 1 or device.type == "meta":
        return length
    longest = torch.tensor(length, device=device)
    dist.all_reduce(longest, op=dist.ReduceOp.MAX)
    return int(longest.item())


def gather_tensor(value: Shaped[Tensor, "*shape"]) -> Shaped[Tensor, "*shape"]:
    """Gathers a value that is divided among processes; gives any other back."""
    return value.full_tensor() if isinstance(value, DTensor) else value


def laid_out_like(
    value: Shaped[Tensor, "*shape"], parameter: Shaped[Tensor, "..."]
) -> Shaped[Tensor, "*shape"]:
    """``value`` on the parameter's device, and divided among processes as the parameter is."""
    if isinstance(value, DTensor):
        return value
    device_value = value.to(parameter.device)
    if isinstance(parameter, DTensor) and device_value.ndim:
        return distribute_tensor(device_value, parameter.device_mesh, parameter.placements)
    return device_value
