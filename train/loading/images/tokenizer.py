"""Reads the image tokenizer whose tokens masked image modelling predicts.

B images, S pixels per side, G = S / stride tokens per side.
"""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from jaxtyping import Float, Int
from torch import Tensor, device, int64

from vlmill.models.beit.dvae import DalleConfig, DalleTokenizer, Dvae
from vlmill.models.published import load_reference
from vlmill.schemas.errors import InputError

FIELD = "picture_tokenizer"

ImageTokens = Callable[[Float[Tensor, "B 3 S S"]], Int[Tensor, "B G G"]]


class ImageTokenizer(NamedTuple):
    """Holds a frozen network, its number of tokens, and a token's pixels per side."""

    model: DalleTokenizer | Dvae
    num_tokens: int
    stride: int

    def reader(self, where: device) -> ImageTokens:
        """Returns a function on the device ``where``, which takes pixels from 0 to 1.

        It is a plain function, so that a module that holds it does not train or store the network.
        """
        model = self.model.to(where).eval().requires_grad_(False)

        def tokens(pixels: Float[Tensor, "B 3 S S"]) -> Int[Tensor, "B G G"]:
            return model.tokens(pixels if isinstance(model, DalleTokenizer) else 2 * pixels - 1)

        return tokens


def read_image_tokenizer(path: str | Path) -> ImageTokenizer:
    """Reads DALL-E's encoder or BEiT's auto-encoder, recognised by the names in the file.

    The names may be the published ones or vlmill's; sizes are inferred from the weights. Raises
    InputError for any other file.
    """
    try:
        model = load_reference("dvae", path)
    except (ValueError, OSError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(
            f"{FIELD}={path}: {reason}; give the weights of DALL-E's encoder or of BEiT's tokenizer"
        ) from None
    assert isinstance(model, DalleTokenizer | Dvae)
    config = model.config
    halvings = config.num_groups - 1 if isinstance(config, DalleConfig) else config.num_layers
    return ImageTokenizer(model=model, num_tokens=config.num_tokens, stride=2**halvings)


def blank_tokens(pixels: Float[Tensor, "B 3 S S"], stride: int) -> Int[Tensor, "B G G"]:
    """Returns tokens that are all 0, for uses where only shapes matter."""
    batch, _, height, width = pixels.shape
    return pixels.new_zeros(batch, height // stride, width // stride, dtype=int64)
