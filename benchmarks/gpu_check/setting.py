"""Defines the settings of a part."""

from dataclasses import dataclass
from pathlib import Path

import torch


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Says where a part runs, and whether at the small size of the tests.

    ``folder`` is the part's own and is removed after it.
    """

    device: torch.device
    tiny: bool
    folder: Path
