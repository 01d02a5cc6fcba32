"""Defines VL-BERT's sizes and switches (Su et al., arXiv:1908.08530), as published.

"Paper" is the first version of the article, with three pretraining tasks; "released" is the code of
the second version. The switches name the differences.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, get_args

from vlmill.models.config_checks import (
    INIT_STD,
    LARGE,
    SMALL,
    check_activation,
    check_heads,
    check_shares,
    check_sizes,
    check_std,
)
from vlmill.models.detector.config import BLOCKS

Geometry = Literal["centre", "corners"]
MaskedRegion = Literal["appearance", "vector", "pixels", "none"]
# A task's classifier: a word head's transform and a linear layer, one linear layer, or two.
Classifier = Literal["mlm", "1fc", "2fc"]
VISUAL_SEGMENT = 2  # C, of regions and [END]; A and B are for text
NUM_SPECIAL_WORDS = 1000  # the rows of a frozen word table that a trained copy replaces
MEAN_BGR = (102.9801, 115.9465, 122.7717)  # of pixels of 0..255, subtracted in end-to-end models
EXPANSION = 4  # a bottleneck's outputs per inner channel


@dataclass(frozen=True, kw_only=True)
class VlBertConfig:
    """Holds sizes and switches; defaults are the released base model's on precomputed regions.

    H = ``width``, V = ``visual_width``, D = ``region_width``.
    """

    vocab_size: int = 30522
    width: int = 768
    num_layers: int = 12
    num_heads: int = 12
    intermediate_width: int = 3072
    act: str = "gelu"  # of layers and heads
    num_positions: int = 512  # rows of BERT's position table
    num_segments: int = 3  # rows of the segment table: A and B for text, C for regions and [END]
    position_offset: int = 0  # row of the first position; 2 in RoBERTa's table
    region_width: int = 2048
    visual_width: int | None = None  # of a region's vector r; None: H, as in every published model
    num_region_classes: int = 1601  # background is class 0
    num_wavelengths: int = 256  # of the geometry embedding
    geometry: Geometry = "centre"  # centre and size; "corners" in the paper
    visual_norm: bool = True  # layer norms on visual vectors; else one learned factor each
    visual_scale_text: float = 0.0  # initial gain of that norm; 0 starts as plain BERT
    visual_scale_region: float = 0.0
    end_visual: bool = False  # the paper gives [END] the full image's vector too
    # The part of a masked region that is replaced. "appearance": its feature, by a learned one, and
    # its token. "vector": the projected vector r (the paper). "pixels": its token; the feature was
    # computed from an image without its pixels (end to end). "none": no masking (fine-tuning).
    masked_region: MaskedRegion = "appearance"
    text_only: bool = True  # rows without an image, with a learned vector instead
    pooler: bool = False  # BERT's, on the first element
    matching: bool = False  # head for whether text and image belong together
    masked_words: bool = True  # head for masked words
    masked_classes: bool = True  # head for masked regions' classes, and those regions' own token
    frozen_words: bool = False  # a frozen word table, except for a copy of its first 1000 rows
    frozen_positions: bool = False
    dropout: float = 0.1
    attention_dropout: float = 0.1
    init_std: float = INIT_STD

    def __post_init__(self) -> None:
        check_sizes(self, from_zero=("position_offset",))
        check_heads(self)
        check_activation(self.act)
        check_shares(self, "dropout", "attention_dropout")
        check_std(self)
        if self.num_segments <= VISUAL_SEGMENT:
            raise ValueError(
                f"num_segments={self.num_segments}: expected {VISUAL_SEGMENT + 1} or "
                f"more: row {VISUAL_SEGMENT} is for regions"
            )
        if self.visual_width is not None and self.visual_width < 1:
            raise ValueError(
                f"visual_width={self.visual_width}: expected a positive number or None"
            )
        for name, kind in (("geometry", Geometry), ("masked_region", MaskedRegion)):
            if getattr(self, name) not in get_args(kind):
                raise ValueError(
                    f"{name}={getattr(self, name)!r}: expected one of {', '.join(get_args(kind))}"
                )
        if self.max_text_tokens < 1:
            raise ValueError(
                f"num_positions={self.num_positions} leaves no position for text: "
                f"{self.position_offset} are skipped, regions and [END] take two"
            )
        if self.matching and not self.pooler:
            raise ValueError("matching=True needs pooler=True: the head reads the pooled vector")

    @property
    def max_text_tokens(self) -> int:
        """Returns the number of tokens that fit the position table with regions and [END]."""
        return self.num_positions - self.position_offset - 2

    @property
    def vector_width(self) -> int:
        """Returns V, the width of a region's vector r."""
        return self.visual_width or self.width


# The released base model, 114.5 million parameters.
vlbert_base = partial(VlBertConfig)

# The released large model, 342.1 million parameters.
vlbert_large = partial(VlBertConfig, **LARGE)

# The article's base model (sec. 3): its geometry, masking, matching, and no text-only rows. It does
# not specify the sine embedding of the corners, which is that of the code for centre and size.
vlbert_paper = partial(
    VlBertConfig,
    geometry="corners",
    end_visual=True,
    masked_region="vector",
    text_only=False,
    pooler=True,
    matching=True,
)

# A model of a few million parameters for CPU trials.
vlbert_small = partial(
    VlBertConfig,
    **SMALL,
    num_layers=4,
    # Regions must be distinguishable from the first step, and the full image in each word does
    # not help: after 1,500 steps of 32 generated pairs the matching loss is 0.14 with these
    # values, and 0.59 with 0.07 in both and positions in 256 wavelengths.
    visual_scale_region=0.3,
    num_wavelengths=32,
    text_only=False,
    pooler=True,
    matching=True,
)


def vlbert_for_task(
    config: VlBertConfig, *, pooler: bool = False, masked_region: MaskedRegion = "none"
) -> VlBertConfig:
    """Returns a pretraining configuration for a task: no text-only rows, masking only in the
    paper's VCR.
    """
    return dataclasses.replace(
        config, masked_region=masked_region, text_only=False, pooler=pooler, matching=False
    )


def _base() -> VlBertConfig:
    return vlbert_for_task(VlBertConfig())


def _check_classifier(classifier: str, known: Sequence[str]) -> None:
    if classifier not in known:
        raise ValueError(f"classifier={classifier!r}: expected one of {', '.join(known)}")


@dataclass(frozen=True, kw_only=True)
class VlBertVqaConfig:
    """Configures VQA 2.0: 3129 answers; the classifier, its hidden layer's width and dropout."""

    body: VlBertConfig = field(default_factory=_base)
    num_answers: int = 3129
    dropout: float = 0.1
    classifier: Classifier = "mlm"
    classifier_width: int = 1024  # of "2fc"

    def __post_init__(self) -> None:
        check_sizes(self)
        _check_classifier(self.classifier, get_args(Classifier))
        check_shares(self, "dropout")


@dataclass(frozen=True, kw_only=True)
class VlBertRefcocoConfig:
    """Configures RefCOCO+, with the dropout of the classifier."""

    body: VlBertConfig = field(default_factory=_base)
    dropout: float = 0.0

    def __post_init__(self) -> None:
        check_shares(self, "dropout")


@dataclass(frozen=True, kw_only=True)
class VlBertVcrConfig:
    """Configures VCR; its auxiliary loss has 80 COCO categories and the full image."""

    body: VlBertConfig = field(default_factory=lambda: vlbert_for_task(_base(), pooler=True))
    num_categories: int = 81
    dropout: float = 0.1
    category_dropout: float = 0.0
    masked_words: bool = False  # a head for masked words, as in the paper's ablation
    classifier: Classifier = "1fc"  # never "mlm"
    classifier_width: int = 1024  # of "2fc"
    # Initial gain of objects' vectors that are added to the words that name them. It replaces
    # body.visual_scale_text and its pretrained value; None keeps them.
    visual_scale_names: float | None = None

    def __post_init__(self) -> None:
        check_sizes(self)
        _check_classifier(self.classifier, ("1fc", "2fc"))
        check_shares(self, "dropout", "category_dropout")
        if not self.body.pooler:
            raise ValueError("body.pooler=False: VCR's answers are computed from the pooled vector")


@dataclass(frozen=True, kw_only=True)
class RegionCnnConfig:
    """Holds the released sizes: ResNet-101 in Caffe's form, conv5 dilated over 14 x 14."""

    blocks: tuple[int, int, int, int] = BLOCKS[101]
    widths: tuple[int, int, int, int] = (64, 128, 256, 512)  # inner channels of the stages
    stem_channels: int = 64
    stride_in_1x1: bool = True
    dilated: bool = True  # conv5 keeps 14 x 14 cells; else it halves them
    pool_size: int = 14
    frozen_stages: int = 2  # frozen: stem (1), res2 (2), ...; normalisation always is

    def __post_init__(self) -> None:
        check_sizes(self, from_zero=("frozen_stages",))
        if len(self.blocks) != 4 or len(self.widths) != 4 or min(*self.blocks, *self.widths) < 1:
            raise ValueError(
                f"blocks={self.blocks}, widths={self.widths}: expected four positive numbers each"
            )
        if self.frozen_stages > 4:
            raise ValueError(f"frozen_stages={self.frozen_stages}: 0 (none) to 4 (up to res4)")

    @property
    def feature_width(self) -> int:
        """Returns D, the width of a region's feature."""
        return self.widths[3] * EXPANSION

    @property
    def num_cells(self) -> int:
        """Returns the number of cells per side over which a region's feature is averaged."""
        return self.pool_size if self.dilated else -(-self.pool_size // 2)


# In this order plain values match only the right class.
TaskConfig = VlBertConfig | VlBertRefcocoConfig | VlBertVqaConfig | VlBertVcrConfig


def _pixels() -> VlBertConfig:
    return VlBertConfig(masked_region="pixels")


@dataclass(frozen=True, kw_only=True)
class VlBertEndToEndConfig:
    """Joins a model on regions, for any task, and the network that computes their features."""

    model: TaskConfig = field(default_factory=_pixels)
    cnn: RegionCnnConfig = field(default_factory=RegionCnnConfig)

    def __post_init__(self) -> None:
        body = self.model if isinstance(self.model, VlBertConfig) else self.model.body
        if body.region_width != self.cnn.feature_width:
            raise ValueError(
                f"model takes features of region_width={body.region_width}, cnn gives "
                f"{self.cnn.feature_width}"
            )


# The released base model from pixels, 157.0 million parameters.
vlbert_base_end_to_end = partial(VlBertEndToEndConfig, model=vlbert_base(masked_region="pixels"))

# The article's base model from pixels, fully trained (sec. 3.3), 157.6 million parameters. The
# pixels of masked regions are removed, and their vectors are replaced too.
vlbert_paper_end_to_end = partial(
    VlBertEndToEndConfig, model=vlbert_paper(), cnn=RegionCnnConfig(frozen_stages=0)
)

# The released large model from pixels, 384.6 million parameters.
vlbert_large_end_to_end = partial(VlBertEndToEndConfig, model=vlbert_large(masked_region="pixels"))


PRESETS: dict[str, Callable[..., Any]] = {
    "vl-bert-base": vlbert_base,
    "vl-bert-base-end-to-end": vlbert_base_end_to_end,
    "vl-bert-base-paper": vlbert_paper,
    "vl-bert-base-paper-end-to-end": vlbert_paper_end_to_end,
    "vl-bert-large": vlbert_large,
    "vl-bert-large-end-to-end": vlbert_large_end_to_end,
    "vl-bert-small": vlbert_small,
}
