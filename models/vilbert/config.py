"""Defines ViLBERT's sizes (Lu et al., arXiv:1908.02265), as published.

Paper and released code differ little in the network. The paper prints a text width of 762 (768 in
the code and in BERT), and multiplies h_IMG and h_CLS directly. They have 1024 and 768 numbers, so
both presets have the code's poolers, each to 1024 with a ReLU.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from vlmill.models.config_checks import (
    INIT_STD,
    LARGE,
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
class VilbertConfig:
    """Holds sizes and switches; defaults are the released 6-layer base model's.

    A co-attention layer with id k in ``text_co_layers`` directly precedes layer k of the text; the
    ids of the regions work the same. The length of both lists is the number of co-attention layers.
    """

    vocab_size: int = 30522
    width: int = 768  # of the text
    num_layers: int = 12
    num_heads: int = 12
    intermediate_width: int = 3072
    act: str = "gelu"
    dropout: float = 0.1
    attention_dropout: float = 0.1
    num_positions: int = 512
    num_segments: int = 2
    num_tasks: int = 0  # rows of the task-token table; 12-in-1 has 20
    region_width: int = 2048
    num_region_classes: int = 1601  # with background at index 0
    regress_features: bool = False  # the region head predicts features, not classes
    visual_width: int = 1024
    visual_num_layers: int = 6
    visual_num_heads: int = 8
    visual_intermediate_width: int = 1024  # not 4 times the width
    visual_act: str = "gelu"
    visual_dropout: float = 0.1
    visual_attention_dropout: float = 0.1
    co_width: int = 1024
    co_num_heads: int = 8
    text_co_layers: tuple[int, ...] = (6, 7, 8, 9, 10, 11)
    visual_co_layers: tuple[int, ...] = (0, 1, 2, 3, 4, 5)
    co_attention: bool = True  # False: the streams do not interact before fusion
    fusion: Fusion = "mul"
    head_dropout: float = 0.1  # before the matching layer
    frozen_text_layers: int = 0  # these and the embedding run without gradient
    frozen_visual_layers: int = 0
    max_text_tokens: int = 36  # length of captions in pretraining; the network takes longer ones
    global_region: bool = True  # whether row 0 of the regions is the full image (mmf: False)
    keep_unused: bool = False  # keep the released tensors that nothing reads (q_dense1, q_dense2)
    init_std: float = INIT_STD

    def __post_init__(self) -> None:
        check_sizes(self, from_zero=("num_tasks", "frozen_text_layers", "frozen_visual_layers"))
        check_heads(self)
        check_heads(self, "visual_width", "visual_num_heads")
        check_heads(self, "co_width", "co_num_heads")
        check_std(self)
        check_shares(self, "dropout", "attention_dropout", "visual_dropout")
        check_shares(self, "visual_attention_dropout", "head_dropout")
        check_fusion(self.fusion)
        check_activation(self.act)
        check_activation(self.visual_act)
        check_text_length(self)
        if len(self.text_co_layers) != len(self.visual_co_layers) or not self.text_co_layers:
            raise ValueError(
                f"text_co_layers={self.text_co_layers} and visual_co_layers="
                f"{self.visual_co_layers}: expected at least one id in each, and the "
                "same number in both"
            )
        _check_co_layers("text", self.text_co_layers, self.num_layers, self.frozen_text_layers)
        _check_co_layers(
            "visual", self.visual_co_layers, self.visual_num_layers, self.frozen_visual_layers
        )


def _check_co_layers(stream: str, ids: Sequence[int], num_layers: int, num_frozen: int) -> None:
    if list(ids) != sorted(ids) or ids[0] < 0 or ids[-1] >= num_layers:
        raise ValueError(
            f"{stream}_co_layers={tuple(ids)}: expected ids in ascending order, from 0 to "
            f"{num_layers - 1} (the stream has {num_layers} layers)"
        )
    if num_frozen > ids[0]:
        raise ValueError(
            f"frozen_{stream}_layers={num_frozen}: only the {ids[0]} layers before the first "
            "co-attention can be frozen"
        )


def vilbert_base(num_co_layers: int = 6, **changes: Any) -> VilbertConfig:
    """Returns the paper's model of 2, 4, 6 or 8 co-attention layers (table 2).

    160.8, 205.4, 250.0 and 294.7 million parameters (the paper does not state counts). The 6-layer
    model never uses 11.0 million of them; these are omitted unless ``keep_unused``.
    """
    return VilbertConfig(**(_depth(12, num_co_layers) | changes))


def vilbert_released(num_co_layers: int = 6, **changes: Any) -> VilbertConfig:
    """Returns `vilbert_base` with every tensor that the released files have."""
    return vilbert_base(num_co_layers, **({"keep_unused": True} | changes))


def vilbert_large(num_co_layers: int = 6, **changes: Any) -> VilbertConfig:
    """Returns BERT-large with 2, 4 or 6 co-attention layers (released configurations).

    396.7, 451.3 and 505.9 million parameters; 2.1 million per co-attention layer are never used.
    """
    return VilbertConfig(**(LARGE | _depth(24, num_co_layers) | changes))


# The trunk of 12-in-1: the base model with a token for each of 20 tasks.
vilbert_12in1 = partial(vilbert_released, num_tasks=20)

# A model of a few million parameters for CPU trials. Its two ReLU poolers need a low learning rate:
# on 42 random pairs without dropout, R@1 is 1.0 after 240 steps of 24 at 1e-4 to 2e-4, 0.9 at 3e-4,
# and at 5e-4 all pairs collapse to one vector.
vilbert_small = partial(
    VilbertConfig,
    **SMALL,
    num_layers=4,
    visual_width=192,
    visual_num_layers=2,
    visual_num_heads=4,
    visual_intermediate_width=192,
    co_width=192,
    co_num_heads=4,
    text_co_layers=(2, 3),
    visual_co_layers=(0, 1),
    visual_attention_dropout=0.0,
)


def _depth(num_text_layers: int, num_co_layers: int) -> dict[str, Any]:
    """Returns the sizes with co-attention before the text's last layers and every region layer."""
    return {
        "num_layers": num_text_layers,
        "visual_num_layers": num_co_layers,
        "text_co_layers": tuple(range(num_text_layers - num_co_layers, num_text_layers)),
        "visual_co_layers": tuple(range(num_co_layers)),
    }


@dataclass(frozen=True, kw_only=True)
class SingleStreamConfig:
    """Holds sizes; defaults are the paper's: BERT-base with ViLBERT's regions."""

    vocab_size: int = 30522
    width: int = 768
    num_layers: int = 12
    num_heads: int = 12
    intermediate_width: int = 3072
    act: str = "gelu"
    dropout: float = 0.1
    attention_dropout: float = 0.1
    num_positions: int = 512
    num_segments: int = 2
    region_width: int = 2048
    num_region_classes: int = 1601  # with background at index 0
    max_text_tokens: int = 36  # length of captions in pretraining; the network takes longer ones
    global_region: bool = True  # row 0 of the regions is the full image
    init_std: float = INIT_STD

    def __post_init__(self) -> None:
        check_sizes(self)
        check_heads(self)
        check_std(self)
        check_shares(self, "dropout", "attention_dropout")
        check_activation(self.act)
        check_text_length(self)


# The baseline of the paper's tables, 113.5 million parameters.
single_stream_base = partial(SingleStreamConfig)


@dataclass(frozen=True, kw_only=True)
class VilbertTasksConfig:
    """Configures the paper's release: 3129 answers for VQA 2.0, 1 for other heads."""

    trunk: VilbertConfig | SingleStreamConfig
    num_answers: int = 3129
    classifier_dropout: float = 0.5
    dropout: float = 0.1  # before heads

    def __post_init__(self) -> None:
        check_sizes(self)
        check_shares(self, "classifier_dropout", "dropout")


@dataclass(frozen=True, kw_only=True)
class Vilbert12in1Config(HeadConfig):
    """Configures 12-in-1, one model for twelve data sets with 20 task tokens."""

    trunk: VilbertConfig
    num_answers: int = 3129  # VQA 2.0, and Visual Genome's questions
    num_gqa_answers: int = 1533
    dropout: float = 0.1


@dataclass(frozen=True, kw_only=True)
class VilbertClassifierConfig(HeadConfig):
    """Configures mmf's classifier over one image, or two with one text (NLVR2)."""

    trunk: VilbertConfig | SingleStreamConfig
    num_labels: int
    num_pictures: int = 1
    dropout: float = 0.1


PRESETS: dict[str, Callable[..., Any]] = {
    "vilbert-12in1": vilbert_12in1,
    "vilbert-base": vilbert_base,
    "vilbert-base-2": partial(vilbert_base, 2),
    "vilbert-base-4": partial(vilbert_base, 4),
    "vilbert-base-8": partial(vilbert_base, 8),
    "vilbert-large": vilbert_large,
    "vilbert-large-2": partial(vilbert_large, 2),
    "vilbert-large-4": partial(vilbert_large, 4),
    "vilbert-paper": vilbert_base,
    "vilbert-released": vilbert_released,
    "vilbert-single-stream": single_stream_base,
    "vilbert-small": vilbert_small,
}
