"""Defines the sizes and switches of InterBERT (Lin et al., arXiv:2003.13198).

Details that neither the paper nor the released code specifies are marked [choice].
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from vlmill.models.config_checks import (
    INIT_STD,
    SMALL,
    Fusion,
    HeadConfig,
    check_activation,
    check_fusion,
    check_heads,
    check_shares,
    check_sizes,
    check_std,
    check_text_length,
)


@dataclass(frozen=True, kw_only=True)
class InterBertConfig:
    """Holds sizes and switches; defaults are the paper's, with BERT-base uncased."""

    vocab_size: int = 30522
    width: int = 768  # of every module
    num_interaction_layers: int = 12
    num_text_layers: int = 6
    num_visual_layers: int = 6
    num_heads: int = 12
    visual_num_heads: int = 12  # of the image module
    intermediate_width: int = 3072
    visual_intermediate_width: int = 3072
    act: str = "gelu"
    visual_act: str = "gelu"
    dropout: float = 0.1
    attention_dropout: float = 0.1
    visual_dropout: float = 0.1  # [choice] for the paper
    visual_attention_dropout: float = 0.1
    num_positions: int = 512
    num_segments: int = 2
    modality_segments: bool = True  # segment 0 for regions, 1 for captions (paper, figure)
    region_width: int = 2048
    num_region_classes: int = 1601  # with background at index 0
    regress_features: bool = False  # the region head predicts features, not classes
    pooled_width: int = 1024  # the released code's; the paper does not state it
    fusion: Fusion = "mul"
    head_dropout: float = 0.1  # before the matching layer
    max_text_tokens: int = 36  # length of captions in pretraining; the network takes longer ones
    global_region: bool = True  # row 0 of the regions is the full image
    init_std: float = INIT_STD

    def __post_init__(self) -> None:
        check_sizes(self, from_zero=("num_text_layers", "num_visual_layers"))
        check_heads(self)
        check_heads(self, "width", "visual_num_heads")
        check_std(self)
        check_shares(self, "dropout", "attention_dropout", "visual_dropout")
        check_shares(self, "visual_attention_dropout", "head_dropout")
        check_fusion(self.fusion)
        check_activation(self.act)
        check_activation(self.visual_act)
        check_text_length(self)
        if self.modality_segments and self.num_segments < 2:
            raise ValueError(
                f"modality_segments=True needs a segment for each modality, num_segments="
                f"{self.num_segments}"
            )


# A model of 12 + 6 + 6 layers, 199.5 million parameters. The paper's 173 million match the same
# layout without the text's tables and without heads.
interbert_paper = partial(InterBertConfig)

# The paper's model without extraction modules, its single-stream baseline. It is BERT over both
# modalities, pooled like InterBERT [choice]; 114.5 million parameters.
interbert_single_stream = partial(InterBertConfig, num_text_layers=0, num_visual_layers=0)

# The released code's 6 + 6 + 6 layers, 157.0 million parameters.
interbert_released = partial(
    InterBertConfig,
    num_interaction_layers=6,
    visual_num_heads=8,
    visual_dropout=0.2,
    modality_segments=False,
)

# The model of TaoMultimodal: titles of 36 characters, a detector of 33 classes. [choice] The
# vocabulary of BERT-base Chinese, and a background class in addition. 191.1 million parameters.
interbert_chinese = partial(
    InterBertConfig, vocab_size=21128, num_region_classes=34, max_text_tokens=38
)

# A model of a few million parameters for CPU trials. On 42 random pairs without dropout, R@1 is 1.0
# after 300 steps of 24 at 5e-4.
interbert_small = partial(
    InterBertConfig,
    **SMALL,
    num_interaction_layers=3,
    num_text_layers=1,
    num_visual_layers=1,
    visual_num_heads=4,
    visual_intermediate_width=768,
    pooled_width=256,
    visual_attention_dropout=0.0,
)


@dataclass(frozen=True, kw_only=True)
class InterBertTasksConfig(HeadConfig):
    """Configures the released fine-tuning model. VQA would need more answers than its one."""

    trunk: InterBertConfig
    num_answers: int = 1
    dropout: float = 0.1  # before heads


@dataclass(frozen=True, kw_only=True)
class InterBertTextConfig(HeadConfig):
    """Configures a text-only classifier (GLUE); one label is a regression (STS-B)."""

    trunk: InterBertConfig
    num_labels: int
    dropout: float = 0.1


@dataclass(frozen=True, kw_only=True)
class InterBertImagesConfig(HeadConfig):
    """Configures a classifier of a text with ``num_pictures`` images (NLVR2: 2)."""

    trunk: InterBertConfig
    num_labels: int = 2
    num_pictures: int = 2
    dropout: float = 0.1


PRESETS: dict[str, Callable[..., Any]] = {
    "interbert-chinese": interbert_chinese,
    "interbert-paper": interbert_paper,
    "interbert-released": interbert_released,
    "interbert-single-stream": interbert_single_stream,
    "interbert-small": interbert_small,
}
