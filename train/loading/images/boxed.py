"""Prepares images with their regions' boxes, for VL-BERT end to end (its code; arXiv:1908.08530).

B images, R regions with the full image first, H x W pixels, P x P cells of a region.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from vlmill.models.vlbert.config import MEAN_BGR
from vlmill.models.vlbert.region_cnn import ImageRegions
from vlmill.train.loading.boxes import Size, resized_boxes
from vlmill.train.loading.images.crop import planes
from vlmill.train.loading.sample import SampledRegions
from vlmill.train.settings.parts import Feeding

MASKS = "instance_masks"  # of a sample's regions, where its task has outlines


def boxed_image(
    image: Image.Image, regions: SampledRegions, feeding: Feeding
) -> dict[str, npt.NDArray[Any]]:
    """Returns the resized image and its boxes, both mirrored if the sample is.

    The image is uint8 [3, h, w], blue first, resized by bilinear interpolation. The boxes are
    float32 [1 + num_shown, 4] in its pixels; the full image's box is resized like the others.
    ``image`` is RGB and upright.
    """
    row, mirrored = regions.row, regions.mirrored
    size = Size(width=row.width, height=row.height)
    new = size.resized(feeding.short_side, feeding.long_side)
    image = image.resize((new.width, new.height), Image.Resampling.BILINEAR)
    if mirrored:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    image_box = np.array([[0, 0, size.width - 1, size.height - 1]], dtype=np.float32)
    shown_rows = regions.features.find_positions(np.arange(regions.num_shown))
    boxes = np.concatenate([image_box, row.boxes[shown_rows]])
    return {
        "picture": planes(np.asarray(image)[..., ::-1]),
        "boxes": resized_boxes(boxes, size, new, mirrored=mirrored),
    }


def hidden_image(image: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Returns an image of the same size filled with the mean colour, rounded to integers."""
    mean = np.round(MEAN_BGR).astype(image.dtype)[:, None, None]
    return np.broadcast_to(mean, image.shape)


def padded_images(
    samples: Sequence[Mapping[str, npt.NDArray[Any]]], num_shown: int
) -> dict[str, npt.NDArray[Any]]:
    """Returns images uint8 [B, 3, H, W], padded to the right and below, with their sizes and boxes.
    If a sample has them, the regions' ``instance_masks`` [B, R, P, P] are included.
    """
    sizes = np.array([sample["picture"].shape[:0:-1] for sample in samples], dtype=np.float32)
    width, height = sizes.max(axis=0).astype(int).tolist()
    images = np.zeros((len(samples), 3, height, width), dtype=np.uint8)
    boxes = np.zeros((len(samples), num_shown, 4), dtype=np.float32)
    for i, sample in enumerate(samples):
        _, rows, columns = sample["picture"].shape
        images[i, :, :rows, :columns] = sample["picture"]
        boxes[i, : len(sample["boxes"])] = sample["boxes"]
    padded = {"pictures": images, "image_sizes": sizes, "image_boxes": boxes}
    if MASKS in samples[0]:
        masks = np.zeros((len(samples), num_shown, *samples[0][MASKS].shape[1:]), dtype=np.uint8)
        for i, sample in enumerate(samples):
            masks[i, : len(sample[MASKS])] = sample[MASKS]
        padded[MASKS] = masks
    return padded


def make_image_regions(tensors: Mapping[str, Tensor]) -> ImageRegions:
    """Returns the images of pairs, minus VL-BERT's mean colour; pixels outside an image are 0."""
    images, sizes = tensors["pictures"].float(), tensors["image_sizes"]
    mean = torch.tensor(MEAN_BGR, device=images.device).view(3, 1, 1)
    columns = torch.arange(images.shape[3], device=images.device) < sizes[:, :1]
    rows = torch.arange(images.shape[2], device=images.device) < sizes[:, 1:]
    inside = rows[:, None, :, None] & columns[:, None, None, :]
    return ImageRegions(
        images=(images - mean) * inside,
        sizes=sizes,
        boxes=tensors["image_boxes"],
        region_mask=tensors["region_mask"][: len(images)],
        instance_masks=tensors[MASKS].float() if MASKS in tensors else None,
    )
