"""Runs RoIAlign and RoI max pooling by torchvision's operators, mostly without its import.

Importing torchvision takes about two seconds of CPU time and 150 MB, most of it for code that a
forward pass does not use. The operators are in one shared library, which `torch.ops.load_library`
loads in milliseconds. torchvision registers the rest in Python when it is imported: gradients,
autocast, and shapes for the compiler. Calls that need one of these import it.

R regions, N images, C channels, G x V cells, P x P bins.
"""

import importlib.util
import sys
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

LIBRARIES = ("_C_stable", "_C")  # torchvision's names for it, the newer one first
OPERATORS = ("roi_align", "roi_pool")


def roi_pool(
    features: Float[Tensor, "N C G V"], rois: Float[Tensor, "R 5"], size: int, scale: float
) -> Float[Tensor, "R C P P"]:
    """Returns the maximum of each bin, as ``torchvision.ops.roi_pool`` does (Girshick 2015).

    ``rois`` are the image's index in the batch and x1, y1, x2, y2 in pixels; ``scale`` is cells per
    pixel. Raises ModuleNotFoundError if torchvision is not installed.
    """
    pooled: Tensor
    if is_plain_forward(features, rois) and has_operators():
        pooled, _ = torch.ops.torchvision.roi_pool(features, rois, scale, size, size)
        return pooled
    from torchvision import ops

    pooled = ops.roi_pool(features, rois, size, scale)
    return pooled


def roi_align(
    features: Float[Tensor, "N C G V"],
    rois: Float[Tensor, "R 5"],
    size: int,
    scale: float,
    *,
    sampling_ratio: int,
    aligned: bool,
) -> Float[Tensor, "R C P P"]:
    """Returns the mean of samples in each bin, as ``torchvision.ops.roi_align`` does (He et al.
    2017).

    ``aligned=False`` is the first version, which is off by half a cell. Other arguments and errors
    are the same as for `roi_pool`.
    """
    aligned_bins: Tensor
    if is_plain_forward(features, rois) and has_operators():
        aligned_bins = torch.ops.torchvision.roi_align(
            features, rois, scale, size, size, sampling_ratio, aligned
        )
        return aligned_bins
    from torchvision import ops

    aligned_bins = ops.roi_align(features, rois, size, scale, sampling_ratio, aligned)
    return aligned_bins


def deformable_conv(
    x: Float[Tensor, "B C H W"],
    offsets: Float[Tensor, "B O G V"],
    weight: Float[Tensor, "D E K K"],
    bias: Float[Tensor, " D"] | None,
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
) -> Float[Tensor, "B D G V"]:
    """Returns ``torchvision.ops.deform_conv2d`` without modulation; the number of groups follows
    from the shapes of ``x`` and ``weight``.
    """
    from torchvision import ops

    convolved: Tensor = ops.deform_conv2d(
        x, offsets, weight, bias, stride=stride, padding=padding, dilation=dilation
    )
    return convolved


def is_plain_forward(features: Tensor, rois: Tensor) -> bool:
    """Returns False if a call needs functions that torchvision registers when it is imported."""
    if torch.compiler.is_compiling() or features.device.type not in ("cpu", "cuda"):
        return False
    needs_gradients = torch.is_grad_enabled() and (features.requires_grad or rois.requires_grad)
    return not (
        needs_gradients
        or torch.is_autocast_enabled(features.device.type)
        or torch.are_deterministic_algorithms_enabled()
    )


@cache
def has_operators() -> bool:
    """Loads the operators' library once per process, and returns whether they are available.

    False means that torchvision has to be imported, for example because a version of torchvision
    keeps the library elsewhere.
    """
    if "torchvision" not in sys.modules:
        try:
            for path in library_files():
                torch.ops.load_library(path)  # type: ignore[no-untyped-call]
        except OSError:  # built for another version of torch: importing torchvision explains it
            return False
    return all(hasattr(torch.ops.torchvision, name) for name in OPERATORS)


def library_files() -> list[Path]:
    """Returns the files of torchvision that have its operators; empty if there are none."""
    spec = importlib.util.find_spec("torchvision")
    folders = (spec.submodule_search_locations or ()) if spec is not None else ()
    paths = (
        Path(folder, name + suffix)
        for folder in folders
        for name in LIBRARIES
        for suffix in EXTENSION_SUFFIXES
    )
    return [path for path in paths if path.is_file()]
