"""How much memory training has taken."""

import resource
import sys

import torch

RSS_UNIT = 1 if sys.platform == "darwin" else 1024  # of what getrusage counts, in bytes


def peak_memory(device: torch.device) -> dict[str, int]:
    """The most memory so far, in bytes, by its name in the log; asks no device to wait.

    On CUDA ``device_memory_bytes``: of all tensors at once, as PyTorch counts them (its cache, and
    what libraries take beside, come on top). Elsewhere, where tensors lie in the process's own
    memory, ``process_memory_bytes``: resident at once, mapped files among them.
    """
    if device.type == "cuda":
        return {"device_memory_bytes": torch.cuda.max_memory_allocated(device)}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"process_memory_bytes": peak * RSS_UNIT}
