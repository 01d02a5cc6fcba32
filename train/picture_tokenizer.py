"""The tokenizer of pictures that masked picture modelling guesses, read from a file.

B pictures, S pixels a side, G = S / 8 tokens a side.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from torch import Tensor, device

from vlmill.models.dvae import DalleConfig, DalleTokenizer, Dvae, DvaeConfig
from vlmill.models.reference import load_reference
from vlmill.models.reference.files import read_state
from vlmill.schemas.commands import InputError

FIELD = "picture_tokenizer"


class PictureTokenizer(NamedTuple):
    """A network that is not trained, how many tokens it knows, and a token's pixels a side."""

    model: DalleTokenizer | Dvae
    num_tokens: int
    stride: int

    def reader(self, where: device) -> Callable[[Tensor], Tensor]:
        """A function on ``where``: pixels float32 [B, 3, S, S] of 0..1 to tokens int64 [B, G, G].

        A plain function, so that a module that holds it does not train or store the network.
        """
        model = self.model.to(where).eval().requires_grad_(False)

        def tokens(pixels: Tensor) -> Tensor:
            return model.tokens(pixels if isinstance(model, DalleTokenizer) else 2 * pixels - 1)

        return tokens


def read_picture_tokenizer(path: str | Path) -> PictureTokenizer:
    """DALL-E's encoder or BEiT's auto-encoder, recognised by the names in the file.

    Sizes are read off the weights. Raises InputError for any other file.
    """
    try:
        state = read_state(Path(path))
        config = _config(state)
        model = load_reference("dvae", state, config)
    except (ValueError, OSError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(
            f"{FIELD}={path}: {reason}; give the weights of DALL-E's encoder (a state dict, not "
            "the published pickle) or of BEiT's tokenizer"
        ) from None
    assert isinstance(model, DalleTokenizer | Dvae)
    halvings = config.num_groups - 1 if isinstance(config, DalleConfig) else config.num_layers
    return PictureTokenizer(model=model, num_tokens=config.num_tokens, stride=2**halvings)


def _config(state: Mapping[str, Tensor]) -> DalleConfig | DvaeConfig:
    if "blocks.input.w" in state:
        found = [re.match(r"blocks\.group_(\d+)\.block_(\d+)\.", name) for name in state]
        places = [(int(m[1]), int(m[2])) for m in found if m]
        return DalleConfig(
            num_tokens=len(state["blocks.output.conv.w"]),
            width=len(state["blocks.input.w"]),
            num_groups=max((group for group, _ in places), default=0),
            blocks_per_group=max((block for _, block in places), default=0),
        )
    if "codebook.weight" in state and "encoder.0.0.weight" in state:
        tokens, width = state["codebook.weight"].shape
        stages = {m[1] for name in state if (m := re.match(r"encoder\.(\d+)\.net\.", name))}
        return DvaeConfig(
            num_tokens=tokens,
            width=len(state["encoder.0.0.weight"]),
            num_layers=len(stages),
            codebook_width=width,
        )
    raise ValueError("no tokenizer of pictures")
