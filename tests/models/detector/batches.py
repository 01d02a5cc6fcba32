"""What tests ask of a batch: images in, and of each image the places that are taken."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from vlmill.models.detector.config import DetectorConfig
from vlmill.models.detector.faster_rcnn import Detections, FasterRCNN


def limits_of(sizes: Sequence[tuple[float, float]], offset: float) -> Tensor:
    """The farthest corners of images of these heights and widths, x, y, x, y."""
    return torch.tensor([[w - offset, h - offset] * 2 for h, w in sizes])


def min_sides_of(scales: Sequence[float], config: DetectorConfig) -> Tensor:
    """The least sides of proposals in images resized by ``scales``."""
    return torch.tensor([config.min_input_size(scale) for scale in scales])


def detect(
    model: FasterRCNN,
    images: Tensor,
    scales: Sequence[float],
    sizes: Sequence[tuple[int, int]] | None = None,
    chunk: int = 50,
) -> list[Detections]:
    """Each image's own detections, with no free places."""
    config = model.config
    if sizes is None:
        sizes = [(images.shape[2], images.shape[3])] * len(images)
    limits = limits_of(sizes, config.box_offset)
    return each_image(model(images, limits, min_sides_of(scales, config), chunk=chunk))


def each_image(batch: Detections) -> list[Detections]:
    """The images of a batch as batches of one, with no free places."""
    return [
        dataclasses.replace(
            batch,
            **{
                field.name: image_of(getattr(batch, field.name), number, batch)
                for field in dataclasses.fields(batch)
            },
        )
        for number in range(len(batch.box_mask))
    ]


def image_of(values: Tensor | None, number: int, batch: Detections) -> Any:
    """One image's taken places [1, P, ...]."""
    if values is None:
        return None
    return values[number : number + 1, batch.box_mask[number]]


def given(boxes: Tensor) -> tuple[Tensor, Tensor]:
    """Boxes [P, 4] of one image, all of them taken."""
    return boxes[None], torch.ones(1, len(boxes), dtype=torch.bool)
