"""Defines VLMo's sizes and switches (Bao et al., arXiv:2111.02358), as published.

Where paper and released code differ, defaults follow the code, and `PAPER` the paper.
"""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from vlmill.models.config_checks import (
    INIT_STD,
    LARGE,
    check_heads,
    check_shares,
    check_sizes,
    check_std,
)

SHARED = "shared"  # the only feed-forward part of a layer without experts


@dataclass(frozen=True, kw_only=True)
class VlmoConfig:
    """Holds sizes and switches; defaults are the released base model's (sec. 4.1 and the code)."""

    vocab_size: int = 30522
    width: int = 768
    num_layers: int = 12
    num_heads: int = 12
    intermediate_width: int = 3072
    first_vl_layer: int = 10  # from this one on layers have the vision-language expert, too
    # False: one feed-forward part for all, the standard Transformer of an ablation.
    modality_experts: bool = True
    image_size: int = 224
    patch_size: int = 16
    num_images: int = 1  # of one text: 2 for NLVR2
    max_text_tokens: int = 40
    relative_text_span: int = 196  # the longest text that the relative table covers, from stage 2
    relative_positions: bool = True  # the paper has only learned absolute ones
    absolute_positions: bool = False
    layer_scale: float | None = 0.1  # initial value; the paper has none
    drop_path: float = 0.1  # of the last layer; also the dropout of text embeddings, as released
    pooler: bool = True  # tanh layer between [T_CLS] and classifiers; the paper has none
    contrast: bool = True  # heads: image-text contrast, image-text matching, masked words
    match: bool = True
    mlm: bool = True
    num_contrast_pairs: int = 2  # the second uses the vision-language experts; the paper has one
    init_std: float = INIT_STD

    def __post_init__(self) -> None:
        check_sizes(self, from_zero=("first_vl_layer",))
        check_heads(self)
        check_std(self)
        check_shares(self, "drop_path")
        if self.first_vl_layer > self.num_layers:
            raise ValueError(
                f"first_vl_layer={self.first_vl_layer} is above num_layers={self.num_layers}; "
                "give num_layers for a model without vision-language experts"
            )
        if not self.modality_experts and self.first_vl_layer < self.num_layers:
            raise ValueError(
                f"modality_experts=False leaves no vision-language expert: expected first_vl_layer="
                f"{self.num_layers}, not {self.first_vl_layer}"
            )
        if self.image_size % self.patch_size:
            raise ValueError(
                f"image_size={self.image_size} is not a multiple of patch_size={self.patch_size}"
            )
        if self.relative_positions and self.max_text_tokens > self.relative_text_span:
            raise ValueError(
                f"max_text_tokens={self.max_text_tokens} is above relative_text_span="
                f"{self.relative_text_span}, for which the relative positions are"
            )
        if self.num_contrast_pairs > 2:
            raise ValueError(f"num_contrast_pairs={self.num_contrast_pairs}: expected 1 or 2")
        if self.layer_scale is not None and not 0 < self.layer_scale < math.inf:
            raise ValueError(f"layer_scale={self.layer_scale}: expected a number above 0, or None")

    @property
    def side(self) -> int:
        """Counts the patches along a side."""
        return self.image_size // self.patch_size

    def list_experts(self, layer: int) -> tuple[str, ...]:
        """Returns the names of the feed-forward parts of layer ``number``, from 0 (sec. 3.2)."""
        if not self.modality_experts:
            return (SHARED,)
        return ("text", "image", *(("vl",) if layer >= self.first_vl_layer else ()))


def vlmo_base(**changes: Any) -> VlmoConfig:
    """Returns the released base model: 202.4 million parameters, 176.0 without heads (stated: 175).

    The word decoder (23.4 million) is not tied to the word table.
    """
    return VlmoConfig(**changes)


def vlmo_base_plus(**changes: Any) -> VlmoConfig:
    """Returns the narrow and deep model of the released code: absolute positions, 185.0 million
    parameters.
    """
    plus: dict[str, Any] = {
        "width": 544,
        "num_layers": 24,
        "num_heads": 16,
        "intermediate_width": 2176,
        "first_vl_layer": 21,
        "relative_positions": False,
        "absolute_positions": True,
        "layer_scale": None,
    }
    return VlmoConfig(**(plus | changes))


def vlmo_large(**changes: Any) -> VlmoConfig:
    """Returns the released large model: 599.1 million parameters with heads, 562.6 without."""
    return VlmoConfig(**(LARGE | {"first_vl_layer": 21} | changes))


PAPER: dict[str, Any] = {  # sec. 3.1 to 3.3, where it differs from the code
    "relative_positions": False,
    "absolute_positions": True,
    "layer_scale": None,
    "pooler": False,
    "num_contrast_pairs": 1,
}


def vlmo_base_paper(**changes: Any) -> VlmoConfig:
    """Returns the paper's base model: 200.6 million parameters, 175.4 without heads."""
    return vlmo_base(**(PAPER | changes))


def vlmo_large_paper(**changes: Any) -> VlmoConfig:
    """Returns the paper's large model: 595.7 million parameters, 561.3 without heads."""
    return vlmo_large(**(PAPER | changes))


def vlmo_small(**changes: Any) -> VlmoConfig:
    """Returns a model of 2.7 million parameters with 4,000 words and small images, for trials on a
    CPU.
    """
    small: dict[str, Any] = {
        "vocab_size": 4000,
        "width": 128,
        "num_layers": 4,
        "num_heads": 4,
        "intermediate_width": 512,
        "first_vl_layer": 3,
        "image_size": 64,
        "max_text_tokens": 24,
        "relative_text_span": 24,
        # Training takes few steps: no part should start with a scale near 0 or be dropped.
        "layer_scale": None,
        "drop_path": 0.0,
        # 0.02 is made for a width of 768 and many steps. At a width of 192, after 60 steps of 32
        # generated shapes, R@10 of 200 was 0.69 with 0.05 and 0.23 with 0.02.
        "init_std": 0.07,
    }
    return VlmoConfig(**(small | changes))


def text_stage(config: VlmoConfig) -> VlmoConfig:
    """Returns ``config`` for the second stage: masked words of texts of 196 tokens (sec. 3.4)."""
    return dataclasses.replace(
        config,
        first_vl_layer=config.num_layers,
        max_text_tokens=max(config.max_text_tokens, config.relative_text_span),
        contrast=False,
        match=False,
        mlm=True,
    )


def retrieval(config: VlmoConfig) -> VlmoConfig:
    """Returns ``config`` for a dual encoder: only the first contrastive pair (sec. 4.3)."""
    return dataclasses.replace(config, contrast=True, num_contrast_pairs=1, match=False, mlm=False)


VQA_ANSWERS = 3129  # answers that occur at least nine times in VQA 2's train and val


@dataclass(frozen=True, kw_only=True)
class VlmoVqaConfig:
    """Configures encoder and number of answers; ``two_layers=False`` is the paper's classifier."""

    encoder: VlmoConfig
    num_answers: int = VQA_ANSWERS
    two_layers: bool = True

    def __post_init__(self) -> None:
        if self.num_answers < 1:
            raise ValueError(f"num_answers={self.num_answers}: expected a positive number")


@dataclass(frozen=True, kw_only=True)
class VlmoNlvr2Config:
    """Configures an encoder for two images; ``two_layers=False`` is the paper's classifier."""

    encoder: VlmoConfig
    two_layers: bool = True

    def __post_init__(self) -> None:
        if self.encoder.num_images != 2:
            raise ValueError(f"encoder.num_images={self.encoder.num_images}: NLVR2 needs 2")


@dataclass(frozen=True, kw_only=True)
class VlmoTextConfig:
    """Configures a text classifier on the text experts (GLUE); one label is a regression."""

    encoder: VlmoConfig
    num_labels: int
    dropout: float = 0.1

    def __post_init__(self) -> None:
        check_sizes(self)
        check_shares(self, "dropout")


PRESETS: dict[str, Callable[..., Any]] = {
    "vlmo-base": vlmo_base,
    "vlmo-base-paper": vlmo_base_paper,
    "vlmo-base-plus": vlmo_base_plus,
    "vlmo-large": vlmo_large,
    "vlmo-large-paper": vlmo_large_paper,
    "vlmo-small": vlmo_small,
}
