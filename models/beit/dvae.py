"""Defines image tokenizers, which turn an image into a grid of visual tokens, BEiT's targets.

These are DALL-E's encoder (Ramesh et al., arXiv:2102.12092, released code) and the discrete
variational auto-encoder of BEiT's repository. B images of Sy x Sx pixels, Gy x Gx tokens (an eighth
of either), V visual tokens.
"""

import itertools
from collections import OrderedDict
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from vlmill.models.config_checks import check_sizes

DALLE_MARGIN = 0.1  # pixels of 0..1 are mapped to 0.1..0.9


@dataclass(frozen=True, kw_only=True)
class DalleConfig:
    """Holds the sizes of DALL-E's encoder; defaults are those of the released encoder."""

    num_tokens: int = 8192
    width: int = 256
    num_groups: int = 4
    blocks_per_group: int = 2

    def __post_init__(self) -> None:
        check_sizes(self)


@dataclass(frozen=True, kw_only=True)
class DvaeConfig:
    """Holds the sizes of BEiT's own auto-encoder; defaults are those of its training script."""

    num_tokens: int = 8192
    width: int = 256
    num_layers: int = 3
    codebook_width: int = 512

    def __post_init__(self) -> None:
        check_sizes(self)


def map_pixels(pixels: Float[Tensor, "B 3 Sy Sx"]) -> Float[Tensor, "B 3 Sy Sx"]:
    """Scales pixels of 0..1 to the range that DALL-E's encoder expects."""
    return (1 - 2 * DALLE_MARGIN) * pixels + DALLE_MARGIN


class DalleBlock(nn.Module):
    """Computes identity(x) + gain * residual(x); the residual part is a bottleneck."""

    def __init__(self, inputs: int, outputs: int, gain: float) -> None:
        super().__init__()
        inner = outputs // 4
        self.gain = gain
        self.identity = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()
        self.convolutions = nn.ModuleList(
            nn.Conv2d(before, after, size, padding=size // 2)
            for before, after, size in (
                (inputs, inner, 3),
                (inner, inner, 3),
                (inner, inner, 3),
                (inner, outputs, 1),
            )
        )

    def forward(self, x: Float[Tensor, "B I y x"]) -> Float[Tensor, "B O y x"]:
        """Returns features of the same size."""
        inner = x
        for convolution in self.convolutions:
            inner = convolution(F.relu(inner))
        mixed: Float[Tensor, "B O y x"] = self.identity(x) + self.gain * inner
        return mixed


class DalleTokenizer(nn.Module):
    """Runs DALL-E's encoder: groups of blocks; all but the last halve the size."""

    def __init__(self, config: DalleConfig) -> None:
        super().__init__()
        self.config = config
        gain = 1 / (config.num_groups * config.blocks_per_group) ** 2
        self.first = nn.Conv2d(3, config.width, 7, padding=3)
        self.groups = nn.ModuleList()
        inputs = config.width
        for group in range(config.num_groups):
            outputs = config.width * 2**group
            widths = [inputs] + [outputs] * config.blocks_per_group
            self.groups.append(
                nn.ModuleList(
                    DalleBlock(before, after, gain) for before, after in itertools.pairwise(widths)
                )
            )
            inputs = outputs
        self.last = nn.Conv2d(inputs, config.num_tokens, 1)

    def forward(self, pixels: Float[Tensor, "B 3 Sy Sx"]) -> Float[Tensor, "B V Gy Gx"]:
        """Returns logits of visual tokens; ``pixels`` in 0..1, in multiples of 8 as released."""
        _check_size(pixels, 2 ** (self.config.num_groups - 1))
        hidden = self.first(map_pixels(pixels))
        for number, blocks in enumerate(self.groups):
            if number:
                hidden = F.max_pool2d(hidden, 2)
            assert isinstance(blocks, nn.ModuleList)
            for block in blocks:
                hidden = block(hidden)
        logits: Float[Tensor, "B V Gy Gx"] = self.last(F.relu(hidden))
        return logits

    @torch.no_grad()
    def tokens(self, pixels: Float[Tensor, "B 3 Sy Sx"]) -> Int[Tensor, "B Gy Gx"]:
        """Returns the most likely visual token of each grid cell; ``pixels`` are in 0..1."""
        tokens: Int[Tensor, "B Gy Gx"] = self(pixels).argmax(dim=1)
        return tokens


class ResidualBlock(nn.Module):
    """Computes x plus three convolutions of x."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, width, 1),
        )

    def forward(self, x: Float[Tensor, "B H y x"]) -> Float[Tensor, "B H y x"]:
        """Returns features of the same size."""
        mixed: Float[Tensor, "B H y x"] = x + self.net(x)
        return mixed


class Dvae(nn.Module):
    """Runs BEiT's own discrete auto-encoder: 8 x 8 pixels per token with three layers."""

    def __init__(self, config: DvaeConfig) -> None:
        super().__init__()
        self.config = config
        width, layers = config.width, config.num_layers
        self.codebook = nn.Embedding(config.num_tokens, config.codebook_width)
        self.encoder = _stages(nn.Conv2d, [3] + [width] * layers, config.num_tokens)
        self.decoder = _stages(nn.ConvTranspose2d, [config.codebook_width] + [width] * layers, 3)

    def forward(self, pixels: Float[Tensor, "B 3 Sy Sx"]) -> Float[Tensor, "B V Gy Gx"]:
        """Returns logits of visual tokens; ``pixels`` are normalised by (x - 0.5) / 0.5."""
        _check_size(pixels, 2**self.config.num_layers)
        logits: Float[Tensor, "B V Gy Gx"] = self.encoder(pixels)
        return logits

    @torch.no_grad()
    def tokens(self, pixels: Float[Tensor, "B 3 Sy Sx"]) -> Int[Tensor, "B Gy Gx"]:
        """Returns the most likely visual token of each grid cell."""
        tokens: Int[Tensor, "B Gy Gx"] = self(pixels).argmax(dim=1)
        return tokens

    def reconstruct(
        self, pixels: Float[Tensor, "B 3 Sy Sx"], temperature: float
    ) -> Float[Tensor, "B 3 Sy Sx"]:
        """Reconstructs images from codes sampled with Gumbel softmax, to train (BEiT, sec. 2.1).

        Each grid cell is a mixture of codes, which approaches a single code at a low
        ``temperature``. The squared error of the result is the loss; gradients reach all
        parameters.
        """
        shares = F.gumbel_softmax(self(pixels), tau=temperature, dim=1)
        codes = torch.einsum("bvyx,vc->bcyx", shares, self.codebook.weight)
        painted: Float[Tensor, "B 3 Sy Sx"] = self.decoder(codes)
        return painted

    @torch.no_grad()
    def decode(self, tokens: Int[Tensor, "B Gy Gx"]) -> Float[Tensor, "B 3 Sy Sx"]:
        """Reconstructs an image from its tokens, normalised like the input."""
        codes = self.codebook(tokens).permute(0, 3, 1, 2)
        pixels: Float[Tensor, "B 3 Sy Sx"] = self.decoder(codes)
        return pixels


def _stages(
    kind: type[nn.Conv2d] | type[nn.ConvTranspose2d], widths: list[int], outputs: int
) -> nn.Sequential:
    """Builds stages that halve (or double) the size, then a 1 x 1 convolution."""
    parts: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        parts.append(nn.Sequential(kind(before, after, 4, stride=2, padding=1), nn.ReLU()))
        parts.append(ResidualBlock(after))
    parts.append(nn.Conv2d(widths[-1], outputs, 1))
    return nn.Sequential(OrderedDict((str(i), part) for i, part in enumerate(parts)))


def _check_size(pixels: Tensor, factor: int) -> None:
    shape = tuple(pixels.shape)
    if len(shape) != 4 or shape[1] != 3 or shape[2] % factor or shape[3] % factor or not shape[2]:
        raise ValueError(
            f"pixels has shape {shape}, expected [images, 3, height, width] in "
            f"multiples of {factor}"
        )
