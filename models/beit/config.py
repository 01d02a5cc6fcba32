"""Defines the sizes and switches of BEiT (Bao et al., arXiv:2106.08254).

Where the paper does not specify a detail, the released code is followed.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from vlmill.models.config_checks import (
    INIT_STD,
    LARGE,
    check_heads,
    check_shares,
    check_sizes,
    check_std,
)


@dataclass(frozen=True, kw_only=True)
class BeitConfig:
    """Holds sizes and switches; defaults are the base model's in pretraining (sec. 2 and 3.1).

    With ``num_visual_tokens`` 0 or ``num_classes`` 0 the model lacks that head.
    """

    width: int = 768
    num_layers: int = 12
    num_heads: int = 12
    intermediate_width: int = 3072
    image_size: int = 224
    patch_size: int = 16
    relative_positions: bool = True
    shared_relative: bool = True  # one table for all layers; a classifier has one per layer
    absolute_positions: bool = False
    layer_scale: float | None = 0.1
    drop_path: float = 0.1
    eps: float = 1e-6  # of all layer norms; transformers' published configurations have 1e-12
    num_visual_tokens: int = 8192
    num_classes: int = 0
    mean_pooling: bool = True  # a classifier pools the patches' mean, else the class token
    init_std: float = INIT_STD

    def __post_init__(self) -> None:
        check_sizes(self, from_zero=("num_visual_tokens", "num_classes"))
        check_heads(self)
        check_std(self)
        check_shares(self, "drop_path")
        if self.image_size % self.patch_size:
            raise ValueError(
                f"image_size={self.image_size} is not a multiple of patch_size={self.patch_size}"
            )
        if self.num_visual_tokens and self.num_classes:
            raise ValueError(
                f"num_visual_tokens={self.num_visual_tokens} and "
                f"num_classes={self.num_classes}: expected only one of the two heads; a "
                "classifier has num_visual_tokens=0"
            )

    @property
    def side(self) -> int:
        """Counts the patches along a side."""
        return self.image_size // self.patch_size

    @property
    def final_norm(self) -> bool:
        """Returns whether a layer norm ends the encoder; mean pooling has one after the mean."""
        return not (self.num_classes and self.mean_pooling)


# The base model of masked image modelling, 92.0 million parameters.
beit_base = partial(BeitConfig)

# The large model, 311.5 million parameters; its layer scales start near 0.
beit_large = partial(BeitConfig, **LARGE, layer_scale=1e-5)


# VLMo's paper has learned absolute positions and no layer scale (arXiv:2111.02358, sec. 3.1), and
# so has the BEiT that it starts from.
PAPER: dict[str, Any] = {
    "relative_positions": False,
    "absolute_positions": True,
    "layer_scale": None,
}

# The base model with the positions of VLMo's paper, 92.1 million parameters.
beit_base_paper = partial(beit_base, **PAPER)

# The large model with the positions of VLMo's paper, 311.7 million parameters.
beit_large_paper = partial(beit_large, **PAPER)

# The narrow and deep model of VLMo's base-plus, 90.4 million parameters.
beit_base_plus = partial(
    beit_base, **PAPER, width=544, num_layers=24, num_heads=16, intermediate_width=2176
)


def image_classifier(config: BeitConfig, num_classes: int) -> BeitConfig:
    """Returns ``config`` for image classification: mean pooling, one relative table per layer."""
    return dataclasses.replace(
        config, num_visual_tokens=0, num_classes=num_classes, shared_relative=False
    )


PRESETS: dict[str, Callable[..., Any]] = {
    "beit-base": beit_base,
    "beit-base-paper": beit_base_paper,
    "beit-base-plus": beit_base_plus,
    "beit-large": beit_large,
    "beit-large-paper": beit_large_paper,
}
