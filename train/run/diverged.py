"""Writes the message of a run that stops at a loss that is not finite."""

from collections.abc import Mapping, Sequence

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import nn
from torch.distributed.tensor import DTensor

from vlmill.train.loading.batch import HostBatch, describe_not_finite

NAMED = 6  # weights that a message names


def explain_divergence(
    step: int,
    losses: Mapping[str, float],
    norm: float,
    parts: Sequence[HostBatch],
    module: nn.Module,
    accelerator: Accelerator,
) -> str:
    """Returns the message for a step whose ``losses`` or gradient ``norm`` are not finite.

    It names the images, else the weights, that are not finite either, and a remedy.

    An image whose features and boxes are finite is never named. All processes call it, and all name
    the same images.
    """
    loss_text = ", ".join(f"{name} {value:g}" for name, value in losses.items())
    stopped = f"step {step}: {loss_text}, gradient norm {norm:g}; no update was made. "
    images = [image_id for part in parts for image_id in part.not_finite()]
    if accelerator.num_processes > 1:
        images = gather_object(images)
    if images:
        return stopped + describe_not_finite(images)
    if weights := _weights_not_finite(module):
        more = f" and {len(weights) - NAMED} more" if len(weights) > NAMED else ""
        return stopped + (
            f"The model was not finite before the step ({', '.join(weights[:NAMED])}{more}); start "
            "from another --init, or from an earlier checkpoint with a lower optimizer.lr"
        )
    exact = "" if accelerator.mixed_precision == "no" else ", or set precision=no"
    return stopped + (
        "The images of the step and the model's weights are finite, so the run has diverged: lower "
        f"optimizer.lr or lengthen its warm-up{exact}"
    )


def _weights_not_finite(module: nn.Module) -> list[str]:
    """Returns the names of parameters and buffers with a non-finite value in this process."""
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    local = {
        name: value.to_local() if isinstance(value, DTensor) else value
        for name, value in tensors.items()
    }
    return [name for name, value in local.items() if not bool(torch.isfinite(value).all())]
