"""What the network is asked: a picture, and boxes if they are given."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vlmill.extract.pictures.resize import NetworkInput, PixelInput


@dataclass(frozen=True, kw_only=True)
class Query:
    """A picture for the network; ``boxes`` [N, 4] in its own pixels replace proposals."""

    image_id: str
    picture: NetworkInput | PixelInput
    boxes: npt.NDArray[np.float32] | None = None
