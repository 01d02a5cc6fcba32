"""Pads batches to a few fixed shapes, which a CUDA graph of a training step needs.

B pairs, E extra rows, T tokens, R regions, C columns of either, D feature width, K classes, M
masked positions.

The work of a step depends on the number of real tokens and regions, which differs from batch to
batch. Extra rows at the end of a batch, treated as texts without images, fill the positions that
are missing to the next multiple of a step (`row_step`). Extra masked positions have no label. The
losses stay unchanged.
"""

import dataclasses
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from vlmill.train.loading.batch import HostBatch
from vlmill.train.loading.sample import IGNORED

# Real tokens, and real regions, are padded to a multiple of a step: a power of two of at most this
# share of their grid, and at least 256. So they have few shapes: sums of more pairs differ more.
SHARE = 24
SMALLEST_STEP = 256
LABELS = 64  # likewise masked and read positions
EXTRA_CELLS = 6 * SMALLEST_STEP  # minimum of positions in the extra rows, of either modality
EXTRA_STEPS = 3  # likewise, in steps


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Holds the shapes that a batch is padded to: extra rows, columns, and positions by type."""

    extra: int  # rows
    columns: int  # T
    shown: int  # columns of the regions that the model sees
    region_columns: int  # of all regions, including regions that only the full image's mean uses
    real_tokens: int
    real_regions: int
    read_tokens: int
    read_regions: int
    masked_tokens: int
    masked_regions: int


# The columns that positions are counted in. Labels come first, as the positions that are read are
# among the real ones.
GRIDS = {
    "masked_tokens": "columns",
    "masked_regions": "shown",
    "real_tokens": "columns",
    "real_regions": "shown",
    "read_tokens": "columns",
    "read_regions": "shown",
}


def find_budget(batch: HostBatch, before: Budget | None = None) -> Budget:
    """Returns shapes that the batch fits into.

    Columns and the numbers of labels never become smaller than ``before``, which makes them
    constant after a few batches; real positions are rounded up for each batch. Raises ValueError
    for a batch without region features.
    """
    tensors = batch.tensors
    if "features" not in tensors:
        raise ValueError("a batch without regions' features has no fixed shapes")
    least = {} if before is None else dataclasses.asdict(before)
    columns = max(tensors["tokens"].shape[1], least.get("columns", 0))
    shown = max(tensors["region_mask"].shape[1], least.get("shown", 0))
    region_columns = max(tensors["hidden"].shape[1], least.get("region_columns", 0))
    pairs = len(tensors["tokens"])
    steps = {"tokens": row_step(pairs * columns), "regions": row_step(pairs * shown)}
    cells = max(EXTRA_CELLS, EXTRA_STEPS * max(steps.values()))
    extra = math.ceil(cells / min(columns, shown))
    labels = {
        name: max(_round_up(len(tensors[name]), LABELS), least.get(name, 0))
        for name in ("masked_tokens", "masked_regions", "read_tokens", "read_regions")
    }
    missing = {kind: labels[f"read_{kind}"] - len(tensors[f"read_{kind}"]) for kind in steps}
    if any(missing[kind] > cells - step for kind, step in steps.items()):
        return find_budget(batch)  # a batch with far fewer labels gets new shapes
    real = {
        f"real_{kind}": _round_up(len(tensors[f"real_{kind}"]) + max(extra, missing[kind]), step)
        for kind, step in steps.items()
    }
    return Budget(
        extra=extra,
        columns=columns,
        shown=shown,
        region_columns=region_columns,
        **real,
        **labels,
    )


def row_step(cells: int) -> int:
    """Returns the step that the real positions of a grid of ``cells`` are rounded up to."""
    share: int = cells // SHARE
    return max(SMALLEST_STEP, 1 << max(share.bit_length() - 1, 0))


def _round_up(number: int, step: int) -> int:
    return -(-number // step) * step


# These are large. They are padded on the device: `copy_padded`.
LARGE = ("features", "class_probs", "class_prob_ids")


def pad_small(batch: HostBatch, budget: Budget) -> HostBatch:
    """Returns the batch in the budget's shapes, without its `LARGE` tensors."""
    rows = len(batch.tensors["tokens"])
    tensors = {}
    for name, tensor in batch.tensors.items():
        if name in GRIDS:
            tensors[name] = _pad_positions(name, tensor, rows, batch, budget)
        elif name in LABEL_VALUES:
            positions, fill = LABEL_VALUES[name]
            tensors[name] = _filled(tensor, (getattr(budget, positions),), fill)
        elif name == "matching":
            tensors[name] = tensor
        elif name not in LARGE:
            tensors[name] = _filled(tensor, padded_shape(name, batch, budget), 0)
    for kind, columns in (("token", budget.columns), ("region", budget.shown)):
        mask = tensors[f"{kind}_mask"]
        mask.view(-1)[tensors[f"real_{kind}s"]] = True
        assert mask.shape == (rows + budget.extra, columns)
    labelled = torch.zeros(budget.masked_regions, dtype=torch.bool)
    labelled[: len(batch.tensors["masked_regions"])] = True
    return dataclasses.replace(
        batch,
        tensors=tensors | {"labelled_regions": labelled},
        num_texts=batch.num_texts + budget.extra,
    )


# Tensors with a value per masked position: the budget's field, and the value of an absent label.
LABEL_VALUES = {
    "token_targets": ("masked_tokens", IGNORED),
    "class_targets": ("masked_regions", IGNORED),
}
COLUMNS = {
    **dict.fromkeys(("tokens", "original_tokens", "token_mask", "segments"), "columns"),
    **dict.fromkeys(("region_locations", "region_mask"), "shown"),
    **dict.fromkeys(("hidden", "features"), "region_columns"),
}


def padded_shape(name: str, batch: HostBatch, budget: Budget) -> tuple[int, ...]:
    """Returns the shape of a batch's tensor, with a row for each pair or label, in the budget."""
    tensor = batch.tensors[name]
    if name in ("class_probs", "class_prob_ids"):
        return (budget.masked_regions, *tensor.shape[1:])
    rows = len(tensor) + budget.extra
    if name == "region_weights":  # of the regions alone, without the full image's column
        return (rows, budget.region_columns - int(batch.whole_image != "none"))
    if name in COLUMNS:
        return (rows, getattr(budget, COLUMNS[name]), *tensor.shape[2:])
    return (rows, *tensor.shape[1:])


def _filled(tensor: Tensor, shape: tuple[int, ...], fill: int) -> Tensor:
    padded = torch.full(shape, fill, dtype=tensor.dtype)
    padded[tuple(slice(length) for length in tensor.shape)] = tensor
    return padded


def _pad_positions(
    name: str, positions: Tensor, rows: int, batch: HostBatch, budget: Budget
) -> Tensor:
    """Returns positions in the budget's grid, padded to the number that the budget has.

    Real positions fill the extra rows evenly, each row from its first column. The positions that
    are read are the first of these. Masked ones repeat the grid's first position, and have no
    label.
    """
    columns = getattr(budget, GRIDS[name])
    mask = batch.tensors["token_mask" if GRIDS[name] == "columns" else "region_mask"]
    old = mask.shape[1]
    moved = positions // old * columns + positions % old
    missing = getattr(budget, name) - len(positions)
    if name.startswith("masked"):
        return torch.cat([moved, moved.new_zeros(missing)])
    kind = name.removeprefix("real_").removeprefix("read_")
    real = getattr(budget, f"real_{kind}") - len(batch.tensors[f"real_{kind}"])
    return torch.cat([moved, _extra_cells(real, budget.extra, columns)[:missing] + rows * columns])


def _extra_cells(number: int, extra: int, columns: int) -> Tensor:
    """Returns the first ``number`` cells of a grid of extra rows, spread over all of them."""
    numbers = torch.arange(extra)
    lengths = number // extra + (numbers < number % extra).long()
    assert int(lengths.min()) > 0 and int(lengths.max()) <= columns
    return (torch.arange(columns) < lengths[:, None]).flatten().nonzero()[:, 0]


def zeros_like_budget(padded: HostBatch, budget: Budget) -> HostBatch:
    """Returns a batch of zeros on the same device, with the `LARGE` tensors in the budget's shapes,
    too. ``padded`` has all others in these shapes.
    """
    tensors = {
        name: tensor.new_zeros(padded_shape(name, padded, budget))
        if name in LARGE
        else torch.zeros_like(tensor)
        for name, tensor in padded.tensors.items()
    }
    return dataclasses.replace(padded, tensors=tensors)


def copy_padded(padded: HostBatch, into: HostBatch) -> None:
    """Copies a batch into one of :func:`zeros_like_budget`; remaining cells of `LARGE` tensors
    become 0.
    """
    for name, target in into.tensors.items():
        source = padded.tensors[name]
        target[tuple(slice(length) for length in source.shape)].copy_(source, non_blocking=True)
        if name in LARGE:
            target[len(source) :].zero_()
            if source.ndim > 2:
                target[:, source.shape[1] :].zero_()
