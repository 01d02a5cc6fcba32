"""Computes a ResNet's pooled vector of a full image, as additional features of an image filter.

Any of torchvision's plain ResNets is recognised by its weights. The weights become part of the
filter's file, so a filter is one file. It loads torch, so it is imported only for filters with a
backbone.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import nn
from torchvision.models.resnet import BasicBlock, Bottleneck, ResNet

from vlmill.models.convert.files import read_state
from vlmill.schemas.errors import InputError

SIDE = 224
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet, as in torchvision
UNUSED = ("fc.", "module.fc.")
BLOCK = re.compile(r"layer([1-4])\.(\d+)\.")
MOST_BLOCKS = 64  # per stage; ResNet-152 has 36


def read_backbone(path: str | Path, *, flag: str = "--backbone") -> dict[str, npt.NDArray[Any]]:
    """Reads the weights of a ResNet without its classifier, float32 by torchvision's names.

    Raises InputError for a file that cannot be read or is not a ResNet's.
    """
    try:
        state = read_state(Path(path))
    except (ValueError, OSError) as error:
        raise InputError(f"{flag} {error}") from None
    weights = {
        name: tensor.float().numpy() if tensor.is_floating_point() else tensor.numpy()
        for name, tensor in state.items()
        if not name.startswith(UNUSED)
    }
    open_backbone(weights, source=f"{flag} {path}")
    return weights


def open_backbone(weights: Mapping[str, npt.NDArray[Any]], *, source: str) -> ResNet:
    """Builds the network of these weights, in evaluation mode.

    Raises InputError, whose message begins with ``source``, for weights that do not belong to one
    of torchvision's ResNets.
    """
    depths = [0, 0, 0, 0]
    for name in weights:
        if (match := BLOCK.match(name)) and int(match[2]) < MOST_BLOCKS:
            depths[int(match[1]) - 1] = max(depths[int(match[1]) - 1], int(match[2]) + 1)
    block: type[BasicBlock | Bottleneck] = (
        Bottleneck if "layer1.0.conv3.weight" in weights else BasicBlock
    )
    try:
        if not all(depths):
            raise ValueError("it lacks layer1 to layer4")
        with torch.device("meta"):
            network = ResNet(block, depths)
        network.fc = nn.Identity()
        state = {name: torch.from_numpy(np.array(array)) for name, array in weights.items()}
        network.load_state_dict(state, assign=True)
    except (ValueError, RuntimeError) as error:
        reason = str(error).split("\n\t")[-1].splitlines()[0][:200]
        raise InputError(
            f"{source} is not a ResNet of torchvision ({reason}); give the state dict of one"
        ) from None
    network.requires_grad_(False)
    return network.eval()


def get_vector_width(weights: Mapping[str, npt.NDArray[Any]]) -> int:
    """Returns the pooled vector's width: the size of the last block's last normalisation."""
    last = max(
        int(match[2]) for name in weights if (match := BLOCK.match(name)) and match[1] == "4"
    )
    names = [f"layer4.{last}.bn{number}.weight" for number in (3, 2)]
    return len(next(weights[name] for name in names if name in weights))


def vector_function(
    weights: Mapping[str, npt.NDArray[Any]], *, source: str
) -> Callable[[Image.Image], npt.NDArray[np.float32]]:
    """Returns a function that computes an image's pooled vector, float32 [G], with these weights;
    the image is RGB and is not cropped.

    Raises InputError like :func:`open_backbone`.
    """
    network = open_backbone(weights, source=source)
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (MEAN, STD))

    def compute_vector(image: Image.Image) -> npt.NDArray[np.float32]:
        square = image.resize((SIDE, SIDE), resample=Image.Resampling.BILINEAR)
        pixels = torch.from_numpy(np.array(square)).permute(2, 0, 1).float() / 255
        with torch.inference_mode():
            vector: npt.NDArray[np.float32] = network(((pixels - mean) / std)[None])[0].numpy()
        return vector

    return compute_vector
