"""Defines the sizes and switches of ImageBERT (Qi et al., arXiv:2001.07966).

The paper has no released code: details that it does not specify are marked [choice].
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from vlmill.models.config_checks import (
    INIT_STD,
    SMALL,
    check_heads,
    check_shares,
    check_sizes,
    check_std,
)


@dataclass(frozen=True, kw_only=True)
class ImageBertConfig:
    """Holds sizes and switches; defaults are the paper's (sec. 3.1, 5.2), from BERT-base."""

    vocab_size: int = 30522
    width: int = 768
    num_layers: int = 12
    num_heads: int = 12
    intermediate_width: int = 3072
    num_positions: int = 512  # rows of BERT's position table
    max_text_tokens: int = 44  # 144 positions in total minus 100 regions (sec. 5.2)
    visual_position_id: int = 44  # [choice] the first row that no word uses
    region_width: int = 2048
    num_region_classes: int = 1600
    dropout: float = 0.1
    attention_dropout: float = 0.1
    image_pre_ln: bool = False  # layer norms on both projections before the sum, as in UNITER
    image_norm_from_bert: bool = False  # the regions' layer norm starts as BERT's, not as 1 and 0
    global_widths: tuple[int, ...] = ()  # of features of image-level networks, one token each
    visual_sep_id: int | None = None  # the word id of [SEP], to append one after the regions too
    itm_pooler: bool = False  # BERT's tanh pooler under the matching layer
    match_outputs: int = 1  # 2: two classes and a softmax, as in UNITER
    init_std: float = INIT_STD  # of new weights

    def __post_init__(self) -> None:
        check_sizes(self, from_zero=("visual_position_id",))
        check_heads(self)
        check_std(self)
        check_shares(self, "dropout", "attention_dropout")
        if min(self.global_widths, default=1) < 1:
            raise ValueError(f"global_widths={self.global_widths}: expected positive numbers")
        if self.match_outputs > 2:
            raise ValueError(f"match_outputs={self.match_outputs}: expected 1 or 2")
        if self.visual_sep_id is not None and not 0 <= self.visual_sep_id < self.vocab_size:
            raise ValueError(
                f"visual_sep_id={self.visual_sep_id} is not one of the "
                f"vocab_size={self.vocab_size} words"
            )
        for name, last in (
            ("max_text_tokens", self.max_text_tokens - 1),
            ("visual_position_id", self.visual_position_id),
        ):
            if last >= self.num_positions:
                raise ValueError(
                    f"{name}={getattr(self, name)} needs row {last} of the position table, which "
                    f"has num_positions={self.num_positions} rows"
                )


def imagebert_base(**changes: Any) -> ImageBertConfig:
    """Returns the paper's model, 113.9 million parameters; ``changes`` replace fields."""
    return ImageBertConfig(**changes)


def imagebert_small(**changes: Any) -> ImageBertConfig:
    """Returns a model of a few million parameters for CPU trials; ``changes`` replace fields."""
    return ImageBertConfig(**(SMALL | {"num_layers": 4} | changes))


@dataclass(frozen=True, kw_only=True)
class ImageBertRetrievalConfig:
    """Holds the pretrained model's configuration."""

    trunk: ImageBertConfig = field(default_factory=ImageBertConfig)
    # The head that ranks images: that of pretraining (the paper's best, table 4), or the score
    # among candidates, for a model that was trained with only that score.
    rank_by: Literal["match", "score"] = "match"


@dataclass(frozen=True, kw_only=True)
class ImageBertClassifierConfig:
    """Configures a classifier of a text with an image, which the paper does not have [choice]."""

    trunk: ImageBertConfig = field(default_factory=ImageBertConfig)
    num_labels: int = 2
    dropout: float = 0.1

    def __post_init__(self) -> None:
        check_sizes(self)
        check_shares(self, "dropout")


PRESETS: dict[str, Callable[..., Any]] = {
    "imagebert-base": imagebert_base,
    "imagebert-small": imagebert_small,
}
