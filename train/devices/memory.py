"""Measures how much memory training has used."""

import resource
import sys

import torch

RSS_UNIT = 1 if sys.platform == "darwin" else 1024  # the unit of getrusage, in bytes


def peak_memory(device: torch.device) -> dict[str, int]:
    """Returns the peak memory in bytes by its name in the log, without waiting for a device.

    On CUDA ``device_memory_bytes`` counts all tensors together, as PyTorch does, without its cache
    and the memory of libraries. Elsewhere, where tensors are in the process's memory,
    ``process_memory_bytes`` is its peak resident memory, including mapped files.
    """
    if device.type == "cuda":
        return {"device_memory_bytes": torch.cuda.max_memory_allocated(device)}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"process_memory_bytes": peak * RSS_UNIT}
