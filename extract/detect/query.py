"""Defines the network's inputs: an image, and boxes if they are given."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vlmill.extract.images.resize import NetworkInput, PixelInput


@dataclass(frozen=True, kw_only=True)
class Query:
    """Holds an image for the network; ``boxes`` [N, 4] in its own pixels replace proposals."""

    image_id: str
    image: NetworkInput | PixelInput
    boxes: npt.NDArray[np.float32] | None = None
