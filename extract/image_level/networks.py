"""Loads torchvision's classifiers without their last layer, to encode full images.

N images, G numbers of all networks concatenated, S x S pixels of a crop.
"""

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from vlmill.extract.config import NETWORKS
from vlmill.extract.image_level.crop import Crop, Pixels
from vlmill.models.convert.files import read_state
from vlmill.models.detector.published_names import describe_mismatches
from vlmill.models.detector.random_weights import centred_normal
from vlmill.runtime.files.listed import hash_file
from vlmill.schemas.errors import InputError

# Not needed for the vectors: the classifier, and GoogLeNet's auxiliary heads for training.
UNUSED = ("classifier.", "fc.", "aux1.", "aux2.")
COUNTER = "num_batches_tracked"
# Names of torchvision's published DenseNets: they have dots that its modules' names lack.
OLD_DENSENET = re.compile(r"(denselayer\d+\.(?:norm|conv))\.([12])\.")


class Preset(NamedTuple):
    """Holds a published set of torchvision's weights: name, first digits of its file, crop."""

    name: str
    digits: str
    crop: Crop
    mean: tuple[float, float, float]
    std: tuple[float, float, float]


@dataclass(frozen=True, kw_only=True)
class ImageNetwork:
    """Holds one network in evaluation mode, and the identification of its vectors."""

    name: str
    model: nn.Module
    preset: Preset
    weights: str  # the file's name, or "random weights, seed S"
    digest: str

    def record(self) -> dict[str, Any]:
        """Returns the network's entry in a run's metadata."""
        return {
            "network": self.name,
            "width": NETWORKS[self.name],
            "weights": self.weights,
            "digest": self.digest,
            "transforms": self.preset.name,
            "resize": self.preset.crop.resize,
            "crop": self.preset.crop.side,
        }


@dataclass(frozen=True, kw_only=True)
class FullImages:
    """Holds networks on one device, whose vectors are concatenated."""

    networks: tuple[ImageNetwork, ...]
    device: torch.device

    @property
    def width(self) -> int:
        """Returns G, the length of the vectors."""
        return sum(NETWORKS[network.name] for network in self.networks)

    @property
    def crops(self) -> tuple[Crop, ...]:
        """Returns the different crops that the networks need."""
        return tuple(dict.fromkeys(network.preset.crop for network in self.networks))

    def record(self) -> list[dict[str, Any]]:
        """Returns the networks' entries in a run's metadata, in their order."""
        return [network.record() for network in self.networks]

    def vectors(self, images: Sequence[Mapping[Crop, Pixels]]) -> Float[Tensor, "N G"]:
        """Computes the vectors before the classifiers on the device, without waiting for it."""
        vectors = [
            network.model(
                normalise_crops([crops[network.preset.crop] for crops in images], network)
            )
            for network in self.networks
        ]
        return torch.cat([vector.to(vectors[0].dtype) for vector in vectors], dim=1)


def normalise_crops(crops: Sequence[Pixels], network: ImageNetwork) -> Float[Tensor, "N 3 S S"]:
    """Normalises pixels of 0..1 by mean and deviation, like torchvision's transforms."""
    device = next(network.model.parameters()).device
    pixels = torch.from_numpy(np.stack(crops)).to(device).permute(0, 3, 1, 2)
    mean, std = (
        torch.tensor(values, device=device).view(3, 1, 1)
        for values in (network.preset.mean, network.preset.std)
    )
    return (pixels.contiguous().float() / 255 - mean) / std


def open_global_networks(
    names: Sequence[str], files: Sequence[str] | None, *, seed: int, device: torch.device
) -> FullImages:
    """Returns the networks with the files' weights, one each in this order, or with random ones.

    Raises InputError for a file that cannot be read or does not match its network.
    """
    networks = []
    for number, name in enumerate(names):
        path = None if files is None else Path(files[number])
        networks.append(open_network(name, path, seed=seed, device=device))
    return FullImages(networks=tuple(networks), device=device)


def open_network(name: str, path: Path | None, *, seed: int, device: torch.device) -> ImageNetwork:
    """Opens one network with its weights."""
    presets = list_presets(name)
    model = without_classifier(name)
    if path is None:
        randomise(model, seed)
        preset, weights = presets[0], f"random weights, seed {seed}"
    else:
        load_weights(model, name, path)
        preset, weights = find_preset(path, presets), path.name
    model.requires_grad_(False).eval()
    digest = compute_digest(model)
    return ImageNetwork(
        name=name, model=model.to(device), preset=preset, weights=weights, digest=digest
    )


def list_presets(name: str) -> list[Preset]:
    """Returns torchvision's published weights of a network, in torchvision's order."""
    from torchvision.models import get_model_weights

    presets = []
    for weights in get_model_weights(name):
        used = weights.transforms()
        crop = Crop(resize=used.resize_size[0], side=used.crop_size[0])
        digits = weights.url.rpartition("-")[2].removesuffix(".pth")
        presets.append(Preset(weights.name, digits, crop, tuple(used.mean), tuple(used.std)))
    return presets


def find_preset(path: Path, presets: Sequence[Preset]) -> Preset:
    """Returns the transforms of a file: torchvision's files have the start of their SHA-256 in
    their name.

    Other files are treated as the first published weights, whose sizes the others share.
    """
    if len(presets) == 1:
        return presets[0]
    digest = hash_file(path)
    return next((preset for preset in presets if digest.startswith(preset.digits)), presets[0])


def without_classifier(name: str) -> nn.Module:
    """Builds a network up to its pooled vector, without initialising its weights."""
    from torchvision import models

    if name == "googlenet":
        # With weights torchvision's builder also transforms pixels to that network's range.
        model: Any = models.googlenet(aux_logits=False, init_weights=False, transform_input=True)
    else:
        model = models.get_model(name, weights=None)
    classifier = "classifier" if hasattr(model, "classifier") else "fc"
    setattr(model, classifier, nn.Identity())
    network: nn.Module = model
    return network


def load_weights(model: nn.Module, name: str, path: Path) -> None:
    """Loads a state dict of torchvision's. Raises InputError with the difference."""
    try:
        state = read_state(path)
    except ValueError as error:
        raise InputError(f"--global-weights {error}") from None
    state = {OLD_DENSENET.sub(r"\1\2.", key): tensor for key, tensor in state.items()}
    tensors = {key: tensor for key, tensor in state.items() if not key.startswith(UNUSED)}
    expected = model.state_dict()
    want = {key: tensor for key, tensor in expected.items() if key in tensors or COUNTER not in key}
    if mismatch := describe_mismatches(want, tensors):
        raise InputError(
            f"--global-weights {path} is not torchvision's {name}: {mismatch}; give the files "
            "in the "
            "order of --global-cnn"
        )
    model.load_state_dict(tensors, strict=False)  # counters may be absent; the rest was compared


def randomise(model: nn.Module, seed: int) -> None:
    """Fills every weight in place from the seed alone, so that activations keep their scale."""
    from torchvision.models.resnet import Bottleneck

    rng = np.random.default_rng(seed)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.Conv2d):
                module.weight.copy_(centred_normal(module.weight, rng))
            elif isinstance(module, nn.Sequential) and isinstance(module[-1], Bottleneck):
                for block in module.children():  # a stage of a ResNet, whose branches are added
                    assert isinstance(block, Bottleneck)
                    block.bn3.weight.fill_(1 / math.sqrt(len(module)))


def compute_digest(model: nn.Module) -> str:
    """Returns 32 hexadecimal digits over every number of the weights."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        if COUNTER not in name:
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()[:32]
