"""Counts useful operations of a training step, and the share of a device's peak that they make.

Products of real positions count, those of padding do not; element-wise work is left out, as in
published counts. A multiply-add counts as two, and backward as twice the forward pass.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from vlmill.train.devices.throughput import operations_counter
from vlmill.train.loading.batch import HostBatch

# Forward: scores and mixing, a multiply-add each for every query, key and channel. Backward: twice.
ATTENTION_OPERATIONS = 3 * 2 * 2
# What attention is computed by, whatever kernel: fused ones and products batch by batch. No layer
# of the models but attention uses the latter.
OF_ATTENTION = ("attention", "attn", "bmm")


def useful_operations(
    work: Callable[[], object], batch: HostBatch, variant: str, config: Any
) -> int:
    """Counts the useful operations of ``work``, a packed and not compiled step on ``batch``.

    What multiplies rows with weights is counted as it runs, since packed rows are real ones.
    Attention may go through padding or through a kernel that the counter does not know, so it is
    counted by hand. VLMo's pairs meet in matching by chance, so its attention counts as it runs in
    a grid: the padding of captions behind 197 positions of an image is 1 % of a step at most.
    """
    counter = operations_counter()
    with counter:
        work()
    counts = counter.get_flop_counts()["Global"]
    if variant == "vlmo":
        return sum(counts.values())
    texts, regions = batch.tensors["token_mask"].sum(1), batch.tensors["region_mask"].sum(1)
    return without_attention(counts) + attention_operations(variant, config, texts, regions)


def without_attention(counts: Mapping[Any, int]) -> int:
    """Returns the sum over the operators that do not belong to attention."""
    return sum(
        count
        for operator, count in counts.items()
        if not any(part in str(operator) for part in OF_ATTENTION)
    )


def attention_operations(variant: str, config: Any, texts: Tensor, regions: Tensor) -> int:
    """Counts attention's operations of a variant that reads regions, forward and backward, from the
    lengths [B] of pairs.

    The last layer's queries are counted whole, though few are read: 0.2 % of a step at most.
    """
    within_texts, within_regions = _products(texts, texts), _products(regions, regions)
    across = _products(texts, regions)
    joined = within_texts + within_regions + 2 * across
    match variant:
        case "vilbert":
            channels = (
                config.num_layers * config.width * within_texts
                + config.visual_num_layers * config.visual_width * within_regions
                + 2 * len(config.text_co_layers) * config.co_width * across
            )
        case "interbert":
            channels = config.width * (
                config.num_interaction_layers * joined
                + config.num_text_layers * within_texts
                + config.num_visual_layers * within_regions
            )
        case "vl-bert" | "imagebert":
            channels = config.num_layers * config.width * joined
        case _:
            raise ValueError(f"{variant}: attention is known of models that read regions")
    return ATTENTION_OPERATIONS * int(channels)


def _products(queries: Tensor, keys: Tensor) -> int:
    """Returns pairs of a query and a key, over all sequences."""
    return int((queries.long() * keys.long()).sum())


def utilisation(operations: float, seconds: float, peak: float) -> float:
    """Returns model FLOPs utilisation: what the operations would take at ``peak``, of the time
    taken.
    """
    if seconds <= 0 or peak <= 0:
        raise ValueError(f"{seconds} s at {peak} operations/s: expected both above 0")
    return operations / seconds / peak


def padding_share(batches: list[HostBatch]) -> float:
    """Returns the share of positions of texts and regions that are padding, when each batch is a
    grid.
    """
    masks = [
        batch.tensors[name]
        for batch in batches
        for name in ("token_mask", "region_mask")
        if name in batch.tensors
    ]
    return 1 - sum(int(torch.sum(mask)) for mask in masks) / sum(mask.numel() for mask in masks)
