"""Refuses what would make the host wait for a GPU, wherever the tensors are."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from vlmill.models.detector.backbone import Maps
from vlmill.models.detector.roi_heads import RoiHeads, number_boxes

REFUSED = (
    "_local_scalar_dense",  # item, int(), bool(), if
    "is_nonzero",
    "equal",
    "nonzero",
    "masked_select",
    "unique",
    "unique_dim",
    "_unique2",
    "lift_fresh",  # torch.tensor and new_tensor: a copy from the host that waits
    "repeat_interleave",
    "nms",  # torchvision's, whose number of boxes comes back
)


class NoHostWaits(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses operators whose results' sizes or values the host has to know."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.split("::")[1]
        assert name not in REFUSED, f"{name} makes the host wait"
        if name in ("index", "index_put", "index_put_"):
            kinds = {index.dtype for index in args[1] if index is not None}
            assert torch.bool not in kinds, f"{name} by flags makes the host wait"
        return func(*args, **(kwargs or {}))


@contextmanager
def refusing_waits() -> Iterator[None]:
    """Inside it such a step raises AssertionError, on a GPU RuntimeError too.

    Regions are described as on a GPU: on a CPU only the places that are taken are computed.
    """

    def waits(*_: object) -> None:
        raise AssertionError("makes the host wait")

    with pytest.MonkeyPatch.context() as patch, NoHostWaits():  # type: ignore[no-untyped-call]
        for name in ("item", "tolist", "numpy", "cpu", "__bool__", "__int__", "__float__"):
            patch.setattr(Tensor, name, waits)
        patch.setattr(RoiHeads, "region_features", as_on_a_gpu)
        if torch.cuda.is_available():
            torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            if torch.cuda.is_available():
                torch.cuda.set_sync_debug_mode("default")


def as_on_a_gpu(heads: RoiHeads, maps: Maps, boxes: Tensor, _: Tensor, chunk: int) -> Tensor:
    """All places, free ones too."""
    return heads.pooled_features(maps, number_boxes(boxes), chunk).view(*boxes.shape[:2], -1)
