"""Defines the two precisions: ``exact`` for the published numbers, ``fast`` for throughput."""

import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import torch

from vlmill.models.detector.folded import has_bfloat16_convolutions
from vlmill.models.probes import REFUSALS

PROCESSOR = Path("/proc/cpuinfo")


@contextmanager
def computing(precision: Literal["exact", "fast"], device: torch.device) -> Iterator[None]:
    """Sets the arithmetic of the network inside the block, without gradients.

    ``exact``: float32 throughout, TensorFloat-32 off, which PyTorch turns on for convolutions.
    ``fast``: convolutions and linear layers in bfloat16, and the remaining float32 products on CUDA
    in TensorFloat-32; softmaxes, boxes and suppression stay float32. The TensorFloat-32 switches
    belong to the process and are not restored: all threads of a job set the same.
    """
    fast = precision == "fast"
    torch.backends.cuda.matmul.allow_tf32 = fast
    torch.backends.cudnn.allow_tf32 = fast
    # Without a cache: it would keep nothing, since it holds only weights in training.
    with (
        torch.inference_mode(),
        torch.autocast(device.type, torch.bfloat16, enabled=fast, cache_enabled=False),
    ):
        yield


def lacks_bfloat16_units(device: torch.device) -> bool:
    """Returns whether a device computes bfloat16 by converting to float32 and back, without a
    speed-up.

    Processors with AVX512-BF16 or AMX, and ARM processors with bfloat16, compute it natively.
    """
    if device.type != "cpu":
        return False
    if platform.machine().lower() in ("x86_64", "amd64"):
        return not (
            _has_unit(lambda: torch.cpu._is_avx512_bf16_supported(), "avx512_bf16")
            or _has_unit(lambda: torch.cpu._is_amx_tile_supported(), "amx_tile")
        )
    return not has_bfloat16_convolutions()


def _has_unit(ask: Callable[[], bool], flag: str) -> bool:
    """Calls a private function of PyTorch, or asks Linux if it is missing."""
    try:
        return ask()
    except REFUSALS:
        return PROCESSOR.exists() and flag in PROCESSOR.read_text(encoding="utf-8").split()
