"""Joins the processes of a training run, which a launcher has started, into one group."""

from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from accelerate import Accelerator

# While one process measures held-out images, or writes, the others wait: NCCL's own ten minutes
# are over before 5,000 images are. A process that dies is noticed by the launcher, not by this.
LONGEST_WAIT = timedelta(hours=12)


def open_accelerator(precision: str) -> "Accelerator":
    """Opens the devices; under a launcher, also the group of its processes."""
    import torch  # training runs have already loaded it
    from accelerate import Accelerator, DistributedDataParallelKwargs, InitProcessGroupKwargs

    # Heads of objectives without labels in a batch get no gradient.
    unused = DistributedDataParallelKwargs(find_unused_parameters=True)
    return Accelerator(
        mixed_precision=precision,
        kwargs_handlers=[unused, InitProcessGroupKwargs(timeout=LONGEST_WAIT)],
        # Explicit: without an accelerator a launcher's processes would count as single.
        cpu=not torch.accelerator.is_available(),
    )
