"""Defines image filters, which estimate whether an image is racy or a photograph.

A filter reads the statistics of a small copy, and the network's vector if it was fitted with a
backbone. Both filters share the copy.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from vlmill.pipelines.filters import statistics
from vlmill.pipelines.filters.model_file import Model, read_model, require_features
from vlmill.pipelines.filters.statistics import image_statistics, shrunk, small_copy
from vlmill.runtime.extras import require_extra
from vlmill.runtime.units.funnel import Drop
from vlmill.schemas.rejects import Reason

ANY, SAFETY, REALISM = "picture", "safety", "realism"
BACKBONE = "backbone."  # prefix of a network's arrays in the file
BACKBONE_PX = 224

Vector = npt.NDArray[np.float32]


def backbone_names(width: int) -> tuple[str, ...]:
    """Returns the names of the features of a network's vector."""
    return tuple(f"backbone_{number}" for number in range(width))


def compute_features(
    image: Image.Image, backbone: Callable[[Image.Image], Vector] | None
) -> Vector:
    """Returns the statistics of an RGB image, then the network's vector if there is one."""
    values = image_statistics(shrunk(image))
    return values if backbone is None else np.concatenate([values, backbone(image)])


def decode_side(has_backbone: bool) -> int:
    """Returns the side length in pixels to which images are decoded for a filter."""
    return BACKBONE_PX if has_backbone else statistics.SIDE


@dataclass(frozen=True)
class ImageFilter:
    """Applies a fitted filter; can be sent to another process."""

    model: Model

    @classmethod
    def load(
        cls, path: str | Path, *, flag: str = "--model", kind: str | None = None
    ) -> "ImageFilter":
        """Reads the filter of a file that fit_image_filter wrote.

        Raises InputError for other files, and for a filter that is not of the requested ``kind``.
        """
        kinds = (ANY, SAFETY, REALISM) if kind is None else (ANY, kind)
        model = read_model(Path(path), kinds=kinds, flag=flag, fitted_by="fit_image_filter")
        width = len(model.features) - len(statistics.NAMES)
        names = (*statistics.NAMES, *backbone_names(width if model.arrays else 0))
        require_features(model, names, f"{flag} {path}")
        image_filter = cls(model)
        if image_filter.has_backbone:
            image_filter.open_network(f"{flag} {path}")
        return image_filter

    @property
    def has_backbone(self) -> bool:
        """Returns whether the filter was fitted with a network's vector."""
        return bool(self.model.arrays)

    @property
    def threshold(self) -> float:
        """Returns the lowest probability at which an image counts as label 1."""
        return self.model.threshold

    def open_network(self, source: str = "the filter") -> Callable[[Image.Image], Vector]:
        """Returns a function that computes the network's vector. Raises InputError for weights of
        an unknown network.
        """
        require_extra("safety", "torchvision")
        from vlmill.pipelines.filters.backbone import vector_function

        arrays = self.model.arrays
        weights = {n.removeprefix(BACKBONE): a for n, a in arrays.items() if n.startswith(BACKBONE)}
        return vector_function(weights, source=source)

    @cached_property
    def _vector(self) -> Callable[[Image.Image], Vector] | None:
        return self.open_network() if self.has_backbone else None

    def __getstate__(self) -> Mapping[str, Any]:
        return {"model": self.model}  # another process opens the network itself

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state)

    def judge(self, pixels: npt.NDArray[np.uint8]) -> float:
        """Returns the probability, 0 to 1, that an image, RGB uint8 [H, W, 3], has label 1.

        Label 1 is racy for a safety model, and natural for a realism model.
        """
        return self.judge_image(Image.fromarray(pixels))

    def judge_image(self, image: Image.Image) -> float:
        """Returns :meth:`judge` of an RGB image."""
        values = compute_features(image, self._vector)
        return float(self.model.trees.probabilities(values[None])[0])


@dataclass(frozen=True, kw_only=True)
class ImageFilters:
    """Holds the filters of a run; None if a flag is ``none``."""

    safety: ImageFilter | None = None
    realism: ImageFilter | None = None

    @classmethod
    def load(cls, files: Mapping[str, Path | None]) -> "ImageFilters":
        """Reads the files of ``filter_files``. Raises InputError for a file of another kind."""
        filters = {
            kind: ImageFilter.load(path, flag=flag, kind=kind)
            for flag, kind in (("--safety-model", SAFETY), ("--realism-model", REALISM))
            if (path := files[flag]) is not None
        }
        return cls(**filters)

    def settings(self) -> dict[str, Any]:
        """Returns the thresholds for the manifest."""
        return {
            "safety_threshold": self.safety and self.safety.threshold,
            "realism_threshold": self.realism and self.realism.threshold,
        }

    @property
    def judge(self) -> Callable[[Image.Image], Drop | None] | None:
        """Returns :meth:`check_image`; None without filters."""
        return None if self.safety is None and self.realism is None else self.check_image

    def check_image(self, image: Image.Image) -> Drop | None:
        """Returns why a decoded image is dropped, or None. Raises Rejected for
        pixels that are floating-point numbers.

        An image is racy from the safety model's threshold on, and not a photograph below the
        realism model's threshold.
        """
        filters = [
            image_filter for image_filter in (self.safety, self.realism) if image_filter is not None
        ]
        if not filters:
            return None
        side = max(decode_side(image_filter.has_backbone) for image_filter in filters)
        small = small_copy(image, side)
        if self.safety is not None:
            racy = self.safety.judge_image(small)
            if racy >= self.safety.threshold:
                return Drop(Reason.RACY_IMAGE, f"{racy:.3f}")
        if self.realism is not None:
            natural = self.realism.judge_image(small)
            if natural < self.realism.threshold:
                return Drop(Reason.UNREALISTIC_IMAGE, f"{natural:.3f}")
        return None
