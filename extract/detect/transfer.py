"""Copies a batch to and from the device, once each; the host does not wait in between."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional

from vlmill.extract.detect.rows import Query
from vlmill.extract.detect.selection import Frames
from vlmill.extract.images import resize
from vlmill.models.detector.boxes import constants
from vlmill.models.detector.config import DetectorConfig
from vlmill.models.inputs import copy_to_device


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Holds images of one input shape on the device."""

    images: Float[Tensor, "N 3 H W"]
    measures: Float[Tensor, "N 25"]  # the input of :func:`make_frames`
    # Boxes in the images' own pixels that replace proposals, and which of the slots are used.
    given_boxes: tuple[Float[Tensor, "N P 4"], Bool[Tensor, "N P"]] | None


def upload_batch(queries: Sequence[Query], spec: DetectorConfig, device: torch.device) -> Batch:
    """Uploads the images, their measures and given boxes to the device."""
    measures = torch.tensor([compute_measures(query, spec) for query in queries])
    given_boxes = None
    if queries[0].boxes is not None:
        boxes, box_mask = pad_boxes([query.boxes for query in queries if query.boxes is not None])
        given_boxes = copy_to_device(boxes, device), copy_to_device(box_mask, device)
    images = images_on_device([query.image for query in queries], spec, device)
    return Batch(
        images=pad_images(images, spec),
        measures=copy_to_device(measures, device),
        given_boxes=given_boxes,
    )


def pad_images(
    images: Float[Tensor, "N 3 H W"], spec: DetectorConfig
) -> Float[Tensor, "N 3 H2 W2"]:
    """Pads images with zeros, right and bottom, to sides that the detector can divide."""
    height, width = images.shape[2:]
    padded_height, padded_width = padded_size(height, width, spec)
    if (padded_height, padded_width) == (height, width):
        return images
    return functional.pad(images, (0, padded_width - width, 0, padded_height - height))


def padded_size(height: int, width: int, spec: DetectorConfig) -> tuple[int, int]:
    """Returns the height and width of an input with its padding."""
    step = max(spec.size_divisibility, 1)
    return -(-height // step) * step, -(-width // step) * step


def images_on_device(
    images: Sequence[resize.NetworkInput | resize.PixelInput],
    spec: DetectorConfig,
    device: torch.device,
) -> Float[Tensor, "N 3 H W"]:
    """Returns the network's inputs on the device; images that are not resized yet are resized
    there.
    """
    small = [image for image in images if isinstance(image, resize.PixelInput)]
    resized = iter(resized_there(small, spec, device)) if small else iter(())
    return torch.stack(
        [
            next(resized)
            if isinstance(image, resize.PixelInput)
            else copy_to_device(image.tensor, device)[0]
            for image in images
        ]
    )


def resized_there(
    images: Sequence[resize.PixelInput], spec: DetectorConfig, device: torch.device
) -> Float[Tensor, "N 3 H W"]:
    """Computes :func:`vlmill.extract.images.resize.network_input` on the device, bit for bit.

    Each image is sent separately: pixels in pinned memory are sent without a copy.
    """
    assert spec.resize == "opencv"
    by_axes: dict[tuple[Axis, Axis], list[int]] = {}
    for number, image in enumerate(images):
        by_axes.setdefault(get_axes(image), []).append(number)
    mean, std = (constants_on_device(tuple(v), device) for v in (spec.pixel_mean, spec.pixel_std))
    resized: dict[int, Tensor] = {}
    for (across, down), numbers in by_axes.items():  # groups images of one size
        pixels = torch.stack(
            [copy_to_device(torch.from_numpy(images[n].pixels), device) for n in numbers]
        )
        columns, rows = positions_there(across, device), positions_there(down, device)
        values = resize.interpolate(pixels.float() - mean, columns, rows) / std
        resized |= dict(zip(numbers, values, strict=True))
    return torch.stack([resized[n] for n in range(len(images))]).permute(0, 3, 1, 2)


Axis = tuple[int, int, float]


def get_axes(image: resize.PixelInput) -> tuple[Axis, Axis]:
    """Returns old size, new size and their factor, for the columns and the rows."""
    height, width = image.size
    return (image.width, width, image.scale), (image.height, height, image.scale)


@lru_cache(maxsize=256)  # photographs have a dozen frequent sizes; each takes up to 20 kB
def positions_there(axis: Axis, device: torch.device) -> resize.Positions:
    """Returns the sampling positions of an axis, computed on the host in double precision."""
    low, high, weight = resize.sample_positions(*axis)
    return copy_to_device(low, device), copy_to_device(high, device), copy_to_device(weight, device)


@cache
def constants_on_device(values: tuple[float, ...], device: torch.device) -> Float[Tensor, " n"]:
    """Returns a detector's numbers on the device, in float32."""
    return constants(values, torch.empty(0, device=device))


def pad_boxes(
    boxes: Sequence[npt.NDArray[np.float32]],
) -> tuple[Float[Tensor, "N P 4"], Bool[Tensor, "N P"]]:
    """Returns the given boxes of several images, and which slots are used."""
    max_boxes = max(len(image_boxes) for image_boxes in boxes)
    filled = torch.zeros((len(boxes), max_boxes, 4))
    box_mask = torch.zeros((len(boxes), max_boxes), dtype=torch.bool)
    for number, image_boxes in enumerate(boxes):
        filled[number, : len(image_boxes)] = torch.from_numpy(image_boxes)
        box_mask[number, : len(image_boxes)] = True
    return filled, box_mask


def compute_measures(query: Query, spec: DetectorConfig) -> list[float]:
    """Returns one image's row of measures for :func:`make_frames`."""
    image, offset = query.image, spec.box_offset
    height, width = image.size
    factor_x, factor_y = image.factors
    padded_height, padded_width = padded_size(height, width, spec)
    clipped = (padded_width, padded_height) if spec.clipped_to == "padded" else (width, height)
    given_factors = (factor_x, factor_y)
    if spec.given_scale == "padded":
        given_factors = padded_width / image.width, padded_height / image.height
    limits = [
        (clipped[0] - offset, clipped[1] - offset),
        (width / factor_x - offset, height / factor_y - offset),
        (image.width - offset, image.height - offset),
        (width - offset, height - offset),
    ]
    pairs = [(factor_x, factor_y), *limits, given_factors]
    return [spec.min_input_size(image.scale), *(v for pair in pairs for v in pair * 2)]


def make_frames(measures: Tensor) -> Frames:
    """Returns the columns of measures [N, 25] by their names."""
    return Frames(
        min_sides=measures[:, 0],
        factors=measures[:, 1:5],
        network_limits=measures[:, 5:9],
        scaled_limits=measures[:, 9:13],
        image_limits=measures[:, 13:17],
        content_limits=measures[:, 17:21],
        given_factors=measures[:, 21:25],
    )


def download(results: Mapping[str, Tensor]) -> Callable[[], dict[str, Tensor]]:
    """Queues the copies to the host; its result waits for all of them."""
    copies = {name: values.to("cpu", non_blocking=True) for name, values in results.items()}
    device = results["taken"].device
    if device.type != "cuda":
        return lambda: copies
    # The thread sleeps while it waits: workers need the cores, and the writer needs the
    # interpreter.
    event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(device))

    def arrived() -> dict[str, Tensor]:
        event.synchronize()
        return copies

    return arrived
