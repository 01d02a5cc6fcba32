"""Computes the losses of held-out pairs."""

import math
from collections import Counter

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from vlmill.models.inputs import copy_to_device
from vlmill.train.devices.setup import unwrap_step
from vlmill.train.loading.pretrain_batches import PretrainBatches
from vlmill.train.objectives.cached_contrast import cache_contrast
from vlmill.train.objectives.negatives import negative_numbers
from vlmill.train.objectives.pretraining import label_counts


@torch.no_grad()
def held_out_losses(
    module: nn.Module, batches: PretrainBatches, pairs: int, accelerator: Accelerator
) -> dict[str, float]:
    """Returns ``validation/loss`` and ``validation/OBJECTIVE``, over the labels of ``pairs``.

    The pairs and their masks are always the same, and training's random state does not change.
    ``module`` is the wrapped `PretrainingStep`; it is left in evaluation mode.
    """
    weights, every = batches.stage.objectives, accelerator.num_processes
    device, contrast = accelerator.device, unwrap_step(module).contrast
    # The pairs of a training step are contrasted together here, too.
    parts = batches.stage.accumulation if contrast is not None else 1
    # As many for each process: with fewer pairs than that some repeat.
    count = math.ceil(pairs / batches.size / every / parts) * every * parts
    totals: Counter[str] = Counter()
    sums: dict[str, Tensor] = {}
    with torch.random.fork_rng():
        torch.manual_seed(batches.seed)
        module.eval()
        for first in range(0, count, every * parts):
            indices = range(first + accelerator.process_index, first + every * parts, every)
            stored = [batches.assembled(index) for index in indices]
            numbers = [
                negative_numbers(batches.seed, 0, index // every, batches.size, accelerator)
                for index in indices
            ]
            caches = cache_contrast(module, stored, contrast, numbers, accelerator)
            for part, drawn, cached in zip(stored, numbers, caches, strict=True):
                counts = label_counts(part, weights)
                totals.update(counts)
                shares = copy_to_device(
                    torch.tensor(list(counts.values()), dtype=torch.float32), device
                )
                _, losses = module(part.to(device), shares, drawn, cached)
                for name, loss in losses.items():
                    sums[name] = sums.get(name, torch.zeros_like(loss)) + loss
    means = _means(sums, totals, accelerator)
    loss = sum(value * getattr(weights, name) for name, value in means.items())
    return {"validation/loss": loss} | {f"validation/{k}": v for k, v in means.items()}


def _means(
    sums: dict[str, Tensor], totals: Counter[str], accelerator: Accelerator
) -> dict[str, float]:
    """Returns the means of all processes' losses, each over the labels of all."""
    numbers = torch.tensor([float(totals[name]) for name in sums], device=accelerator.device)
    sums_and_numbers = torch.cat([torch.stack(list(sums.values())).float(), numbers])
    values = accelerator.reduce(sums_and_numbers, reduction="sum").tolist()
    pairs = zip(sums, values[: len(sums)], values[len(sums) :], strict=True)
    return {name: value / max(number, 1.0) for name, value, number in pairs}
