"""Gathers data from all processes. W processes, B pairs each, D width.

It gathers vectors for contrast, and parameters that are sharded among processes.
"""

from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Float, Shaped
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor


class _Gather(torch.autograd.Function):
    """Gathers all processes' rows; backward sums all processes' gradients of this one's rows."""

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
    """Returns the number of processes that train together; 1 without a process group."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def is_shared(local: Shaped[Tensor, " B *rest"]) -> bool:
    """Returns whether other processes hold such rows too; tensors without values are never sent."""
    return world_size() > 1 and local.device.type != "meta"


def gather_first(
    local: Shaped[Tensor, " B *rest"], *, exact: bool = True
) -> Shaped[Tensor, " WB *rest"]:
    """Gathers the rows of all processes, W times B, this process's first, the others by rank.

    Every process has to provide the same number of rows. With ``exact`` gradients flow to all
    processes, so that their mean is the gradient of one process with all pairs. Without it they
    flow only to this process's rows, as in VLMo's code, and the encoders' gradient is that divided
    by W (a temperature's is exact in both cases). Integers have no gradient.
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
    """Gathers the rows of all processes' parts, by part, then by process, without gradients.

    This is their order in one part of one process. Every process has to provide the same number of
    rows.
    """
    local = local.detach()
    if not is_shared(local):
        return local.flatten(0, 1)
    received = [torch.empty_like(local) for _ in range(world_size())]
    dist.all_gather(received, local.contiguous())
    return torch.stack(received, 1).flatten(0, 2)


def own_parts(rows: Shaped[Tensor, " AWB *rest"], parts: int) -> Shaped[Tensor, " A B *rest"]:
    """Returns this process's rows of the result of :func:`gather_parts`."""
    rank = dist.get_rank() if world_size() > 1 else 0
    return rows.reshape(parts, world_size(), -1, *rows.shape[1:])[:, rank]


def longest_of_all(length: int, device: torch.device) -> int:
    """Returns the largest ``length`` of all processes: texts must be padded to it before gathering.

    Tensors without values (the meta device) are never sent.
    """
    if world_size() == 1 or device.type == "meta":
        return length
    longest = torch.tensor(length, device=device)
    dist.all_reduce(longest, op=dist.ReduceOp.MAX)
    return int(longest.item())


def gather_tensor(value: Shaped[Tensor, "*shape"]) -> Shaped[Tensor, "*shape"]:
    """Gathers a value that is sharded among processes; returns any other value unchanged."""
    return value.full_tensor() if isinstance(value, DTensor) else value


def laid_out_like(
    value: Shaped[Tensor, "*shape"], parameter: Shaped[Tensor, "..."]
) -> Shaped[Tensor, "*shape"]:
    """Returns ``value`` on the parameter's device, sharded among processes like the parameter."""
    if isinstance(value, DTensor):
        return value
    device_value = value.to(parameter.device)
    if isinstance(parameter, DTensor) and device_value.ndim:
        return distribute_tensor(device_value, parameter.device_mesh, parameter.placements)
    return device_value
