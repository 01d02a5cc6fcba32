"""Replaces a detector: features of given boxes, from the pixels inside them only.

R regions, D feature width, K classes. A feature is a fixed random convolution of the box's pixels,
resized to a fixed grid, rectified, pooled and projected, with noise: it knows nothing that the
pixels do not show. Classes are the true ones, except where the detector is made to err.
"""

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vlmill.runtime.readers.regions import RegionRow
from worlds.images import Boxes, Pixels
from worlds.scenes import Scene, World

Features = NDArray[np.float32]
GRID, KERNEL, STRIDE, CHANNELS, POOL = 24, 5, 2, 32, 2


@dataclass(frozen=True, kw_only=True)
class Detector:
    """Says how regions come about. ``noise`` is the deviation of what is added to features, whose
    own is about 1.8; ``class_error`` the share of regions of a wrong class; ``extra_boxes`` how
    many boxes each thing has beside the tight one, shifted and scaled as a detector's duplicates
    are.

    With the defaults a linear readout of a region names its colour in 91 of 100 cases and its shape
    in 84 (of 6), boxes around two things and wrong classes counted as errors.
    """

    seed: int = 0
    feature_dim: int = 256
    noise: float = 0.1
    class_error: float = 0.05
    extra_boxes: int = 1

    def __post_init__(self) -> None:
        if self.feature_dim < 1 or self.noise < 0 or self.extra_boxes < 0:
            raise ValueError("expected feature_dim from 1, noise and extra_boxes from 0 up")
        if not 0 <= self.class_error <= 1:
            raise ValueError(f"class_error={self.class_error}: expected a share")

    def fingerprint(self, world: World) -> str:
        """Identifies what features and class numbers mean; errors and noise do not change that."""
        sizes = [GRID, KERNEL, STRIDE, CHANNELS, POOL, self.feature_dim]
        meaning = {"seed": self.seed, "sizes": sizes, "classes": world.kinds}
        message = json.dumps(meaning, sort_keys=True)
        return hashlib.sha256(message.encode()).hexdigest()[:32]

    @cached_property
    def _weights(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        rng = np.random.default_rng([self.seed, 1])
        filters = rng.standard_normal((KERNEL * KERNEL * 3, CHANNELS))
        # Half of them ignore brightness differences within the window, half are blind to its mean:
        # colour, and edges.
        filters = filters.reshape(KERNEL * KERNEL, 3, CHANNELS)
        filters[..., : CHANNELS // 2] = filters[..., : CHANNELS // 2].mean(0, keepdims=True) * 3
        filters[..., CHANNELS // 2 :] -= filters[..., CHANNELS // 2 :].mean(0, keepdims=True)
        cells = ((GRID - KERNEL) // STRIDE + 1) // POOL
        width = cells * cells * CHANNELS
        projection = rng.standard_normal((width, self.feature_dim)) / np.sqrt(width)
        return filters.reshape(-1, CHANNELS) / KERNEL, projection

    def features(self, pixels: Pixels, boxes: Boxes) -> Features:
        """Returns the features [R, D] without noise, from the pixels inside each box."""
        if not len(boxes):
            return np.empty((0, self.feature_dim), np.float32)
        filters, projection = self._weights
        crops = np.stack([crop(pixels, box) for box in boxes]) / 127.5 - 1
        windows = np.lib.stride_tricks.sliding_window_view(crops, (KERNEL, KERNEL), axis=(1, 2))
        windows = windows[:, ::STRIDE, ::STRIDE].transpose(0, 1, 2, 4, 5, 3)
        count, height, width = windows.shape[:3]
        maps = np.maximum(windows.reshape(count, height, width, -1) @ filters, 0)
        cells = height // POOL
        maps = maps[:, : cells * POOL, : cells * POOL]
        pooled = maps.reshape(count, cells, POOL, cells, POOL, CHANNELS).mean((2, 4))
        features: Features = np.float32(4) * (np.tanh(pooled).reshape(count, -1) @ projection)
        return features.astype(np.float32)

    def detect(
        self,
        world: World,
        scene: Scene,
        pixels: Pixels,
        boxes: Boxes,
        image_id: str,
        rng: np.random.Generator,
    ) -> RegionRow:
        """Returns the regions of an image, the surest first. ``boxes`` are the things' tight
        ones.
        """
        every, owners = _with_duplicates(boxes, self.extra_boxes, world.side, rng)
        kinds = np.array([world.kinds.index(t.kind) for t in scene.things])
        right = kinds[owners]
        wrong = rng.uniform(size=len(owners)) < self.class_error
        guesses = rng.integers(len(world.kinds), size=len(owners))
        classes = np.where(wrong, guesses, right)
        scores = np.where(
            wrong, rng.uniform(0.3, 0.6, len(owners)), rng.uniform(0.6, 0.95, len(owners))
        )
        scores = scores + rng.uniform(0, 0.04, size=len(owners))
        order = np.argsort(-scores, kind="stable")
        every, classes, scores = every[order], classes[order], scores[order]
        probs = _distributions(classes, scores, len(world.kinds), rng)
        textures = np.array([world.textures.index(t.texture) for t in scene.things])
        clean = self.features(pixels, every)
        whole = np.array([[0, 0, world.side, world.side]], np.float32)
        return RegionRow(
            image_id=image_id,
            width=world.side,
            height=world.side,
            boxes=every,
            features=clean + self.noise * rng.standard_normal(clean.shape).astype(np.float32),
            class_ids=classes.astype(np.int16),
            class_scores=scores.astype(np.float32),
            class_probs=probs,
            attribute_ids=textures[owners][order].astype(np.int16),
            attribute_scores=scores.astype(np.float32),
            global_feature=self.features(pixels, whole)[0],
        )


def crop(pixels: Pixels, box: NDArray[np.float32]) -> NDArray[np.float64]:
    """Returns the pixels inside a box, resized to [GRID, GRID, 3] without looking beyond its
    edges.
    """
    x1, y1, x2, y2 = (int(edge) for edge in (box[0], box[1], np.ceil(box[2]), np.ceil(box[3])))
    inside = pixels[y1:y2, x1:x2]
    return _resized(_resized(inside, 0), 1)


def _resized(pixels: NDArray[Any], axis: int) -> NDArray[np.float64]:
    """Applies linear interpolation to GRID points along an axis."""
    length = pixels.shape[axis]
    at = np.clip((np.arange(GRID) + 0.5) * length / GRID - 0.5, 0, length - 1)
    low = np.floor(at).astype(int)
    high = np.minimum(low + 1, length - 1)
    share = (at - low).reshape([-1 if a == axis else 1 for a in range(pixels.ndim)])
    resized: NDArray[np.float64] = pixels.take(low, axis) * (1 - share)
    resized += pixels.take(high, axis) * share
    return resized


def _with_duplicates(
    boxes: Boxes, extra: int, side: int, rng: np.random.Generator
) -> tuple[Boxes, NDArray[np.int64]]:
    """Returns the tight boxes, then ``extra`` moved copies of each; and whose box each is."""
    owners = np.tile(np.arange(len(boxes)), extra + 1)
    every = boxes[owners].astype(np.float64)
    size = np.tile(every[:, 2:] - every[:, :2], 2)
    moved = every + size * rng.uniform(-0.12, 0.12, size=every.shape)
    moved = np.clip(moved.round(), 0, side)
    every[len(boxes) :] = moved[len(boxes) :]
    return every.astype(np.float32), owners


def _distributions(
    classes: NDArray[np.int64],
    scores: NDArray[np.float64],
    num_classes: int,
    rng: np.random.Generator,
) -> NDArray[np.float32]:
    """Returns probabilities [R, 1 + K], background first, each class at its score."""
    rest = rng.dirichlet(np.full(num_classes + 1, 0.3), size=len(classes))
    rows = np.arange(len(classes))
    rest[rows, classes + 1] = 0
    # No other class may outweigh the region's own, whose score is 0.3 at least.
    rest = np.minimum(rest / rest.sum(1, keepdims=True), 0.4)
    rest *= (1 - scores)[:, None]
    rest[rows, classes + 1] = scores
    rest[:, 0] += 1 - rest.sum(1)
    probs: NDArray[np.float32] = rest.astype(np.float32)
    return probs
