"""Defines the sizes and switches of BERT (Devlin et al., arXiv:1810.04805)."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from vlmill.models.config_checks import (
    INIT_STD,
    LARGE,
    SMALL,
    HeadConfig,
    check_activation,
    check_heads,
    check_shares,
    check_sizes,
    check_std,
)


@dataclass(frozen=True, kw_only=True)
class BertConfig:
    """Holds sizes and switches; defaults are BERT-base uncased (sec. 3, released configuration)."""

    vocab_size: int = 30522
    width: int = 768
    num_layers: int = 12
    num_heads: int = 12
    intermediate_width: int = 3072
    num_positions: int = 512
    num_segments: int = 2
    dropout: float = 0.1
    attention_dropout: float = 0.1
    act: str = "gelu"
    init_std: float = INIT_STD

    def __post_init__(self) -> None:
        check_sizes(self)
        check_heads(self)
        check_std(self)
        check_shares(self, "dropout", "attention_dropout")
        check_activation(self.act)

    @property
    def max_text_tokens(self) -> int:
        """Returns the number of rows of the position table."""
        return self.num_positions


# BERT-base: 12 layers of 768, 109.5 million parameters below the heads.
bert_base = partial(BertConfig)

# BERT-large: 24 layers of 1024, 335.1 million parameters below the heads.
bert_large = partial(BertConfig, **LARGE)

# A model of a few million parameters for CPU trials.
bert_small = partial(BertConfig, **SMALL, num_layers=4)


@dataclass(frozen=True, kw_only=True)
class BertTextConfig(HeadConfig):
    """Configures a classifier of texts (GLUE); one label is a regression (STS-B)."""

    trunk: BertConfig
    num_labels: int
    dropout: float = 0.1


PRESETS: dict[str, Callable[..., Any]] = {
    "bert-base": bert_base,
    "bert-large": bert_large,
    "bert-small": bert_small,
}
